"""Where the score goes: from the base under the tuned head to the experts, merge by merge.

Definitions are in docs/methods.md#where-the-score-goes-and-credit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness.errors import MissingScores
from harness.reporting.boards.board import board_of
from harness.reporting.boards.credit import Credits, Merge
from harness.reporting.boards.credit_table import UNDEFINED, over_tasks
from harness.reporting.difference import CI
from harness.reporting.figures import wrapped
from harness.reporting.lines import CURRENT, TUNED, Line
from harness.reporting.plots.marks import (
    BLACK,
    GREY,
    ORANGE,
    PALE,
    RIM,
    broken,
    drawn_rows,
    height_of,
    key,
    width_of,
)
from harness.reporting.plots.scores import View
from harness.reporting.sentences import span
from harness.reporting.verdict import LEAST
from harness.text import plain, points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAKE = "harness evaluate --model MODEL --experts E1,E2 --protocols current,ft-classifier"
TITLE = "Where the score goes"
BAR = 0.15
"""Inches: how thick a bar is."""
WIDTHS, COLUMNS, MOVE = (3.9, 3.1), (0.4, 1.1, 2.0, 2.85), 0.9
"""Inches: bars and numbers, the columns of numbers, and the lines from place to place."""
NAVY, MID, LIGHT = "#08306B", "#4292C6", "#EBEBEB"
"""Each about three times as light as the one before, and so told apart in grey as well."""
BASE, OWN, HEAD = "base under the tuned head", "the experts' own heads", "only a tuned head"
ABOVE, BELOW, LOST = "own heads above the tuned one", "below the base", "lost"
PARTS: dict[str, Any] = {
    BASE: {"color": LIGHT},
    OWN: {"color": NAVY},
    HEAD: {"color": MID},
    ABOVE: {"facecolor": NAVY, "edgecolor": RIM, "hatch": "////"},
    BELOW: {"facecolor": RIM, "edgecolor": BLACK, "hatch": "xxxx"},
    LOST: {"facecolor": "none", "edgecolor": GREY},
}
"""What a bar is made of, in this order; neighbours differ in lightness, a hatch or an outline."""
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
"""Lines to the place under Current Eval; only moves of significant reversals stand out."""


def picture(lines: Sequence[Line], view: View) -> Figure:
    """A bar for each merge in the order of credit, its numbers, and its place under Current Eval.

    Raises MissingScores where records do not say what credit is made of.
    """
    wanted = [
        line
        for line in lines
        if line.protocol in (CURRENT, TUNED) and line.shots in (0, view.shots or line.shots)
    ]
    board = board_of(wanted)
    if board.credits is None:
        raise MissingScores(
            f"credit shows merges, their experts and base under {CURRENT} and {TUNED} with three "
            f"draws or more, with resamples of all of them, found no such merge; make them with "
            f"{MAKE}"
        )
    column = board.scores.columns[-1]
    counts = {line.rows for line in board.tasks.values()}
    each = " each" if len(board.tasks) > 1 else ""
    rows = f", {counts.pop():,} test rows{each}" if len(counts) == 1 else ""
    unit, title = board.scores.unit(column), board.scores.title(column)
    return draw(board.credits, f"{unit}, {title}{rows}")


def draw(credits: Credits, unit: str) -> Figure:
    """Bars, the numbers beside them, and lines from place to place; the finding on top."""
    merges = credits.merges
    names = [one.name for one in merges]
    widths = (*WIDTHS, 2.1 + max(width_of(names), 1.4))
    with drawn_rows(
        TITLE,
        names,
        [("", _axis(credits, unit)), ("", ""), ("", "")],
        sum(widths) / len(widths),
        [max(height_of([name]), 0.26) for name in names],
        sharex=False,
        width_ratios=widths,
    ) as (figure, (bars, numbers, moves), places):
        _bars(bars, credits, places)
        for axes, width in zip((numbers, moves), widths[1:], strict=True):
            axes.set_xlim(0, width)
            axes.set_axis_off()
        bold: Any = {"va": "bottom", "fontweight": "bold"}
        _row(numbers, 0, COLUMNS, ["credit, %", CI, "by task", "place"], **bold)
        for one, y in zip(merges, places, strict=True):
            _row(numbers, y, COLUMNS, _numbers(one))
        inside = {y: one for one, y in zip(merges, places, strict=True) if one.current_place}
        if inside:
            _row(moves, 0, (1.0,), ["place and score under Current Eval"], ha="left", **bold)
            _moves(moves, [*inside.values()], [*inside])
        finding = "\n".join(wrapped(plain(text), sum(widths)) for text in credits.finding)
        aside = (0.35 - width_of(names)) / WIDTHS[0]
        bars.set_title(finding, loc="left", fontsize=9, x=aside, pad=24, linespacing=1.4)
        figure.set_figheight(figure.get_figheight() + 0.7 + 0.19 * finding.count("\n"))
        figure.suptitle(TITLE, x=0.01, ha="left", fontsize=13, fontweight="bold")
    return figure


def _axis(credits: Credits, unit: str) -> str:
    """What the scores are, with those that all bars share."""
    first = credits.merges[0]
    known = {"best constant": credits.constant}
    for name in ("base", "experts"):
        if len({points(getattr(one, name)) for one in credits.merges}) == 1:
            known[name] = getattr(first, name)
    said = [f"{name} {points(value)}" for name, value in known.items() if value is not None]
    others = f"; {credits.others} more merges score lower" if credits.others else ""
    return f"{unit}\n{', '.join(said)}; tuned head: {plain(credits.setting)}{others}"


def _bars(axes: Axes, credits: Credits, places: Sequence[float]) -> None:
    """From the constant on, or from 0 without one, if nothing is lower."""
    scores = [x for one in credits.merges for x in (one.base, one.tuned, one.current, one.experts)]
    low = min(*scores, credits.constant or 0)
    axes.set_xlim(low, max(*scores, low + LEAST))
    for one, y in zip(credits.merges, places, strict=True):
        kept, most = max(one.current, one.base), max(one.current, one.tuned, one.base)
        ends = {
            BASE: (low, min(one.base, one.tuned)),
            OWN: (one.base, min(kept, max(one.tuned, one.base))),
            HEAD: (kept, one.tuned),
            ABOVE: (max(one.tuned, one.base), one.current),
            BELOW: (one.tuned, one.base),
            LOST: (most, one.experts),
        }
        for name, (start, end) in ends.items():
            if end > start:
                axes.barh(y, end - start, BAR, left=start, label=name, **PARTS[name])
        if one.credit is not None and one.credit.ends[0] < one.credit.ends[1]:
            way = one.experts - one.base
            low_end, high_end = (one.base + way * end for end in one.credit.ends)
            axes.hlines(y, low_end, high_end, color=RIM, linewidth=2.5, zorder=5)
            axes.hlines(y, low_end, high_end, color=BLACK, linewidth=1, zorder=5)
            key(axes, CI, linewidth=1)


def _numbers(one: Merge) -> list[str]:
    """Credit in percent, its interval, its range over tasks, and the place that it gives."""
    at = span(one.place) or UNDEFINED
    if one.credit is None:
        return [UNDEFINED, "", over_tasks(one), at]
    alone = one.credit.ends[0] == one.credit.ends[1]
    return [
        f"{round(100 * one.credit.point)}",
        "" if alone else span(one.credit.ends, times=100),
        over_tasks(one),
        at,
    ]


def _row(axes: Axes, y: float, columns: Sequence[float], texts: Sequence[str], **how: Any) -> None:
    for x, text in zip(columns, texts, strict=True):
        axes.text(x, y, text, **{"ha": "center", "va": "center", "fontsize": 8, **how})


def _moves(axes: Axes, merges: Sequence[Merge], places: Sequence[float]) -> None:
    """From the place by credit to that under Current Eval, whose order stands at the right."""
    for one, y in zip(sorted(merges, key=lambda one: -one.current), places, strict=True):
        start = places[merges.index(one)]
        low, high = one.too_low and y > start, one.too_high and y < start
        axes.plot([0, MOVE], [start, y], **MOVES["low" if low else "high" if high else "grey"])
        _row(axes, y, (1.3, 1.85), [span(one.current_place), points(one.current)])
        turned = {"▼": one.too_low, "▲": one.too_high}
        signs = [f" {sign}{count}" for sign, count in turned.items() if count]
        _row(axes, y, (2.1,), [broken(one.name) + "".join(signs)], ha="left")
