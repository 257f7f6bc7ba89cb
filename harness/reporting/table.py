"""Pure: records -> the one table that `evaluate` prints."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from harness.evaluation.records import Record
from harness.reporting.grid import HEADLINE_SHOTS, Cell, Reading, grid, short_task
from harness.text import plain


def evaluation_table(records: Sequence[Record], width: int | None = None) -> str:
    """One table: rows are the model and its references, columns are protocol x task, values x100.

    Of several numbers of shots the one nearest to 5 is shown. Where it is wider than `width`, the
    columns of each protocol stand below one another.
    """
    found = grid(records, by_method=False)
    shown = [reading for reading in found.readings if reading in _headline(found.readings)]
    blocks = [
        (
            [_heading(reading, short_task(column, found.tasks)) for column in found.columns],
            [[_text(cell) for cell in found.row(name, reading)] for name in found.rows],
        )
        for reading in shown
    ]

    def render(parts: Sequence[tuple[list[str], list[list[str]]]]) -> str:
        headers = ["", *(header for part in parts for header in part[0])]
        rows = [
            [plain(name), *(text for part in parts for text in part[1][index])]
            for index, name in enumerate(found.rows)
        ]
        kept = [row for row in rows if any(row[1:])]
        return tabulate(kept, headers, tablefmt="simple", disable_numparse=True)

    whole = render(blocks)
    if width is None or max(map(len, whole.splitlines())) <= width:
        return whole
    return "\n\n".join(render([block]) for block in blocks)


def _heading(reading: Reading, column: str) -> str:
    shown = [*map(plain, reading.lines), *([""] if not reading.shots else []), plain(column)]
    return "\n".join(shown)


def _headline(found: Sequence[Reading]) -> list[Reading]:
    """One number of shots per protocol, the nearest to the papers' five."""
    best: dict[str, Reading] = {}
    for reading in found:
        held = best.get(reading.protocol)
        if held is None or abs(reading.shots - HEADLINE_SHOTS) < abs(held.shots - HEADLINE_SHOTS):
            best[reading.protocol] = reading
    return list(best.values())


def _text(cell: Cell | None) -> str:
    return "" if cell is None else str(cell)
