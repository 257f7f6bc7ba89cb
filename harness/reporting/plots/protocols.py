"""Current Eval against the protocols that use the same features otherwise: the gap between them.

What few shots win back of a score was in the encoder all along (FT-Classifier, Tables 2 and 3).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from harness.errors import MissingScores
from harness.reporting.difference import CI
from harness.reporting.grid import CURRENT, PROTOCOL_ORDER, Reading
from harness.reporting.lines import Line
from harness.reporting.plots.marks import (
    GREY,
    Mark,
    drawn_rows,
    height_of,
    key,
    levels,
    marks,
    named,
    whisker,
)
from harness.reporting.plots.scores import Scores, View, headline, scores_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAKE = "harness evaluate --model MODEL --protocols current,knn,ft-classifier"
BELOW, GAP = 0.11, 0.09
"""Inches: how far below a row the whisker of its gap is, and how thick the open bar of the gap."""
BACK = 0.35
"""How opaque the bars of intervals are, behind the marks."""


def picture(lines: Sequence[Line], view: View) -> Figure:
    """Merges by their Current Eval, the best first, then the base; a sign for each protocol.

    The open bar from Current Eval to the last protocol is the gap. Where records keep resamples, a
    whisker below it begins to hold none where it reaches the score under Current Eval. Raises
    MissingScores.
    """
    scores = scores_of(lines, view, *PROTOCOL_ORDER)
    known = headline(scores.grid.readings, view.shots)
    columns = scores.columns(*known)
    merges = [
        row
        for row in scores.merges
        if any(scores.cell(row, one, task) for one in known for task in scores.tasks)
    ]
    if not merges or len(known) < 2 or known[0].protocol != CURRENT:
        names = "; ".join(map(str, known)) or "none"
        raise MissingScores(
            f"protocols shows merges under current and another protocol, found {names} of "
            f"{len(merges)} merges; make them with {MAKE}"
        )
    first, last = known[0], known[-1]

    def height(row: str) -> float:
        cell = scores.cell(row, first, columns[-1])
        return float("-inf") if cell is None else cell.mean

    rows = [*sorted(merges, key=height, reverse=True), *scores.bases]
    gaps = [
        [scores.difference((row, last), (row, first), column) for row in rows] for column in columns
    ]
    paired = any(gap is not None and gap.within for each in gaps for gap in each)
    looks = marks(one.protocol for one in known)
    with drawn_rows(
        f"The same encoders under Current Eval and under {last}",
        rows,
        [(scores.title(column), scores.unit(column)) for column in columns],
        2.45,
        [height_of(rows) + (BELOW if paired else 0)] * len(rows),
    ) as (figure, panels, places):
        for axes, column, of_rows in zip(panels, columns, gaps, strict=True):
            for one in known:
                _signs(axes, scores, one, column, rows, places, looks[one.protocol])
            for row, y, gap in zip(rows, places, of_rows, strict=True):
                start = scores.cell(row, first, column)
                if gap is None or start is None:
                    continue
                axes.barh(
                    y, gap.points, GAP, left=start.mean, facecolor="none", edgecolor=GREY,
                    linewidth=0.8, zorder=1.5, label=f"gap to {last.protocol}",
                )  # fmt: skip
                if paired:
                    told = gap.within is not None and gap.significant
                    of = " of the gap, from current on"
                    whisker(axes, y + BELOW, gap, significant=told, start=start.mean, of=of)
            levels(axes, scores.levels(column), "x")
    return figure


def _signs(
    axes: Axes,
    scores: Scores,
    reading: Reading,
    column: str,
    rows: Sequence[str],
    places: Sequence[float],
    look: Mark,
) -> None:
    """A sign in every row, with the deviation over draws and the interval, if they are known."""
    cells = [(y, scores.cell(row, reading, column)) for row, y in zip(rows, places, strict=True)]
    known = [(y, cell) for y, cell in cells if cell is not None]
    means, ys = [cell.mean for _, cell in known], [y for y, _ in known]
    axes.plot(means, ys, linestyle="none", label=named(str(reading)), **look.dots)
    for y, cell in known:
        if cell.deviation is not None:
            axes.errorbar(cell.mean, y, xerr=cell.deviation, fmt="none", ecolor=look.colour,
                          elinewidth=1, capsize=2, zorder=3)  # fmt: skip
            key(axes, scores.spread, marker="|", linewidth=1)
        if cell.interval is not None:
            axes.hlines(y, *cell.interval, color=look.colour, linewidth=3, alpha=BACK, zorder=2)
            key(axes, CI, linewidth=3, alpha=BACK)
