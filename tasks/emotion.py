"""Emotions: the corpora that Bostan and Klinger unified (COLING 2018), as RegMean reads them.

Each class holds or does not, by itself; of a class that a corpus does not annotate nothing is said.
Corpora that experts are trained on are read in all classes that any of them has, the others in the
six that they share. Hyperparameters are RegMean's. Read from a local folder.
"""

from collections.abc import Mapping

from harness import Hyperparameters, Task, task

SHARED = ("anger", "disgust", "fear", "joy", "sadness", "surprise")
CLASSES = (*SHARED, "noemo", "love", "trust", "anticipation", "shame", "guilt")
SETTINGS = Hyperparameters(learning_rate=1e-5, epochs=30, batch_size=16, warmup=0.06)
TRAINED = ("dailydialog", "crowdflower", "tec", "tales-emotion", "isear")
OTHERS = ("emoint", "ssec", "electoraltweets", "grounded_emotions", "affectivetext")


def emotion(
    name: str,
    classes: tuple[str, ...],
    column: str = "",
    renamed: Mapping[str, str] | None = None,
) -> Task:
    """Register a corpus, with a column for each of its classes, or one with a list of them."""
    return task(
        Task(
            name=f"emotion/{name}",
            kind="multilabel",
            text=("text",),
            label=column,
            labels=classes,
            renamed=renamed or {},
            group="emotion" if classes == CLASSES else "emotion-ood",
            metrics=("macro_f1",),
            splits={"test": "test", "validation": "validation"},
            reported="test",
            paper="https://aclanthology.org/C18-1179",
            finetune=SETTINGS,
        )
    )


for corpus in TRAINED:
    emotion(corpus, CLASSES)
for corpus in OTHERS:
    emotion(corpus, SHARED, "labels")
emotion("go_emotions_ekman", SHARED, "labels", {"neutral": ""})
