"""Pure: which cells of a column are the best, and which cannot be told from it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harness.evaluation.estimates import Estimate, drawn_alike, mean_of, minus, widened, within
from harness.reporting.difference import in_points
from harness.reporting.grid import Cell, Grid, Reading
from harness.reporting.lines import Line
from harness.reporting.verdict import Sampled
from harness.text import points
from harness.types import Array64

Way = Literal["paired", "intervals", "printed"]
"""How cells are told apart: by a paired interval, stored intervals, or values as printed."""
WAYS: Mapping[Way, str] = {
    "paired": "that a paired interval over test rows and draws does not tell from it at 95 %",
    "intervals": "whose interval over test rows, or whose draws, overlap with those of the best, "
    "where predictions are not at hand",
    "printed": "that are printed alike, where no interval is stored",
}


@dataclass(frozen=True)
class Best:
    """The rows of a column that are the best or not told from it, and how they were told."""

    rows: frozenset[str]
    ways: frozenset[Way]


@dataclass(frozen=True)
class Spot:
    """A cell with the lines that it is of: one, or one for every task of a mean."""

    cell: Cell
    lines: tuple[Line, ...]


def best_of(
    scores: Grid, rows: Sequence[str], sampled: Sampled | None = None
) -> dict[tuple[Reading, str], Best]:
    """For every column of every reading, the best among these rows, ties and all.

    With `sampled`, by the predictions that are at hand. A column with a single one of the rows has
    no best.
    """
    best = {}
    for reading in scores.readings:
        table = {row: spots(scores, row, reading) for row in rows}
        for at, column in enumerate(scores.columns):
            places = {row: place for row, of in table.items() if (place := of[at]) is not None}
            if len(places) > 1:
                best[reading, column] = _best(places, sampled)
    return best


def spots(scores: Grid, row: str, reading: Reading) -> list[Spot | None]:
    """The cells of a row under a reading, by column."""
    known = {task: scores.lines.get((row, reading, task)) for task in scores.tasks}
    every = tuple(line for line in known.values() if line is not None)
    cells = zip(scores.columns, scores.row(row, reading), strict=True)
    return [
        None if cell is None else Spot(cell, (line,) if (line := known.get(column)) else every)
        for column, cell in cells
    ]


def _best(places: Mapping[str, Spot], sampled: Sampled | None) -> Best:
    top = max(places.values(), key=lambda place: place.cell.mean)
    told = {row: alike(top, place, sampled) for row, place in places.items()}
    return Best(
        frozenset(row for row, (alike, _) in told.items() if alike),
        frozenset(way for row, (_, way) in told.items() if places[row] is not top),
    )


def alike(top: Spot, other: Spot, sampled: Sampled | None) -> tuple[bool, Way]:
    """Whether a cell cannot be told from one that is as high or higher, and how that was found.

    Intervals over rows that do not overlap, and draws that do not either, tell two models apart on
    the same rows as well; where they do, the predictions may tell them apart.
    """
    if other is top:
        return True, "printed"
    one, two = top.cell, other.cell
    known = one.interval is not None and two.interval is not None
    if one.interval and two.interval:
        above = one.mean - two.mean
        both = one.mean - one.interval[0] + two.interval[1] - two.mean
        if widened(above, (above - both, above + both), _draws(top, other))[0] > 0:
            return False, "intervals"
    if sampled is not None and (difference := _difference(top, other, sampled)) is not None:
        return within(difference)[0] <= 0, "paired"
    return known or points(one.mean) == points(two.mean), "intervals" if known else "printed"


def _draws(top: Spot, other: Spot) -> Array64:
    """How far one cell is above the other on each draw."""
    one, two = drawn_alike([np.asarray(spot.cell.values) for spot in (top, other)])
    return np.asarray(one - two)


def _difference(top: Spot, other: Spot, sampled: Sampled) -> Estimate | None:
    """How far one is above the other, in the mean over their tasks.

    None where a prediction is not at hand, or a score is read off no model.
    """
    if not top.lines or len(top.lines) != len(other.lines):
        return None
    differences = []
    for lines in zip(top.lines, other.lines, strict=True):
        pair = [in_points(line.values, sampled(line)) for line in lines]
        if pair[0] is None or pair[1] is None:
            return None
        differences.append(minus(pair[0], pair[1]))
    return mean_of(differences)
