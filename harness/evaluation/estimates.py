"""Scores and their differences as estimates: what other rows, draws and tasks would leave of them.

Three sources of chance. Test rows are drawn anew by a bootstrap; draws of shots and tasks are few,
so that what they spread is taken with Student's t. The training and the models are held.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np

from harness.types import Array64

Ends = tuple[float, float]
LEVEL = 0.95
POWER = 0.8
FEWEST_TASKS = 6
"""Tasks that say something of other tasks: all five of one sign happen by chance in 1 of 16."""
COUNTED = 5
"""Resamples in a tail below which its share is not counted."""
DIGITS = 6
"""Of the ends of an interval, far below the chance of a bootstrap: sums round as threads do."""


@dataclass(frozen=True)
class Estimate:
    """A score, a difference of scores or a mean of these, with what chance makes of it.

    `rows` [resamples] is the same on resampled test rows, `draws` [draws] on each draw of shots;
    a single one where nothing is drawn.
    """

    point: float
    rows: Array64
    draws: Array64


def estimate(values: Sequence[float] | Array64, rows: Array64) -> Estimate:
    """Of a score on each draw, and of their mean on resampled rows."""
    draws = np.asarray(values, dtype=np.float64)
    return Estimate(float(draws.mean()), rows, draws)


def minus(first: Estimate, second: Estimate) -> Estimate:
    """The difference, on the same resamples and the same draws."""
    rows = aligned([first.rows, second.rows])
    one, other = drawn_alike([first.draws, second.draws])
    return Estimate(first.point - second.point, rows[0] - rows[1], one - other)


def mean_of(several: Sequence[Estimate]) -> Estimate:
    """The mean, on the same resamples; draws by their number, as they are of each by itself."""
    return Estimate(
        float(np.mean([one.point for one in several])),
        aligned([one.rows for one in several]).mean(axis=0),
        np.mean(drawn_alike([one.draws for one in several]), axis=0),
    )


def aligned(samples: Sequence[Array64]) -> Array64:
    """Resamples of several scores as rows, as many as all of them have."""
    count = min(map(len, samples))
    return np.stack([one[:count] for one in samples])


def drawn_alike(draws: Sequence[Array64]) -> Array64:
    """Draws as rows, as many as all have that have more than one; what is not drawn stays."""
    count = min((len(one) for one in draws if len(one) > 1), default=1)
    return np.stack(
        [np.broadcast_to(one, count) if len(one) == 1 else one[:count] for one in draws]
    )


# Of other rows and draws -------------------------------------------------------------------


def ends(sample: Array64) -> Ends:
    """The ends of the interval that holds the middle share `LEVEL` of a bootstrap."""
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(sample, [tail, 100 - tail])
    return round(float(low), DIGITS), round(float(high), DIGITS)


def within(one: Estimate) -> Ends:
    """The ends of its interval over rows and draws; over rows alone where there is one draw.

    That over rows is of percentiles, that over draws is Student's. Rows and draws are independent,
    so the squares of their distances from the point add up (Zou & Donner 2008,
    doi:10.1002/sim.3095). By hand: a point of 2 with rows from -1 to 6, and draws of 1 and 3, whose
    mean has an interval of 12.7 either way: from 2 - (9 + 161.4)^0.5 = -11.1 to 15.3.
    """
    return widened(one.point, ends(one.rows), one.draws)


def widened(point: float, of_rows: Ends, draws: Array64) -> Ends:
    """As `within`, of the ends of an interval over rows."""
    away = _reach(draws)
    if not away:
        return of_rows
    low, high = (
        math.hypot(max(0.0, side), away) for side in (point - of_rows[0], of_rows[1] - point)
    )
    return round(point - low, DIGITS), round(point + high, DIGITS)


def _reach(values: Array64) -> float:
    """Half of Student's interval of the mean of some values; 0 of a single one."""
    if len(values) < 2:
        return 0.0
    return _student(len(values) - 1) * _error_of_mean(values)


@cache
def _student(degrees: int) -> float:
    """How many standard errors an interval reaches; a board asks tens of thousands of times."""
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, degrees))


def _error_of_mean(values: Array64) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def error(one: Estimate) -> float:
    """Its standard error, of rows and draws together."""
    return math.hypot(float(one.rows.std(ddof=1)), _error_of_mean(one.draws))


def p_value(one: Estimate) -> float:
    """Two-sided, of there being nothing but chance: a bootstrap of the rows; of several draws, a t
    test of rows and draws, whose degrees of freedom are those of Satterthwaite.

    By hand: an error of 3 of rows and of 4 of two draws is one of 5, with 625 / 256 degrees.
    """
    from scipy.stats import t

    of_draws = _error_of_mean(one.draws)
    if not of_draws:
        return bootstrap_p(one.rows)
    whole = error(one)
    degrees = (len(one.draws) - 1) * (whole / of_draws) ** 4
    return float(2 * t.sf(abs(one.point) / whole, degrees))


def bootstrap_p(differences: Array64) -> float:
    """The two-sided p-value of paired differences on resampled rows: twice the smaller tail.

    Of a tail with too few resamples to be counted, that of a normal distribution of their mean and
    deviation, which stays below what was counted: Holm asks small values of many.
    """
    count = 1 + len(differences)
    tail = int(min((differences <= 0).sum(), (differences >= 0).sum()))
    spread = float(differences.std(ddof=1))
    if tail >= COUNTED or not spread:
        return min(1.0, 2 * (1 + tail) / count)
    return uncounted(abs(differences.mean()) / spread, 2 * (1 + COUNTED) / count)


