"""Shell: a task and a split -> `Rows`, from a local folder, the Hub or a task's own generator."""

from __future__ import annotations

import json
import os
import reprlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from harness.errors import BadData, BadRecipe, LabelMismatch
from harness.files import DEEPEST, parse_json, replacing
from harness.labels import same, spelling
from harness.metrics import check_metrics
from harness.registry import TASKS
from harness.rng import rng
from harness.types import DERIVED, Array64, Draw, Row, Rows, Task

TRAIN = "train"
SUFFIXES = ("parquet", "jsonl", "csv")
LONGEST_NAME = 1000
"""Letters of a label: a longer text is a column by mistake, and slow to compare."""
LONGEST = 2**24
"""Bytes of a line of JSON."""
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


def _pick(count: int, split: str, limit: int | None) -> Sequence[int]:
    """The rows of a split, by their numbers in the file that it is cut from."""
    order: Sequence[int] = range(count)
    if split in DERIVED:
        # MergeLM's split: a permutation with seed 0, the first nine tenths train (methods.md 4.9)
        shuffled = np.random.RandomState(0).permutation(count).tolist()
        cut = int(0.9 * count)
        order = shuffled[:cut] if split == "train90" else shuffled[cut:]
    return order[:limit]


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


# Where rows are stored ---------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """A split as it is stored: its columns, how many rows it has, and how some of them are read."""

    columns: tuple[str, ...]
    count: int
    rows: Callable[[Sequence[int]], Sequence[Row]]

    def __len__(self) -> int:
        return self.count


def _table(task: Task, split: str, folder: str | Path | None) -> Table:
    if task.generate is not None:
        return _listed(task.generate(split))
    root = data_dir(folder)
    if root is None:
        return _listed(_checked(task, _from_hub(task, split)))
    place = root / task.name
    for suffix in SUFFIXES:
        path = place / f"{split}.{suffix}"
        if path.is_file():
            return _from_file(task, path, suffix)
    raise BadData(
        f"no data for {task} at {place}: expected {split}.parquet, {split}.jsonl or {split}.csv"
    )


def _listed(rows: Any) -> Table:
    columns = tuple(rows[0]) if len(rows) else ()
    return Table(columns, len(rows), lambda order: [rows[i] for i in order])


def _from_file(task: Task, path: Path, suffix: str) -> Table:
    """The rows of a local file. Raises BadData, naming it, for what is not of its format."""
    try:
        found = READERS[suffix](task, path)
        columns = tuple(found.column_names)
    except BadData:
        raise
    except Exception as error:  # Arrow has errors of its own, and lets through those of the system
        raise _unreadable(path, suffix, error) from error
    for name in (*task.text, task.label):
        if columns.count(name) > 1:
            raise BadData(f"{path} has the column '{name}' twice, expected it once")
    for field in found.schema:
        if field.name in task.text and not _is_text(field.type):
            raise BadData(
                f"{path} has {str(field.type)[:40]} in the column '{field.name}', expected text"
            )
    _check_names(task, _class_names(task, path, found.schema.metadata or {}))
    read = columns if task.read else (*task.text, task.label)
    kept = found.select([place for place, name in enumerate(columns) if name in read])

    def rows(order: Sequence[int]) -> Sequence[Row]:
        try:
            picked: Sequence[Row] = kept.take(np.array(order, dtype=np.int64)).to_pylist()
        except Exception as error:  # a value may be none of Python's: a day, a zone, broken text
            raise _unreadable(path, suffix, error) from error
        return picked

    return Table(columns, len(kept), rows)


def _unreadable(path: Path, suffix: str, error: Exception) -> BadData:
    reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
    return BadData(f"{path} cannot be read as {suffix}: {reason}")


def _is_text(kind: Any) -> bool:
    """Whether an Arrow type is text, or that of a column of nothing but nulls."""
    import pyarrow.types as of

    if of.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(of.is_string(kind) or of.is_large_string(kind) or of.is_null(kind))


def _read_parquet(task: Task, path: Path) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.ParquetFile(path).read()


def _read_jsonl(task: Task, path: Path) -> Any:
    """Texts that all look like a day would be read as days, if they were not said to be text."""
    import pyarrow
    import pyarrow.json

    _check_lines(path)
    found = pyarrow.json.read_json(path)
    odd = [f for f in found.schema if f.name in task.text and pyarrow.types.is_temporal(f.type)]
    if not odd:
        return found
    said = pyarrow.schema([(field.name, pyarrow.string()) for field in odd])
    return pyarrow.json.read_json(path, parse_options=pyarrow.json.ParseOptions(said))


