"""Metrics of rows that count several times or not at all, which is what a bootstrap asks for.

Rows drawn with replacement are rows with counts. Most metrics are formulas of sums over rows, so a
thousand resamples are one product of matrices; the others are asked one resample at a time. Where
rows leave nothing to score, as no entity, the value is NaN; where the prediction is at fault, 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from harness.data.metrics import Span, loose_spans, strict_spans, value_of
from harness.data.rows import numbers_of
from harness.kinds import IGNORED, kind_of
from harness.registry import METRICS
from harness.types import Array64, Task, Units

if TYPE_CHECKING:
    from harness.evaluation.predictions import DrawKey, Predicted

Formula: TypeAlias = Callable[[Array64], Array64]
"""From sums, [..., k], to values, [...]."""


@dataclass(frozen=True)
class PredictedRows:
    """One prediction of some rows, their labels, and how many units each row has."""

    task: Task
    predicted: Array64
    labels: Array64
    units: Units


Sums: TypeAlias = "tuple[Array64, Formula]"
"""A table [rows, k], and the formula of the sums over its rows."""
Counted: TypeAlias = Callable[[Array64], Array64]
"""The values of a metric where rows count so often: [resamples, rows] -> [resamples]."""


# Formulas ----------------------------------------------------------------------------------


def _ratio(above: Array64, below: Array64) -> Array64:
    """The quotient, 0 where there is nothing to divide by."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _share(sums: Array64) -> Array64:
    """Of (right, all)."""
    return _ratio(sums[..., 0], sums[..., 1])


def _f1(sums: Array64) -> Array64:
    """Of (in both, predicted + true, true): 2 both / (predicted + true)."""
    return _where(sums[..., 2] > 0, _ratio(2 * sums[..., 0], sums[..., 1]))


def _where(defined: Any, values: Array64) -> Array64:
    return np.where(defined, values, np.nan)


def _present_f1(sums: Array64) -> Array64:
    """Of (in both, predicted + true) by class: the mean F1 of those there or predicted."""
    both, either = np.split(sums, 2, axis=-1)
    return _ratio(_ratio(2 * both, either).sum(-1), (either > 0).sum(-1).astype(np.float64))


def _held_f1(sums: Array64) -> Array64:
    """Of (in both, predicted + true, true) by class: the mean F1 of those that hold for a row."""
    both, either, true = np.split(sums, 3, axis=-1)
    held = true > 0
    each = np.where(held, _ratio(2 * both, either), 0)
    return _where(held.any(-1), _ratio(each.sum(-1), held.sum(-1).astype(np.float64)))


def _matthews(sums: Array64) -> Array64:
    """Of (right, all, true by class, predicted by class): R_K of Gorodkin (2004)."""
    right, count = sums[..., 0], sums[..., 1]
    true, predicted = np.split(sums[..., 2:], 2, axis=-1)
    varied = count**2 - (true**2).sum(-1)
    spread = varied * (count**2 - (predicted**2).sum(-1))
    value = _ratio(right * count - (true * predicted).sum(-1), np.sqrt(np.maximum(spread, 0)))
    return _where(varied > 0, value)


CONSTANT = 1e-12
"""A variance below this, where that of all rows is 1, is rounding: every row is the same."""


def _pearson(sums: Array64) -> Array64:
    """Of (1, x, y, xx, yy, xy)."""
    x, y, xx, yy, xy = (sums[..., i] / np.maximum(sums[..., 0], 1) for i in range(1, 6))
    spread = np.stack([xx - x**2, yy - y**2])
    varied = spread > CONSTANT
    both = varied.all(0)
    value = np.where(both, (xy - x * y) / np.sqrt(np.where(both, spread.prod(0), 1)), 0.0)
    return _where(varied[1], value)


# Tables ------------------------------------------------------------------------------------


def _right(read: PredictedRows) -> Sums:
    right = read.predicted == read.labels
    return np.column_stack([right, np.ones(len(right))]), _share


def _positive(read: PredictedRows) -> Sums:
    return _overlap(read.predicted == 1, read.labels == 1), _f1


def _overlap(predicted: Any, true: Any) -> Array64:
    """The columns (in both, predicted + true, true) of what was said, [rows] or [rows, k]."""
    return np.column_stack([predicted & true, 1.0 * predicted + true, true])


def _classes(read: PredictedRows) -> Sums:
    if read.labels.ndim > 1:
        return _bits(read)
    predicted, true = (_one_hot(values, read.task) for values in (read.predicted, read.labels))
    return np.hstack([predicted * true, predicted + true]), _present_f1


