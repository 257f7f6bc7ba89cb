"""Pure: scores of several models on the same tasks -> their ranks, and who cannot be told apart.

What a comparison and a picture say of the same models is said here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.evaluation.inference import (
    DIGITS,
    FEWEST_TASKS,
    RESAMPLES,
    apart,
    ends,
    over_tasks,
    ranks,
    tie_groups,
    win_rates,
)
from harness.reporting.difference import Ends
from harness.types import Array64


@dataclass(frozen=True)
class Standings:
    """Mean ranks over tasks, 1 the best, with intervals and shares of wins, in the order given.

    `order` are the models best first, by number. `groups` are the longest runs of them in which no
    two can be told apart, `leaders` the first and all that cannot be told from it. `of_rows`: test
    rows were drawn anew and not only tasks.
    """

    means: tuple[float, ...]
    intervals: tuple[Ends, ...]
    wins: tuple[float, ...]
    order: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]
    leaders: tuple[int, ...]
    of_rows: bool

    @property
    def ties(self) -> tuple[tuple[int, ...], ...]:
        """The groups of two or more."""
        return tuple(group for group in self.groups if len(group) > 1)


def standings(tasks: Sequence[str], scores: Array64, samples: Array64 | None = None) -> Standings:
    """Ranks of scores [models, tasks], equal ones sharing their mean rank.

    With `samples` [models, tasks, resamples], the same on resampled rows, rows and tasks are drawn
    anew: models cannot be told apart where a paired bootstrap of their mean scores does not, Holm
    over all pairs. Without, tasks alone are, it is of mean ranks, and fewer than six tell nobody
    apart. By hand: the scores (3, 1), (2, 2), (2, 3) of three models have the ranks (1, 3),
    (2.5, 2) and (2.5, 1), in the mean 2, 2.25 and 1.75.
    """
    by_name = np.argsort(np.asarray(tasks), kind="stable")  # whatever order tasks came in
    scores = np.round(np.asarray(scores)[:, by_name], DIGITS)
    of_tasks = ranks(scores)
    means, height = of_tasks.mean(axis=1), scores.mean(axis=1)
    order = sorted(range(len(means)), key=lambda place: (means[place], -height[place]))
    if samples is None:
        drawn = np.broadcast_to(of_tasks[:, :, None], (*of_tasks.shape, RESAMPLES))
        known = apart(drawn) if len(tasks) >= FEWEST_TASKS else set()
    else:
        drawn = ranks(samples[:, by_name])
        known = apart(samples[:, by_name])
    return Standings(
        means=tuple(means.tolist()),
        intervals=tuple(ends(sample) for sample in over_tasks(drawn)),
        wins=tuple(win_rates(scores).tolist()),
        order=tuple(order),
        groups=tuple(tie_groups(order, known)),
        leaders=tuple(at for at in order if (*sorted((order[0], at)),) not in known),
        of_rows=samples is not None,
    )
