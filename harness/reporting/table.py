"""Pure: records -> the one table that `evaluate` prints."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from harness.data.shots import amount
from harness.evaluation.records import Record
from harness.reporting.boards.legend import notes, seen
from harness.reporting.grid import (
    CONSTANT,
    CURRENT,
    HEADLINE_SHOTS,
    MAX,
    Cell,
    Reading,
    grid,
    short_task,
)
from harness.reporting.lines import Line, tasks_by
from harness.stats.intervals import LEVEL
from harness.text import plain, points
from harness.types import Shots


def evaluation_table(records: Sequence[Record], width: int | None = None) -> str:
    """One table: rows are the model and its references, columns are protocol x task, values x100.

    The head of a column has the task's metrics and its number of rows. Of several numbers of shots
    the one nearest to 5 is shown. Where it is wider than `width`, the columns of each protocol
    stand below one another, with its name in the corner. Current Eval of the merged model has its
    interval, unless that alone makes it too wide.
    """
    scores = grid(records, by_method=False)
    shown = [reading for reading in scores.readings if reading in _headline(scores.readings)]
    known = tasks_by(scores.lines.values())
    tasks = [_column(column, scores.tasks, known.get(column)) for column in scores.columns]
    merged = {row for (row, _, _), line in scores.lines.items() if line.role == "merged"}

    def render(
        corner: str, headers: Sequence[str], shown: Sequence[Reading], *, within: bool
    ) -> str:
        rows = []
        for name in scores.rows:
            cells = [(reading, c) for reading in shown for c in scores.row(name, reading)]
            if any(cell for _, cell in cells):
                marked = within and name in merged
                texts = [_shown(c, marked and one.protocol == CURRENT) for one, c in cells]
                rows.append([plain(name), *texts])
        return tabulate(rows, [corner, *headers], tablefmt="simple", disable_numparse=True)

    def fitting(corner: str, headers: Sequence[str], shown: Sequence[Reading]) -> str:
        with_interval = render(corner, headers, shown, within=True)
        return (
            with_interval
            if fits(with_interval, width)
            else render(corner, headers, shown, within=False)
        )

    headers = [_heading(reading, task) for reading in shown for task in tasks]
    whole = render("", headers, shown, within=True)
    if fits(whole, width):
        return whole
    return "\n\n".join(fitting(plain(str(reading)), tasks, [reading]) for reading in shown)


PARTS = "Of these means of several metrics, each metric:"
"""What stands above the table of parts."""


def parts_table(records: Sequence[Record], width: int | None = None) -> str:
    """Every metric of the tasks that have several, whose mean the table has; '' where none has.

    Rows, readings and what is done where it is too wide are those of `evaluation_table`.
    """
    scores = grid(records, by_method=False)
    shown = [reading for reading in scores.readings if reading in _headline(scores.readings)]
    known = tasks_by(scores.lines.values())
    columns = [
        (task, metric)
        for task in scores.tasks
        if task in known and len(known[task].metrics) > 1
        for metric in known[task].metrics
    ]
    heads = [f"{plain(short_task(task, scores.tasks))}\n{plain(name)}" for task, name in columns]

    def render(corner: str, headers: Sequence[str], shown: Sequence[Reading]) -> str:
        rows = []
        for name in scores.rows:
            lines = [
                (scores.lines.get((name, one, task)), m) for one in shown for task, m in columns
            ]
            values = [dict(line.parts).get(metric) if line else None for line, metric in lines]
            if any(value is not None for value in values):
                rows.append([plain(name), *("" if v is None else points(v) for v in values)])
        return tabulate(rows, [corner, *headers], tablefmt="simple", disable_numparse=True)

    if not columns:
        return ""
    whole = render("", [_heading(reading, head) for reading in shown for head in heads], shown)
    if fits(whole, width):
        return whole
    return "\n\n".join(render(plain(str(reading)), heads, [reading]) for reading in shown)


def legend(table: str) -> str:
    """What the marks of a table say, of those that are in it."""
    marks = {
        "±": "±: standard deviation (n - 1) over the draws, of a mean over the draws' means; "
        "no expert is trained anew.",
        "[": f"[ ]: {100 * LEVEL:.0f} % interval over the test rows, training and model held.",
        "(sd ": "(sd): standard deviation over the experts of a task (n - 1).",
        CONSTANT: f"{CONSTANT}: the same for every row; of accuracy the majority label.",
        MAX: f"{MAX}: the best on these very rows, an oracle.",
    }
    return " ".join(["Values x100.", *(says for mark, says in marks.items() if mark in table)])


def fits(table: str, width: int | None) -> bool:
    return width is None or max(map(len, table.splitlines())) <= width


def other_shots(records: Sequence[Record]) -> list[str]:
    """Which numbers of shots were read and are not in the table, in a sentence; none if all are."""
    known = grid(records, by_method=False).readings
    kept = _shots(_headline(known))
    rest = [shots for shots in _shots(known) if shots not in kept]
    return [f"Shots shown: {listed(kept)}; also in the records: {listed(rest)}."] if rest else []


def protocols_saw(records: Sequence[Record]) -> list[str]:
    """A line for every reading in the table whose protocol saw more than the rows it is scored on.

    Fits that this leaves open have lines of their own: `left_open`.
    """
    scores = grid(records, by_method=False)
    said = notes(scores, seen)
    return [f"{one}: {said[one]}." for one in _headline(scores.readings) if said[one]]


def shared_texts(records: Sequence[Record]) -> list[str]:
    """A line for every task with rows whose text stands in its training rows, too."""
    shared = {r.task: (r.dataset.get("shared_with_train"), r.rows) for r in records}
    return [
        f"{count} of {rows} rows of {task} have a text that stands in its training rows, too: what "
        "an expert remembers counts as known (shared_with_train in the records)"
        for task, (count, rows) in shared.items()
        if count
    ]


def _shots(readings: Sequence[Reading]) -> list[Shots]:
    """The numbers of shots that were drawn, ascending."""
    return sorted({reading.shots for reading in readings if reading.shots}, key=amount)


def listed(numbers: Sequence[object]) -> str:
    """`1, 5 and 10`."""
    first = ", ".join(map(str, numbers[:-1]))
    return f"{first} and {numbers[-1]}" if first else str(numbers[-1])


def _column(column: str, tasks: Sequence[str], line: Line | None) -> str:
    """The task, its metrics and its number of rows, below one another."""
    name = plain(short_task(column, tasks))
    if line is None:
        return name
    metrics = " +\n".join(map(plain, line.metrics))
    return f"{name}\n{metrics}\n{line.rows:,} rows"


def _heading(reading: Reading, column: str) -> str:
    shown = [*map(plain, reading.lines), *([""] if not reading.shots else []), column]
    return "\n".join(shown)


def _headline(readings: Sequence[Reading]) -> list[Reading]:
    """One number of shots per protocol, the nearest to the papers' five."""

    def distance(shots: Shots) -> float:
        return abs(amount(shots) - HEADLINE_SHOTS)

    best: dict[str, Reading] = {}
    for reading in readings:
        held = best.get(reading.protocol)
        if held is None or distance(reading.shots) < distance(held.shots):
            best[reading.protocol] = reading
    return list(best.values())


def _shown(cell: Cell | None, within: bool) -> str:
    """A cell as the terminal shows it, with the spread over rows or over experts that it has."""
    if cell is not None and within and cell.interval is not None:
        low, high = cell.interval
        return f"{cell} [{points(low)}, {points(high)}]"
    return "" if cell is None else cell.with_experts
