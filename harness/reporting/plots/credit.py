"""Where the score goes: from the base under the tuned head to the experts, merge by merge.

Definitions are in docs/methods.md#where-the-score-goes-and-credit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.errors import MissingScores
from harness.reporting.boards.board import board_of
from harness.reporting.boards.credit import Credits, MergeCredit, ScorePart
from harness.reporting.boards.credit_table import (
    UNDEFINED,
    interval_text,
    range_over_tasks,
    shaded_percent,
)
from harness.reporting.difference import CI
from harness.reporting.figures import Axes, Figure, wrapped_title
from harness.reporting.lines import CURRENT, TUNED, Line
from harness.reporting.plots.marks import (
    BLACK,
    GREY,
    ORANGE,
    PALE,
    RIM,
    add_legend_entry,
    drawn_rows,
    height_of,
    name_in_lines,
    width_of,
)
from harness.reporting.plots.scores import View
from harness.reporting.sentences import span
from harness.text import plain, points

MAKE = "harness evaluate --model MODEL --experts E1,E2 --protocols current,ft-classifier"
TITLE = "Where the score goes"
BAR = 0.15
"""The thickness of a bar, in inches."""
WIDTHS, COLUMNS, MOVE = (3.9, 3.1), (0.4, 1.1, 2.0, 2.85), 0.9
"""Inches: the widths of bars and of numbers, where columns of numbers are, the length of moves."""
NAVY, MID, LIGHT = "#08306B", "#4292C6", "#EBEBEB"
"""Each is about three times as light as the one before, so they differ in grey as well."""
PARTS: dict[ScorePart, dict[str, Any]] = {
    "base": {"color": LIGHT, "label": "base under the tuned head"},
    "own": {"color": NAVY, "label": "Current Eval (experts' heads)"},
    "tuned": {"color": MID, "label": "only a tuned head"},
    "above": {
        "facecolor": NAVY,
        "edgecolor": RIM,
        "hatch": "////",
        "label": "Current Eval above the tuned head",
    },
    "below": {"facecolor": RIM, "edgecolor": BLACK, "hatch": "xxxx", "label": "below the base"},
    "lost": {"facecolor": "none", "edgecolor": GREY, "label": "lost"},
}
"""The parts of a bar; neighbours differ in lightness, hatch or outline."""
MOVES: dict[str, Any] = {
    "grey": {"color": PALE, "linewidth": 1},
    "low": {"color": NAVY, "linewidth": 2, "label": "▼ Current Eval ranks it too low"},
    "high": {
        "color": ORANGE,
        "linewidth": 2,
        "linestyle": "--",
        "label": "▲ Current Eval ranks it too high",
    },
}
"""Lines from the place by credit to that under Current Eval; significant reversals stand out."""


def picture(lines: Sequence[Line], view: View) -> Figure:
    """A bar for each merge in the order of credit, its numbers, and its place under Current Eval.

    Raises MissingScores where records lack a score that credit is made of.
    """
    used = [
        line
        for line in lines
        if line.protocol in (CURRENT, TUNED) and line.shots in (0, view.shots or line.shots)
    ]
    board = board_of(used)
    if board.credits is None:
        raise MissingScores(
            f"credit shows merges, their experts and base under {CURRENT} and {TUNED} with three "
            f"draws or more, found no such merge; make them with {MAKE}"
        )
    column = board.scores.columns[-1]
    counts = {line.rows for line in board.tasks.values()}
    suffix = " each" if len(board.tasks) > 1 else ""
    rows = f", {counts.pop():,} test rows{suffix}" if len(counts) == 1 else ""
    unit, title = board.scores.metric_label(column), board.scores.title(column)
    return draw(board.credits, f"{unit}, {title}{rows}")


def draw(credits: Credits, unit: str) -> Figure:
    """Bars, the numbers beside them, and lines between the two places; the finding on top."""
    merges = credits.merges
    names = [merge.name for merge in merges]
    by_current = iter(
        sorted((merge for merge in merges if merge.current_place), key=lambda merge: -merge.current)
    )
    beside = [next(by_current).name if merge.current_place else merge.name for merge in merges]
    widths = (*WIDTHS, 2.1 + max(width_of(names), 1.4))
    with drawn_rows(
        TITLE,
        names,
        [("", _axis(credits, unit)), ("", ""), ("", "")],
        sum(widths) / len(widths),
        [max(height_of(pair), 0.26) for pair in zip(names, beside, strict=True)],
        sharex=False,
        width_ratios=widths,
    ) as (figure, (bars, numbers, moves), places):
        _bars(bars, credits, places)
        for axes, width in zip((numbers, moves), widths[1:], strict=True):
            axes.set_xlim(0, width)
            axes.set_axis_off()
        bold: Any = {"va": "bottom", "fontweight": "bold"}
        _row(numbers, 0, COLUMNS, ["credit, %", CI, "by task", "place"], **bold)
        for merge, y in zip(merges, places, strict=True):
            place = span(merge.place) or UNDEFINED
            percent, ends = shaded_percent(merge.credit)[0], interval_text(merge.credit)
            _row(numbers, y, COLUMNS, [percent, ends, range_over_tasks(merge), place])
        inside = {y: merge for merge, y in zip(merges, places, strict=True) if merge.current_place}
        if inside:
            _row(moves, 0, (1.0,), ["place and score under Current Eval"], ha="left", **bold)
            _moves(moves, [*inside.values()], [*inside])
        finding = "\n".join(wrapped_title(plain(text), sum(widths)) for text in credits.finding)
        aside = (0.35 - width_of(names)) / WIDTHS[0]
        bars.set_title(finding, loc="left", fontsize=9, x=aside, pad=24, linespacing=1.4)
        figure.set_figheight(figure.get_figheight() + 0.7 + 0.19 * finding.count("\n"))
        figure.suptitle(TITLE, x=0.01, ha="left", fontsize=13, fontweight="bold")
    return figure


def _axis(credits: Credits, unit: str) -> str:
    """The label of the axis: the unit, scores that all bars share, and merges left out."""
    shared = [f"{name} {points(value)}" for name, value in credits.shared.items()]
    others = f"; {credits.others} more merges score lower" if credits.others else ""
    last = f"{', '.join(shared)}; tuned head: {plain(credits.setting)}{others}"
    return "\n".join(filter(None, (unit, last, credits.left_out)))


def _bars(axes: Axes, credits: Credits, places: Sequence[float]) -> None:
    """Draw the parts of each score, with the interval of its credit."""
    axes.set_xlim(*credits.axis)
    for merge, y in zip(credits.merges, places, strict=True):
        for part, start, end in merge.parts(credits.axis[0]):
            axes.barh(y, end - start, BAR, left=start, **PARTS[part])
        if merge.ends:
            axes.hlines(y, *merge.ends, color=RIM, linewidth=2.5, zorder=5)
            axes.hlines(y, *merge.ends, color=BLACK, linewidth=1, zorder=5)
            add_legend_entry(axes, CI, linewidth=1)


def _row(
    axes: Axes, y: float, columns: Sequence[float], texts: Sequence[str], **options: Any
) -> None:
    for x, text in zip(columns, texts, strict=True):
        axes.text(x, y, text, **{"ha": "center", "va": "center", "fontsize": 8, **options})


def _moves(axes: Axes, merges: Sequence[MergeCredit], places: Sequence[float]) -> None:
    """Draw lines from places by credit to places under Current Eval, with names at the right."""
    for merge, y in zip(sorted(merges, key=lambda merge: -merge.current), places, strict=True):
        start = places[merges.index(merge)]
        low, high = merge.too_low and y > start, merge.too_high and y < start
        axes.plot([0, MOVE], [start, y], **MOVES["low" if low else "high" if high else "grey"])
        _row(axes, y, (1.3, 1.85), [span(merge.current_place), points(merge.current)])
        turned = {"▼": merge.too_low, "▲": merge.too_high}
        signs = [f" {sign}{count}" for sign, count in turned.items() if count]
        _row(axes, y, (2.1,), [name_in_lines(merge.name) + "".join(signs)], ha="left")
