"""Shell: a task and a split -> `Rows`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import xxhash

from harness.data.fair import described, unlike
from harness.data.formats import columns_needed
from harness.data.images import StoredImage
from harness.data.sources import TRAIN, StoredSplit, table
from harness.data.splits import pick, splits_of
from harness.errors import BadData
from harness.kinds import kind_of
from harness.kinds.kind import RowName
from harness.types import DERIVED, Array64, Row, Rows, Task, Units

Images: TypeAlias = Callable[[int], StoredImage]
"""A function from the number of a row to its image."""


def load_rows(
    task: Task,
    split: str,
    *,
    folder: str | Path | None = None,
    limit: int | None = None,
    first: bool = False,
) -> Rows:
    """The rows of a split of a task.

    `limit` draws that many rows (`splits.pick`). With `first` it takes the first rows, with a
    warning if they are no fair sample of all. Raises BadData for a missing file, column or label
    and for an empty split, LabelMismatch if the data set has other class names.
    """
    if limit is not None and (limit is True or limit < 1):  # True is 1
        raise BadData(f"limit is {limit}, expected at least one row")
    stored = _stored(task, split, folder)
    picked = _picked(task, split, stored, limit, first)
    rows, row_name = stored.rows(picked), _row_names(task, split, picked)
    texts, images = _contents(task, stored, picked, rows, row_name)
    read = _made(task, split, texts, kind_of(task).read(task, rows, row_name))
    documents = _documents([row.get(task.document) for row in rows])
    read = replace(read, documents=documents, images=images)
    if limit is None or split in DERIVED:
        return read
    if first:
        return replace(read, skewed_labels=_told_of_first(task, split, stored, limit))
    return replace(read, is_sample=len(rows) < stored.count)


def count(
    task: Task,
    split: str,
    folder: str | Path | None,
    limit: int | None = None,
    *,
    first: bool = False,
) -> int:
    """How many rows a split of local data has, at most `limit`. Warns as `load_rows`."""
    stored = _stored(task, split, folder)
    if first:
        _told_of_first(task, split, stored, limit)
    return len(pick(stored.count, split, limit))


def _told_of_first(
    task: Task, split: str, stored: StoredSplit, limit: int | None
) -> Mapping[str, tuple[float, float]]:
    """Labels that are too rare or too frequent in the first rows (`fair.unlike`), with a warning.

    Empty for `train90` and `heldout10`, whose rows are in random order, and for a split whose
    further rows cannot be read.
    """
    if limit is None or split in DERIVED or limit >= stored.count:
        return {}
    every = range(stored.count)
    try:
        rows, row_name = stored.rows(every), _row_names(task, split, every)
        labels = kind_of(task).read(task, rows, row_name)
        texts = (_text(task, row, row_name(place)) for place, row in enumerate(rows))
        whole = Rows(task, split, tuple(texts), labels, "")
    except BadData:
        return {}
    found = unlike(whole, limit)
    if found:
        warnings.warn(
            f"{task}@{split}: the first {limit} of {len(whole)} rows are no fair sample of all: "
            f"{described(found)}; try without --first, or all rows",
            stacklevel=3,
        )
    return found


def texts_of(
    task: Task, split: str, *, folder: str | Path | None = None
) -> tuple[tuple[str, ...], ...]:
    """The texts of a split, or hashes of its images. Labels are not read.

    Raises BadData as `load_rows` does.
    """
    stored = _stored(task, split, folder)
    picked = _picked(task, split, stored)
    row_name = _row_names(task, split, picked)
    return _contents(task, stored, picked, stored.rows(picked), row_name)[0]


def _stored(task: Task, split: str, folder: str | Path | None) -> StoredSplit:
    """The stored split that the rows of a split are in. Raises BadData for an unknown split."""
    if split not in splits_of(task):
        raise BadData(f"task '{task}' has no split '{split}'; known: {', '.join(splits_of(task))}")
    return table(task, task.splits.get(split, TRAIN), folder)


def _picked(
    task: Task, split: str, stored: StoredSplit, limit: int | None = None, first: bool = False
) -> Sequence[int]:
    """The numbers of the rows of a split. Raises BadData for none, and for a missing column."""
    picked = pick(stored.count, split, limit, first=first)
    if not len(picked):
        raise BadData(f"{task}@{split} has no rows; expected at least one")
    needed = columns_needed(task)
    if missing := [name for name in needed if name not in stored.columns]:
        raise BadData(
            f"{task}@{split} has no column '{missing[0]}'; found {', '.join(stored.columns)}; "
            f"expected {', '.join(needed)}"
        )
    return picked


def _row_names(task: Task, split: str, picked: Sequence[int]) -> RowName:
    """A function from the place of a row to its name in messages, which has its stored number."""
    where = f"{task}@{TRAIN if split in DERIVED else split}"
    return lambda place: f"row {picked[place] + 1} of {where}"


def _contents(
    task: Task, stored: StoredSplit, picked: Sequence[int], rows: Sequence[Row], row_name: RowName
) -> tuple[tuple[tuple[str, ...], ...], Images | None]:
    """The texts of rows, or hashes of their images, and the function to their images."""
    if (image_of := stored.images) is None:
        return tuple(_text(task, row, row_name(place)) for place, row in enumerate(rows)), None

    def image(place: int) -> StoredImage:
        original = image_of(picked[place])
        called = f" ({original.where})" if original.where else ""
        return StoredImage(original.data, f"{row_name(place)}{called}")

    hashes = (xxhash.xxh3_128_hexdigest(image(place).data) for place in range(len(picked)))
    return tuple((digest,) for digest in hashes), image


def _made(task: Task, split: str, texts: tuple[tuple[str, ...], ...], labels: Array64) -> Rows:
    digest = xxhash.xxh3_128_hexdigest(json.dumps([texts, labels.tolist()]).encode())
    return Rows(task, split, texts, labels, digest)


def _documents(values: Sequence[Any]) -> Units | None:
    """Documents of rows, numbered from 0; a row without a value is one. None if no row has any."""
    if all(value is None for value in values):
        return None
    keys = [place if value is None else str(value) for place, value in enumerate(values)]
    places = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    return np.array([places[key] for key in keys], dtype=np.int64)


def _text(task: Task, row: Row, name: str) -> tuple[str, ...]:
    """The segments of a row, by the task's `read`, else by its kind. Raises BadData."""
    try:
        return kind_of(task).segments(task, row) if task.read is None else task.read(row)
    except Exception as error:  # `read` may be a user's, and a file may hold anything
        raise BadData(
            f"{name} cannot be read ({type(error).__name__}: {error}); expected text in its "
            "columns, or lists of words for tags (.parquet, .jsonl, .conll)"
        ) from error


def take(rows: Rows, picked: Sequence[int]) -> Rows:
    """Only the picked rows, with their own digest."""
    texts = tuple(rows.texts[i] for i in picked)
    part = _made(rows.task, rows.split, texts, rows.labels[units_of(rows, picked)])
    if (image := rows.images) is None:
        return part
    return replace(part, images=lambda place: image(picked[place]))


def units_of(rows: Rows, picked: Sequence[int]) -> Units:
    """The numbers of the units of the picked rows, in that order."""
    return numbers_of(kind_of(rows.task).unit_counts(rows), picked)


def numbers_of(counts: Units, picked: Sequence[int] | Units) -> Units:
    """The numbers of the units of the picked rows, given the number of units of every row."""
    starts = np.cumsum(counts) - counts
    spans = [np.arange(starts[row], starts[row] + counts[row]) for row in picked]
    return np.concatenate([np.empty(0, dtype=np.int64), *spans])
