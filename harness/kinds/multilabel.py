"""Several classes may hold for a row, each by itself; some may be unlabelled."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from harness.errors import BadData
from harness.kinds.kind import IGNORED, Kind, Rule, numbered
from harness.labels import is_number, placing, spelling
from harness.text import few
from harness.types import Array64, Draw, Row, Rows, Task, Units

if TYPE_CHECKING:
    import torch


def known_cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Binary cross entropy over the classes that somebody gave, in the mean over those."""
    from torch.nn.functional import binary_cross_entropy_with_logits

    known = labels != IGNORED
    targets = labels.clamp(min=0).to(outputs.dtype)
    each = binary_cross_entropy_with_logits(outputs, targets, reduction="none")
    return (each * known).sum() / known.sum().clamp(min=1)


HOLDS = 0.1
"""A class holds where its value is above this (RegMean's reading of the unified corpora)."""


@dataclass(frozen=True)
class Multilabel(Kind):
    """Labels are [rows, classes]: 1 holds, 0 does not, -100 is unlabelled.

    A class is predicted to hold whose output is `threshold` or more.
    """

    threshold: float = 0.0

    name: ClassVar[str] = "multilabel"
    problem_type: ClassVar[str] = "multi_label_classification"
    spoken: ClassVar[str] = "multi-label task"
    metrics: ClassVar[tuple[str, ...]] = ("macro_f1",)
    several: ClassVar[bool] = True
    by_place: ClassVar[bool] = True
    whole: ClassVar[bool] = False

    def columns_of(self, task: Task) -> tuple[str, ...]:
        """One column with all classes, or one for each class."""
        return (task.label,) if task.label else task.labels

    def read(self, task: Task, rows: Sequence[Row], where: str) -> Array64:
        """A value for every class, in a list or in columns; or the names of those that hold."""
        each = numbered(rows, where)
        if task.label:
            place = placing(replace(task, by_index=False))  # text is a name, never a place
            made = [_of_list(task, row[task.label], place, at) for at, row in each]
        else:
            made = [[_value(row[name], at) for name in task.labels] for at, row in each]
        return np.array(made, dtype=np.float64)

    def told(self, rows: Rows) -> Mapping[str, float]:
        """Of how many rows each class holds."""
        return dict(zip(rows.task.labels, (rows.labels == 1).sum(axis=0).tolist(), strict=True))

    def annotated(self, rows: Rows) -> tuple[str, ...]:
        """The classes that are labelled in any row."""
        known = (rows.labels != IGNORED).any(axis=0)
        return tuple(name for name, said in zip(rows.task.labels, known, strict=True) if said)

    def named(self, task: Task, labels: Array64) -> Any:
        """Whether each class holds; None where unlabelled."""
        known = zip(task.labels, labels[0].tolist(), strict=True)
        return {name: {1: True, 0: False}.get(int(value)) for name, value in known}

    def fits(self, task: Task, labels: Sequence[str]) -> bool:
        """A head may have more classes: they do not compete."""
        spelled = spelling(labels, task.labels)
        return {*map(spelled, task.labels)} <= {*map(spelled, labels)}

    def _predicted(self, outputs: Array64) -> Array64:
        """1 where the output is the threshold or more: of 0, the probability one half."""
        return (outputs >= self.threshold).astype(np.float64)

    def constants(self, task: Task, labels: Array64) -> Iterator[Array64]:
        """That the most frequent classes hold and no other does: none of them, one, two, all.

        Which are frequent is counted in the rows that say so. By hand: a class that a quarter of
        the rows has is better said to hold than not, with an F1 of 2 x 1/4 / (1 + 1/4) = 0.4.
        """
        known = labels != IGNORED
        shares = (known & (labels == 1)).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
        holds = np.zeros(labels.shape[1])
        yield np.broadcast_to(holds.copy(), labels.shape)
        for label in np.argsort(-shares, kind="stable"):
            holds[label] = 1
            yield np.broadcast_to(holds.copy(), labels.shape)

    def losses(self, outputs: Array64, labels: Array64) -> Array64:
        """The binary cross entropy of every class that is labelled, in nats.

        By hand: an output of log 3 is p = 3/4, and the losses log 4/3 where it holds and log 4
        where it does not.
        """
        each = np.logaddexp(0.0, outputs) - outputs * labels
        return np.where(labels == IGNORED, np.nan, each)

    def taught(self, outputs: Sequence[Array64]) -> Array64:
        """The mean of the experts' probabilities, class by class."""
        from scipy.special import expit

        return np.asarray(np.mean([expit(one) for one in outputs], axis=0))

    def gradient(self, outputs: Array64, taught: Array64, *, reverse: bool = False) -> Array64:
        """Of the sum over classes of KL(taught || outputs), two Bernoullis: sigmoid - taught.

        Reverse, with p = sigmoid(z): p (1 - p) (z - logit(taught)).
        """
        from scipy.special import expit, logit

        p = expit(outputs)
        if not reverse:
            return np.asarray(p - taught)
        known = np.finfo(np.float64)
        return np.asarray(
            p * (1 - p) * (outputs - logit(taught.clip(known.tiny, 1 - known.epsneg)))
        )

    def groups(self, rows: Rows) -> Mapping[str, Units]:
        """For each class, the rows that have it, then those that have it not."""
        return {
            f"label '{name}'{'' if holds else ' absent'}": np.flatnonzero(
                rows.labels[:, index] == holds
            )
            for index, name in enumerate(rows.task.labels)
            for holds in (1, 0)
        }

    def short(self, counts: Sequence[int], shots: int) -> list[int]:
        """Those of classes that somebody said something of."""
        known = [has + has_not > 0 for has, has_not in zip(counts[::2], counts[1::2], strict=True)]
        return [group for group in super().short(counts, shots) if known[group // 2]]

    def decided(self, rule: Rule, labels: Array64, draw: Draw) -> Array64:
        """Class by class, of two groups: those that have it, and those that have it not; none
        of a class of which nothing is drawn."""
        pairs = zip(draw.rows[::2], draw.rows[1::2], strict=True)
        each = [(1 - rule.group(pair)) * any(map(len, pair)) for pair in pairs]
        return np.stack(each, axis=1)

    def fisher_rows(
        self, estimator: str, outputs: torch.Tensor, labels: torch.Tensor
    ) -> Iterator[torch.Tensor]:
        """Of independent classes, over those with a gold label.

        `hard` and `soft` are RegMean's code, which takes the classes for one distribution.
        """
        from harness.kinds.information import of_bits, of_classes

        if estimator in ("hard", "soft"):
            counted = outputs.new_ones(outputs.shape[:-1]).bool()
            yield of_classes(estimator, outputs, labels, counted)
        else:
            yield from of_bits(estimator, outputs, labels, labels != IGNORED)

    def entropy(self, outputs: torch.Tensor) -> torch.Tensor:
        """Of independent classes: the sum of theirs.

        With p = sigmoid(z), that of one is log(1 + e^z) - z p. By hand: z = 0 gives log 2.
        """
        from torch.nn.functional import softplus

        return (softplus(outputs) - outputs * outputs.sigmoid()).sum(-1)

    @property
    def loss(self) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        """Of the classes that somebody gave."""
        return known_cross_entropy

    def targets(self, rows: Rows, places: Sequence[int], outputs: int) -> Array64:
        """Each class at its place; outputs that are no class of the task have no label."""
        made = np.full((len(rows), outputs), float(IGNORED))
        made[:, list(places)] = rows.labels
        return made


def _of_list(
    task: Task, value: Any, place: Callable[[object], int | None], where: str
) -> list[float]:
    """Texts are the names of classes that hold, numbers say of each class whether it does."""
    known = task.by_index and not any(map(is_number, task.labels))  # which place is whose
    if isinstance(value, list | tuple):
        texts = [isinstance(one, str) for one in value]
        if all(texts):
            held = [place(one) for one in value if task.renamed.get(one) != ""]
            if None not in held:
                return [float(index in held) for index in range(len(task.labels))]
        elif known and len(value) == len(task.labels) and not any(texts):
            return [_value(one, where) for one in value]
    values = f", or a list of 0, 1 or {IGNORED} (unlabelled) for each" if known else ", as text"
    values += " (.parquet, .jsonl); or no label, and a column for each" * isinstance(value, str)
    raise BadData(
        f"{where} has the labels {reprlib.repr(value)}, expected the names of those that hold of "
        f"{few(task.labels)}{values}"
    )


def _value(value: Any, where: str) -> float:
    """1 for a class that holds, 0 for one that does not, -100 where unlabelled."""
    if value is None or value == IGNORED:
        return float(IGNORED)
    try:
        strength = float(value)
    except (TypeError, ValueError, OverflowError):
        strength = np.nan
    if not 0 <= strength <= 1:
        raise BadData(
            f"{where} has the label {reprlib.repr(value)}, expected 0, 1, a strength between them, "
            f"or {IGNORED} where unlabelled"
        )
    return float(strength > HOLDS)
