"""A paper's tables with our numbers beside the printed ones, and whether the two differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from pydantic import Field
from tabulate import tabulate

from harness.errors import BadRecipe
from harness.evaluation.bootstrap import intervals
from harness.files import read_yaml, write_files
from harness.reporting.chosen import read_lines
from harness.reporting.difference import by_task
from harness.reporting.grid import GridCell, mean_cell, reported
from harness.reporting.lines import CURRENT, Line, grouped
from harness.reporting.sets import with_set_numbers
from harness.stats.intervals import Ends
from harness.studies.board import BOARDS, record_paths
from harness.studies.experts import leaf, slug
from harness.studies.outcomes import Outcome
from harness.studies.plan import Plan
from harness.studies.read import PAPERS
from harness.studies.step import Step
from harness.text import points
from harness.types import Shots
from harness.values import Frozen, validated

MEAN = "mean"
BEST = "best individual"
ROLES: Mapping[str, tuple[str, ...]] = {
    "experts": ("expert",),
    "individual": ("expert", "single"),
    BEST: ("expert", "single"),
    "base": ("base",),
    "ensemble": ("ensemble",),
}
"""Rows of a table that are no merge, and the roles of their records. `individual`: all experts,
also on tasks of others. `best individual`: the expert with the highest mean over tasks; it is not
tested, as it is chosen by the scores that are compared."""


class PaperCell(Frozen):
    """Which of our results a cell of a table is compared with.

    `row`: a merge by the name of its folder, `multi-task`, or one of `ROLES`, with `, min` or
    `, max` for the lowest or highest of them. `task`: a task, or `mean` over the table's tasks.
    `of`: the tasks of the merge's experts; with one task, the expert of it is scored instead.
    `base`: the base of the paper's number. `lacking`: why we have no number. `measure`: the score;
    `drop`, by how many percent of its expert's score a merge is below it; or the `seconds` of
    fine-tuning (`finetune`) or of a merge, minus those of the merge `less`.
    """

    row: str = ""
    board: str = ""
    task: str = MEAN
    protocol: str = CURRENT
    shots: Shots | None = None
    of: tuple[str, ...] = ()
    base: str = ""
    measure: Literal["score", "drop", "seconds"] = "score"
    less: str = ""
    lacking: str = ""


class PaperTable(Frozen):
    """A printed table: its `values`, and fields of `PaperCell` for `cells`, rows and columns."""

    table: str
    title: str
    tasks: tuple[str, ...] = ()
    cells: Mapping[str, Any] = Field(default_factory=dict)
    rows: Mapping[str, Mapping[str, Any]]
    columns: Mapping[str, Mapping[str, Any]]
    values: Mapping[str, Mapping[str, float]]

    def place(self, row: str, column: str) -> PaperCell:
        """The fields of a cell: its row's take precedence, then its column's, then the table's."""
        axes = (self.rows[row], self.columns[column])
        tasks = dict.fromkeys(task for axis in axes for task in axis.get("of", ()))
        fields = {**self.cells, **axes[1], **axes[0], "of": tuple(tasks)}
        return validated(PaperCell, fields, f"{self.table}: {row}, {column}")


class Paper(Frozen):
    """The tables of a paper, with numbers of `base` where a row or column names no other base."""

    paper: str
    arxiv: str = ""
    base: str
    tables: tuple[PaperTable, ...]


@dataclass(frozen=True)
class ComparedCell:
    """A cell with our number and the paper's (scores x100), and the 95 % interval of ours.

    `reason` is why they are not compared, `lacking` the tasks that both means leave out.
    """

    row: str = ""
    column: str = ""
    theirs: float | None = None
    ours: float | None = None
    within: Ends | None = None
    reason: str = ""
    lacking: tuple[str, ...] = ()

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's; None if one is missing, or they are not compared."""
        if self.ours is None or self.theirs is None or self.reason:
            return None
        return self.ours - self.theirs

    @property
    def significant(self) -> bool | None:
        """Whether the paper's number, taken as fixed, is outside our interval."""
        if self.difference is None or self.within is None or self.theirs is None:
            return None
        return not self.within[0] <= self.theirs <= self.within[1]

    def __str__(self) -> str:
        ours, theirs = ("-" if n is None else points(n) for n in (self.ours, self.theirs))
        if self.difference is None:
            return f"{ours} ({theirs})"
        mark = "*" if self.significant else ""
        return f"{ours} ({theirs}, {points(self.difference, '+')}{mark})"


def paper_of(study: str) -> Paper | None:
    """The paper's tables for the study of this name; None where there are none."""
    path = PAPERS / f"{study}.yaml"
    if not path.is_file():
        return None
    return validated(Paper, read_yaml(path, "a paper's tables", error=BadRecipe), str(path))


