"""Pure: lines -> a board, which every format shows: cells, best merges, gains, heads' shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import NamedTuple

from harness.reporting.boards.credit import Credits, credits_of
from harness.reporting.boards.tested import (
    Priors,
    best_of,
    counterparts,
    gained,
    gaps,
    head_settings,
    priors_of,
    with_holm,
)
from harness.reporting.difference import Difference
from harness.reporting.grid import Grid, GridCell, GridPlace, board_row_names, grid_of_lines
from harness.reporting.lines import CURRENT, Line, Setting, grouped, tasks_by
from harness.reporting.names import AVERAGE_SINGLE, BEST_SINGLE, CONSTANT, MAX
from harness.reporting.sets import with_set_numbers
from harness.reporting.verdict import Verdict, experts_and_bases, verdicts_on
from harness.stats.intervals import too_few_sets
from harness.types import HELD_OUT

COMPUTED_ROW_NOTES = {
    AVERAGE_SINGLE: "the mean over all experts with the labels of a task, each evaluated on it",
    BEST_SINGLE: f"the expert with the best Current Eval on {HELD_OUT}, over the tasks that "
    "the same experts are evaluated on",
    MAX: "chosen on the scored rows, an oracle",
    CONSTANT: "the best prediction that is the same for every row: for accuracy the majority "
    "label, for a regression the mean, for tags no entity, for several labels the most frequent "
    "ones, as many as score most",
}
"""What the computed rows show, by name."""
SAME = " = "
"""Joins the names of rows that are folded into one."""


class ShownCell(NamedTuple):
    """A cell, its line (None: computed from other cells), whether it is the best, and its gain."""

    cell: GridCell
    line: Line | None
    best: bool
    gain: Difference | None


@dataclass(frozen=True)
class HeadShare:
    """The row of a merge or base, its verdict, its loss, and what a tuned head recovers of it.

    `lost` is tested with Holm over the rows of a setting; only a significant loss has a share.
    """

    row: str
    verdict: Verdict
    lost: Difference
    recovered: Difference

    @property
    def share(self) -> str:
        """How much of the loss the head explains, with its interval; "" where that is unknown."""
        return "" if self.lost.significant is False else self.verdict.share


@dataclass(frozen=True)
class Board:
    """Lines as methods x tasks for every setting, with best merges, gains, shares and credits.

    `joint_names` has the joint name of each row that is folded with others of the same scores;
    `unchanged` are the rows that are folded with their own counterpart: their gain is zero.
    `counterparts` has, for a row of a merge, the row that its gains are measured from. `priors` are
    what the variances of differences of merges over sets of experts are shrunk towards. Tests run
    on first access.
    """

    lines: tuple[Line, ...]
    joint_names: Mapping[str, str]
    unchanged: frozenset[str]
    scores: Grid
    counterparts: Mapping[str, str]
    priors: Priors

    @property
    def sets(self) -> int:
        """The largest number of sets of experts that a cell averages over."""
        return max(len(cell.lines) for cell in self.scores.cells.values())

    @cached_property
    def tasks(self) -> Mapping[str, Line]:
        """One line of each shown task, for its metrics, number of rows and kind."""
        lines = tasks_by(self.lines)
        return {task: lines[task] for task in self.scores.tasks}

    @cached_property
    def rows_of_lines(self) -> list[str]:
        """The row of each line; the name of its model for a line that no row shows."""
        return [self.joint_names.get(row, row) for row in board_row_names(self.lines)]

    @cached_property
    def best(self) -> Mapping[tuple[Setting, str], frozenset[str]]:
        """By setting and column, the best merge and those not significantly different from it."""
        return best_of(self.scores, self.priors)

    @cached_property
    def gained(self) -> Mapping[GridPlace, Difference]:
        """The gains of merges over their counterparts."""
        return gained(self.scores, self.counterparts, self.priors)

    @cached_property
    def gaps(self) -> Mapping[tuple[str, str], Difference]:
        """By row and column, FT-Classifier Eval minus Current Eval; empty without both."""
        heads = head_settings(self.scores)
        return gaps(self.scores, self.scores.line_of_row, *heads) if heads else {}

    @cached_property
    def shares(self) -> tuple[HeadShare, ...]:
        """The head's share of the loss of each row, settings in the order they come."""
        return shares_of(self.scores, self.lines)

    @cached_property
    def credits(self) -> Credits | None:
        """Where the score of each merge goes; None where records do not suffice (`credits_of`)."""
        return credits_of(self)

    def row(self, name: str, setting: Setting) -> list[ShownCell | None]:
        """The cells of a row under a setting, mean last."""
        cells = []
        for column, cell in zip(self.scores.columns, self.scores.row(name, setting), strict=True):
            place, is_best = (name, setting, column), name in self.best.get((setting, column), ())
            line, gain = self.scores.lines.get(place), self.gained.get(place)
            cells.append(None if cell is None else ShownCell(cell, line, is_best, gain))
        return cells

    def under(self, setting: Setting) -> list[tuple[str, list[ShownCell | None]]]:
        """The rows that have any cell under a setting, with their cells, mean last."""
        rows = [(name, self.row(name, setting)) for name in self.scores.rows]
        return [(name, cells) for name, cells in rows if any(cells)]


