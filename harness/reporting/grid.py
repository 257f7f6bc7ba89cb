"""Pure: lines -> a grid of rows, settings and tasks, with a cell for each score."""

from __future__ import annotations

import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum, sqrt
from statistics import fmean
from typing import TypeAlias

from harness.errors import BrokenRecord
from harness.evaluation.records import Record, Role
from harness.reporting.lines import CURRENT, Line, Setting, headlines, in_order, lines_of
from harness.reporting.mixed import check_comparable
from harness.reporting.names import (
    AVERAGE_SINGLE,
    BEST_SINGLE,
    CONSTANT,
    EXPERT,
    SUMMARY,
    row_names,
)
from harness.reporting.sets import with_set_numbers
from harness.text import points
from harness.types import HELD_OUT

SINGLES = ("expert", "single")
MEAN = "mean"
"""The column of the mean over tasks. No task has this name: names of tasks have a split."""


@dataclass(frozen=True)
class GridCell:
    """Scores of one row under one setting on one task (or averaged over all), times 100.

    It has three different spreads: `values` are the scores of the draws, `interval` is where their
    mean would lie on other test rows (None if unknown), `experts` are the scores of the several
    experts, or sets of experts, that are averaged. `lines` are the lines behind the cell, one for
    each task and set of experts; () if the cell is computed from other cells.
    """

    values: tuple[float, ...]
    interval: tuple[float, float] | None = None
    experts: tuple[float, ...] = ()
    lines: tuple[Line, ...] = ()

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def deviation(self) -> float | None:
        """Standard deviation over draws, divisor n - 1; None where nothing is drawn."""
        return _deviation(self.values)

    @property
    def across_experts(self) -> float | None:
        """Standard deviation over the experts, divisor n - 1; None for a single one."""
        return _deviation(self.experts)

    def __str__(self) -> str:
        deviation = self.deviation
        mean = points(self.mean)
        return mean if deviation is None else f"{mean} ±{points(deviation)}"

    @property
    def with_experts(self) -> str:
        """The cell as text, with the standard deviation over experts, if there are several."""
        across = self.across_experts
        return str(self) if across is None else f"{self} (sd {points(across)})"

    @property
    def with_interval(self) -> str:
        """The cell as text with its interval; without one, as `with_experts`."""
        if self.interval is None:
            return self.with_experts
        low, high = self.interval
        return f"{self} [{points(low)}, {points(high)}]"


