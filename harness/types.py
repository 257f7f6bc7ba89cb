"""The data types of the project: frozen dataclasses, whose properties depend on fields alone."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from harness.errors import BadData, HarnessError
from harness.hyperparameters import USUAL, Hyperparameters, unfit

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from harness.checkpoints.families.family import Family
    from harness.checkpoints.pooling import Pooling
    from harness.data.images import StoredImage
    from harness.kinds.kind import Kind
    from harness.weights.lazy import Spec

Array: TypeAlias = "npt.NDArray[np.float32]"
Array64: TypeAlias = "npt.NDArray[np.float64]"
StateDict: TypeAlias = "Mapping[str, torch.Tensor]"
"""Weights by name; read-only, usually lazy: a tensor is computed when it is accessed."""

Units: TypeAlias = "npt.NDArray[np.int64]"
KindName: TypeAlias = Literal["classification", "regression", "multilabel", "tagging"]
Scalar: TypeAlias = "bool | int | float | str | list[float] | None"
Row: TypeAlias = "Mapping[str, Any]"
Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with a description of the work, the amount done since the last call, and the total.

All passes over rows in a run share one total, which may grow while the run lasts.
"""
Steps: TypeAlias = Callable[[int], None]
"""Called with the amount of work done since the last call."""

ALL: Literal["all"] = "all"
"""The number of shots with which every unit is drawn."""
Shots: TypeAlias = int | Literal["all"]
AUTO: Literal["auto"] = "auto"
Length: TypeAlias = int | Literal["auto"]
"""The most tokens of a row; `auto`: as many as the rows need, up to the model's positions."""

FeaturesName: TypeAlias = Literal["last_linear", "mean_masked", "cls", "mean_padded"]
"""Where a protocol that fits its own classifier may take its features."""

DropoutFeatures: TypeAlias = "Callable[[Sequence[int], int], Array]"
"""Called with indices of units and a seed: their features [units, width] under seeded dropout."""


@dataclass(frozen=True)
class Choice:
    """A registered name with the options that were given: `ties:density=0.2`."""

    name: str
    options: Mapping[str, Scalar] = field(default_factory=dict)

    def __str__(self) -> str:
        """The form in which it is given on the command line."""
        if not self.options:
            return self.name
        shown = (
            f"{key}={':'.join(map(str, value)) if isinstance(value, list) else value}"
            for key, value in sorted(self.options.items())
        )
        return f"{self.name}:{','.join(shown)}"


@dataclass(frozen=True)
class Task:
    """A pinned data set, how to parse its rows, the label order and the metrics.

    `text` are the required text columns, or `image` is the image column; `read` turns a row into
    one or two segments of text. A tagging task has one column, of lists of words. A multi-label
    task has a list of classes in the column `label` or, if `label` is empty, a column per class.
    `renamed` maps labels of the data set to the task's labels. `by_index`: where labels are words,
    a number is an index into `labels`, as data sets of the Hub store classes, and the numbers of a
    multi-label row follow that order. `folder` is the folder of a local data set, by default the
    task's name; `files` are the files of its splits. `corpus` is one file of the data folder with
    rows of several data sets, read if the data set has no file of its own; `mine` turns one of its
    rows into (split, row), or None for a row of another task. `group` are names for several tasks,
    separated by spaces; by default the part of `name` before the first /. `document` is the column
    that names a document (a dialogue, say): test rows are resampled by document. `splits` maps a
    user's split name to the source's. Two more splits are derived from train: `heldout10` (10 %,
    fixed seed) and `train90` (the rest). Raises BadData for fields that contradict one another.
    """

    name: str
    kind: KindName
    text: tuple[str, ...]
    label: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    splits: Mapping[str, str]
    reported: str
    source: str = ""
    subset: str | None = None
    revision: str | None = None
    folder: str = ""
    paper: str = ""
    read: Callable[[Row], tuple[str, ...]] | None = None
    renamed: Mapping[str, str] = field(default_factory=dict)
    by_index: bool = True
    files: Mapping[str, str] = field(default_factory=dict)
    corpus: str = ""
    mine: Callable[[Row], tuple[str, Row] | None] | None = None
    group: str = ""
    document: str = ""
    generate: Callable[[str], Sequence[Row]] | None = None
    finetune: Hyperparameters = USUAL
    image: str = ""

    def __post_init__(self) -> None:
        for name in ("text", "labels", "metrics"):
            value = getattr(self, name)
            if isinstance(value, list):
                object.__setattr__(self, name, tuple(value))
        if fault := _fault(self):
            raise BadData(f"task '{self.name}' has {fault}")

    def __str__(self) -> str:
        return self.name


