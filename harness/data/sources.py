"""Shell: where rows are stored: a task's own generator, a local folder, or the Hub."""

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
from harness.labels import placing, same
from harness.text import few, first_line
from harness.types import Row, Task

TRAIN = "train"
VALIDATION, OTHERS = "validation", ("dev", "valid", "val")
"""A split, and what files of it are called where none has its name."""


def data_dir(given: str | Path | None = None) -> Path | None:
    """The local data folder: the argument, else HARNESS_DATA_DIR, else none."""
    chosen = given or os.environ.get("HARNESS_DATA_DIR")
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
    """A split as it is stored: its columns, how many rows it has, and how some of them are read.

    `images` gives the image of a row by its number, called by its path if it has one.
    """

    columns: tuple[str, ...]
    count: int
    rows: Callable[[Sequence[int]], Sequence[Row]]
    images: Callable[[int], StoredImage] | None = None


def table(task: Task, split: str, folder: str | Path | None) -> StoredSplit:
    if task.generate is not None:
        return _listed(task.generate(split), task.image)
    if task.files:
        return _from_file(task, _given(task, split))
    root = data_dir(folder)
    if root is None:
        return _of_arrow(task, task.source, _of_hub(task, split))
    if (path := _stored_in(root, task, split)) is None:
        files = " or ".join(f"{split}.{suffix}" for suffix in SUFFIXES)
        place = root / (task.folder or task.name)
        raise BadData(f"no data for {task} at {place}: expected {files}")
    if path == root / task.corpus:
        return _from_corpus(task, path, split)
    return _from_file(task, path)


def _stored_in(root: Path, task: Task, split: str) -> Path | None:
    """The file of a split in a data folder, or the folder of its images; validation may be called
    otherwise. Where there is none, the file of several data sets that has its rows."""
    place, corpus = root / (task.folder or task.name), root / task.corpus

    def named(name: str) -> Path | None:
        each = (*(place / f"{name}.{suffix}" for suffix in SUFFIXES), place / name)
        return only([path for path in each if is_stored(task, path)])

    found = named(split)
    if found is None and split == VALIDATION:
        other = one_of([name for name in OTHERS if named(name)], str(place))
        found = named(other) if other else None
    return corpus if found is None and task.mine is not None and corpus.is_file() else found


def only(there: Sequence[Path]) -> Path | None:
    """The one place of a split. Raises BadData for several: they may differ."""
    if there[1:]:
        names = " and ".join(one.name for one in there)
        raise BadData(f"{there[0].parent} has {names}, expected one file of a split")
    return next(iter(there), None)


def is_stored(task: Task, path: Path) -> bool:
    """Whether rows of a task can be at a place: in a file, or images in a folder."""
    return path.is_file() or (bool(task.image) and path.is_dir())


def one_of(others: Sequence[str], where: str) -> str | None:
    """The one of these names that stands for validation. Raises BadData for several."""
    if len(others) > 1:
        raise BadData(f"{where} has {' and '.join(others)} for '{VALIDATION}', expected one")
    return next(iter(others), None)


def _from_corpus(task: Task, path: Path, split: str) -> StoredSplit:
    """The rows of a task and split in a file of several data sets."""
    assert task.mine is not None
    with _reading(path):
        lines = _arrow(task, path).to_pylist()
        made = [part for part in map(task.mine, lines) if part is not None]
    return _listed([row for name, row in made if name == split])


def is_there(task: Task, folder: str | Path | None = None) -> bool:
    """Whether a task's rows can be had, as far as a local folder tells."""
    if task.files or (task.source and data_dir(folder) is None):
        return True
    return at_hand(task, task.splits.get(task.reported, TRAIN), folder)


def at_hand(task: Task, split: str, folder: str | Path | None = None) -> bool:
    """Whether a split, as it is stored, can be had without a download."""
    if task.generate is not None:
        return True
    if task.files:
        return split in task.files and is_stored(task, Path(task.files[split]))
    root = data_dir(folder)
    return root is not None and _stored_in(root, task, split) is not None


def stored_files(task: Task, folder: str | Path | None = None) -> list[Path]:
    """All files on this machine that rows of a task are read of, split by split."""
    root, places = data_dir(folder), [*map(Path, task.files.values())]
    if root is not None and not places:
        splits = dict.fromkeys((TRAIN, *task.splits.values()))
        found = dict.fromkeys(_stored_in(root, task, split) for split in splits)
        places = [path for path in found if path is not None]
    each = (sorted(one.rglob("*")) if one.is_dir() else [one] for one in places)
    return [path for of in each for path in of if path.is_file()]


def _given(task: Task, split: str) -> Path:
    """The file of a split that a task names."""
    path = Path(task.files.get(split, ""))
    if split not in task.files:
        known = ", ".join(task.files)
        raise BadData(f"{task} has no file of the split '{split}'; known: {known}")
    if not is_stored(task, path):
        raise BadData(f"{path} is no file; expected that of the split '{split}' of {task}")
    if _suffix(path) not in READERS and not path.is_dir():
        raise BadData(f"{path} ends in '{path.suffix}', expected {ENDINGS}")
    return path


def _suffix(path: Path) -> str:
    return path.suffix.removeprefix(".").lower()


def _arrow(task: Task, path: Path) -> Any:
    """The table in a file, or of a folder of images."""
    return read_folder(task, path) if path.is_dir() else READERS[_suffix(path)](task, path)


@contextmanager
def _reading(where: str | Path) -> Iterator[None]:
    """BadData, saying of what, for whatever goes wrong in the block with a file or a data set."""
    try:
        yield
    except BadData:
        raise
    except Exception as error:  # Arrow has errors of its own, a value may be none of Python's
        reason = first_line(error)[:200]
        what = _suffix(where) if isinstance(where, Path) else "rows"
        raise BadData(f"{where} cannot be read as {what}: {reason}") from error


