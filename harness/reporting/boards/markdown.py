"""Pure: a board -> Markdown: where the score goes, then a table for each protocol, on few pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.reporting.boards.about import about_text
from harness.reporting.boards.board import Board
from harness.reporting.boards.credit_table import OWN_ABOVE, view
from harness.reporting.boards.legend import BOLD, INTERVAL, legend
from harness.reporting.boards.sections import BoardTable, Section, sections
from harness.reporting.boards.templates import template
from harness.text import aligned, markdown, plain

LINES = 200
"""The most lines of the text: tables without room are in board.csv and board.parquet only."""
NAMED = 12
"""The most tasks, or settings without a table, that are named; the others are counted."""


def rendered(board: Board) -> str:
    """The board as Markdown, with as many of its sections as there is room for."""
    parts = [*sections(board)]
    texts = (_text(board, parts, count) for count in range(len(parts), -1, -1))
    return next(text for text in texts if text.count("\n") <= LINES)


def _text(board: Board, parts: Sequence[Section], count: int) -> str:
    """The board with its first `count` sections; the others are named."""
    titles = [plain(part.title) for part in parts[count:]]
    credit = board.credits and view(board.credits, about_text(board), leaves=False)
    return template("board.md").render(
        credit=credit,
        bars=credit and _bars(credit["bars"]),
        legend=_legend(board),
        sections=parts[:count],
        rest=f" For want of room, without a table here: {_named(titles)}." if titles else "",
        table=table,
    )


def _named(names: Sequence[str]) -> str:
    """The names, or the first of many and how many more there are."""
    more = len(names) - NAMED
    return ", ".join([*names[:NAMED], *([f"and {more} more"] if more > 0 else [])])


def _legend(board: Board) -> list[str]:
    is_open = any(share.lost.mark or share.recovered.mark for share in board.shares)
    lines = [
        f"**{term}**: {text}" if term == BOLD else f"`{term}`: {text}"
        for term, text in legend(board, is_open)
        if term != INTERVAL
    ]
    about = [] if board.credits else [markdown(about_text(board))]
    return [*about, f"Tasks: {_named([*map(markdown, board.tasks)])}.", *lines]


def _bars(bars: Sequence[Mapping[str, Any]]) -> str:
    """The table of credits, one row for each bar."""
    heads = ["place", "merge", "base", "Current Eval", "tuned head", "experts", "credit", "by task",
             "place under Current Eval"]  # fmt: skip
    rows = []
    for bar in bars:
        turned = [f"{mark}{bar[way]}" for mark, way in (("▼", "low"), ("▲", "high")) if bar[way]]
        under = " ".join(filter(None, [bar["current_place"], *turned]))
        scores = {**bar["scores"]}
        scores["tuned head"] += OWN_ABOVE if bar["tick"] is not None else ""
        named = [bar["place"], bar["called"]]
        rows.append([*named, *scores.values(), bar["in_full"], bar["range"], under])
    return table(BoardTable(heads, rows), texts=2)


def table(board_table: BoardTable, texts: int = 1) -> str:
    """A table with padded cells; the first `texts` columns are words, aligned to the left."""
    heads = [[f"*{markdown(name)}*", *map(markdown, rest)] for name, *rest in board_table.below]
    rows = [[*map(markdown, row)] for row in board_table.rows]
    for index, column in board_table.bold:
        rows[index][column] = f"**{rows[index][column]}**"
    return aligned([*heads, *rows], [*map(markdown, board_table.heads)], "pipe", texts)
