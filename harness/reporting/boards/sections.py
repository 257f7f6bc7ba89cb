"""Pure: a board -> its tables as sections, for the templates of Markdown and HTML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import inf
from typing import TypeAlias

from harness.reporting.boards.board import Board, ShownCell
from harness.reporting.boards.legend import notes_by_setting
from harness.reporting.boards.tested import MOST_BOARD_ROWS
from harness.reporting.grid import short_task
from harness.reporting.sentences import rendered
from harness.text import points

BoardRow: TypeAlias = "tuple[str, list[ShownCell | None]]"


@dataclass(frozen=True)
class BoardTable:
    """Rows of texts under heads; `below` are further rows of heads.

    `bold` are the cells in bold, by row and column.
    """

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    below: Sequence[Sequence[str]] = ()
    bold: frozenset[tuple[int, int]] = frozenset()


@dataclass(frozen=True)
class Section:
    """Tables under a title, with a note."""

    title: str
    note: str
    tables: Sequence[BoardTable]


def sections(board: Board) -> Iterator[Section]:
    """The table of each protocol at one number of shots; the head's share after its protocol."""
    notes = notes_by_setting(board.scores)
    share = share_of(board)
    for protocol, setting in board.scores.headlines.items():
        rows = board.under(setting)
        note = notes[setting] and f"{notes[setting][0].upper()}{notes[setting][1:]}."
        if len(rows) > MOST_BOARD_ROWS:
            some = f"{MOST_BOARD_ROWS} of {len(rows)} rows"
            note = f"{note} The references and the best merges: {some}.".strip()
        yield Section(str(setting), note, [_table(board, _most(board, rows))])
        if share and any(one.verdict.setting.protocol == protocol for one in board.shares):
            yield share
            share = None


def heads_of(board: Board) -> list[str]:
    """The names of the columns: tasks, without suite and split if that is clear, and the mean."""
    return [short_task(column, board.scores.tasks) for column in board.scores.columns]


def _table(board: Board, rows: Sequence[BoardRow]) -> BoardTable:
    """The table of these rows x tasks, the best in bold."""
    lines = [board.tasks.get(column) for column in board.scores.columns]
    return BoardTable(
        heads=["", *heads_of(board)],
        below=[
            ["metric", *("" if line is None else " + ".join(line.metrics) for line in lines)],
            ["rows", *("" if line is None else f"{line.rows:,}" for line in lines)],
        ],
        rows=[
            [row, *(cell.cell.with_experts if cell else "" for cell in cells)]
            for row, cells in rows
        ],
        bold=frozenset(
            (index, column)
            for index, (_, cells) in enumerate(rows)
            for column, cell in enumerate(cells, start=1)
            if cell and cell.best
        ),
    )


def _most(board: Board, rows: Sequence[BoardRow]) -> list[BoardRow]:
    """At most `MOST_BOARD_ROWS` rows in their order: references, then the merges with the highest
    means."""

    def order(row: BoardRow) -> tuple[bool, float]:
        line, last = board.scores.line_of_row.get(row[0]), row[1][-1]
        mean = -inf if last is None else last.cell.mean
        return line is not None and line.role == "merged", -mean

    names = {name for name, _ in sorted(rows, key=order)[:MOST_BOARD_ROWS]}
    return [row for row in rows if row[0] in names]


def share_of(board: Board) -> Section | None:
    """How much of the loss of each row the head explains, a table for each setting, if known."""
    tables = []
    for setting, group in groupby(board.shares, key=lambda share: str(share.verdict.setting)):
        rows = []
        for share in [*group][:MOST_BOARD_ROWS]:
            verdict, differences = share.verdict, (share.lost, share.recovered)
            cells = [points(value) for value in (verdict.experts, verdict.current, verdict.adapted)]
            cells += [f"{points(gain.points)}{gain.mark}" for gain in differences]
            rows.append([share.row, str(verdict.tasks), *cells, share.share])
        heads = ["", "tasks", "experts", "current", setting, "loss", "recovered", "share"]
        tables.append(BoardTable(heads, rows))
    title = "How much of the loss is the head's"
    return Section(title, rendered("share_note", board), tables) if tables else None
