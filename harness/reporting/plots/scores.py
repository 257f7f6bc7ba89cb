"""Pure: records -> the scores that a picture shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import PositiveInt

from harness.data.shots import amount, counted
from harness.errors import MissingScores
from harness.evaluation.records import Record
from harness.reporting.chosen import Chosen, chosen
from harness.reporting.difference import Difference, difference_of, enough_draws, in_points
from harness.reporting.grid import (
    HEADLINE_SHOTS,
    Cell,
    Reading,
    check_work,
    in_order,
    mean_cell,
    reading_of,
    readings_of,
    reported,
    short_task,
)
from harness.reporting.lines import Line, lines_of, tasks_by
from harness.reporting.names import row_names
from harness.types import Shots

MEAN = "mean"
"""The column of the mean over tasks. A task has a split, and is never called so."""
OF_MANY = "score"
ROLES = ("merged", "base")
"""Whose rows a picture has."""


class View(Chosen):
    """What of some records a picture shows: everything, where nothing is said.

    `shots` is the number wanted of each protocol that adapts, instead of the nearest to five, or
    `all`. `rows` is how many of each task `tsne` lays out.
    """

    shots: PositiveInt | Literal["all"] | None = None
    rows: PositiveInt = 500


Spot = tuple[str, Reading]
"""A row under a reading."""
Key = tuple[str, Reading, str]


@dataclass(frozen=True)
class Scores:
    """Scores of merges and of the base by row, reading and task, and what they are measured by.

    `experts` has the mean over a task's own experts, `constant` the best constant prediction. All
    x100. `lines` are those that cells were read from.
    """

    merges: tuple[str, ...]
    bases: tuple[str, ...]
    readings: tuple[Reading, ...]
    tasks: tuple[str, ...]
    metrics: Mapping[str, str]
    cells: Mapping[Key, Cell]
    experts: Mapping[tuple[Reading, str], Cell]
    constant: Mapping[str, float]
    lines: Mapping[Key, Line]

    @property
    def rows(self) -> tuple[str, ...]:
        return *self.merges, *self.bases

    @property
    def read(self) -> set[tuple[str, Reading]]:
        """The rows and readings that have a cell."""
        return {(row, reading) for row, reading, _ in self.cells}

    def columns_of(self, known: Iterable[Reading]) -> tuple[str, ...]:
        """The tasks, and the mean over them where any row has one under one of the readings."""
        several = len(self.tasks) > 1
        whole = (self.cell(row, one, MEAN) for one in known for row in self.rows)
        return *self.tasks, *([MEAN] if several and any(whole) else [])

    def cell(self, row: str, reading: Reading, column: str) -> Cell | None:
        """A score; of the mean, None unless every task has one."""
        return _over({task: self.cells.get((row, reading, task)) for task in self.tasks}, column)

    def difference(self, first: Spot, second: Spot, column: str) -> Difference | None:
        """How far a score is above another of the same rows; None unless both were read."""
        one, other = self.cell(*first, column), self.cell(*second, column)
        if one is None or other is None:
            return None
        pair = self._lines(*first, column), self._lines(*second, column)
        apart = difference_of(*pair) if enough_draws([*pair[0], *pair[1]]) else None
        return Difference(one.mean - other.mean, None if apart is None else in_points(apart))

    def _lines(self, row: str, reading: Reading, column: str) -> list[Line]:
        """The lines of a cell: those of all tasks of the mean."""
        tasks = self.tasks if column == MEAN else (column,)
        return [self.lines[row, reading, task] for task in tasks]

    def expert(self, reading: Reading, column: str) -> float | None:
        """The mean over the experts of a task, or over those of all."""
        known = {task: self.experts.get((reading, task)) for task in self.tasks}
        cell = _over(known, column)
        return None if cell is None else cell.mean

    def baseline(self, column: str) -> float | None:
        """The best constant prediction on a task, or in the mean over all."""
        known = [self.constant.get(task) for task in self.tasks if column in (task, MEAN)]
        values = [value for value in known if value is not None]
        return float(np.mean(values)) if values and len(values) == len(known) else None

    def title(self, column: str) -> str:
        """What a column is called where its tasks are told apart."""
        if column == MEAN:
            return f"mean of {len(self.tasks)} tasks"
        return short_task(column, self.tasks)

    def unit(self, column: str) -> str:
        """What a column is measured by, with its scale."""
        metrics = {self.metrics[task] for task in self.tasks if column in (task, MEAN)}
        return f"{metrics.pop() if len(metrics) == 1 else OF_MANY} × 100"

    @property
    def spread(self) -> str:
        """What the deviation of a cell is, in words."""
        draws = sorted({len(cell.values) for cell in self.cells.values()} - {1})
        return f"± standard deviation over {' or '.join(map(str, draws))} draws"


def _over(cells: Mapping[str, Cell | None], column: str) -> Cell | None:
    if column != MEAN:
        return cells.get(column)
    known = [cell for cell in cells.values() if cell is not None]
    return mean_cell(known) if known and len(known) == len(cells) else None


# Which records -----------------------------------------------------------------------------


def shown(records: Sequence[Record], view: View) -> list[Record]:
    """The records that a view is of. Raises MissingScores for what none of them is of."""
    return reported([record for _, record in chosen(((None, one) for one in records), view)])


def headline(known: Iterable[Reading], shots: Shots | None = None) -> tuple[Reading, ...]:
    """One number of shots for each protocol, the nearest to `shots`, or to the papers' five.

    Raises MissingScores where a protocol was not read with so many.
    """
    by_protocol: dict[str, list[Reading]] = defaultdict(list)
    for reading in known:
        by_protocol[reading.protocol].append(reading)
    wanted: Shots = HEADLINE_SHOTS if shots is None else shots

    def far(one: Reading) -> tuple[float, float]:
        # from `all`, everything else is as far off, and it is not a number to itself
        off = 0 if one.shots == wanted else abs(amount(one.shots) - amount(wanted))
        return off, amount(one.shots)

    nearest = [min(each, key=far) for each in by_protocol.values()]
    for one in nearest:
        if shots is not None and one.shots not in (0, shots):
            counts = ", ".join(str(other.shots) for other in by_protocol[one.protocol])
            raise MissingScores(
                f"no record of {one.protocol} has {counted(shots)}, found {counts}; make them with "
                f"harness evaluate --model MODEL --shots {shots}"
            )
    return tuple(in_order(nearest))


# Scores of records -------------------------------------------------------------------------


def scores_of(records: Sequence[Record]) -> Scores:
    """What records say of merges, their base and their experts; rows are called as on a board.

    Raises BrokenRecord where a column would mix what is not the same work.
    """
    lines = [*lines_of(("", record) for record in records)]
    check_work(lines)
    ours = [line for line in lines if line.role in ROLES]
    names = row_names(ours, by_method=True, one_each=False)
    named = [*zip(names, ours, strict=True)]
    rows = {role: {name: None for name, line in named if line.role == role} for role in ROLES}
    return Scores(
        merges=(*rows["merged"],),
        bases=(*rows["base"],),
        readings=tuple(readings_of(lines)),
        tasks=(*tasks_by(lines),),
        metrics={task: "+".join(line.metrics) for task, line in tasks_by(lines).items()},
        cells={
            (name, reading_of(line), line.task): Cell(line.values, line.interval)
            for name, line in named
        },
        experts=_experts(lines),
        constant={line.task: line.majority for line in lines if line.majority is not None},
        lines={(name, reading_of(line), line.task): line for name, line in named},
    )


def _experts(lines: Sequence[Line]) -> dict[tuple[Reading, str], Cell]:
    """The mean over the experts of each task, under each reading."""
    means: dict[tuple[Reading, str], dict[str, float]] = defaultdict(dict)
    for line in lines:
        if line.role == "expert":
            means[reading_of(line), line.task][line.digest] = Cell(line.values).mean
    return {key: Cell((float(np.mean([*one.values()])),)) for key, one in means.items()}
