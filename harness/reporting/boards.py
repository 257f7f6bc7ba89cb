"""Records -> boards. `leaderboard` writes what `board` renders."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from tabulate import tabulate

from harness.evaluation.inference import Samples, sampler
from harness.evaluation.predictions import shelf
from harness.evaluation.records import CHOICE_SPLIT, Record, read_records
from harness.files import check_place, write_text
from harness.reporting.grid import AVERAGE_SINGLE, BEST_SINGLE, MAX, Cell, grid
from harness.reporting.table import _text
from harness.reporting.verdict import verdicts
from harness.text import csv_cell, markdown

HOW = {
    AVERAGE_SINGLE: "`average single` is the mean over all experts with the labels of a task, each "
    "of them read on it.",
    BEST_SINGLE: f"`best single` is the expert with the best Current Eval on {CHOICE_SPLIT}, over "
    "the tasks that the same experts are read on.",
    MAX: f"`{MAX}` is the best on the reported rows themselves, an oracle.",
}


def board(records: Sequence[Record], samples: Samples | None = None) -> tuple[str, str]:
    """The board of the records as Markdown and as CSV: methods x tasks for every reading.

    With `samples`, shares of losses are of those that other test rows would show, too.
    """
    scores = grid(records, by_method=True)
    parts = [
        "Values are x100; ± is the standard deviation over draws (n - 1). Metrics: "
        + "; ".join(f"{markdown(task)} {_metrics(records, task)}" for task in scores.tasks)
        + ".",
    ]
    if {BEST_SINGLE, AVERAGE_SINGLE} & {*scores.rows}:
        parts.append(" ".join(text for row, text in HOW.items() if row in scores.rows))
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    spread = [f"{column} sd" for column in scores.columns]
    writer.writerow(map(csv_cell, ["protocol", "shots", "row", *scores.columns, *spread]))
    for reading in scores.readings:
        known = [name for name in scores.rows if any(scores.row(name, reading))]
        lines = [[markdown(name), *map(_text, scores.row(name, reading))] for name in known]
        columns = ["", *map(markdown, scores.columns)]
        parts += [f"## {markdown(reading)}", _markdown(lines, columns)]
        for name in known:
            cells = scores.row(name, reading)
            means = ["" if cell is None else f"{cell.mean:.2f}" for cell in cells]
            deviations = [_deviation(cell) for cell in cells]
            shots = reading.shots or ""
            called = csv_cell(reading.protocol), shots, csv_cell(name)
            writer.writerow([*called, *means, *deviations])
    shares = _head_share(records, samples)
    for number, (tuned, lines) in enumerate(shares.items()):
        headers = ["", "tasks", "experts", "current", tuned, "loss", "recovered", "share"]
        if not number:
            parts += [
                "## How much of the loss is the head's",
                "Loss: experts minus merge under Current Eval, in points. Recovered: FT-Classifier "
                "Eval minus Current Eval. Share: recovered over loss, where one can be told from "
                "none: by its interval over the test rows if the predictions lie beside the "
                "records, else by a point or more. `as the base`: under a tuned head the base "
                "reads as much, so that says nothing of the merge.",
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


def _head_share(records: Sequence[Record], samples: Samples | None) -> dict[str, list[list[str]]]:
    """The verdict of every method as a line, over the tasks that it was read on, by setting."""
    lines: dict[str, list[list[str]]] = {}
    methods = dict.fromkeys(r.method for r in records if r.role in ("merged", "base"))
    for method in methods:
        mine = [r for r in records if r.method == method and r.role in ("merged", "base")]
        for one in verdicts(records, merged=mine, samples=samples):
            numbers = (one.experts, one.current, one.tuned, one.loss, one.recovered)
            shown = [f"{round(number, 1) + 0.0:.1f}" for number in numbers]
            column = f"{one.setting}, {one.shots} shots"
            lines.setdefault(markdown(column), []).append(
                [markdown(method), str(one.tasks), *shown, one.share]
            )
    return lines


def leaderboard(places: Sequence[str | Path], *, out: str | Path) -> list[Path]:
    """Render the board of all records in files and folders to `out`/board.md and board.csv."""
    check_place(Path(out).absolute())
    board_text, table = board(read_records(places), sampler(shelf(places)))
    folder = Path(out)
    written = [folder / "board.md", folder / "board.csv"]
    for path, text in zip(written, (board_text, table), strict=True):
        write_text(path, text)
    return written