TRAINED_ON, HELD_OUT = DERIVED = ("train90", "heldout10")
"""Splits derived from the train split of every task: experts are trained and shots are drawn on
the first, candidates and experts are selected on the second."""

_NAME = re.compile(r"\w[\w.+-]*(/\w[\w.+-]*)*")


def is_task_name(text: object) -> bool:
    """Whether this can be the name of a task, which is also a path below a folder."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def _fault(task: Task) -> str | None:
    """What is wrong with a task, and what was expected; None if it is valid."""
    kinds = typing.get_args(KindName)
    if not is_task_name(task.name):
        return "this name, expected letters, digits and . + - _, in parts joined by /"
    if task.kind not in kinds:
        return f"the kind {task.kind!r}, expected {' or '.join(kinds)}"
    for field_name in ("text", "labels", "metrics"):
        names = getattr(task, field_name)
        if not isinstance(names, tuple) or not all(isinstance(one, str) and one for one in names):
            return f"{field_name} {names!r}, expected a tuple of names"
        if len(set(names)) < len(names):
            return f"{max(names, key=names.count)!r:.80} twice in its {field_name}, expected once"
    for name, value in vars(task.finetune).items():
        if expected := unfit(name, value):
            return f"the {name} {value!r:.40} to be fine-tuned with, expected {expected}"
    if not (task.text or task.image) or not task.metrics:
        return f"no {'text' if task.metrics else 'metrics'}, expected at least one name"
    if task.text and task.image:
        return f"text and the image '{task.image}', expected rows of one of them"
    if bad := [split for split in task.splits if split in DERIVED or not _NAME.fullmatch(split)]:
        return f"the split '{bad[0]}', expected a plain name other than {' and '.join(DERIVED)}"
    if task.reported not in (*task.splits, HELD_OUT):
        return f"reported='{task.reported}', expected one of {', '.join((*task.splits, HELD_OUT))}"
    return None


@dataclass(frozen=True)
class Rows:
    """One split of a task: segments of text, words or images, and the labels.

    A unit has one label: a row, or each of its words. `labels` are [units] (class indices, or
    values) or [rows, classes]. `documents` [rows] are numbers from 0, or None. `images` returns the
    image of a row, whose text is its hash. `is_sample`: a limit drew these rows from more.
    `skewed_labels`: labels with another share of these, the first rows, than of all rows: both
    shares.
    """

    task: Task
    split: str
    texts: tuple[tuple[str, ...], ...]
    labels: Array64
    digest: str
    documents: Units | None = None
    images: Callable[[int], StoredImage] | None = None
    is_sample: bool = False
    skewed_labels: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class Checkpoint:
    """Weights, their configuration and their source.

    `family` is the architecture, looked up once on opening. `labels` are the names in the order of
    the head's outputs: empty for regression, None for a checkpoint without a head. `tasks` are the
    tasks that a fine-tuning or a merge recorded, if any. `processor_folder` is where the tokenizer
    or image processor is, if not in the folder of the weights. `stored_dtypes` are the types in
    the file of tensors that are loaded in a wider one, `stored_names` the names in the file of
    renamed tensors, `stored_labels` the labels in the order of the stored outputs, if that is
    another. `declared_pooling` reads the pooling that the folder declares for an embedding model
    (once), and raises what is wrong with it.
    """

    source: str
    path: Path
    config: Mapping[str, Any]
    family: Family
    weights: StateDict
    labels: tuple[str, ...] | None
    tasks: tuple[str, ...] = ()
    processor_folder: Path | None = None
    stored_dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    stored_labels: tuple[str, ...] | None = None
    stored_names: Mapping[str, str] = field(default_factory=dict)
    declared_pooling: Callable[[], Pooling | None] = lambda: None

    def __repr__(self) -> str:
        labels = "no head" if self.labels is None else f"labels {', '.join(self.labels) or 'none'}"
        return f"Checkpoint({self.source!r:.200}, {len(self.weights)} tensors, {labels:.200})"

    @property
    def pooling(self) -> Pooling | None:
        """How an embedding model pools, else None. Raises BrokenCheckpoint if unsupported."""
        return None if self.labels is not None else self.declared_pooling()

    @property
    def processor(self) -> Path:
        """The folder of the tokenizer or image processor."""
        return self.processor_folder or self.path

    @property
    def name(self) -> str:
        """The last part of the source: the model's name in tables."""
        last = self.source.rstrip("/").rsplit("/", 1)[-1]
        return self.path.resolve().name if last in ("", ".", "..") else last


