"""Shell: where rows are stored: a task's own generator, a local folder, or the Hub."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.data.splits import TRAIN, parse_task
from harness.errors import BadData, BadRecipe, LabelMismatch
from harness.files import DEEPEST, parse_json, replacing
from harness.kinds import kind_of
from harness.labels import same
from harness.types import Row, Task

SUFFIXES = ("parquet", "jsonl", "csv")
LONGEST = 2**24
"""Bytes of a line of JSON."""


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
    place = root / (task.folder or task.name)
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
    needed = (*task.text, *kind_of(task).columns_of(task))
    for name in needed:
        if columns.count(name) > 1:
            raise BadData(f"{path} has the column '{name}' twice, expected it once")
    for field in found.schema:
        if field.name in task.text and not _is_read(task, field.type):
            said = f"{path} has {str(field.type)[:40]} in the column '{field.name}'"
            text = "text" if kind_of(task).unit == "row" else "lists of words"
            raise BadData(f"{said}, expected {text}")
    names = _class_names(task, path, found.schema.metadata or {})
    _check_names(task, names)
    read = columns if task.read else needed
    kept = found.select([place for place, name in enumerate(columns) if name in read])

    def rows(order: Sequence[int]) -> Sequence[Row]:
        try:
            picked: Sequence[Row] = kept.take(np.array(order, dtype=np.int64)).to_pylist()
        except Exception as error:  # a value may be none of Python's: a day, a zone, broken text
            raise _unreadable(path, suffix, error) from error
        return [_named(task, row, names) for row in picked] if names and task.tags else picked

    return Table(columns, len(kept), rows)


def _named(task: Task, row: Row, names: Sequence[str]) -> Row:
    """A row with the names of its tags, which the task has other numbers for."""
    tags = row[task.label]
    if not isinstance(tags, list):
        return row
    fit = all(isinstance(tag, int) and 0 <= tag < len(names) for tag in tags)
    return {**row, task.label: [names[tag] for tag in tags]} if fit else row


def _unreadable(path: Path, suffix: str, error: Exception) -> BadData:
    reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
    return BadData(f"{path} cannot be read as {suffix}: {reason}")


def _is_read(task: Task, kind: Any) -> bool:
    """Whether an Arrow type is that of a task's texts: text, or of a tagging lists of it."""
    import pyarrow.types as of

    if kind_of(task).unit == "row":
        return _is_text(kind)
    return bool(of.is_list(kind) or of.is_large_list(kind)) and _is_text(kind.value_type)


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
    names = _inner(found).get("names")
    if names is None or (isinstance(names, list) and all(isinstance(n, str) for n in names)):
        return names
    raise BadData(
        f"{path} says that its classes are called {reprlib.repr(names)}, expected a list of names"
    )


def _inner(feature: Any) -> Any:
    """Of a feature that is a list, what its entries are."""
    inner = feature.get("feature")
    return inner if isinstance(inner, dict) else feature


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
    feature = table.features.get(task.label)
    _check_names(task, getattr(getattr(feature, "feature", feature), "names", None))
    return table


def _check_names(task: Task, names: Sequence[str] | None) -> None:
    """Class names in a data set's own header must be the task's, in the task's order."""
    if names is not None and task.tags:
        if odd := {task.tags.get(name, name) for name in names} - {*task.labels}:
            known = ", ".join((*task.labels, *task.tags))
            raise LabelMismatch(f"{task}: the data set has the tag {min(odd)}, expected {known}")
    elif names is not None and not same(names, task.labels):
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
