"""Pure: a board -> one self-contained page of HTML. Texts of records are data there, never code."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from harness.reporting.boards.about import about_text
from harness.reporting.boards.board import COMPUTED_ROW_NOTES, Board, ShownCell
from harness.reporting.boards.credit import Credits
from harness.reporting.boards.credit_table import SHADES, view
from harness.reporting.boards.legend import legend, notes_by_setting
from harness.reporting.boards.sections import sections, share_of
from harness.reporting.boards.templates import source, template
from harness.reporting.difference import Difference
from harness.reporting.grid import short_task
from harness.reporting.lines import Line
from harness.text import plain, points

OF_LINE = ("model", "method", "head", "digest", "options", "preset")
PROVENANCE: dict[str, Callable[[Line], str]] = {
    **{name: attrgetter(name) for name in OF_LINE},
    "parts": lambda line: ", ".join(f"{name} {points(value)}" for name, value in line.parts),
    "facts": lambda line: ", ".join(f"{name} {value:.3g}" for name, value in line.facts),
    "draws": lambda line: ", ".join(map(points, line.values)) if line.shots else "",
}
"""The details of a cell beside the path of its record, by name."""
FILE = ("folder", "file")


def rendered(board: Board, files: Sequence[str]) -> str:
    """The page; `files` are the paths of the records of the board's lines, relative to it."""
    credits = board.credits
    style = source("board.css") + (shades() + _order(credits) if credits else "")
    script, share = source("board.js"), share_of(board)
    return template("index.html").render(
        style=style,
        script=script,
        style_hash=hash_of(style),
        script_hash=hash_of(script),
        about=about_text(board),
        share=share,
        sections=[section for section in sections(board) if section != share],
        data=data(board, files),
        legend=legend(board, any(g.mark for g in (*board.gained.values(), *board.gaps.values()))),
        gains=bool(board.counterparts),
        tasks=len(board.scores.tasks),
        rows=len(board.scores.rows),
        credit=credits and view(credits, about_text(board)),
    )


def hash_of(text: str) -> str:
    """The hash by which the page's security policy allows its own script or style, and no other."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def shades() -> str:
    """CSS rules for the shades of credits."""
    return "".join(
        f".heat-{n} {{ background: color-mix(in srgb, var(--of-own) {4 * n}%, transparent); }}\n"
        for n in range(SHADES + 1)
    )


def _order(credits: Credits) -> str:
    """CSS rules that order the merges by Current Eval."""
    order = sorted(range(len(credits.merges)), key=lambda index: -credits.merges[index].current)
    moved = [
        f"#by-current:checked ~ .bars #merge-{index} {{ order: {place}; }}"
        for place, index in enumerate(order)
    ]
    return "\n".join([*moved, ""])


def data(board: Board, files: Sequence[str]) -> dict[str, Any]:
    """The page's data for JSON: cells as lists by column, texts by their index in `texts`."""
    texts: dict[str, int] = {}
    file_of = {id(line): file for line, file in zip(board.lines, files, strict=True)}
    cells: dict[str, list[Any]] = {}
    records: dict[str, list[int]] = {}
    for setting_at, setting in enumerate(board.scores.settings):
        for row_at, row in enumerate(board.scores.rows):
            for task_at, cell in enumerate(board.row(row, setting)):
                if cell is not None:
                    place = {"row": row_at, "setting": setting_at, "task": task_at}
                    _add(cells, place | _numbers(cell))
                    details = _provenance(cell.line, file_of)
                    indices = {
                        name: texts.setdefault(text, len(texts)) for name, text in details.items()
                    }
                    _add(records, {name: indices.get(name, -1) for name in (*PROVENANCE, *FILE)})
    opened = cells.pop("open")
    columns = board.scores.columns
    gaps = [[_is_open(board.gaps.get((row, c))) for c in columns] for row in board.scores.rows]
    return {
        **({"gaps": gaps} if board.gaps else {}),
        "tasks": _tasks(board),
        "settings": _settings(board),
        "rows": _rows(board),
        **({"open": opened} if board.gained else {}),
        "cells": cells,
        "records": records,
        "texts": [plain(text) for text in texts],
    }


def _add(columns: dict[str, list[Any]], values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        columns.setdefault(name, []).append(value)


def _numbers(shown: ShownCell) -> dict[str, Any]:
    """The numbers of a cell, whether it is the best, and whether its gain is open."""
    cell = shown.cell
    low, high = cell.interval or (None, None)
    numbers = {"value": cell.mean, "sd": cell.deviation, "experts": cell.across_experts}
    numbers |= {"low": low, "high": high}
    # the page rounds what it shows, once
    rounded: dict[str, Any] = {k: None if v is None else round(v, 6) for k, v in numbers.items()}
    return rounded | {"best": int(shown.best), "open": _is_open(shown.gain)}


def _is_open(gain: Difference | None) -> int:
    """Whether a difference is known not to be significant."""
    return int(gain is not None and gain.significant is False)


def _provenance(line: Line | None, files: Mapping[int, str]) -> dict[str, str]:
    """The details of a cell and the path of its record; {} for a cell computed from others."""
    if line is None:
        return {}
    folder, _, file = files[id(line)].rpartition("/")
    return {**{name: get(line) for name, get in PROVENANCE.items()}, "folder": folder, "file": file}


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


def _settings(board: Board) -> list[dict[str, Any]]:
    return [
        {
            "name": plain(setting),
            "protocol": plain(setting.protocol),
            "plain": plain(line.protocol) if (line := board.scores.of_setting.get(setting)) else "",
            "note": plain(note),
            "headline": board.scores.headlines[setting.protocol] == setting,
            "tuned": line is not None and line.tuned,
        }
        for setting, note in notes_by_setting(board.scores).items()
    ]


def _rows(board: Board) -> list[dict[str, Any]]:
    places = {row: number for number, row in enumerate(board.scores.rows)}
    return [
        {
            "name": plain(row),
            "role": line.role if (line := board.scores.line_of_row.get(row)) else "computed",
            "premerge": plain("+".join(line.premerge)) if line else "",
            "over": places.get(board.counterparts.get(row, ""), -1),
            "is": COMPUTED_ROW_NOTES.get(row, ""),
        }
        for row in places
    ]
