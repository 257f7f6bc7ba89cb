"""Pure: differences of scores, in points, and which of them are significant."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from harness.reporting.lines import Line
from harness.stats.estimate import Estimate, Prior, mean_of, minus, over_sets
from harness.stats.intervals import LEVEL, Ends, Ratio, interval
from harness.stats.tests import FEWEST_DRAWS, holm, p_value
from harness.text import points

CI = f"{100 * LEVEL:.0f} % CI"
OPEN = "?"
"""The mark behind a difference that is not significant."""


@dataclass(frozen=True)
class Difference:
    """The points between two scores; `significant` is None if that was not tested.

    `paired` is the difference on the same resamples and draws, and `p` the p-value of its test;
    None where the scores are on different resamples, or have too few draws.
    """

    points: float
    paired: Estimate | None = None
    significant: bool | None = None
    p: float | None = None

    def __str__(self) -> str:
        return f"{points(self.points, '+')}{self.mark}"

    @property
    def mark(self) -> str:
        """The mark behind the number."""
        return OPEN if self.significant is False else ""

    @property
    def within(self) -> Ends | None:
        """The 95 % interval over test units and draws."""
        return None if self.paired is None else in_points(self.paired)


def in_points(difference: Estimate) -> Ends:
    """The ends of the interval of a difference of scores, times 100."""
    low, high = interval(difference)
    return 100 * low, 100 * high


def in_percent(ratio: Ratio) -> str:
    """A ratio with its interval, if it has one: `48 % (95 % CI 20 to 71 %)`."""
    point, low, high = (round(100 * value) for value in (ratio.point, *ratio.ends))
    within = f" ({CI} {low} to {high} %)" * ratio.has_interval
    return f"{point} %{within}"


def same_resamples(lines: Sequence[Line]) -> bool:
    """Whether all lines of each task keep their scores on the same resamples."""
    designs = {(line.task, line.resamples.design) for line in lines}
    return len(designs) == len({task for task, _ in designs})


def by_task(*groups: Sequence[Line]) -> list[list[Estimate]] | None:
    """For each group of lines, the mean over the lines of each task; tasks are in sorted order.

    Lines of several sets of experts (`with_set_numbers`) are replicates; those of one set are not.
    None unless lines of a task keep the same resamples, and all groups have the same tasks: only
    then are scores paired.
    """
    if not same_resamples([line for group in groups for line in group]):
        return None
    tasks = sorted({line.task for group in groups for line in group})
    means = []
    for group in groups:
        estimates: dict[str, dict[int, list[Estimate]]] = {task: {} for task in tasks}
        for line in group:
            estimates[line.task].setdefault(line.set, []).append(line.estimate)
        if not all(estimates.values()):
            return None
        means.append(
            [
                over_sets({number: mean_of(members) for number, members in sets.items()})
                for sets in estimates.values()
            ]
        )
    return means


def mean_difference(first: Sequence[Estimate], second: Sequence[Estimate]) -> Estimate:
    """The mean over tasks of the first minus the second."""
    return mean_of(list(map(minus, first, second)))


def difference_of(first: Sequence[Line], second: Sequence[Line]) -> Estimate | None:
    """The mean over tasks of the first minus the second; None where the lines are not paired."""
    paired = by_task(first, second) if first and second else None
    return None if paired is None else mean_difference(*paired)


def task_sets(lines: Sequence[Line]) -> frozenset[tuple[str, int]]:
    """The tasks of some lines, each with the number of every set of experts that it has."""
    return frozenset((line.task, line.set) for line in lines)


def sets_of_all(several: Sequence[Collection[tuple[str, int]]]) -> set[int]:
    """The sets of experts that all models have on all of their tasks, from the `task_sets` of each:
    the mean over tasks of one set and of another are of different experts."""
    tasks = {task for pairs in several for task, _ in pairs}
    numbers = {number for pairs in several for _, number in pairs}
    return {n for n in numbers if all((task, n) in pairs for pairs in several for task in tasks)}


def significant_pairs(
    models: Sequence[Sequence[Estimate]], prior: Prior | None = None, sets: Sequence[object] = ()
) -> dict[tuple[int, int], int]:
    """The pairs of models whose means over these tasks differ significantly, each with its better
    model; Holm over all pairs.

    Variances over sets of experts are shrunk towards `prior`. Models whose `sets` are given and
    differ are not compared: they are means over other experts.
    """
    pairs = list(combinations(range(len(models)), 2))
    differences = [
        replace(mean_difference(models[first], models[second]), prior=prior)
        for first, second in pairs
    ]
    apart = [bool(sets) and sets[first] != sets[second] for first, second in pairs]
    p = [1.0 if no else p_value(one) for no, one in zip(apart, differences, strict=True)]
    adjusted = holm(p)
    return {
        pair: pair[difference.point <= 0]
        for pair, difference, p in zip(pairs, differences, adjusted, strict=True)
        if p < 1 - LEVEL
    }


def fewest_draws(lines: Sequence[Line]) -> int:
    """The smallest number of draws that a score is the mean of."""
    return min(len(line.values) for line in lines)


def enough_draws(lines: Sequence[Line]) -> bool:
    """Whether every score on drawn shots has as many draws as a test needs."""
    drawn = [line for line in lines if line.drawn]
    return not drawn or fewest_draws(drawn) >= FEWEST_DRAWS


def one_metric(lines: Sequence[Line]) -> bool:
    """Whether all lines have the same metrics: else their mean has no scale."""
    return len({line.metrics for line in lines}) == 1


def constants_of(lines: Sequence[Line]) -> list[float | None]:
    """By task, in the order of `by_task`, the best constant prediction as a fraction, if known."""
    constants = {line.task: line.majority for line in lines}
    return [None if value is None else value / 100 for _, value in sorted(constants.items())]
