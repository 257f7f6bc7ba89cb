"""What a method before merging adds to the same merger without it (Procrustes, Figures 2 and 3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from harness.reporting.boards.board import folded, same_rows
from harness.reporting.boards.tested import counterparts, gained
from harness.reporting.difference import OPEN, Difference
from harness.reporting.figures import wrapped
from harness.reporting.grid import Grid, GridCell, GridPlace
from harness.reporting.lines import CURRENT, Line, Setting
from harness.reporting.plots.marks import BLACK, Mark, drawn_rows, height_of, key, marks, whisker
from harness.reporting.plots.scores import View, lacking, one_setting, scores_of
from harness.stats.intervals import Ends
from harness.text import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PALE = 0.35
"""How much is seen of a bar that is not significant."""
BAR, CLOSER = 0.14, 0.05
"""Inches: how thick a bar is, and how much closer bars of a merger stand than other rows."""


@dataclass(frozen=True)
class Added:
    """What a method before merging adds.

    Without an interval, with its `deviation` over draws, if there are any: draws are those of the
    same rows with it and without.
    """

    gain: Difference
    deviation: float = 0.0

    @property
    def span(self) -> Ends:
        """From where to where anything is drawn of it, beside its bar."""
        value = self.gain.points
        ends = value - self.deviation, value + self.deviation, *(self.gain.within or ())
        return min(ends), max(ends)

    @property
    def changes(self) -> bool:
        """Whether any score is another one, on the rows or on resampled ones."""
        paired = self.gain.paired
        return self.span != (0, 0) if paired is None else bool(paired.resamples.any())


@dataclass(frozen=True)
class Gains:
    """By row, its merger and what comes before it; by row and column, what that adds."""

    scores: Grid
    setting: Setting
    rows: dict[str, tuple[str, str]]
    added: dict[tuple[str, str], Added]

    @property
    def silent(self) -> list[str]:
        """Rows that change no score at all, if any does."""
        some = {row for (row, _), one in self.added.items() if one.changes}
        return [row for row in self.rows if some and row not in some]


def picture(lines: Sequence[Line], view: View) -> Figure:
    """Gains of all that goes before merging, by merger and task."""
    return draw(gains(lines, view))


def gains(lines: Sequence[Line], view: View) -> Gains:
    """How far merges with something before them are above the same without it.

    Under Current Eval, unless the view names another protocol. Raises MissingScores without pairs.
    """
    scores = scores_of(lines, view, CURRENT)
    over = counterparts(scores.of_row)
    if not over:
        raise lacking(
            "gains",
            "merges with something before them beside the same without",
            [f"no such pair among {', '.join(scores.models('merged')) or 'no merges'}"],
            "make them with harness merge EXPERTS --merger M --out MERGED, once with --premerge P "
            "and once without, and harness evaluate of both",
        )
    setting = one_setting("gains", scores, view)
    known = _as_on_boards(scores, over)
    added = {
        (row, column): _added(scores, setting, row, over[row], column, known[row, setting, column])
        for row in over
        for column in scores.columns_under(setting)
        if (row, setting, column) in known
    }
    mergers = [*dict.fromkeys(over.values())]
    rows = {
        row: (merger, _before(scores.of_row[row], scores.of_row[merger]))
        for row, merger in sorted(over.items(), key=lambda pair: mergers.index(pair[1]))
        if any((row, column) in added for column in scores.columns)
    }
    return Gains(scores, setting, rows, added)


def _as_on_boards(scores: Grid, over: Mapping[str, str]) -> dict[GridPlace, Difference]:
    """Gains; which are significant is tested among rows as boards have them: once of equal ones."""
    called = same_rows(scores)
    pairs = {called.get(row, row): called.get(other, other) for row, other in over.items()}
    apart = {row: other for row, other in pairs.items() if row != other}
    tested = gained(folded(scores, called), apart)
    return {
        at: replace(
            one, significant=tested.get((called.get(at[0], at[0]), *at[1:]), one).significant
        )
        for at, one in gained(scores, over).items()
    }


def _before(line: Line, without: Line) -> str:
    """The stages before merging that another method lacks."""
    return "+".join(line.premerge[: len(line.premerge) - len(without.premerge)])


def _added(
    scores: Grid, setting: Setting, row: str, merger: str, column: str, gain: Difference
) -> Added:
    if gain.paired is not None:
        return Added(gain)
    cells = [scores.cell(one, setting, column) for one in (row, merger)]
    values = [cell.values for cell in cells if cell is not None]
    if len({len(one) for one in values}) > 1:
        return Added(gain)
    paired = tuple(one - other for one, other in zip(*values, strict=True))
    return Added(gain, GridCell(paired).deviation or 0.0)


def draw(shown: Gains) -> Figure:
    """Bars from zero below the name of each merger; whiskers where records say how far."""
    bars = {row: pair for row, pair in shown.rows.items() if row not in shown.silent}
    rows: list[tuple[str, str | None]] = []
    for merger, group in groupby(bars, key=lambda row: bars[row][0]):
        rows += [(merger, None), *((bars[row][1], row) for row in group)]
    heights = [height_of([name]) - (0 if row is None else CLOSER) for name, row in rows]
    columns = shown.scores.columns_under(shown.setting)
    title = f"Gain over the same merger without, under {shown.setting}"
    looks = marks(dict.fromkeys(before for _, before in bars.values()))
    with drawn_rows(
        title if len(columns) == 1 else f"{title} (each panel on a scale of its own)",
        [name for name, _ in rows],
        [(shown.scores.title(one), shown.scores.unit(one)) for one in columns],
        1.9,
        heights,
        most=6,
        sharex=False,
    ) as (figure, panels, places):
        for axes, column in zip(panels, columns, strict=True):
            axes.axvline(0, color=BLACK, linewidth=1)
            axes.margins(x=0.35)  # room for the numbers at the ends of the bars
            axes.use_sticky_edges = False
            names = axes.get_yticklabels()  # none but in the first column
            for (_, row), name in zip(rows, names, strict=False):
                name.set_fontweight("bold" if row is None else "normal")
            for (before, row), y in zip(rows, places, strict=True):
                if row is not None and (row, column) in shown.added:
                    _bar(axes, shown, shown.added[row, column], y, looks[before])
        if shown.silent:
            figure.supxlabel(wrapped(_said(shown), figure.get_figwidth()), fontsize=8)
    return figure


def _said(shown: Gains) -> str:
    """What is exactly zero everywhere, by merger."""
    parts = [
        f"{', '.join(shown.rows[row][1] for row in group)} before {merger}"
        for merger, group in groupby(shown.silent, key=lambda row: shown.rows[row][0])
    ]
    return plain(f"Not drawn, as they change no score at all: {'; '.join(parts)}")


def _bar(axes: Axes, shown: Gains, one: Added, y: float, look: Mark) -> None:
    unsure = one.gain.significant is False
    axes.barh(
        y,
        one.gain.points,
        height=BAR,
        facecolor=look.colour,
        edgecolor="white" if look.hatch else look.colour,
        hatch=look.hatch,
        linewidth=0,
        alpha=PALE if unsure else 1,
    )
    if unsure:
        key(axes, f"{OPEN} and pale: not significant", linewidth=6, alpha=PALE)
    if one.gain.paired is not None:
        whisker(axes, y, one.gain)
    elif one.deviation:
        axes.errorbar(
            one.gain.points, y, xerr=one.deviation, fmt="none", ecolor=BLACK, elinewidth=1,
            capsize=2, label=shown.scores.spread,
        )  # fmt: skip
    right = one.gain.points >= 0
    axes.annotate(
        str(one.gain),
        (one.span[right], y),
        (4 if right else -4, 0),
        textcoords="offset points",
        ha="left" if right else "right",
        va="center",
        fontsize=8,
    )