def _bits(read: PredictedRows) -> Sums:
    known = read.labels != IGNORED
    return _overlap(known & (read.predicted == 1), known & (read.labels == 1)), _held_f1


def _one_hot(values: Array64, task: Task) -> Array64:
    return np.asarray(values[:, None] == np.arange(len(task.labels)), dtype=np.float64)


def _agreement(read: PredictedRows) -> Sums:
    classes = [_one_hot(values, read.task) for values in (read.labels, read.predicted)]
    return np.hstack([_right(read)[0], *classes]), _matthews


def _moments(read: PredictedRows) -> Sums:
    x, y = (_standard(values) for values in (read.predicted, read.labels))
    return np.column_stack([np.ones_like(x), x, y, x * x, y * y, x * y]), _pearson


def _standard(values: Array64) -> Array64:
    """Values around 0 with variance 1: the squares of large ones would lose their digits."""
    spread = values.std()
    return np.asarray((values - values.mean()) / (spread if spread > 0 else 1.0))


def _spans(read: PredictedRows) -> Sums:
    predicted, true = (_entities(values, read) for values in (read.predicted, read.labels))
    there = true >= 0
    each = np.column_stack([(predicted == true) & there, 1.0 * (predicted >= 0) + there, there])
    # one end more than words in every row, so that none is empty
    return np.add.reduceat(each, np.cumsum(read.units + 1) - read.units - 1), _f1


def _by_sentence(spans: Callable[[Sequence[str]], set[Span]], read: PredictedRows) -> Sums:
    """As `_spans`, by the entities of a sentence after the other."""
    kind, table = kind_of(read.task), np.zeros((len(read.units), 3))
    both = (kind.for_metrics(read.task, v, read.units) for v in (read.predicted, read.labels))
    for row, (guesses, truth) in enumerate(zip(*both, strict=True)):
        found, there = spans(guesses), spans(truth)
        table[row] = len(found & there), len(found) + len(there), len(there)
    return table, _f1


def _entities(values: Array64, read: PredictedRows) -> Units:
    """For each word, and the end of each row, which entity ended before it; -1: none did.

    The number stands for where it began and its type, so that equal numbers in one place are
    equal entities. Where one begins and ends is for seqeval to say, of every pair of tags.
    """
    starts, ends, types = _borders(read.task.labels)
    tags = np.full(len(values) + len(read.units), read.task.labels.index("O"))
    row_of = np.repeat(np.arange(len(read.units)), read.units)
    tags[np.arange(len(values)) + row_of] = values.astype(np.int64)
    before = np.concatenate([[read.task.labels.index("O")], tags[:-1]])
    places = np.arange(len(tags))
    last = np.maximum.accumulate(np.where(starts[before, tags], places, 0))
    began = np.concatenate([[0], last[:-1]])
    return np.where(ends[before, tags], began * len(types) + types[before], -1)


@lru_cache
def _borders(labels: tuple[str, ...]) -> tuple[Units, Units, Units]:
    """Whether an entity starts, and whether one ends, between two tags; the type of each tag."""
    from seqeval.metrics.sequence_labeling import end_of_chunk, start_of_chunk

    parts = [(tag[0], tag[1:].split("-", maxsplit=1)[-1] or "_") for tag in labels]
    starts, ends = (
        np.array([[function(a, b, x, y) for b, y in parts] for a, x in parts])
        for function in (start_of_chunk, end_of_chunk)
    )
    types = sorted({kind for _, kind in parts})
    return starts, ends, np.array([types.index(kind) for _, kind in parts])


SUMS: Mapping[str, Callable[[PredictedRows], Sums]] = {
    "accuracy": _right,
    "f1": _positive,
    "macro_f1": _classes,
    "micro_f1": _right,
    "matthews": _agreement,
    "pearson": _moments,
    "span_f1": _spans,
    "span_f1_strict": partial(_by_sentence, strict_spans),
    "span_f1_dataless": partial(_by_sentence, loose_spans),
}
"""The metrics that are formulas of sums over rows. The micro F1 of classes is their accuracy."""


# What is no sum ----------------------------------------------------------------------------


def ranks(read: PredictedRows, counts: Array64) -> Array64:
    """Spearman's correlation: that of the ranks, which change with how often rows count.

    Rows of equal value share their mean rank. Values are sorted once: a rank is how many come
    before, and half of those of equal value. It is not centred, as the true ranks that it is
    multiplied by are.
    """
    by_row, true, yy = _true_ranks(_Same(read.labels), _Same(counts))
    predicted = _Ties.of(read.predicted)
    sizes, weights = predicted.sums(by_row), predicted.sums(true)
    half, xx = np.einsum("vb,vb->b", weights, sizes) / 2, _squares(sizes)
    value = _ratio(np.einsum("vb,vb->b", weights, _running(sizes)) - half, np.sqrt(xx * yy))
    return _where(yy > 0, value)


