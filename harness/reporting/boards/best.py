"""Pure: which cells of a column are the best, and which cannot be told from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.reporting.grid import Cell, Grid, Reading

Way = Literal["intervals", "printed"]
"""How cells are told apart: by their stored intervals, or by the values as they are printed."""
WAYS: Mapping[Way, str] = {
    "intervals": "whose interval over test rows overlaps with that of the best",
    "printed": "that are printed alike, where no interval is stored",
}


@dataclass(frozen=True)
class Best:
    """The rows of a column that are the best or not told from it, and how they were told."""

    rows: frozenset[str]
    ways: frozenset[Way]


def best_of(scores: Grid, rows: Sequence[str]) -> dict[tuple[Reading, str], Best]:
    """For every column of every reading, the best among these rows, ties and all.

    A column with a single one of them has no best.
    """
    best = {}
    for reading in scores.readings:
        table = [(row, scores.row(row, reading)) for row in rows]
        for place, column in enumerate(scores.columns):
            cells = {row: cell for row, of in table if (cell := of[place]) is not None}
            if len(cells) > 1:
                best[reading, column] = _best(cells)
    return best


def _best(cells: Mapping[str, Cell]) -> Best:
    top = max(cells.values(), key=lambda cell: cell.mean)
    told = {row: _alike(top, cell) for row, cell in cells.items()}
    return Best(
        frozenset(row for row, (alike, _) in told.items() if alike),
        frozenset(way for row, (_, way) in told.items() if cells[row] is not top),
    )


def _alike(top: Cell, other: Cell) -> tuple[bool, Way]:
    """Whether a cell cannot be told from the best one, and how that was found.

    Intervals that overlap are a careful sign: some such pairs differ on the same rows.
    """
    if top.interval is None or other.interval is None:
        return f"{top.mean:.1f}" == f"{other.mean:.1f}", "printed"
    return other.interval[1] >= top.interval[0], "intervals"
