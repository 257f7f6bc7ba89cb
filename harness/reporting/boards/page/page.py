"""Pure: a board -> one self-contained page of HTML. What records say is data there, never code."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.reporting.boards.board import HOW, Board
from harness.reporting.boards.credit import Credits
from harness.reporting.boards.credit_table import LEAVES, bars
from harness.reporting.boards.gains import any_known
from harness.reporting.boards.legend import legend, notes
from harness.reporting.grid import Reading, short_task
from harness.reporting.lines import Line
from harness.text import plain, points

if TYPE_CHECKING:
    from jinja2 import Template

HERE = Path(__file__).parent
PROVENANCE: dict[str, Callable[[Line], str]] = {
    "model": lambda line: line.model,
    "method": lambda line: line.method,
    "head": lambda line: line.head,
    "digest": lambda line: line.digest,
    "options": lambda line: line.options,
    "preset": lambda line: line.preset,
    "parts": lambda line: ", ".join(f"{name} {points(value)}" for name, value in line.parts),
    "facts": lambda line: ", ".join(f"{name} {value:.3g}" for name, value in line.facts),
    "draws": lambda line: ", ".join(map(points, line.values)) if line.shots else "",
}
"""What a cell says of where it comes from, beside its record."""


def rendered(board: Board, files: Sequence[str]) -> str:
    """The page; `files` are where the records of the board's lines lie, as seen from it."""
    credits = board.credits
    style = _source("board.css") + (_shades(credits) if credits else "")
    script = _source("board.js")
    return _template().render(
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
        data=data(board, files),
        legend=legend(board, any(g.mark for g in (*board.gained.values(), *board.gaps.values()))),
        gains=bool(board.counterparts),
        tasks=len(board.scores.tasks),
        rows=len(board.scores.rows),
        credit=_credit().render(bars(board, credits)) if credits else "",
    )


def _shades(credits: Credits) -> str:
    """Rules of what depends on the board: the shades of credits, and merges by Current Eval."""
    shades = [
        f".heat-{at} {{ background: color-mix(in srgb, var(--of-own) {4 * at}%, transparent); }}"
        for at in range(LEAVES + 1)
    ]
    order = sorted(range(len(credits.merges)), key=lambda at: -credits.merges[at].current)
    moved = [
        f"#by-current:checked ~ .bars #merge-{at} {{ order: {place}; }}"
        for place, at in enumerate(order)
    ]
    return "\n".join([*shades, *moved, ""])


def data(board: Board, files: Sequence[str]) -> dict[str, Any]:
    """What the page shows, as JSON: lists by column, texts by their place in `texts`."""
    texts: list[str] = []
    known: dict[str, int] = {}

    def place(text: str) -> int:
        if text not in known:
            known[text] = len(texts)
            texts.append(plain(text))
        return known[text]

    file_of = {id(line): file for line, file in zip(board.lines, files, strict=True)}
    return {
        **({"open": _open(board)} if any_known(board.gained) else {}),
        **({"gaps": _gaps(board)} if any_known(board.gaps) else {}),
        "tasks": _tasks(board),
        "readings": [
            _reading(board, reading, note) for reading, note in notes(board.scores).items()
        ],
        "rows": _rows(board),
        "cells": _cells(board),
        "records": _records(board, file_of, place),
        "texts": texts,
    }


def _tasks(board: Board) -> list[dict[str, Any]]:
    return [
        {
            "name": plain(task),
            "short": plain(short_task(task, board.scores.tasks)),
            "kind": line.kind,
            "metric": plain(" + ".join(line.metrics)),
            "rows": line.rows,
        }
        for task, line in board.tasks.items()
    ]


def _reading(board: Board, reading: Reading, note: str) -> dict[str, Any]:
    line = board.readings.get(reading)
    return {
        "name": plain(reading),
        "protocol": plain(reading.protocol),
        "plain": "" if line is None else plain(line.protocol),
        "note": plain(note),
        "headline": board.headlines[reading.protocol] == reading,
        "tuned": line is not None and line.tuned,
    }


def _rows(board: Board) -> list[dict[str, Any]]:
    places = {row: number for number, row in enumerate(board.scores.rows)}
    rows = []
    for row in places:
        line = board.of_row.get(row)
        rows.append(
            {
                "name": plain(row),
                "role": "computed" if line is None else line.role,
                "premerge": "" if line is None else plain(line.premerge),
                "over": places.get(board.counterparts.get(row, ""), -1),
                "is": HOW.get(row, ""),
            }
        )
    return rows


def _cells(board: Board) -> dict[str, list[Any]]:
    """Every cell, those of the mean with the number of tasks as their task."""
    columns: dict[str, list[Any]] = {
        name: []
        for name in ("row", "reading", "task", "value", "sd", "experts", "low", "high", "best")
    }
    for reading_at, reading in enumerate(board.scores.readings):
        best = [board.best.get((reading, column)) for column in board.scores.columns]
        for row_at, row in enumerate(board.scores.rows):
            for task_at, cell in enumerate(board.scores.row(row, reading)):
                if cell is not None:
                    one = best[task_at]
                    low, high = cell.interval or (None, None)
                    values = (
                        row_at, reading_at, task_at, _short(cell.mean), _short(cell.deviation),
                        _short(cell.across_experts), _short(low), _short(high),
                        int(one is not None and row in one.rows),
                    )  # fmt: skip
                    for column, value in zip(columns.values(), values, strict=True):
                        column.append(value)
    return columns


def _open(board: Board) -> list[int]:
    """For every cell of `_cells`, in their order, whether its gain is not significant."""
    return [
        int(gain is not None and gain.significant is False)
        for reading in board.scores.readings
        for row in board.scores.rows
        for cell, gain in zip(
            board.scores.row(row, reading), board.gains(row, reading), strict=True
        )
        if cell is not None
    ]


def _gaps(board: Board) -> list[list[int]]:
    """By row and column, whether two protocols are told apart."""
    columns = board.scores.columns
    gaps = ([board.gaps.get((row, column)) for column in columns] for row in board.scores.rows)
    return [[int(gap is not None and gap.significant is False) for gap in of] for of in gaps]


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 6)  # the page rounds what it shows, once


def _records(
    board: Board, files: dict[int, str], place: Callable[[str], int]
) -> dict[str, list[int]]:
    """For every cell of `_cells`, in their order, the places of its texts; -1: of no record."""
    columns: dict[str, list[int]] = {name: [] for name in (*PROVENANCE, "folder", "file")}
    for reading in board.scores.readings:
        for row in board.scores.rows:
            cells = board.scores.row(row, reading)
            for column, cell in zip(board.scores.columns, cells, strict=True):
                if cell is None:
                    continue
                line = board.scores.lines.get((row, reading, column))
                if line is None:
                    for of_name in columns.values():
                        of_name.append(-1)
                    continue
                for name, text in PROVENANCE.items():
                    columns[name].append(place(text(line)))
                folder, _, file = files[id(line)].rpartition("/")
                columns["folder"].append(place(folder))
                columns["file"].append(place(file))
    return columns


def _hash(text: str) -> str:
    """The hash by which the page's policy knows its own script and style, and no other."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _source(name: str) -> str:
    return HERE.joinpath(name).read_text(encoding="utf-8")


def _template() -> Template:
    return _compiled("page.html.jinja")


def _credit() -> Template:
    return _compiled("credit.html.jinja")


@cache
def _compiled(name: str) -> Template:
    from jinja2 import Environment, StrictUndefined

    made = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    return made.from_string(_source(name))
