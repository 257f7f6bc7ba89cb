"""Records -> one tidy frame of pandas; and lines -> the table that a board and an export write.

Scores are x100. A line is one scored model: means over tasks and rows over experts are left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import isinf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.data.shots import amount
from harness.evaluation.records import Record, each_record
from harness.reporting.bases import by_base
from harness.reporting.grid import GridCell, board_row_names
from harness.reporting.lines import Line, lines_of
from harness.reporting.sets import with_set_numbers
from harness.text import csv_cell

if TYPE_CHECKING:
    import pandas

DERIVED_COLUMNS: Mapping[str, Callable[[Line], Any]] = {
    "task": lambda line: line.name,
    "metric": lambda line: "+".join(line.metrics),
    "premerge": lambda line: "+".join(line.premerge),
    "postmerge": lambda line: "+".join(line.postmerge),
    "shots": lambda line: amount(line.shots),
    "transductive": lambda line: line.saw_the_scored,
    "low": lambda line: line.interval and line.interval[0],
    "high": lambda line: line.interval and line.interval[1],
    "record": lambda line: line.path,
    "value": lambda line: GridCell(line.values).mean,
    "parts": lambda line: json.dumps({name: round(value, 6) for name, value in line.parts}),
    "sd": lambda line: GridCell(line.values).deviation,
    "draws": lambda line: len(line.values),
    "facts": lambda line: json.dumps(dict(line.facts)) if line.facts else "",
}
"""Columns of a line that are not fields of the same name and form."""
DRAW_COLUMNS = ("draw", "resample", "value", "parts", "facts")
"""Columns of one draw, or of one resample of the test units."""
RECORD_COLUMNS: Mapping[str, Callable[[Record], Any]] = {
    "base": lambda record: record.base and record.base.source,
    "family": lambda record: record.family,
    "recipe": lambda record: record.recipe.model_dump_json() if record.recipe else "",
    "experts": lambda record: " + ".join(one.source for one in record.experts),
    "experts_digest": lambda record: " ".join(one.digest for one in record.experts),
    "experts_seed": lambda record: _seeds(one.seed for one in record.experts),
    "experts_head_seed": lambda record: _seeds(one.head_seed for one in record.experts),
    "source": lambda record: str(record.dataset.get("source") or ""),
    "revision": lambda record: str(record.dataset.get("revision") or ""),
    "dataset": lambda record: str(record.dataset.get("digest", "")),
    "limit": lambda record: record.settings.get("limit"),
    "train_limit": lambda record: record.settings.get("train_limit"),
    "seed": lambda record: record.settings.get("seed"),
    "versions": lambda record: json.dumps(record.versions),
    "code": lambda record: str(record.settings.get("code") or ""),
}
"""Columns of a record: what the model was made of, the data and the settings."""
TABLE = (
    "task", "split", "kind", "metric", "rows", "protocol", "options", "shots", "row", "role",
    "model", "method", "premerge", "merger", "postmerge", "head", "preset", "adapted",
    "transductive", "value", "parts", "sd", "draws", "low", "high", "level", "majority", "facts",
    "digest", "record",
)  # fmt: skip
"""The columns of board.csv, a line for each record and number of shots. `sd` is over draws (n - 1);
`low` and `high` are the ends of the interval of the mean, at `level`; `facts` are what a protocol
reports of its fits; `row` is the name on the board, `record` the file; `shots` is 0 where nothing
is drawn and infinite where all rows are (in CSV, `all`)."""
FRAME = tuple(
    name
    for one in TABLE
    if one not in ("sd", "draws")
    for name in {
        "shots": ("shots", "draw", "resample"),
        "head": (*RECORD_COLUMNS, "set", "head"),
    }.get(one, (one,))
)
"""The columns of a frame, a line for each draw: those of board.csv except `sd` and `draws`, the
seed of the draw, the number of the resample (0: the test units themselves), RECORD_COLUMNS, and the
number of the set of experts."""
FLOATS = (
    "value", "sd", "low", "high", "level", "majority", "shots", "draw", "limit", "train_limit",
    "seed",
)  # fmt: skip
TRUTHS = ("transductive", "significant")
COUNTS = ("rows", "draws", "resample", "set")
"""Columns by type (numbers that may be missing, truth values, counts); the others are texts."""


def read_records(*places: str | Path, resamples: bool = False) -> pandas.DataFrame:
    """All records in files, packs and folders as one tidy frame. Raises BrokenRecord.

    A line for each model, task, protocol, number of shots and draw, with the columns that
    docs/records.md lists; scores x100. With `resamples` also a line for each resample of the test
    units, with the mean over the draws.
    """
    import pandas

    records = ((str(path), record) for path, record in each_record(places))
    pairs = [(line, record) for path, record in records for line in lines_of([(path, record)])]
    drawn = pandas.DataFrame(
        [(index, *row) for index, pair in enumerate(pairs) for row in _values(*pair, resamples)],
        columns=["at", *DRAW_COLUMNS],
    )
    columns = {
        name: [value_of(record) for _, record in pairs] for name, value_of in RECORD_COLUMNS.items()
    }
    lines = [line for line, _ in pairs]
    columns |= {"row": board_row_names(lines), "set": _sets(lines)}
    rest = [name for name in FRAME if name not in (*columns, *DRAW_COLUMNS)]
    columns |= {name: [_column_value(name, line) for line in lines] for name in rest}
    repeated = pandas.DataFrame(columns).loc[drawn.pop("at")].reset_index(drop=True)
    return _typed(pandas.concat([repeated, drawn], axis="columns")[[*FRAME]])


def _seeds(seeds: Iterable[int | None]) -> str:
    """The seeds of experts as text, in the experts' order, `?` where unknown."""
    return " ".join("?" if seed is None else str(seed) for seed in seeds)


