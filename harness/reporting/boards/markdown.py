"""Pure: a board -> Markdown: where the score goes, then a table for each protocol, on few pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import inf
from typing import Any, NamedTuple, TypeAlias

from tabulate import tabulate

from harness.reporting.boards.board import Board, Shown
from harness.reporting.boards.credit import MOST
from harness.reporting.boards.credit_table import view
from harness.reporting.boards.legend import BOLD, INTERVAL, legend, notes
from harness.reporting.boards.templates import template
from harness.reporting.grid import short_task
from harness.reporting.lines import Setting
from harness.text import markdown, plain, points

WIDTH = 120
"""Signs of a line of text. Rows of a table are as long as they are."""
LINES = 200
"""Of all, at most: what there is no room for is in board.csv alone."""
NAMED = 12
"""Tasks, and settings without a table, that are named; of more, their number."""


Row: TypeAlias = "tuple[str, list[Shown | None]]"


class Section(NamedTuple):
    """Tables under a title, with what is said of them."""

    title: str
    note: str
    tables: Sequence[str]


def rendered(board: Board) -> str:
    """The board as Markdown, with as many of its sections as there is room for."""
    sections = [*_sections(board)]
    texts = (_text(board, sections, count) for count in range(len(sections), -1, -1))
    return next(text for text in texts if text.count("\n") <= LINES)


def _text(board: Board, sections: Sequence[Section], count: int) -> str:
    left = [plain(one.title) for one in sections[count:]]
    rest = f" For want of room, without a table here: {_named(left)}." if left else ""
    credit = board.credits and view(board, board.credits)
    return template("board.md").render(
        credit=credit,
        bars=credit and _bars(credit["bars"]),
        legend=_legend(board),
        sections=sections[:count],
        rest=rest,
    )


def _named(names: Sequence[str]) -> str:
    """The names, or the first of many and how many more there are."""
    more = len(names) - NAMED
    return ", ".join([*names[:NAMED], *([f"and {more} more"] if more > 0 else [])])


def _legend(board: Board) -> list[str]:
    is_open = any(one.lost.mark or one.recovered.mark for one in board.shares)
    said = [
        f"**{term}**: {text}" if term == BOLD else f"`{term}`: {text}"
        for term, text in legend(board, is_open)
        if term != INTERVAL
    ]
    return [f"Tasks: {_named([*map(markdown, board.tasks)])}.", *said]


# Tables ------------------------------------------------------------------------------------


def _sections(board: Board) -> Iterator[Section]:
    """The table of each protocol at one number of shots; behind that of a tuned head, its share."""
    said = notes(board.scores)
    shared = False
    for protocol, setting in board.scores.headlines.items():
        note = said[setting] and f"{said[setting][0].upper()}{said[setting][1:]}."
        if (count := len(board.under(setting))) > MOST:
            note = f"{note} Of {count} rows the references and the best, {MOST} in all.".strip()
        yield Section(markdown(setting), note, [_table(board, setting)])
        if not shared and any(one.verdict.setting.protocol == protocol for one in board.shares):
            shared = True
            yield _shares(board)


def _table(board: Board, setting: Setting) -> str:
    """Rows x tasks under one setting, the best in bold: references, and the best of many merges."""
    rows = _most(board, board.under(setting))
    known = [board.tasks.get(column) for column in board.scores.columns]
    heads = [short_task(column, board.scores.tasks) for column in board.scores.columns]
    above = [
        ["*metric*", *("" if one is None else markdown(" + ".join(one.metrics)) for one in known)],
        ["*rows*", *("" if one is None else f"{one.rows:,}" for one in known)],
    ]
    body = [[markdown(row), *map(_cell, cells)] for row, cells in rows]
    return table(["", *map(markdown, heads)], [*above, *body])


def _bars(bars: Sequence[Mapping[str, Any]]) -> str:
    """Where the score of each merge goes."""
    heads = ["place", "merge", "base", "own heads", "tuned head", "experts", "credit", "by task",
             "place under own heads"]  # fmt: skip
    rows = []
    for one in bars:
        turned = [f"{mark}{one[way]}" for mark, way in (("▼", "low"), ("▲", "high")) if one[way]]
        under = " ".join(filter(None, [one["current_place"], *turned]))
        named = [one["place"], markdown(one["called"])]
        rows.append([*named, *one["scores"].values(), one["in_full"], one["range"], under])
    return table(heads, rows, texts=2)


def _most(board: Board, rows: Sequence[Row]) -> list[Row]:
    """So many rows, as they come: references, and of merges those with the highest means."""

    def order(row: Row) -> tuple[bool, float]:
        line, last = board.of_row.get(row[0]), row[1][-1]
        mean = -inf if last is None else last.cell.mean
        return line is not None and line.role == "merged", -mean

    kept = {name for name, _ in sorted(rows, key=order)[:MOST]}
    return [row for row in rows if row[0] in kept]


def _cell(one: Shown | None) -> str:
    text = "" if one is None else one.cell.with_experts
    return f"**{text}**" if one is not None and one.best else text


def _shares(board: Board) -> Section:
    """How much of the loss of each row the head explains, a table for each setting."""
    note = (
        "Loss: experts minus merge under Current Eval, in points. Recovered: FT-Classifier Eval "
        "minus Current Eval. Share: recovered over loss, with its 95 % interval over test units "
        "and draws, where the loss is significant (Holm over the rows) and records keep resamples. "
        "`as the base`: under a tuned head the base does not score less, so that says nothing of "
        "the merge."
    )
    tables = []
    for setting, group in groupby(board.shares, key=lambda one: one.setting):
        rows = []
        for share in [*group][:MOST]:
            one, differences = share.verdict, (share.lost, share.recovered)
            shown = [points(value) for value in (one.experts, one.current, one.adapted)]
            shown += [f"{points(gain.points)}{gain.mark}" for gain in differences]
            rows.append([markdown(share.row), str(one.tasks), *shown, share.share])
        heads = ["tasks", "experts", "current", markdown(setting), "loss", "recovered", "share"]
        tables.append(table(["", *heads], rows))
    return Section("How much of the loss is the head's", note, tables)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A table as wide as its cells, the first columns, which are words, to the left."""
    sides = ["left"] * texts + ["right"] * (len(heads) - texts)
    return tabulate(rows, heads, tablefmt="pipe", disable_numparse=True, colalign=sides)
