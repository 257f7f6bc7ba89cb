"""Ranks of merges over tasks, with those joined that cannot be told apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from harness.errors import MissingScores
from harness.evaluation.inference import (
    FEWEST_TASKS,
    LEVEL,
    RESAMPLES,
    apart,
    ends,
    over_tasks,
    tie_groups,
)
from harness.evaluation.inference import ranks as rank
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
from harness.types import Array64

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INTERVAL = f"{100 * LEVEL:.0f} % interval over tasks"
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


def ranking(scores: Array64) -> Ranking:
    """Ranks of scores [methods, tasks], equal ones sharing their mean rank.

    Tasks are drawn anew, their rows held: two methods cannot be told apart where a paired bootstrap
    of their mean ranks does not, Holm over all pairs, and nowhere where tasks are fewer than six.
    By hand: the scores (3, 1), (2, 2), (2, 3) of three methods have the ranks (1, 3), (2.5, 2) and
    (2.5, 1), in the mean 2, 2.25 and 1.75.
    """
    of_tasks = rank(np.asarray(scores))
    methods, tasks = of_tasks.shape
    samples = np.broadcast_to(of_tasks[:, :, None], (methods, tasks, RESAMPLES))
    known = apart(samples) if tasks >= FEWEST_TASKS else set()
    means = of_tasks.mean(axis=1)
    groups = tie_groups(np.argsort(means, kind="stable").tolist(), known)
    return Ranking(
        tuple(means.tolist()),
        tuple(ends(sample) for sample in over_tasks(samples)),
        tuple(group for group in groups if len(group) > 1),
    )


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
        [[scores.cells[row, reading, task].mean for task in scores.tasks] for row in methods]
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
        Line2D([], [], color=BLUE, linewidth=2.5, alpha=0.35, label=INTERVAL),
        Line2D([], [], color=GREY, marker="o", markersize=3.5, label="cannot be told apart"),
    ]
