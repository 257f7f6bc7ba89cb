"""The nouns. All frozen; none of them computes anything that is not said by its own fields."""

from __future__ import annotations

import inspect
import math
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from harness.errors import BadData, HarnessError

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
"""Weights by name; read-only, usually lazy: a tensor is computed when it is asked for."""

Units: TypeAlias = "npt.NDArray[np.int64]"
KindName: TypeAlias = Literal["classification", "regression", "multilabel", "tagging"]
Scalar: TypeAlias = "bool | int | float | str | list[float] | None"
Row: TypeAlias = "Mapping[str, Any]"
Progress: TypeAlias = Callable[[str, int, int], None]
"""Called with what is being done, how much since the last call, and how much of such work in all.

All rows of a run share a total, whatever reads them; it may grow where what is done says so.
"""
Steps: TypeAlias = Callable[[int], None]
"""Called with how much was done since the last call."""

ALL: Literal["all"] = "all"
"""So many shots that every unit is drawn."""
Shots: TypeAlias = int | Literal["all"]
AUTO: Literal["auto"] = "auto"
Length: TypeAlias = int | Literal["auto"]
"""Tokens of a row at most; `auto`: as many as the model has positions for and the rows need."""
MOST_TOKENS = 2**20

FeaturesName: TypeAlias = Literal["last_linear", "mean_masked", "cls", "mean_padded"]
"""Where a protocol that makes a classifier of its own may take its features."""

Again: TypeAlias = "Callable[[Sequence[int], int], Array]"
"""Some units, by number, once more through a model that drops by a seed: [units, width]."""


@dataclass(frozen=True)
class Choice:
    """A registered name with the options that were given: `ties:density=0.2`."""

    name: str
    options: Mapping[str, Scalar] = field(default_factory=dict)

    def __str__(self) -> str:
        """The spelling that the command line reads back."""
        if not self.options:
            return self.name
        shown = (
            f"{key}={':'.join(map(str, value)) if isinstance(value, list) else value}"
            for key, value in sorted(self.options.items())
        )
        return f"{self.name}:{','.join(shown)}"


@dataclass(frozen=True)
class Hyperparameters:
    """How an expert of a task is fine-tuned; each task has the values of its paper."""

    learning_rate: float = 2e-5
    epochs: float = 3.0
    batch_size: int = 32
    warmup: float = 0.0
    weight_decay: float = 0.0
    max_length: int = 128


MOST_ROWS, MOST_EPOCHS = 2**20, 1e6
"""Of a batch, and of a training: whoever asks for more has slipped."""


def unfit(name: str, value: object) -> str | None:
    """What a hyperparameter of this name should be, if it is not."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "a number"
    if name == "warmup":
        return None if 0 <= value <= 1 else "a share of the steps, from 0 to 1"
    if name == "weight_decay":
        return None if 0 <= value < math.inf else "a finite number, not negative"
    most = {"batch_size": MOST_ROWS, "max_length": MOST_TOKENS, "epochs": MOST_EPOCHS}
    if not 0 < value < math.inf:
        return "a finite positive number"
    if name in ("batch_size", "max_length") and value != int(value):
        return "a whole number"
    return None if value <= most.get(name, value) else f"{most[name]:.0f} at most"


@dataclass(frozen=True)
class Task:
    """A pinned data set, how to parse its rows, the label order and the metrics.

    `text` are the columns a row must have, or `image` is the one of its image; `read` turns a row
    into one or two segments of text. For tags, there is one column, of lists of words. A
    multi-label task has a list of all classes in `label` or, where that is empty, a column for
    each. `renamed` are the task's names for labels that have others in the data set; `by_index`: a
    number among labels that are words is a place in their list, as data sets of the Hub store
    classes, and numbers for all classes of a multi-label row are in its order. `folder` is where a
    local data set lies, if not under the name of the task; `files` are those of its splits.
    `corpus` is a file of the data folder with the rows of several data sets, of which `mine` makes
    those of the task with their splits: it is read where the data set does not lie by itself.
    `group` are names that stand for several tasks, parted by spaces; by default that before its
    first /. `document` is the column that names a document, a dialogue say: test rows are resampled
    by it alone. `splits` maps the split a user names to that of the source. Two more are derived
    from its train split: `heldout10` (10 %, fixed seed) and `train90` (the rest). Raises BadData
    for fields that do not fit one another.
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
    finetune: Hyperparameters = Hyperparameters()
    image: str = ""

    def __post_init__(self) -> None:
        for name in ("text", "labels", "metrics"):
            given = getattr(self, name)
            if isinstance(given, list):
                object.__setattr__(self, name, tuple(given))
        if fault := _fault(self):
            raise BadData(f"task '{self.name}' has {fault}")

    def __str__(self) -> str:
        return self.name


TRAINED_ON, HELD_OUT = DERIVED = ("train90", "heldout10")
"""Splits that every task has, shares of its train split: what experts are trained on and shots are
drawn from, and what candidates and experts are chosen on."""

