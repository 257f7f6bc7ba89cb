"""Metrics on rows that count several times or not at all, as in a bootstrap resample.

Rows drawn with replacement are rows with counts. Most metrics are formulas of sums over rows, so a
thousand resamples are one product of matrices; the others are computed one resample at a time. If
the labels leave a metric undefined (no entity, say), its value is NaN; if the predictions do, 0.
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


@dataclass(frozen=True)
class PredictedRows:
    """The predictions of one draw, the labels, and how many units each row has."""

    task: Task
    predicted: Array64
    labels: Array64
    units: Units


Sums: TypeAlias = "tuple[Array64, Callable[[Array64], Array64]]"
"""A table [rows, k], and the formula of a metric [...] from sums over its rows [..., k]."""
Counted: TypeAlias = Callable[[Array64], Array64]
"""How often each row counts [resamples, rows] -> the values of a metric [resamples]."""


# Formulas ----------------------------------------------------------------------------------


def _ratio(above: Array64, below: Array64) -> Array64:
    """above / below, 0 where `below` is not positive."""
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


def _share(sums: Array64) -> Array64:
    """The share right / all, from the sums (right, all)."""
    return _ratio(sums[..., 0], sums[..., 1])


def _f1(sums: Array64) -> Array64:
    """F1 = 2 both / (predicted + true), from the sums (in both, predicted + true, true)."""
    return _where(sums[..., 2] > 0, _ratio(2 * sums[..., 0], sums[..., 1]))


def _where(defined: Any, values: Array64) -> Array64:
    """The values, NaN where a metric is undefined."""
    return np.where(defined, values, np.nan)


def _present_f1(sums: Array64) -> Array64:
    """The mean F1 of the classes that occur or are predicted.

    From the sums (in both, predicted + true), each by class.
    """
    common, either = np.split(sums, 2, axis=-1)
    return _ratio(_ratio(2 * common, either).sum(-1), (either > 0).sum(-1).astype(np.float64))


def _held_f1(sums: Array64) -> Array64:
    """The mean F1 of the classes that hold for any row.

    From the sums (in both, predicted + true, true), each by class.
    """
    common, either, true = np.split(sums, 3, axis=-1)
    held = true > 0
    by_class = np.where(held, _ratio(2 * common, either), 0)
    return _where(held.any(-1), _ratio(by_class.sum(-1), held.sum(-1).astype(np.float64)))


def _matthews(sums: Array64) -> Array64:
    """R_K of Gorodkin (2004), from the sums (right, all, true by class, predicted by class)."""
    right, count = sums[..., 0], sums[..., 1]
    true, predicted = np.split(sums[..., 2:], 2, axis=-1)
    varied = count**2 - (true**2).sum(-1)
    spread = varied * (count**2 - (predicted**2).sum(-1))
    value = _ratio(right * count - (true * predicted).sum(-1), np.sqrt(np.maximum(spread, 0)))
    return _where(varied > 0, value)


CONSTANT = 1e-12
"""A resample whose variance is at most this counts as constant: the rest is rounding. The variance
over all rows is 1."""


def _pearson(sums: Array64) -> Array64:
    """Pearson's correlation, from the sums of (1, x, y, xx, yy, xy)."""
    x, y, xx, yy, xy = (sums[..., i] / np.maximum(sums[..., 0], 1) for i in range(1, 6))
    spread = np.stack([xx - x**2, yy - y**2])
    varied = spread > CONSTANT
    both_vary = varied.all(0)
    value = np.where(both_vary, (xy - x * y) / np.sqrt(np.where(both_vary, spread.prod(0), 1)), 0.0)
    return _where(varied[1], value)


# Tables ------------------------------------------------------------------------------------


def _right(read: PredictedRows) -> Sums:
    right = read.predicted == read.labels
    return np.column_stack([right, np.ones(len(right))]), _share


def _positive(read: PredictedRows) -> Sums:
    return _overlap(read.predicted == 1, read.labels == 1), _f1


def _overlap(predicted: Any, true: Any) -> Array64:
    """The columns (in both, predicted + true, true) from two masks, [rows] or [rows, k]."""
    return np.column_stack([predicted & true, 1.0 * predicted + true, true])


