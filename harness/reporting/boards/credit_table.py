"""Pure: credits -> the first table of a board, in Markdown and for the page of HTML."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from harness.reporting.boards.board import Board
from harness.reporting.boards.credit import Credits, Merge
from harness.reporting.difference import in_percent
from harness.reporting.grid import short_task
from harness.reporting.names import marked
from harness.stats.intervals import LEVEL, Ratio
from harness.text import markdown, plain, points

TASKS = 8
"""Columns of tasks beside a bar: of more, the page has the range alone."""
ASIDE = " †"
LEAVES = 10
"""Steps of the shade that a credit of a task has."""


def about(board: Board, credits: Credits) -> str:
    """What the merges are of, in a line."""
    rows = {line.rows for line in board.tasks.values()}
    size = f"{rows.pop():,} test rows each" if len(rows) == 1 else "test rows: see below"
    sources = dict.fromkeys(
        source
        for line in board.of_row.values()
        if line.role == "merged"
        for source, _ in line.experts
    )
    tasks = "1 task" if len(credits.tasks) == 1 else f"{len(credits.tasks)} tasks"
    of = f" (of {credits.others} more, the highest)" if credits.others else ""
    return (
        f"{len(credits.merges)} merges{of} of {len(sources)} experts on {tasks}, {size}; tuned "
        f"head: {plain(credits.reading)}."
    )


def terms(credits: Credits) -> list[tuple[str, str]]:
    """What the columns are."""
    over = (
        "the median over the tasks where it is defined"
        if credits.several_metrics
        else ("of the means over the tasks" if len(credits.tasks) > 1 else "of this task")
    )
    said = [
        (
            "Credit",
            "(tuned head of the merge - tuned head of the base) / (experts - tuned head of the "
            f"base), {over}: 0 % is the untouched base, 100 % the experts under their own heads. "
            "Undefined where the experts are not significantly above the base, or above the best "
            "constant prediction.",
        ),
        (
            "Own heads",
            "the merge under the heads that its experts were trained with (Current Eval). What "
            "only a tuned head scores on top was in the encoder all the time.",
        ),
    ]
    if not credits.several_metrics:
        level = f"{100 * LEVEL:.0f} %"
        said += [
            (
                "±, line",
                f"{level} confidence interval over test units and draws of shots (Fieller).",
            ),
            (
                "Place",
                "from which to which place a merge may be, behind all that are significantly "
                "better (Holm over all pairs, on these tasks).",
            ),
            (
                "▼, ▲",
                "how many merges Current Eval ranks the other way round, both differences "
                "significant: ▼ it ranks this one too low, ▲ too high.",
            ),
        ]
    if any(one.transductive for one in credits.merges):
        said.append(("†", "made with the rows that are scored: out of competition."))
    return said


# Markdown ----------------------------------------------------------------------------------


def section(board: Board, credits: Credits) -> Iterator[str]:
    """The table with what it shows, as paragraphs of Markdown."""
    yield "# Where the score goes"
    yield markdown(about(board, credits))
    yield "\n".join(f"- {markdown(text)}" for text in credits.finding)
    yield _table(credits)
    yield "\n".join(f"- **{term}**: {text}" for term, text in terms(credits))


def _table(credits: Credits) -> str:
    heads = ["place", "merge", "base", "own heads", "tuned head", "experts", "credit", "by task",
             "place under own heads"]  # fmt: skip
    rows = [
        [
            place(one),
            markdown(_named(one)),
            *(points(value) for value in (one.base, one.current, one.tuned, one.experts)),
            _shown(one.credit),
            "" if one.range is None else f"{_percent(one.range[0])} to {_percent(one.range[1])} %",
            " ".join(filter(None, [_range(one.current_place), *_turned(one)])),
        ]
        for one in credits.merges
    ]
    rule = ["---", ":--", *["--:"] * (len(heads) - 2)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, rule, *rows))


def _named(one: Merge) -> str:
    """The name with a sign, in the place of the words, if it is out of competition."""
    bare = one.name.removesuffix(marked("", transductive=True))
    return f"{bare}{ASIDE}" if one.transductive else one.name


def place(one: Merge) -> str:
    """`2-5`, `†` out of competition."""
    return ASIDE.strip() if one.transductive else _range(one.place)


def _range(places: tuple[int, int] | None) -> str:
    if places is None:
        return ""
    return str(places[0]) if places[0] == places[1] else f"{places[0]}–{places[1]}"


def _turned(one: Merge) -> Iterator[str]:
    if one.too_low:
        yield f"▼{one.too_low}"
    if one.too_high:
        yield f"▲{one.too_high}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f}"


def _shown(credit: Ratio | None) -> str:
    if credit is None:
        return "undefined"
    alone = credit.ends == (credit.point, credit.point)
    return f"{_percent(credit.point)} %" if alone else in_percent(credit)


# For the page ------------------------------------------------------------------------------


def bars(board: Board, credits: Credits) -> dict[str, Any]:
    """What the template of the page shows: bars along one axis, in per cent of its length."""
    low = min([*(one.base for one in credits.merges), credits.constant or 0.0])
    high = max(max(one.experts, one.tuned, one.current) for one in credits.merges)
    long = (high - low) or 1.0

    def at(value: float) -> float:
        """Along the axis, in per cent of its length."""
        return round(100 * (min(max(value, low), high) - low) / long, 2)

    several = 1 < len(credits.tasks) <= TASKS
    same = {
        name: {points(getattr(one, name)) for one in credits.merges} for name in ("base", "experts")
    }
    said = ", ".join(f"{name} {of.pop()}" for name, of in same.items() if len(of) == 1)
    return {
        "finding": [plain(text) for text in credits.finding],
        "about": about(board, credits),
        "axis": f"{points(low)} to {points(high)}" + (f": {said}" if said else ""),
        "heads": [_broken(short_task(t, credits.tasks)) for t in credits.tasks] if several else [],
        "bars": [_bar(one, at) for one in credits.merges],
        "terms": terms(credits),
    }


def _bar(one: Merge, at: Callable[[float], float]) -> dict[str, Any]:
    name, _, options = _named(one).removesuffix(ASIDE).partition(":")
    own, tuned = max(one.current, one.base), max(one.tuned, one.base)
    parts = [
        ("of-base", at(0), at(one.base)),
        ("of-own", at(one.base), at(own)),
        ("of-tuned", at(own), at(tuned)),
        ("of-lost", at(max(own, tuned)), at(one.experts)),
    ]
    low, high = one.credit.ends if one.credit else (0.0, 0.0)
    away, way = _percent((high - low) / 2), one.experts - one.base
    scores = {"base": one.base, "own heads": one.current, "tuned head": one.tuned}
    scores |= {"experts": one.experts}
    return {
        "name": _broken(f"{name}{ASIDE if one.transductive else ''}"),
        "options": _broken(options),
        "place": place(one),
        "rects": [(kind, x, round(end - x, 2)) for kind, x, end in parts if end > x],
        "ends": [at(one.base + end * way) for end in (low, high)] if low < high else None,
        "credit": "–" if one.credit is None else _percent(one.credit.point),
        "away": f"±{away}" if low < high else "",
        "tasks": [_leaf(of) for of in one.by_task],
        "current": points(one.current),
        "current_place": _range(one.current_place),
        "low": one.too_low,
        "high": one.too_high,
        "said": ", ".join(f"{name} {points(value)}" for name, value in scores.items()),
    }


def _broken(text: str) -> list[str]:
    """The parts of a name, behind which a line may end."""
    return re.split(r"(?<=[_,\[+])", plain(text))


def _leaf(credit: Ratio | None) -> tuple[str, int]:
    if credit is None:
        return "–", 0
    return _percent(credit.point), round(LEAVES * min(max(credit.point, 0.0), 1.0))
