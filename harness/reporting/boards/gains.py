"""Pure: how far cells of a board are above others, and whether that can be told from none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from harness.reporting.boards.best import Spot, alike, spots
from harness.reporting.grid import Grid, Place, Reading
from harness.reporting.lines import Line, without_first
from harness.reporting.verdict import Sampled
from harness.text import points

K = TypeVar("K")
OPEN = "?"
"""Stands behind a difference that cannot be told from none."""
OPEN_SAYS = (
    "a difference that is not told from none: by a paired interval over test rows and draws at "
    "95 %; where predictions are not at hand, by intervals and draws that do not overlap."
)


@dataclass(frozen=True)
class Gain:
    """A difference in points; whether it is told from none, None where no interval says."""

    points: float
    told: bool | None = None

    def __str__(self) -> str:
        return f"{points(self.points, '+')}{self.mark}"

    @property
    def mark(self) -> str:
        """What stands behind the number."""
        return OPEN if self.told is False else ""


def counterparts(of_row: Mapping[str, Line]) -> dict[str, str]:
    """For rows of merges, the row of the same with fewer stages before it, most of them."""
    known = {}
    for row, line in of_row.items():
        less = without_first(line.method) if line.role == "merged" else None
        while less is not None and row.replace(line.method, less, 1) not in of_row:
            less = without_first(less)
        if less is not None:
            known[row] = row.replace(line.method, less, 1)
    return known


def gained(scores: Grid, over: Mapping[str, str], sampled: Sampled | None) -> dict[Place, Gain]:
    """By row, reading and column, how far the rows are above those that they are `over`."""
    return {
        (row, reading, column): gain
        for reading in scores.readings
        for row, other in over.items()
        for column, gain in _gains(scores, (row, reading), (other, reading), sampled)
    }


def gaps(
    scores: Grid, rows: Iterable[str], current: Reading, tuned: Reading, sampled: Sampled | None
) -> dict[tuple[str, str], Gain]:
    """By row and column, how far the rows are above themselves under another protocol."""
    return {
        (row, column): gain
        for row in rows
        for column, gain in _gains(scores, (row, tuned), (row, current), sampled)
    }


def settled(gains: Mapping[K, Gain]) -> dict[K, Gain]:
    """Gains; where of some it is known whether they can be told from none, the rest cannot."""
    known = any_told(gains)
    return {key: replace(one, told=bool(one.told)) if known else one for key, one in gains.items()}


def any_told(gains: Mapping[K, Gain]) -> bool:
    """Whether of any it is known if it can be told from none."""
    return any(gain.told is not None for gain in gains.values())


def _gains(
    scores: Grid,
    first: tuple[str, Reading],
    second: tuple[str, Reading],
    sampled: Sampled | None,
) -> list[tuple[str, Gain]]:
    """How far one row is above another, by column."""
    places = zip(scores.columns, spots(scores, *first), spots(scores, *second), strict=True)
    return [
        (column, _gain(one, less, sampled))
        for column, one, less in places
        if one is not None and less is not None
    ]


def _gain(one: Spot, less: Spot, sampled: Sampled | None) -> Gain:
    points = one.cell.mean - less.cell.mean
    unclear, way = alike(*((one, less) if points >= 0 else (less, one)), sampled)
    return Gain(points, None if way == "printed" else not unclear)
