"""GLUE (Wang et al. 2019, arXiv:1804.07461), its nine tasks.

Scores are of the official development sets: test labels are hidden, and the values that the
Procrustes paper prints are multiples of 1 / (size of the development set). Hyperparameters are that
paper's.
"""

from harness import Hyperparameters, Task, task

REVISION = "bcdcba79d07bc864c1c254ccfcedcce55bcc9a8c"


def glue(
    name: str,
    text: tuple[str, ...],
    labels: tuple[str, ...],
    metrics: tuple[str, ...] = ("accuracy",),
    *,
    learning_rate: float = 1e-5,
    splits: tuple[str, ...] = ("validation",),
) -> Task:
    """Register one GLUE task; `splits` are its labelled evaluation splits, the reported first."""
    return task(
        Task(
            name=f"glue/{name}",
            kind="classification" if labels else "regression",
            text=text,
            label="label",
            labels=labels,
            metrics=metrics,
            splits={split.replace("_matched", ""): split for split in splits},
            reported="validation",
            source="nyu-mll/glue",
            subset=name,
            revision=REVISION,
            paper="arXiv:1804.07461",
            finetune=Hyperparameters(learning_rate=learning_rate),
        )
    )


PAIR = ("sentence1", "sentence2")
ENTAILMENT = ("entailment", "not_entailment")

glue("cola", ("sentence",), ("unacceptable", "acceptable"), ("matthews",), learning_rate=2e-5)
glue("sst2", ("sentence",), ("negative", "positive"))
glue("mrpc", PAIR, ("not_equivalent", "equivalent"), ("accuracy", "f1"), learning_rate=5e-5)
glue("stsb", PAIR, (), ("pearson", "spearman"), learning_rate=5e-5)
glue("qqp", ("question1", "question2"), ("not_duplicate", "duplicate"), ("accuracy", "f1"))
glue(
    "mnli",
    ("premise", "hypothesis"),
    ("entailment", "neutral", "contradiction"),
    splits=("validation_matched", "validation_mismatched"),
)
glue("qnli", ("question", "sentence"), ENTAILMENT)
glue("rte", PAIR, ENTAILMENT, learning_rate=5e-5)
glue("wnli", PAIR, ("not_entailment", "entailment"))
