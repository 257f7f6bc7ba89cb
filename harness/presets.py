"""What a paper's own code did where ours does otherwise, switched on by name.

Outside a preset every method is computed as its mathematics says. A preset changes defaults; what
somebody asks for by an option stands (docs/methods.md#presets).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from harness.errors import BadRecipe
from harness.kinds import Kind, Multilabel, kind_of
from harness.readout import LAST_LINEAR, MEAN_ALL, Readout
from harness.types import Choice, KindName, Scalar, Task

PresetName: TypeAlias = Literal["procrustes", "regmean", "rotation", "ft-classifier"]

Options: TypeAlias = "Mapping[str, Mapping[str, Scalar]]"


@dataclass(frozen=True)
class Preset:
    """Other defaults: options by method, metrics by task, protocols of an evaluation.

    `of_kind` are metrics by kind of task, where the task itself has none here. `threshold` is the
    output from which a class of a multi-label row holds. `readout` is how rows are put before a
    model and read; `last_text`: only the last of a task's columns of text is read; `max_length` are
    the tokens of a row, None: the task's. `reserved` rows of each class are never drawn;
    `test_batch`: the test rows are shuffled, and those that do not fill a last batch of so many are
    not scored. `question` is the template that a model of text to text is asked with, and the
    prefix of its answers.
    """

    options: Options = field(default_factory=dict)
    metrics: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    protocols: tuple[str, ...] = ()
    of_kind: Mapping[KindName, tuple[str, ...]] = field(default_factory=dict)
    threshold: float = 0.0
    readout: Readout = LAST_LINEAR
    last_text: bool = False
    max_length: int | None = None
    reserved: int = 0
    test_batch: int | None = None
    question: tuple[str, str] | None = None


_BATCHES = 1000
"""RegMean's code counts batches of 16 where its settings speak of examples."""

_REGMEAN = Preset(
    options={
        "fisher": {
            "estimator": "hard",
            "examples": 16 * _BATCHES,
            "batch_size": 16,
            "floor": 1e-10,
            "normalize": "none",
        },
        # all GLUE settings of its code leave the off-diagonal entries as they are
        "regmean": {
            "off_diagonal": 1.0,
            "examples": 16 * _BATCHES,
            "batch_size": 16,
            "padding": True,
        },
    },
    metrics={"glue/mrpc": ("accuracy",), "glue/qqp": ("accuracy",), "glue/stsb": ("pearson",)},
    protocols=("current",),
    of_kind={"tagging": ("span_f1_dataless",)},
    question=("does the sentence express {label}? <extra_id_0> {text}", "<extra_id_0>"),
    threshold=0.5,  # its code compares logits with it: probabilities of 0.62 and more hold
)

PRESETS: Mapping[PresetName, Preset] = {
    # Procrustes merging, on MergeLM's code
    "procrustes": Preset(
        options={
            "task_arithmetic": {"scale": 0.3},
            "ties": {"density": 0.2, "scale": 1.0, "trim": "global", "convention": "mergelm"},
            "fisher": {
                "estimator": "mergelm",
                "examples": 1024,
                "batch_size": 16,
                "floor": 1e-6,
                "normalize": "model",
            },
            "regmean": {"off_diagonal": 0.9, "examples": 1024, "batch_size": 16, "padding": True},
            "dare": {"drop_rate": 0.5, "strategy": "random", "rescale": True},
        },
        protocols=("current",),
    ),
    # RegMean, on its own code
    "regmean": _REGMEAN,
    # Rotation symmetry, on RegMean's code; its alpha is that of emotion and NER
    "rotation": replace(
        _REGMEAN,
        options={
            **_REGMEAN.options,
            "regmean": {**_REGMEAN.options["regmean"], "off_diagonal": 0.1},
        },
    ),
    # FT-Classifier, on its published script
    "ft-classifier": Preset(
        options={
            "task_arithmetic": {"scale": 0.7},
            "ties": {"density": 0.2},
            "ft-classifier": {"variant": "paper"},
        },
        protocols=("current", "ft-classifier", "knn"),
        readout=MEAN_ALL,
        last_text=True,
        max_length=256,
        reserved=1,
        test_batch=128,
    ),
}


def faithful(choice: Choice, name: PresetName | None) -> Choice:
    """A method with the options of a preset, but for those that somebody asked for."""
    return Choice(choice.name, {**preset(name).options.get(choice.name, {}), **choice.options})


def as_read(task: Task, name: PresetName | None) -> Task:
    """A task with the columns of text and the maximum length that a preset reads it with.

    A task's own way to read a row is one to read all its columns. Raises BadRecipe for a task of
    words under a preset that reads whole rows.
    """
    settings = preset(name)
    if settings.readout.fault is not None and kind_of(task).split_into_words:
        raise BadRecipe(
            f"{task} is tagged word by word, which '{name}' does not read: leave out --preset"
        )
    if settings.last_text and len(task.text) > 1:
        task = replace(task, text=task.text[-1:], read=None)
    if settings.max_length is not None:
        task = replace(task, finetune=replace(task.finetune, max_length=settings.max_length))
    return task


def metrics_of(task: Task, name: PresetName | None) -> tuple[str, ...]:
    """The metrics that a preset measures a task by; none, where those are the task's own."""
    known = preset(name)
    return known.metrics.get(task.name) or known.of_kind.get(task.kind, ())


def read_as(task: Task, name: PresetName | None) -> Kind:
    """The kind of a task, as a preset reads labels off outputs."""
    kind, known = kind_of(task), preset(name)
    return replace(kind, threshold=known.threshold) if isinstance(kind, Multilabel) else kind


def preset(name: PresetName | None) -> Preset:
    """The preset of a name; without one, nothing is other than the defaults."""
    return Preset() if name is None else PRESETS[name]
