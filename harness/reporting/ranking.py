"""Pure: scores of several models on the same tasks -> their ranks, and who differs from whom.

What a comparison and a picture say of the same models is said here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harness.stats.intervals import DIGITS, Ends
from harness.stats.ranks import places, ranks, significant_pairs, tie_groups, win_rates
from harness.types import Array64


@dataclass(frozen=True)
class Standings:
    """Mean ranks over tasks, 1 the best, and shares of wins, in the order given.

    `left_out` is between which values a mean rank is without one of the tasks. `order` are the
    models best first, by number. `groups` are the longest runs of them in which no two differ
    significantly on tasks at large, `places` those that this leaves open to each model.
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
    """Ranks of scores [models, tasks], equal ones sharing their mean rank.

    Models come, and are tested, `by` their mean rank or their mean score. By hand: the scores
    (3, 1), (2, 2), (2, 3) of three models have the ranks (1, 3), (2.5, 2) and (2.5, 1), in the mean
    2, 2.25 and 1.75.
    """
    by_name = np.argsort(np.asarray(tasks), kind="stable")  # whatever order tasks came in
    scores = np.round(np.asarray(scores)[:, by_name], DIGITS)
    of_tasks = ranks(scores)
    means, height = of_tasks.mean(axis=1), scores.mean(axis=1)
    first, second = (means, -height) if by == "rank" else (-height, means)
    order = sorted(range(len(means)), key=lambda place: (first[place], second[place]))
    known = significant_pairs(of_tasks if by == "rank" else scores)
    several = len(tasks) > 1
    without = [
        np.delete(of_tasks, at, axis=1).mean(axis=1) if several else means
        for at in range(len(tasks))
    ]
    return Standings(
        means=tuple(means.tolist()),
        left_out=tuple((float(min(each)), float(max(each))) for each in np.transpose(without)),
        wins=tuple(win_rates(scores).tolist()),
        order=tuple(order),
        groups=tuple(tie_groups(order, known)),
        places=tuple(places(len(means), order, known)),
    )
