"""Pure: records -> a grid of rows, readings and tasks, with a cell for each score."""

from __future__ import annotations

import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import compress
from math import fsum, sqrt
from typing import TypeAlias, TypeVar

from harness.data.shots import amount, counted
from harness.errors import BrokenRecord
from harness.evaluation.records import Record, Role
from harness.reporting.lines import TUNED, Line, flag, label, lines_of
from harness.reporting.names import row_names
from harness.text import points
from harness.types import HELD_OUT, Shots

__all__ = ["label"]

Read = TypeVar("Read", Record, Line)
CURRENT = "current"
PROTOCOL_ORDER = (CURRENT, "knn", TUNED)
SINGLES = ("expert", "single")
MAX = "experts, max"
SUMMARY = ("experts, min", "experts, mean", MAX)
BEST_SINGLE = f"best single ({HELD_OUT})"
AVERAGE_SINGLE = "average single"
CONSTANT = "best constant"
"""The best constant prediction: the most frequent label, or the mean of a regression."""
HEADLINE_SHOTS = 5


@dataclass(frozen=True)
class Reading:
    """A protocol with the number of shots it adapts to: a group of columns."""

    rank: int
    protocol: str
    shots: Shots

    def __str__(self) -> str:
        return ", ".join(self.lines)

    @property
    def lines(self) -> list[str]:
        """The protocol and, where it adapts, the shots."""
        return [self.protocol, *([counted(self.shots)] if self.shots else [])]


@dataclass(frozen=True)
class Cell:
    """Scores of one row under one reading on one task (or averaged over all), times 100.

    Three spreads that say different things: `values` are of the draws, `interval` is where their
    mean would lie on other test rows (None where nobody measured it), `experts` are those of the
    several experts of which this is the mean.
    """

    values: tuple[float, ...]
    interval: tuple[float, float] | None = None
    experts: tuple[float, ...] = ()

    @property
    def mean(self) -> float:
        return _mean(self.values)

    @property
    def deviation(self) -> float | None:
        """Standard deviation over draws, divisor n - 1; None where nothing is drawn."""
        return _deviation(self.values)

    @property
    def across_experts(self) -> float | None:
        """Standard deviation over the experts, divisor n - 1; None of a single one."""
        return _deviation(self.experts)

    def __str__(self) -> str:
        deviation = self.deviation
        mean = points(self.mean)
        return mean if deviation is None else f"{mean} ±{points(deviation)}"

    @property
    def with_experts(self) -> str:
        """Itself, and over which experts it spreads."""
        across = self.across_experts
        return str(self) if across is None else f"{self} (sd {points(across)})"


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)


