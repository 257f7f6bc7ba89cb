"""Shell: reads JSON and YAML within limits, and writes files completely or not at all.

Input is not trusted: its size and depth are limited, and its text has to be encodable in UTF-8.
Output is written beside its destination under an unpredictable name (`unfinished`), and moved
there when it is complete.
"""

from __future__ import annotations

import errno
import importlib
import json
import math
import os
import re
import stat
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, cast

import xxhash
import yaml

from harness import unfinished
from harness.errors import BrokenCheckpoint, CannotWrite, HarnessError, OutputExists

MAX_FILE_BYTES = 200 * 2**20
"""The most bytes of a JSON file: the largest tokenizers have 40 MiB."""
LARGEST_YAML = 2**20
DEEPEST = 64
MAX_INT_BITS = 1024
"""The most bits of a whole number: a larger one exceeds a float, and may be too long to print."""
MAX_OPEN_FILES = 100
"""The most files kept open, and so locked, at a time: some systems allow 256 per program."""
MAX_YAML_VALUES = 100_000
"""The most values in a YAML file, counting those that aliases repeat."""


# Reading -----------------------------------------------------------------------------------


def read_text(
    path: Path,
    what: str,
    *,
    largest: int = MAX_FILE_BYTES,
    error: type[HarnessError] = BrokenCheckpoint,
) -> str:
    """The text of a UTF-8 file of at most `largest` bytes; `what` says what the file should be.

    Raises `error`, naming both.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would block
            raise error(f"{path} is no file, expected {what}")
        with path.open("rb") as file:
            content = file.read(min(status.st_size, largest) + 1)
        if len(content) > largest:
            raise error(f"{path} is larger than {largest} bytes, expected {what}")
        return content.decode("utf-8")
    except FileNotFoundError:
        raise error(f"{path} is missing; expected {what}") from None
    except (ValueError, OSError) as cause:
        raise error(f"{path} cannot be read as {what}: {cause}") from cause


def read_json(
    path: Path, what: str, *, error: type[HarnessError] = BrokenCheckpoint
) -> dict[str, Any]:
    """The object in a JSON file. Raises `error`, naming the file and `what` it should be."""
    return parse_json(read_text(path, what, error=error), str(path), what, error=error)


def parse_json(
    text: str, where: str, what: str, *, error: type[HarnessError] = BrokenCheckpoint
) -> dict[str, Any]:
    """The object in a JSON text. Raises `error`, naming `where` and `what` it should be."""
    return _object(_loaded(text, where, what, error), where, what, error)


def parse_objects(
    text: str, where: str, what: str, *, error: type[HarnessError] = BrokenCheckpoint
) -> list[dict[str, Any]]:
    """The objects in a JSON text that holds a list of them. Raises `error`, naming `where`; also
    for a key that occurs twice in an object."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for key, value in pairs:
            if fields.setdefault(key, value) is not value:
                raise ValueError(f"an object has the key {key!r:.80} twice")
        return fields

    values = _loaded(text, where, what, error, once)
    if not isinstance(values, list):
        raise error(f"{where} cannot be read as {what}: it is no list")
    return [_object(value, f"the list of {where}", what, error) for value in values]


def _loaded(
    text: str,
    where: str,
    what: str,
    error: type[HarnessError],
    hook: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None = None,
) -> Any:
    try:
        return json.loads(text, object_pairs_hook=hook)
    except (ValueError, RecursionError) as cause:
        raise error(f"{where} cannot be read as {what}, in JSON: {cause}") from cause


def as_json(value: object) -> Any:
    """The value after a round trip through JSON: tuples become lists, keys become texts."""
    return json.loads(json.dumps(value))


