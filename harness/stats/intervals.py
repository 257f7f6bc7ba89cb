"""Intervals of scores, of differences and of ratios, over test units, draws of shots and sets of
experts together.

Ends are computed from variances, not from percentiles, which vary about twice as much from one
bootstrap to another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np

from harness.stats.estimate import (
    Estimate,
    Prior,
    average,
    elementwise,
    mean_of,
    median_of,
    minus,
    variance,
)
from harness.types import Array64

Ends: TypeAlias = tuple[float, float]
LEVEL = 0.95
DIGITS = 6
"""Decimals of the ends of an interval: finer than the noise of a bootstrap, and coarser than
rounding errors, which vary with the number of threads."""
FEWEST_SETS = 3
"""The fewest sets of experts whose variance counts: with two, Student's t is 12.7."""
FARTHEST = 2.0
"""No two scores are further apart; the interval of a difference on one unit reaches so far."""


def variances(estimate: Estimate) -> tuple[float, float, float]:
    """The parts of an estimate's variance that are due to test units, draws and sets of experts.

    The interaction of units and draws is in the variance of the resamples and in that of the draws;
    it is counted with the draws alone. The variance of a bootstrap of n units is (n - 1) / n of the
    unbiased one. Sets share the units and the draws; the interaction of units and sets is in both
    parts, so intervals are a little too wide. With fewer sets than a test over them needs the last
    part is 0: claims are then about these very sets.
    """
    sets, of_sets = [*estimate.by_set.values()], 0.0
    if len(sets) >= fewest_sets(estimate.prior):
        of_sets = moderated(variance(np.array(sets)), len(sets), estimate.prior)[0] / len(sets)
    if estimate.units < 2:
        return math.inf, 0.0, of_sets
    of_units = variance(estimate.resamples) * estimate.units / (estimate.units - 1)
    draws = len(estimate.values)
    if draws < 2:
        return of_units, 0.0, of_sets
    in_both = _interaction(estimate) / draws
    return max(0.0, of_units - in_both), variance(estimate.values) / draws, of_sets


def fewest_sets(prior: Prior | None) -> int:
    """The fewest sets of experts whose variance counts: two where merges of more sets give a
    `prior`, which then has most of the degrees of freedom."""
    return FEWEST_SETS if prior is None else 2


def too_few_sets(sets: int, of_sets: int, prior: Prior | None = None) -> bool:
    """Whether a difference on so many sets of experts is not tested beside others that are on up to
    `of_sets`: they are tested over sets, and it would be over test units alone."""
    return of_sets >= FEWEST_SETS and sets < fewest_sets(prior)


def moderated(variance: float, sets: int, prior: Prior | None) -> tuple[float, float]:
    """The variance of a difference over sets, shrunk towards the `prior`, and its degrees of
    freedom. It is never made smaller: else a model that varies more than others would gain."""
    own = sets - 1
    if prior is None:
        return variance, own
    total = own + prior.degrees
    shrunk = (own * variance + prior.degrees * prior.variance) / total
    return max(variance, shrunk), total


def _interaction(estimate: Estimate) -> float:
    """The variance of the interaction of units and draws: what a resample changes in one draw.

    It is the mean square of the residuals of a two-way table [draws, K], with (draws - 1) (K - 1)
    degrees of freedom. By hand: for ((1, 3), (3, 1)) it is 4.
    """
    draws, count = estimate.by_draw.shape
    if draws < 2 or count < 2:
        return 0.0
    rest = estimate.by_draw - estimate.by_draw.mean(0) - estimate.by_draw.mean(1, keepdims=True)
    return float(np.square(rest + estimate.by_draw.mean()).sum() / ((draws - 1) * (count - 1)))


