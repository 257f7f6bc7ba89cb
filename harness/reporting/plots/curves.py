"""Curves of scores over a few values of x, a panel for each merge or for each task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from harness.errors import MissingScores
from harness.reporting.figures import Figure
from harness.reporting.grid import Grid, GridCell
from harness.reporting.lines import Setting
from harness.reporting.plots.marks import (
    PALE,
    along_x,
    draw_levels,
    draw_scores,
    figure_of,
    marks,
)

Curves: TypeAlias = Mapping[Setting, tuple[str, float]]
"""By setting, the name of the curve that its scores belong to, and their x."""
DODGE = 0.02
"""The shift in x between curves, as a share of its range, so that their bars do not overlap."""


def scores_along(
    scores: Grid, curves: Curves, row: str, column: str
) -> dict[str, list[tuple[float, GridCell]]]:
    """The cells of each curve of a panel, with their x, ascending."""
    cells: dict[str, list[tuple[float, GridCell]]] = {}
    for setting, (name, x) in sorted(curves.items(), key=lambda item: item[1][1]):
        cell = scores.cell(row, setting, column)
        if cell is not None:
            cells.setdefault(name, []).append((x, cell))
    return cells


def draw(
    what: str,
    scores: Grid,
    curves: Curves,
    ticks: Mapping[str, float],
    x_label: str,
    slant: float = 0,
) -> Figure:
    """A panel for the mean of every row or, of a single row, for each task; all on one scale.

    Signs are joined by lines and have bars for the spread; reference levels go across. `ticks` has
    the x of each label, `slant` turns the labels by degrees. Raises MissingScores where no row has
    a mean, as none was evaluated on all tasks.
    """
    mean, rows = scores.columns[-1], scores.models("merged", "base")
    if len(rows) > 1:
        title, spots = f"{what}, {scores.title(mean)}", {row: (row, mean) for row in rows}
    else:
        (row,) = rows
        title = f"{what}: {row}"
        spots = {scores.title(column): (row, column) for column in scores.columns_under(*curves)}
    by_spot = {name: scores_along(scores, curves, *spot) for name, spot in spots.items()}
    spots = {name: spot for name, spot in spots.items() if by_spot[name]}
    if not spots:
        raise MissingScores(
            f"no merge was evaluated on all of {len(scores.tasks)} tasks, expected one for a "
            "mean over them; name fewer with --tasks"
        )
    looks = marks(dict.fromkeys(name for name, _ in curves.values()))
    step, middle = DODGE * (max(ticks.values()) - min(ticks.values())), (len(looks) - 1) / 2
    with figure_of(title, [*spots], (2.6, 2.1), left=0.5, most=4) as (figure, panels):
        units = [scores.metric_label(column) for _, column in spots.values()]
        for axes, (name, (row, column)), unit in zip(panels, spots.items(), units, strict=True):
            for index, (curve, look) in enumerate(looks.items()):
                aside = step * (index - middle)
                cells = [(x + aside, cell) for x, cell in by_spot[name].get(curve, [])]
                options: Any = {"linestyle": look.line, "linewidth": 1.4, "along": "y"}
                if cells:
                    draw_scores(axes, cells, look, curve, scores.spread, **options)
            draw_levels(axes, scores.levels(column, row), "y")
            axes.grid(axis="y", color=PALE, linewidth=0.5)
            axes.set_xticks([*ticks.values()], [*ticks])
            if slant:
                axes.tick_params(axis="x", labelrotation=slant)
                for tick in axes.get_xticklabels():
                    tick.set(ha="right", rotation_mode="anchor")
            if len({*units}) > 1 or axes.yaxis.get_tick_params()["labelleft"]:
                axes.set_ylabel(unit)
        along_x(panels, [x_label] * len(panels))
    return figure
