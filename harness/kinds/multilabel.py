"""Each class holds for a row or not, independently of the others; some may be unlabelled."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from harness.errors import BadData
from harness.kinds.kind import IGNORED, Kind, RowName, Rule, as_float, with_names
from harness.labels import comparison_key, is_number, label_indexer
from harness.text import few
from harness.types import Array64, Draw, Row, Rows, Task, Units

if TYPE_CHECKING:
    import torch


def known_cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean binary cross entropy over the classes that are labelled."""
    from torch.nn.functional import binary_cross_entropy_with_logits

    labelled = labels != IGNORED
    targets = labels.clamp(min=0).to(outputs.dtype)
    losses = binary_cross_entropy_with_logits(outputs, targets, reduction="none")
    return (losses * labelled).sum() / labelled.sum().clamp(min=1)


HOLDS = 0.1
"""A class holds if its value is above this (as RegMean reads the unified corpora)."""


@dataclass(frozen=True)
class Multilabel(Kind):
    """Labels are [rows, classes]: 1 holds, 0 does not, -100 is unlabelled.

    A class is predicted to hold if its output is `threshold` or more.
    """

    threshold: float = 0.0

    name: ClassVar[str] = "multilabel"
    problem_type: ClassVar[str] = "multi_label_classification"
    spoken: ClassVar[str] = "multi-label task"
    metrics: ClassVar[tuple[str, ...]] = ("macro_f1",)
    list_labels: ClassVar[bool] = True
    positional: ClassVar[bool] = True
    integer_labels: ClassVar[bool] = False

    def label_columns(self, task: Task) -> tuple[str, ...]:
        """One column with a list of classes, or one column for each class."""
        return (task.label,) if task.label else task.labels

    def read(self, task: Task, rows: Sequence[Row], row_name: RowName) -> Array64:
        """Labels from a value for every class, in a list or in columns, or from a list of names."""
        pairs = with_names(rows, row_name)
        if task.label:
            place = label_indexer(replace(task, by_index=False))  # text is a name, never a place
            values = [_of_list(task, row[task.label], place, title) for title, row in pairs]
        else:
            values = [[_value(row[name], title) for name in task.labels] for title, row in pairs]
        return np.array(values, dtype=np.float64)

    def label_summary(self, rows: Rows) -> Mapping[str, float]:
        """The number of rows for which each class holds."""
        return dict(zip(rows.task.labels, (rows.labels == 1).sum(axis=0).tolist(), strict=True))

    def annotated(self, rows: Rows) -> tuple[str, ...]:
        """The classes that are labelled in any row."""
        labelled = (rows.labels != IGNORED).any(axis=0)
        return tuple(name for name, has in zip(rows.task.labels, labelled, strict=True) if has)

    def named(self, task: Task, labels: Array64) -> Any:
        """Whether each class holds, by name; None if unlabelled."""
        pairs = zip(task.labels, labels[0].tolist(), strict=True)
        return {name: {1: True, 0: False}.get(int(value)) for name, value in pairs}

    def fits(self, task: Task, labels: Sequence[str]) -> bool:
        """Whether a head has all classes of the task; it may have more, as they do not compete."""
        spelled = comparison_key(labels, task.labels)
        return {*map(spelled, task.labels)} <= {*map(spelled, labels)}

    def _predicted(self, outputs: Array64) -> Array64:
        """1 if the output is the threshold or more, else 0; 0 is the probability 1/2."""
        return (outputs >= self.threshold).astype(np.float64)

    def constants(self, task: Task, labels: Array64) -> Iterator[Array64]:
        """For k = 0, 1, ..., all: the k most frequent classes hold, and no other.

        Frequencies are those in the rows with a label for the class. By hand: predicting everywhere
        a class that a quarter of the rows has gives an F1 of 2 x 1/4 / (1 + 1/4) = 0.4, above 0.
        """
        labelled = labels != IGNORED
        shares = (labelled & (labels == 1)).sum(axis=0) / np.maximum(labelled.sum(axis=0), 1)
        holds = np.zeros(labels.shape[1])
        yield np.broadcast_to(holds.copy(), labels.shape)
        for label in np.argsort(-shares, kind="stable"):
            holds[label] = 1
            yield np.broadcast_to(holds.copy(), labels.shape)

    def losses(self, outputs: Array64, labels: Array64) -> Array64:
        """The binary cross entropy of every labelled class, in nats.

        By hand: an output of log 3 is p = 3/4; the loss is log 4/3 if the class holds, else log 4.
        """
        values = np.logaddexp(0.0, outputs) - outputs * labels
        return np.where(labels == IGNORED, np.nan, values)

    def target(self, outputs: Sequence[Array64]) -> Array64:
        """The mean of the teachers' probabilities, class by class."""
        from scipy.special import expit

        return np.asarray(np.mean([expit(one) for one in outputs], axis=0))

    def gradient(self, outputs: Array64, target: Array64, *, reverse: bool = False) -> Array64:
        """The gradient of the sum over classes of KL(target || outputs), of two Bernoullis each.

        It is sigmoid(z) - target or, `reverse`, with p = sigmoid(z): p (1 - p) (z - logit(target)).
        """
        from scipy.special import expit, logit

        p = expit(outputs)
        if not reverse:
            return np.asarray(p - target)
        limits = np.finfo(np.float64)
        return np.asarray(
            p * (1 - p) * (outputs - logit(target.clip(limits.tiny, 1 - limits.epsneg)))
        )

    def groups(self, rows: Rows) -> Mapping[str, Units]:
        """Two groups for each class: the rows for which it holds, those for which it does not."""
        return {
            f"label '{name}'{'' if holds else ' absent'}": np.flatnonzero(
                rows.labels[:, index] == holds
            )
            for index, name in enumerate(rows.task.labels)
            for holds in (1, 0)
        }

    def groups_below(self, counts: Sequence[int], shots: int) -> list[int]:
        """The groups with fewer rows than `shots`, except those of classes that no row labels."""
        valid = [has + has_not > 0 for has, has_not in zip(counts[::2], counts[1::2], strict=True)]
        return [group for group in super().groups_below(counts, shots) if valid[group // 2]]

    def predict_by(self, rule: Rule, labels: Array64, draw: Draw) -> Array64:
        """Each class by itself: the rule decides between its two groups.

        A class of which nothing is drawn does not hold.
        """
        pairs = zip(draw.rows[::2], draw.rows[1::2], strict=True)
        columns = [(1 - rule.group(pair)) * any(map(len, pair)) for pair in pairs]
        return np.stack(columns, axis=1)

    def fisher_rows(
        self, estimator: str, outputs: torch.Tensor, labels: torch.Tensor
    ) -> Iterator[torch.Tensor]:
        """The rows of independent classes, over those with a gold label.

        `hard` and `soft` follow RegMean's code, which takes the classes for one distribution.
        """
        from harness.kinds.information import of_bits, of_classes

        if estimator in ("hard", "soft"):
            counted = outputs.new_ones(outputs.shape[:-1]).bool()
            yield of_classes(estimator, outputs, labels, counted)
        else:
            yield from of_bits(estimator, outputs, labels, labels != IGNORED)

    def entropy(self, outputs: torch.Tensor) -> torch.Tensor:
        """The sum of the entropies of the classes, which are independent.

        With p = sigmoid(z), the entropy of a class is log(1 + e^z) - z p. By hand: z = 0 has log 2.
        """
        from torch.nn.functional import softplus

        return (softplus(outputs) - outputs * outputs.sigmoid()).sum(-1)

    @property
    def loss(self) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """The mean binary cross entropy over the labelled classes."""
        return known_cross_entropy

    def head_labels(self, rows: Rows, places: Sequence[int], outputs: int) -> Array64:
        """Each class at its place; outputs that are no class of the task are unlabelled."""
        labels = np.full((len(rows), outputs), float(IGNORED))
        labels[:, list(places)] = rows.labels
        return labels


def _of_list(
    task: Task, value: Any, place: Callable[[object], int | None], where: str
) -> list[float]:
    """The labels of a row from a list: names of the classes that hold, or a number for each."""
    ordered = task.by_index and not any(map(is_number, task.labels))  # whether place i is class i
    if isinstance(value, list | tuple):
        texts = [isinstance(entry, str) for entry in value]
        if all(texts):
            indices = [place(entry) for entry in value if task.renamed.get(entry) != ""]
            if None not in indices:
                return [float(index in indices) for index in range(len(task.labels))]
        elif ordered and len(value) == len(task.labels) and not any(texts):
            return [_value(entry, where) for entry in value]
    advice = f", or a list of 0, 1 or {IGNORED} (unlabelled) for each" if ordered else ", as text"
    advice += " (.parquet, .jsonl); or, without label, a column for each" * isinstance(value, str)
    raise BadData(
        f"{where} has the labels {reprlib.repr(value)}, expected a list of the names that hold of "
        f"{few(task.labels)}{advice}"
    )


def _value(value: Any, where: str) -> float:
    """1 for a class that holds, 0 for one that does not, -100 where unlabelled."""
    if value is None or value == IGNORED:
        return float(IGNORED)
    if not 0 <= (strength := as_float(value)) <= 1:
        raise BadData(
            f"{where} has the label {reprlib.repr(value)}, expected 0, 1, a strength between them, "
            f"or {IGNORED} where unlabelled"
        )
    return float(strength > HOLDS)
