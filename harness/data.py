"""Shell: a task and a split -> `Rows`, from a local folder, the Hub or a task's own generator."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from harness.errors import BadData, BadRecipe, LabelMismatch
from harness.files import replacing
from harness.labels import same, spelling
from harness.metrics import check_metrics
from harness.registry import TASKS
from harness.rng import rng
from harness.types import DERIVED, Array64, Draw, Row, Rows, Task

TRAIN = "train"
SUFFIXES = ("parquet", "jsonl", "csv")
BINS = 5
"""Regression draws its shots from this many equal-width bins of the label (methods.md 3.4)."""


def parse_task(text: str, where: str | None = None) -> tuple[Task, str]:
    """`glue/rte` or `glue/rte@heldout10` -> the task and the split (default: the reported one).

    A name that stands in a file, `where`, imports no code.
    """
    name, _, split = text.partition("@")
    task = TASKS[name] if where is None else TASKS.from_file(name, where)
    check_metrics(task)
    if split and split not in splits_of(task):
        raise BadData(f"task '{name}' has no split '{split}'; known: {', '.join(splits_of(task))}")
    return task, split or task.reported


def splits_of(task: Task) -> tuple[str, ...]:
    """All splits of a task: those scored, the derived ones, and the whole of train."""
    return (*task.splits, *DERIVED, TRAIN)


def share_rows(task: Task, first: str, second: str) -> bool:
    """Whether two splits of a task have rows in common, whatever they are called.

    By position in the source: published splits hold equal texts, which are rows of their own.
    """
    places = [task.splits.get(split, TRAIN) for split in (first, second)]
    apart = {first, second} == set(DERIVED)
    return places[0] == places[1] and not apart


def data_dir(given: str | Path | None = None) -> Path | None:
    """The local data folder: the argument, else HARNESS_DATA_DIR, else none."""
    chosen = given or os.environ.get("HARNESS_DATA_DIR")
    return Path(chosen) if chosen else None


def origin(task: Task, folder: str | Path | None = None) -> dict[str, str | None]:
    """Where the rows of a task come from: its own code, a local folder, or a Hub revision."""
    if task.generate is not None:
        return {"source": "generated", "revision": None}
    if data_dir(folder) is not None:
        return {"source": "local folder", "revision": None}
    return {"source": task.source, "revision": task.revision}


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
    if len(table) and (missing := [c for c in (*task.text, task.label) if c not in table[0]]):
        raise BadData(
            f"{task}@{split} has no column '{missing[0]}'; found {', '.join(table[0])}; "
            f"expected {', '.join((*task.text, task.label))}"
        )
    picked = _pick(table, split, limit)
    if not len(picked):
        raise BadData(f"{task}@{split} has no rows; expected at least one")
    read = task.read or (
        lambda row: tuple("" if row[column] is None else str(row[column]) for column in task.text)
    )
    texts = tuple(read(row) for row in picked)
    labels = np.array([_label(task, row[task.label], split) for row in picked], dtype=np.float64)
    digest = xxhash.xxh3_128_hexdigest(json.dumps([texts, labels.tolist()]).encode())
    return Rows(task, split, texts, labels, digest)


def _pick(table: Sequence[Row], split: str, limit: int | None) -> Sequence[Row]:
    if split in DERIVED:
        # MergeLM's split: a permutation with seed 0, the first nine tenths train (methods.md 4.9)
        order = np.random.RandomState(0).permutation(len(table))
        cut = int(0.9 * len(table))
        table = [table[int(i)] for i in (order[:cut] if split == "train90" else order[cut:])]
    return [table[i] for i in range(min(len(table), limit or len(table)))]


def _label(task: Task, value: Any, split: str) -> float:
    if task.kind == "regression":
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = np.nan
        if not np.isfinite(number):
            raise BadData(f"{task}@{split} has the label {value!r}, expected a finite number")
        return number
    spelled = spelling(task.labels)
    names = [spelled(name) for name in task.labels]
    if isinstance(value, str) and spelled(value) in names:
        return names.index(spelled(value))
    try:
        index = float(value)
    except (TypeError, ValueError):
        index = -1.0
    if index.is_integer() and 0 <= index < len(task.labels):
        return index
    raise BadData(
        f"{task}@{split} has the label {value!r}, expected one of {', '.join(task.labels)} "
        f"or an index below {len(task.labels)}"
    )


def _table(task: Task, split: str, folder: str | Path | None) -> Any:
    if task.generate is not None:
        return task.generate(split)
    root = data_dir(folder)
    if root is None:
        return _checked(task, _from_hub(task, split))
    place = root / task.name
    for suffix in SUFFIXES:
        path = place / f"{split}.{suffix}"
        if path.is_file():
            return _checked(task, _from_file(path, suffix))
    raise BadData(
        f"no data for {task} at {place}: expected {split}.parquet, {split}.jsonl or {split}.csv"
    )


def _from_file(path: Path, suffix: str) -> Any:
    import pyarrow
    import pyarrow.csv
    import pyarrow.json
    import pyarrow.parquet
    from datasets import Dataset

    readers = {
        "parquet": pyarrow.parquet.read_table,
        "jsonl": pyarrow.json.read_json,
        "csv": pyarrow.csv.read_csv,
    }
    try:
        return Dataset(readers[suffix](path))
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise BadData(f"{path} cannot be read as {suffix}: {str(error).splitlines()[0]}") from error


def _from_hub(task: Task, split: str) -> Any:
    from datasets import load_dataset

    if not task.source:
        raise BadData(
            f"{task} is not on the Hub; give a local folder with --data-dir or HARNESS_DATA_DIR"
        )
    try:
        return load_dataset(task.source, task.subset, split=split, revision=task.revision)
    except Exception as error:  # the Hub client raises a different type for each way to fail
        raise BadData(
            f"{task}: '{task.source}' could not be fetched from the Hub "
            f"({type(error).__name__}); give a local folder with --data-dir or HARNESS_DATA_DIR, "
            "or fetch it with `harness prepare` where there is a network"
        ) from error


def _checked(task: Task, table: Any) -> Any:
    """Class names in a data set's own header must be the task's, in the task's order."""
    names = getattr(table.features.get(task.label), "names", None)
    if names is not None and not same(names, task.labels):
        raise LabelMismatch(
            f"{task}: the data set names its classes {', '.join(names)}; "
            f"expected {', '.join(task.labels) or 'numbers'}"
        )
    return table