def _deviation(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = _mean(values)
    return sqrt(fsum([(value - mean) ** 2 for value in values]) / (len(values) - 1))


def cell_of(record: Record, reading: Reading) -> Cell:
    """What a record says under a reading."""
    shots = reading.shots or None
    ends = [(100 * one.low, 100 * one.high) for one in record.intervals if one.shots == shots]
    return Cell(tuple(100 * v for v in record.values(shots)), ends[0] if ends else None)


Place: TypeAlias = "tuple[str, Reading, str]"
"""The row, reading and task of a cell."""


@dataclass(frozen=True)
class Grid:
    """Rows by name, readings and tasks in order, and the cells that are known.

    `lines` are those that cells were read from; a cell without one is computed of others.
    """

    rows: tuple[str, ...]
    readings: tuple[Reading, ...]
    tasks: tuple[str, ...]
    cells: dict[Place, Cell]
    lines: dict[Place, Line] = field(default_factory=dict)

    def row(self, name: str, reading: Reading) -> list[Cell | None]:
        """The cells of a row under one reading, and their mean if every task has one."""
        if (name, reading) not in self._rows:
            self._rows[name, reading] = self._row(name, reading)
        return self._rows[name, reading]

    @cached_property
    def _rows(self) -> dict[tuple[str, Reading], list[Cell | None]]:
        """Rows that were asked for."""
        return {}

    def _row(self, name: str, reading: Reading) -> list[Cell | None]:
        cells = [self.cells.get((name, reading, task)) for task in self.tasks]
        if len(self.tasks) == 1:
            return cells
        known = [cell for cell in cells if cell is not None]
        return [*cells, mean_cell(known) if len(known) == len(cells) else None]

    @property
    def columns(self) -> list[str]:
        return [*self.tasks, *(["mean"] if len(self.tasks) > 1 else [])]


def mean_cell(cells: Sequence[Cell]) -> Cell:
    """The mean over tasks, draw by draw where every task has the same number of draws."""
    counts = {len(cell.values) for cell in cells}
    interval = _interval(cells)
    if len(counts) == 1:
        draws = zip(*(cell.values for cell in cells), strict=True)
        return Cell(tuple(map(_mean, draws)), interval)
    return Cell((_mean([cell.mean for cell in cells]),), interval)


def _interval(cells: Sequence[Cell]) -> tuple[float, float] | None:
    """Where the mean of cells would lie on other rows of each, if every one says it of itself.

    Distances to the ends add as squares, the rows of tasks being others (Zou and Donner 2008,
    doi:10.1002/sim.3095). By hand: 60 in [57, 62] and 80 in [76, 85] have 70 in [67.5, 72.7].
    """
    ends = [(cell.mean, cell.interval) for cell in cells if cell.interval is not None]
    if len(ends) < len(cells):
        return None
    mean = sum(value for value, _ in ends) / len(ends)
    below = sqrt(sum((value - low) ** 2 for value, (low, _) in ends)) / len(ends)
    above = sqrt(sum((high - value) ** 2 for value, (_, high) in ends)) / len(ends)
    return mean - below, mean + above


def readings(records: Iterable[Record]) -> list[Reading]:
    """All protocols with their shots, in the order of columns."""
    return readings_of(_lines(records))


def in_order(readings: Iterable[Reading]) -> list[Reading]:
    """Readings with Current first, then KNN, FT-Classifier and others; of each by its shots."""
    return sorted(readings, key=lambda one: (one.rank, one.protocol, amount(one.shots)))


def readings_of(lines: Iterable[Line]) -> list[Reading]:
    return in_order({reading_of(line) for line in lines})


def reading_of(line: Line) -> Reading:
    """The group of columns that a line stands in."""
    return _reading(line.protocol, line.setting, line.shots)


@lru_cache
def _reading(protocol: str, setting: str, shots: Shots) -> Reading:
    known = protocol in PROTOCOL_ORDER
    rank = PROTOCOL_ORDER.index(protocol) if known else len(PROTOCOL_ORDER)
    return Reading(rank, setting, shots)


def _lines(records: Iterable[Record]) -> list[Line]:
    return [*lines_of(("", record) for record in records)]


def grid(records: Sequence[Record], *, by_method: bool) -> Grid:
    """Records as rows and cells.

    Rows: the experts (one row if every task has one); where a task has several, min, mean and max
    over them; where experts were read on one another's tasks, the mean over all of them; the best
    one on held-out rows, if they were read there; the ensemble, ceilings, other references, the
    base, then the merged models, by method or by name; last what the best constant prediction
    scores.
    """
    return laid_out(_lines(records), by_method=by_method)


def laid_out(lines: Sequence[Line], *, by_method: bool) -> Grid:
    """Lines as the rows and cells of `grid`."""
    chosen = _best_single(lines)
    lines = reported(lines)
    check_work(lines)
    tasks = tuple(dict.fromkeys(line.task for line in lines))
    own = _own(lines)
    one_each = _one_each(own)
    filled = _filled(lines, _rows_of(lines, by_method=by_method, one_each=one_each))
    cells = filled.cells
    for (reading, task), read in filled.experts.items():
        best = read.get(chosen.get(task, ""))
        mine = own.get(task, set())
        for name, cell in _over_experts(read, mine, best, one_each=one_each).items():
            cells[name, reading, task] = cell
    order = filled.order
    shown = [*order["expert"]] if one_each or not by_method else []
    shown = shown if by_method else [*shown, *order["single"]]
    known = {row for row, _, _ in cells}
    summary = [name for name in (*SUMMARY, AVERAGE_SINGLE, BEST_SINGLE) if name in known]
    others = ("ensemble", "ceiling", "reference", "base", "merged")
    rest = [name for role in others for name in order[role]]
    last = [CONSTANT] if CONSTANT in known else []
    # a merge may stand in the records for itself and, beside another one, as a reference
    rows = tuple(dict.fromkeys([*shown, *summary, *rest, *last]))
    return Grid(rows, tuple(readings_of(lines)), tasks, cells, filled.lines)


def named_rows(lines: Sequence[Line]) -> list[str]:
    """What a board calls the row of each line; of a line that it does not show, the model."""
    shown = reported(lines)
    names = row_names(shown, by_method=True, one_each=_one_each(_own(shown)))
    known = {id(line): name for line, name in zip(shown, names, strict=True)}
    return [known.get(id(line), line.model) for line in lines]


def _own(lines: Iterable[Line]) -> dict[str, set[str]]:
    """The experts of each task, by digest."""
    own: dict[str, set[str]] = {}
    for line in lines:
        if line.role == "expert":
            own.setdefault(line.task, set()).add(line.digest)
    return own


def _one_each(own: Mapping[str, Collection[str]]) -> bool:
    """Whether no task has several experts: a table then has one row for all of them."""
    return max(map(len, own.values()), default=0) <= 1


@dataclass(frozen=True)
class _Filled:
    """Cells as they are filled: those of rows, of experts by digest, names in order by role."""

    cells: dict[Place, Cell]
    lines: dict[Place, Line]
    experts: dict[tuple[Reading, str], dict[str, Cell]]
    order: dict[str, dict[str, None]]


def _filled(lines: Sequence[Line], rows: Sequence[tuple[str, ...]]) -> _Filled:
    """The cells that are read, not computed of others; `rows` are those that a line stands in."""
    filled = _Filled({}, {}, {}, {role: {} for role in typing.get_args(Role)})
    for line, mine in zip(lines, rows, strict=True):
        reading = reading_of(line)
        cell = Cell(line.values, line.interval)
        if line.role in SINGLES:
            filled.experts.setdefault((reading, line.task), {})[line.digest] = cell
        filled.order[line.role].update(dict.fromkeys(mine[:1]))
        for row in mine:
            filled.cells[row, reading, line.task] = cell
            filled.lines[row, reading, line.task] = line
        if line.majority is not None:
            constant = Cell((line.majority,))
            filled.cells.setdefault((CONSTANT, reading, line.task), constant)
    return filled


def _rows_of(lines: Sequence[Line], *, by_method: bool, one_each: bool) -> list[tuple[str, ...]]:
    """The rows that each line stands in: an expert that was read abroad has one of its own, too."""
    named = row_names(lines, by_method=by_method, one_each=one_each)
    if by_method:
        pairs = zip(lines, named, strict=True)
        return [() if line.role == "single" else (name,) for line, name in pairs]
    away = {line.digest for line in lines if line.role == "single"}
    among = [line.role in SINGLES and line.digest in away for line in lines]
    alone = iter(row_names([*compress(lines, among)], by_method=False, one_each=False))
    rows = []
    for line, name, is_away in zip(lines, named, among, strict=True):
        own = (next(alone),) if is_away else ()
        rows.append(own if line.role == "single" else tuple(dict.fromkeys((name, *own))))
    return rows


def check_same_work(records: Sequence[Record]) -> None:
    """Raise BrokenRecord, naming both, where a column would mix what is not the same work."""
    check_work(_lines(records))


def check_work(lines: Sequence[Line]) -> None:
    _check_sets(lines)
    seen: dict[tuple[str, str, Shots], Line] = {}
    for line in lines:
        other = seen.setdefault((line.task, line.setting, line.shots), line)
        if line.work is other.work or line.work == other.work:
            continue
        mine, theirs = dict(line.work), dict(other.work)
        differing = next(k for k in {**mine, **theirs} if mine.get(k) != theirs.get(k))
        how = flag(line.limit, other.limit)
        raise BrokenRecord(
            f"{line.task} under {reading_of(line)}: '{line.model}' was read with "
            f"{differing} {mine.get(differing)}, '{other.model}' with {theirs.get(differing)}; "
            f"expected the same work in a column: {f'choose {how}' if how else 'render them apart'}"
        )


def _check_sets(lines: Sequence[Line]) -> None:
    """Raise BrokenRecord, naming both, for experts of one name and task with other weights.

    They are of a study that was made twice: merges of the one are not measured by the other.
    """
    seen: dict[tuple[str, str], Line] = {}
    for line in lines:
        if line.role != "expert":
            continue
        other = seen.setdefault((line.task, line.model), line)
        if other.digest == line.digest:
            continue
        each = [_merges_of(one.digest, lines) for one in (other, line)]
        apart = all(each) and not {*each[0]} & {*each[1]}
        how = " or ".join(f"--models {','.join(names)}" for names in each) if apart else ""
        raise BrokenRecord(
            f"records are of two sets of experts: '{line.model}' of {line.task} has the weights "
            f"{other.digest[:8]} in {other.path or 'one'} and {line.digest[:8]} in "
            f"{line.path or 'another'}; expected one set: name a folder of one"
            f"{how and f', or choose its merges with {how}'}"
        )


def _merges_of(expert: str, lines: Iterable[Line]) -> list[str]:
    """The names of what was merged of an expert."""
    merges = (line for line in lines if line.role == "merged")
    return [*dict.fromkeys(one.model for one in merges if expert in dict(one.experts).values())]


def _over_experts(
    read: Mapping[str, Cell], own: Collection[str], best: Cell | None, *, one_each: bool
) -> dict[str, Cell]:
    """The rows over the experts that were read on a task, by digest; `own` are those of it."""
    rows = {}
    if read.keys() - own:
        rows[AVERAGE_SINGLE] = Cell((_mean([cell.mean for cell in read.values()]),))
    if best is not None:
        rows[BEST_SINGLE] = best
    means = [cell.mean for digest, cell in read.items() if digest in own]
    if means and not one_each:
        least, mean, most = SUMMARY
        rows |= {least: Cell((min(means),)), most: Cell((max(means),))}
        rows[mean] = Cell((_mean(means),), experts=tuple(means))
    return rows


def best_single(records: Sequence[Record]) -> dict[str, str]:
    """By task, the digest of the one expert of several with the best score on held-out rows.

    Tasks that the same experts were read on have the same best one, by the mean over them. Only
    where all experts were read under Current Eval on the same held-out rows. Ties go to the first,
    in the order in which they were merged.
    """
    return _best_single(_lines(records))


def _best_single(lines: Sequence[Line]) -> dict[str, str]:
    tasks = dict.fromkeys(line.task for line in reported(lines))
    read_on: dict[str, set[str]] = {task: set() for task in tasks}
    for line in lines:
        if line.task in read_on and line.role in SINGLES:
            read_on[line.task].add(line.digest)
    pools = {
        task: frozenset(read)
        for task, read in read_on.items()
        if task.partition("@")[2] != HELD_OUT
    }
    best: dict[str, str] = {}
    for pool in dict.fromkeys(pools.values()):
        shared = [task for task in pools if pools[task] == pool]
        names = dict.fromkeys(task.partition("@")[0] for task in shared)
        values = [_heldout(lines, name, pool) for name in names]
        if len(pool) < 2 or not all(values):
            continue
        ours = [line for line in lines if line.task in shared]
        merged = [digest for one in ours if one.role == "merged" for _, digest in one.experts]
        order = [d for d in dict.fromkeys([*merged, *(one.digest for one in ours)]) if d in pool]
        scores = {digest: _mean([known[digest] for known in values]) for digest in order}
        best |= dict.fromkeys(shared, max(order, key=lambda digest: scores[digest]))
    return best


def _heldout(lines: Sequence[Line], task: str, pool: Collection[str]) -> dict[str, float]:
    """Current Eval of these experts on the held-out rows of a task, by digest; {} unless all."""
    held = f"{task}@{HELD_OUT}"
    by_rows: dict[str, dict[str, float]] = {}
    for line in lines:
        if (line.task, line.protocol) == (held, "current") and line.role in SINGLES:
            by_rows.setdefault(line.rows_of, {})[line.digest] = line.values[0]
    return next((values for values in by_rows.values() if values.keys() >= {*pool}), {})


def reported(records: Sequence[Read]) -> list[Read]:
    """The records (or lines) but those that only chose among experts.

    These are of experts on held-out rows of a task that other models were read on other rows of.
    """
    others = {record.task for record in records if record.role not in SINGLES}
    names = {task.partition("@")[0] for task in others}
    choosing = set()
    for task in {record.task for record in records} - others:
        name, _, split = task.partition("@")
        if split == HELD_OUT and name in names:
            choosing.add(task)
    return [record for record in records if record.task not in choosing]


def short_task(task: str, tasks: Sequence[str]) -> str:
    """`glue/rte@validation` as `rte` where that is clear among the tasks."""
    bare = task.partition("@")[0].rpartition("/")[2]
    clear = [t.partition("@")[0].rpartition("/")[2] for t in tasks].count(bare) <= 1
    return bare if clear else task
