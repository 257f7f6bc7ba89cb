"""Shell: a file of rows -> an Arrow table, by its suffix."""

from __future__ import annotations

import csv
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.errors import BadData
from harness.files import DEEPEST, parse_json, parse_objects, read_text
from harness.kinds import kind_of
from harness.text import first_line
from harness.types import Task

SEPARATORS = ",;\t|"
"""Separators that the columns of a CSV file may have."""
LONGEST = 2**24
"""The longest line of JSON, header of a CSV file and field of a CSV file, in bytes."""
MOST_ROWS = 10**7
"""The most rows of a Parquet file, which stores a value once that is then read for every row."""
LONGEST_WORD = 2**16
"""The most characters of a line with a word and its tag."""
TAG = re.compile("O|[BIES]-.+")


def columns_read(task: Task) -> tuple[str, ...]:
    """The columns that are read from a table if it has them, except that of images."""
    document = (task.document,) if task.document else ()
    return (*task.text, *kind_of(task).label_columns(task), *document)


def columns_needed(task: Task) -> tuple[str, ...]:
    """The columns that a table of a task must have.

    The document column is needed only in a user's own files: a copy of a published data set may
    lack it, and then every row is a document of its own.
    """
    image = (task.image,) if task.image else ()
    columns = (*image, *columns_read(task))
    return tuple(name for name in columns if task.files or name != task.document)


def _whole(path: Path) -> Any:
    """A text file, read into memory that Arrow owns.

    Arrow opens no path that is not UTF-8, as in locale C. Its threads read ahead: one that
    releases a Python file while the interpreter exits aborts the process.
    """
    import pyarrow

    memory = pyarrow.allocate_buffer(path.stat().st_size)
    with path.open("rb") as file:
        file.readinto(memoryview(memory))
    return pyarrow.BufferReader(memory)


def _read_parquet(task: Task, path: Path) -> Any:
    import pyarrow.parquet

    with path.open("rb") as file:  # read by this thread alone: see `_whole`
        parquet = pyarrow.parquet.ParquetFile(file, pre_buffer=False)
        if (rows := parquet.metadata.num_rows) > MOST_ROWS:
            raise BadData(f"{path} has {rows} rows, expected at most {MOST_ROWS}: take a sample")
        return parquet.read(use_threads=False)


def _read_jsonl(task: Task, path: Path) -> Any:
    """A table of JSON lines. Text columns that Arrow took for dates are read again, as text."""
    import pyarrow
    import pyarrow.json

    _check_lines(path)
    table = pyarrow.json.read_json(_whole(path))
    dates = [f for f in table.schema if f.name in task.text and pyarrow.types.is_temporal(f.type)]
    if not dates:
        return table
    schema = pyarrow.schema([(field.name, pyarrow.string()) for field in dates])
    return pyarrow.json.read_json(_whole(path), parse_options=pyarrow.json.ParseOptions(schema))