class KeysOnce(yaml.SafeLoader):
    """A YAML loader that refuses a duplicate key; PyYAML's own takes the last value."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        counts = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for key, count in counts.most_common(1):
            if count > 1:
                line = node.start_mark.line + 1
                raise ValueError(f"the key '{key}' occurs twice in what begins at line {line}")
        return super().construct_mapping(node, deep)


class Loader(KeysOnce):
    """A YAML loader that reads 1e-3 as a number; YAML 1.1 requires a decimal point."""


Loader.add_implicit_resolver(  # at most two digits after the e: a hash may look like 12e345
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+[eE][-+]?\d{1,2}$"), list("-+0123456789")
)


def read_yaml(
    path: Path,
    what: str,
    *,
    error: type[HarnessError] = BrokenCheckpoint,
    loader: type[yaml.SafeLoader] = Loader,
) -> dict[str, Any]:
    """The object in a YAML file that holds JSON types only. Raises `error`, naming the file."""
    text = read_text(path, what, largest=LARGEST_YAML, error=error)
    try:
        value = yaml.load(text, Loader=loader)
    except Exception as cause:  # PyYAML raises many types of errors
        reason = " ".join(str(cause).split())
        raise error(f"{path} cannot be read as YAML: {reason}; expected {what}") from cause
    return _object(value, str(path), what, error, most=MAX_YAML_VALUES)


def _object(
    value: object, where: str, what: str, error: type[HarnessError], most: int | None = None
) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise error(f"{where} holds a {type(value).__name__}, expected {what}")
    check_values(value, where, what, error=error, most=most)
    return value


def check_values(
    value: object, where: str, what: str, *, error: type[HarnessError], most: int | None = None
) -> None:
    """Raise `error`, naming `where`, for a value too deep, too large or not of JSON types."""
    if fault := _fault(value, most):
        raise error(f"{where} {fault}; expected {what}")


def _fault(value: object, most: int | None) -> str | None:
    """Why a value is refused: too deep, over `most` entries, or not of JSON types; None if valid.

    With aliases, a YAML value can contain itself, or a few lines can stand for billions of entries.
    """
    level: list[object] = [value]
    seen = 0
    for _ in range(DEEPEST):
        below: list[object] = []
        for entry in level:
            if isinstance(entry, str):
                if not entry.isascii() and not is_text(entry):
                    return f"has the text {entry[:40]!r}, which is not valid Unicode"
            elif isinstance(entry, dict):
                if wrong_keys := [key for key in entry if not isinstance(key, str)]:
                    return f"has the key {wrong_keys[0]!r}, which is no text"
                below += entry.keys()
                below += entry.values()
            elif isinstance(entry, list):
                below += entry
            elif isinstance(entry, int):
                if entry.bit_length() > MAX_INT_BITS:
                    return f"has a whole number of {entry.bit_length()} bits"
            elif not (entry is None or isinstance(entry, float)):
                return f"has a {type(entry).__name__}, which is no text, number, list or object"
            if most is not None and seen + len(below) > most:
                return f"has more than {most} entries"
        if not below:
            return None
        seen += len(below)
        level = below
    return f"is nested more than {DEEPEST} deep"


def is_text(text: str) -> bool:
    """Whether the text can be encoded in UTF-8; lone surrogates, which JSON can hold, cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_text(text: str, error: type[HarnessError]) -> None:
    """Raise `error` for a name from the operating system that cannot be encoded in UTF-8."""
    if not is_text(text):
        spelled = f"'{text}' cannot be encoded in {sys.getfilesystemencoding()}"
        raise error(f"{spelled}; expected UTF-8: rename it, or set LC_ALL=C.UTF-8")


# Writing -----------------------------------------------------------------------------------


@contextmanager
def as_cannot_write(path: Path) -> Iterator[None]:
    """Raise OSErrors of the block as CannotWrite, naming the path: no space, no permission, ...

    BrokenPipeError passes.
    """
    try:
        yield
    except BrokenPipeError:  # of stdout, which nobody reads any more
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise CannotWrite(
            f"{path} cannot be written: {reason}; expected free space and permission to write"
        ) from error


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that is synced to disk and replaces `path` when the block succeeds.

    Raises CannotWrite if that is not possible; the old file then stays.
    """
    with _staged(path) as (file, take_place):
        yield file
        file.flush()
        os.fsync(file.fileno())
        take_place()


def write_files(files: Iterable[tuple[Path, str | bytes]]) -> None:
    """Write several files: all are complete on disk before the first replaces its destination.

    With a generator, one content at a time is in memory. Raises CannotWrite; the old files stay.
    """
    with ExitStack() as stack:
        ready = []
        for path, content in files:
            file, take_place = stack.enter_context(_staged(path))
            with as_cannot_write(path):
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            ready.append(take_place)
            if len(ready) > MAX_OPEN_FILES:
                file.close()
        for take_place in ready:
            take_place()


@contextmanager
def _staged(path: Path) -> Iterator[tuple[BinaryIO, Callable[[], None]]]:
    """A new file beside `path`, and a function that moves it to `path`; without that call, the file
    is removed."""
    check_name(path)
    with as_cannot_write(path), new_parents(path.parent):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        unfinished.tidy(path)
        partial, number = unfinished.new(path, unfinished.make_file)
        with open(partial, "r+b", opener=lambda *_: number) as file:

            def take_place() -> None:
                with as_cannot_write(path):
                    partial.replace(path)

            try:
                yield file, take_place
            finally:
                partial.unlink(missing_ok=True)


@contextmanager
def new_parents(folder: Path) -> Iterator[None]:
    """Create a folder and its parents; those that are new are removed if the block fails."""
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):  # another process has put something there
            for place in new:
                place.rmdir()
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text, completely or not at all."""
    with replacing(path) as file:
        file.write(text.encode())