def _sets(lines: Sequence[Line]) -> list[int]:
    """The number of each line's set of experts, counted within each base."""
    pairs = (zip(group, with_set_numbers(group), strict=True) for group in by_base(lines).values())
    sets = {id(line): numbered.set for group in pairs for line, numbered in group}
    return [sets[id(line)] for line in lines]


def _column_value(name: str, line: Line) -> Any:
    """The value of a line in a column."""
    return DERIVED_COLUMNS[name](line) if name in DERIVED_COLUMNS else getattr(line, name)


def _values(line: Line, record: Record, resamples: bool) -> Iterator[tuple[Any, ...]]:
    """The `DRAW_COLUMNS` of each draw and, if asked for, of each resample."""
    for score in record.scores:
        if (score.shots or 0) == line.shots:
            parts = json.dumps({name: round(100 * v, 6) for name, v in score.parts.items()})
            facts = json.dumps(score.facts) if score.facts else ""
            yield score.seed, 0, 100 * score.value, parts, facts
    for number, value in enumerate(line.estimate.resamples if resamples else (), start=1):
        yield None, number, 100 * value, "", ""


def table(lines: Sequence[Line], rows: Sequence[str], files: Sequence[str]) -> pandas.DataFrame:
    """The frame that board.csv is written from: lines with their rows and files."""
    import pandas

    columns: dict[str, Sequence[Any]] = {"row": rows, "record": files}
    columns |= {
        name: [_column_value(name, line) for line in lines] for name in TABLE if name not in columns
    }
    return _typed(pandas.DataFrame(columns)[[*TABLE]])


def _typed(frame: pandas.DataFrame) -> pandas.DataFrame:
    """The frame with FLOATS as float64, and texts that repeat as categories."""
    kinds = {name: "float64" if name in FLOATS else "category" for name in frame}
    unchanged = (*TRUTHS, *COUNTS, "record")
    return frame.astype({name: kind for name, kind in kinds.items() if name not in unchanged})


def as_csv(table: pandas.DataFrame) -> str:
    """A table as CSV; no cell is a formula or has control characters."""
    safe = cache(csv_cell)
    texts = table.select_dtypes(exclude=["number", "bool", "boolean"])
    cells = {name: [*map(safe, column)] for name, column in texts.items()}
    cells |= {name: table[name].astype("Int64") for name in TRUTHS if name in table}
    cells["shots"] = ["all" if isinf(v) else f"{v:.0f}" for v in table["shots"]]
    frame = table.assign(**cells)
    return str(frame.to_csv(index=False, float_format="%.6f", lineterminator="\n"))
