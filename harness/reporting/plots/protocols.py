"""The gap between Current Eval and other protocols on the same features.

What few shots win back of a score was in the encoder all along (FT-Classifier, Tables 2 and 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.reporting.boards.board import scores_of
from harness.reporting.boards.tested import gaps
from harness.reporting.difference import CI
from harness.reporting.figures import Figure
from harness.reporting.lines import CURRENT, PROTOCOL_ORDER, Line
from harness.reporting.plots.marks import (
    GREY,
    add_legend_entry,
    draw_levels,
    draw_scores,
    drawn_rows,
    height_of,
    marks,
    whisker,
)
from harness.reporting.plots.scores import View, headline, lacking, lines_under

BELOW, GAP = 0.11, 0.09
"""Inches: the distance of a gap's whisker below its row, and the thickness of the gap's bar."""
BAND: Any = {"linewidth": 3, "alpha": 0.35}
"""The look of intervals, behind the signs."""


def picture(lines: Sequence[Line], view: View) -> Figure:
    """Merges by their Current Eval, the best first, then the base; a sign for each protocol.

    The open bar from Current Eval to the last protocol is the gap, with a whisker; it is tested as
    on a board. Raises MissingScores without merges under Current Eval and another protocol.
    """
    scores = scores_of(lines_under(lines, view, *PROTOCOL_ORDER))
    settings = headline(scores.settings, view.shots)
    columns = scores.columns_under(*settings)
    merges = [
        row
        for row in scores.models("merged")
        if any(scores.cell(row, setting, task) for setting in settings for task in scores.tasks)
    ]
    if not merges or len(settings) < 2 or settings[0].protocol != CURRENT:
        raise lacking(
            "protocols",
            "merges under current and another protocol",
            [*settings, f"{len(merges)} merges"],
            "make them with harness evaluate --model MODEL --protocols current,knn,ft-classifier",
        )
    first, last = settings[0], settings[-1]

    def height(row: str) -> float:
        cell = scores.cell(row, first, columns[-1])
        return float("-inf") if cell is None else cell.mean

    rows = [*sorted(merges, key=height, reverse=True), *scores.models("base")]
    known_gaps = gaps(scores, scores.line_of_row, first, last)
    looks = marks(setting.protocol for setting in settings)
    with drawn_rows(
        f"The same encoders under Current Eval and under {last}",
        rows,
        [(scores.title(column), scores.metric_label(column)) for column in columns],
        2.45,
        [height_of(rows) + BELOW] * len(rows),
    ) as (figure, panels, places):
        for axes, column in zip(panels, columns, strict=True):
            for setting in settings:
                look = looks[setting.protocol]
                cells = [
                    (y, cell)
                    for row, y in zip(rows, places, strict=True)
                    if (cell := scores.cell(row, setting, column))
                ]
                draw_scores(
                    axes, cells, look, str(setting), scores.spread, along="x", linestyle="none"
                )
                for y, cell in cells:
                    if cell.interval is not None:
                        axes.hlines(y, *cell.interval, color=look.colour, zorder=2, **BAND)
                        add_legend_entry(axes, CI, **BAND)
            for row, y in zip(rows, places, strict=True):
                gap, start = known_gaps.get((row, column)), scores.cell(row, first, column)
                if gap and start:
                    axes.barh(
                        y, gap.points, GAP, left=start.mean, facecolor="none", edgecolor=GREY,
                        linewidth=0.8, zorder=1.5, label=f"gap to {last.protocol}",
                    )  # fmt: skip
                    whisker(axes, y + BELOW, gap, start.mean, " of the gap, from current on")
            draw_levels(axes, scores.levels(column), "x")
    return figure
