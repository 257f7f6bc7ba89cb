"""Shell: predictions for every unit of the test rows <-> a Parquet file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import xxhash

from harness.errors import BrokenRecord, WrongPredictions
from harness.evaluation.counting import scored
from harness.evaluation.faults import CLOSE
from harness.evaluation.records import Record
from harness.files import parse_json, replacing
from harness.kinds import kind_of
from harness.types import DERIVED, Array64, Shots, Task, Units

DrawKey: TypeAlias = "tuple[Shots | None, int | None]"
"""Shots and seed of a draw; None, None if nothing is drawn."""
LABEL, ROW, DOCUMENT = "label", "row", "document"
"""The columns beside predictions: the true labels; for words, the row of each; the document of each
unit, if known."""
ABOUT = b"harness"
"""The key in the metadata of the file under which the task's kind and labels are written."""


@dataclass(frozen=True)
class Predicted:
    """The predictions of a model for the test rows of a task, by shots and seed.

    `labels` and each of the `values` are [units] or [rows, classes]; `units` [rows] is the number
    of units of each row. `digest` is that of the rows; `left_out` has, by seed, the rows that are
    not scored. `documents` [rows] has the number of each row's document, None if not known.
    """

    task: Task
    digest: str
    units: Units
    labels: Array64
    values: Mapping[DrawKey, Array64]
    left_out: Mapping[int, Sequence[int]] = field(default_factory=dict)
    documents: Units | None = None

    @property
    def shots(self) -> list[Shots | None]:
        """The numbers of shots that were drawn, in their order; [None] if nothing is drawn."""
        return [*dict.fromkeys(shots for shots, _ in self.values)]

    def draws(self, shots: Shots | None) -> list[DrawKey]:
        """The draws with `shots` shots."""
        return [key for key in self.values if key[0] == shots]

    def left(self, key: DrawKey) -> Sequence[int]:
        """The rows that a draw is not scored on (`left_for`)."""
        return left_for(self.left_out, key[1])

    @cached_property
    def content(self) -> str:
        """A hash of the labels and of all predictions, whatever the encoding of the file.

        Predictions that are no whole numbers do not count: their last digits depend on the
        processor.
        """
        header = json.dumps([self.task.kind, self.task.labels, self.labels.shape])
        truth = _hashed(header.encode(), self.labels, self.units)
        parts: list[bytes | Array64] = [truth.encode()]
        for key in sorted(self.values, key=_name):
            values = self.values[key]
            parts += [_name(key).encode(), values if (values == np.rint(values)).all() else b"real"]
        return _hashed(*parts)


def left_for(left_out: Mapping[int, Sequence[int]], seed: int | None) -> Sequence[int]:
    """The rows that are not scored for the seed of a draw; without a draw, those of the first
    seed."""
    return left_out.get(min(left_out, default=0) if seed is None else seed, ())


def _hashed(*parts: bytes | Array64 | Units) -> str:
    hasher = xxhash.xxh3_128()
    for part in parts:
        # little-endian on every machine, and -0.0 as 0.0
        hasher.update(part if isinstance(part, bytes) else (part + 0.0).astype("<f8").tobytes())
    return hasher.hexdigest()


# Writing -----------------------------------------------------------------------------------


def write_predictions(path: Path, predicted: Predicted) -> None:
    """Write labels and predictions to a Parquet file with a row for each unit, atomically."""
    import pyarrow
    import pyarrow.parquet

    task = predicted.task
    columns = {LABEL: _column(predicted.labels)}
    if kind_of(task).split_into_words:
        columns[ROW] = pyarrow.array(np.repeat(np.arange(len(predicted.units)), predicted.units))
    if predicted.documents is not None:
        columns[DOCUMENT] = pyarrow.array(np.repeat(predicted.documents, predicted.units))
    columns |= {_name(key): _column(values) for key, values in predicted.values.items()}
    about = json.dumps({"kind": task.kind, "labels": task.labels})
    table = pyarrow.table(columns).replace_schema_metadata({ABOUT: about})
    with replacing(path) as file:
        pyarrow.parquet.write_table(table, file)


def _name(key: DrawKey) -> str:
    """The name of the column with the predictions of a draw."""
    shots, seed = key
    return "prediction" if shots is None else f"shots={shots},seed={seed}"


def _column(values: Array64) -> Any:
    """The labels of units as a column; for [rows, classes], of lists."""
    import pyarrow

    return pyarrow.array(values.tolist() if values.ndim > 1 else values)


