"""The five text classification sets of the FT-Classifier paper (Zhang et al. 2015).

The fine-tuning settings of that paper are unknown; the learning rate and length here are ours.
Amazon-5 has no parquet release on the Hub that we could pin: it is read from a local folder.
"""

from functools import partial

from harness import Hyperparameters, Task, task
from harness.types import Row

STARS = ("1 star", "2 stars", "3 stars", "4 stars", "5 stars")
YELP = ("1 star", "2 star", "3 stars", "4 stars", "5 stars")  # as its release spells them


textcls = partial(
    Task,
    kind="classification",
    label="label",
    metrics=("accuracy",),
    splits={"test": "test"},
    reported="test",
    paper="arXiv:1509.01626",
    finetune=Hyperparameters(learning_rate=5e-5),
)


def title_and_content(row: Row) -> tuple[str, ...]:
    """Both columns as one segment; a review may have no title."""
    return (f"{row['title'] or ''} {row['content'] or ''}".strip(),)


def question_and_answer(row: Row) -> tuple[str, ...]:
    """The three columns on the Hub as one segment; some releases have them joined in `text`."""
    columns = ("question_title", "question_content", "best_answer")
    return (row.get("text") or " ".join(filter(None, (row[column] for column in columns))),)


SETS = (
    textcls(
        "textcls/ag_news",
        text=("text",),
        labels=("World", "Sports", "Business", "Sci/Tech"),
        source="fancyzhx/ag_news",
        revision="eb185aade064a813bc0b7f42de02595523103ca4",
    ),
    textcls(
        "textcls/yelp_review_full",
        text=("text",),
        labels=YELP,
        source="Yelp/yelp_review_full",
        revision="c1f9ee939b7d05667af864ee1cb066393154bf85",
    ),
    textcls(
        "textcls/amazon_review_full",
        text=("title", "content"),
        labels=STARS,
        read=title_and_content,
    ),
    textcls(
        "textcls/yahoo_answers_topics",
        text=("question_title", "question_content", "best_answer"),
        label="topic",
        labels=(
            *("Society & Culture", "Science & Mathematics", "Health", "Education & Reference"),
            *("Computers & Internet", "Sports", "Business & Finance", "Entertainment & Music"),
            *("Family & Relationships", "Politics & Government"),
        ),
        source="community-datasets/yahoo_answers_topics",
        revision="6652a1e7c94f7260a0bfd0c9092dd48e2d536ea1",
        read=question_and_answer,
    ),
    textcls(
        "textcls/dbpedia_14",
        text=("title", "content"),
        labels=(
            *("Company", "EducationalInstitution", "Artist", "Athlete", "OfficeHolder"),
            *("MeanOfTransportation", "Building", "NaturalPlace", "Village", "Animal", "Plant"),
            *("Album", "Film", "WrittenWork"),
        ),
        source="fancyzhx/dbpedia_14",
        revision="9abd46cf7fc8b4c64290f26993c540b92aa145ac",
        read=title_and_content,
    ),
)
for made in SETS:
    task(made)
