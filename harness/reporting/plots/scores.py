"""Pure: records -> the scores that a picture shows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import PositiveInt

from harness.data.shots import amount
from harness.errors import BrokenRecord, MissingScores
from harness.evaluation.records import Record
from harness.reporting.grid import (
    HEADLINE_SHOTS,
    Cell,
    Reading,
    _across,
    _check_same_work,
    in_order,
    label,
    readings,
    reported,
    short_task,
)
from harness.values import Frozen

MEAN = "mean"
"""The column of the mean over tasks. A task has a split, and is never called so."""
OF_MANY = "score"


class View(Frozen):
    """What of some records a picture shows: everything, where nothing is said.

    Tasks are named as in records, their splits and suites left out where that is clear; protocols
    with their options or without. `shots` is the number wanted of each protocol that adapts,
    instead of the nearest to five. `rows` is how many of each task `tsne` lays out.
    """

    tasks: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    shots: PositiveInt | None = None
    rows: PositiveInt = 500


Key = tuple[str, Reading, str]


@dataclass(frozen=True)
class Scores:
    """Scores of merges and of the base by row, reading and task, and what they are measured by.

    `experts` has the mean over a task's own experts, `constant` the best constant prediction. All
    x100. `intervals` are those over test rows, where records have them.
    """

    merges: tuple[str, ...]
    bases: tuple[str, ...]
    readings: tuple[Reading, ...]
    tasks: tuple[str, ...]
    metrics: Mapping[str, str]
    cells: Mapping[Key, Cell]
    intervals: Mapping[Key, tuple[float, float]]
    experts: Mapping[tuple[Reading, str], Cell]
    constant: Mapping[str, float]

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
    return _across(known) if known and len(known) == len(cells) else None


# Which records -----------------------------------------------------------------------------


def shown(records: Sequence[Record], view: View) -> list[Record]:
    """The records that a view is of. Raises MissingScores for what none of them is of."""
    records = reported(records)
    tasks = tuple(dict.fromkeys(record.task for record in records))
    wanted = {one for name in view.tasks for one in _tasks_called(name, tasks)}
    protocols = {label(record): record.protocol for record in records}
    for name in view.protocols:
        if name not in protocols.keys() | {*protocols.values()}:
            raise MissingScores(
                f"no record is of protocol '{name}', expected one of {', '.join(protocols)}"
            )
    return [
        record
        for record in records
        if (not view.tasks or record.task in wanted)
        and (not view.protocols or {label(record), record.protocol} & {*view.protocols})
    ]


def _tasks_called(name: str, tasks: Sequence[str]) -> list[str]:
    """The tasks of a name, which may be without split, and without suite."""
    called = [
        task
        for task in tasks
        if name in (task, task.partition("@")[0], task.partition("@")[0].rpartition("/")[2])
    ]
    if not called:
        raise MissingScores(f"no record is of task '{name}', expected one of {', '.join(tasks)}")
    return called


def headline(known: Iterable[Reading], shots: int | None = None) -> tuple[Reading, ...]:
    """One number of shots for each protocol, the nearest to `shots`, or to the papers' five.

    Raises MissingScores where a protocol was not read with so many.
    """
    by_protocol: dict[str, list[Reading]] = defaultdict(list)
    for reading in known:
        by_protocol[reading.protocol].append(reading)
    wanted = HEADLINE_SHOTS if shots is None else shots
    nearest = [
        min(each, key=lambda one: (abs(amount(one.shots) - wanted), amount(one.shots)))
        for each in by_protocol.values()
    ]
    for one in nearest:
        if shots is not None and one.shots not in (0, shots):
            counts = ", ".join(str(other.shots) for other in by_protocol[one.protocol])
            raise MissingScores(
                f"no record of {one.protocol} has {shots} shots, found {counts}; make them with "
                f"harness evaluate --model MODEL --shots {shots}"
            )
    return tuple(in_order(nearest))


# Scores of records -------------------------------------------------------------------------


def scores_of(records: Sequence[Record]) -> Scores:
    """What records say of merges, their base and their experts.

    A row is a method; where several models of one were read on a task, a method and a model.
    Raises BrokenRecord where a column would mix what is not the same work.
    """
    _check_same_work(records)
    names = _names(records)
    tasks = tuple(dict.fromkeys(record.task for record in records))
    cells: dict[Key, Cell] = {}
    intervals: dict[Key, tuple[float, float]] = {}
    owners: dict[Key, str] = {}
    for record in records:
        if (name := names.get(_owner(record))) is None:
            continue
        for reading in readings([record]):
            key = name, reading, record.task
            _check_owner(key, owners.setdefault(key, record.digest), record)
            cells[key] = cell_of(record, reading)
            if (interval := _interval(record, reading)) is not None:
                intervals[key] = interval
    return Scores(
        merges=_in_order(records, names, "merged"),
        bases=_in_order(records, names, "base"),
        readings=tuple(readings(records)),
        tasks=tasks,
        metrics={record.task: "+".join(record.metrics) for record in records},
        cells=cells,
        intervals=intervals,
        experts=_experts(records),
        constant={r.task: 100 * r.majority.value for r in records if r.majority is not None},
    )


def cell_of(record: Record, reading: Reading) -> Cell:
    """The scores of a record under one of its readings, x100."""
    return Cell(tuple(100 * value for value in record.values(reading.shots or None)))


def _interval(record: Record, reading: Reading) -> tuple[float, float] | None:
    same = [one for one in record.intervals if (one.shots or 0) == reading.shots]
    return (100 * same[0].low, 100 * same[0].high) if same else None


Owner = tuple[str, str, str, str]


def _owner(record: Record) -> Owner:
    """What the rows of merges and bases are told apart by, as far as that is needed."""
    return record.role, record.method, record.model, record.head


def _names(records: Sequence[Record]) -> dict[Owner, str]:
    """What the rows of merges and bases are called: by method, and by what else differs."""
    ours = [record for record in records if record.role in ("merged", "base")]
    models = _several(ours, lambda one: _owner(one)[:2], lambda one: one.model)
    heads = _several(ours, lambda one: _owner(one)[:3], lambda one: one.digest)

    def name(record: Record) -> str:
        role, method, model, head = _owner(record)
        if (role, method, model) in heads:
            return f"{method} ({model}, {head} head)"
        return f"{method} ({model})" if (role, method) in models else method

    return {_owner(record): name(record) for record in ours}


def _several(
    records: Sequence[Record],
    row: Callable[[Record], tuple[str, ...]],
    told: Callable[[Record], str],
) -> set[tuple[str, ...]]:
    """The rows that have several of something in one cell."""
    known: dict[tuple[str, ...], dict[tuple[str, Reading], set[str]]] = {}
    for record in records:
        for reading in readings([record]):
            cells = known.setdefault(row(record), {})
            cells.setdefault((record.task, reading), set()).add(told(record))
    return {key for key, cells in known.items() if any(len(one) > 1 for one in cells.values())}


def _check_owner(key: Key, owner: str, record: Record) -> None:
    if owner != record.digest:
        raise BrokenRecord(
            f"two different models are called '{record.model}' on {key[2]} "
            f"({owner[:12]}, {record.digest[:12]}); expected one: plot them apart"
        )


def _in_order(records: Sequence[Record], names: Mapping[Owner, str], role: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names[_owner(record)] for record in records if record.role == role))


def _experts(records: Sequence[Record]) -> dict[tuple[Reading, str], Cell]:
    """The mean over the experts of each task, under each reading."""
    means: dict[tuple[Reading, str], dict[str, float]] = defaultdict(dict)
    for record in records:
        if record.role == "expert":
            for reading in readings([record]):
                means[reading, record.task][record.digest] = cell_of(record, reading).mean
    return {key: Cell((float(np.mean([*one.values()])),)) for key, one in means.items()}
