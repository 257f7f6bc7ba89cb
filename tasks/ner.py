"""Named entity recognition, a tag for every word; read from a local folder.

CoNLL 2003, NCBI disease and TweetNER7 are data sets of the Procrustes paper, as are the
hyperparameters. OntoNotes and RegMean's other data sets have the entities PER, ORG and LOC alone:
`_plo` marks data sets with further entities, which are read as none.
"""

from collections.abc import Mapping, Sequence
from functools import partial

from harness import Hyperparameters, Task, task

SETTINGS = Hyperparameters(learning_rate=5e-5, epochs=25, warmup=0.1, weight_decay=0.1)
PLO = ("PER", "ORG", "LOC")
ONTONOTES = {"PERSON": "PER", "ORG": "ORG", "FAC": "LOC", "GPE": "LOC", "LOC": "LOC"}
"""RegMean's types of entities for those of OntoNotes; all other types are read as none."""
OTHERS = (
    *("CARDINAL", "DATE", "EVENT", "LANGUAGE", "LAW", "MONEY", "NORP", "ORDINAL", "PERCENT"),
    *("PRODUCT", "QUANTITY", "TIME", "WORK_OF_ART"),
)


def iob(types: Sequence[str]) -> tuple[str, ...]:
    """O, then for each type the tag of its first word and that of its further words."""
    return ("O", *(f"{prefix}-{one}" for one in types for prefix in "BI"))


def o_last(types: Sequence[str]) -> tuple[str, ...]:
    """The tags of first words of all types, those of further words, then O."""
    return (*(f"{prefix}-{one}" for prefix in "BI" for one in types), "O")


def renamed(types: Mapping[str, str]) -> dict[str, str]:
    """Tags of a data set -> tags of a task, given the types; a type mapped to "" becomes O."""
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
"""Documents begin with -DOCSTART- in its own files; most copies as tables lack the column."""
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
