"""Emotions: the corpora that Bostan and Klinger unified (COLING 2018), as RegMean reads them.

Multi-label: classes that a corpus does not annotate have no label. Corpora that experts are trained
on have all classes that any of them annotates, the other corpora the six shared ones.
Hyperparameters are RegMean's. Read from a local folder, which has a corpus by itself or the file
that the authors' script makes of all corpora.
"""

import zlib
from collections.abc import Callable, Mapping

from harness import Hyperparameters, Row, Task, task

UNIFIED = "emotion/unified-dataset.jsonl"
SPLITS = {"train": "train", "dev": "validation", "validation": "validation", "test": "test"}

SHARED = ("anger", "disgust", "fear", "joy", "sadness", "surprise")
CLASSES = (*SHARED, "noemo", "love", "trust", "anticipation", "shame", "guilt")
DIALOGUE = "dialogue_id"
"""The column of the dialogue of an utterance, if data have it: the unified file does not."""
SETTINGS = Hyperparameters(learning_rate=1e-5, epochs=30, batch_size=16, warmup=0.06)
TRAINED = ("dailydialog", "crowdflower", "tec", "tales-emotion", "isear")
OTHERS = ("emoint", "ssec", "electoraltweets", "grounded_emotions", "affectivetext")


def unified(name: str) -> Callable[[Row], tuple[str, Row] | None]:
    """A function from a row of the unified file to its split and task row; None for other corpora.

    A row without a split gets one by the checksum of its text: train for 8 in 10, one each for the
    others.
    """

    def mine(row: Row) -> tuple[str, Row] | None:
        if row["source"] != name:
            return None
        said = row["emotions"] or {}
        values = {one: said.get(one) for one in CLASSES}
        part = zlib.crc32(row["text"].encode()) % 10
        drawn = {8: "validation", 9: "test"}.get(part, "train")
        split = SPLITS.get(str(row.get("split")), drawn)
        shared = {"labels": [values[one] for one in SHARED], DIALOGUE: row.get(DIALOGUE)}
        return split, {"text": row["text"], **values, **shared}

    return mine


def emotion(
    name: str,
    classes: tuple[str, ...],
    column: str = "",
    renamed: Mapping[str, str] | None = None,
    document: str = "",
    group: str = "emotion-ood",
) -> Task:
    """Register a corpus, with a column for each class or one `column` with a list of classes."""
    return task(
        Task(
            name=f"emotion/{name}",
            kind="multilabel",
            text=("text",),
            label=column,
            labels=classes,
            renamed=renamed or {},
            corpus=UNIFIED,
            mine=unified(name),
            group="emotion" if classes == CLASSES else group,
            metrics=("macro_f1",),
            document=document,
            splits={"test": "test", "validation": "validation"},
            reported="test",
            paper="https://aclanthology.org/C18-1179",
            finetune=SETTINGS,
        )
    )


for corpus in TRAINED:
    emotion(corpus, CLASSES, document=DIALOGUE if corpus == "dailydialog" else "")
for corpus in OTHERS:
    emotion(corpus, SHARED, "labels", group="emotion-ood emotion-regmean")
emotion("go_emotions_ekman", SHARED, "labels", {"neutral": ""})