_NAME = re.compile(r"\w[\w.+-]*(/\w[\w.+-]*)*")


def is_task_name(text: object) -> bool:
    """Whether this can be the name of a task, which is a path below a folder, too."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def _fault(task: Task) -> str | None:
    """What is wrong with a task, and what was expected."""
    kinds = typing.get_args(KindName)
    if not is_task_name(task.name):
        return "this name, expected letters, digits and . + - _, in parts joined by /"
    if task.kind not in kinds:
        return f"the kind {task.kind!r}, expected {' or '.join(kinds)}"
    for field_name in ("text", "labels", "metrics"):
        given = getattr(task, field_name)
        if not isinstance(given, tuple) or not all(isinstance(one, str) and one for one in given):
            return f"{field_name} {given!r}, expected a tuple of names"
        if len(set(given)) < len(given):
            return f"{max(given, key=given.count)!r:.80} twice in its {field_name}, expected once"
    for name, value in vars(task.finetune).items():
        if expected := unfit(name, value):
            return f"the {name} {value!r:.40} to be fine-tuned with, expected {expected}"
    if not (task.text or task.image) or not task.metrics:
        return f"no {'text' if task.metrics else 'metrics'}, expected at least one name"
    if task.text and task.image:
        return f"text and the image '{task.image}', expected rows of one of them"
    if odd := [split for split in task.splits if split in DERIVED or not _NAME.fullmatch(split)]:
        return f"the split '{odd[0]}', expected a plain name beside {' and '.join(DERIVED)}"
    if task.reported not in (*task.splits, HELD_OUT):
        return f"reported='{task.reported}', expected one of {', '.join(task.splits) or 'splits'}"
    return None


@dataclass(frozen=True)
class Rows:
    """One split of a task: segments of text, words or images, and the labels.

    A unit is what has a label: a row, or each word of it. `labels` are [units] (indices of classes,
    or values), or [rows, classes]. `documents` [rows] are numbered from 0; None where there are
    none. `images` gives a row's, whose hash is its text. `drawn`: by a limit. `unfair`: first rows.
    """

    task: Task
    split: str
    texts: tuple[tuple[str, ...], ...]
    labels: Array64
    digest: str
    documents: Units | None = None
    images: Callable[[int], StoredImage] | None = None
    drawn: bool = False
    unfair: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True)
class Checkpoint:
    """Weights, the configuration beside them and where they came from.

    `family` is its architecture, looked up once when it is opened. `labels` are the names in the
    order of the head's outputs: empty for regression, None when the checkpoint has no head. `tasks`
    are the task ids recorded by a fine-tuning or a merge, if any. `beside` is the folder of the
    processor, where that is not that of the weights. `narrow` are the stored types of tensors that
    are loaded in a wider one, `spelled` the stored names of those that have another name here.
    `stored` are the labels in the order of the folder's outputs, where that is another. `modules`
    reads, once, what the folder says of embeddings, and raises what is wrong with it.
    """

    source: str
    path: Path
    config: Mapping[str, Any]
    family: Family
    weights: StateDict
    labels: tuple[str, ...] | None
    tasks: tuple[str, ...] = ()
    beside: Path | None = None
    narrow: Mapping[str, torch.dtype] = field(default_factory=dict)
    stored: tuple[str, ...] | None = None
    spelled: Mapping[str, str] = field(default_factory=dict)
    modules: Callable[[], Pooling | None] = lambda: None

    def __repr__(self) -> str:
        labels = "no head" if self.labels is None else f"labels {', '.join(self.labels) or 'none'}"
        return f"Checkpoint({self.source!r:.200}, {len(self.weights)} tensors, {labels:.200})"

    @property
    def pooling(self) -> Pooling | None:
        """That of an embedding model, which has no head. Raises BrokenCheckpoint if unsupported."""
        return None if self.labels is not None else self.modules()

    @property
    def processor(self) -> Path:
        """The folder of its tokenizer, or of its image processor."""
        return self.beside or self.path

    @property
    def name(self) -> str:
        """The last part of the source, which is how tables call it."""
        last = self.source.rstrip("/").rsplit("/", 1)[-1]
        return self.path.resolve().name if last in ("", ".", "..") else last


Whose: TypeAlias = Literal["own", "each", "tasks", "same", "shared", "none"]
DRAWN = ("own", "each", "tasks", "same")
"""Needs that draw rows of the experts' tasks, so many and by a seed."""