def _classes(read: PredictedRows) -> Sums:
    if read.labels.ndim > 1:
        labelled = read.labels != IGNORED
        return _overlap(labelled & (read.predicted == 1), labelled & (read.labels == 1)), _held_f1
    predicted, true = (_one_hot(values, read.task) for values in (read.predicted, read.labels))
    return np.hstack([predicted * true, predicted + true]), _present_f1


def _one_hot(values: Array64, task: Task) -> Array64:
    return np.asarray(values[:, None] == np.arange(len(task.labels)), dtype=np.float64)


def _agreement(read: PredictedRows) -> Sums:
    classes = [_one_hot(values, read.task) for values in (read.labels, read.predicted)]
    return np.hstack([_right(read)[0], *classes]), _matthews


def _moments(read: PredictedRows) -> Sums:
    x, y = (_standard(values) for values in (read.predicted, read.labels))
    return np.column_stack([np.ones_like(x), x, y, x * x, y * y, x * y]), _pearson


def _standard(values: Array64) -> Array64:
    """Values with mean 0 and variance 1: squares of large values would lose digits."""
    spread = values.std()
    return np.asarray((values - values.mean()) / (spread if spread > 0 else 1.0))


def _spans(read: PredictedRows) -> Sums:
    """The table with (entities in both, predicted + true, true) of each row, and their F1."""
    predicted, true = (_entities(values, read) for values in (read.predicted, read.labels))
    gold = true >= 0
    by_place = np.column_stack([(predicted == true) & gold, 1.0 * (predicted >= 0) + gold, gold])
    # every row has one place more than words, its end, so that no slice of reduceat is empty
    return np.add.reduceat(by_place, np.cumsum(read.units + 1) - read.units - 1), _f1


def _by_sentence(spans: Callable[[Sequence[str]], set[Span]], read: PredictedRows) -> Sums:
    """As `_spans`, from the entities that `spans` finds in each sentence."""
    kind, table = kind_of(read.task), np.zeros((len(read.units), 3))
    tags = (kind.for_metrics(read.task, v, read.units) for v in (read.predicted, read.labels))
    for row, (guesses, truth) in enumerate(zip(*tags, strict=True)):
        guessed, gold = spans(guesses), spans(truth)
        table[row] = len(guessed & gold), len(guessed) + len(gold), len(gold)
    return table, _f1


