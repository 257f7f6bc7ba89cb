"""Shell: the rows of a task, read from its own generator, a local folder, or the Hub."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.data.formats import ENDINGS, READERS, SUFFIXES, columns_needed, columns_read
from harness.data.images import StoredImage, image_reader, read_folder
from harness.errors import BadData, LabelMismatch
from harness.files import parse_json
from harness.kinds import kind_of
from harness.labels import label_indexer, same
from harness.text import few, first_line
from harness.types import Row, Task

TRAIN = "train"
VALIDATION, OTHERS = "validation", ("dev", "valid", "val")
"""The validation split, and other names that its file may have."""


def data_dir(folder: str | Path | None = None) -> Path | None:
    """The local data folder: the argument, else HARNESS_DATA_DIR, else none."""
    chosen = folder or os.environ.get("HARNESS_DATA_DIR")
    return Path(chosen) if chosen else None


def origin(task: Task, folder: str | Path | None = None) -> dict[str, str | None]:
    """Where the rows of a task come from: its own code, a local folder, or a Hub revision."""
    if task.generate is not None:
        return {"source": "generated", "revision": None}
    if task.files or data_dir(folder) is not None:
        return {"source": "local folder", "revision": None}
    return {"source": task.source, "revision": task.revision}


@dataclass(frozen=True)
class StoredSplit:
    """A stored split: its columns, its number of rows, and `rows`, which reads some by number.

    `images` returns the image of a row by number, named by its path if it has one.
    """

    columns: tuple[str, ...]
    count: int
    rows: Callable[[Sequence[int]], Sequence[Row]]
    images: Callable[[int], StoredImage] | None = None


def table(task: Task, split: str, folder: str | Path | None) -> StoredSplit:
    """A split of a task's source, under the source's name of it. Raises BadData if missing."""
    if task.generate is not None:
        return _listed(task.generate(split), task.image)
    if task.files:
        return _from_file(task, _given(task, split))
    root = data_dir(folder)
    if root is None:
        return _of_arrow(task, task.source, _of_hub(task, split))
    if (path := _stored_in(root, task, split)) is None:
        files = " or ".join(f"{split}.{suffix}" for suffix in SUFFIXES)
        files += f", or {split}/CLASS/IMAGE" if task.image else ""
        place = root / (task.folder or task.name)
        raise BadData(f"no data for {task} at {place}: expected {files}")
    if path == root / task.corpus:
        return _from_corpus(task, path, split)
    return _from_file(task, path)


def _stored_in(root: Path, task: Task, split: str) -> Path | None:
    """The file, or folder of images, of a split in a data folder; `OTHERS` name validation, too.

    If there is none, the task's `corpus`: one file with the rows of several data sets.
    """
    place, corpus = root / (task.folder or task.name), root / task.corpus

    def named(name: str) -> Path | None:
        paths = (*(place / f"{name}.{suffix}" for suffix in SUFFIXES), place / name)
        return only([path for path in paths if is_stored(task, path)])

    found = named(split)
    if found is None and split == VALIDATION:
        other = one_of([name for name in OTHERS if named(name)], str(place))
        found = named(other) if other else None
    return corpus if found is None and task.mine is not None and corpus.is_file() else found


def only(paths: Sequence[Path]) -> Path | None:
    """The only path of a split, if any. Raises BadData for several, which may differ."""
    if paths[1:]:
        names = " and ".join(path.name for path in paths)
        raise BadData(f"{paths[0].parent} has {names}, expected one file for a split")
    return next(iter(paths), None)


def is_stored(task: Task, path: Path) -> bool:
    """Whether a path can hold rows of a task: it is a file or, for images, a folder."""
    return path.is_file() or (bool(task.image) and path.is_dir())


def one_of(others: Sequence[str], where: str) -> str | None:
    """The only other name of the validation split, if any. Raises BadData for several."""
    if len(others) > 1:
        raise BadData(f"{where} has {' and '.join(others)} for '{VALIDATION}', expected one")
    return next(iter(others), None)


def _from_corpus(task: Task, path: Path, split: str) -> StoredSplit:
    """The rows of a task and split in a file of several data sets."""
    assert task.mine is not None
    with _reading(path):
        lines = _arrow(task, path).to_pylist()
        parts = [part for part in map(task.mine, lines) if part is not None]
    return _listed([row for name, row in parts if name == split])


def is_there(task: Task, folder: str | Path | None = None) -> bool:
    """Whether a task's rows are available. Only a local folder is looked at, not the Hub."""
    if task.files or (task.source and data_dir(folder) is None):
        return True
    return at_hand(task, task.splits.get(task.reported, TRAIN), folder)