def degrees(estimate: Estimate, *, difference: bool) -> tuple[int, int, float]:
    """Degrees of freedom of the variances of units, of draws and of sets.

    For a difference, those of units are one less than the number of units that differ, computed
    from the variance as if each changed the score by 1 / units. Two models that answer seven rows
    differently are compared on seven, however many rows there are. By hand: of 500 rows, 5 that
    only the first model has right and 2 that only the second has right give a difference of 0.006
    and a variance of (7 - 9 / 500) / 500^2. Where a unit may change the score by less
    (correlations, several labels, means), the number of units is at least `_carriers`.
    """
    units = estimate.units
    if difference:
        whole = variance(estimate.resamples) + estimate.point**2 / units
        least = (
            round(units * abs(estimate.point))
            if estimate.counted
            else _carriers(estimate.resamples)
        )
        units = min(units, max(round(units**2 * whole), least))
    of_sets = max(moderated(0.0, len(estimate.by_set), estimate.prior)[1], 1)
    return max(units - 1, 1), max(len(estimate.values) - 1, 1), of_sets


def _carriers(resamples: Array64) -> int:
    """A lower bound for how many units make resamples differ: those of few units have long tails.

    The variance of units whose mean has an excess kurtosis k on resamples has 2 / k degrees of
    freedom. The standard error of k is added to k: 2,400 normal resamples give no more than 20.
    """
    squares = np.square(resamples - average(resamples))
    whole = average(squares)
    if not whole:
        return 0
    excess = average(np.square(squares)) / whole**2 - 3
    return round(2 / (max(excess, 0.0) + math.sqrt(24 / len(resamples))))


@cache
def student(tail: float, degrees: float) -> float:
    """The number that Student's t exceeds with probability `tail`; boards need it very often."""
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    return -float(stdtrit(degrees, tail))


def half_width(
    estimate: Estimate, *, difference: bool = True, tail: float = (1 - LEVEL) / 2
) -> float:
    """Half the width of an interval that leaves the probability `tail` on either side.

    Units, draws and sets each give Student's interval with its own degrees of freedom; they are
    independent, so the squares of the half-widths add up (Zou & Donner 2008,
    doi:10.1002/sim.3095). Two models that differ on none of n units may differ on a share q of
    other units: (1 - q)^n is the chance to see none of these. Likewise two models that differ by
    the same amount on all units may not do so on others; if units are too few for a sign test, the
    interval reaches 0.
    """
    parts = variances(estimate)
    if difference and is_steady(parts):
        half = float(1 - tail ** (1 / estimate.units))
        return half if sign_test(estimate.units) < 2 * tail else max(half, abs(estimate.point))
    terms = zip(parts, degrees(estimate, difference=difference), strict=True)
    return math.sqrt(sum(student(tail, df) ** 2 * part for part, df in terms if part))


def is_steady(values: Sequence[float]) -> bool:
    """Whether variances are 0 up to rounding: all units, draws and sets agree."""
    return sum(values) < 1e-24


def sign_test(units: int) -> float:
    """The two-sided p-value of a sign test whose units all differ in the same direction."""
    return float(min(1.0, 2.0 ** (1 - units)))


def rounded(low: float, high: float) -> Ends:
    """The ends of an interval to DIGITS decimals."""
    return round(float(low), DIGITS), round(float(high), DIGITS)


def interval(estimate: Estimate, bounds: Ends | None = None) -> Ends:
    """The ends of the 95 % interval over test units, and over several draws and sets of experts.

    Without `bounds`, for a difference, it is symmetric. For a score within `bounds` it is Wilson's,
    with the number of units for which a proportion has this variance: it stays within the bounds,
    and does not shrink to a point if all rows are right. By hand: 8 of 10 rows right give 0.43 to
    0.96, wider than Wilson's 0.49 to 0.94 as the variance is estimated with nine degrees of
    freedom.
    """
    point = estimate.point
    half = half_width(estimate, difference=bounds is None)
    if not math.isfinite(half):
        return bounds or (-FARTHEST, FARTHEST)
    if bounds is None:
        return rounded(point - half, point + half)
    low, width = bounds[0], bounds[1] - bounds[0]
    share = min(max((point - low) / width, 0.0), 1.0)
    spread = share * (1 - share)
    if spread and half > 10**-DIGITS:
        away = (half / width) ** 2 / spread
    else:
        away = (
            student((1 - LEVEL) / 2, degrees(estimate, difference=False)[0]) ** 2 / estimate.units
        )
    middle = (share + away / 2) / (1 + away)
    half = math.sqrt(away * spread + away**2 / 4) / (1 + away)
    return rounded(low + width * (middle - half), low + width * (middle + half))


