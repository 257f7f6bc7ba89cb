"""The noun: what a label is. One file beside this one for each kind of label."""

from __future__ import annotations

import json
import reprlib
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np

from harness.errors import BadData, LabelMismatch, NotFinite
from harness.labels import as_config, called, fit, generic, is_number, placing, spelling
from harness.text import few
from harness.types import Array, Array64, Draw, Row, Rows, Task, Units

if TYPE_CHECKING:
    import torch

LONGEST = 300
"""Of what an error says to write."""
IGNORED = -100
"""The label of a class, or of a word, that nobody gave: left out of losses and of scores."""


class Rule(Protocol):
    """How drawn units, in groups, decide over those that are predicted."""

    def group(self, groups: Sequence[Sequence[int]]) -> Array64:
        """The index of the group that each belongs to, [units].

        Never one of which nothing was drawn; where that is so of all of them, 0.
        """

    def value(self, groups: Sequence[Sequence[int]], labels: Array64) -> Array64:
        """The number of each, [units], by those that the drawn ones are labelled with."""


class Kind(ABC):
    """All that the harness has to know of a kind of label.

    How it is read from a row, what the units of a row are, how outputs become predictions, what
    experts' outputs teach, which units few shots are drawn from, how those decide, and what
    information its likelihood holds. `outputs` are [units, outputs], in the task's order of labels.
    """

    name: ClassVar[str]
    unit: ClassVar[Literal["row", "word"]] = "row"
    """What has a label: a row, or every word of it."""
    problem_type: ClassVar[str]
    """What transformers calls the loss, in a configuration."""
    spoken: ClassVar[str] = "classification"
    """What a task of the kind is called in an error."""
    hub_task: ClassVar[str] = "text-classification"
    """What the Hub calls such tasks, on the cards of models."""
    metrics: ClassVar[tuple[str, ...]]
    """What a task is measured by unless it says another."""
    unread: ClassVar[tuple[str, ...]] = ("0", "1")
    """Labels of a task while its own are being read; none where it has none."""
    several: ClassVar[bool] = False
    """Whether the label of a row is a list."""
    by_place: ClassVar[bool] = False
    """Whether a list of labels may say by its places which of them hold."""
    whole: ClassVar[bool] = True
    """Whether labels are whole numbers, as a loss reads them."""

    # Reading -------------------------------------------------------------------------------

    def fault(self, task: Task) -> str | None:
        """What is wrong with the labels of a task, and what was expected.

        Two or more: transformers takes a head of one output for a regression.
        """
        if len(task.labels) < 2:
            return f"{len(task.labels)} labels, expected two or more of a {self.spoken}"
        return None

    def columns_of(self, task: Task) -> tuple[str, ...]:
        """The columns of a table that hold the labels."""
        return (task.label,)

    def segments(self, task: Task, row: Row) -> tuple[str, ...]:
        """The segments of text of a row, or its words."""
        return tuple("" if row[column] is None else str(row[column]) for column in task.text)

    @abstractmethod
    def read(self, task: Task, rows: Sequence[Row], where: str) -> Array64:
        """The labels of all units of all rows: [units], or [units, classes].

        Raises BadData, naming it, for a value that is no label.
        """

    def units(self, rows: Rows) -> Units:
        """How many units each row has, in order."""
        return np.ones(len(rows), dtype=np.int64)

    def told(self, rows: Rows) -> Mapping[str, float]:
        """What labels the rows have: how many units of each class."""
        counts = np.bincount(rows.labels.astype(np.int64), minlength=len(rows.task.labels))
        return dict(zip(rows.task.labels, counts.tolist(), strict=True))

    def parts(self, rows: Rows) -> Sequence[range]:
        """The units of all that is scored as one: rows, or the entities of words."""
        return [range(row, row + 1) for row in range(len(rows))]

    def facts(self, rows: Rows) -> Mapping[str, str]:
        """What a record says of rows of this kind beside where they come from."""
        return {}

    def annotated(self, rows: Rows) -> tuple[str, ...]:
        """The labels that somebody gave or denied of any row."""
        return rows.task.labels

    def ordered(self, names: Sequence[str]) -> tuple[str, ...]:
        """Names of labels that were read from data in the order of a head's outputs."""
        return tuple(dict.fromkeys(names))

    def named(self, task: Task, labels: Array64) -> Any:
        """The labels of one row by name, for somebody to look at."""
        return [task.labels[int(one)] if task.labels else one for one in labels.tolist()]

    @property
    def split_into_words(self) -> bool:
        """Whether a row is read as a list of words, each a unit that a length may cut off."""
        return self.unit == "word"

    # Heads ---------------------------------------------------------------------------------

    def outputs(self, task: Task) -> int:
        """How many outputs a head has."""
        return max(1, len(task.labels))

    def columns(
        self, task: Task, labels: Sequence[str], where: str, *, by_index: bool = False
    ) -> list[int]:
        """For each label of the task, the output of the head that stands for it.

        Names decide, whatever their order. Generic names are taken in the task's order only if
        `by_index`. Raises LabelMismatch otherwise.
        """
        if self.fits(task, labels):
            spelled = spelling(labels, task.labels)
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
        return fit(labels, task)

    # Predictions ---------------------------------------------------------------------------

    def predicted(self, outputs: Array | Array64) -> Array64:
        """Labels read off outputs [units, outputs].

        Raises NotFinite for NaN, which would be read as some label.
        """
        values = np.asarray(outputs, dtype=np.float64)
        if not np.isfinite(values).all():
            raise NotFinite("outputs are NaN or infinite, expected finite ones")
        return self._predicted(values.reshape(len(values), -1))

    @abstractmethod
    def _predicted(self, outputs: Array64) -> Array64: ...

    def outside(self, task: Task) -> int | None:
        """The label of a word that is of no entity, if there is such a label."""
        return None

    def unseen(self, task: Task) -> float:
        """What is predicted for a unit that the model did not see."""
        raise AssertionError(f"every unit of a {self.name} is seen")

    def for_metrics(self, task: Task, values: Array64, units: Units | None) -> Any:
        """Predictions or labels as the metrics of this kind read them.

        `units` are how many each row has, where that is not one.
        """
        return values

    @abstractmethod
    def constants(self, task: Task, labels: Array64) -> Iterator[Array64]:
        """Predictions that are the same for every unit, [units] or [rows, classes].

        What reads nothing of a row can say: a score has to be above that of the best of them. Of
        those that score alike the first is meant.
        """

    def labelled(self, outputs: Array, labels: Array) -> Array:
        """Of a batch's outputs, those of units: all, unless tokens are none of their own."""
        return outputs

    @abstractmethod
    def losses(self, outputs: Array64, labels: Array64) -> Array64:
        """What training makes small, of every label, in the shape of the labels.

        NaN where nobody gave one.
        """

    # Teaching ------------------------------------------------------------------------------

    @abstractmethod
    def taught(self, outputs: Sequence[Array64]) -> Array64:
        """What the outputs of several experts teach, [units, outputs]."""

    @abstractmethod
    def gradient(self, outputs: Array64, taught: Array64, *, reverse: bool = False) -> Array64:
        """The gradient of a unit's loss by its outputs: the last axis is that of the outputs.

        The loss is KL(taught || outputs) or, `reverse`, KL(outputs || taught).
        """

    # Few shots -----------------------------------------------------------------------------

    @abstractmethod
    def groups(self, rows: Rows) -> Mapping[str, Units]:
        """The units that shots are drawn from, by what they have in common: a class, say."""

    def classes(self, rows: Rows) -> Units:
        """The one class of every row, by number. Raises BadData for rows that have no one class."""
        raise BadData(f"{rows.task} is a {self.name}; only classes and values can be parted")

    def short(self, counts: Sequence[int], shots: int) -> list[int]:
        """The groups, of these many units, that have too few for so many shots."""
        return [group for group, count in enumerate(counts) if count < shots]

    def examples(
        self, rows: Rows, orders: Sequence[Sequence[int]], seed: int, shots: int
    ) -> Sequence[Sequence[int]]:
        """The units of each example that a head is tuned on, given the units drawn of each group.

        What is tuned at a time is an example: each drawn unit once, in the order of the groups.
        """
        return [[unit] for unit in dict.fromkeys(u for part in orders for u in part[:shots])]

    def around(self, rows: Rows, units: Sequence[int]) -> Sequence[Sequence[int]]:
        """The units of each example that some units are of: by itself each."""
        return [[unit] for unit in units]

    @abstractmethod
    def decided(self, rule: Rule, labels: Array64, draw: Draw) -> Array64:
        """Predictions by a rule, of drawn units that have these labels."""

    # Information ---------------------------------------------------------------------------

    @abstractmethod
    def fisher_rows(
        self, estimator: str, outputs: torch.Tensor, labels: torch.Tensor
    ) -> Iterator[torch.Tensor]:
        """Rows v, each of the shape of the outputs, with F = sum over v of (v . d outputs)^2."""

    def entropy(self, outputs: torch.Tensor) -> torch.Tensor:
        """The entropy of the labels that outputs [units, outputs] say, in nats, of each unit."""
        raise AssertionError(f"a {self.name} has no distribution of labels")

    @property
    def loss(self) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor] | None:
        """What a head is trained by, of outputs and labels; None: transformers' own."""
        return None

    @abstractmethod
    def targets(self, rows: Rows, places: Sequence[int], outputs: int) -> Array64:
        """Labels as a head has them that has so many outputs, and those of the task in `places`."""