def at_hand(task: Task, split: str, folder: str | Path | None = None) -> bool:
    """Whether a stored split is available without a download."""
    if task.generate is not None:
        return True
    if task.files:
        return split in task.files and is_stored(task, Path(task.files[split]))
    root = data_dir(folder)
    return root is not None and _stored_in(root, task, split) is not None


def stored_files(task: Task, folder: str | Path | None = None) -> list[Path]:
    """All local files that rows of a task are read from, split by split."""
    root, places = data_dir(folder), [*map(Path, task.files.values())]
    if root is not None and not places:
        splits = dict.fromkeys((TRAIN, *task.splits.values()))
        found = dict.fromkeys(_stored_in(root, task, split) for split in splits)
        places = [path for path in found if path is not None]
    listings = (sorted(place.rglob("*")) if place.is_dir() else [place] for place in places)
    return [path for files in listings for path in files if path.is_file()]


def _given(task: Task, split: str) -> Path:
    """The file that a task names for a split. Raises BadData if it names none or it is missing."""
    path = Path(task.files.get(split, ""))
    if split not in task.files:
        splits = ", ".join(task.files)
        raise BadData(f"{task} has no file of the split '{split}'; known: {splits}")
    if not is_stored(task, path):
        raise BadData(f"{path} is no file; expected the rows of the split '{split}' of {task}")
    if _suffix(path) not in READERS and not path.is_dir():
        raise BadData(f"{path} ends in '{path.suffix}', expected {ENDINGS}")
    return path


def _suffix(path: Path) -> str:
    return path.suffix.removeprefix(".").lower()


def _arrow(task: Task, path: Path) -> Any:
    """The Arrow table of a file or of a folder of images."""
    return read_folder(task, path) if path.is_dir() else READERS[_suffix(path)](task, path)


@contextmanager
def _reading(where: str | Path) -> Iterator[None]:
    """Turns any error in the block into BadData that names the file or data set."""
    try:
        yield
    except BadData:
        raise
    except Exception as error:  # Arrow has its own types of errors
        reason = first_line(error)[:200]
        what = _suffix(where) if isinstance(where, Path) else "rows"
        raise BadData(f"{where} cannot be read as {what}: {reason}") from error


def label_values(task: Task) -> list[Any]:
    """The label column of the train split, for a task whose labels are not known yet.

    If the datasets library wrote class names into the metadata, one value: the list of them.
    Raises BadData for no such column, or no rows.
    """
    where: str | Path = _given(task, TRAIN) if task.files else task.source
    with _reading(where):
        stored = _arrow(task, where) if isinstance(where, Path) else _of_hub(task, TRAIN)
    if task.label not in (columns := _columns(where, stored, [task.label])):
        raise BadData(f"{where} has no column '{task.label}'; found {', '.join(columns)}")
    if not len(stored):
        raise BadData(f"{where} has no rows; expected some with labels")
    names = _class_names(task, where, stored.schema)
    values: list[Any] = stored.column(task.label).to_pylist()
    return values if names is None else [names]


def _listed(rows: Sequence[Row], image: str = "") -> StoredSplit:
    columns = tuple(rows[0]) if len(rows) else ()
    images = (lambda row: StoredImage(bytes(rows[row][image]), "")) if image in columns else None
    return StoredSplit(columns, len(rows), lambda order: [rows[i] for i in order], images)


def _from_file(task: Task, path: Path) -> StoredSplit:
    """The rows of a local file. Raises BadData, naming it, if it cannot be read."""
    with _reading(path):
        stored = _arrow(task, path)
    return _of_arrow(task, path, stored)


def _of_arrow(task: Task, where: str | Path, stored: Any) -> StoredSplit:
    """The rows of an Arrow table.

    Raises BadData for text columns of another type, LabelMismatch for other class names.
    """
    read_columns, columns = columns_read(task), _columns(where, stored, columns_needed(task))
    for field in stored.schema:
        if field.name in task.text and not _is_read(task, field.type):
            fault = f"{where} has {str(field.type)[:40]} in the column '{field.name}'"
            text = "lists of words" if kind_of(task).split_into_words else "text"
            raise BadData(f"{fault}, expected {text}")
    names = _class_names(task, where, stored.schema)
    _check_names(task, names)
    chosen = columns if task.read else read_columns
    selected = stored.select([place for place, name in enumerate(columns) if name in chosen])

    def rows(order: Sequence[int]) -> Sequence[Row]:
        with _reading(where):
            picked: Sequence[Row] = selected.take(_places(order)).to_pylist()
        return picked if names is None else [_named(task, row, names) for row in picked]

    has_images = task.image and task.image in columns
    return StoredSplit(
        columns, len(selected), rows, image_reader(task, stored, where) if has_images else None
    )