_NUMBERS = re.compile(r"\[\n[\s\d.,eE+-]*\]")
"""A list of numbers over several lines; no JSON string matches, as it has no line breaks."""


def write_json(path: Path, value: object, *, indent: int = 2, sort_keys: bool = False) -> None:
    """Write a value as JSON, completely or not at all."""
    write_text(path, json_text(value, indent=indent, sort_keys=sort_keys))


def json_text(value: object, *, indent: int = 2, sort_keys: bool = False) -> str:
    """A value as JSON, with each list of numbers on one line."""
    text = json.dumps(value, indent=indent, sort_keys=sort_keys, ensure_ascii=False)
    return _NUMBERS.sub(lambda match: f"[{' '.join(match[0][1:-1].split())}]", text) + "\n"


def nameless(path: Path) -> BinaryIO:
    """A new temporary file on the same disk as a path, which need not exist yet.

    The file has no name, so nothing is left of it however the process ends. Raises CannotWrite if
    it cannot be created.
    """
    folder = next(place for place in Path(os.path.realpath(path)).parents if place.is_dir())
    with as_cannot_write(folder):
        return cast(BinaryIO, tempfile.TemporaryFile(dir=folder))


# Places ------------------------------------------------------------------------------------


CACHE_DIR = "HARNESS_CACHE_DIR"


def cache_dir(what: str) -> Path:
    """The cache folder for one kind of entry, in HARNESS_CACHE_DIR or else in the user's cache."""
    chosen = os.environ.get(CACHE_DIR)
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(chosen) if chosen else Path(root) / "merging-harness") / what


@cache
def version(distribution: str) -> str:
    """The version of an installed distribution or else of the module of that name.

    Cached: reading the metadata takes longer than merging miniature models.
    """
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return str(getattr(importlib.import_module(distribution), "__version__", "unknown"))


def file_hash(path: Path, largest: float = math.inf) -> str | None:
    """A hash of the bytes of a file; None if it is not a file or has more than `largest` bytes."""
    if not path.is_file() or path.stat().st_size > largest:
        return None
    state = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(2**20):
            state.update(block)
    return str(state.hexdigest())


def check_name(path: Path) -> None:
    """Raise CannotWrite for a path that no file can have, or that no record could hold as text."""
    with as_cannot_write(path), suppress(FileNotFoundError, NotADirectoryError):
        path.lstat()
    check_text(str(path), CannotWrite)


def check_place(folder: Path) -> None:
    """Raise OutputExists if a file is in the way of a folder to be created.

    Raises CannotWrite without write permission.
    """
    check_name(folder)
    with as_cannot_write(folder):
        found = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not found.is_dir():
        raise OutputExists(f"{found} is a file, expected a folder: choose another output")
    if not os.access(found, os.W_OK):
        raise CannotWrite(f"{found} may not be written to; expected a folder that you may write to")
    nameless(found / "file").close()  # some places refuse files whatever the rights


def check_below(root: Path, paths: Iterable[Path]) -> None:
    """Raise OutputExists if a folder between the output `root` and one of its files is a link."""
    folders = {place for path in paths for place in path.parents if root in place.parents}
    for place in sorted(folders):
        if place.is_symlink():
            target = place.resolve()
            raise OutputExists(f"{place} is a link to {target}, expected a folder: remove the link")


def check_ours(marks: Mapping[Path, bytes]) -> None:
    """Raise OutputExists for a file to be overwritten that this program did not write.

    `marks` maps each path to a pattern that every file that this program writes there contains.
    """
    for path, mark in marks.items():
        if not os.path.lexists(path):
            continue
        with as_cannot_write(path):
            content = path.read_bytes() if path.is_file() else b""  # reading a pipe would block
        if not re.search(mark, content):
            raise OutputExists(
                f"{path} exists and this program did not write it; choose another place"
            )
