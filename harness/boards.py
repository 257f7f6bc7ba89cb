"""Pure: records -> tables, boards and the verdict. `leaderboard` writes what `board` renders."""

from __future__ import annotations

import csv
import io
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tabulate import tabulate

from harness.errors import BrokenRecord
from harness.files import check_place, write_text
from harness.records import CHOICE_SPLIT, Record, Role, read_records
from harness.text import csv_cell, markdown, plain

TUNED = "ft-classifier"
PROTOCOL_ORDER = ("current", "knn", TUNED)
SINGLES = ("expert", "single")
SUMMARY = ("experts, min", "experts, mean", MAX := "experts, max")
BEST_SINGLE = f"best single ({CHOICE_SPLIT})"
AVERAGE_SINGLE = "average single"
HOW = {
    AVERAGE_SINGLE: "`average single` is the mean over all experts with the labels of a task, each "
    "of them read on it.",
    BEST_SINGLE: f"`best single` is the expert with the best Current Eval on {CHOICE_SPLIT}, over "
    "the tasks that the same experts are read on.",
    MAX: f"`{MAX}` is the best on the reported rows themselves, an oracle.",
}
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
    """Scores of one row under one reading on one task (or averaged over all), times 100."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def deviation(self) -> float | None:
        """Standard deviation over draws, divisor n - 1; None where nothing is drawn."""
        return float(np.std(self.values, ddof=1)) if len(self.values) > 1 else None

    def __str__(self) -> str:
        if self.deviation is None:
            return f"{self.mean:.1f}"
        return f"{self.mean:.1f} ±{self.deviation:.1f}"


@dataclass(frozen=True)
class Grid:
    """Rows by name, readings and tasks in order, and the cells that are known."""

    rows: tuple[str, ...]
    readings: tuple[Reading, ...]
    tasks: tuple[str, ...]
    cells: dict[tuple[str, Reading, str], Cell]

    def row(self, name: str, reading: Reading) -> list[Cell | None]:
        """The cells of a row under one reading, and their mean if every task has one."""
        found = [self.cells.get((name, reading, task)) for task in self.tasks]
        if len(self.tasks) == 1:
            return found
        known = [cell for cell in found if cell is not None]
        return [*found, _across(known) if len(known) == len(found) else None]

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
    found = set()
    for record in records:
        known = record.protocol in PROTOCOL_ORDER
        rank = PROTOCOL_ORDER.index(record.protocol) if known else len(PROTOCOL_ORDER)
        found |= {Reading(rank, label(record), shots or 0) for shots in record.shots}
    return sorted(found)


def label(record: Record) -> str:
    """The protocol, with the options that were asked beside its defaults."""
    from harness.registry import PROTOCOLS, resolve
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
    the merged models, by method or by name.
    """
    chosen = best_single(records)
    records = reported(records)
    _check_same_work(records)
    tasks = tuple(dict.fromkeys(record.task for record in records))
    per_task = {
        task: {r.digest for r in records if r.role == "expert" and r.task == task} for task in tasks
    }
    one_each = max((len(found) for found in per_task.values()), default=0) <= 1
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
            found = Cell(tuple(100 * v for v in record.values(reading.shots or None)))
            if record.role in SINGLES:
                known.setdefault((reading, record.task), {})[record.digest] = found
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
                cells[key] = found
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
    lines = tuple(dict.fromkeys([*shown, *summary, *named]))
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
    found = {}
    if read.keys() - own:
        found[AVERAGE_SINGLE] = Cell((float(np.mean([cell.mean for cell in read.values()])),))
    if best is not None:
        found[BEST_SINGLE] = best
    means = [cell.mean for digest, cell in read.items() if digest in own]
    if means and not one_each:
        values = min(means), float(np.mean(means)), max(means)
        found |= {name: Cell((value,)) for name, value in zip(SUMMARY, values, strict=True)}
    return found


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
    found: dict[str, str] = {}
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
        found |= dict.fromkeys(shared, max(order, key=lambda digest: scores[digest]))
    return found


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