Whose: TypeAlias = Literal["own", "each", "tasks", "same", "shared", "none"]
DRAWN = ("own", "each", "tasks", "same")
"""Values of `Need.rows` with which `examples` rows of the experts' tasks are drawn by `seed`."""


@dataclass(frozen=True)
class Need:
    """What a method needs beside weights: a keyword-only parameter of this name.

    `function` computes the need and has its own options. `rows` selects the rows that it runs on,
    and so its argument:

    own     a `Reading`, once for each expert, on training rows of the expert's own task. The
            function returns a statistic: tensors by name or, where names share a tensor, these and
            a mapping from each name to the name that it is stored under. `shapes` returns the
            expected tensors from the headers of a checkpoint; one that is not returned counts as
            zero. The method receives one mapping for each expert.
    each    the `Readings` of all experts on these rows, once: for what is not a statistic of a
            single expert.
    tasks   as `each`; where the merge has one head for all tasks, every expert has that head.
    same    the `Readings` of all experts on training rows of the first expert's task, once.
    shared  the `ValidationScorer` of a candidate on held-out rows, once.
    none    the experts' checkpoints as they enter the method, once.

    The first four draw `examples` rows by `seed`, two of the function's options; with its option
    `rows=test` they use the reported rows, and the merge is marked transductive. For all but `own`
    the method receives what the function returns, and the function runs when a merge is planned.
    `fault` returns why a tensor cannot be part of a statistic; `check` is called with all options
    before rows are loaded. `kinds` are the supported kinds of tasks; `embeds`: also embedding
    models. `toy` makes what the method receives from toy experts, as one object or a list. With
    `gradients`, only float32 is allowed. Raises HarnessError for fields that disagree.
    """

    name: str
    function: Callable[..., Any]
    _: KW_ONLY
    paper: str = ""
    rows: Whose = "own"
    shapes: Callable[[Checkpoint], Mapping[str, Spec]] | None = None
    fault: Callable[[torch.Tensor], str | None] | None = None
    check: Callable[[Mapping[str, Scalar]], None] | None = None
    toy: Callable[[Sequence[StateDict]], Any] | None = None
    kinds: tuple[KindName, ...] = typing.get_args(KindName)
    embeds: bool = False
    gradients: bool = False

    def __post_init__(self) -> None:
        if fault := _need_fault(self):
            raise HarnessError(f"need '{self.name}' {fault}")


def _need_fault(need: Need) -> str | None:
    """What is wrong with a need, and what was expected; None if it is valid."""
    allowed = typing.get_args(Whose)
    if not need.name.isidentifier():
        return "cannot be the name of a parameter, expected letters, digits and _"
    if need.rows not in allowed:
        return f"has rows={need.rows!r}, expected {' or '.join(allowed)}"
    if need.rows == "own" and need.shapes is None:
        return "has no shapes, expected a function from a checkpoint to its tensors"
    options = {*inspect.getfullargspec(inspect.unwrap(need.function)).kwonlyargs}
    if need.rows in DRAWN and not {"examples", "seed"} <= options:
        return "does not say which rows are drawn, expected the options examples, seed after *"
    return None


