"""Intervals of scores, of differences and of ratios, over test units, draws of shots and sets of
experts together.

Ends are made of variances, not of percentiles, which vary about twice as much with the resamples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np

from harness.stats.estimate import Estimate, Prior, mean_of, median_of, minus, of
from harness.types import Array64

Ends: TypeAlias = tuple[float, float]
LEVEL = 0.95
DIGITS = 6
"""Of the ends of an interval, far below the chance of a bootstrap: sums round as threads do."""
FEWEST_SETS = 3
"""Sets of experts whose spread counts: two have a Student's t of 12.7."""
FARTHEST = 2.0
"""No two scores are further apart: what one unit says of a difference."""


def variances(one: Estimate) -> tuple[float, float, float]:
    """The variance of an estimate: what other test units, draws and sets of experts add to it.

    Resampling units moves each draw by itself, too, and so that part is in both the resamples and
    the spread of the draws: it is counted with the draws alone. The variance of a bootstrap is
    that of n - 1 of n units. Sets have the units and the draws in common, but for how units and
    sets interact, which is in both parts: intervals are a little too wide. Of fewer than three
    sets, these very ones are meant.
    """
    sets, of_sets = [*one.by_set.values()], 0.0
    if len(sets) >= FEWEST_SETS:
        of_sets = moderated(float(np.var(sets, ddof=1)), len(sets), one.prior)[0] / len(sets)
    if one.units < 2:
        return math.inf, 0.0, of_sets
    of_units = float(one.resamples.var(ddof=1)) * one.units / (one.units - 1)
    draws = len(one.values)
    if draws < 2:
        return of_units, 0.0, of_sets
    in_both = _interaction(one) / draws
    return max(0.0, of_units - in_both), float(one.values.var(ddof=1)) / draws, of_sets


def moderated(variance: float, sets: int, known: Prior | None) -> tuple[float, float]:
    """The variance of a difference over sets and its degrees of freedom, shrunk towards what is
    known, and never below its own: a model that varies more than all others would pass for them."""
    own = sets - 1
    if known is None:
        return variance, own
    whole = own + known.degrees
    drawn = (own * variance + known.degrees * known.variance) / whole
    return max(variance, drawn), whole


def _interaction(one: Estimate) -> float:
    """The variance of units by draws: of what resamples do to a draw and not to all of them.

    The residual of a two-way table, [draws, K]. By hand: of ((1, 3), (3, 1)) it is 4.
    """
    draws, kept = one.by_draw.shape
    if draws < 2 or kept < 2:
        return 0.0
    rest = one.by_draw - one.by_draw.mean(0) - one.by_draw.mean(1, keepdims=True)
    return float(np.square(rest + one.by_draw.mean()).sum() / ((draws - 1) * (kept - 1)))


def degrees(one: Estimate, *, difference: bool) -> tuple[int, int, float]:
    """Degrees of freedom of the variances of units, of draws and of sets.

    Of a difference, one less than the units that differ, where each changes the score by one part
    in all of them: so many have its variance. Two models that answer seven rows differently are
    compared on seven, however many there are. By hand: of 500 rows, 5 to the good and 2 to the bad
    of a first model are a difference of 0.006 and a variance of (7 - 9 / 500) / 500^2. Where a unit
    may change the score by less (correlations, several labels, means), no less than the resamples
    show.
    """
    units = one.units
    if difference:
        whole = float(one.resamples.var(ddof=1)) + one.point**2 / units
        least = round(units * abs(one.point)) if one.counted else _carriers(one.resamples)
        units = min(units, max(round(units**2 * whole), least))
    of_sets = max(moderated(0.0, len(one.by_set), one.prior)[1], 1)
    return max(units - 1, 1), max(len(one.values) - 1, 1), of_sets


def _carriers(resamples: Array64) -> int:
    """How many units at least make resamples differ: those of few have long tails.

    The variance of units whose mean has an excess kurtosis k on resamples has 2 / k degrees of
    freedom. The standard error of k is added: 2,400 normal resamples are sure of no more than 20.
    """
    away = np.square(resamples - resamples.mean())
    variance = float(away.mean())
    if not variance:
        return 0
    excess = float(np.square(away).mean()) / variance**2 - 3
    return round(2 / (max(excess, 0.0) + math.sqrt(24 / len(resamples))))


@cache
def student(tail: float, degrees: float) -> float:
    """How many standard errors leave so much above; a board asks tens of thousands of times."""
    from scipy.stats import t

    return float(t.isf(tail, degrees))


def reach(one: Estimate, *, difference: bool = True, tail: float = (1 - LEVEL) / 2) -> float:
    """Half of an interval that leaves so much on either side.

    Student's of the units, of the draws and of the sets, each with its degrees of freedom; they are
    independent, so the squares add up (Zou & Donner 2008, doi:10.1002/sim.3095). Two models that
    differ in none of n units may differ in a share q of others: (1 - q)^n is the chance to see
    none. So may two that differ on all, by one and the same, be otherwise on others; where units
    are too few for a sign test, down to no difference.
    """
    known = variances(one)
    if difference and is_steady(known):
        half = float(1 - tail ** (1 / one.units))
        return half if sign_test(one.units) < 2 * tail else max(half, abs(one.point))
    parts = zip(known, degrees(one, difference=difference), strict=True)
    return math.sqrt(sum(student(tail, few) ** 2 * part for part, few in parts if part))


