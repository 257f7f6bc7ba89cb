"""Shell: a task and a split -> `Rows`."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from harness.data.sources import _table
from harness.data.splits import TRAIN, _pick, splits_of
from harness.errors import BadData
from harness.labels import spelling
from harness.types import Row, Rows, Task

LONGEST_NAME = 1000
"""Letters of a label: a longer text is a column by mistake, and slow to compare."""


def load_rows(
    task: Task, split: str, *, folder: str | Path | None = None, limit: int | None = None
) -> Rows:
    """Read a split of a task.

    `limit` keeps the first rows only. Raises BadData for a missing file, column or label and for
    an empty split, LabelMismatch when the data set names its classes otherwise.
    """
    if split not in splits_of(task):
        raise BadData(f"task '{task}' has no split '{split}'; known: {', '.join(splits_of(task))}")
    if limit is not None and limit < 1:
        raise BadData(f"limit is {limit}, expected at least one row")
    table = _table(task, task.splits.get(split, TRAIN), folder)
    picked = _pick(len(table), split, limit)
    if not len(picked):
        raise BadData(f"{task}@{split} has no rows; expected at least one")
    if missing := [c for c in (*task.text, task.label) if c not in table.columns]:
        raise BadData(
            f"{task}@{split} has no column '{missing[0]}'; found {', '.join(table.columns)}; "
            f"expected {', '.join((*task.text, task.label))}"
        )
    rows = table.rows(picked)
    texts = tuple(_text(task, row, split) for row in rows)
    labels = np.array([_label(task, row[task.label], split) for row in rows], dtype=np.float64)
    digest = xxhash.xxh3_128_hexdigest(json.dumps([texts, labels.tolist()]).encode())
    return Rows(task, split, texts, labels, digest)


def _text(task: Task, row: Row, split: str) -> tuple[str, ...]:
    """The segments of a row, as the task reads them, else its columns of text."""
    if task.read is None:
        return tuple("" if row[column] is None else str(row[column]) for column in task.text)
    try:
        return task.read(row)
    except Exception as error:  # a task's own function, on whatever a file holds
        raise BadData(
            f"{task}@{split} has a row that cannot be read ({type(error).__name__}: {error}); "
            "expected text in its columns"
        ) from error


def _label(task: Task, value: Any, split: str) -> float:
    if task.kind == "regression":
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = np.nan
        if not np.isfinite(number):
            shown = reprlib.repr(value)
            raise BadData(f"{task}@{split} has the label {shown}, expected a finite number")
        return number
    spelled = spelling(task.labels)
    names = [spelled(name) for name in task.labels]
    if isinstance(value, str) and len(value) < LONGEST_NAME and spelled(value) in names:
        return names.index(spelled(value))
    try:
        index = float(value)
    except (TypeError, ValueError, OverflowError):
        index = -1.0
    if index.is_integer() and 0 <= index < len(task.labels):
        return index
    raise BadData(
        f"{task}@{split} has the label {reprlib.repr(value)}, expected one of "
        f"{', '.join(task.labels)} or an index below {len(task.labels)}"
    )


def take(rows: Rows, picked: Sequence[int]) -> Rows:
    """The picked rows alone, with a digest of their own."""
    texts = tuple(rows.texts[i] for i in picked)
    labels = rows.labels[list(picked)]
    digest = xxhash.xxh3_128_hexdigest(json.dumps([texts, labels.tolist()]).encode())
    return Rows(rows.task, rows.split, texts, labels, digest)
