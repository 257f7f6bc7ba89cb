"""Shell: many records <-> one Parquet file, a pack, which keeps each file byte for byte.

Resamples in base64 compress badly, so they are kept as bytes, in a column beside the rest of the
text. Names in a pack are checked: none leads out of the folder that it is unpacked to.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TYPE_CHECKING, Any

from harness.errors import BrokenRecord, OutputExists
from harness.files import (
    MAX_FILE_BYTES,
    check_below,
    check_ours,
    check_place,
    replacing,
    write_files,
)
from harness.text import first_line

if TYPE_CHECKING:
    import pyarrow

SUFFIX = ".parquet"
ABOUT, PACK = b"harness", b"a pack of records, version 1"
"""The key and value in the metadata of a Parquet file that mark it as a pack."""
PREDICTED = re.compile(r"(\A|-)[0-9a-f]{12}\.parquet\Z")
"""How the file name of predictions beside a record ends; these are no pack."""
GROUP = 1024
"""The number of records in one row group of the Parquet file, which is in memory at once."""
IN_BASE64 = re.compile(rb'"(values|by_draw)": "([A-Za-z0-9+/=]*)"')
TAKEN_OUT = re.compile(rb'"(values|by_draw)": ""')
"""The fields of a record that hold resamples: with their base64, and emptied."""

File = tuple[str, bytes]
"""A file of a pack: its path relative to the packed folder, with /, and its content."""


def is_pack(path: Path) -> bool:
    """Whether a file is a pack. Raises BrokenRecord if it ends in .parquet and is no Parquet."""
    if path.suffix != SUFFIX or PREDICTED.search(path.name) or not path.is_file():
        return False
    return bool(_metadata(_opened(path)).get(ABOUT) == PACK)


def unpacked(path: Path) -> Iterator[File]:
    """The files in a pack, sorted by the parts of their paths. Raises BrokenRecord if damaged."""
    file = _opened(path)
    if _metadata(file).get(ABOUT) != PACK or not file.schema_arrow.equals(_schema()):
        raise _broken(path, "it has other columns or no mark of a pack")
    names = [name for part in _parts(file, path, ["name"]) for (name,) in part]
    for name in names:
        if fault := _fault(name):
            raise _broken(path, f"it names a file {name!r:.80}, {fault}")
    if len({*names}) < len(names):
        raise _broken(path, "it has two files of one name")
    if names != sorted(names, key=PurePosixPath):
        raise _broken(path, "its files are not in the order of their names")
    for part in _parts(file, path, ["name", "text", "numbers"]):
        for name, text, numbers in part:
            whole = text is not None and None not in (numbers or ())
            if not whole or (content := _whole(text, numbers)) is None:
                raise _broken(
                    path, f"{name} has no text, or other resamples than its text has places for"
                )
            yield name, content


def write_pack(path: Path, files: Iterable[File]) -> int:
    """Write a pack of files, atomically; return how many files there are.

    Raises BrokenRecord for a name that is not allowed in a pack, or that two different files have,
    and OutputExists if `path` does not end in .parquet or is another file.
    """
    import pyarrow
    import pyarrow.parquet

    if path.suffix != SUFFIX:
        raise OutputExists(f"{path} does not end in {SUFFIX}; expected NAME{SUFFIX}")
    check_ours({path: re.escape(PACK)})
    check_place(path.absolute().parent)
    by_name: dict[str, bytes] = {}
    for name, content in files:
        if fault := _fault(name):
            raise BrokenRecord(f"{name!r:.80} cannot be packed: {fault}")
        if by_name.setdefault(name, content) != content:
            raise BrokenRecord(
                f"two different files are called {name}; expected one: pack each folder alone"
            )
    schema, names = _schema().with_metadata({ABOUT: PACK}), sorted(by_name, key=PurePosixPath)
    options: dict[str, Any] = {"compression": "zstd", "compression_level": 19}
    options |= {"data_page_size": MAX_FILE_BYTES, "write_page_checksum": True}
    options |= {"write_statistics": False, "use_dictionary": False}
    writing = pyarrow.parquet.ParquetWriter
    # each page is compressed by itself: in large pages, what records share is stored once
    with replacing(path) as out, writing(out, schema, **options) as writer:
        for first in range(0, len(names), GROUP):
            group = names[first : first + GROUP]
            taken = [_taken_out(by_name[name]) for name in group]
            columns = [group, [text for text, _ in taken], [parts for _, parts in taken]]
            writer.write_table(pyarrow.table(columns, schema=schema))
    return len(names)


def unpack(path: Path, out: Path) -> list[Path]:
    """Write the files of a pack below a folder, all or none; equal files that exist are kept.

    Raises OutputExists, before any file is written, if a different file or a link is in the way.
    """
    files = {out / name: content for name, content in unpacked(path)}
    check_place(out.absolute())
    check_below(out, [*files])
    for place, content in files.items():
        if not os.path.lexists(place):
            continue
        if place.is_symlink() or not place.is_file() or place.read_bytes() != content:
            raise OutputExists(
                f"{place} exists, with other content; expected a new folder: name another"
            )
    write_files((place, files[place]) for place in files if not os.path.lexists(place))
    return [*files]


# Names -------------------------------------------------------------------------------------


def _fault(name: object) -> str | None:
    """Why a name is not the relative path of a record below a folder; None if it is."""
    if not isinstance(name, str) or not name or not name.isprintable():
        return "expected the path of a file in printable characters"
    parts = name.split("/")
    if PurePosixPath(name).is_absolute() or "\\" in name or PureWindowsPath(name).drive:
        return "expected a path relative to the folder of the pack, with /"
    if any(part in ("", ".", "..") for part in parts):
        return "which leads out of it; expected a file below the folder of the pack"
    return None if name.endswith(".json") else "expected a record, ending in .json"


# Bytes -------------------------------------------------------------------------------------


def _taken_out(text: bytes) -> tuple[bytes, list[bytes]]:
    """A text without its base64, and that as bytes; the whole text and [] if not reversible."""
    try:
        numbers = [base64.b64decode(encoded) for _, encoded in IN_BASE64.findall(text)]
    except binascii.Error:
        return text, []
    short = IN_BASE64.sub(rb'"\1": ""', text)
    return (short, numbers) if _whole(short, numbers) == text else (text, [])


def _whole(text: bytes, numbers: Sequence[bytes]) -> bytes | None:
    """The text with its base64 put back; None if it has more or fewer places than `numbers`."""
    if not numbers:
        return text
    if len(TAKEN_OUT.findall(text)) != len(numbers):
        return None
    rest = iter(numbers)
    return TAKEN_OUT.sub(
        lambda match: b'"%s": "%s"' % (match[1], base64.b64encode(next(rest))), text
    )


# Parquet -----------------------------------------------------------------------------------


def _schema() -> pyarrow.Schema:
    import pyarrow

    kinds = {
        "name": pyarrow.string(),
        "text": pyarrow.binary(),
        "numbers": pyarrow.list_(pyarrow.binary()),
    }
    return pyarrow.schema(kinds)


def _opened(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        return pyarrow.parquet.ParquetFile(path, page_checksum_verification=True)
    except (pyarrow.ArrowException, ValueError, OSError) as error:
        raise _broken(path, first_line(error)[:200]) from error


def _metadata(file: Any) -> dict[bytes, bytes]:
    return file.schema_arrow.metadata or {}


def _parts(file: Any, path: Path, columns: Sequence[str]) -> Iterator[Iterator[tuple[Any, ...]]]:
    """The values of some columns, row group by row group."""
    import pyarrow

    for number in range(file.num_row_groups):
        if file.metadata.row_group(number).total_byte_size > 5 * MAX_FILE_BYTES:
            raise _broken(path, "a part of it is larger than records are")
        try:
            group = file.read_row_group(number, columns=list(columns))
            yield zip(*(group[name].to_pylist() for name in columns), strict=True)
        except (pyarrow.ArrowException, ValueError, OSError) as error:
            raise _broken(path, first_line(error)[:200]) from error


def _broken(path: Path, reason: str) -> BrokenRecord:
    return BrokenRecord(f"{path} is no pack as `harness records pack` writes it: {reason}")