@dataclass(frozen=True)
class Need:
    """What a method needs beside weights: a keyword-only parameter of this name.

    `function` makes it, with options of its own. By `rows`, whose rows it runs on, it is called
    with

    own     a `Reading`, once for each expert, on the training rows of the expert's own task. It
            gives a statistic: tensors by name or, where some share one, those with a mapping from
            each name to the one it is kept under. `shapes` returns, from the headers of a
            checkpoint, which tensors there will be; one that is not made is zero. The method is
            handed a mapping for each expert.
    each    the `Readings` of all experts on the same rows as above, once: for what is no statistic
            of one expert alone.
    tasks   the same, but where the merge has one head for all tasks, every expert has that one.
    same    the `Readings` of all experts on training rows of the first expert's task, once.
    shared  the `ValidationScorer` of a candidate on held-out rows, once.
    none    the experts' checkpoints as they enter the method, once.

    The first four draw `examples` rows by `seed`, which are among its options; with the option
    `rows=test` they are the reported rows, and the merge is marked transductive. All but the first
    hand over what they return, and are called when a merge is planned. `fault` returns why a tensor
    cannot be one of a statistic; `check` is called with all options before any row is loaded. It
    supports tasks of these `kinds` and, if it `embeds`, embedding models. `toy` makes of toy
    experts what the method is handed, in a list or as one thing. What takes `gradients` runs in
    float32 alone. Raises HarnessError for fields that disagree.
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


def _need_fault(made: Need) -> str | None:
    """What is wrong with a need, and what was expected."""
    known = typing.get_args(Whose)
    if not made.name.isidentifier():
        return "can be the name of no parameter, expected letters, digits and _"
    if made.rows not in known:
        return f"has rows={made.rows!r}, expected {' or '.join(known)}"
    if made.rows == "own" and made.shapes is None:
        return "has no shapes, expected a function from a checkpoint to its tensors"
    options = {*inspect.getfullargspec(inspect.unwrap(made.function)).kwonlyargs}
    if made.rows in DRAWN and not {"examples", "seed"} <= options:
        return "does not say which rows are drawn, expected the options examples, seed after *"
    return None


@dataclass(frozen=True)
class Products:
    """Activations of the hidden units of two models on the same tokens, summed over the tokens.

    `inner` are the products [units, units] of those of the first model with those of the second;
    `sums` and `squares`, of both, are [units] each. All are float64. `count` are the tokens.
    """

    inner: torch.Tensor
    sums: tuple[torch.Tensor, torch.Tensor]
    squares: tuple[torch.Tensor, torch.Tensor]
    count: int


class Activations(Protocol):
    """What the hidden units of one expert make of rows that all experts are shown."""

    def products(self, other: Any, group: str) -> Products:
        """Those of a group of units with those of another expert; computed when it is called."""


@dataclass(frozen=True)
class Head:
    """The final linear layer: `weight` [classes, width] and `bias` [classes]."""

    weight: Array
    bias: Array


@dataclass(frozen=True)
class Features:
    """Some rows through one model: inputs of the final linear layer, its outputs, the labels.

    `x` is [units, width], `logits` [units, outputs] in the label order of the task. `seen` [units]
    is false of a word that was cut off, whose features are zero. None: all were seen.
    """

    x: Array
    logits: Array
    labels: Array64
    seen: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Draw:
    """One few-shot selection: units of the pool, by class (or bin of labels, or tag).

    `examples` are what a head is tuned on, one at a time: the units of each, of a tagging those of
    a sentence. `order` are the drawn units in turn, where they were drawn whatever their class.
    """

    shots: Shots
    seed: int
    rows: tuple[tuple[int, ...], ...]
    examples: tuple[tuple[int, ...], ...] = ()
    order: tuple[int, ...] = ()

    @property
    def units(self) -> tuple[int, ...]:
        """The units of its examples, where it has any, or of its groups: each once."""
        parts = self.examples or self.rows
        return tuple(dict.fromkeys(unit for part in parts for unit in part))


@dataclass(frozen=True)
class Teacher:
    """An expert of the task on the pool: its features [units, width] and its head, in the order of
    the model that is read."""

    x: Array
    head: Head


@dataclass(frozen=True)
class Encoded:
    """What a protocol is given: no text, no model, no metric.

    `pool` holds every row that any draw selects; of a protocol that adapts to the test rows they
    are the pool, and one draw has all. `teachers` are the experts on the pool, and `teacher` is the
    mean of their outputs there: probabilities of classes, or values, [pool units, outputs]. `again`
    gives features of pool units with the encoder's dropout on. `outside` is the output that stands
    for words of no entity, of a tagging.
    """

    task: str
    kind: Kind
    classes: int
    test: Features
    head: Head | None
    pool: Features | None
    draws: tuple[Draw, ...]
    teacher: Array64 | None
    again: Again | None = None
    teachers: tuple[Teacher, ...] = ()
    outside: int | None = None


@dataclass(frozen=True)
class Predictions:
    """Predicted labels of the test units, [units] or [rows, classes]; by which draw, if any.

    `facts` are numbers that a protocol tells of how it came to them, for the record. Of a fitted
    map of features: `rows_per_dimension`, below one of which the rows leave it open.
    """

    values: Array64
    draw: Draw | None = None
    facts: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """The metrics of a task on predictions, not times a hundred; `value` is their plain mean."""

    value: float
    parts: Mapping[str, float]
    rows: int