# Ratios ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratio:
    """One difference divided by another, or the median of several ratios, with its interval."""

    point: float
    ends: Ends

    @property
    def has_interval(self) -> bool:
        """Whether the interval is wider than a point."""
        return self.ends[0] < self.ends[1]


def ratio(above: Estimate, below: Estimate) -> Ratio | None:
    """above / below; None unless `below` is significantly greater than zero.

    The interval, Fieller's (1954), holds every value r for which `above` - r x `below` is not
    significant. If `above` has fewer degrees of freedom, it may hold all values from some r on: the
    ratio is then None, too.
    """
    if interval(below)[0] <= 0:
        return None
    point = above.point / below.point

    def beyond(value: float) -> float:
        rest = minus(above, below, value)
        return abs(rest.point) - half_width(rest, difference=False)

    def end(side: int) -> float:
        """Where `beyond` is zero, on one `side` (-1 or 1) of the point."""
        from scipy.optimize import brentq

        step = max(1.0, abs(point))
        while beyond(point + side * step) <= 0:
            step *= 2
            if step > _FAR:
                return side * math.inf
        inner, outer = sorted((point, point + side * step))
        return float(brentq(beyond, inner, outer, xtol=10**-DIGITS))

    if half_width(minus(above, below, point), difference=False) < 10**-DIGITS:
        return Ratio(point, (point, point))
    low, high = end(-1), end(1)
    return Ratio(point, rounded(low, high)) if high - low < _FAR else None


_FAR = 1e6
"""The width from which on the interval of a ratio counts as unbounded."""


def credit(
    tuned: Sequence[Estimate],
    base: Sequence[Estimate],
    experts: Sequence[Estimate],
    constants: Sequence[float | None] = (),
) -> Ratio | None:
    """How far a merge is on the way from the base to the experts; arguments have a value by task.

    (tuned head of the merge - tuned head of the base) / (experts - tuned head of the base), each in
    the mean over tasks: 0 is the untouched base, 1 the experts. None where the experts are not
    significantly above the base, or above the mean of the best `constants`, if all are known.
    """
    floors = [constant for constant in constants if constant is not None]
    all_known = len(floors) == len(experts)
    if all_known and interval(mean_of(experts))[0] <= float(np.mean(floors)):
        return None
    above, below = (mean_of(list(map(minus, scores, base))) for scores in (tuned, experts))
    return ratio(above, below)


def median_credit(
    tuned: Sequence[Estimate], base: Sequence[Estimate], experts: Sequence[Estimate]
) -> Ratio:
    """The median of the credits of tasks whose scores have no common scale; each is defined.

    Each credit is linearised in its scores (the delta method), so that its resamples, draws and
    sets are credits, too.
    """
    shares = list(map(_linear, tuned, base, experts))
    point = float(np.median([share.point for share in shares]))
    half = half_width(median_of(shares), difference=False)
    return Ratio(point, rounded(point - half, point + half))


def _linear(tuned: Estimate, base: Estimate, experts: Estimate) -> Estimate:
    """The credit of one task, linearised in its scores."""
    above, below = minus(tuned, base), minus(experts, base)
    point, way = above.point / below.point, below.point
    return elementwise(lambda one, two: point + (one - point * two) / way, above, below)
