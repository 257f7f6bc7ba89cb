"""Pure: lines -> a board, what every format shows: cells, what is best, gains, heads' shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.data.shots import amount
from harness.evaluation.records import CHOICE_SPLIT
from harness.reporting.boards.best import Best, best_of
from harness.reporting.boards.share import Share, shares
from harness.reporting.grid import (
    AVERAGE_SINGLE,
    BEST_SINGLE,
    HEADLINE_SHOTS,
    MAJORITY,
    MAX,
    Cell,
    Grid,
    Reading,
    laid_out,
    named_rows,
    reading_of,
)
from harness.reporting.lines import Line, tasks_by, without_first
from harness.reporting.verdict import Sampled

MEAN = "mean"
HOW = {
    AVERAGE_SINGLE: "the mean over all experts with the labels of a task, each of them read on it",
    BEST_SINGLE: f"the expert with the best Current Eval on {CHOICE_SPLIT}, over the tasks that "
    "the same experts are read on",
    MAX: "the best on the reported rows themselves, an oracle",
    MAJORITY: "the best constant prediction: the most frequent label, or the mean of a regression",
}
"""What rows are that are read off no model of their own."""


@dataclass(frozen=True)
class Board:
    """Lines as methods x tasks for every reading, and what is said of them.

    `best` has, for every column of a reading, the merges that are the best or not told from it.
    """

    lines: tuple[Line, ...]
    scores: Grid
    best: Mapping[tuple[Reading, str], Best]
    shares: tuple[Share, ...]

    @cached_property
    def tasks(self) -> Mapping[str, Line]:
        """A line of every task that is shown, which knows its metrics, rows and kind."""
        known = tasks_by(self.lines)
        return {task: known[task] for task in self.scores.tasks}

    @cached_property
    def readings(self) -> Mapping[Reading, Line]:
        """A line of every reading, which knows how drawn rows were used."""
        first: dict[Reading, Line] = {}
        for line in self.scores.lines.values():
            first.setdefault(reading_of(line), line)
        return first

    @cached_property
    def of_row(self) -> Mapping[str, Line]:
        """A line of every row that is read off a model, which knows its role and method."""
        first: dict[str, Line] = {}
        for (row, _, _), line in self.scores.lines.items():
            first.setdefault(row, line)
        return first

    @cached_property
    def rows_of_lines(self) -> list[str]:
        """The row of each line; of one that no row shows, the name of its model."""
        return named_rows(self.lines)

    @cached_property
    def headlines(self) -> dict[str, Reading]:
        """By protocol, the reading whose number of shots is nearest to the papers' five."""
        nearest: dict[str, Reading] = {}
        for reading in self.scores.readings:
            held = nearest.setdefault(reading.protocol, reading)
            if _away(reading) < _away(held):
                nearest[reading.protocol] = reading
        return nearest

    def rows_under(self, reading: Reading) -> list[tuple[str, list[Cell | None]]]:
        """The rows that have any cell under a reading, with their cells, mean last."""
        rows = [(name, self.scores.row(name, reading)) for name in self.scores.rows]
        return [(name, cells) for name, cells in rows if any(cells)]

    @cached_property
    def counterparts(self) -> Mapping[str, str]:
        """For rows of merges, the row of the same with fewer stages before it, most of them."""
        known = {}
        for row, line in self.of_row.items():
            less = without_first(line.method) if line.role == "merged" else None
            while less is not None and row.replace(line.method, less, 1) not in self.of_row:
                less = without_first(less)
            if less is not None:
                known[row] = row.replace(line.method, less, 1)
        return known

    def gains(self, row: str, reading: Reading) -> list[float | None]:
        """By column, the points that a row is above its counterpart."""
        cells = self.scores.row(row, reading)
        other = self.counterparts.get(row)
        before = [None] * len(cells) if other is None else self.scores.row(other, reading)
        return [
            None if one is None or less is None else one.mean - less.mean
            for one, less in zip(cells, before, strict=True)
        ]


def _away(reading: Reading) -> float:
    return abs(amount(reading.shots) - HEADLINE_SHOTS)


def board_of(lines: Sequence[Line], sampled: Sampled | None = None) -> Board:
    """The board of lines. Raises BrokenRecord where a column would mix what is not one work.

    With `sampled`, what is best and what is lost are told by the predictions that are at hand.
    """
    scores = laid_out(lines, by_method=True)
    merges = {row for (row, _, _), line in scores.lines.items() if line.role == "merged"}
    best = best_of(scores, [row for row in scores.rows if row in merges], sampled)
    return Board(tuple(lines), scores, best, shares(scores, lines, sampled))
