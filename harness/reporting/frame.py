"""Records -> one tidy frame of pandas; and lines -> the table that a board and an export write.

Scores are x100. A line is what was scored: means over tasks and rows over experts are not in it.
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
from harness.reporting.grid import Cell, named_rows
from harness.reporting.lines import Line, lines_of
from harness.text import csv_cell

if TYPE_CHECKING:
    import pandas

WHAT: Mapping[str, Callable[[Line], Any]] = {
    "task": lambda line: line.name,
    "split": lambda line: line.split,
    "kind": lambda line: line.kind,
    "metric": lambda line: "+".join(line.metrics),
    "rows": lambda line: line.rows,
    "protocol": lambda line: line.protocol,
    "options": lambda line: line.options,
    "shots": lambda line: amount(line.shots),
    "role": lambda line: line.role,
    "model": lambda line: line.model,
    "method": lambda line: line.method,
    "premerge": lambda line: line.premerge,
    "merger": lambda line: line.merger,
    "head": lambda line: line.head,
    "preset": lambda line: line.preset,
    "adapted": lambda line: line.adapted,
    "transductive": lambda line: line.saw_the_scored,
    "low": lambda line: line.interval and line.interval[0],
    "high": lambda line: line.interval and line.interval[1],
    "level": lambda line: line.level,
    "majority": lambda line: line.majority,
    "digest": lambda line: line.digest,
}
"""What a record says of a number of shots, whatever the draw."""
MEANS: Mapping[str, Callable[[Line], Any]] = {
    "value": lambda line: Cell(line.values).mean,
    "parts": lambda line: json.dumps({name: round(value, 6) for name, value in line.parts}),
    "sd": lambda line: Cell(line.values).deviation,
    "draws": lambda line: len(line.values),
    "facts": lambda line: json.dumps(dict(line.facts)) if line.facts else "",
}
"""What it says in the mean over the draws."""
VALUES = ("draw", "resample", "value", "parts", "facts")
"""What it says of one draw, or of one resample of the test units."""
MADE_OF: Mapping[str, Callable[[Record], Any]] = {
    "base": lambda record: record.base and record.base.source,
    "family": lambda record: record.family,
    "recipe": lambda record: record.recipe.model_dump_json() if record.recipe else "",
    "experts": lambda record: " + ".join(one.source for one in record.experts),
    "experts_digest": lambda record: " ".join(one.digest for one in record.experts),
    "dataset": lambda record: str(record.dataset.get("digest", "")),
    "limit": lambda record: record.settings.get("limit"),
    "seed": lambda record: record.settings.get("seed"),
}
"""What it is of, beside."""
TABLE = (
    "task", "split", "kind", "metric", "rows", "protocol", "options", "shots", "row", "role",
    "model", "method", "premerge", "merger", "head", "preset", "adapted", "transductive", "value",
    "parts", "sd", "draws", "low", "high", "level", "majority", "facts", "digest", "record",
)  # fmt: skip
"""The columns of board.csv, a line for each record and number of shots. `sd` is over draws (n - 1);
`low` and `high` are the ends of the interval of the mean, at `level`; `facts` are what a protocol
says of its fits; `row` is what the board calls it, `record` the file; `shots` is 0 where
nothing is drawn and infinite where all rows are (in CSV, `all`)."""
FRAME = tuple(
    name
    for one in TABLE
    if one not in ("sd", "draws")
    for name in {"shots": ("shots", "draw", "resample"), "head": (*MADE_OF, "head")}.get(
        one, (one,)
    )
)
"""The columns of a frame, a line for each draw: those of board.csv but for what is over draws, the
seed of the draw, the number of the resample (0: the test units as they are), and what the model was
made of."""
FLOATS = (
    "value", "sd", "low", "high", "level", "majority", "gain", "shots", "draw", "limit", "seed",
)  # fmt: skip
TRUTHS = ("transductive", "significant")
COUNTS = ("rows", "draws", "resample")
NUMBERS = (*FLOATS, *TRUTHS, *COUNTS)


def read_records(*places: str | Path, resamples: bool = False) -> pandas.DataFrame:
    """All records in files, packs and folders as one tidy frame. Raises BrokenRecord.

    A line for each model, task, protocol, number of shots and draw, with the columns that
    docs/records.md lists; scores x100. With `resamples` also one for each resample of the test
    units, of the mean over the draws, where records keep them.
    """
    return frame_of(each_record(places), resamples=resamples)


def frame_of(
    records: Iterable[tuple[Path | str, Record]], *, resamples: bool = False
) -> pandas.DataFrame:
    """Records that lie in these files as a frame."""
    made = [(line, r) for path, r in records for line in lines_of([(str(path), r)])]
    names = named_rows([line for line, _ in made])
    lines = [
        (line, record, name, values)
        for (line, record), name in zip(made, names, strict=True)
        for values in _values(line, record, resamples)
    ]
    columns = {name: [of(line) for line, *_ in lines] for name, of in WHAT.items()}
    columns |= {name: [of(record) for _, record, *_ in lines] for name, of in MADE_OF.items()}
    columns |= {name: [values[at] for *_, values in lines] for at, name in enumerate(VALUES)}
    columns |= {"row": [one[2] for one in lines], "record": [one.path for one, *_ in lines]}
    return _typed({name: columns[name] for name in FRAME})


def _values(line: Line, record: Record, resamples: bool) -> Iterator[tuple[Any, ...]]:
    """The `VALUES` of each draw and, if asked for, of each resample."""
    for one in record.scores:
        if (one.shots or 0) == line.shots:
            parts = json.dumps({name: round(100 * v, 6) for name, v in one.parts.items()})
            facts = json.dumps(one.facts) if one.facts else ""
            yield one.seed, 0, 100 * one.value, parts, facts
    if resamples and (estimate := line.estimate) is not None:
        for number, value in enumerate(estimate.resamples.tolist(), start=1):
            yield None, number, 100 * value, "", ""


def table(lines: Sequence[Line], rows: Sequence[str], files: Sequence[str]) -> pandas.DataFrame:
    """Lines as a frame, with the row and the file of each: what board.csv is written from."""
    columns = {name: [of(line) for line in lines] for name, of in {**WHAT, **MEANS}.items()}
    columns |= {"row": [*rows], "record": [*files]}
    return _typed({name: columns[name] for name in TABLE})


def _typed(columns: Mapping[str, Sequence[Any]]) -> pandas.DataFrame:
    """Numbers as such, and texts that repeat as categories."""
    import pandas

    frame = pandas.DataFrame(columns)
    kinds = {name: "float64" if name in FLOATS else "category" for name in frame}
    kept = (*TRUTHS, *COUNTS, "record")
    return frame.astype({name: kind for name, kind in kinds.items() if name not in kept})


def as_csv(table: pandas.DataFrame) -> str:
    """A table as CSV; no cell is a formula or moves a cursor."""
    safe = cache(csv_cell)
    shown = {
        name: ["all" if isinf(v) else f"{v:.0f}" for v in column]
        if name == "shots"
        else column.astype("Int64")
        if name in TRUTHS
        else column
        if name in NUMBERS
        else list(map(safe, column))
        for name, column in table.items()
    }
    made = table.assign(**shown)
    return str(made.to_csv(index=False, float_format="%.6f", lineterminator="\n"))
