"""Ranks of merges over tasks; merges that do not differ significantly are joined."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.reporting.figures import Figure
from harness.reporting.grid import Grid, grid_of_lines
from harness.reporting.lines import CURRENT, TUNED, Line, Setting
from harness.reporting.plots.marks import BLUE, GREY, SERIES, drawn_rows
from harness.reporting.plots.scores import View, headline, lacking, lines_under
from harness.stats.ranks import Standings, fewest_tasks, standings


def picture(lines: Sequence[Line], view: View) -> Figure:
    """Mean ranks of merges under Current Eval and FT-Classifier Eval, or the view's protocols.

    A bar at the right joins merges that do not differ significantly, unless it would join all;
    where no two differ, the title says so, and whether the tasks are too few.
    """
    scores = grid_of_lines(lines_under(lines, view, CURRENT, TUNED), by_method=True)
    methods, rankings = ranks(scores, view)
    tasks, fewest = len(scores.tasks), fewest_tasks(len(methods))
    title = f"Mean rank over {tasks} tasks"
    if all(len(ranking.groups) < 2 for ranking in rankings.values()):
        few = f" ({fewest} tasks or more are needed)" if tasks < fewest else ""
        title = f"{title}: no two differ significantly{few}"
    units = [(str(setting), "mean rank (1 is the best)") for setting in rankings]
    with drawn_rows(title, methods, units, 3.0) as (figure, panels, places):
        for axes, ranking in zip(panels, rankings.values(), strict=True):
            axes.set_xlim(0.6, len(methods) + 0.4)
            lows, highs = zip(*ranking.left_out, strict=True)
            axes.hlines(
                places, lows, highs, color=BLUE, linewidth=2.5, alpha=0.35, zorder=2,
                label="without one of the tasks",
            )  # fmt: skip
            axes.plot(ranking.means, places, linestyle="none", label="mean rank", **SERIES[0].dots)
            for number, tie in enumerate(ranking.ties if len(ranking.groups) > 1 else ()):
                axes.plot(
                    [1.03 + 0.035 * number] * len(tie), [places[index] for index in tie], "o-",
                    color=GREY, markersize=3.5, label="no significant difference",
                    transform=axes.get_yaxis_transform(), clip_on=False,
                )  # fmt: skip
    return figure


def ranks(scores: Grid, view: View) -> tuple[list[str], dict[Setting, Standings]]:
    """The merges that were evaluated on all tasks, the best of the first ranking first, and their
    ranking under each setting.

    Raises MissingScores unless there are two such merges and two tasks.
    """
    settings = headline(scores.settings, view.shots)
    methods = [
        row
        for row in scores.models("merged")
        if settings and all(scores.row(row, setting)[-1] for setting in settings)
    ]
    if len(methods) < 2 or len(scores.tasks) < 2:
        raise lacking(
            "ranks",
            "two or more merges that were evaluated on the same two or more tasks",
            [f"{len(methods)} on all of {len(scores.tasks)}"],
            "make them with harness evaluate of every merge on the same tasks",
        )
    best = [methods[index] for index in _ranked(scores, methods, settings[0]).order]
    return best, {setting: _ranked(scores, best, setting) for setting in settings}


def _ranked(scores: Grid, methods: Sequence[str], setting: Setting) -> Standings:
    cells = [[scores.cells[row, setting, task].mean for task in scores.tasks] for row in methods]
    return standings(scores.tasks, np.array(cells) / 100)
