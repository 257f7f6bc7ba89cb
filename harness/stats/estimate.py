"""Estimate: the score of a model on a task with its uncertainty; differences and means of these."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from harness.types import Array64


class Prior(NamedTuple):
    """The variance that the variance of a difference over sets of experts is shrunk towards, and
    the degrees of freedom that it counts for."""

    variance: float
    degrees: float


@dataclass(frozen=True)
class Estimate:
    """The score of a model on a task under one protocol and number of shots, as fractions.

    `values` [draws] has the score of each draw of shots, one where nothing is drawn. `resamples`
    [B] has the mean over draws on each resample of the test units, `by_draw` [draws, K] each draw
    alone on the first K of the same resamples, [1, 0] for one draw. `units` is how many test units
    are resampled: rows, sentences or documents. `by_set` has the mean over the draws for each set
    of experts, by number; {} for a single set. Differences and means of estimates are estimates,
    too; `prior` is what is known about how such a difference varies over sets, if anything.
    `counted`: a unit is right or wrong, so that the variance of a difference counts the units that
    differ.
    """

    values: Array64
    resamples: Array64
    by_draw: Array64
    units: int
    by_set: Mapping[int, float] = field(default_factory=dict)
    prior: Prior | None = None
    counted: bool = False

    @cached_property
    def point(self) -> float:
        """The mean over the draws."""
        return float(self.values.mean())


def elementwise(
    function: Callable[[Array64, Array64], Array64], one: Estimate, two: Estimate
) -> Estimate:
    """A function of two estimates, applied draw by draw, resample by resample and set by set."""
    draws, resamples, by_draw = _common_arrays([one, two])
    numbers, sets = _sets([one, two])
    by_set = dict(zip(numbers, function(*sets).tolist(), strict=True))
    units = min(one.units, two.units)
    return Estimate(function(*draws), function(*resamples), function(*by_draw), units, by_set)


def minus(first: Estimate, second: Estimate, times: float = 1.0) -> Estimate:
    """first - times * second."""
    found = elementwise(lambda one, two: one - times * two, first, second)
    counted = first.counted and second.counted and times == 1
    return replace(found, counted=True) if counted else found


def mean_of(several: Sequence[Estimate]) -> Estimate:
    """The mean over tasks, or over models on one task.

    Draws are paired by number, as those of one task share their rows. If a task has more draws than
    others, only the first are used, shifted to the mean of all its draws. The `units` of the mean
    have the degrees of freedom of the whole (Satterthwaite): about the sum over tasks with similar
    variances, about those of one task that has most of the variance. By hand: two tasks of 100
    units with variances 1 and 3 have 16 / (1 / 100 + 9 / 100) = 160. Without a variance, each task
    counts with the units of the smallest.
    """
    return _aggregate(several, np.mean)


def median_of(several: Sequence[Estimate]) -> Estimate:
    """The median, with the units of the mean."""
    return _aggregate(several, np.median)


def _aggregate(several: Sequence[Estimate], how: Callable[..., Array64]) -> Estimate:
    if len(several) == 1:
        return several[0]
    draws, resamples, by_draw = map(np.stack, _common_arrays(several))
    for one, row in zip(several, draws, strict=True):
        if 1 < draws.shape[1] < len(one.values):
            row += one.point - row.mean()
    variances = np.array([one.resamples.var() for one in several])
    units = np.array([one.units for one in several])
    whole = variances.sum()
    alike = whole**2 / (variances**2 / units).sum() if whole else len(units) * units.min()
    numbers, sets = _sets(several)
    by_set = dict(zip(numbers, how(sets, axis=0).tolist(), strict=True))
    draws, resamples, by_draw = (how(each, axis=0) for each in (draws, resamples, by_draw))
    return Estimate(draws, resamples, by_draw, round(float(alike)), by_set)


def over_sets(each: Mapping[int, Estimate]) -> Estimate:
    """The mean over sets of experts, given by number, that were scored on the same test units."""
    known = [*each.values()]
    by_set = {number: one.point for number, one in each.items()} if len(each) > 1 else {}
    return replace(mean_of(known), units=min(one.units for one in known), by_set=by_set)


def _sets(several: Sequence[Estimate]) -> tuple[list[int], Array64]:
    """The sets that all estimates share, and the means on them [n, sets].

    An estimate without sets counts with its mean on each of them.
    """
    known = [one.by_set for one in several if one.by_set]
    numbers = sorted(set.intersection(*map(set, known))) if known else []
    each = [[one.by_set.get(number, one.point) for number in numbers] for one in several]
    return numbers, np.array(each, dtype=np.float64).reshape(len(several), len(numbers))


def _common_arrays(
    several: Sequence[Estimate],
) -> tuple[list[Array64], list[Array64], list[Array64]]:
    """`values` [draws], `resamples` [B] and `by_draw` [draws, K] of each, cut to what all have.

    An estimate where nothing is drawn is repeated for every draw.
    """
    drawn = [one for one in several if len(one.values) > 1]
    count = min((len(one.values) for one in drawn), default=1)
    kept = min(len(one.resamples) for one in several)
    width = min((one.by_draw.shape[1] for one in drawn), default=0)
    values = [_of_shape(one.values[:count], (count,)) for one in several]
    each = (one.by_draw[:count] if len(one.values) > 1 else one.resamples[None] for one in several)
    by_draw = [_of_shape(table[:, :width], (count, width)) for table in each]
    return values, [one.resamples[:kept] for one in several], by_draw


def _of_shape(array: Array64, shape: tuple[int, ...]) -> Array64:
    """The array, repeated along axes where it has one entry."""
    # np.broadcast_to takes as long as a difference of resamples, even where nothing is repeated
    return array if array.shape == shape else np.broadcast_to(array, shape)


# Along a line ------------------------------------------------------------------------------


def rises(places: Sequence[float], along: Sequence[Estimate]) -> list[Estimate]:
    """How far each estimate is above the straight line from the first to the last.

    `places` are from 0 to 1. By hand: 1, 4 and 2 at 0, 1/2 and 1 are 0, 5/2 and 0 above the line.
    """

    def line(x: float) -> Estimate:
        return elementwise(lambda first, last: (1 - x) * first + x * last, along[0], along[-1])

    return [minus(one, line(x)) for x, one in zip(places, along, strict=True)]
