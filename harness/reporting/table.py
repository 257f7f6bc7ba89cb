"""Pure: records -> the one table that `evaluate` prints."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from harness.data.shots import amount
from harness.evaluation.records import Record
from harness.reporting.grid import HEADLINE_SHOTS, Cell, Reading, grid, short_task
from harness.text import plain
from harness.types import Shots


def evaluation_table(records: Sequence[Record], width: int | None = None) -> str:
    """One table: rows are the model and its references, columns are protocol x task, values x100.

    Of several numbers of shots the one nearest to 5 is shown. Where it is wider than `width`, the
    columns of each protocol stand below one another, with its name in the corner.
    """
    scores = grid(records, by_method=False)
    shown = [reading for reading in scores.readings if reading in _headline(scores.readings)]
    tasks = [plain(short_task(column, scores.tasks)) for column in scores.columns]

    def render(corner: str, headers: Sequence[str], shown: Sequence[Reading]) -> str:
        cells = [
            [c for reading in shown for c in scores.row(name, reading)] for name in scores.rows
        ]
        rows = [
            [plain(name), *map(_text, row)]
            for name, row in zip(scores.rows, cells, strict=True)
            if any(row)
        ]
        return tabulate(rows, [corner, *headers], tablefmt="simple", disable_numparse=True)

    whole = render("", [_heading(reading, task) for reading in shown for task in tasks], shown)
    if width is None or max(map(len, whole.splitlines())) <= width:
        return whole
    return "\n\n".join(render(plain(str(reading)), tasks, [reading]) for reading in shown)


def _heading(reading: Reading, column: str) -> str:
    shown = [*map(plain, reading.lines), *([""] if not reading.shots else []), column]
    return "\n".join(shown)


def _headline(readings: Sequence[Reading]) -> list[Reading]:
    """One number of shots per protocol, the nearest to the papers' five."""

    def distance(shots: Shots) -> float:
        return abs(amount(shots) - HEADLINE_SHOTS)

    best: dict[str, Reading] = {}
    for reading in readings:
        held = best.get(reading.protocol)
        if held is None or distance(reading.shots) < distance(held.shots):
            best[reading.protocol] = reading
    return list(best.values())


def _text(cell: Cell | None) -> str:
    return "" if cell is None else str(cell)