def label_values(task: Task) -> list[Any]:
    """What stands in the label column of the train split of a task whose labels are not known."""
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
    """The rows of a local file. Raises BadData, naming it, for what is not of its format."""
    with _reading(path):
        stored = _arrow(task, path)
    return _of_arrow(task, path, stored)


def _of_arrow(task: Task, where: str | Path, stored: Any) -> StoredSplit:
    """The rows of a table of Arrow's."""
    known, columns = columns_read(task), _columns(where, stored, columns_needed(task))
    for field in stored.schema:
        if field.name in task.text and not _is_read(task, field.type):
            said = f"{where} has {str(field.type)[:40]} in the column '{field.name}'"
            text = "lists of words" if kind_of(task).split_into_words else "text"
            raise BadData(f"{said}, expected {text}")
    names = _class_names(task, where, stored.schema)
    _check_names(task, names)
    read = columns if task.read else known
    kept = stored.select([place for place, name in enumerate(columns) if name in read])

    def rows(order: Sequence[int]) -> Sequence[Row]:
        with _reading(where):
            picked: Sequence[Row] = kept.take(_places(order)).to_pylist()
        return picked if names is None else [_named(task, row, names) for row in picked]

    there = task.image and task.image in columns
    return StoredSplit(
        columns, len(kept), rows, image_reader(task, stored, where) if there else None
    )


def _columns(where: str | Path, stored: Any, needed: Sequence[str]) -> tuple[str, ...]:
    """The columns of a table. Raises BadData where one that is needed is there twice."""
    with _reading(where):
        columns = tuple(stored.column_names)
    for name in needed:
        if columns.count(name) > 1:
            raise BadData(f"{where} has the column '{name}' twice, expected it once")
    return columns


def _places(order: Sequence[int]) -> Any:
    """Numbers of rows as Arrow's own: to look at an array of numpy's it imports pandas first."""
    import pyarrow

    numbers = np.array(order, dtype=np.int64)
    whole = pyarrow.py_buffer(numbers)
    return pyarrow.Array.from_buffers(pyarrow.int64(), len(numbers), [None, whole])


def _named(task: Task, row: Row, names: Sequence[str]) -> Row:
    """A row whose labels are called by name, where they were numbers of a header's names."""

    def name(value: Any) -> Any:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return names[value] if whole and 0 <= value < len(names) else value

    label = row[task.label]
    return {**row, task.label: [*map(name, label)] if isinstance(label, list) else name(label)}


def _is_read(task: Task, kind: Any) -> bool:
    """Whether an Arrow type is that of a task's texts: text, or of a tagging lists of it."""
    import pyarrow.types as of

    if kind_of(task).split_into_words:
        if not (of.is_list(kind) or of.is_large_list(kind)):
            return False
        kind = kind.value_type
    if of.is_dictionary(kind):
        kind = kind.value_type
    return bool(
        of.is_string(kind) or of.is_large_string(kind) or of.is_null(kind)
    )  # null: no row has one


def _class_names(task: Task, where: str | Path, schema: Any) -> list[str] | None:
    """The class names that the datasets library wrote into a header, if it did."""
    metadata = schema.metadata or {}
    if b"huggingface" not in metadata:
        return None
    what = "what the datasets library says of its columns"
    said = metadata[b"huggingface"].decode("utf-8", "replace")
    entry: Any = parse_json(said, f"the metadata of {where}", what, error=BadData)
    for key in ("info", "features", task.label):
        entry = entry.get(key)
        if isinstance(entry, list) and entry:  # how older versions write a list of what is in it
            entry = entry[0]
        if not isinstance(entry, dict):
            return None
    inner = entry.get("feature")  # of a list, what its entries are
    names = (inner if isinstance(inner, dict) else entry).get("names")
    if names is None or (isinstance(names, list) and all(isinstance(n, str) for n in names)):
        return names
    raise BadData(
        f"{where} says that its classes are called {reprlib.repr(names)}, expected a list of names"
    )


def from_hub(task: Task, split: str) -> Any:
    from datasets import load_dataset

    if not task.source:
        raise BadData(f"{task} is not on the Hub; give --data-dir or HARNESS_DATA_DIR")
    try:
        return load_dataset(task.source, task.subset, split=split, revision=task.revision)
    except Exception as error:  # the Hub client raises a different type for each way to fail
        raise BadData(
            f"{task}: '{task.source}' cannot be fetched ({type(error).__name__}); give --data-dir "
            "or HARNESS_DATA_DIR, or fetch it with `harness prepare` where there is a network"
        ) from error


def fetched(task: Task, split: str) -> Any:
    """A data set of the Hub, whose class names are the task's if it has any."""
    stored = from_hub(task, split)
    _check_names(task, _class_names(task, task.source, stored.features.arrow_schema))
    return stored


def _of_hub(task: Task, split: str) -> Any:
    """A data set of the Hub as a table of Arrow's."""
    return from_hub(task, split).with_format("arrow")[:]


def _check_names(task: Task, names: Sequence[str] | None) -> None:
    """Class names in a data set's own header must be the task's.

    In the task's order, too, unless labels are read by name.
    """
    # in any order, but where numbers are indices
    by_name = bool(task.renamed) or kind_of(task).list_labels or not task.by_index
    if names is None or (not by_name and same(names, task.labels)):
        return
    place = placing(task)
    odd = [n for n in names if place(n) is None and task.renamed.get(n) != ""]
    if odd or not by_name:
        raise LabelMismatch(
            f"{task}: the data set names its classes {few(names)}; "
            f"expected {few(task.labels) or 'numbers'}"
            f"{f'; {min(odd)} is none of them' if by_name else ''}"
        )
