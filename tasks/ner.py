"""Named entities, a tag for every word; read from a local folder.

CoNLL 2003, NCBI disease and TweetNER7 are those of the Procrustes paper, and so are the
hyperparameters. OntoNotes and what RegMean reads beside it know PER, ORG and LOC alone: those that
end in `_plo` are data sets with other entities read so.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from harness import Hyperparameters, Task, task

SETTINGS = Hyperparameters(learning_rate=5e-5, epochs=25, warmup=0.1, weight_decay=0.1)
PLO = ("PER", "ORG", "LOC")
ONTONOTES = {"PERSON": "PER", "ORG": "ORG", "FAC": "LOC", "GPE": "LOC", "LOC": "LOC"}
"""RegMean's reading of OntoNotes; all others are of no entity."""
OTHERS = (
    *("CARDINAL", "DATE", "EVENT", "LANGUAGE", "LAW", "MONEY", "NORP", "ORDINAL", "PERCENT"),
    *("PRODUCT", "QUANTITY", "TIME", "WORK_OF_ART"),
)


def iob(types: Sequence[str]) -> tuple[str, ...]:
    """O, and the first and further words of each type."""
    return ("O", *(f"{prefix}-{one}" for one in types for prefix in "BI"))


def o_last(types: Sequence[str]) -> tuple[str, ...]:
    """The first words of each type, the further ones, and O."""
    return (*(f"{prefix}-{one}" for prefix in "BI" for one in types), "O")


def renamed(types: Mapping[str, str]) -> dict[str, str]:
    """Tags of a data set by those of a task, given its types; a type without one is none."""
    return {
        f"{prefix}-{theirs}": f"{prefix}-{ours}" if ours else "O"
        for theirs, ours in types.items()
        for prefix in "BI"
    }


ner = partial(
    Task,
    kind="tagging",
    text=("tokens",),
    label="ner_tags",
    metrics=("span_f1",),
    splits={"test": "test", "validation": "validation"},
    reported="test",
    group="ner",
    finetune=SETTINGS,
)
procrustes = partial(ner, group="ner ner-procrustes")
plo = partial(ner, labels=iob(PLO))
no_misc = partial(plo, renamed=renamed({"MISC": ""}), group="ner-plo")

CONLL = {"document": "document_id", "paper": "doi:10.3115/1119176.1119195"}
"""Documents are told by the -DOCSTART- of its files; most copies in tables have no such column."""
TWEEBANK = "doi:10.48550/arXiv.2201.07281"
# in the order of each data set's own header
TWEET_TYPES = ("corporation", "creative_work", "event", "group", "location", "person", "product")
WNUT_TYPES = ("corporation", "creative-work", "group", "location", "person", "product")
TWEEBANK_TYPES = ("LOC", "MISC", "ORG", "PER")

NER = (
    procrustes("ner/conll2003", labels=iob(("PER", "ORG", "LOC", "MISC")), **CONLL),
    no_misc("ner/conll2003_plo", folder="ner/conll2003", group="ner-plo ner-regmean", **CONLL),
    procrustes("ner/ncbi_disease", labels=iob(("Disease",)), paper="doi:10.1016/j.jbi.2013.12.006"),
    procrustes("ner/tweetner7", labels=o_last(TWEET_TYPES), label="tags", paper="arXiv:2210.03797"),
    plo(
        "ner/broad_twitter_corpus",
        paper="https://aclanthology.org/C16-1111",
        group="ner ner-regmean",
    ),
    ner("ner/tweebank_ner", labels=o_last(TWEEBANK_TYPES), label="tags", paper=TWEEBANK),
    no_misc("ner/tweebank_plo", label="tags", folder="ner/tweebank_ner", paper=TWEEBANK),
    plo("ner/wikiann_en", paper="https://aclanthology.org/P19-1015"),
    ner("ner/wnut_17", labels=iob(WNUT_TYPES), paper="https://aclanthology.org/W17-4418"),
)
ONTONOTES_PAPER = "https://catalog.ldc.upenn.edu/LDC2013T19"
GENRES = ("bc", "bn", "mz", "nw", "tc", "wb")
coarse = partial(
    plo,
    renamed=renamed({**dict.fromkeys(OTHERS, ""), **ONTONOTES}),
    paper=ONTONOTES_PAPER,
    group="ner ontonotes",
)
for made in (*NER, *(coarse(f"ner/ontonotes5_{genre}") for genre in GENRES)):
    task(made)