def _deviation(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    mean = fmean(values)
    return sqrt(fsum([(value - mean) ** 2 for value in values]) / (len(values) - 1))


GridPlace: TypeAlias = "tuple[str, Setting, str]"
"""The row, setting and task of a cell."""


@dataclass(frozen=True)
class Grid:
    """Rows by name, settings and tasks in order, and the cells that are known."""

    rows: tuple[str, ...]
    settings: tuple[Setting, ...]
    tasks: tuple[str, ...]
    cells: dict[GridPlace, GridCell]

    @property
    def columns(self) -> list[str]:
        return [*self.tasks, *([MEAN] if len(self.tasks) > 1 else [])]

    @cached_property
    def headlines(self) -> dict[str, Setting]:
        """By protocol, the setting whose number of shots is nearest to the papers' five."""
        return headlines(self.settings)

    @cached_property
    def lines(self) -> dict[GridPlace, Line]:
        """The first line of each cell: that of the first set of experts."""
        return {place: cell.lines[0] for place, cell in self.cells.items() if cell.lines}

    @cached_property
    def lines_of_row(self) -> dict[str, list[Line]]:
        """All lines of each row; computed rows are left out."""
        by_row: dict[str, list[Line]] = {}
        for place in self.lines:
            by_row.setdefault(place[0], []).extend(self.cells[place].lines)
        return by_row

    @cached_property
    def line_of_row(self) -> dict[str, Line]:
        """The first line of each row that is a model's, for its role and method."""
        return {row: lines[0] for row, lines in self.lines_of_row.items()}

    @cached_property
    def of_setting(self) -> dict[Setting, Line]:
        """The first line of each setting, for how drawn rows were used."""
        return {line.setting: line for line in reversed([*self.lines.values()])}

    def models(self, *roles: Role) -> list[str]:
        """The rows of models of these roles."""
        return [
            row for role in roles for row, line in self.line_of_row.items() if line.role == role
        ]

    @cached_property
    def _known(self) -> dict[tuple[str, Setting], list[GridCell | None]]:
        """The cache of `row`."""
        return {}

    def row(self, name: str, setting: Setting) -> list[GridCell | None]:
        """The cells of a row under one setting, and their mean if every task has one."""
        if (name, setting) not in self._known:
            cells = [self.cells.get((name, setting, task)) for task in self.tasks]
            scored = [cell for cell in cells if cell is not None]
            mean = mean_cell(scored) if len(scored) == len(cells) else None
            self._known[name, setting] = [*cells, *([mean] if len(cells) > 1 else [])]
        return self._known[name, setting]

    def cell(self, row: str, setting: Setting, column: str) -> GridCell | None:
        """A cell, if known; in the column of the mean, None unless every task has a score."""
        return dict(zip(self.columns, self.row(row, setting), strict=True)).get(column)

    def columns_under(self, *known: Setting) -> list[str]:
        """The tasks, and the mean if a merge or the base has one under any of these settings."""
        rows = self.models("merged", "base")
        has_mean = any(self.cell(row, setting, MEAN) for setting in known for row in rows)
        return [column for column in self.columns if column != MEAN or has_mean]

    def levels(self, column: str, row: str | None = None) -> dict[str, float]:
        """By label, the means of the experts and of a row under Current Eval, and the constant."""
        current = tuple(setting for setting in self.settings if setting.protocol == CURRENT)
        rows = [(f"experts under {CURRENT}", name, current) for name in (EXPERT, SUMMARY[1])]
        rows += [(CURRENT, row, current)] if row else []
        rows += [(CONSTANT, CONSTANT, self.settings)]
        return {
            label: cell.mean
            for label, name, settings in rows
            for setting in reversed(settings)
            if (cell := self.cell(name, setting, column)) is not None
        }

    def title(self, column: str) -> str:
        """The name of a column in prose: the short name of a task, or `mean of N tasks`."""
        if column == MEAN:
            return f"mean of {len(self.tasks)} tasks"
        return short_task(column, self.tasks)

    def metric_label(self, column: str) -> str:
        """The metrics of a column with their scale; `score` where tasks have different ones."""
        lines = self.lines.values()
        metrics = {"+".join(line.metrics) for line in lines if column in (line.task, MEAN)}
        return f"{metrics.pop() if len(metrics) == 1 else 'score'} × 100"

    @property
    def spread(self) -> str:
        """What `±` means in a cell, in words."""
        drawn = (line for line in self.lines.values() if line.role in ("merged", "base"))
        counts = sorted({len(line.values) for line in drawn} - {1})
        return f"± standard deviation over {' or '.join(map(str, counts))} draws"


def mean_cell(cells: Sequence[GridCell]) -> GridCell:
    """The mean of cells, draw by draw if all have the same number of draws.

    `experts` is averaged set by set, if all cells have the same sets of experts.
    """
    alike = len({len(cell.values) for cell in cells}) == 1
    draws = [cell.values if alike else (cell.mean,) for cell in cells]
    numbers = {tuple(line.set for line in cell.lines) for cell in cells}
    sets = [cell.experts for cell in cells] if len(numbers) == 1 and len(*numbers) > 1 else []
    values, experts = (tuple(map(fmean, zip(*group, strict=True))) for group in (draws, sets))
    lines = tuple(line for cell in cells for line in cell.lines)
    return GridCell(values, _interval(cells), experts, lines)


def _interval(cells: Sequence[GridCell]) -> tuple[float, float] | None:
    """The interval of the mean of cells, if every cell has one.

    Distances to the ends add as squares, as tasks have independent rows (Zou and Donner 2008,
    doi:10.1002/sim.3095). By hand: 60 in [57, 62] and 80 in [76, 85] give 70 in [67.5, 72.7].
    """
    ends = [(cell.mean, cell.interval) for cell in cells if cell.interval is not None]
    if len(ends) < len(cells):
        return None
    mean = sum(value for value, _ in ends) / len(ends)
    below = sqrt(sum((value - low) ** 2 for value, (low, _) in ends)) / len(ends)
    above = sqrt(sum((high - value) ** 2 for value, (_, high) in ends)) / len(ends)
    return mean - below, mean + above


def grid(records: Sequence[Record], *, by_method: bool) -> Grid:
    """Records as a grid, see `grid_of_lines`."""
    return grid_of_lines([*lines_of(("", record) for record in records)], by_method=by_method)


def grid_of_lines(lines: Sequence[Line], *, by_method: bool) -> Grid:
    """Lines as a grid.

    Rows: the experts (one row if every task has one); where a task has several, min, mean and max
    over them; where experts were evaluated on one another's tasks, the mean over all of them; the
    best expert on held-out rows, if they were evaluated there; the ensemble, ceilings, other
    references, the base, then the merged models, by method or by name; last the best constant
    prediction.
    """
    chosen = best_single(lines)
    lines = with_set_numbers(reported(lines))
    check_comparable(lines)
    own = _own(lines)
    one_each = _one_each(own)
    pairs = [*zip(lines, _rows_of(lines, by_method=by_method, one_each=one_each), strict=True)]
    by_place: dict[GridPlace, dict[int, Line]] = {}
    for line, rows in pairs:
        for row in rows:
            by_set = by_place.setdefault((row, line.setting, line.task), {})
            if (other := by_set.setdefault(line.set, line)).values != line.values:
                raise BrokenRecord(
                    f"'{row}' has two scores on {line.task} under {line.setting}, in {other.path} "
                    f"and {line.path}; expected one: name a folder with one, or give --plugins"
                )
    cells = {place: _over_sets([sets[n] for n in sorted(sets)]) for place, sets in by_place.items()}
    experts: dict[tuple[Setting, str], dict[str, GridCell]] = {}
    for line in lines:
        if line.majority is not None:
            constant = GridCell((line.majority,))
            cells.setdefault((CONSTANT, line.setting, line.task), constant)
        if line.role in SINGLES:
            by_digest = experts.setdefault((line.setting, line.task), {})
            by_digest[line.digest] = GridCell(line.values, line.interval)
    for (setting, task), scored in experts.items():
        best = scored.get(chosen.get(task, ""))
        summary = _over_experts(scored, own.get(task, {}), best, one_each=one_each)
        cells |= {(row, setting, task): cell for row, cell in summary.items()}
    order: dict[str, list[str]] = {role: [] for role in typing.get_args(Role)}
    for line, rows in pairs:
        order[line.role] += rows[:1]
    ordered = order["expert"] if one_each or not by_method else []
    ordered = [*ordered, *order["single"], *SUMMARY, AVERAGE_SINGLE, BEST_SINGLE]
    for role in ("ensemble", "ceiling", "reference", "base", "merged"):
        ordered += order[role]
    filled = {row for row, _, _ in cells}
    # a row may come twice: a merge can also be a reference beside another merge
    names = tuple(row for row in dict.fromkeys([*ordered, CONSTANT]) if row in filled)
    tasks = tuple(dict.fromkeys(line.task for line in lines))
    return Grid(names, tuple(in_order({line.setting for line in lines})), tasks, cells)


def _over_sets(lines: Sequence[Line]) -> GridCell:
    """The mean over sets of experts, draw by draw; `experts` has the mean of each set."""
    cells = [GridCell(line.values, line.interval, lines=(line,)) for line in lines]
    if len(cells) == 1:
        return cells[0]
    return replace(mean_cell(cells), interval=None, experts=tuple(cell.mean for cell in cells))


def board_row_names(lines: Sequence[Line]) -> list[str]:
    """The name of each line's row on a board; the model's name if boards do not show the line."""
    on_board = reported(lines)
    numbered = with_set_numbers(on_board)
    names = row_names(numbered, by_method=True, one_each=_one_each(_own(numbered)))
    by_id = {id(line): name for line, name in zip(on_board, names, strict=True)}
    return [by_id.get(id(line), line.model) for line in lines]


def _own(lines: Iterable[Line]) -> dict[str, dict[str, int]]:
    """The experts of each task, by digest, with the number of their set."""
    own: dict[str, dict[str, int]] = {}
    for line in lines:
        if line.role == "expert":
            own.setdefault(line.task, {})[line.digest] = line.set
    return own


def _one_each(own: Mapping[str, Mapping[str, int]]) -> bool:
    """Whether no task has two experts of one set: a table then has one row for all experts."""
    return all(len({*numbers.values()}) == len(numbers) for numbers in own.values())


def _rows_of(lines: Sequence[Line], *, by_method: bool, one_each: bool) -> list[tuple[str, ...]]:
    """The rows of each line. By name, an expert that was also evaluated on tasks of others has a
    row of its own, beside that of the experts."""
    names = row_names(lines, by_method=by_method, one_each=one_each)
    if by_method:
        pairs = zip(lines, names, strict=True)
        return [() if line.role == "single" else (name,) for line, name in pairs]
    singles = {line.digest for line in lines if line.role == "single"}
    away = [line for line in lines if line.role in SINGLES and line.digest in singles]
    own_names = row_names(away, by_method=False, one_each=False)
    own = {id(line): (name,) for line, name in zip(away, own_names, strict=True)}
    return [
        own[id(line)]
        if line.role == "single"
        else tuple(dict.fromkeys((name, *own.get(id(line), ()))))
        for line, name in zip(lines, names, strict=True)
    ]


def _over_experts(
    scored: Mapping[str, GridCell], own: Collection[str], best: GridCell | None, *, one_each: bool
) -> dict[str, GridCell]:
    """The rows that summarise the experts evaluated on a task, `scored` by digest; `own` are the
    task's own experts."""
    rows = {}
    if scored.keys() - own:
        rows[AVERAGE_SINGLE] = GridCell((fmean([cell.mean for cell in scored.values()]),))
    if best is not None:
        rows[BEST_SINGLE] = best
    means = [cell.mean for digest, cell in scored.items() if digest in own]
    if means and not one_each:
        low, middle, high = SUMMARY
        rows[low] = GridCell((min(means),))
        rows[middle] = GridCell((fmean(means),), experts=(*means,))
        rows[high] = GridCell((max(means),))
    return rows


def best_single(lines: Sequence[Line]) -> dict[str, str]:
    """By task, the digest of the expert with the best score on held-out rows, among several.

    Tasks on which the same experts were evaluated share the best one, by the mean over the tasks.
    A task is left out unless all experts were evaluated under Current Eval on the same held-out
    rows. Ties go to the expert that comes first in the merge.
    """
    singles = [line for line in lines if line.role in SINGLES]
    pools: dict[frozenset[str], list[str]] = {}
    for task in dict.fromkeys(line.task for line in reported(lines)):
        if task.partition("@")[2] != HELD_OUT:
            pool = frozenset(line.digest for line in singles if line.task == task)
            pools.setdefault(pool, []).append(task)
    best: dict[str, str] = {}
    for pool, shared in pools.items():
        names = dict.fromkeys(task.partition("@")[0] for task in shared)
        values = [_heldout(singles, name, pool) for name in names]
        if len(pool) < 2 or not all(values):
            continue
        ours = [line for line in lines if line.task in shared]
        merged = [digest for line in ours if line.role == "merged" for _, digest in line.experts]
        order = [d for d in dict.fromkeys([*merged, *(one.digest for one in ours)]) if d in pool]
        scores = {digest: fmean([scored[digest] for scored in values]) for digest in order}
        best |= dict.fromkeys(shared, max(order, key=lambda digest: scores[digest]))
    return best


def _heldout(singles: Sequence[Line], task: str, pool: Collection[str]) -> dict[str, float]:
    """The scores of all experts in `pool` under Current Eval on a task's held-out rows, by digest;
    {} unless all were evaluated on the same rows."""
    heldout = f"{task}@{HELD_OUT}"
    by_rows: dict[str, dict[str, float]] = {}
    for line in singles:
        if (line.task, line.protocol) == (heldout, CURRENT):
            by_rows.setdefault(line.rows_of, {})[line.digest] = line.values[0]
    return next((values for values in by_rows.values() if values.keys() >= {*pool}), {})


def reported(lines: Sequence[Line]) -> list[Line]:
    """The lines that results are reported from: without those that only choose among experts.

    The latter are of experts on held-out rows of a task whose other models were evaluated on other
    rows only.
    """
    others = [line for line in lines if line.role not in SINGLES]
    choosing = {f"{line.name}@{HELD_OUT}" for line in others} - {line.task for line in others}
    return [line for line in lines if line.task not in choosing]


def short_task(task: str, tasks: Sequence[str]) -> str:
    """`glue/rte@validation` as `rte`, if no other task has this short name."""
    bare, *others = (one.partition("@")[0].rpartition("/")[2] for one in (task, *tasks))
    return bare if others.count(bare) <= 1 else task
