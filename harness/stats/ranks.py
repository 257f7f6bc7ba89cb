"""Tests of models over several tasks: is one better on tasks at large, which differ significantly?

A task is one observation, however many rows it has: claims about other tasks rest on the number of
tasks.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Literal

import numpy as np

from harness.rng import rng
from harness.stats.intervals import DIGITS, LEVEL, Ends, rounded
from harness.stats.tests import holm
from harness.types import Array64

FEWEST_TASKS = 6
"""The fewest tasks that can be significant: five have the same sign by chance in 1 of 16 cases."""
_MOST_EXACT_TASKS = 17
"""The most tasks for which all choices of signs are tried. For more tasks, 2^17 random choices are
tried, by which all pairs of 80 models may be significant."""
_AT_ONCE = 32
"""Differences whose sign changes are in memory at once: 34 MB."""


# Two models --------------------------------------------------------------------------------


@cache
def _sign_choices(tasks: int) -> Array64:
    """Every choice of tasks whose sign is kept, [choices, tasks] of 0 and 1; the first keeps all.

    For more than _MOST_EXACT_TASKS tasks, random choices.
    """
    if tasks > _MOST_EXACT_TASKS:
        drawn = rng(0, "sign flips", tasks).integers(2, size=(2**_MOST_EXACT_TASKS, tasks))
        drawn[0] = 1
        return drawn.astype(np.float64)
    bits = np.arange(2**tasks)[::-1, None] >> np.arange(tasks)
    return (bits & 1).astype(np.float64)


def sign_flip_p(differences: Array64) -> Array64:
    """Two-sided p-values of mean differences over tasks [..., tasks], by the sign-flip test.

    If two models are alike, each task might as well favour the other. The test is exact up to
    _MOST_EXACT_TASKS tasks. By hand: the differences 3, 2 and 1 have a sum that 2 of 8 choices of
    signs reach: p = 0.25.
    """
    values = np.asarray(differences, dtype=np.float64)
    signs = (2 * _sign_choices(values.shape[-1]) - 1).T
    reached = np.abs(values.sum(axis=-1, keepdims=True)) - 10.0**-9
    flat, least = values.reshape(-1, values.shape[-1]), reached.reshape(-1, 1)
    starts = range(0, len(flat), _AT_ONCE)
    blocks = (slice(start, start + _AT_ONCE) for start in starts)
    p = [(np.abs(flat[block] @ signs) >= least[block]).mean(axis=-1) for block in blocks]
    return np.concatenate(p).reshape(values.shape[:-1])


def interval_over_tasks(differences: Array64) -> Ends | None:
    """The 95 % interval of the mean difference on tasks at large, by the sign-flip test.

    Its ends cut off the lowest and the highest 2.5 % of the means of all subsets of the tasks
    (Hartigan 1969, doi:10.1080/01621459.1969.10501057). None below six tasks, which are too few.
    """
    choices = _sign_choices(len(differences))
    place = int((1 - LEVEL) / 2 * len(choices))
    if not place:
        return None
    subsets = choices[choices.any(axis=1)]
    means = np.sort(subsets @ differences / subsets.sum(axis=1))
    return rounded(means[place - 1], means[-place])


def leave_one_out(differences: Array64) -> tuple[Ends, list[int]]:
    """How much a mean difference over two or more tasks depends on any one of them.

    The range of the mean without one task after the other; and the indices of the tasks without
    which its sign changes, or the outcome of the sign-flip test, if enough tasks are left for it.
    """
    values = np.asarray(differences, dtype=np.float64)
    without = np.array([np.delete(values, index) for index in range(len(values))])
    means = without.mean(axis=1)
    changed = np.sign(means) != np.sign(values.mean())
    if len(values) > FEWEST_TASKS:
        changed |= (sign_flip_p(without) < 1 - LEVEL) != (sign_flip_p(values) < 1 - LEVEL)
    return rounded(means.min(), means.max()), np.flatnonzero(changed).tolist()


# Several models ----------------------------------------------------------------------------


def ranks(values: Array64) -> Array64:
    """The rank of each model on each task, 1 the best, tied ones share the mean: [models, ...]."""
    from scipy.stats import rankdata

    return np.asarray(rankdata(-values, axis=0))


def win_rates(values: Array64) -> Array64:
    """The share of other models, over all tasks, that each model is better than; a tie counts half.

    [models, tasks] -> [models]. By hand: a model of three that wins one task, and on a second task
    shares the last place with one other, has (2 + 0.5) / 4.
    """
    ahead = values[:, None] - values[None]
    wins = (ahead > 0) + 0.5 * (ahead == 0)
    models, tasks = values.shape
    return np.asarray((wins.sum(axis=(1, 2)) - 0.5 * tasks) / ((models - 1) * tasks))


def friedman(values: Array64) -> float:
    """The p-value of several models being alike, by their ranks on tasks: [models, tasks].

    It is that of Kendall's W by the F distribution, with the correction for continuity of Kendall
    and Babington Smith (1939, doi:10.1214/aoms/1177732186): by chi-squared, two or three tasks that
    rank eight models alike are hardly significant. By hand: two tasks that rank three models 1, 2,
    3 have sums with squared deviations 4, 0 and 4; (8 - 1) / (8 + 2) is 0.7, F is 0.7 / 0.3, with 1
    and 1 degrees of freedom: p = 0.37. It is never less than the chance that all tasks have the
    same ranking, given the ties of each task.
    """
    from scipy.stats import f

    of_tasks = ranks(values)
    models, tasks = values.shape
    sums = of_tasks.sum(axis=1)
    squares = float(np.square(sums - sums.mean()).sum())
    if tasks < 2 or squares <= 1:
        return 1.0
    whole = squares / concordance(values) + 2
    df = models - 1 - 2 / tasks
    ratio = (tasks - 1) * (squares - 1) / (whole - (squares - 1))
    orders = [_orders(of_tasks[:, task]) for task in range(tasks)]
    alike = math.exp(max(orders) - sum(orders))
    return max(float(f.sf(ratio, df, (tasks - 1) * df)), alike)


def _orders(of_task: Array64) -> float:
    """The logarithm of the number of rankings of the models with the same ties."""
    ties = np.unique(of_task, return_counts=True)[1]
    return math.lgamma(len(of_task) + 1) - sum(math.lgamma(count + 1) for count in ties)


def concordance(values: Array64) -> float:
    """Kendall's W of the ranks of models on tasks, [models, tasks]: 1 if all tasks agree.

    0 if all models have the same sum of ranks, or are tied on all tasks. By hand: two tasks that
    rank three models 1, 2, 3 and 1, 3, 2 give the sums 2, 5 and 5: 12 x 6 / (4 x 24) = 0.75.
    """
    from scipy.stats import friedmanchisquare

    models, tasks = values.shape
    if not np.ptp(ranks(values), axis=0).any():
        return 0.0
    return float(friedmanchisquare(*values)[0] / (tasks * (models - 1)))


def fewest_tasks(models: int) -> int:
    """The fewest tasks on which a pair of so many models can be significant, Holm over all pairs.

    By hand: of three models one of the three pairs needs 3 x 2 / 2^n below 0.05: seven tasks.
    """
    pairs = models * (models - 1) / 2
    return int(np.floor(np.log2(2 * pairs / (1 - LEVEL)))) + 1


def pairs_over_tasks(values: Array64) -> set[tuple[int, int]]:
    """The pairs (i, j), i < j, of models whose means over tasks differ significantly.

    `values` are [models, tasks]. Friedman's test first, for three or more models; then a sign-flip
    test of each pair, Holm over all pairs.
    """
    pairs = list(combinations(range(len(values)), 2))
    if len(values) > 2 and friedman(values) >= 1 - LEVEL:
        return set()
    first, second = np.array(pairs).T
    adjusted = holm(sign_flip_p(values[first] - values[second]).tolist())
    return {pair for pair, p in zip(pairs, adjusted, strict=True) if p < 1 - LEVEL}


def tie_groups(
    order: Sequence[int], different: Collection[tuple[int, int]]
) -> list[tuple[int, ...]]:
    """The longest runs of models, in the given order, of which no two are in `different`.

    A model may be in several. By hand: 0, 1, 2 with 0 and 2 known to differ give (0, 1) and (1, 2).
    """

    def joined(first: int, last: int) -> bool:
        pairs = combinations(sorted(order[first : last + 1]), 2)
        return not any(pair in different for pair in pairs)

    runs: list[tuple[int, ...]] = []
    end = -1
    for first in range(len(order)):
        last = max(last for last in range(first, len(order)) if joined(first, last))
        if last > end:
            runs.append(tuple(order[first : last + 1]))
            end = last
    return runs


def places(order: Sequence[int], different: Collection[tuple[int, int]]) -> list[tuple[int, int]]:
    """The first and the last place that each model may have, by the number of the model.

    It is behind all models that are significantly better, and before all that are significantly
    worse. By hand: 0, 1, 2 with 0 and 2 known to differ have the places 1 to 2, 1 to 3 and 2 to 3.
    """
    ordered = [sorted(pair, key=order.index) for pair in different]
    better = Counter(last for _, last in ordered)
    worse = Counter(first for first, _ in ordered)
    return [(1 + better[model], len(order) - worse[model]) for model in range(len(order))]


# Both --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standings:
    """Mean ranks over tasks, 1 the best, and shares of wins, in the order of the models.

    `left_out` is the range of each mean rank without any one task. `order` has the numbers of the
    models, the best first. `groups` are the longest runs of models of which no two differ
    significantly on tasks at large, `places` the first and the last place of each model by this.
    """

    means: tuple[float, ...]
    left_out: tuple[Ends, ...]
    wins: tuple[float, ...]
    order: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    places: tuple[tuple[int, int], ...]

    @property
    def ties(self) -> tuple[tuple[int, ...], ...]:
        """The groups of two or more."""
        return tuple(group for group in self.groups if len(group) > 1)


def standings(
    tasks: Sequence[str], scores: Array64, *, by: Literal["rank", "score"] = "rank"
) -> Standings:
    """The standings of models by their scores [models, tasks]; equal scores share their mean rank.

    Models are ordered and tested `by` their mean rank or their mean score. By hand: the scores
    (3, 1), (2, 2), (2, 3) of three models have the ranks (1, 3), (2.5, 2) and (2.5, 1), on average
    2, 2.25 and 1.75.
    """
    by_name = np.argsort(np.asarray(tasks), kind="stable")  # the order of tasks changes nothing
    scores = np.round(np.asarray(scores)[:, by_name], DIGITS)
    of_tasks = ranks(scores)
    means, height = of_tasks.mean(axis=1), scores.mean(axis=1)
    first, second = (means, -height) if by == "rank" else (-height, means)
    order = sorted(range(len(means)), key=lambda place: (first[place], second[place]))
    pairs = pairs_over_tasks(of_tasks if by == "rank" else scores)
    several = len(tasks) > 1
    without = [
        np.delete(of_tasks, index, axis=1).mean(axis=1) if several else means
        for index in range(len(tasks))
    ]
    return Standings(
        means=tuple(means.tolist()),
        left_out=tuple(zip(np.min(without, 0).tolist(), np.max(without, 0).tolist(), strict=True)),
        wins=tuple(win_rates(scores).tolist()),
        order=tuple(order),
        groups=tuple(tie_groups(order, pairs)),
        places=tuple(places(order, pairs)),
    )