def _check_lines(path: Path) -> None:
    """Raise BadData unless every line is an object of some depth: for more, Arrow's stack ends."""
    what = "an object in every line"
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST), b""), start=1):
            text = line.removeprefix(b"\xef\xbb\xbf").strip()
            if text and not (text.startswith(b"{") and text.endswith(b"}")):
                raise BadData(f"line {number} of {path} is {text[:40]!r}, expected {what}")
            if text.count(b"{") + text.count(b"[") > DEEPEST:
                parse_json(text.decode(), f"line {number} of {path}", what, error=BadData)


def _read_csv(task: Task, path: Path) -> Any:
    """A column of texts is text, also where every text is a number; a text may have lines."""
    import pyarrow
    import pyarrow.csv

    types = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(task.text, pyarrow.string()))
    lines = pyarrow.csv.ParseOptions(newlines_in_values=True)
    return pyarrow.csv.read_csv(path, convert_options=types, parse_options=lines)


READERS: Mapping[str, Callable[[Task, Path], Any]] = {
    "parquet": _read_parquet,
    "jsonl": _read_jsonl,
    "csv": _read_csv,
}


def _class_names(task: Task, path: Path, metadata: Mapping[bytes, bytes]) -> list[str] | None:
    """The class names that the datasets library wrote into a Parquet file, if it did."""
    if b"huggingface" not in metadata:
        return None
    what = "what the datasets library says of its columns"
    said = metadata[b"huggingface"].decode("utf-8", "replace")
    found: Any = parse_json(said, f"the metadata of {path}", what, error=BadData)
    for key in ("info", "features", task.label):
        found = found.get(key)
        if not isinstance(found, dict):
            return None
    names = found.get("names")
    if names is None or (isinstance(names, list) and all(isinstance(n, str) for n in names)):
        return names
    raise BadData(
        f"{path} says that its classes are called {reprlib.repr(names)}, expected a list of names"
    )


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
    """A data set of the Hub, whose class names are the task's if it has any."""
    _check_names(task, getattr(table.features.get(task.label), "names", None))
    return table


def _check_names(task: Task, names: Sequence[str] | None) -> None:
    """Class names in a data set's own header must be the task's, in the task's order."""
    if names is not None and not same(names, task.labels):
        raise LabelMismatch(
            f"{task}: the data set names its classes {', '.join(names)}; "
            f"expected {', '.join(task.labels) or 'numbers'}"
        )


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


def draw(
    rows: Rows, shots: Sequence[int], seeds: Sequence[int], reserved: int = 0
) -> tuple[list[int], list[Draw]]:
    """Few-shot selections for every number of shots and seed (methods.md 3.3).

    Returns what `selected` returns. Of a class, or bin of labels, that has fewer rows than shots
    all are taken, which is warned of; its first `reserved` rows are never drawn.
    """
    by_group = [members[reserved:] for members in groups(rows.task, rows.labels)]
    if not any(map(len, by_group)):
        raise BadData(
            f"{rows.task}@{rows.split} has {len(rows)} rows, none of them beyond the first "
            f"{reserved} of its class, which are never drawn; expected more"
        )
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


def left_out(rows: Rows, batch: int, seeds: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """For each seed, the rows that do not fill a last batch when they are shuffled, ascending.

    Raises BadData where no batch is filled.
    """
    whole = len(rows) // batch * batch
    if not whole:
        raise BadData(
            f"{rows.task}@{rows.split} has {len(rows)} rows, and under this preset only whole "
            f"batches of {batch} are scored; expected {batch} rows or more"
        )
    orders = {seed: rng(seed, "ftc_test", rows.task.name).permutation(len(rows)) for seed in seeds}
    return {seed: tuple(sorted(map(int, order[whole:]))) for seed, order in orders.items()}


def take(rows: Rows, picked: Sequence[int]) -> Rows:
    """The picked rows alone, with a digest of their own."""
    texts = tuple(rows.texts[i] for i in picked)
    labels = rows.labels[list(picked)]
    digest = xxhash.xxh3_128_hexdigest(json.dumps([texts, labels.tolist()]).encode())
    return Rows(rows.task, rows.split, texts, labels, digest)