def is_steady(known: Sequence[float]) -> bool:
    """Whether variances are those of units, draws and sets that all say the same, but for the
    rounding of sums."""
    return sum(known) < 1e-24


def sign_test(units: int) -> float:
    """The p-value of units that all differ the same way."""
    return float(min(1.0, 2.0 ** (1 - units)))


def interval(one: Estimate, bounds: Ends | None = None) -> Ends:
    """The ends of the interval over test units, and over draws where there are several.

    Of a difference symmetric. Of a score that lies within `bounds` Wilson's, of as many units as
    would give a share its variance: so it stays within them, and all rows right are no certainty.
    By hand: 8 of 10 rows right, from 0.43 to 0.96, wider than Wilson's from 0.49 to 0.94 as the
    variance is estimated with nine degrees of freedom.
    """
    point = one.point
    half = reach(one, difference=bounds is None)
    if not math.isfinite(half):
        return bounds or (-FARTHEST, FARTHEST)
    if bounds is None:
        return round(point - half, DIGITS), round(point + half, DIGITS)
    low, width = bounds[0], bounds[1] - bounds[0]
    share = min(max((point - low) / width, 0.0), 1.0)
    spread = share * (1 - share)
    if spread and half > 10**-DIGITS:
        away = (half / width) ** 2 / spread
    else:
        away = student((1 - LEVEL) / 2, degrees(one, difference=False)[0]) ** 2 / one.units
    middle = (share + away / 2) / (1 + away)
    half = math.sqrt(away * spread + away**2 / 4) / (1 + away)
    return (
        round(low + width * (middle - half), DIGITS),
        round(low + width * (middle + half), DIGITS),
    )


# Ratios ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ratio:
    """One difference over another, or the median of several such, with its interval."""

    point: float
    ends: Ends

    @property
    def is_open(self) -> bool:
        """Whether its interval is more than the point."""
        return self.ends[0] < self.ends[1]


def ratio(above: Estimate, below: Estimate) -> Ratio | None:
    """Their ratio; None where what is below is not significantly greater than zero.

    The interval, Fieller's (1954), holds every value r for which `above` - r x `below` is not
    significant. Where `above` has fewer degrees of freedom, that may be all from some value on:
    then there is none either.
    """
    if interval(below)[0] <= 0:
        return None
    point = above.point / below.point

    def beyond(value: float) -> float:
        rest = minus(above, below, value)
        return abs(rest.point) - reach(rest, difference=False)

    def end(side: int) -> float:
        """Where `beyond` is zero, on one side of the point."""
        from scipy.optimize import brentq

        step = max(1.0, abs(point))
        while beyond(point + side * step) <= 0:
            step *= 2
            if step > _FAR:
                return side * math.inf
        inner, outer = sorted((point, point + side * step))
        return float(brentq(beyond, inner, outer, xtol=10**-DIGITS))

    if reach(minus(above, below, point), difference=False) < 10**-DIGITS:
        return Ratio(point, (point, point))
    low, high = end(-1), end(1)
    return Ratio(point, (round(low, DIGITS), round(high, DIGITS))) if high - low < _FAR else None


_FAR = 1e6


def credit(
    tuned: Sequence[Estimate],
    base: Sequence[Estimate],
    experts: Sequence[Estimate],
    constants: Sequence[float | None] = (),
) -> Ratio | None:
    """How far a merge is on the way from the base to the experts, by task in the same order.

    (tuned head of the merge - tuned head of the base) / (experts - tuned head of the base), each in
    the mean over tasks: 0 is the untouched base, 1 the experts. None where the experts are not
    significantly above the base, or above the best `constants` of all tasks, where these are known.
    """
    floors = [one for one in constants if one is not None]
    known = len(floors) == len(experts)
    if known and interval(mean_of(experts))[0] <= float(np.mean(floors)):
        return None
    above, below = (mean_of(list(map(minus, each, base))) for each in (tuned, experts))
    return ratio(above, below)


def median_credit(
    tuned: Sequence[Estimate], base: Sequence[Estimate], experts: Sequence[Estimate]
) -> Ratio:
    """The median of the credits of tasks, each defined, whose scores have no common scale.

    A credit counts as linear in its scores, about where it is (the delta method), so that its
    resamples, draws and sets are credits as well.
    """
    each = list(map(_linear, tuned, base, experts))
    point = float(np.median([one.point for one in each]))
    half = reach(median_of(each), difference=False)
    return Ratio(point, (round(point - half, DIGITS), round(point + half, DIGITS)))


def _linear(tuned: Estimate, base: Estimate, experts: Estimate) -> Estimate:
    above, below = minus(tuned, base), minus(experts, base)
    point, way = above.point / below.point, below.point
    return of(lambda one, two: point + (one - point * two) / way, above, below)