def evaluation_table(records: Sequence[Record], width: int | None = None) -> str:
    """One table: rows are the model and its references, columns are protocol x task, values x100.

    Of several numbers of shots the one nearest to 5 is shown. Where it is wider than `width`, the
    columns of each protocol stand below one another.
    """
    found = grid(records, by_method=False)
    shown = [reading for reading in found.readings if reading in _headline(found.readings)]
    blocks = [
        (
            [_heading(reading, short_task(column, found.tasks)) for column in found.columns],
            [[_text(cell) for cell in found.row(name, reading)] for name in found.rows],
        )
        for reading in shown
    ]

    def render(parts: Sequence[tuple[list[str], list[list[str]]]]) -> str:
        headers = ["", *(header for part in parts for header in part[0])]
        rows = [
            [plain(name), *(text for part in parts for text in part[1][index])]
            for index, name in enumerate(found.rows)
        ]
        kept = [row for row in rows if any(row[1:])]
        return tabulate(kept, headers, tablefmt="simple", disable_numparse=True)

    whole = render(blocks)
    if width is None or max(map(len, whole.splitlines())) <= width:
        return whole
    return "\n\n".join(render([block]) for block in blocks)


def _heading(reading: Reading, column: str) -> str:
    shown = [*map(plain, reading.lines), *([""] if not reading.shots else []), plain(column)]
    return "\n".join(shown)


def _headline(found: Sequence[Reading]) -> list[Reading]:
    """One number of shots per protocol, the nearest to the papers' five."""
    best: dict[str, Reading] = {}
    for reading in found:
        held = best.get(reading.protocol)
        if held is None or abs(reading.shots - HEADLINE_SHOTS) < abs(held.shots - HEADLINE_SHOTS):
            best[reading.protocol] = reading
    return list(best.values())


def short_task(task: str, tasks: Sequence[str]) -> str:
    """`glue/rte@validation` as `rte` where that is clear among the tasks."""
    bare = task.partition("@")[0].rpartition("/")[2]
    clear = [t.partition("@")[0].rpartition("/")[2] for t in tasks].count(bare) <= 1
    return bare if clear else task


def _text(cell: Cell | None) -> str:
    return "" if cell is None else str(cell)


# The verdict -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """How far a merge is below its experts under Current Eval, and what a tuned head wins back.

    All in points (x100), averaged over the tasks; `shots` are those of FT-Classifier Eval.
    `control` is the base under FT-Classifier Eval: what the head can do without any merge.
    """

    experts: float
    current: float
    tuned: float
    shots: int
    tasks: int
    control: float | None = None
    setting: str = TUNED

    @property
    def loss(self) -> float:
        return self.experts - self.current

    @property
    def recovered(self) -> float:
        return self.tuned - self.current

    def __str__(self) -> str:
        over = f"averaged over {self.tasks} tasks, " if self.tasks > 1 else ""
        scores = f"{self.current:.1f} against {self.experts:.1f}"
        tuned = f"FT-Classifier Eval with {self.shots} shots reads {self.tuned:.1f}"
        if self.setting != TUNED:
            tuned = tuned.replace("Eval", f"Eval ({self.setting})")
        if self.control is not None:
            tuned += f" (the base {self.control:.1f})"
        if self.loss <= 0:
            return (
                f"{over}the merge is {abs(self.loss):.1f} points above its experts under "
                f"Current Eval ({scores}), so the head hides no loss; {tuned}."
            )
        share = 100 * self.recovered / self.loss
        if self.recovered <= 0:
            cause = "the head explains none of the loss, which lies in the encoder"
        elif share >= 100:
            cause = "the head explains all of the loss"
        elif share >= 50:
            cause = f"the head explains most of the loss ({share:.0f} %)"
        else:
            cause = f"the head explains {share:.0f} % of the loss, the rest lies in the encoder"
        return (
            f"{over}the merge is {self.loss:.1f} points below its experts under Current "
            f"Eval ({scores}); {tuned}: {cause}."
        )


def verdicts(records: Sequence[Record]) -> list[Verdict]:
    """The verdict on the merged model for every setting that FT-Classifier Eval was read with.

    None without experts, or where a task was not read.
    """
    records = reported(records)
    tuned = [r for r in records if r.role == "merged" and r.protocol == TUNED]
    found = (_verdict(records, setting) for setting in dict.fromkeys(map(label, tuned)))
    return [one for one in found if one is not None]


def _verdict(records: Sequence[Record], setting: str) -> Verdict | None:
    merged = [record for record in records if record.role == "merged"]
    tasks = {record.task for record in merged}
    experts = [r for r in records if r.role == "expert" and r.protocol == "current"]
    current = [r for r in merged if r.protocol == "current"]
    tuned = [r for r in merged if r.protocol == TUNED and label(r) == setting]
    base = [r for r in records if r.role == "base" and r.protocol == TUNED and label(r) == setting]
    for read in (experts, current, tuned):
        if {record.task for record in read} != tasks:
            return None
    _check_same_work([*experts, *current])
    shots = _shots(tuned)

    def mean(read: Sequence[Record], count: int | None) -> float:
        by_task = [
            np.mean([v for r in read if r.task == task for v in r.values(count)])
            for task in sorted(tasks)
        ]
        return 100 * float(np.mean(by_task))

    control = mean(base, shots) if {record.task for record in base} == tasks else None
    return Verdict(
        experts=mean(experts, None),
        current=mean(current, None),
        tuned=mean(tuned, shots),
        shots=shots,
        tasks=len(tasks),
        control=control,
        setting=setting,
    )


def _shots(records: Sequence[Record]) -> int:
    """The number of shots nearest to the papers' five."""
    known = {count for record in records for count in record.shots if count}
    return min(known, key=lambda count: (abs(count - HEADLINE_SHOTS), count))