def _check_lines(path: Path) -> None:
    """Raise BadData unless all lines are objects, none so deep that Arrow's stack overflows."""
    what = "an object in every line"
    with path.open("rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LONGEST), b""), start=1):
            text = line.removeprefix(b"\xef\xbb\xbf").strip()
            if text and not (text.startswith(b"{") and text.endswith(b"}")):
                raise BadData(f"line {number} of {path} is {text[:40]!r}, expected {what}")
            if text.count(b"{") + text.count(b"[") > DEEPEST:
                parse_json(text.decode(), f"line {number} of {path}", what, error=BadData)


def _read_json(task: Task, path: Path) -> Any:
    """A table of a JSON file: a list of objects, or an object in every line."""
    import pyarrow

    with path.open("rb") as file:
        start = file.read(1024).removeprefix(b"\xef\xbb\xbf").lstrip()
    if not start.startswith(b"["):
        return _read_jsonl(task, path)
    what = "a list of objects"
    text = path.read_text(encoding="utf-8-sig")
    return pyarrow.Table.from_pylist(parse_objects(text, str(path), what, error=BadData))


def _read_csv(task: Task, path: Path) -> Any:
    """A table of a CSV file. The separator is one that yields the task's columns in the header.

    Columns of texts and labels are read as text even if all values are numbers. Quoted values may
    have several lines.
    """
    import pyarrow
    import pyarrow.csv

    label = (task.label,) if task.labels else ()  # keeps 01 and 1.0 as they are written
    columns = dict.fromkeys((*task.text, *filter(None, [task.image]), *label), pyarrow.string())
    conversion = pyarrow.csv.ConvertOptions(column_types=columns)
    sign = _separator(task, path)
    quoted = _quoted(path, sign)
    quote = '"' if quoted else False
    parsing = pyarrow.csv.ParseOptions(newlines_in_values=quoted, delimiter=sign, quote_char=quote)
    reading = pyarrow.csv.ReadOptions(use_threads=False)  # else errors do not name the row
    try:
        return pyarrow.csv.read_csv(_whole(path), reading, parsing, conversion)
    except pyarrow.ArrowInvalid as error:
        _check_utf8(path)
        raise BadData(
            f"{path} cannot be read with {sign!r} between its columns, as in its header: "
            f"{first_line(error):.200}"
        ) from error


def _quoted(path: Path, sign: str) -> bool:
    """Whether quotes enclose fields (RFC 4180); else they are ordinary characters of a text.

    Read as enclosing, a quote that begins a text would swallow all rows up to the next quote. So
    quotes are ordinary if every line has the same number of columns as it stands, and

    - the file breaks the quoting rules, or
    - these join no lines, but a quote occurs inside a text: whoever quotes fields would have
      quoted that one, or
    - these join lines of a file with tabs, or lines of another file into only one row.

    Warns if the rules join lines of a file without tabs. Raises BadData, naming the row, if they
    are broken and lines differ in their number of columns.
    """
    if b'"' not in path.read_bytes():
        return True

    def rows(**options: Any) -> Iterator[list[str]]:
        with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
            yield from filter(None, csv.reader(file, delimiter=sign, **options))

    widths, within = Counter[int](), False
    for row in rows(quoting=csv.QUOTE_NONE):
        widths[len(row)] += 1
        within = within or any('"' in field and field[0] != '"' for field in row)
    count, joined, longest = 0, 0, csv.field_size_limit(LONGEST)
    try:
        for row in rows(strict=True):
            count += 1
            joined += any("\n" in field for field in row)
    except csv.Error as error:
        if len(widths) == 1:
            return False
        raise BadData(
            f"row {count} of {path} has a quote that is neither around a whole column nor doubled "
            f"within one ({error}); expected such quotes, or no quotes and no {sign!r} in columns"
        ) from error
    finally:
        csv.field_size_limit(longest)
    if len(widths) > 1:
        return True
    if count == widths.total():
        return not within
    if sign == "\t":  # such files seldom quote fields, but sentences have quotes
        return False
    by_quotes, lines = f"{count - 1} rows, {joined} of several lines in quotes", widths.total() - 1
    is_read, or_else = (by_quotes, f"{lines}") if joined > 1 else (f"{lines} rows", by_quotes)
    warnings.warn(
        f"{path} is read as {is_read}, and could be {or_else}; if it has these, save it as .jsonl",
        stacklevel=2,
    )
    return joined > 1


def _check_utf8(path: Path) -> None:
    """Raise BadData, naming the line, for a file that is not UTF-8."""
    content = path.read_bytes()
    try:
        content.decode()
    except UnicodeDecodeError as error:
        number = content.count(b"\n", 0, error.start) + 1
        bad = content[max(error.start - 10, 0) : error.end + 10]
        raise BadData(
            f"line {number} of {path} has {bad!r}, which is no text in UTF-8; expected a file that "
            "is saved as UTF-8"
        ) from None


def _separator(task: Task, path: Path) -> str:
    """The first separator that yields all needed columns in the header, else the usual one."""
    usual = "\t" if path.suffix == ".tsv" else SEPARATORS[0]
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        header = file.readline(LONGEST)
    needed = {*columns_needed(task)}
    signs = (usual, *SEPARATORS)
    fits = (sign for sign in signs if needed <= {*next(csv.reader([header], delimiter=sign), ())})
    return next(fits, usual)


TABS, BLANKS = re.compile("\t+"), re.compile(" +")


def _read_conll(task: Task, path: Path) -> Any:
    """A table of a CoNLL file: a word per line, its tag last, a blank line after each sentence.

    Columns are separated by tabs if a line has any, else by blanks; all lines have the same number.
    A line is a comment if it begins with #, does not end in a tag or a label of the task, and has a
    blank after the # or another number of columns. -DOCSTART- begins the next document, for a task
    with a document column.
    """
    import pyarrow

    what = "words and tags"
    if not kind_of(task).split_into_words:
        raise BadData(f"{path} is read as {what}, and {task} has none; expected .csv or .jsonl")
    labels = {*task.renamed, *task.labels}
    sentences: list[tuple[list[str], list[str], int]] = [([], [], 0)]
    columns: tuple[int, int] | None = None
    text = read_text(path, what, error=BadData).removeprefix("\ufeff")
    for number, raw_line in enumerate(re.split(r"\r*\n|\r", text), start=1):
        line = raw_line.strip(" \t")
        starts = line.startswith("-DOCSTART-")
        if not line or starts:
            sentences.append(([], [], sentences[-1][2] + starts))
            continue
        parts = (TABS if "\t" in line else BLANKS).split(line)
        fault = ""
        if "\0" in line:
            fault = ", with bytes that are no letters, expected text in UTF-8"
        elif len(parts) < 2:
            fault = ", expected a word and its tag"
        elif len(line) > LONGEST_WORD:
            fault = f" and {len(line)} letters long, expected a word and its tag"
        elif (
            parts[0].startswith("#")
            and not (TAG.fullmatch(parts[-1]) or parts[-1] in labels)
            and (line[1] in " \t" or not columns or len(parts) != columns[0])
        ):
            continue
        else:
            usual, first = columns = columns or (len(parts), number)
            if len(parts) != usual:
                fault = f", with {len(parts)} columns, expected {usual} as in line {first}"
        if fault:
            raise BadData(f"line {number} of {path} is {line[:40]!r}{fault}")
        words, tags, _ = sentences[-1]
        words.append(parts[0])
        tags.append(parts[-1])
    rows = [sentence for sentence in sentences if sentence[0]]
    data = {task.text[0]: [w for w, _, _ in rows], task.label: [t for _, t, _ in rows]}
    lists = pyarrow.list_(pyarrow.string())
    table = pyarrow.table(data, schema=pyarrow.schema(dict.fromkeys(data, lists)))
    if not task.document or not sentences[-1][2]:
        return table
    return table.append_column(task.document, pyarrow.array([d for _, _, d in rows]))


READERS: Mapping[str, Callable[[Task, Path], Any]] = {
    "parquet": _read_parquet,
    "jsonl": _read_jsonl,
    "json": _read_json,
    "csv": _read_csv,
    "tsv": _read_csv,
    "conll": _read_conll,
    "txt": _read_conll,
}
"""The function that reads a file, by its suffix."""
SUFFIXES = tuple(READERS)
ENDINGS = ", ".join(f".{suffix}" for suffix in SUFFIXES[:-1]) + f" or .{SUFFIXES[-1]}"
