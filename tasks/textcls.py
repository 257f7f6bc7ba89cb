"""The five text classification sets of the FT-Classifier paper (Zhang et al. 2015).

The fine-tuning settings of that paper are unknown; the learning rate and length here are ours.
Amazon-5 has no parquet release on the Hub that we could pin: it is read from a local folder.
"""

from collections.abc import Callable

from harness import Hyperparameters, Task, task
from harness.types import Row

STARS = ("1 star", "2 stars", "3 stars", "4 stars", "5 stars")
YELP = ("1 star", "2 star", "3 stars", "4 stars", "5 stars")  # as its release spells them


def textcls(
    name: str,
    text: tuple[str, ...],
    labels: tuple[str, ...],
    *,
    source: str = "",
    revision: str | None = None,
    label: str = "label",
    read: Callable[[Row], tuple[str, ...]] | None = None,
) -> Task:
    """Register one of the five sets, reported on its test split."""
    return task(
        Task(
            name=f"textcls/{name}",
            kind="classification",
            text=text,
            label=label,
            labels=labels,
            metrics=("accuracy",),
            splits={"test": "test"},
            reported="test",
            source=source,
            revision=revision,
            paper="arXiv:1509.01626",
            read=read,
            finetune=Hyperparameters(learning_rate=5e-5),
        )
    )


def title_and_content(row: Row) -> tuple[str, ...]:
    """Both columns as one segment; a review may come without a title."""
    return (f"{row['title'] or ''} {row['content'] or ''}".strip(),)


def question_and_answer(row: Row) -> tuple[str, ...]:
    """The three columns of the Hub as one segment; some releases have them joined in `text`."""
    columns = ("question_title", "question_content", "best_answer")
    return (row.get("text") or " ".join(filter(None, (row[column] for column in columns))),)


textcls(
    "ag_news",
    ("text",),
    ("World", "Sports", "Business", "Sci/Tech"),
    source="fancyzhx/ag_news",
    revision="eb185aade064a813bc0b7f42de02595523103ca4",
)
textcls(
    "yelp_review_full",
    ("text",),
    YELP,
    source="Yelp/yelp_review_full",
    revision="c1f9ee939b7d05667af864ee1cb066393154bf85",
)
textcls("amazon_review_full", ("title", "content"), STARS, read=title_and_content)
textcls(
    "yahoo_answers_topics",
    ("question_title", "question_content", "best_answer"),
    (
        *("Society & Culture", "Science & Mathematics", "Health", "Education & Reference"),
        *("Computers & Internet", "Sports", "Business & Finance", "Entertainment & Music"),
        *("Family & Relationships", "Politics & Government"),
    ),
    source="community-datasets/yahoo_answers_topics",
    revision="6652a1e7c94f7260a0bfd0c9092dd48e2d536ea1",
    label="topic",
    read=question_and_answer,
)
textcls(
    "dbpedia_14",
    ("title", "content"),
    (
        *("Company", "EducationalInstitution", "Artist", "Athlete", "OfficeHolder"),
        *("MeanOfTransportation", "Building", "NaturalPlace", "Village", "Animal", "Plant"),
        *("Album", "Film", "WrittenWork"),
    ),
    source="fancyzhx/dbpedia_14",
    revision="9abd46cf7fc8b4c64290f26993c540b92aa145ac",
    read=title_and_content,
)
