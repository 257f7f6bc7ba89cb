"""Pure: which scores of a board differ significantly: the best of a column, gains and gaps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import TypeAlias, TypeVar

from harness.reporting.difference import (
    Difference,
    by_task,
    difference_of,
    enough_draws,
    sets_of_all,
    significant_pairs,
    task_sets,
)
from harness.reporting.grid import Grid, GridCell, GridPlace
from harness.reporting.lines import CURRENT, Line, Setting, grouped
from harness.reporting.names import CONSTANT
from harness.stats.estimate import Prior, mean_of
from harness.stats.intervals import DIGITS, LEVEL, too_few_sets
from harness.stats.priors import prior_of
from harness.stats.tests import holm, p_value

K = TypeVar("K")
Priors: TypeAlias = Mapping[tuple[Setting, str], Prior | None]
"""By setting and column, what variances of differences over sets of experts are shrunk towards."""
MOST_BOARD_ROWS = 60
"""The most merges of which all pairs are tested: with more, Holm leaves hardly any significant."""


def priors_of(scores: Grid) -> Priors:
    """The prior of each column, for tests between merges."""
    return {place: _prior(cells.values()) for place, cells in _merges_by_column(scores)}


def _merges_by_column(scores: Grid) -> Iterator[tuple[tuple[Setting, str], dict[str, GridCell]]]:
    merges = scores.models("merged")
    for setting in scores.settings:
        table = {row: scores.row(row, setting) for row in merges}
        for index, column in enumerate(scores.columns):
            yield (
                (setting, column),
                {row: cell for row, cells in table.items() if (cell := cells[index]) is not None},
            )


def best_of(scores: Grid, priors: Priors) -> dict[tuple[Setting, str], frozenset[str]]:
    """By setting and column, the best merge and those not significantly different from it.

    Holm over all pairs, as any merge may be the highest. A column with only one merge has no best
    row, and no row is best that does not score more than the best constant prediction.
    """
    best = {}
    for place, cells in _merges_by_column(scores):
        if len(cells) > 1:
            constant = scores.cell(CONSTANT, *place)
            low = -math.inf if constant is None else round(constant.mean, DIGITS)
            first = max(cells, key=lambda row: cells[row].mean)
            same = cells.keys() - {*_behind(first, cells, priors[place])}
            best[place] = frozenset(row for row in same if round(cells[row].mean, DIGITS) > low)
    return best


def _behind(first: str, cells: Mapping[str, GridCell], prior: Prior | None) -> Iterator[str]:
    """The rows of a column that score significantly less than the first."""
    rows = [*cells]
    estimates = by_task(*(cell.lines for cell in cells.values()))
    sets = {task_sets(cell.lines) for cell in cells.values()}
    if (
        estimates is not None
        and len(sets) == 1
        and len(rows) <= MOST_BOARD_ROWS
        and enough_draws([line for cell in cells.values() for line in cell.lines])
    ):
        index = rows.index(first)
        for pair in significant_pairs(estimates, prior):
            if index in pair:
                yield rows[sum(pair) - index]
        return
    # too many rows, or different sets: only pairs with the first are tested, all others count p = 1
    others = [row for row in rows if row != first]
    p = [difference_of_cells(cells[first], cells[row], prior).p for row in others]
    untested = [1.0] * math.comb(len(others), 2)
    adjusted = holm([*(1.0 if one is None else one for one in p), *untested])
    yield from (row for row, value in zip(others, adjusted, strict=False) if value < 1 - LEVEL)


def with_holm(family: Mapping[K, Difference]) -> dict[K, Difference]:
    """The differences with their significance, Holm over the whole family."""
    p = {key: difference.p for key, difference in family.items() if difference.p is not None}
    adjusted = dict(zip(p, holm([*p.values()]), strict=True))
    return {
        key: replace(difference, significant=adjusted[key] < 1 - LEVEL) if key in p else difference
        for key, difference in family.items()
    }


def _prior(cells: Iterable[GridCell]) -> Prior | None:
    """The prior of a column, estimated from the rows that share the most sets of experts."""
    by_sets = grouped(cells, lambda cell: task_sets(cell.lines))
    estimates = [by_task(cell.lines) for cell in by_sets[max(by_sets, key=len)]] if by_sets else []
    return prior_of([mean_of(scores) for (scores,) in filter(None, estimates)])


def difference_of_cells(
    one: GridCell, other: GridCell, prior: Prior | None = None, *, of_sets: int = 1
) -> Difference:
    """How far a cell is above another, tested on the sets of experts that both have on every task.

    A difference that cannot be tested counts as not significant. `of_sets` is the largest number of
    sets in the column: where its tests are over sets, one on fewer sets than that takes is none.
    """
    points = one.mean - other.mean
    shared = sets_of_all([task_sets(cell.lines) for cell in (one, other)])
    first, second = ([line for line in cell.lines if line.set in shared] for cell in (one, other))
    paired = difference_of(first, second)
    if paired is not None and len([*first, *second]) < len([*one.lines, *other.lines]):
        points = 100 * paired.point
    of_sets = max(of_sets, *map(_whole_sets, (one, other)))
    few = too_few_sets(len(shared), of_sets, prior)
    if paired is None or few or not enough_draws([*first, *second]):
        return Difference(points, significant=False)
    paired = replace(paired, prior=prior)
    return Difference(points, paired, p=p_value(paired))


def _whole_sets(cell: GridCell) -> int:
    """How many sets of experts a cell has on all of its tasks."""
    return len(sets_of_all([task_sets(cell.lines)]))


# Gains -------------------------------------------------------------------------------------


def counterparts(of_row: Mapping[str, Line]) -> dict[str, str]:
    """By row of a merge, the row of the same merge without its first pre-merging stage or stages.

    Of several such rows, the one that lacks the fewest.
    """

    def key(line: Line, fewer: int = 0) -> tuple[object, ...]:
        same = line.made_on_test, line.head, line.labels, line.preset
        return line.merger, line.postmerge, line.premerge[fewer:], *same

    merges = {row: line for row, line in of_row.items() if line.role == "merged"}
    rows = grouped(merges, lambda row: key(merges[row]))
    partners = {}
    for row, line in merges.items():
        fewer = (key(line, n) for n in range(1, len(line.premerge) + 1))
        if found := next((rows[shorter] for shorter in fewer if shorter in rows), None):
            partners[row] = min(found, key=lambda other: merges[other].experts != line.experts)
    return partners


def gained(scores: Grid, over: Mapping[str, str], priors: Priors) -> dict[GridPlace, Difference]:
    """By row, setting and column, how far each row is above its counterpart in `over`."""
    return {
        (row, setting, column): gain
        for setting in scores.settings
        for (row, column), gain in _by_column(
            scores,
            {row: ((row, setting), (other, setting)) for row, other in over.items()},
            {column: priors[setting, column] for column in scores.columns},
        ).items()
    }


def head_settings(scores: Grid) -> tuple[Setting, Setting] | None:
    """The first settings of Current Eval and of FT-Classifier Eval; None unless both exist."""
    headlines, lines = scores.headlines, scores.of_setting
    tuned = next(
        (setting for setting in headlines.values() if setting in lines and lines[setting].tuned),
        None,
    )
    return (headlines[CURRENT], tuned) if tuned and CURRENT in headlines else None


def gaps(
    scores: Grid, rows: Iterable[str], current: Setting, tuned: Setting
) -> dict[tuple[str, str], Difference]:
    """By row and column, the score under `tuned` minus that under `current`."""
    return _by_column(scores, {row: ((row, tuned), (row, current)) for row in rows})


def _by_column(
    scores: Grid,
    pairs: Mapping[str, tuple[tuple[str, Setting], tuple[str, Setting]]],
    priors: Mapping[str, Prior | None] | None = None,
) -> dict[tuple[str, str], Difference]:
    """By row and column, how far the first of each pair is above the second; Holm by column."""
    cells = {row: [scores.row(*place) for place in pair] for row, pair in pairs.items()}
    gains: dict[tuple[str, str], Difference] = {}
    for index, column in enumerate(scores.columns):
        prior = None if priors is None else priors[column]
        both = {
            (row, column): (cell, other)
            for row, (first, second) in cells.items()
            if (cell := first[index]) is not None and (other := second[index]) is not None
        }
        of_sets = max(map(_whole_sets, chain(*both.values())), default=1)
        gains |= with_holm(
            {
                place: difference_of_cells(*pair, prior, of_sets=of_sets)
                for place, pair in both.items()
            }
        )
    return gains
