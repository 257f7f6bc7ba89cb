"""Pure: lines -> a board, what every format shows: cells, what is best, gains, heads' shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.data.shots import amount
from harness.reporting.boards.best import Best, best_of
from harness.reporting.boards.credit import Credits, credits_of
from harness.reporting.boards.gains import Gain, counterparts, gained, gaps, settled
from harness.reporting.boards.share import Share, shares
from harness.reporting.grid import (
    AVERAGE_SINGLE,
    BEST_SINGLE,
    CONSTANT,
    CURRENT,
    HEADLINE_SHOTS,
    MAX,
    Cell,
    Grid,
    Place,
    Reading,
    laid_out,
    named_rows,
    reading_of,
)
from harness.reporting.lines import TUNED, Line, tasks_by
from harness.types import HELD_OUT

MEAN = "mean"
HOW = {
    AVERAGE_SINGLE: "the mean over all experts with the labels of a task, each of them read on it",
    BEST_SINGLE: f"the expert with the best Current Eval on {HELD_OUT}, over the tasks that "
    "the same experts are read on",
    MAX: "the best on the reported rows themselves, an oracle",
    CONSTANT: "the best prediction that is the same for every row: of accuracy the majority label, "
    "of a regression the mean, of tags no entity",
}
"""What rows are that are read off no model of their own."""


@dataclass(frozen=True)
class Board:
    """Lines as methods x tasks for every reading, and what is said of them.

    `best` has, for every column of a reading, the merges that are the best or do not differ from
    it. `of_row` is a line of every row that is read off a model, which knows its role and method;
    `counterparts` are, for rows of merges, what their gains are over, and `gained` these gains;
    `gaps` are, by row and column, FT-Classifier Eval minus Current Eval.
    """

    lines: tuple[Line, ...]
    scores: Grid
    best: Mapping[tuple[Reading, str], Best]
    shares: tuple[Share, ...]
    of_row: Mapping[str, Line]
    counterparts: Mapping[str, str]
    gained: Mapping[Place, Gain]
    gaps: Mapping[tuple[str, str], Gain]

    @cached_property
    def tasks(self) -> Mapping[str, Line]:
        """A line of every task that is shown, which knows its metrics, rows and kind."""
        known = tasks_by(self.lines)
        return {task: known[task] for task in self.scores.tasks}

    @cached_property
    def spreads(self) -> tuple[bool, bool, tuple[float, ...]]:
        """Whether any cell has draws, or several experts; and the levels of all intervals."""
        cells = self.scores.cells.values()
        return (
            any(len(cell.values) > 1 for cell in cells),
            any(cell.across_experts is not None for cell in cells),
            tuple(sorted({line.level for line in self.scores.lines.values() if line.level})),
        )

    @cached_property
    def readings(self) -> Mapping[Reading, Line]:
        """A line of every reading, which knows how drawn rows were used."""
        first: dict[Reading, Line] = {}
        for line in self.scores.lines.values():
            first.setdefault(reading_of(line), line)
        return first

    @cached_property
    def rows_of_lines(self) -> list[str]:
        """The row of each line; of one that no row shows, the name of its model."""
        return named_rows(self.lines)

    @cached_property
    def headlines(self) -> dict[str, Reading]:
        """By protocol, the reading whose number of shots is nearest to the papers' five."""
        return headlines(self.scores)

    @cached_property
    def credits(self) -> Credits | None:
        """Where the score of each merge goes; None where records do not say."""
        return credits_of(self)

    def rows_under(self, reading: Reading) -> list[tuple[str, list[Cell | None]]]:
        """The rows that have any cell under a reading, with their cells, mean last."""
        rows = [(name, self.scores.row(name, reading)) for name in self.scores.rows]
        return [(name, cells) for name, cells in rows if any(cells)]

    def gains(self, row: str, reading: Reading) -> list[Gain | None]:
        """By column, the points that a row is above its counterpart."""
        return [self.gained.get((row, reading, column)) for column in self.scores.columns]

    def gain(self, row: str, line: Line) -> Gain | None:
        """The gain of a line, which stands in a row."""
        return self.gained.get((row, reading_of(line), line.task))


def headlines(scores: Grid) -> dict[str, Reading]:
    """By protocol, the reading whose number of shots is nearest to the papers' five."""
    nearest: dict[str, Reading] = {}
    for reading in scores.readings:
        held = nearest.setdefault(reading.protocol, reading)
        if _away(reading) < _away(held):
            nearest[reading.protocol] = reading
    return nearest


def _away(reading: Reading) -> float:
    return abs(amount(reading.shots) - HEADLINE_SHOTS)


def board_of(lines: Sequence[Line]) -> Board:
    """The board of lines. Raises BrokenRecord where a column would mix what is not one work."""
    scores = laid_out(lines, by_method=True)
    merges = {row for (row, _, _), line in scores.lines.items() if line.role == "merged"}
    best = best_of(scores, [row for row in scores.rows if row in merges])
    of_row: dict[str, Line] = {}
    for (row, _, _), line in scores.lines.items():
        of_row.setdefault(row, line)
    over = counterparts(of_row)
    return Board(
        tuple(lines),
        scores,
        best,
        shares(scores, lines),
        of_row,
        over,
        settled(gained(scores, over)),
        settled(_gaps(scores, of_row)),
    )


def _gaps(scores: Grid, rows: Iterable[str]) -> dict[tuple[str, str], Gain]:
    """Between Current Eval and FT-Classifier Eval, as boards show them first; {} without both."""
    lines = {reading: line for (_, reading, _), line in scores.lines.items()}
    first: dict[str, Reading] = {}
    for reading in headlines(scores).values():
        line = lines.get(reading)
        if line is not None and (line.protocol == CURRENT or line.tuned):
            first.setdefault(line.protocol, reading)
    if not {CURRENT, TUNED} <= first.keys():
        return {}
    return gaps(scores, rows, first[CURRENT], first[TUNED])
