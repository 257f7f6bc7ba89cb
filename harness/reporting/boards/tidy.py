"""Lines -> tidy tables, a row for each: CSV, Parquet and a frame of pandas with one set of columns.

Scores are x100. A row is what was read: means over tasks and rows over experts are not in it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from math import fsum, isinf, sqrt
from typing import TYPE_CHECKING, Any, TypeAlias

from harness.data.shots import amount
from harness.reporting.boards.gains import Gain
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
    "parts": lambda line: json.dumps({name: round(value, 6) for name, value in line.parts}),
    "facts": lambda line: json.dumps(dict(line.facts)) if line.facts else "",
    "digest": lambda line: line.digest,
}
NUMBERS: dict[str, Callable[[Line], float | None]] = {
    "value": lambda line: fsum(line.values) / len(line.values),
    "sd": lambda line: _deviation(line.values),
    "low": lambda line: line.interval and line.interval[0],
    "high": lambda line: line.interval and line.interval[1],
    "level": lambda line: line.level,
    "majority": lambda line: line.majority,
    "shots": lambda line: amount(line.shots),
}
COUNTS: dict[str, Callable[[Line], int]] = {
    "rows": lambda line: line.rows,
    "draws": lambda line: len(line.values),
    "transductive": lambda line: line.saw_the_scored,
}
COLUMNS = (
    "task", "split", "kind", "metric", "rows", "protocol", "options", "shots", "row", "role",
    "model", "method", "premerge", "merger", "head", "preset", "adapted", "transductive", "value",
    "parts", "sd", "draws", "low", "high", "level", "majority", "facts", "digest", "record",
)  # fmt: skip
"""Of every tidy table. `sd` is over draws (n - 1); `low` and `high` are an interval at `level`;
`facts` are what a protocol tells of its fits; `row` is what the board calls it, `record` the file;
`shots` is 0 where nothing is drawn and, where all are taken, infinite (in CSV, `all`)."""
GAINS = ("gain", "significant")
"""Columns beside, where a board knows of a gain whether it is significant: the points over
the same merge without the first method before it, and 1 where it is, 0 where it is not."""
Table: TypeAlias = "dict[str, Sequence[Any]]"
"""The values of every column, by its name."""


def table(lines: Sequence[Line], rows: Sequence[str], files: Sequence[str]) -> Table:
    """Lines as columns, with the row and the file of each."""
    made: Table = {"row": rows, "record": files}
    for columns in (TEXTS, NUMBERS, COUNTS):
        made |= {name: [value(line) for line in lines] for name, value in columns.items()}
    return {name: made[name] for name in COLUMNS}


def with_gains(table: Table, gains: Sequence[Gain | None]) -> Table:
    """The table with what is gained by each line."""
    points = [gain and gain.points for gain in gains]
    return {**table, "gain": points, "significant": [gain and gain.significant for gain in gains]}


def _deviation(values: Sequence[float]) -> float | None:
    """The standard deviation of draws, divisor n - 1; None of a single one."""
    if len(values) < 2:
        return None
    mean = fsum(values) / len(values)
    return sqrt(fsum([(value - mean) ** 2 for value in values]) / (len(values) - 1))


def as_csv(table: Table) -> str:
    """A tidy table as CSV; no cell is a formula or moves a cursor."""
    safe = cache(csv_cell)
    shown: list[Iterable[str]] = []
    for name, values in table.items():
        if name == "shots":
            shown.append("all" if isinf(value) else f"{value:.0f}" for value in values)
        elif name in (*NUMBERS, "gain"):
            shown.append("" if value is None else f"{value:.6f}" for value in values)
        elif name == "significant":
            shown.append("" if value is None else str(int(value)) for value in values)
        elif name in COUNTS:
            shown.append(str(int(value)) for value in values)
        else:
            shown.append(map(csv_cell if name == "record" else safe, values))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*shown, strict=True))
    return text.getvalue()


def as_table(table: Table) -> pyarrow.Table:
    """A tidy table as one of Arrow; texts that repeat are codes."""
    import pyarrow

    coded = pyarrow.dictionary(pyarrow.int32(), pyarrow.string())
    kinds = dict.fromkeys(NUMBERS, pyarrow.float64()) | dict.fromkeys(COUNTS, pyarrow.int64())
    kinds |= {"gain": pyarrow.float64()}
    kinds |= {"transductive": pyarrow.bool_(), "significant": pyarrow.bool_()}
    made = {}
    for name, values in table.items():
        column = pyarrow.array(values, kinds.get(name, pyarrow.string()))
        made[name] = column if name in kinds or name == "record" else column.cast(coded)
    return pyarrow.table(made)


def as_frame(table: Table) -> pandas.DataFrame:
    """A tidy table as a frame of pandas (which comes with `datasets`)."""
    frame: Any = as_table(table).to_pandas()
    return frame