@dataclass(frozen=True)
class Products:
    """Sums over tokens of the activations of hidden units of two models on the same tokens.

    `inner` [units, units] are products of the first model's activations with the second's; `sums`
    and `squares` are [units] for each model. All are float64. `count` is the number of tokens.
    """

    inner: torch.Tensor
    sums: tuple[torch.Tensor, torch.Tensor]
    squares: tuple[torch.Tensor, torch.Tensor]
    count: int


class Activations(Protocol):
    """Activations of the hidden units of one expert, on rows that all experts read."""

    def products(self, other: Any, group: str) -> Products:
        """Products of a group of units with another expert's, computed on each call."""


@dataclass(frozen=True)
class Head:
    """The final linear layer: `weight` [classes, width] and `bias` [classes]."""

    weight: Array
    bias: Array

    def outputs(self, x: Array | Array64) -> Array64:
        """The outputs [units, classes] on features x [units, width], in float64."""
        import numpy as np  # `import harness` must not

        return np.asarray(x.astype(np.float64) @ self.weight.astype(np.float64).T + self.bias)


@dataclass(frozen=True)
class Features:
    """Rows after a model's forward pass: inputs and outputs of the final linear layer, and labels.

    `x` is [units, width], `logits` [units, outputs] in the label order of the task. `seen` [units]
    is false for a word that was cut off, whose features are zero; None: all words were seen.
    """

    x: Array
    logits: Array
    labels: Array64
    seen: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Draw:
    """One few-shot selection: `rows` are units of the pool, by class (or bin of labels, or tag).

    `examples` are the training examples of a tuned head, each a tuple of units: in a tagging task
    those of a sentence. `order` are the units as drawn, if they were drawn regardless of class.
    """

    shots: Shots
    seed: int
    rows: tuple[tuple[int, ...], ...]
    examples: tuple[tuple[int, ...], ...] = ()
    order: tuple[int, ...] = ()

    @property
    def units(self) -> tuple[int, ...]:
        """The units of `examples` or, without examples, of `rows`: each once."""
        parts = self.examples or self.rows
        return tuple(dict.fromkeys(unit for part in parts for unit in part))


@dataclass(frozen=True)
class Teacher:
    """An expert of the task on the pool: its features [units, width], and its head with outputs in
    the order of the evaluated model."""

    x: Array
    head: Head


@dataclass(frozen=True)
class Encoded:
    """The input of a protocol: no text, no model, no metric.

    `pool` holds every row that any draw selects; for a protocol that adapts to the test rows, it is
    the test rows, and one draw selects all. `teachers` are the experts on the pool, `teacher` is
    the mean of their outputs: class probabilities, or values, [pool units, outputs]. `with_dropout`
    returns features of pool units with the encoder's dropout on. `outside`, in a tagging task, is
    the output for words outside entities.
    """

    task: str
    kind: Kind
    classes: int
    test: Features
    head: Head | None
    pool: Features | None
    draws: tuple[Draw, ...]
    teacher: Array64 | None
    with_dropout: DropoutFeatures | None = None
    teachers: tuple[Teacher, ...] = ()
    outside: int | None = None


@dataclass(frozen=True)
class Predictions:
    """Predicted labels of the test units, [units] or [rows, classes], and the draw used, if any.

    `facts` are numbers about the fit that a protocol adds to the record. `rows_per_dimension`, of a
    fitted map of features: below one, the rows do not determine the map.
    """

    values: Array64
    draw: Draw | None = None
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """The metrics of a task on predictions, not times 100; `value` is their unweighted mean."""

    value: float
    parts: Mapping[str, float]
    rows: int