def prepare(tasks: Sequence[str], folder: str | Path) -> list[Path]:
    """Fetch every split of the tasks from the Hub into `folder`, for use with no network.

    Returns the files, new and old; a file that is there is kept.
    """
    if not tasks:
        raise BadRecipe("no tasks to prepare; name some with --tasks")
    written = []
    for task, _ in [parse_task(name) for name in tasks]:
        if task.generate is not None:
            continue
        for split in (TRAIN, *task.splits.values()):
            path = Path(folder) / task.name / f"{split}.parquet"
            if not path.is_file():
                table = _checked(task, _from_hub(task, split))
                with replacing(path) as file:
                    table.to_parquet(file)
            written.append(path)
    return written


# Few-shot selection ------------------------------------------------------------------------


def groups(task: Task, labels: Array64) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """Row numbers by class, or by equal-width bin of the label for regression."""
    if task.kind == "classification":
        return [np.flatnonzero(labels == index) for index in range(len(task.labels))]
    edges = np.linspace(labels.min(), labels.max(), BINS + 1)[1:-1]
    bins = np.digitize(labels, edges)
    return [np.flatnonzero(bins == index) for index in range(BINS)]


def draw(rows: Rows, shots: Sequence[int], seeds: Sequence[int]) -> tuple[list[int], list[Draw]]:
    """Few-shot selections for every number of shots and seed (methods.md 3.3).

    Returns what `selected` returns. Of a class, or bin of labels, that has fewer rows than shots
    all are taken, which is warned of.
    """
    by_group = groups(rows.task, rows.labels)
    _warn_of_few(rows, [len(members) for members in by_group], max(shots))
    orders = {
        seed: [
            rng(seed, "fewshot", rows.task.name, index).permutation(members).tolist()
            for index, members in enumerate(by_group)
        ]
        for seed in seeds
    }
    return selected(orders, shots)


def _warn_of_few(rows: Rows, counts: Sequence[int], most: int) -> None:
    labels = rows.task.labels
    called = [f"label '{name}'" for name in labels] or [f"label bin {i}" for i in range(BINS)]
    pairs = zip(counts, called, strict=True)
    if few := ", ".join(f"{count} with {unit}" for count, unit in pairs if count < most):
        never = "" if min(counts) else ", and one without rows has no neighbours to be predicted by"
        warnings.warn(
            f"{rows.task}@{rows.split} has too few rows for {most} shots: {few}; all of them are "
            f"taken{never}",
            stacklevel=3,
        )


def selected(
    orders: Mapping[int, Sequence[Sequence[int]]], shots: Sequence[int]
) -> tuple[list[int], list[Draw]]:
    """Selections by a draw that is given: for every seed, row numbers by class in drawn order.

    Returns the sorted row numbers that any draw selects (the pool) and the draws, whose rows are
    positions in the pool. With one seed, fewer shots are a prefix of more.
    """
    most = max(shots)
    pool = sorted({int(row) for order in orders.values() for part in order for row in part[:most]})
    place = {row: position for position, row in enumerate(pool)}
    draws = [
        Draw(count, seed, tuple(tuple(place[int(r)] for r in part[:count]) for part in order))
        for count in shots
        for seed, order in orders.items()
    ]
    return pool, draws


def take(rows: Rows, picked: Sequence[int]) -> Rows:
    """The picked rows alone, with a digest of their own."""
    texts = tuple(rows.texts[i] for i in picked)
    labels = rows.labels[list(picked)]
    digest = xxhash.xxh3_128_hexdigest(json.dumps([texts, labels.tolist()]).encode())
    return Rows(rows.task, rows.split, texts, labels, digest)