# Boards ------------------------------------------------------------------------------------


def board(records: Sequence[Record]) -> tuple[str, str]:
    """The board of the records as Markdown and as CSV: methods x tasks for every reading."""
    found = grid(records, by_method=True)
    parts = [
        "Values are x100; ± is the standard deviation over draws (n - 1). Metrics: "
        + "; ".join(f"{markdown(task)} {_metrics(records, task)}" for task in found.tasks)
        + ".",
    ]
    if {BEST_SINGLE, AVERAGE_SINGLE} & {*found.rows}:
        parts.append(" ".join(text for row, text in HOW.items() if row in found.rows))
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    spread = [f"{column} sd" for column in found.columns]
    writer.writerow(map(csv_cell, ["protocol", "shots", "row", *found.columns, *spread]))
    for reading in found.readings:
        known = [name for name in found.rows if any(found.row(name, reading))]
        lines = [[markdown(name), *map(_text, found.row(name, reading))] for name in known]
        columns = ["", *map(markdown, found.columns)]
        parts += [f"## {markdown(reading)}", _markdown(lines, columns)]
        for name in known:
            cells = found.row(name, reading)
            means = ["" if cell is None else f"{cell.mean:.2f}" for cell in cells]
            deviations = [_deviation(cell) for cell in cells]
            shots = reading.shots or ""
            called = csv_cell(reading.protocol), shots, csv_cell(name)
            writer.writerow([*called, *means, *deviations])
    shares = _head_share(records)
    for number, (tuned, lines) in enumerate(shares.items()):
        headers = ["", "tasks", "experts", "current", tuned, "loss", "recovered", "share"]
        if not number:
            parts += [
                "## How much of the loss is the head's",
                "Loss: experts minus merge under Current Eval, in points. Recovered: FT-Classifier "
                "Eval minus Current Eval. Share: recovered over loss, where a point or more is "
                "lost.",
            ]
        parts.append(_markdown(lines, headers))
    return "\n\n".join(parts) + "\n", table.getvalue()


def _markdown(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> str:
    align = ["left", *["right"] * (len(headers) - 1)]
    return tabulate(rows, headers, tablefmt="pipe", disable_numparse=True, colalign=align)


def _metrics(records: Sequence[Record], task: str) -> str:
    return markdown("+".join(next(record.metrics for record in records if record.task == task)))


def _deviation(cell: Cell | None) -> str:
    return "" if cell is None or cell.deviation is None else f"{cell.deviation:.2f}"


def _head_share(records: Sequence[Record]) -> dict[str, list[list[str]]]:
    """The verdict of every method as a line, over the tasks that it was read on, by setting."""
    lines: dict[str, list[list[str]]] = {}
    methods = dict.fromkeys(r.method for r in records if r.role in ("merged", "base"))
    for method in methods:
        mine = [r for r in records if r.method == method and r.role in ("merged", "base")]
        tasks = {record.task for record in mine}
        experts = [r for r in records if r.role == "expert" and r.task in tasks]
        for one in verdicts([r.model_copy(update={"role": "merged"}) for r in mine] + experts):
            # of less, the share is that of rounding and chance
            share = f"{100 * one.recovered / one.loss:.0f} %" if one.loss >= 1 else ""
            numbers = (one.experts, one.current, one.tuned, one.loss, one.recovered)
            shown = [f"{round(number, 1) + 0.0:.1f}" for number in numbers]
            column = f"{one.setting}, {one.shots} shots"
            lines.setdefault(markdown(column), []).append(
                [markdown(method), str(one.tasks), *shown, share]
            )
    return lines


def leaderboard(places: Sequence[str | Path], *, out: str | Path) -> list[Path]:
    """Render the board of all records in files and folders to `out`/board.md and board.csv."""
    check_place(Path(out).absolute())
    board_text, table = board(read_records(places))
    folder = Path(out)
    written = [folder / "board.md", folder / "board.csv"]
    for path, text in zip(written, (board_text, table), strict=True):
        write_text(path, text)
    return written