def _renaming(task: Task, *, unnamed: bool) -> str:
    """What to do about a head with as many outputs as the task has labels, by other names."""
    if not unnamed:
        return (
            "; if these are the same classes, write the task's names into id2label of its "
            "config.json, in the order of its outputs"
        )
    names = json.dumps(as_config(task.labels)["id2label"])
    written = f'"id2label": {names}' if len(names) < LONGEST else "them into id2label, so,"
    return (
        f"; if its outputs are in that order, write {written} into its config.json, "
        "or say so to evaluate with --labels by-index"
    )


def _tell_of_order(task: Task, where: str) -> None:
    """Warn of labels that stand in the order of the alphabet, as those that a description leaves to
    the data do: a training seldom has that order by itself."""
    if task.by_index or any(map(is_number, task.labels)) or [*task.labels] != sorted(task.labels):
        return
    warnings.warn(
        f"the outputs of {where} are taken for {few(task.labels)}, in the order of the alphabet: "
        f"if it was trained with another, list the labels of {task} in that order",
        stacklevel=3,
    )


def class_indices(
    task: Task, values: Sequence[Any], where: str, words: Sequence[int] | None = None
) -> Array64:
    """The index of each value among the task's labels, one for each row, or for each of so many
    `words` of a row. Raises BadData for one that is no label."""
    place = placing(task)
    places = [place(value) for value in values]
    if None not in places:
        return np.array(places, dtype=np.float64)
    number = places.index(None)
    value, several = values[number], len({*map(str, values)})
    odd = several > 20 and 2 * several > len(values)
    ask = f"; {several} differ in {len(values)}: are the labels in '{task.label}'?" if odd else ""
    unit = f"row {number + 1}"
    if words is not None:
        row = int(np.searchsorted(np.cumsum(words), number, side="right"))
        unit = f"word {number + 1 - sum(words[:row])} of row {row + 1}"
    raise BadData(
        f"{unit} of {where} has the label {reprlib.repr(value)}, expected one of "
        f"{few(task.labels)}{_hint(task, value)}{ask}"
    )


def _hint(task: Task, value: object) -> str:
    """What to do about a number among labels that are words."""
    if any(map(is_number, task.labels)):
        return ""
    if task.by_index:
        return f" or an index below {len(task.labels)}"
    name = called(value) or ""
    if task.files and name and not is_number(name):
        said = f"{{{name!r:.80}: {task.labels[0]!r:.80}}}"
        return f"; add it to labels, or say which of them it is, as in renamed: {said}"
    if not name.isdecimal() or int(name) >= len(task.labels):
        return ""
    return f"; if it is one of them, say which: renamed: {{{name}: {task.labels[int(name)]}}}"


def numbered(rows: Sequence[Row], where: str) -> Iterator[tuple[str, Row]]:
    """Each row with what it is called in an error."""
    return ((f"row {number} of {where}", row) for number, row in enumerate(rows, start=1))


def number(value: Any, where: str) -> float:
    """A finite number. Raises BadData for anything else, true and false among it."""
    try:
        label = np.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        label = np.nan
    if value is None:
        raise BadData(f"{where} has no label (empty, or a sign for none), expected a finite number")
    if not np.isfinite(label):
        raise BadData(f"{where} has the label {reprlib.repr(value)}, expected a finite number")
    return label
