"""Ranks of merges over tasks, with those joined that cannot be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.errors import MissingScores
from harness.evaluation.records import Record
from harness.reporting.grid import PROTOCOL_ORDER, TUNED, Reading
from harness.reporting.plots.marks import (
    BLUE,
    GREY,
    Layout,
    drawn,
    height_of,
    legend,
    named,
    of_rows,
    units,
    width_of,
)
from harness.reporting.plots.scores import Scores, View, headline, scores_of, shown
from harness.rng import rng
from harness.types import Array64

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESAMPLES = 10_000
LEVEL = 0.95
FEWEST_TASKS = 6
"""Of fewer tasks no test over tasks tells two methods apart at 5 %: if one is better on all five, a
sign test still says 2 / 2^5 = 6 %."""
MAKE = "harness evaluate of every merge on the same tasks"


@dataclass(frozen=True)
class Ranking:
    """Mean ranks over tasks, 1 the best, with their intervals, in the order they were given.

    `ties` are the largest groups, of two or more by number and best first, of which no two can be
    told apart.
    """

    means: tuple[float, ...]
    intervals: tuple[tuple[float, float], ...]
    ties: tuple[tuple[int, ...], ...]


def ranking(scores: Array64, resamples: int = RESAMPLES, seed: int = 0) -> Ranking:
    """Ranks of scores [tasks, methods], equal ones sharing their mean rank.

    Tasks are resampled: intervals are percentiles of the mean rank, and two methods cannot be told
    apart where the interval of the difference of their mean ranks holds 0, and nowhere where tasks
    are fewer than six. By hand: (3, 2, 2) and (1, 2, 3) have the ranks (1, 2.5, 2.5) and (3, 2, 1),
    in the mean 2, 2.25 and 1.75.
    """
    from scipy.stats import rankdata

    ranks = rankdata(-np.asarray(scores), axis=1)
    tasks, methods = ranks.shape
    drawn = rng(seed, "ranks", tasks, methods).integers(tasks, size=(resamples, tasks))
    resampled = ranks[drawn].mean(axis=1)  # [resamples, methods]
    low, high = _between(resampled)
    apart = np.zeros((methods, methods), dtype=bool)
    for at in range(methods):
        under, over = _between(resampled - resampled[:, [at]])
        apart[at] = (tasks >= FEWEST_TASKS) & ((under > 0) | (over < 0))
    means = ranks.mean(axis=0)
    return Ranking(
        tuple(means.tolist()),
        tuple(zip(low.tolist(), high.tolist(), strict=True)),
        _ties(np.argsort(means, kind="stable").tolist(), apart),
    )


def _between(values: Array64) -> Array64:
    """The ends of the interval in which the middle values of each column lie, [2, columns]."""
    tail = (1 - LEVEL) / 2
    return np.asarray(np.quantile(values, [tail, 1 - tail], axis=0))


def _ties(order: Sequence[int], apart: Array64) -> tuple[tuple[int, ...], ...]:
    """The longest runs of methods in order of rank of which no two are apart."""
    groups: list[tuple[int, ...]] = []
    for start in range(len(order)):
        end = start + 1
        while (
            end < len(order)
            and not apart[np.ix_(order[start : end + 1], order[start : end + 1])].any()
        ):
            end += 1
        group = tuple(order[start:end])
        if len(group) > 1 and not any({*group} <= {*other} for other in groups):
            groups.append(group)
    return tuple(groups)


# The picture -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Panel:
    """The ranking of some methods under one reading."""

    reading: Reading
    ranking: Ranking


@dataclass(frozen=True)
class Ranks:
    """Rankings of the same methods over the same tasks."""

    methods: tuple[str, ...]
    tasks: int
    panels: tuple[Panel, ...]


def picture(records: Sequence[Record], view: View) -> Figure:
    """Mean ranks of merges under Current Eval and FT-Classifier Eval, or the view's protocols."""
    return draw(ranks(records, view))


def ranks(records: Sequence[Record], view: View) -> Ranks:
    """Rankings of the merges that were read on all tasks, the best of the first reading first.

    Raises MissingScores without two of them, or two tasks.
    """
    scores = scores_of(shown(records, view))
    readings = [
        one
        for one in headline(scores.readings, view.shots)
        if view.protocols or one.protocol in (PROTOCOL_ORDER[0], TUNED)
    ]
    methods = [row for row in scores.merges if readings and _complete(scores, row, readings)]
    if len(methods) < 2 or len(scores.tasks) < 2:
        raise MissingScores(
            f"ranks shows two or more merges that were read on the same two or more tasks, found "
            f"{len(methods)} on all of {len(scores.tasks)}; make them with {MAKE}"
        )
    panels = [Panel(one, ranking(_matrix(scores, methods, one))) for one in readings]
    means = panels[0].ranking.means
    best = sorted(range(len(methods)), key=lambda at: means[at])
    again = [methods[at] for at in best]
    panels = [Panel(one, ranking(_matrix(scores, again, one))) for one in readings]
    return Ranks(tuple(again), len(scores.tasks), tuple(panels))


def _complete(scores: Scores, row: str, readings: Sequence[Reading]) -> bool:
    return all((row, one, task) in scores.cells for one in readings for task in scores.tasks)


def _matrix(scores: Scores, methods: Sequence[str], reading: Reading) -> Array64:
    return np.array(
        [[scores.cells[row, reading, task].mean for row in methods] for task in scores.tasks]
    )


def draw(shown: Ranks) -> Figure:
    """A dot for each mean rank with its interval; a bar at the right joins those of a tie."""
    layout = Layout(
        len(shown.panels),
        (3.0, 0.75 + height_of(shown.methods) * len(shown.methods)),
        left=width_of(shown.methods),
    )
    few = f": fewer than {FEWEST_TASKS} tell no two apart"
    title = f"Mean rank over {shown.tasks} tasks{few if shown.tasks < FEWEST_TASKS else ''}"
    with drawn(title, layout) as (figure, panels):
        of_rows(panels, shown.methods)
        for axes, panel in zip(panels, shown.panels, strict=True):
            axes.set_xlim(0.6, len(shown.methods) + 0.4)
            for at, (mean, interval) in enumerate(
                zip(panel.ranking.means, panel.ranking.intervals, strict=True)
            ):
                axes.plot(interval, [at, at], color=BLUE, linewidth=2.5, alpha=0.35)
                axes.plot(mean, at, "D", color=BLUE, markersize=4.5)
            _join(axes, panel.ranking)
        named(panels, [str(panel.reading) for panel in shown.panels])
        units(panels, ["mean rank (1 is the best)"] * len(panels))
        legend(figure, _handles())
    return figure


def _join(axes: Axes, ranked: Ranking) -> None:
    """Bars right of the panel, through a dot for each of the methods of a tie."""
    where = axes.get_yaxis_transform()
    for number, tie in enumerate(ranked.ties):
        x = 1.03 + 0.035 * number
        axes.plot(
            [x, x], [min(tie), max(tie)], color=GREY, linewidth=1.5, transform=where, clip_on=False
        )
        axes.plot(
            [x] * len(tie), tie, "o", color=GREY, markersize=3.5, transform=where, clip_on=False
        )


def _handles() -> list[object]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], linestyle="none", marker="D", color=BLUE, markersize=4.5, label="mean rank"),
        Line2D([], [], color=BLUE, linewidth=2.5, alpha=0.35, label="95 % interval over tasks"),
        Line2D([], [], color=GREY, marker="o", markersize=3.5, label="cannot be told apart"),
    ]
