"""The noun `Kind`: what a label is. Each kind of label has a file beside this one."""

from __future__ import annotations

import json
import reprlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, TypeAlias

import numpy as np

from harness.errors import BadData, LabelMismatch, NotFinite
from harness.labels import (
    are_labels_of,
    as_config,
    comparison_key,
    generic,
    is_number,
    label_indexer,
    name_of_value,
)
from harness.text import counted, few
from harness.types import Array, Array64, Draw, Row, Rows, Task, Units

if TYPE_CHECKING:
    import torch

LONGEST = 300
"""The most characters of the JSON that an error tells the user to write."""
IGNORED = -100
"""The label of an unlabelled class or word: left out of losses and of scores."""
RowName: TypeAlias = Callable[[int], str]
"""A function from the place of a row among those that are read to its name in errors."""


class Rule(Protocol):
    """How predictions follow from drawn units in groups: nearest neighbours, or a linear model."""

    def group(self, groups: Sequence[Sequence[int]]) -> Array64:
        """The index of the predicted group of each test unit, [units].

        An empty group is never predicted; if all are empty, the index is 0.
        """

    def value(self, groups: Sequence[Sequence[int]], labels: Array64) -> Array64:
        """The predicted number of each test unit, [units], from the labels of the drawn units."""


class Kind(ABC):
    """All that depends on the kind of label of a task.

    How a label is read from a row, what the units of a row are, how outputs become predictions and
    targets for a student, which units shots are drawn from, how drawn units vote, and the Fisher
    information of the likelihood. `outputs` are [units, outputs], in the task's order of labels.
    """

    name: ClassVar[str]
    unit: ClassVar[Literal["row", "word"]] = "row"
    """What has a label: a row, or every word of it."""
    problem_type: ClassVar[str]
    """The `problem_type` in the configuration of transformers, which selects the loss."""
    spoken: ClassVar[str] = "classification"
    """The name of such a task in errors."""
    hub_task: ClassVar[str] = "text-classification"
    """The Hub's name of such tasks, for model cards."""
    metrics: ClassVar[tuple[str, ...]]
    """The metrics of a task whose description names none."""
    placeholder_labels: ClassVar[tuple[str, ...]] = ("0", "1")
    """Placeholder labels while those of a task are read from its data; () if the kind has none."""
    list_labels: ClassVar[bool] = False
    """Whether the label of a row is a list."""
    positional: ClassVar[bool] = False
    """Whether a list may have a value for each label, at the label's place, in lieu of names."""
    integer_labels: ClassVar[bool] = True
    """Whether labels are class indices, as cross entropy takes them."""

    # Reading -------------------------------------------------------------------------------

    def fault(self, task: Task) -> str | None:
        """What is wrong with the labels of a task, and what was expected; None if nothing is.

        A single label is refused: transformers takes a head with one output for a regression.
        """
        if len(task.labels) < 2:
            count = len(task.labels)
            return f"{counted(count, 'label')}, expected two or more for a {self.spoken}"
        return None

    def label_columns(self, task: Task) -> tuple[str, ...]:
        """The columns of the data set that hold the labels."""
        return (task.label,)

    def segments(self, task: Task, row: Row) -> tuple[str, ...]:
        """The segments of text of a row, or its words."""
        return tuple("" if row[column] is None else str(row[column]) for column in task.text)

    @abstractmethod
    def read(self, task: Task, rows: Sequence[Row], row_name: RowName) -> Array64:
        """The labels of all units of all rows: [units], or [units, classes].

        Raises BadData, naming the row (`row_name` of its place), for a value that is no label.
        """

    def unit_counts(self, rows: Rows) -> Units:
        """How many units each row has, in order."""
        return np.ones(len(rows), dtype=np.int64)

    def label_summary(self, rows: Rows) -> Mapping[str, float]:
        """A summary of the labels of rows: how many units each class has."""
        counts = np.bincount(rows.labels.astype(np.int64), minlength=len(rows.task.labels))
        return dict(zip(rows.task.labels, counts.tolist(), strict=True))

    def parts(self, rows: Rows) -> Sequence[range]:
        """The units of each part that is scored as a whole: each row or, of tags, gold entity."""
        return [range(row, row + 1) for row in range(len(rows))]

    def facts(self, rows: Rows) -> Mapping[str, str]:
        """What a record states about such rows, besides their origin and digest."""
        return {}

    def annotated(self, rows: Rows) -> tuple[str, ...]:
        """The labels for which any row states whether they hold."""
        return rows.task.labels

    def ordered(self, names: Sequence[str]) -> tuple[str, ...]:
        """The names of labels that were read from data, in the order of a head's outputs."""
        return tuple(dict.fromkeys(names))

    def named(self, task: Task, labels: Array64) -> Any:
        """The labels of one row by name, for display."""
        return [task.labels[int(value)] if task.labels else value for value in labels.tolist()]

    @property
    def split_into_words(self) -> bool:
        """Whether a row is a list of words, each a unit, which a maximum length may cut off."""
        return self.unit == "word"

    # Heads ---------------------------------------------------------------------------------

    def output_count(self, task: Task) -> int:
        """The number of outputs of a head for the task."""
        return max(1, len(task.labels))

    def output_columns(
        self, task: Task, labels: Sequence[str], where: str, *, by_index: bool = False
    ) -> list[int]:
        """For each label of the task, the output of the head that stands for it.

        Names decide, whatever their order. Generic names (LABEL_0, ...) are taken to be in the
        task's order if `by_index`. Raises LabelMismatch otherwise.
        """
        if self.fits(task, labels):
            spelled = comparison_key(labels, task.labels)
            names = [spelled(name) for name in labels]
            return [names.index(spelled(name)) for name in task.labels]
        hint = ""
        if labels and len(labels) == len(task.labels):
            unnamed = generic(labels)
            if unnamed and by_index:
                _tell_of_order(task, where)
                return list(range(len(labels)))
            hint = _renaming(task, unnamed=unnamed)
        raise LabelMismatch(
            f"{where} has the labels {few(labels) or 'none (regression)'}; "
            f"{task} expects {few(task.labels) or 'none (regression)'}{hint}"
        )

    def fits(self, task: Task, labels: Sequence[str]) -> bool:
        """Whether a head with these labels can be read on the task."""
        return are_labels_of(labels, task)

    # Predictions ---------------------------------------------------------------------------

    def predicted(self, outputs: Array | Array64) -> Array64:
        """The predicted labels from outputs [units, outputs].

        Raises NotFinite for NaN and infinity, from which some label would follow.
        """
        values = np.asarray(outputs, dtype=np.float64)
        if not np.isfinite(values).all():
            raise NotFinite("outputs are NaN or infinite, expected finite ones")
        return self._predicted(values.reshape(len(values), -1))

    @abstractmethod
    def _predicted(self, outputs: Array64) -> Array64: ...

    def outside(self, task: Task) -> int | None:
        """The index of the label of words outside entities; None if the kind has none."""
        return None

    def unseen(self, task: Task) -> float:
        """The prediction for a unit that the model did not see."""
        raise AssertionError(f"every unit of a {self.name} is seen")

    def for_metrics(self, task: Task, values: Array64, units: Units | None) -> Any:
        """Predictions or labels in the form that the metrics of this kind take.

        `units` is the number of units of each row; None if each row is one.
        """
        return values

    @abstractmethod
    def constants(self, task: Task, labels: Array64) -> Iterator[Array64]:
        """Candidates for the best constant prediction, [units] or [rows, classes].

        Each is the same for every unit, so it reads nothing of a row: a useful model scores above
        the best of them. Of equal scores, the first counts.
        """

    def labelled(self, outputs: Array, labels: Array) -> Array:
        """The outputs of a batch that belong to units: all, unless some tokens are no units."""
        return outputs

    @abstractmethod
    def losses(self, outputs: Array64, labels: Array64) -> Array64:
        """The training loss of every label, in the shape of the labels; NaN if unlabelled."""

    # Teaching ------------------------------------------------------------------------------

    @abstractmethod
    def target(self, outputs: Sequence[Array64]) -> Array64:
        """The target of a student from the outputs of its teachers, [units, outputs]."""

    @abstractmethod
    def gradient(self, outputs: Array64, target: Array64, *, reverse: bool = False) -> Array64:
        """The gradient of a student's loss with respect to its outputs, along the last axis.

        The loss is KL(target || outputs) or, with `reverse`, KL(outputs || target).
        """

    # Few shots -----------------------------------------------------------------------------

    @abstractmethod
    def groups(self, rows: Rows) -> Mapping[str, Units]:
        """The groups of units that shots are drawn from, by name: the units of each class, say."""

    def classes(self, rows: Rows) -> Units:
        """The class of every row, by number. Raises BadData if rows of a kind have several."""
        raise BadData(f"{rows.task} is a {self.name} task; only classes and values can be split")

    def groups_below(self, counts: Sequence[int], shots: int) -> list[int]:
        """The groups that have fewer units than `shots`; `counts` are the units of each."""
        return [group for group, count in enumerate(counts) if count < shots]

    def examples(
        self, rows: Rows, orders: Sequence[Sequence[int]], seed: int, shots: int
    ) -> Sequence[Sequence[int]]:
        """The units of each example that a head is tuned on, for a number of shots.

        `orders` has the units of each group in the order in which they are drawn. Here an example
        is one drawn unit, each once, in the order of the groups.
        """
        return [[unit] for unit in dict.fromkeys(u for part in orders for u in part[:shots])]

    def examples_containing(self, rows: Rows, units: Sequence[int]) -> Sequence[Sequence[int]]:
        """The examples that contain some units: here each unit is an example by itself."""
        return [[unit] for unit in units]

    @abstractmethod
    def predict_by(self, rule: Rule, labels: Array64, draw: Draw) -> Array64:
        """The predictions of a rule, given the labels of the pool and the draw."""

    # Information ---------------------------------------------------------------------------

    @abstractmethod
    def fisher_rows(
        self, estimator: str, outputs: torch.Tensor, labels: torch.Tensor
    ) -> Iterator[torch.Tensor]:
        """Rows v of the shape of the outputs with F = sum over v of (v . d outputs)^2.

        F is the diagonal Fisher information, by one of the estimators of `passes.fisher`.
        """

    def entropy(self, outputs: torch.Tensor) -> torch.Tensor:
        """The entropy, in nats, of the labels of each unit under its outputs [units, outputs]."""
        raise AssertionError(f"a {self.name} has no distribution of labels")

    @property
    def loss(self) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None:
        """The training loss, a function of outputs and labels; None: that of transformers."""
        return None

    @abstractmethod
    def head_labels(self, rows: Rows, places: Sequence[int], outputs: int) -> Array64:
        """Labels for a head with so many outputs, where `places` are those of the task's labels."""