def board_of(lines: Sequence[Line]) -> Board:
    """The board of lines. Raises BrokenRecord if lines of a column are not comparable
    (`conditions`)."""
    lines = with_set_numbers(lines)
    whole = grid_of_lines(lines, by_method=True)
    names = same_rows(whole)
    partners = counterparts(whole.line_of_row)
    unchanged = frozenset(row for row in names if names[row] == names.get(partners.get(row, "")))
    partners = {
        names.get(row, row): names.get(other, other)
        for row, other in partners.items()
        if row not in unchanged
    }
    scores = folded(whole, names)
    return Board(
        lines=tuple(lines),
        joint_names=names,
        unchanged=unchanged,
        scores=scores,
        counterparts=partners,
        priors=priors_of(scores),
    )


def scores_of(lines: Sequence[Line]) -> Grid:
    """The grid of a board of these lines, with rows of the same scores folded."""
    whole = grid_of_lines(lines, by_method=True)
    return folded(whole, same_rows(whole))


def same_rows(scores: Grid) -> dict[str, str]:
    """By row, the joint name of all rows with the same scores in every column.

    Only models of the same role and experts are joined. In a single column they may have the same
    score by chance: there, only models of the same weights.
    """
    groups: dict[object, list[str]] = {}
    for row in (row for row in scores.rows if row in scores.lines_of_row):
        lines = scores.lines_of_row[row]
        cells = frozenset((line.setting, line.task, line.values) for line in lines)
        digest = lines[0].digest if len(cells) == 1 else ""
        key = lines[0].role, lines[0].made_on_test, lines[0].experts, cells, digest
        groups.setdefault(key, []).append(row)
    names = {SAME.join(rows[:2]): rows for rows in groups.values() if len(rows) > 1}
    more = {name: f"{SAME}{len(rows) - 2} more" if rows[2:] else "" for name, rows in names.items()}
    return {row: name + more[name] for name, rows in names.items() for row in rows}


def folded(scores: Grid, joint_names: Mapping[str, str]) -> Grid:
    """The grid with rows renamed by `joint_names`; of rows with the same new name the first
    stays."""
    rows: dict[str, str] = {}
    for row in scores.rows:
        rows.setdefault(joint_names.get(row, row), row)
    new_names = {row: new for new, row in rows.items()}
    cells = {
        (new_names[place[0]], *place[1:]): cell
        for place, cell in scores.cells.items()
        if place[0] in new_names
    }
    return replace(scores, rows=(*rows,), cells=cells)


def shares_of(scores: Grid, lines: Sequence[Line]) -> tuple[HeadShare, ...]:
    """The shares of all rows with a verdict, setting by setting, grouped by protocol."""
    against = experts_and_bases(lines)
    verdicts: dict[Setting, dict[str, Verdict]] = {}
    for row in scores.rows:
        own_lines = [
            line for line in scores.lines_of_row.get(row, ()) if line.role in ("merged", "base")
        ]
        for verdict in verdicts_on(own_lines, against):
            verdicts.setdefault(verdict.setting, {})[row] = verdict
    by_protocol = grouped(verdicts, lambda setting: setting.protocol).values()
    return tuple(
        share
        for setting in chain(*by_protocol)
        for share in _shares(scores, setting, verdicts[setting])
    )


def _shares(scores: Grid, tuned: Setting, verdicts: Mapping[str, Verdict]) -> list[HeadShare]:
    """The shares under one setting; `verdicts` are those of its rows."""
    of_sets = max(verdict.sets for verdict in verdicts.values())
    lost = with_holm(
        {
            row: Difference(verdict.loss, significant=False)
            if too_few_sets(verdict.sets, of_sets)
            else Difference(verdict.loss, p=verdict.p)
            for row, verdict in verdicts.items()
        }
    )
    recovered, mean = gaps(scores, verdicts, scores.headlines[CURRENT], tuned), scores.columns[-1]
    return [
        HeadShare(
            row, verdict, lost[row], recovered.get((row, mean), Difference(verdict.recovered))
        )
        for row, verdict in verdicts.items()
    ]