def compared_cells(
    paper: Paper,
    table: PaperTable,
    base: str,
    lines: Mapping[str, Sequence[Line]],
    seconds: Mapping[str, float],
) -> list[ComparedCell]:
    """Every cell of a table, given our lines of one base by board, and our seconds by name.

    If the paper has no number of our base, ours are put into the columns of the paper's base.
    """
    places = {cell: table.place(*cell) for cell in product(table.rows, table.columns)}
    chosen_base = base if base in {place.base for place in places.values()} else paper.base

    def ours(place: PaperCell) -> ComparedCell:
        other = (place.base or paper.base) != chosen_base
        if other or place.lacking:
            return ComparedCell(reason="of another base" if other else place.lacking)
        if place.measure != "seconds":
            return _score(place, table.tasks, lines.get(place.board, ()))
        times = [seconds.get(name) for name in (place.row, place.less) if name]
        timed = [number for number in times if number is not None]
        if len(timed) < len(times):
            return ComparedCell(reason="not timed")
        return ComparedCell(ours=timed[0] - sum(timed[1:]))

    def compared(row: str, column: str) -> ComparedCell:
        place, values = places[row, column], table.values.get(row, {})
        cell = replace(ours(place), row=row, column=column, theirs=values.get(column))
        if not cell.lacking:
            return cell
        printed = {
            places[row, other].task: value
            for other, value in values.items()
            if places[row, other].but(task=MEAN) == place
        }
        numbers = [printed.get(task) for task in table.tasks if task not in cell.lacking]
        same = [value for value in numbers if value is not None]
        # the paper chose its best expert on all tasks
        if cell.theirs is None or len(same) < len(numbers) or place.row.startswith(BEST):
            reason = f"without {', '.join(cell.lacking)}"
            return replace(cell, reason=reason, within=None, lacking=())
        return replace(cell, theirs=fmean(same))

    return [compared(*cell) for cell in places]


def _score(place: PaperCell, tasks: Sequence[str], lines: Sequence[Line]) -> ComparedCell:
    """Our score in a cell, or the reason why there is none."""
    names = tasks if place.task == MEAN else (place.task,)
    picked = _picked(place, lines)
    task_lines = {task: [line for line in picked if line.name == task] for task in names}
    cells = {task: _cell(place, found, lines) for task, found in task_lines.items()}
    known = [cell for cell in cells.values() if cell is not None]
    if not known:
        return ComparedCell(reason="experts score 0" if any(task_lines.values()) else "no record")
    whole = mean_cell(known) if len(known) > 1 else known[0]
    chosen = place.row.startswith(BEST) or "," in place.row
    lacking = tuple(task for task, cell in cells.items() if cell is None)
    return ComparedCell(ours=whole.mean, within=None if chosen else whole.interval, lacking=lacking)


def _picked(place: PaperCell, lines: Sequence[Line]) -> list[Line]:
    """The lines that a cell is computed from, on any task."""
    row, _, extreme = place.row.partition(", ")
    row = "individual" if len(place.of) == 1 else row
    roles = ROLES.get(row, ("merged", "reference"))
    pairs = (zip(line.experts, line.trained, strict=False) for line in lines)
    trained = {digest: task for (_, digest), (task, *_) in chain(*pairs)}
    found = [
        line
        for line in lines
        if line.role in roles
        and (row in ROLES or row in (line.model, line.method))
        and line.setting.protocol == place.protocol
        and place.shots in (None, line.shots)
        and {*place.of} in ({trained.get(line.digest)}, {task for task, *_ in line.trained}, set())
    ]
    if row == BEST:
        sets = grouped(found, lambda line: line.set).values()
        models = (grouped(set_lines, lambda line: line.digest).values() for set_lines in sets)
        return [line for model_lines in models for line in max(model_lines, key=_mean)]
    if extreme:
        pick = min if extreme == "min" else max
        tasks = grouped(found, lambda line: line.task).values()
        return [pick(task_lines, key=lambda line: fmean(line.values)) for task_lines in tasks]
    return found


def _mean(lines: Sequence[Line]) -> float:
    return fmean(fmean(line.values) for line in lines)


def _cell(place: PaperCell, lines: Sequence[Line], all_lines: Sequence[Line]) -> GridCell | None:
    """The mean over lines of one task, with its interval if their resamples are the same."""
    if place.measure == "drop":
        alike = [line for line in all_lines if line.setting.protocol == place.protocol]
        own = {
            (line.digest, line.task): fmean(line.values) for line in alike if line.role == "expert"
        }
        pairs = [
            (own.get((digest, line.task), 0.0), line)
            for line in lines
            for _, digest in line.experts
        ]
        drops = [100 * (best - fmean(line.values)) / best for best, line in pairs if best > 0]
        return GridCell((fmean(drops),)) if drops else None
    if not lines:
        return None
    whole = GridCell((_mean(lines),))
    if (found := by_task(lines)) is None:
        return whole
    (within,) = intervals(lines[0].metrics, {None: found[0][0]})
    return replace(whole, interval=(100 * within.low, 100 * within.high))


# Tables of a study -------------------------------------------------------------------------


