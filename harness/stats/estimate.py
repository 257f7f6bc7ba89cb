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
        return average(self.values)


def average(values: Array64) -> float:
    """The mean, to the bit that of NumPy, which takes four times as long for a few numbers: a board
    has a hundred thousand of them."""
    return float(np.add.reduce(values) / len(values))


def variance(values: Array64, *, unbiased: bool = True) -> float:
    """The variance, to the bit that of NumPy, which takes twice as long. See `average`."""
    away = values - np.add.reduce(values) / len(values)
    return float(np.add.reduce(away * away) / (len(values) - unbiased))


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
    difference = elementwise(lambda one, two: one - times * two, first, second)
    counted = first.counted and second.counted and times == 1
    return replace(difference, counted=True) if counted else difference


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


def _aggregate(estimates: Sequence[Estimate], statistic: Callable[..., Array64]) -> Estimate:
    if len(estimates) == 1:
        return estimates[0]
    variances = np.array([variance(one.resamples, unbiased=False) for one in estimates])
    units = np.array([one.units for one in estimates])
    total = variances.sum()
    effective = total**2 / (variances**2 / units).sum() if total else len(units) * units.min()
    numbers, sets = _sets(estimates)
    by_set = dict(zip(numbers, statistic(sets, axis=0).tolist(), strict=True))
    return Estimate(*_statistic(estimates, statistic), round(float(effective)), by_set)


def _statistic(
    estimates: Sequence[Estimate], statistic: Callable[..., Array64]
) -> tuple[Array64, Array64, Array64]:
    """The statistic over the estimates of each draw, each resample and each draw alone."""
    draws, resamples, by_draw = map(np.stack, _common_arrays(estimates))
    for estimate, row in zip(estimates, draws, strict=True):
        if 1 < draws.shape[1] < len(estimate.values):
            row += estimate.point - average(row)
    return statistic(draws, axis=0), statistic(resamples, axis=0), statistic(by_draw, axis=0)


def over_sets(each: Mapping[int, Estimate]) -> Estimate:
    """The mean over sets of experts, given by number, that were scored on the same test units."""
    estimates = [*each.values()]
    if len(estimates) == 1:
        return replace(estimates[0], by_set={}) if estimates[0].by_set else estimates[0]
    by_set = {number: estimate.point for number, estimate in each.items()}
    arrays = _statistic(estimates, np.mean)
    return Estimate(*arrays, min(estimate.units for estimate in estimates), by_set)


def _sets(estimates: Sequence[Estimate]) -> tuple[list[int], Array64]:
    """The sets that all estimates share, and the means on them [n, sets].

    An estimate without sets counts with its mean on each of them.
    """
    with_sets = [one.by_set for one in estimates if one.by_set]
    numbers = sorted(set.intersection(*map(set, with_sets))) if with_sets else []
    means = [[one.by_set.get(number, one.point) for number in numbers] for one in estimates]
    return numbers, np.array(means, dtype=np.float64).reshape(len(estimates), len(numbers))


def _common_arrays(
    estimates: Sequence[Estimate],
) -> tuple[list[Array64], list[Array64], list[Array64]]:
    """`values` [draws], `resamples` [B] and `by_draw` [draws, K] of each, cut to what all have.

    An estimate where nothing is drawn is repeated for every draw.
    """
    drawn = [one for one in estimates if len(one.values) > 1]
    count = min((len(one.values) for one in drawn), default=1)
    length = min(len(one.resamples) for one in estimates)
    width = min((one.by_draw.shape[1] for one in drawn), default=0)
    values = [_of_shape(one.values[:count], (count,)) for one in estimates]
    tables = (
        one.by_draw[:count] if len(one.values) > 1 else one.resamples[None] for one in estimates
    )
    by_draw = [_of_shape(table[:, :width], (count, width)) for table in tables]
    return values, [one.resamples[:length] for one in estimates], by_draw


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

    return [minus(estimate, line(x)) for x, estimate in zip(places, along, strict=True)]