def _entities(values: Array64, read: PredictedRows) -> Units:
    """For each word, and the end of each row, the entity that ended just before; -1 if none did.

    An entity is a number made of its start and its type, so that equal numbers in one place are
    equal entities. seqeval decides, for every pair of tags, whether an entity starts or ends.
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
    """Whether an entity starts, and whether one ends, by (tag before, tag); the type of each."""
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
"""The metrics that are formulas of sums over rows. For single labels, micro F1 is the accuracy."""


# Metrics that are no sums ------------------------------------------------------------------


def spearman_on_counts(read: PredictedRows, counts: Array64) -> Array64:
    """Spearman's correlation on each resample: that of the ranks, which depend on the counts.

    Rows of equal value share their mean rank. Values are sorted once: the rank of a value is the
    number of rows below it plus half of those equal to it. Predicted ranks are not centred, since
    they are multiplied by true ranks that are.
    """
    by_row, true, yy = _true_ranks(_Same(read.labels), _Same(counts))
    predicted = _Ties.of(read.predicted)
    sizes, weights = predicted.sums(by_row), predicted.sums(true)
    half, xx = np.einsum("vb,vb->b", weights, sizes) / 2, _squares(sizes)
    value = _ratio(np.einsum("vb,vb->b", weights, _running(sizes)) - half, np.sqrt(xx * yy))
    return _where(yy > 0, value)


@dataclass(frozen=True, eq=False)
class _Same:
    """An array as a key of a cache: equal to the very same array alone."""

    array: Array64

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.array is other.array

    def __hash__(self) -> int:
        return id(self.array)


@lru_cache(maxsize=1)
def _true_ranks(labels: _Same, counts: _Same) -> tuple[Array64, Array64, Array64]:
    """The counts, the counts times the centred rank of the label [rows, resamples], and the sum of
    squares of the centred ranks [resamples].

    The last result is cached: all draws of a cell have the same labels and counts.
    """
    by_row, true = np.array(counts.array.T, order="C"), _Ties.of(labels.array)
    sizes = true.sums(by_row)
    ranks = _running(sizes.copy()) - (sizes + by_row.sum(axis=0)) / 2
    return by_row, by_row * ranks[true.group], _squares(sizes)


def _squares(sizes: Array64) -> Array64:
    """The sum of squares of centred ranks, by how many rows share each rank (Kendall 1945).

    n different ranks have (n^3 - n) / 12, less (t^3 - t) / 12 for each rank that t rows share.
    """
    return np.asarray((sizes.sum(axis=0) ** 3 - np.einsum("vb,vb,vb->b", *[sizes] * 3)) / 12)


def _running(sizes: Array64) -> Array64:
    """Cumulative sums over the first axis, in place; takes a quarter of the time of `np.cumsum`."""
    for before, row in pairwise(sizes):
        row += before
    return sizes


@dataclass(frozen=True)
class _Ties:
    """Rows grouped by equal value.

    `group` is the rank of each row's value among the different values, `order` sorts the rows by
    value, `starts` is where each value begins in that order.
    """

    group: Units
    order: Units
    starts: Units

    @classmethod
    def of(cls, values: Array64) -> _Ties:
        _, group = np.unique(values, return_inverse=True)
        order = np.argsort(group, kind="stable")
        return cls(group, order, np.flatnonzero(np.diff(group[order], prepend=-1)))

    def sums(self, by_row: Array64) -> Array64:
        """The sums over rows of equal value: [rows, resamples] -> [values, resamples]."""
        ordered = by_row[self.order]
        alone = len(self.starts) == len(self.order)
        return ordered if alone else np.add.reduceat(ordered, self.starts, axis=0)


def one_by_one(metric: str, read: PredictedRows, counts: Array64) -> Array64:
    """The values of any metric, computed on the rows of one resample after the other."""
    return np.array(
        [_metric_on_rows(metric, read, np.repeat(np.arange(len(c)), c.astype(int))) for c in counts]
    )


def _metric_on_rows(metric: str, read: PredictedRows, rows: Units) -> float:
    """A metric on some rows, with repeats; NaN if their labels leave it undefined."""
    kind, entry, units = kind_of(read.task), METRICS[metric], numbers_of(read.units, rows)
    predicted, labels = (
        kind.for_metrics(read.task, values[units], read.units[rows])
        for values in (read.predicted, read.labels)
    )
    if entry.undefined and entry.undefined(labels):
        return float("nan")
    return value_of(entry, predicted, labels)


def metric_on_counts(metric: str, read: PredictedRows) -> Counted:
    """The metric of some predictions as a function of how often each row counts."""
    if metric == "spearman":
        return partial(spearman_on_counts, read)
    if metric not in SUMS:
        return partial(one_by_one, metric, read)
    table, formula = SUMS[metric](read)
    return lambda counts: formula(counts @ table)


# Predictions -------------------------------------------------------------------------------


def scores_on_counts(predicted: Predicted, keys: Sequence[DrawKey]) -> Counted:
    """The scores of some draws [draws, resamples], as a function of how often each row counts.

    A score is the mean of the task's metrics, without the rows that the draw is not scored on.
    """

    def of_draw(key: DrawKey) -> Counted:
        task, rows = predicted.task, predicted.left(key)
        read = PredictedRows(task, predicted.values[key], predicted.labels, predicted.units)
        metrics = [metric_on_counts(metric, read) for metric in task.metrics]
        return lambda counts: np.mean([one(_without(rows, counts)) for one in metrics], axis=0)

    draws = [of_draw(key) for key in keys]
    return lambda counts: np.array([scores(counts) for scores in draws])


def _without(rows: Sequence[int], counts: Array64) -> Array64:
    """The counts [..., rows], set to 0 for these rows."""
    if not len(rows):
        return counts
    counts = counts.copy()
    counts[..., list(rows)] = 0
    return counts


def scored(predicted: Predicted, key: DrawKey) -> float:
    """The score of one draw with every row counted once."""
    once = np.ones((1, len(predicted.units)))
    return float(scores_on_counts(predicted, [key])(once)[0, 0])