def tables(plan: Plan, outcomes: Mapping[str, Outcome], folder: Path) -> list[Path]:
    """Write the paper's tables with the numbers of a study beside the paper's; returns the paths.

    For each base and table a Markdown and a CSV file in `folder`/boards; none without a paper.
    """
    design = plan.paper or plan.study
    if (paper := paper_of(design)) is None:
        return []
    steps = [(step, outcomes[name]) for name, step in plan.steps.items()]
    bases = dict.fromkeys(step.base for step, _ in steps if step.verb == "merge")
    files: dict[Path, str] = {}
    for base in bases:
        own = [(step, outcome) for step, outcome in steps if step.base == base]
        places = record_paths(plan, outcomes, folder, base)
        lines = {
            board: with_set_numbers(reported(read_lines(sorted(paths))))
            for board, paths in places.items()
        }
        # the main board of a copy of a design has the name of the copy, or still that of the design
        lines[""] = lines.get(plan.study) or lines.get(design, [])
        lines.setdefault(design, lines[""])
        for table in paper.tables:
            cells = compared_cells(paper, table, leaf(base), lines, mean_seconds(own))
            name = slug(f"{plan.study} {table.table}".lower()) + f"-{leaf(base)}" * (len(bases) > 1)
            files[folder / BOARDS / f"{name}.md"] = as_markdown(
                paper, table, leaf(base), cells, few_rows([step for step, _ in own])
            )
            files[folder / BOARDS / f"{name}.csv"] = as_csv(cells)
    write_files(files.items())
    return [*files]


def few_rows(steps: Sequence[Step]) -> str:
    """A sentence on how few rows experts are trained and scored on, if limited; else ''."""
    parts = []
    for verb, what in (("finetune", "trained on"), ("evaluate", "scored on")):
        limits: set[Any] = {step.request.get("limit") for step in steps if step.verb == verb}
        if limits and None not in limits:
            parts.append(f"{what} {max(limits)} rows at most")
    return f" Ours is {' and '.join(parts)}." if parts else ""


def mean_seconds(steps: Sequence[tuple[Step, Outcome]]) -> dict[str, float]:
    """The mean seconds of a training, as `finetune`, and of each merge, by its name.

    A merge includes the statistics that were computed for it. Steps count as last timed.
    """
    taken = {step.name: outcome.seconds for step, outcome in steps if outcome.state == "done"}
    found: dict[str, list[float]] = {}
    for step, _ in steps:
        needs = [need for need in step.needs if need.startswith("statistics/")]
        if step.verb not in ("finetune", "merge") or not all(map(taken.get, (step.name, *needs))):
            continue
        what = step.verb if step.verb == "finetune" else step.name.rpartition("/")[2]
        found.setdefault(what, []).append(sum(taken[name] for name in (step.name, *needs)))
    return {what: fmean(times) for what, times in found.items()}


def as_markdown(
    paper: Paper, table: PaperTable, base: str, cells: Sequence[ComparedCell], few: str = ""
) -> str:
    """A table in the paper's layout, `few` (a sentence on rows) above it and notes below it."""
    by_row = {row: [str(cell) for cell in cells if cell.row == row] for row in table.rows}
    rows = [[row, *texts] for row, texts in by_row.items()]
    drawn = tabulate(rows, ["", *table.columns], tablefmt="pipe", disable_numparse=True)
    notes = grouped((cell for cell in cells if _note(cell)), _note)
    arxiv = f" (arXiv:{paper.arxiv})" if paper.arxiv else ""
    lines = [
        f"# {paper.paper}{arxiv}, {table.table}: {table.title}",
        f"Ours of {base} (the paper's of {paper.base}, ours minus the paper's). `-`: there is "
        "none. `*`: the paper's number, taken as fixed, is outside our 95 % interval over test "
        "units and draws; tests are not adjusted for their number, and of what has no interval "
        f"nothing is said.{few}",
        drawn,
        *(f"- {reason}: {_listed(table, noted)}" for reason, noted in notes.items()),
    ]
    return "\n\n".join(lines[:3]) + "\n\n" * bool(notes) + "\n".join(lines[3:]) + "\n"


def _note(cell: ComparedCell) -> str:
    """The note on a cell: why it is not compared, or what both means leave out; else ''."""
    return f"both without {', '.join(cell.lacking)}" if cell.lacking else cell.reason


def _listed(table: PaperTable, cells: Sequence[ComparedCell]) -> str:
    """Cells by name; if they are whole columns or rows, by the names of these."""
    rows = [*dict.fromkeys(cell.row for cell in cells)]
    columns = [*dict.fromkeys(cell.column for cell in cells)]
    if len(cells) == len(columns) * len(table.rows):
        return "; ".join(columns)
    if len(cells) == len(rows) * len(table.columns):
        return "; ".join(rows)
    return "; ".join(f"{cell.row} of {cell.column}" for cell in cells)


def as_csv(cells: Sequence[ComparedCell]) -> str:
    """The cells as CSV, a line for each."""
    import pandas

    rows = []
    for cell in cells:
        numbers = (cell.ours, *(cell.within or (None, None)), cell.theirs, cell.difference)
        significant = "" if cell.significant is None else str(cell.significant).lower()
        rows.append((cell.row, cell.column, *numbers, significant, _note(cell)))
    names = ("row", "column", "ours", "low", "high", "paper", "difference", "significant", "said")
    frame = pandas.DataFrame(rows, columns=[*names])
    return str(frame.to_csv(index=False, float_format="%.4g", lineterminator="\n"))
