"""Pure: credits -> the first table of a board, for the templates of Markdown and HTML."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from harness.reporting.boards.credit import Credits, MergeCredit, ScorePart
from harness.reporting.difference import in_percent
from harness.reporting.grid import short_task
from harness.reporting.names import marked
from harness.reporting.sentences import rendered, span
from harness.stats.intervals import Ratio
from harness.text import breaks, plain, points

TASKS = 8
"""The most tasks with a column each beside the bars; with more, the page shows the range only."""
NO_PLACE_MARK = " †"
"""Marks a merge out of competition, in place of "(transductive)" in its name."""
UNDEFINED = "–"
OWN_ABOVE = " ‡"
"""Marks a tuned head that scores less than Current Eval."""
OPTIONS = re.compile(r"(\w+):([^\[\]+ ]+)")
"""A stage with options other than its defaults, in the name of a method: the stage, the options."""
LOOKS: dict[ScorePart, str] = {"above": "own", "below": "lost"}
"""Parts of a bar that are drawn like another part; a tick marks a tuned head that scores less."""
KEYS = {
    "base": "base under the tuned head: no credit",
    "own": "Current Eval (experts' heads)",
    "tuned": "only a tuned head",
    "tick": "tuned head, where it scores less",
    "lost": "lost",
}
"""The legend of the bars: each look of a part, and the tick."""
SHADES = 10
"""The darkest shade of a credit; the lightest is 0."""


def terms(credits: Credits, *, sign: bool) -> list[tuple[str, str]]:
    """The terms of the table with their explanations; `sign`: some cell is `UNDEFINED`."""
    lines = filter(None, map(str.strip, rendered("terms", credits, sign).split("\n")))
    return [(term, text) for term, _, text in (line.partition(": ") for line in lines)]


# Each merge --------------------------------------------------------------------------------


def view(credits: Credits, about: str, *, leaves: bool = True) -> dict[str, Any]:
    """What the templates show: bars on one axis, in per cent of its length.

    `about` is a sentence on the board. `leaves`: credits of merges and of tasks have cells of
    their own, beside their range.
    """
    low, high = credits.axis

    def along(value: float) -> float:
        """The place of a score along the axis, in per cent of its length."""
        return round(100 * (min(max(value, low), high) - low) / (high - low), 2)

    several = 1 < len(credits.tasks) <= TASKS
    extra = (
        f" The highest of {len(credits.merges) + credits.others} merges." if credits.others else ""
    )
    shared = ", ".join(f"{name} {points(value)}" for name, value in credits.shared.items())
    bars = [_bar(merge, along, low) for merge in credits.merges]
    cells = [bar["range"] for bar in bars]
    if leaves:
        cells += [bar["credit"] for bar in bars]
        cells += [text for bar in bars for text, _ in bar["tasks"] if several]
    seen = {look for bar in bars for look, *_ in bar["rects"]}
    seen |= {"tick" for bar in bars if bar["tick"] is not None}
    return {
        "finding": [plain(text) for text in credits.finding],
        "about": f"{about}{extra} Tuned head: {plain(credits.setting)}. {credits.left_out}".strip(),
        "axis": f"{points(low)} to {points(high)}" + (f": {shared}" if shared else ""),
        "heads": [breaks(short_task(t, credits.tasks)) for t in credits.tasks] if several else [],
        "bars": bars,
        "keys": {look: text for look, text in KEYS.items() if look in seen},
        "terms": terms(credits, sign=any(text.startswith(UNDEFINED) for text in cells)),
    }


def _bar(merge: MergeCredit, along: Callable[[float], float], low: float) -> dict[str, Any]:
    mark = NO_PLACE_MARK if merge.transductive else ""
    bare = merge.name.removesuffix(marked("", transductive=merge.transductive))
    chosen = [*dict.fromkeys(OPTIONS.findall(bare))]  # folded rows repeat their options
    name = OPTIONS.sub(r"\1", bare)
    options = ", ".join(
        option if len(chosen) == 1 else f"{stage} {option}" for stage, option in chosen
    )
    scores = {"base": merge.base, "Current Eval": merge.current, "tuned head": merge.tuned}
    scores |= {"experts": merge.experts}
    texts = {name: points(value) for name, value in scores.items()}
    return {
        "called": f"{bare}{mark}",
        "name": breaks(f"{name}{mark}"),
        "options": breaks(options),
        "place": mark.strip() or span(merge.place, "–"),
        "rects": [
            (LOOKS.get(part, part), along(x), round(along(end) - along(x), 2))
            for part, x, end in merge.parts(low)
        ],
        "ends": [*map(along, merge.ends or ())],
        "tick": along(merge.tuned) if merge.own_above else None,
        "scores": texts,
        "said": ", ".join(f"{name} {value}" for name, value in texts.items()),
        "credit": shaded_percent(merge.credit)[0],
        "away": interval_text(merge.credit),
        "in_full": in_percent(merge.credit) if merge.credit else "undefined",
        "tasks": [shaded_percent(ratio) for ratio in merge.by_task],
        "range": range_over_tasks(merge, " %", " tasks"),
        "current_place": span(merge.current_place, "–"),
        "low": merge.too_low,
        "high": merge.too_high,
    }


def interval_text(credit: Ratio | None) -> str:
    """The interval of a credit in per cent, '' if it has none."""
    return span(credit.ends, times=100) if credit and credit.has_interval else ""


def range_over_tasks(merge: MergeCredit, unit: str = "", tasks: str = "") -> str:
    """The range of credit over tasks, with the number of tasks that have one, if not all have."""
    if len(merge.by_task) < 2:
        return ""
    known, count = len(merge.known), len(merge.by_task)
    text = f"{span(merge.range, times=100)}{unit}" if known else UNDEFINED
    return text if known == count else f"{text} ({known} of {count}{tasks})"


def shaded_percent(credit: Ratio | None) -> tuple[str, int]:
    """A credit in per cent, and its shade from 0 to `SHADES`."""
    if credit is None:
        return UNDEFINED, 0
    return f"{round(100 * credit.point)}", round(SHADES * min(max(credit.point, 0.0), 1.0))
