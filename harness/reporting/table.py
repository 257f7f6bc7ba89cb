"""Pure: a grid -> the one table that `evaluate` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from tabulate import tabulate

from harness.data.shots import amount
from harness.evaluation.records import Record
from harness.reporting.boards.legend import adaptation_notes, notes_by_setting
from harness.reporting.grid import Grid, short_task
from harness.reporting.lines import CURRENT, Line, Setting, tasks_by
from harness.reporting.sentences import rendered
from harness.text import plain, points
from harness.types import Shots


def evaluation_table(scores: Grid, width: int | None = None) -> str:
    """One table: rows are the model and its references, columns are protocol x task, values x100.

    The head of a column has the task's metrics and its number of rows. Of several numbers of shots
    the one nearest to 5 is shown. If the table is wider than `width`, it has a block for each
    protocol, one below the other, with the protocol's name in the corner. Scores of the merged
    model under Current Eval have their interval, unless that alone makes a block too wide.
    """
    by_task = tasks_by(scores.lines.values())
    heads = [_column(column, scores.tasks, by_task.get(column)) for column in scores.columns]
    merged = {row for (row, _, _), line in scores.lines.items() if line.role == "merged"}

    def texts(row: str, setting: Setting, within: bool) -> list[str]:
        if within and row in merged and setting.protocol == CURRENT:
            return [cell.with_interval if cell else "" for cell in scores.row(row, setting)]
        return [cell.with_experts if cell else "" for cell in scores.row(row, setting)]

    return _laid(scores, heads, texts, width)


PARTS = "Each metric of the tasks that have several:"
"""The line above the table of parts."""


def parts_table(scores: Grid, width: int | None = None) -> str:
    """A table of every metric of the tasks that have several; '' if no task has.

    `evaluation_table` shows the mean of these; rows, settings and blocks are as there.
    """
    by_task = tasks_by(scores.lines.values())
    several = [task for task in scores.tasks if len(by_task[task].metrics) > 1]
    columns = [(task, metric) for task in several for metric in by_task[task].metrics]
    heads = [f"{plain(short_task(task, scores.tasks))}\n{plain(name)}" for task, name in columns]

    def texts(row: str, setting: Setting, _: bool) -> list[str]:
        lines = [(scores.lines.get((row, setting, task)), metric) for task, metric in columns]
        values = [dict(line.parts).get(metric) if line else None for line, metric in lines]
        return ["" if value is None else points(value) for value in values]

    return _laid(scores, heads, texts, width) if columns else ""


def _laid(
    scores: Grid,
    heads: Sequence[str],
    texts: Callable[[str, Setting, bool], list[str]],
    width: int | None,
) -> str:
    """A table of texts: settings side by side if they fit, else in blocks below one another."""
    settings = [*scores.headlines.values()]

    def render(corner: str, heads: Sequence[str], group: Sequence[Setting], *, within: bool) -> str:
        rows = []
        for name in scores.rows:
            cells = [text for setting in group for text in texts(name, setting, within)]
            rows += [[plain(name), *cells]] if any(cells) else []
        return tabulate(rows, [corner, *heads], tablefmt="simple", disable_numparse=True)

    side_by_side = [_heading(setting, head) for setting in settings for head in heads]
    table = render("", side_by_side, settings, within=True)
    if fits(table, width):
        return table
    blocks = []
    for single in settings:
        wide, narrow = (render(plain(single), heads, [single], within=yes) for yes in (True, False))
        blocks.append(wide if fits(wide, width) else narrow)
    return "\n\n".join(blocks)


def legend(table: str) -> str:
    """The meaning of the marks that occur in a table."""
    return rendered("marks", table)


def fits(table: str, width: int | None) -> bool:
    return width is None or max(map(len, table.splitlines())) <= width


def other_shots(scores: Grid) -> list[str]:
    """A sentence on the numbers of shots that are in the grid but not in the table, if any."""
    printed = _shots(scores.headlines.values())
    rest = [shots for shots in _shots(scores.settings) if shots not in printed]
    return [f"Shots shown: {listed(printed)}; also in the records: {listed(rest)}."] if rest else []


def protocols_saw(scores: Grid) -> list[str]:
    """A sentence for every setting in the table whose protocol adapts to rows, or whose models ran
    in half precision.

    Fits to too few rows have sentences of their own: `left_open`.
    """
    notes = notes_by_setting(scores, adaptation_notes)
    return [
        f"{setting}: {notes[setting]}." for setting in scores.headlines.values() if notes[setting]
    ]


def shared_texts(records: Sequence[Record]) -> list[str]:
    """A sentence for every task with rows whose text or image is also in its training rows."""
    shared = {r.task: (r.dataset.get("shared_with_train"), r.rows) for r in records}
    return [
        f"{count} of {rows} rows of {task} have a text or image that is also in its training rows, "
        "which an expert may have memorised (shared_with_train in the records)"
        for task, (count, rows) in shared.items()
        if count
    ]


def _shots(settings: Iterable[Setting]) -> list[Shots]:
    """The numbers of shots that were drawn, ascending."""
    return sorted({setting.shots for setting in settings if setting.shots}, key=amount)


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


def _heading(setting: Setting, column: str) -> str:
    return "\n".join([*map(plain, setting.lines), *([] if setting.shots else [""]), column])