def uncounted(errors: float, most: float) -> float:
    """The two-sided p-value of so many standard errors, where too few resamples reach as far."""
    from scipy.stats import norm

    return min(most, float(2 * norm.sf(errors)))


def holm(values: Sequence[float]) -> tuple[float, ...]:
    """p-values adjusted for there being several, so that the chance of any false alarm is held.

    Holm (1979). By hand: 0.01, 0.04, 0.03 are 3 x 0.01, then 2 x 0.03, then 1 x 0.04, which is no
    less than the one before: 0.03, 0.06, 0.06.
    """
    p = np.asarray(values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1)
    return tuple(adjusted.tolist())


# Of other tasks ----------------------------------------------------------------------------


def over_tasks(tasks: Sequence[Estimate]) -> Ends:
    """The ends of the interval of the mean, where the tasks are drawn anew as well.

    Student's interval of what they are, which has the chance of rows and draws in it; no narrower
    than that over rows and draws, which few tasks that happen to be alike would give. That of a
    single task is held to this task. By hand: of 1 and 3, 2 -+ 12.7.
    """
    whole = mean_of(tasks)
    here = within(whole)
    away = _reach(np.array([one.point for one in tasks]))
    if not away:
        return here
    low, high = min(here[0], whole.point - away), max(here[1], whole.point + away)
    return round(low, DIGITS), round(high, DIGITS)


def p_over_tasks(tasks: Sequence[Estimate]) -> float:
    """The p-value of the mean where tasks are drawn anew, by what `over_tasks` is."""
    from scipy.stats import ttest_1samp

    here = p_value(mean_of(tasks))
    points = np.array([one.point for one in tasks])
    if len(points) < 2 or not points.std():
        return here
    return max(here, float(ttest_1samp(points, 0).pvalue))


def _factor(tasks: int = 1) -> float:
    """How many standard errors a difference has to be for a test at LEVEL to have POWER."""
    from scipy.stats import norm, t

    known = norm if tasks == 1 else t(tasks - 1)
    return float(known.ppf((1 + LEVEL) / 2) + known.ppf(POWER))


def detectable(one: Estimate) -> float:
    """The smallest difference that a test of so many rows and draws shows with a power of 80 %.

    By hand: 1.960 + 0.842 = 2.802 standard errors; 0.01 is the error, 0.028 is shown.
    """
    return _factor() * error(one)


def rows_needed(tasks: Sequence[Estimate], rows: int) -> int | None:
    """About how many rows would show their mean difference; None where no number would.

    Found with so many `rows`, in all. What differs from draw to draw, or from task to task by more
    than rows and draws explain, does not shrink with the rows.
    """
    whole, count = mean_of(tasks), len(tasks)
    of_rows, stays = float(whole.rows.var(ddof=1)), _error_of_mean(whole.draws) ** 2
    if count > 1:
        spread = float(np.var([one.point for one in tasks], ddof=1))
        chance = float(np.mean([error(one) ** 2 for one in tasks]))
        stays += max(0.0, spread - chance) / count
    left = (whole.point / _factor(count)) ** 2 - stays
    return None if left <= 0 else math.ceil(rows * of_rows / left)


# Several models ----------------------------------------------------------------------------


def ranks(values: Array64) -> Array64:
    """The rank of each model on each task, 1 the best, ties in the middle: [models, ...]."""
    from scipy.stats import rankdata

    return np.asarray(rankdata(-values, axis=0))


def win_rates(values: Array64) -> Array64:
    """The share of other models, over all tasks, that each is better than: ties are half of one.

    [models, tasks] -> [models]. By hand: one of three that wins one task and ties with another one
    for the last place of a second has won (2 + 0.5) / 4.
    """
    ahead = values[:, None] - values[None]
    wins = (ahead > 0) + 0.5 * (ahead == 0)
    models, tasks = values.shape
    return np.asarray((wins.sum(axis=(1, 2)) - 0.5 * tasks) / ((models - 1) * tasks))


def apart(models: Sequence[Sequence[Estimate]]) -> set[tuple[int, int]]:
    """The pairs of models, (i, j) with i < j, whose means over tasks are told apart.

    Of each model its estimates on the same tasks; Holm over all pairs.
    """
    pairs = list(combinations(range(len(models)), 2))
    p = holm(
        [p_over_tasks(list(map(minus, models[first], models[second]))) for first, second in pairs]
    )
    return {pair for pair, value in zip(pairs, p, strict=True) if value < 1 - LEVEL}


def tie_groups(order: Sequence[int], known: Collection[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Models in an order, in the longest runs in which no two are `known` to be apart.

    A model may be of several. By hand: of 0, 1, 2 with 0 and 2 apart: (0, 1) and (1, 2).
    """

    def joined(first: int, last: int) -> bool:
        pairs = combinations(sorted(order[first : last + 1]), 2)
        return not any(pair in known for pair in pairs)

    runs: list[tuple[int, ...]] = []
    end = -1
    for first in range(len(order)):
        last = max(last for last in range(first, len(order)) if joined(first, last))
        if last > end:
            runs.append(tuple(order[first : last + 1]))
            end = last
    return runs