@dataclass(frozen=True, eq=False)
class _Same:
    """An array that is equal to itself alone."""

    array: Array64

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.array is other.array

    def __hash__(self) -> int:
        return id(self.array)


@lru_cache(maxsize=1)
def _true_ranks(labels: _Same, counts: _Same) -> tuple[Array64, Array64, Array64]:
    """Counts, and these times the rank of the label less the mean rank, [rows, resamples]; the sum
    of squares of these ranks. The last are kept: draws follow one another."""
    by_row, true = np.array(counts.array.T, order="C"), _Ties.of(labels.array)
    sizes = true.sums(by_row)
    ranks = _running(sizes.copy()) - (sizes + by_row.sum(axis=0)) / 2
    return by_row, by_row * ranks[true.group], _squares(sizes)


def _squares(sizes: Array64) -> Array64:
    """The sum of squares of ranks less their mean, by how many share each (Kendall 1945).

    Of n all different (n^3 - n) / 12, of which those that share t lose (t^3 - t) / 12.
    """
    return np.asarray((sizes.sum(axis=0) ** 3 - np.einsum("vb,vb,vb->b", *[sizes] * 3)) / 12)


def _running(sizes: Array64) -> Array64:
    """The sums of rows up to each, in their place: a quarter of the time of `np.cumsum`."""
    for before, row in pairwise(sizes):
        row += before
    return sizes


@dataclass(frozen=True)
class _Ties:
    """Rows in the order of their values: `group` is the place of each row's among the different
    ones, `starts` are where each begins."""

    group: Units
    order: Units
    starts: Units

    @classmethod
    def of(cls, values: Array64) -> _Ties:
        _, group = np.unique(values, return_inverse=True)
        order = np.argsort(group, kind="stable")
        return cls(group, order, np.flatnonzero(np.diff(group[order], prepend=-1)))

    def sums(self, by_row: Array64) -> Array64:
        """Sums over rows of equal value: [rows, resamples] -> [values, resamples]."""
        ordered = by_row[self.order]
        alone = len(self.starts) == len(self.order)
        return ordered if alone else np.add.reduceat(ordered, self.starts, axis=0)


def one_by_one(metric: str, read: PredictedRows, counts: Array64) -> Array64:
    """Any metric, asked of the rows of one resample after the other."""
    return np.array(
        [_of(metric, read, np.repeat(np.arange(len(c)), c.astype(int))) for c in counts]
    )


def _of(metric: str, read: PredictedRows, rows: Units) -> float:
    kind, entry, units = kind_of(read.task), METRICS[metric], numbers_of(read.units, rows)
    predicted, labels = (
        kind.for_metrics(read.task, values[units], read.units[rows])
        for values in (read.predicted, read.labels)
    )
    if entry.undefined and entry.undefined(labels):
        return float("nan")
    return value_of(entry, predicted, labels)


def counted(metric: str, read: PredictedRows) -> Counted:
    """A metric of a prediction as a function of how often each row counts."""
    if metric not in SUMS:
        return partial(ranks, read) if metric == "spearman" else partial(one_by_one, metric, read)
    table, formula = SUMS[metric](read)
    return lambda counts: formula(counts @ table)


# Predictions -------------------------------------------------------------------------------


def draws_of(predicted: Predicted, keys: Sequence[DrawKey]) -> Counted:
    """What a model scores in some draws, [draws, resamples], where rows count so often.

    The score of each is the mean of the task's metrics, without rows that it is not scored on.
    """
    task, parts = predicted.task, []
    for key in keys:
        read = PredictedRows(task, predicted.values[key], predicted.labels, predicted.units)
        parts.append(([counted(metric, read) for metric in task.metrics], predicted.left(key)))

    def each(counts: Array64) -> Array64:
        return np.array(
            [np.mean([part(_without(left, counts)) for part in own], axis=0) for own, left in parts]
        )

    return each


def _without(left: Sequence[int], counts: Array64) -> Array64:
    """Counts, [..., rows], with none of some rows."""
    if not len(left):
        return counts
    counts = counts.copy()
    counts[..., list(left)] = 0
    return counts


def scored(predicted: Predicted, key: DrawKey) -> float:
    """The score of one prediction on the rows as they are, each once."""
    once = np.ones((1, len(predicted.units)))
    return float(draws_of(predicted, [key])(once)[0, 0])