def _renaming(task: Task, *, unnamed: bool) -> str:
    """The advice of an error: the head has as many labels as the task, by other names."""
    if not unnamed:
        return (
            "; if these are the same classes, write the task's names into id2label of its "
            "config.json, in the order of its outputs"
        )
    names = json.dumps(as_config(task.labels)["id2label"])
    text = f'"id2label": {names}' if len(names) < LONGEST else "them as id2label"
    return (
        f"; if its outputs are in that order, write {text} into its config.json, "
        "or say so to evaluate with --labels by-index"
    )


def _tell_of_order(task: Task, where: str) -> None:
    """Warn if outputs without names are read as labels in alphabetical order, which is the order of
    labels that were taken from the data: a training elsewhere seldom has it."""
    if task.by_index or any(map(is_number, task.labels)) or [*task.labels] != sorted(task.labels):
        return
    warnings.warn(
        f"the outputs of {where} are taken for {few(task.labels)}, in alphabetical order: if the "
        f"model was trained with another order, list the labels of {task} in that order",
        stacklevel=3,
    )


def class_indices(
    task: Task, values: Sequence[Any], row_name: RowName, words: Sequence[int] | None = None
) -> Array64:
    """The index of each value among the task's labels. Raises BadData for a value that is no label.

    There is one value for each row or, if `words` has the number of words of each row, for each
    word.
    """
    place = label_indexer(task)
    places = [place(value) for value in values]
    if None not in places:
        return np.array(places, dtype=np.float64)
    number = places.index(None)
    value, several = values[number], len({*map(str, values)})
    many = several > 20 and 2 * several > len(values)
    ask = f"; {several} of {len(values)} differ: are the labels in '{task.label}'?" if many else ""
    row, unit = number, ""
    if words is not None:
        row = int(np.searchsorted(np.cumsum(words), number, side="right"))
        unit = f"word {number + 1 - sum(words[:row])} of "
    raise BadData(
        f"{unit}{row_name(row)} has the label {reprlib.repr(value)}, expected one of "
        f"{few(task.labels)}{_hint(task, value)}{ask}"
    )


