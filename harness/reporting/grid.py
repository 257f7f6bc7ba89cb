"""Pure: records -> a grid of rows, readings and tasks, with a cell for each score."""

from __future__ import annotations

import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from harness.errors import BrokenRecord
from harness.evaluation.records import CHOICE_SPLIT, Record, Role

TUNED = "ft-classifier"
PROTOCOL_ORDER = ("current", "knn", TUNED)
SINGLES = ("expert", "single")
MAX = "experts, max"
SUMMARY = ("experts, min", "experts, mean", MAX)
BEST_SINGLE = f"best single ({CHOICE_SPLIT})"
AVERAGE_SINGLE = "average single"
MAJORITY = "majority label"
"""The best constant prediction: the most frequent label, or the mean of a regression."""
HEADLINE_SHOTS = 5


@dataclass(frozen=True, order=True)
class Reading:
    """A protocol with the number of shots it adapts to: a group of columns."""

    rank: int
    protocol: str
    shots: int

    def __str__(self) -> str:
        return ", ".join(self.lines)

    @property
    def lines(self) -> list[str]:
        """The protocol and, where it adapts, the shots."""
        unit = "shot" if self.shots == 1 else "shots"
        return [self.protocol, *([f"{self.shots} {unit}"] if self.shots else [])]


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
        return float(np.mean(self.values))

    @property
    def deviation(self) -> float | None:
        """Standard deviation over draws, divisor n - 1; None where nothing is drawn."""
        return _deviation(self.values)

    @property
    def across_experts(self) -> float | None:
        """Standard deviation over the experts, divisor n - 1; None of a single one."""
        return _deviation(self.experts)

    def __str__(self) -> str:
        if self.deviation is None:
            return f"{self.mean:.1f}"
        return f"{self.mean:.1f} ±{self.deviation:.1f}"