def _columns(where: str | Path, stored: Any, needed: Sequence[str]) -> tuple[str, ...]:
    """The columns of a table. Raises BadData if a needed one occurs twice."""
    with _reading(where):
        columns = tuple(stored.column_names)
    for name in needed:
        if columns.count(name) > 1:
            raise BadData(f"{where} has the column '{name}' twice, expected it once")
    return columns


def _places(order: Sequence[int]) -> Any:
    """Row numbers as an Arrow array; given a numpy array, Arrow would import pandas."""
    import pyarrow

    numbers = np.array(order, dtype=np.int64)
    buffer = pyarrow.py_buffer(numbers)
    return pyarrow.Array.from_buffers(pyarrow.int64(), len(numbers), [None, buffer])


def _named(task: Task, row: Row, names: Sequence[str]) -> Row:
    """A row with label indices replaced by the class names that they stand for."""

    def name(value: Any) -> Any:
        is_index = isinstance(value, int) and not isinstance(value, bool)
        return names[value] if is_index and 0 <= value < len(names) else value

    label = row[task.label]
    return {**row, task.label: [*map(name, label)] if isinstance(label, list) else name(label)}


def _is_read(task: Task, kind: Any) -> bool:
    """Whether an Arrow type fits a task's texts: text or, for tagging, lists of text."""
    import pyarrow.types as types

    if kind_of(task).split_into_words:
        if not (types.is_list(kind) or types.is_large_list(kind)):
            return False
        kind = kind.value_type
    if types.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind)
    )  # null: all values are missing


def _class_names(task: Task, where: str | Path, schema: Any) -> list[str] | None:
    """The class names that the datasets library wrote into a table's metadata, if any."""
    metadata = schema.metadata or {}
    if b"huggingface" not in metadata:
        return None
    what = "what the datasets library says of its columns"
    text = metadata[b"huggingface"].decode("utf-8", "replace")
    entry: Any = parse_json(text, f"the metadata of {where}", what, error=BadData)
    for key in ("info", "features", task.label):
        entry = entry.get(key)
        if isinstance(entry, list) and entry:  # how older versions write a list feature
            entry = entry[0]
        if not isinstance(entry, dict):
            return None
    inner = entry.get("feature")  # the feature of the entries of a list
    names = (inner if isinstance(inner, dict) else entry).get("names")
    if names is None or (isinstance(names, list) and all(isinstance(n, str) for n in names)):
        return names
    raise BadData(
        f"the metadata of {where} have the class names {reprlib.repr(names)}, expected a list"
    )


def from_hub(task: Task, split: str) -> Any:
    """A split of a Hub data set. Raises BadData if it cannot be fetched."""
    from datasets import load_dataset

    if not task.source:
        raise BadData(
            f"{task} is not on the Hub; give its data with --data-dir or HARNESS_DATA_DIR"
        )
    try:
        return load_dataset(task.source, task.subset, split=split, revision=task.revision)
    except Exception as error:  # the Hub client raises a different type for each way to fail
        raise BadData(
            f"{task}: '{task.source}' cannot be fetched ({type(error).__name__}); give its data "
            "with --data-dir or HARNESS_DATA_DIR, or fetch them with `harness prepare` where there "
            "is a network"
        ) from error


def fetched(task: Task, split: str) -> Any:
    """A split of a Hub data set. Raises LabelMismatch if its class names are not the task's."""
    stored = from_hub(task, split)
    _check_names(task, _class_names(task, task.source, stored.features.arrow_schema))
    return stored


def _of_hub(task: Task, split: str) -> Any:
    """A split of a Hub data set as an Arrow table."""
    return from_hub(task, split).with_format("arrow")[:]


def _check_names(task: Task, names: Sequence[str] | None) -> None:
    """Raise LabelMismatch unless a data set's class names are the task's, in the task's order.

    The order is free where labels are read by name.
    """
    by_name = bool(task.renamed) or kind_of(task).list_labels or not task.by_index
    if names is None or (not by_name and same(names, task.labels)):
        return
    place = label_indexer(task)
    unknown = [n for n in names if place(n) is None and task.renamed.get(n) != ""]
    if unknown or not by_name:
        raise LabelMismatch(
            f"{task}: the data set names its classes {few(names)}; "
            f"expected {few(task.labels) or 'numbers'}"
            f"{f'; {min(unknown)} is none of them' if by_name else ''}"
        )
