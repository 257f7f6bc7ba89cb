"""Ranks of merges over tasks, with those joined that do not differ significantly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from harness.reporting.grid import Grid
from harness.reporting.lines import CURRENT, TUNED, Line, Setting
from harness.reporting.plots.marks import BLUE, GREY, SERIES, drawn_rows
from harness.reporting.plots.scores import View, headline, lacking, scores_of
from harness.stats.ranks import Standings, fewest_tasks, standings

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Ranks:
    """Rankings of the same methods over the same tasks, by how they were evaluated."""

    methods: tuple[str, ...]
    tasks: int
    rankings: Mapping[Setting, Standings]

    @property
    def title(self) -> str:
        """What ranks are over, and why no two methods differ significantly, where none do."""
        title = f"Mean rank over {self.tasks} tasks"
        if any(len(one.groups) > 1 for one in self.rankings.values()):
            return title
        fewest = fewest_tasks(len(self.methods))
        few = f" ({fewest} tasks are the fewest for that)" if self.tasks < fewest else ""
        return f"{title}: no two differ significantly{few}"


def picture(lines: Sequence[Line], view: View) -> Figure:
    """Mean ranks of merges under Current Eval and FT-Classifier Eval, or the view's protocols.

    A bar at the right joins those that do not differ significantly, unless it would join all.
    """
    shown = ranks(lines, view)
    units = [(str(one), "mean rank (1 is the best)") for one in shown.rankings]
    with drawn_rows(shown.title, shown.methods, units, 3.0) as (figure, panels, places):
        for axes, ranking in zip(panels, shown.rankings.values(), strict=True):
            axes.set_xlim(0.6, len(shown.methods) + 0.4)
            lows, highs = zip(*ranking.left_out, strict=True)
            axes.hlines(
                places, lows, highs, color=BLUE, linewidth=2.5, alpha=0.35, zorder=2,
                label="without one of the tasks",
            )  # fmt: skip
            axes.plot(ranking.means, places, linestyle="none", label="mean rank", **SERIES[0].dots)
            some = ranking.ties if len(ranking.groups) > 1 else ()
            for number, tie in enumerate(some):
                how: Any = {"transform": axes.get_yaxis_transform(), "clip_on": False}
                axes.plot(
                    [1.03 + 0.035 * number] * len(tie), [places[at] for at in tie], "o-",
                    color=GREY, markersize=3.5, label="no significant difference", **how,
                )  # fmt: skip
    return figure


def ranks(lines: Sequence[Line], view: View) -> Ranks:
    """Rankings of the merges that were evaluated on all tasks, the best of the first one first.

    Raises MissingScores without two of them, or two tasks.
    """
    scores = scores_of(lines, view, CURRENT, TUNED)
    known = headline(scores.settings, view.shots)
    methods = [
        row
        for row in scores.models("merged")
        if known and all(scores.row(row, one)[-1] for one in known)
    ]
    if len(methods) < 2 or len(scores.tasks) < 2:
        raise lacking(
            "ranks",
            "two or more merges that were evaluated on the same two or more tasks",
            [f"{len(methods)} on all of {len(scores.tasks)}"],
            "make them with harness evaluate of every merge on the same tasks",
        )
    best = [methods[at] for at in _ranked(scores, methods, known[0]).order]
    return Ranks(tuple(best), len(scores.tasks), {one: _ranked(scores, best, one) for one in known})


def _ranked(scores: Grid, methods: Sequence[str], setting: Setting) -> Standings:
    cells = [[scores.cells[row, setting, task].mean for task in scores.tasks] for row in methods]
    return standings(scores.tasks, np.array(cells) / 100)
