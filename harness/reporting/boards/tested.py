"""Pure: which cells of a board differ significantly: the best of a column, gains and gaps."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from harness.reporting.difference import Difference, by_task, difference_of, enough_draws
from harness.reporting.grid import CONSTANT, Grid, GridCell, GridPlace
from harness.reporting.lines import CURRENT, Line, Setting, grouped
from harness.stats.estimate import mean_of
from harness.stats.intervals import FEWEST_SETS, LEVEL
from harness.stats.sets import Prior, prior_of
from harness.stats.tests import holm, p_value

K = TypeVar("K")


def best_of(scores: Grid, rows: Sequence[str]) -> dict[tuple[Setting, str], frozenset[str]]:
    """For every column of every setting, the best among these rows, ties and all.

    A column with a single one of the rows has no best, and nothing is that the best constant
    prediction reaches.
    """
    best = {}
    for setting in scores.settings:
        table = {row: scores.row(row, setting) for row in rows}
        for at, column in enumerate(scores.columns):
            cells = {row: cell for row, of in table.items() if (cell := of[at]) is not None}
            if len(cells) > 1:
                best[setting, column] = _best(cells, scores.row(CONSTANT, setting)[at])
    return best


def _best(cells: Mapping[str, GridCell], constant: GridCell | None) -> frozenset[str]:
    first = max(cells, key=lambda row: cells[row].mean)
    known = _prior(cells.values())
    others = tested(
        {row: above(cells[first], one, known) for row, one in cells.items() if row != first}
    )
    same = {row for row, one in others.items() if not one.significant}
    low = -math.inf if constant is None else constant.mean
    return frozenset(row for row in {first, *same} if cells[row].mean > low)


def tested(family: Mapping[K, Difference]) -> dict[K, Difference]:
    """A family of differences, Holm over its tests."""
    p = {key: one.p for key, one in family.items() if one.p is not None}
    adjusted = dict(zip(p, holm([*p.values()]), strict=True))
    return {
        key: replace(one, significant=adjusted[key] < 1 - LEVEL) if key in p else one
        for key, one in family.items()
    }


def _prior(cells: Collection[GridCell]) -> Prior | None:
    """How far the rows of a column differ over sets of experts; None of fewer than three."""
    if any(len({line.set for line in one.lines}) < FEWEST_SETS for one in cells):
        return None
    each = [by_task(one.lines) for one in cells]
    found = [mean_of(one) for (one,) in filter(None, each)]
    return prior_of(found) if len(found) == len(each) else None


def above(one: GridCell, other: GridCell, known: Prior | None = None) -> Difference:
    """How far a cell is above another, by the sets of experts that both have.

    What cannot be tested is not significant.
    """
    far = one.mean - other.mean
    sets = [{line.set for line in of.lines} for of in (one, other)]
    shared = set.intersection(*sets)
    first, second = ([line for line in of.lines if line.set in shared] for of in (one, other))
    paired = difference_of(first, second)
    if paired is not None and sets[0] != sets[1]:
        far = 100 * paired.point
    if paired is None or not enough_draws([*first, *second]):
        return Difference(far, significant=False)
    return Difference(far, paired, p=p_value(paired, known))


# Gains -------------------------------------------------------------------------------------


def counterparts(of_row: Mapping[str, Line]) -> dict[str, str]:
    """For rows of merges, the row of the same with fewer stages before it, most of them."""

    def key(line: Line, fewer: int = 0) -> tuple[object, ...]:
        same = line.made_on_test, line.head, line.labels, line.preset
        return line.merger, line.postmerge, line.premerge[fewer:], *same

    merges = {row: line for row, line in of_row.items() if line.role == "merged"}
    rows = grouped(merges, lambda row: key(merges[row]))
    known = {}
    for row, line in merges.items():
        fewer = (key(line, n) for n in range(1, len(line.premerge) + 1))
        if found := next((rows[one] for one in fewer if one in rows), None):
            known[row] = min(found, key=lambda one: merges[one].experts != line.experts)
    return known


def gained(scores: Grid, over: Mapping[str, str]) -> dict[GridPlace, Difference]:
    """By row, setting and column, how far the rows are above those that they are `over`."""
    return {
        (row, setting, column): gain
        for setting in scores.settings
        for (row, column), gain in _by_column(
            scores, {row: ((row, setting), (other, setting)) for row, other in over.items()}
        ).items()
    }


def under_heads(scores: Grid) -> tuple[Setting, Setting] | None:
    """Current Eval, and FT-Classifier Eval as a board shows it first; None without both."""
    shown, lines = scores.headlines, scores.of_setting
    tuned = next((at for at in shown.values() if at in lines and lines[at].tuned), None)
    return (shown[CURRENT], tuned) if tuned and CURRENT in shown else None


def gaps(
    scores: Grid, rows: Iterable[str], current: Setting, tuned: Setting
) -> dict[tuple[str, str], Difference]:
    """By row and column, how far the rows are above themselves under another protocol."""
    return _by_column(scores, {row: ((row, tuned), (row, current)) for row in rows})


def _by_column(
    scores: Grid, pairs: Mapping[str, tuple[tuple[str, Setting], tuple[str, Setting]]]
) -> dict[tuple[str, str], Difference]:
    """By row and column, how far the first of each pair is above the second; Holm by column."""
    cells = {row: [scores.row(*place) for place in pair] for row, pair in pairs.items()}
    gains: dict[tuple[str, str], Difference] = {}
    for at, column in enumerate(scores.columns):
        family = {
            (row, column): above(one, less)
            for row, (first, second) in cells.items()
            if (one := first[at]) is not None and (less := second[at]) is not None
        }
        gains |= tested(family)
    return gains