def _deviation(values: Sequence[float]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def cell_of(record: Record, reading: Reading) -> Cell:
    """What a record says under a reading."""
    shots = reading.shots or None
    ends = [(100 * one.low, 100 * one.high) for one in record.intervals if one.shots == shots]
    return Cell(tuple(100 * v for v in record.values(shots)), ends[0] if ends else None)


@dataclass(frozen=True)
class Grid:
    """Rows by name, readings and tasks in order, and the cells that are known."""

    rows: tuple[str, ...]
    readings: tuple[Reading, ...]
    tasks: tuple[str, ...]
    cells: dict[tuple[str, Reading, str], Cell]

    def row(self, name: str, reading: Reading) -> list[Cell | None]:
        """The cells of a row under one reading, and their mean if every task has one."""
        cells = [self.cells.get((name, reading, task)) for task in self.tasks]
        if len(self.tasks) == 1:
            return cells
        known = [cell for cell in cells if cell is not None]
        return [*cells, _across(known) if len(known) == len(cells) else None]

    @property
    def columns(self) -> list[str]:
        return [*self.tasks, *(["mean"] if len(self.tasks) > 1 else [])]


def _across(cells: Sequence[Cell]) -> Cell:
    """The mean over tasks, draw by draw where every task has the same number of draws."""
    counts = {len(cell.values) for cell in cells}
    if len(counts) == 1:
        return Cell(tuple(np.mean([cell.values for cell in cells], axis=0).tolist()))
    return Cell((float(np.mean([cell.mean for cell in cells])),))


def readings(records: Iterable[Record]) -> list[Reading]:
    """All protocols with their shots, Current first, then KNN, FT-Classifier and others."""
    distinct = set()
    for record in records:
        known = record.protocol in PROTOCOL_ORDER
        rank = PROTOCOL_ORDER.index(record.protocol) if known else len(PROTOCOL_ORDER)
        distinct |= {Reading(rank, label(record), shots or 0) for shots in record.shots}
    return sorted(distinct)


def label(record: Record) -> str:
    """The protocol, with the options that were asked beside its defaults."""
    from harness.options import resolve
    from harness.registry import PROTOCOLS
    from harness.types import Choice

    if record.protocol not in PROTOCOLS:
        return record.protocol
    default = resolve("protocol", Choice(record.protocol), PROTOCOLS[record.protocol].function)
    given = {k: v for k, v in record.options.items() if v != default.get(k)}
    return str(Choice(record.protocol, given))


def grid(records: Sequence[Record], *, by_method: bool) -> Grid:
    """Records as rows and cells.

    Rows: the experts (one row if every task has one); where a task has several, min, mean and max
    over them; where experts were read on one another's tasks, the mean over all of them; the best
    one on held-out rows, if they were read there; the ensemble, other references, the base, then
    the merged models, by method or by name; last what the best constant prediction scores.
    """
    chosen = best_single(records)
    records = reported(records)
    _check_same_work(records)
    tasks = tuple(dict.fromkeys(record.task for record in records))
    per_task = {
        task: {r.digest for r in records if r.role == "expert" and r.task == task} for task in tasks
    }
    one_each = max((len(digests) for digests in per_task.values()), default=0) <= 1
    abroad = {record.digest for record in records if record.role == "single"}
    cells: dict[tuple[str, Reading, str], Cell] = {}
    owner: dict[tuple[str, Reading, str], str] = {}
    order: dict[str, list[str]] = {role: [] for role in typing.get_args(Role)}
    known: dict[tuple[Reading, str], dict[str, Cell]] = {}
    for record in records:
        name = row_name(record, by_method=by_method, one_each=one_each)
        if name not in order[record.role]:
            order[record.role].append(name)
        for reading in readings([record]):
            cell = cell_of(record, reading)
            if record.role in SINGLES:
                known.setdefault((reading, record.task), {})[record.digest] = cell
            # an expert that was read abroad has a row of its own, the same model on every task
            rows = [name] if record.role != "single" else []
            if record.digest in abroad and record.role in SINGLES and not by_method:
                rows.append(record.model)
            for row in rows:
                key = (row, reading, record.task)
                if owner.setdefault(key, record.digest) != record.digest:
                    raise BrokenRecord(
                        f"two different models are called '{row}' on {record.task} "
                        f"({owner[key][:12]}, {record.digest[:12]}); "
                        "expected one: render them apart"
                    )
                cells[key] = cell
            if record.majority is not None:
                constant = Cell((100 * record.majority.value,))
                cells.setdefault((MAJORITY, reading, record.task), constant)
    for (reading, task), read in known.items():
        best = read.get(chosen.get(task, ""))
        for name, cell in _over_experts(read, per_task[task], best, one_each=one_each).items():
            cells[name, reading, task] = cell
    shown = order["expert"] if one_each or not by_method else []
    shown = shown if by_method else [*shown, *order["single"]]
    of_many = [*SUMMARY, AVERAGE_SINGLE, BEST_SINGLE]
    summary = [name for name in of_many if any(row == name for row, _, _ in cells)]
    named = [name for role in ("ensemble", "reference", "base", "merged") for name in order[role]]
    # a merge may stand in the records for itself and, beside another one, as a reference
    last = [MAJORITY] if any(row == MAJORITY for row, _, _ in cells) else []
    lines = tuple(dict.fromkeys([*shown, *summary, *named, *last]))
    return Grid(lines, tuple(readings(records)), tasks, cells)


def _check_same_work(records: Sequence[Record]) -> None:
    """Raise BrokenRecord, naming both, where a column would mix what is not the same work."""
    seen: dict[tuple[str, Reading], tuple[dict[str, Any], Record]] = {}
    for record in records:
        for reading in readings([record]):
            mine = _work(record)
            theirs, other = seen.setdefault((record.task, reading), (mine, record))
            if differing := next((key for key in mine if mine[key] != theirs[key]), None):
                raise BrokenRecord(
                    f"{record.task} under {reading}: '{record.model}' was read with "
                    f"{differing} {mine[differing]}, '{other.model}' with {theirs[differing]}; "
                    "expected the same work in a column: render them apart"
                )


def _work(record: Record) -> dict[str, Any]:
    """What has to be the same for two scores to be compared, as it is named to who reads."""
    rows = f"{record.rows} rows"
    if record.settings.get("limit") is not None:
        rows += f" (--limit {record.settings['limit']})"
    if (out := record.settings.get("left_out")) is not None:
        rows += f" (in whole batches, shuffled by {', '.join(out)})"
    work: dict[str, Any] = {
        "test": f"{rows} {str(record.dataset.get('digest', ''))[:12]}".strip(),
        "max_length": record.settings.get("max_length"),
        "features": record.settings.get("features"),
        "metrics": "+".join(record.metrics),
    }
    if record.adaptation is not None:
        work |= {key: record.settings.get(key) for key in ("draws", "seed")}
    return work


def _over_experts(
    read: Mapping[str, Cell], own: Collection[str], best: Cell | None, *, one_each: bool
) -> dict[str, Cell]:
    """The rows over the experts that were read on a task, by digest; `own` are those of it."""
    rows = {}
    if read.keys() - own:
        rows[AVERAGE_SINGLE] = Cell((float(np.mean([cell.mean for cell in read.values()])),))
    if best is not None:
        rows[BEST_SINGLE] = best
    means = [cell.mean for digest, cell in read.items() if digest in own]
    if means and not one_each:
        least, mean, most = SUMMARY
        rows |= {least: Cell((min(means),)), most: Cell((max(means),))}
        rows[mean] = Cell((float(np.mean(means)),), experts=tuple(means))
    return rows


def best_single(records: Sequence[Record]) -> dict[str, str]:
    """By task, the digest of the one expert of several with the best score on held-out rows.

    Tasks that the same experts were read on have the same best one, by the mean over them. Only
    where all experts were read under Current Eval on the same held-out rows. Ties go to the first,
    in the order in which they were merged.
    """
    tasks = dict.fromkeys(record.task for record in reported(records))
    pools = {
        task: frozenset(r.digest for r in records if r.task == task and r.role in SINGLES)
        for task in tasks
        if task.partition("@")[2] != CHOICE_SPLIT
    }
    best: dict[str, str] = {}
    for pool in dict.fromkeys(pools.values()):
        shared = [task for task in pools if pools[task] == pool]
        names = dict.fromkeys(task.partition("@")[0] for task in shared)
        values = [_heldout(records, name, pool) for name in names]
        if len(pool) < 2 or not all(values):
            continue
        ours = [r for r in records if r.task in shared]
        merged = [source.digest for r in ours if r.role == "merged" for source in r.experts]
        order = [d for d in dict.fromkeys([*merged, *(r.digest for r in ours)]) if d in pool]
        scores = {digest: float(np.mean([known[digest] for known in values])) for digest in order}
        best |= dict.fromkeys(shared, max(order, key=lambda digest: scores[digest]))
    return best


def _heldout(records: Sequence[Record], task: str, pool: Collection[str]) -> dict[str, float]:
    """Current Eval of these experts on the held-out rows of a task, by digest; {} unless all."""
    held = f"{task}@{CHOICE_SPLIT}"
    by_rows: dict[object, dict[str, float]] = {}
    for record in records:
        if (record.task, record.protocol) == (held, "current") and record.role in SINGLES:
            values = by_rows.setdefault(record.dataset.get("digest"), {})
            values[record.digest] = record.scores[0].value
    return next((values for values in by_rows.values() if values.keys() >= {*pool}), {})


def reported(records: Sequence[Record]) -> list[Record]:
    """The records but those that only chose among experts.

    These are of experts on held-out rows of a task that other models were read on other rows of.
    """
    others = {record.task for record in records if record.role not in SINGLES}
    names = {task.partition("@")[0] for task in others}

    def chooses(task: str) -> bool:
        name, _, split = task.partition("@")
        return split == CHOICE_SPLIT and task not in others and name in names

    return [record for record in records if not chooses(record.task)]


def row_name(record: Record, *, by_method: bool, one_each: bool) -> str:
    """How a table calls the row of a record."""
    if record.role == "expert":
        return "expert of the task" if one_each else record.model
    if record.role == "single":
        return record.model
    if record.role == "base":
        return "base" if by_method else f"base ({record.model})"
    if record.role == "ensemble":
        return "logit ensemble" if record.method == record.role else f"logit {record.method}"
    if record.role == "reference":
        return f"{record.model} ({record.method})"
    plain = by_method or record.model == record.method
    return record.method if plain else f"{record.model} ({record.method})"


def short_task(task: str, tasks: Sequence[str]) -> str:
    """`glue/rte@validation` as `rte` where that is clear among the tasks."""
    bare = task.partition("@")[0].rpartition("/")[2]
    clear = [t.partition("@")[0].rpartition("/")[2] for t in tasks].count(bare) <= 1
    return bare if clear else task