def _hint(task: Task, value: object) -> str:
    """The advice of an error about a value that is no label: a split, an index, or `renamed`."""
    if any(map(is_number, task.labels)):
        return ""
    if name_of_value(value) == "-1":
        return "; -1 stands for a label that is hidden: use a split with labels"
    if task.by_index:
        return f" or an index below {len(task.labels)}"
    name = name_of_value(value) or ""
    if task.files and name and not is_number(name):
        entry = f"{{{name!r:.80}: {task.labels[0]!r:.80}}}"
        return f"; add it to labels, or say which of them it is, as in renamed: {entry}"
    if not name.isdecimal() or int(name) >= len(task.labels):
        return ""
    return f"; if it is one of them, say which: renamed: {{{name}: {task.labels[int(name)]}}}"


def with_names(rows: Sequence[Row], row_name: RowName) -> Iterator[tuple[str, Row]]:
    """Each row with its name in errors."""
    return ((row_name(place), row) for place, row in enumerate(rows))


def as_float(value: Any) -> float:
    """The value as a float, NaN for what is no number."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return np.nan


def number(value: Any, where: str) -> float:
    """The label as a finite number. Raises BadData for anything else, including true and false."""
    label = np.nan if isinstance(value, bool) else as_float(value)
    if value is None:
        raise BadData(f"{where} has no label (the value is empty), expected a finite number")
    if not np.isfinite(label):
        raise BadData(f"{where} has the label {reprlib.repr(value)}, expected a finite number")
    return label