# Reading -----------------------------------------------------------------------------------


def read_predictions(record: Record, path: Path) -> Predicted:
    """The predictions of a record from a file, checked to give the record's scores.

    Raises BrokenRecord, naming the file, if it cannot be read, and WrongPredictions if they are of
    another model, of other rows or in another order.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        # not as a pyarrow data set, which imports pandas: more than half a second
        table = pyarrow.parquet.ParquetFile(path).read()
        about = (table.schema.metadata or {}).get(ABOUT)
        if about is None:
            raise TypeError("it does not name the kind of its task")
        task = _task(record, about, path)
        columns = {name: _values(table[name]) for name in table.column_names}
    except (pyarrow.ArrowException, ValueError, TypeError, KeyError, OSError) as error:
        raise BrokenRecord(f"{path} cannot be read as predictions: {error}") from error
    keys = [(score.shots, score.seed) for score in record.scores]
    if absent := [name for name in (LABEL, *map(_name, keys)) if name not in columns]:
        raise _wrong(path, f"has no column '{absent[0]}'; found {', '.join(columns)}")
    units, left_out = _units(record, task, columns, path), record.settings.get("left_out") or {}
    predicted = Predicted(
        task=task,
        digest=str(record.dataset.get("digest")),
        units=units,
        labels=columns[LABEL],
        values={key: columns[_name(key)] for key in keys},
        left_out={int(seed): rows for seed, rows in left_out.items()},
        documents=_documents(columns, units),
    )
    if fault := mismatch_with_record(record, predicted):
        raise _wrong(path, fault)
    return predicted


def mismatch_with_record(record: Record, predicted: Predicted) -> str | None:
    """Why these are not the predictions of a record: a predicate, to follow their name."""
    if len(predicted.units) != record.rows:
        return f"has {len(predicted.units)} rows, the record {record.rows}"
    for score in record.scores:
        key = score.shots, score.seed
        try:
            value = scored(predicted, key)
        except (ValueError, IndexError) as error:
            return f"cannot be scored: {error}"
        if not abs(value - score.value) <= CLOSE * max(1, abs(score.value)):
            draw = f" ({_name(key)})" if score.shots else ""
            return f"scores {value:.4f}{draw}, the record {score.value:.4f}"
    if record.predictions not in (None, predicted.content):
        return "has other labels or predictions than the record was made with"
    return None


def _wrong(path: Path, fault: str) -> WrongPredictions:
    return WrongPredictions(
        f"{path} does not belong to its record: it {fault}; remove it, and evaluate again"
    )


def _task(record: Record, about: bytes, path: Path) -> Task:
    """The task with the fields that metrics read; the others are placeholders."""
    fields = parse_json(about.decode(), str(path), "predictions", error=BrokenRecord)
    return Task(
        name=record.task.partition("@")[0],
        kind=fields["kind"],
        text=("text",),
        label=LABEL,
        labels=tuple(fields["labels"]),
        metrics=record.metrics,
        splits={},
        reported=DERIVED[1],
    )


def _values(column: Any) -> Array64:
    """A column as numbers, from its buffer: pyarrow's way imports pandas, over half a second."""
    import pyarrow

    whole = column.combine_chunks()
    rows = len(whole)
    if pyarrow.types.is_list(whole.type):
        flat = np.from_dlpack(whole.flatten())
        return flat.astype(np.float64).reshape(rows, -1)
    return np.from_dlpack(whole).astype(np.float64)


def _units(record: Record, task: Task, columns: Mapping[str, Array64], path: Path) -> Units:
    """The number of units of each row: for words, those whose column ROW names the row."""
    if not kind_of(task).split_into_words:
        return np.ones(len(columns[LABEL]), dtype=np.int64)
    if ROW not in columns:
        raise BrokenRecord(f"{path} lacks the column '{ROW}'; evaluate into another folder")
    rows = columns[ROW]
    if not ((rows >= 0) & (rows < record.rows)).all():
        raise _wrong(path, f"has words of rows that are not from 0 to {record.rows - 1}")
    counts = np.bincount(rows.astype(np.int64), minlength=record.rows)
    return np.asarray(counts, dtype=np.int64)


def _documents(columns: Mapping[str, Array64], units: Units) -> Units | None:
    """The document of each row, that of its first unit; None if not known, or a row has no unit."""
    if DOCUMENT not in columns or not units.all():
        return None
    return np.asarray(columns[DOCUMENT][np.cumsum(units) - units], dtype=np.int64)
