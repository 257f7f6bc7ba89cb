"""Presets: defaults and quirks of a paper's published code, where ours differs.

Without a preset every method follows its mathematical definition. A preset changes defaults only;
an option that is given takes precedence (docs/methods.md#presets).
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
    """Changed defaults: options by method, metrics by task, protocols of an evaluation.

    `of_kind` are metrics by kind of task, for tasks that are not in `metrics`. `threshold` is the
    output from which a class of a multi-label row counts as predicted. `readout` is how rows are
    encoded and features taken; `last_text`: only the last of a task's text columns is used;
    `max_length` is the number of tokens of a row, None: the task's. The first `reserved` rows of
    each class are never drawn. `test_batch`: the test rows are shuffled, and the rows of an
    incomplete last batch of this size are not scored. `question` is the prompt template of a
    text-to-text model, and the prefix of its answers.
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
"""RegMean's code counts batches of 16 where its settings name examples."""

_REGMEAN = Preset(
    options={
        "fisher": {
            "estimator": "hard",
            "examples": 16 * _BATCHES,
            "batch_size": 16,
            "floor": 1e-10,
            "normalize": "none",
        },
        # all GLUE settings of its code leave the off-diagonal entries unscaled
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
    threshold=0.5,  # its code compares logits with 0.5, so a probability of 0.62 is the threshold
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
    """A method with the options of a preset, except those given in `choice`."""
    return Choice(choice.name, {**preset(name).options.get(choice.name, {}), **choice.options})


def task_under_preset(task: Task, name: PresetName | None) -> Task:
    """A task with the text columns and maximum length of a preset.

    With only the last column, the task's function `read` is dropped, since it reads all columns.
    Raises BadRecipe for a tagging task under a preset that reads whole rows.
    """
    settings = preset(name)
    if settings.readout.fault is not None and kind_of(task).split_into_words:
        raise BadRecipe(
            f"{task} has tags word by word, and the preset '{name}' reads whole rows: leave out "
            "--preset"
        )
    if settings.last_text and len(task.text) > 1:
        task = replace(task, text=task.text[-1:], read=None)
    if settings.max_length is not None:
        task = replace(task, finetune=replace(task.finetune, max_length=settings.max_length))
    return task


def metrics_of(task: Task, name: PresetName | None) -> tuple[str, ...]:
    """The metrics that a preset uses for a task; empty for the task's own."""
    settings = preset(name)
    return settings.metrics.get(task.name) or settings.of_kind.get(task.kind, ())


def kind_under_preset(task: Task, name: PresetName | None) -> Kind:
    """The kind of a task, with the preset's threshold if it is multi-label."""
    kind, settings = kind_of(task), preset(name)
    return replace(kind, threshold=settings.threshold) if isinstance(kind, Multilabel) else kind


def preset(name: PresetName | None) -> Preset:
    """The preset of a name; for None, one that changes nothing."""
    return Preset() if name is None else PRESETS[name]
