"""Pure: which cells of a column are the best, and which do not differ significantly."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import numpy as np

from harness.reporting.difference import by_task, difference_of, enough_draws
from harness.reporting.grid import CONSTANT, Cell, Grid
from harness.reporting.lines import Line, Setting
from harness.stats.estimate import mean_of
from harness.stats.intervals import FEWEST_SETS, LEVEL, student
from harness.stats.sets import Prior, prior_of
from harness.stats.tests import holm, p_value
from harness.text import points

Way = Literal["paired", "intervals", "printed"]
"""How cells are compared: by a paired test, by stored intervals, or by values as printed."""
WAYS: Mapping[Way, str] = {
    "paired": "that do not differ significantly from it (paired test over test units and draws, "
    "Holm over the column)",
    "intervals": "whose interval over test rows, or whose draws, overlap with those of the best "
    "(records without resamples)",
    "printed": "that are printed alike (records without an interval)",
}
K = TypeVar("K")


@dataclass(frozen=True)
class Best:
    """The rows of a column that are the best or do not differ from it; how they were compared."""

    rows: frozenset[str]
    ways: frozenset[Way]


@dataclass(frozen=True)
class Spot:
    """A cell with the lines that it is of: for every task of a mean, and every set of experts."""

    cell: Cell
    lines: tuple[Line, ...]


def best_of(scores: Grid, rows: Sequence[str]) -> dict[tuple[Setting, str], Best]:
    """For every column of every setting, the best among these rows, ties and all.

    A column with a single one of the rows has no best, and nothing is that the best constant
    prediction reaches.
    """
    best = {}
    for setting in scores.settings:
        table = {row: spots(scores, row, setting) for row in rows}
        constants = scores.row(CONSTANT, setting)
        for at, column in enumerate(scores.columns):
            places = {row: place for row, of in table.items() if (place := of[at]) is not None}
            if len(places) > 1:
                made, constant = _best(places), constants[at]
                if constant is not None:
                    low = {r for r, one in places.items() if one.cell.mean <= constant.mean}
                    made = replace(made, rows=made.rows - low)
                best[setting, column] = made
    return best


def spots(scores: Grid, row: str, setting: Setting) -> list[Spot | None]:
    """The cells of a row under a setting, by column."""
    known = {task: scores.lines_at((row, setting, task)) for task in scores.tasks}
    every = tuple(line for of in known.values() for line in of)
    cells = zip(scores.columns, scores.row(row, setting), strict=True)
    return [
        None if cell is None else Spot(cell, known.get(column) or every) for column, cell in cells
    ]


def _best(places: Mapping[str, Spot]) -> Best:
    top = max(places.values(), key=lambda place: place.cell.mean)
    known = _prior(places.values())
    others = tested({row: apart(top, one, known) for row, one in places.items() if one is not top})
    same = {row for row, one in others.items() if not one.significant and not one.ahead}
    return Best(
        frozenset(same | {row for row, place in places.items() if place is top}),
        frozenset(one.way for one in others.values()),
    )


@dataclass(frozen=True)
class Apart:
    """How far a cell is above another, in points, and whether significantly.

    `p` is of the paired test, None without one. `significant` is None where nothing says; `ahead`,
    that all that is known are the two numbers, which are printed differently.
    """

    points: float
    way: Way
    p: float | None = None
    significant: bool | None = None
    ahead: bool = False


def tested(family: Mapping[K, Apart]) -> dict[K, Apart]:
    """A family of differences, Holm over its tests."""
    p = {key: one.p for key, one in family.items() if one.p is not None}
    adjusted = dict(zip(p, holm([*p.values()]), strict=True))
    return {
        key: replace(one, significant=adjusted[key] < 1 - LEVEL) if key in p else one
        for key, one in family.items()
    }


def _prior(places: Collection[Spot]) -> Prior | None:
    """How far the rows of a column differ over sets of experts; None of fewer than three."""
    if any(len({line.set for line in one.lines}) < FEWEST_SETS for one in places):
        return None
    each = [by_task(one.lines) for one in places]
    found = [mean_of(one) for (one,) in filter(None, each)]
    return prior_of(found) if len(found) == len(each) else None


def apart(one: Spot, other: Spot, known: Prior | None = None) -> Apart:
    """How far a cell is above another.

    Of records without resamples, intervals over rows that do not overlap, and draws that do not
    either, are of models that differ on the same rows as well; where they overlap, it is unknown.
    """
    first, second = one.cell, other.cell
    above = first.mean - second.mean
    shared = {line.set for line in one.lines} & {line.set for line in other.lines}
    each = [[line for line in of.lines if line.set in shared] for of in (one, other)]
    difference = difference_of(*each)
    if difference is not None:
        if not enough_draws([*each[0], *each[1]]):
            return Apart(above, "paired", significant=False)
        return Apart(above, "paired", p_value(difference, known))
    if first.interval is None or second.interval is None:
        return Apart(above, "printed", ahead=points(first.mean) != points(second.mean))
    high, low = (first, second) if above >= 0 else (second, first)
    reach = _below(high) + _below(low, up=True)
    return Apart(
        above, "intervals", significant=abs(above) > math.hypot(reach, _of_draws(high, low))
    )


def _below(cell: Cell, *, up: bool = False) -> float:
    """How far the interval of a cell goes down, or up."""
    low, high = cell.interval or (cell.mean, cell.mean)
    return high - cell.mean if up else cell.mean - low


def _of_draws(one: Cell, other: Cell) -> float:
    """Half of Student's interval of a difference over the draws that both have; 0 without any."""
    count = min((len(cell.values) for cell in (one, other) if len(cell.values) > 1), default=1)
    if count < 2:
        return 0.0
    each = [np.broadcast_to(cell.values[:count], count) for cell in (one, other)]
    spread = float((each[0] - each[1]).std(ddof=1))
    return student((1 - LEVEL) / 2, count - 1) * spread / math.sqrt(count)
