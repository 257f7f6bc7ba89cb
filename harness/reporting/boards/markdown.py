"""Pure: a board -> Markdown: a table for each protocol, and what is finer folded below it."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

from harness.reporting.boards.board import Board
from harness.reporting.boards.credit_table import section
from harness.reporting.boards.legend import BOLD, legend, notes
from harness.reporting.boards.share import Share
from harness.reporting.grid import Cell, Reading, short_task
from harness.text import markdown, plain, points

WIDTH = 120
"""Signs of a line of text. Rows of a table are as long as they are."""


def rendered(board: Board) -> str:
    """The board as Markdown."""
    first = section(board, board.credits) if board.credits else ()
    parts = [*first, _legend(board)]
    said = notes(board.scores)
    for _, group in groupby(board.scores.readings, key=lambda reading: reading.protocol):
        parts += _protocol(board, [*group], said)
    return "\n\n".join([*parts, *_shares(board)]) + "\n"


# What is said ------------------------------------------------------------------------------


def _legend(board: Board) -> str:
    said = [
        f"**{term}**: {text}" if term == BOLD else f"`{term}`: {text}"
        for term, text in legend(board, any(_marked(share) for share in board.shares))
    ]
    tasks = f"Tasks: {', '.join(map(markdown, board.tasks))}."
    return "\n".join(_filled(text, bullet="- ") for text in ["Values are x100.", tasks, *said])


def _marked(share: Share) -> bool:
    return bool(share.lost.mark or share.recovered.mark)


def _filled(text: str, bullet: str = "") -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=bullet,
        subsequent_indent=" " * len(bullet),
        break_long_words=False,
        break_on_hyphens=False,
    )


# Tables ------------------------------------------------------------------------------------


def _protocol(
    board: Board, readings: Sequence[Reading], notes: Mapping[Reading, str]
) -> Iterator[str]:
    """The section of a protocol: the table of one number of shots, the others folded."""
    first = board.headlines[readings[0].protocol]
    yield f"## {markdown(first)}"
    if note := notes[first]:
        yield _filled(markdown(f"{note[0].upper()}{note[1:]}."))
    yield _table(board, first, _with_experts)
    for reading in readings:
        if reading != first:
            yield from _folded(str(reading), _table(board, reading, _with_experts))
    if any(cell and cell.interval for _, cells in board.rows_under(first) for cell in cells):
        tables = [f"{markdown(one)}:\n\n{_table(board, one, in_full)}" for one in readings]
        yield from _folded(f"{first.protocol}: intervals", "\n\n".join(tables))
    if parts := [*_parts(board, readings)]:
        yield from _folded(f"{first.protocol}: each metric", "\n\n".join(parts))


def _folded(title: str, body: str) -> Iterator[str]:
    yield f"<details><summary>{html.escape(plain(title))}</summary>"
    yield body
    yield "</details>"


def _with_experts(cell: Cell) -> str:
    return cell.with_experts


def in_full(cell: Cell) -> str:
    """A cell with its interval."""
    if cell.interval is None:
        return cell.with_experts
    low, high = cell.interval
    return f"{cell} [{points(low)}, {points(high)}]"


def _table(board: Board, reading: Reading, text: Callable[[Cell], str]) -> str:
    """Rows x tasks under one reading, the best in bold."""
    rows = []
    for name, cells in board.rows_under(reading):
        row = [markdown(name)]
        for column, cell in zip(board.scores.columns, cells, strict=True):
            best = board.best.get((reading, column))
            bold = best is not None and name in best.rows and cell is not None
            shown = "" if cell is None else text(cell)
            row.append(f"**{shown}**" if bold else shown)
        rows.append(row)
    return _markdown([*_of_columns(board), *rows], ["", *_names(board)])


def _names(board: Board) -> list[str]:
    """The heads of columns: tasks, in as few words as tell them apart, and their mean."""
    tasks = board.scores.tasks
    columns = board.scores.columns
    return [markdown(short_task(one, tasks)) if one in board.tasks else one for one in columns]


def _of_columns(board: Board) -> Iterator[list[str]]:
    """Below the heads, which would be long lines with them: the metrics and rows of each task."""
    known = [board.tasks.get(column) for column in board.scores.columns]
    yield ["*metric*", *("" if one is None else markdown(" + ".join(one.metrics)) for one in known)]
    yield ["*rows*", *("" if one is None else f"{one.rows:,}" for one in known)]


def _parts(board: Board, readings: Sequence[Reading]) -> Iterator[str]:
    """A table for each reading with every metric of the tasks that have several."""
    several = [task for task, line in board.tasks.items() if len(line.metrics) > 1]
    columns = [(task, metric) for task in several for metric in board.tasks[task].metrics]
    for reading in readings if columns else ():
        rows = []
        for row in board.scores.rows:
            lines = {task: board.scores.lines.get((row, reading, task)) for task in several}
            known = [dict(line.parts) if (line := lines[task]) else {} for task, _ in columns]
            if any(known):
                numbers = [of.get(metric) for of, (_, metric) in zip(known, columns, strict=True)]
                shown = ["" if number is None else points(number) for number in numbers]
                rows.append([markdown(row), *shown])
        heads = [markdown(short_task(task, board.scores.tasks)) for task, _ in columns]
        rows.insert(0, ["*metric*", *(markdown(metric) for _, metric in columns)])
        if len(rows) > 1:
            yield f"{markdown(reading)}:\n\n{_markdown(rows, ['', *heads])}"


def _shares(board: Board) -> Iterator[str]:
    """How much of the loss of each row the head explains."""
    for number, (setting, group) in enumerate(groupby(board.shares, key=lambda one: one.setting)):
        if not number:
            yield "## How much of the loss is the head's"
            yield _filled(
                "Loss: experts minus merge under Current Eval, in points. Recovered: FT-Classifier "
                "Eval minus Current Eval. Share: recovered over loss, with its 95 % interval over "
                "test units and draws, where the loss is significant (Holm over the rows) and "
                "records keep resamples. "
                "`as the base`: under a tuned head the base does not score less, so that says "
                "nothing of the merge."
            )
        rows = []
        for share in group:
            one = share.verdict
            shown = [points(value) for value in (one.experts, one.current, one.tuned)]
            shown += [f"{points(gain.points)}{gain.mark}" for gain in (share.lost, share.recovered)]
            rows.append([markdown(share.row), str(one.tasks), *shown, share.share])
        heads = ["tasks", "experts", "current", markdown(setting), "loss", "recovered", "share"]
        yield _markdown(rows, ["", *heads])


def _markdown(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> str:
    """A table as wide as its cells."""
    columns = ([row[at] for row in (headers, *rows)] for at in range(len(headers)))
    names, *numbers = [max(map(len, column), default=0) for column in columns]
    dashes = ["-" * (width + 1) for width in numbers]
    rule = f"|:{'-' * (names + 1)}|{':|'.join(dashes)}:|"
    lines = []
    for name, *cells in (headers, *rows):
        shown = [cell.rjust(width) for cell, width in zip(cells, numbers, strict=True)]
        lines.append(f"| {' | '.join([name.ljust(names), *shown])} |")
    return "\n".join([lines[0], rule, *lines[1:]])
