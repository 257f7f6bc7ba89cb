"""Pure: scores of several models on the same tasks -> their ranks, and who cannot be told apart.

What a comparison and a picture say of the same models is said here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harness.evaluation.bootstrap import LEAST
from harness.evaluation.estimates import (
    DIGITS,
    FEWEST_TASKS,
    Ends,
    Estimate,
    apart,
    drawn_alike,
    over_tasks,
    ranks,
    tie_groups,
    win_rates,
)
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


def standings(
    tasks: Sequence[str],
    scores: Array64,
    samples: Array64 | None = None,
    draws: Array64 | None = None,
    *,
    by: Literal["rank", "score"] = "rank",
) -> Standings:
    """Ranks of scores [models, tasks], equal ones sharing their mean rank.

    Models come, and are told apart, `by` their mean rank or their mean score, Holm over all pairs.
    With `samples` [models, tasks, resamples], the same on resampled rows, rows and tasks are drawn
    anew, and with `draws` [models, tasks, draws] of shots these too. Without samples tasks alone
    are, and fewer than six tell nobody apart. By hand: the scores (3, 1), (2, 2), (2, 3) of three
    models have the ranks (1, 3), (2.5, 2) and (2.5, 1), in the mean 2, 2.25 and 1.75.
    """
    by_name = np.argsort(np.asarray(tasks), kind="stable")  # whatever order tasks came in
    scores = np.round(np.asarray(scores)[:, by_name], DIGITS)
    of_tasks = ranks(scores)
    means, height = of_tasks.mean(axis=1), scores.mean(axis=1)
    first, second = (means, -height) if by == "rank" else (-height, means)
    order = sorted(range(len(means)), key=lambda place: (first[place], second[place]))
    held = np.broadcast_to(scores[:, :, None], (*scores.shape, LEAST))
    rows = held if samples is None else samples[:, by_name]
    drawn = scores[:, :, None] if draws is None else draws[:, by_name]
    ranked = _estimates(of_tasks, ranks(rows), ranks(drawn))
    compared = ranked if by == "rank" else _estimates(scores, rows, drawn)
    enough = samples is not None or len(tasks) >= FEWEST_TASKS
    known = apart(compared) if enough else set()
    return Standings(
        means=tuple(means.tolist()),
        intervals=tuple(_clipped(over_tasks(each), len(means)) for each in ranked),
        wins=tuple(win_rates(scores).tolist()),
        order=tuple(order),
        groups=tuple(tie_groups(order, known)),
        leaders=tuple(at for at in order if (*sorted((order[0], at)),) not in known),
        of_rows=samples is not None,
    )


def on_draws(values: Sequence[Sequence[Sequence[float]]]) -> Array64:
    """Scores by model, task and draw as an array, with as many draws as all have."""
    flat = drawn_alike([np.asarray(each) for of_model in values for each in of_model])
    return flat.reshape(len(values), len(values[0]), -1)


def _estimates(points: Array64, rows: Array64, draws: Array64) -> list[list[Estimate]]:
    """Of every model on every task."""
    models, tasks = points.shape
    return [
        [Estimate(float(points[m, t]), rows[m, t], draws[m, t]) for t in range(tasks)]
        for m in range(models)
    ]


def _clipped(within: Ends, models: int) -> Ends:
    """Of a rank among so many."""
    return max(1.0, within[0]), min(float(models), within[1])
