"""Tests of one difference and of several, and the difference that a test can find."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from itertools import count
from typing import Literal, TypeAlias

import numpy as np

from harness.stats.estimate import Estimate
from harness.stats.intervals import LEVEL, Ends, degrees, is_steady, sign_test, student, variances

POWER = 0.8
FEWEST_DRAWS = 3
"""The fewest draws of shots for a test of a difference: with two, Student's t is 12.7."""

DifferenceOutcome: TypeAlias = Literal[
    "better", "worse", "practically equal", "cannot tell", "needs more draws"
]


def p_value(difference: Estimate) -> float:
    """The two-sided p-value of a difference: the p whose 1 - p interval ends at zero."""
    point, components = abs(difference.point), variances(difference)
    if not point or not math.isfinite(sum(components)):
        return 1.0
    if is_steady(components):  # every unit differs, by the same amount
        return sign_test(difference.units)
    from scipy.optimize import brentq
    from scipy.special import stdtrit

    parts = np.array(components)
    freedom = np.array(degrees(difference, difference=True), dtype=float)

    def short(places: float) -> float:
        """By how much an interval at p = 10^-places falls short of zero."""
        return point - float(np.sqrt(stdtrit(freedom, 10**-places / 2) ** 2 @ parts))

    return float(10 ** -(_PLACES if short(_PLACES) > 0 else brentq(short, 0, _PLACES)))


_PLACES = 30
"""Decimal places of the smallest p-value."""


def outcome(
    difference: float, p: float | None, ends: Ends | None, margin: float | None = None
) -> DifferenceOutcome:
    """The outcome for a first model against a second; `p` is adjusted for the number of tests.

    Practically equal: the whole 95 % interval is within the margin on either side of zero, which
    is a test of equivalence at 2.5 %. `p` is None if there were too few draws to test.
    """
    if p is None:
        return "needs more draws"
    if margin is not None and ends is not None and -margin <= ends[0] and ends[1] <= margin:
        return "practically equal"
    if p >= 1 - LEVEL or not difference:
        return "cannot tell"
    return "better" if difference > 0 else "worse"


def holm(values: Sequence[float]) -> tuple[float, ...]:
    """p-values adjusted for their number, so that the chance of any false positive is bounded.

    Holm (1979). By hand: 0.01, 0.04, 0.03 are in ascending order 3 x 0.01, 2 x 0.03 and 1 x 0.04,
    which may not be less than the one before: adjusted, 0.03, 0.06, 0.06.
    """
    p = np.asarray(values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1)
    return tuple(adjusted.tolist())


# What it would take ------------------------------------------------------------------------


def detectable(difference: Estimate) -> float:
    """The smallest difference that a test with as many units, draws and sets finds with 80 % power.

    The standard error of few draws, or sets, is on average estimated too small, by a factor of
    1 - 1 / (4 x degrees of freedom).
    """
    freedom = degrees(difference, difference=True)
    of_units, *of_others = variances(difference)
    larger = [part / (1 - 1 / (4 * d)) ** 2 for part, d in zip(of_others, freedom[1:], strict=True)]
    parts = [of_units, *larger]
    total = sum(parts)
    if not math.isfinite(total) or not (total or difference.point):
        return math.inf  # how much units differ is unknown
    if not total:
        return 0.0
    terms = [(part, df) for part, df in zip(parts, freedom, strict=True) if part]
    half = math.sqrt(sum(student((1 - LEVEL) / 2, df) ** 2 * part for part, df in terms))
    of_all = total**2 / sum(part**2 / df for part, df in terms)
    return half + student(1 - POWER, max(1, round(of_all))) * math.sqrt(total)


def units_needed(difference: Estimate, units: int) -> int | None:
    """About how many units would find a difference of this size, which was found on `units`.

    None where no number would: variances over draws and over sets do not shrink with more units.
    """
    of_units, *of_others = variances(difference)
    smallest = detectable(difference)
    if not of_units or not difference.point or not math.isfinite(smallest):
        return None
    # the variance with which it would be found, less that of draws and sets, which stays
    rest = sum(of_others)
    remaining = (difference.point / smallest) ** 2 * (of_units + rest) - rest
    return None if remaining <= 0 else math.ceil(units * of_units / remaining)


def sets_needed(deviation: float, difference: float) -> int:
    """How many pairs find a mean difference with a power of 80 %, by a paired t test at 5 %.

    `deviation` is the standard deviation of the differences of pairs, above zero, in the unit of
    `difference`. By hand: a difference of one deviation takes 10 pairs (Cohen 1988, Table 2.4).
    """
    from scipy.stats import nct, t

    def power(pairs: int) -> float:
        df, apart = pairs - 1, math.sqrt(pairs) * abs(difference) / deviation
        end = float(t.isf((1 - LEVEL) / 2, df))
        return float(nct.sf(end, df, apart) + nct.cdf(-end, df, apart))

    high = next(2**exponent for exponent in count(1) if power(2**exponent) >= POWER)
    return bisect_left(range(high), POWER, lo=2, key=power)
