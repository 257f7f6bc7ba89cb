"""Lines -> tidy tables, a row for each: CSV, Parquet and a frame of pandas with one set of columns.

Scores are x100. A row is what was read: means over tasks and rows over experts are not in it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from math import fsum, sqrt
from typing import TYPE_CHECKING, Any

from harness.reporting.lines import Line
from harness.text import csv_cell

if TYPE_CHECKING:
    import pandas
    import pyarrow

TEXTS: dict[str, Callable[[Line], str]] = {
    "task": lambda line: line.name,
    "split": lambda line: line.split,
    "kind": lambda line: line.kind,
    "metric": lambda line: "+".join(line.metrics),
    "protocol": lambda line: line.protocol,
    "options": lambda line: line.options,
    "role": lambda line: line.role,
    "model": lambda line: line.model,
    "method": lambda line: line.method,
    "premerge": lambda line: line.premerge,
    "merger": lambda line: line.merger,
    "head": lambda line: line.head,
    "preset": lambda line: line.preset,
    "adapted": lambda line: line.adapted,
    "parts": lambda line: json.dumps({name: round(value, 4) for name, value in line.parts}),
    "digest": lambda line: line.digest,
}
NUMBERS: dict[str, Callable[[Line], float | None]] = {
    "value": lambda line: fsum(line.values) / len(line.values),
    "sd": lambda line: _deviation(line.values),
    "low": lambda line: line.interval and line.interval[0],
    "high": lambda line: line.interval and line.interval[1],
    "level": lambda line: line.level,
    "majority": lambda line: line.majority,
}
COUNTS: dict[str, Callable[[Line], int]] = {
    "rows": lambda line: line.rows,
    "shots": lambda line: line.shots,
    "draws": lambda line: len(line.values),
    "transductive": lambda line: line.transductive,
}
COLUMNS = (
    "task", "split", "kind", "metric", "rows", "protocol", "options", "shots", "row", "role",
    "model", "method", "premerge", "merger", "head", "preset", "adapted", "transductive", "value",
    "parts", "sd", "draws", "low", "high", "level", "majority", "digest", "record",
)  # fmt: skip
"""Of every tidy table. `sd` is over draws (n - 1); `low` and `high` are over test rows, at `level`;
`row` is what the board calls it, `record` the file; `shots` is 0 where nothing is drawn."""


def _deviation(values: Sequence[float]) -> float | None:
    """The standard deviation of draws, divisor n - 1; None of a single one."""
    if len(values) < 2:
        return None
    mean = fsum(values) / len(values)
    return sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def as_csv(lines: Sequence[Line], rows: Sequence[str], files: Sequence[str]) -> str:
    """Lines as CSV, with the row and the file of each; no cell is a formula or moves a cursor."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_cells(lines, rows, files))
    return table.getvalue()


def _cells(lines: Sequence[Line], rows: Sequence[str], files: Sequence[str]) -> Iterator[list[str]]:
    safe = cache(csv_cell)
    for line, row, file in zip(lines, rows, files, strict=True):
        said = {"row": safe(row), "record": csv_cell(file)}
        said |= {name: safe(text(line)) for name, text in TEXTS.items()}
        said |= {name: _shown(number(line)) for name, number in NUMBERS.items()}
        said |= {name: str(int(count(line))) for name, count in COUNTS.items()}
        yield [said[name] for name in COLUMNS]


def _shown(number: float | None) -> str:
    return "" if number is None else f"{number:.4f}"


def as_table(lines: Sequence[Line], rows: Sequence[str], files: Sequence[str]) -> pyarrow.Table:
    """Lines as a table of Arrow, with the row and the file of each; texts that repeat as codes."""
    import pyarrow

    coded = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    made = {name: pyarrow.array(map(text, lines)).cast(coded) for name, text in TEXTS.items()}
    made["row"] = pyarrow.array(rows).cast(coded)
    made["record"] = pyarrow.array(files)
    for name, number in NUMBERS.items():
        made[name] = pyarrow.array(map(number, lines), pyarrow.float64())
    for name, count in COUNTS.items():
        kind = pyarrow.bool_() if name == "transductive" else pyarrow.int64()
        made[name] = pyarrow.array(map(count, lines), kind)
    return pyarrow.table({name: made[name] for name in COLUMNS})


def as_frame(lines: Sequence[Line], rows: Sequence[str], files: Sequence[str]) -> pandas.DataFrame:
    """Lines as a frame of pandas (which comes with `datasets`), texts that repeat as categories."""
    frame: Any = as_table(lines, rows, files).to_pandas()
    return frame
