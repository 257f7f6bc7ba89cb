"""Ranks of merges over tasks, with those joined that do not differ significantly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.errors import MissingScores
from harness.evaluation.records import Record
from harness.reporting.grid import PROTOCOL_ORDER, Reading
from harness.reporting.lines import TUNED
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
from harness.reporting.ranking import Standings, standings
from harness.stats.ranks import fewest_tasks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAKE = "harness evaluate of every merge on the same tasks"


@dataclass(frozen=True)
class Panel:
    """The ranking of some methods under one reading."""

    reading: Reading
    ranking: Standings


@dataclass(frozen=True)
class Ranks:
    """Rankings of the same methods over the same tasks."""

    methods: tuple[str, ...]
    tasks: int
    panels: tuple[Panel, ...]

    @property
    def few(self) -> str:
        """What is to be said of too few tasks for any two methods to differ significantly."""
        fewest = fewest_tasks(len(self.methods))
        if self.tasks >= fewest:
            return ""
        return f": too few for any two to differ significantly, {fewest} are the fewest"


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
    best = [methods[at] for at in _ranked(scores, methods, readings[0]).order]
    panels = tuple(Panel(one, _ranked(scores, best, one)) for one in readings)
    return Ranks(tuple(best), len(scores.tasks), panels)


def _complete(scores: Scores, row: str, readings: Sequence[Reading]) -> bool:
    return all((row, one, task) in scores.cells for one in readings for task in scores.tasks)


def _ranked(scores: Scores, methods: Sequence[str], reading: Reading) -> Standings:
    cells = [[scores.cells[row, reading, task].mean for task in scores.tasks] for row in methods]
    return standings(scores.tasks, np.array(cells) / 100)


def draw(shown: Ranks) -> Figure:
    """A dot for each mean rank, a bar at the right through those that do not differ."""
    heights = [height_of([method]) for method in shown.methods]
    layout = Layout(
        len(shown.panels),
        (3.0, 0.75 + sum(heights)),
        left=width_of(shown.methods),
    )
    title = f"Mean rank over {shown.tasks} tasks{shown.few}"
    with drawn(title, layout) as (figure, panels):
        places = of_rows(panels, shown.methods, heights)
        for axes, panel in zip(panels, shown.panels, strict=True):
            axes.set_xlim(0.6, len(shown.methods) + 0.4)
            for at, mean, ends in zip(
                places, panel.ranking.means, panel.ranking.left_out, strict=True
            ):
                axes.plot(ends, [at, at], color=BLUE, linewidth=2.5, alpha=0.35)
                axes.plot(mean, at, "D", color=BLUE, markersize=4.5)
            _join(axes, panel.ranking, places)
        named(panels, [str(panel.reading) for panel in shown.panels])
        units(panels, ["mean rank (1 is the best)"] * len(panels))
        legend(figure, _handles())
    return figure


def _join(axes: Axes, ranked: Standings, places: Sequence[float]) -> None:
    """Bars right of the panel, through a dot for each of the methods of a tie."""
    where = axes.get_yaxis_transform()
    for number, tie in enumerate(ranked.ties):
        x, ys = 1.03 + 0.035 * number, [places[at] for at in tie]
        how: Any = {"color": GREY, "transform": where, "clip_on": False}
        axes.plot([x, x], [min(ys), max(ys)], linewidth=1.5, **how)
        axes.plot([x] * len(ys), ys, "o", markersize=3.5, **how)


def _handles() -> list[object]:
    from matplotlib.lines import Line2D

    return [
        Line2D([], [], linestyle="none", marker="D", color=BLUE, markersize=4.5, label="mean rank"),
        Line2D([], [], color=BLUE, linewidth=2.5, alpha=0.35, label="without one of the tasks"),
        Line2D([], [], color=GREY, marker="o", markersize=3.5, label="no significant difference"),
    ]
