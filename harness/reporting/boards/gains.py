"""Pure: how far cells of a board are above others, and whether significantly."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from harness.reporting.boards.best import apart, spots, tested
from harness.reporting.grid import Grid, Place
from harness.reporting.lines import Line, Setting, without_first
from harness.text import points

K = TypeVar("K")
OPEN = "?"
"""Stands behind a difference that is not significant."""
OPEN_SAYS = (
    "a difference that is not significant (paired test over test units and draws, Holm over the "
    "column; of records without resamples: intervals or draws overlap)."
)


@dataclass(frozen=True)
class Gain:
    """A difference in points; whether it is significant, None if unknown."""

    points: float
    significant: bool | None = None

    def __str__(self) -> str:
        return f"{points(self.points, '+')}{self.mark}"

    @property
    def mark(self) -> str:
        """What stands behind the number."""
        return OPEN if self.significant is False else ""


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


def gained(scores: Grid, over: Mapping[str, str]) -> dict[Place, Gain]:
    """By row, setting and column, how far the rows are above those that they are `over`."""
    gains: dict[Place, Gain] = {}
    for setting in scores.settings:
        pairs = {row: ((row, setting), (other, setting)) for row, other in over.items()}
        known = _by_column(scores, pairs)
        gains |= {(row, setting, column): gain for (row, column), gain in known.items()}
    return gains


def gaps(
    scores: Grid, rows: Iterable[str], current: Setting, tuned: Setting
) -> dict[tuple[str, str], Gain]:
    """By row and column, how far the rows are above themselves under another protocol."""
    return _by_column(scores, {row: ((row, tuned), (row, current)) for row in rows})


def settled(gains: Mapping[K, Gain]) -> dict[K, Gain]:
    """Gains; where of some it is known whether they are significant, the rest are not."""
    known = any_known(gains)
    return {
        key: replace(one, significant=bool(one.significant)) if known else one
        for key, one in gains.items()
    }


def any_known(gains: Mapping[K, Gain]) -> bool:
    """Whether of any it is known if it is significant."""
    return any(gain.significant is not None for gain in gains.values())


def _by_column(
    scores: Grid, pairs: Mapping[str, tuple[tuple[str, Setting], tuple[str, Setting]]]
) -> dict[tuple[str, str], Gain]:
    """By row and column, how far the first of each pair is above the second; Holm by column."""
    cells = {row: [spots(scores, *place) for place in pair] for row, pair in pairs.items()}
    gains = {}
    for at, column in enumerate(scores.columns):
        family = {
            row: apart(one, less)
            for row, (first, second) in cells.items()
            if (one := first[at]) is not None and (less := second[at]) is not None
        }
        for row, found in tested(family).items():
            gains[row, column] = Gain(found.points, found.significant)
    return gains
