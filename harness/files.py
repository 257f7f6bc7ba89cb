"""Shell: where JSON and YAML are read, with limits, and files and folders written, whole or not.

What is read may come from anybody: it is data of limited size and depth, in text that can be
written again. What is written stands beside its place, under a name that nobody could know before
(`.NAME.TOKEN.partial`), until it is whole. It is made there and nothing that exists is ever taken
for it; it is locked while a process works on it, and what a killed run left goes with the next.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import xxhash
import yaml

from harness.errors import BrokenCheckpoint, CannotWrite, HarnessError, OutputExists

try:
    import fcntl
except ImportError:  # no such locks on Windows: runs that share an output take turns there by hand
    fcntl = None  # type: ignore[assignment]  # a module elsewhere

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF)
"""What file systems of clusters say that have no locks: runs that share an output take turns."""

LARGEST = 200 * 2**20
"""Bytes of a JSON file: the largest tokenizers have 40 MiB."""
LARGEST_YAML = 2**20
DEEPEST = 64
WIDEST = 1024
"""Bits of a whole number: a larger one is no float, and may be too long to be shown."""
MOST = 100_000
"""Values in a YAML file, with those that an alias repeats."""


# Reading -----------------------------------------------------------------------------------


def read_text(
    path: Path, what: str, *, largest: int = LARGEST, error: type[HarnessError] = BrokenCheckpoint
) -> str:
    """The text of a file in UTF-8. Raises `error`, naming the file and what it should be."""
    try:
        about = path.stat()
        if not stat.S_ISREG(about.st_mode):  # whoever opens a pipe waits for its other end
            raise error(f"{path} is no file, expected {what}")
        with path.open("rb") as file:
            content = file.read(min(about.st_size, largest) + 1)
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
    """The object in a JSON file. Raises `error`, naming the file and what it should be."""
    return parse_json(read_text(path, what, error=error), str(path), what, error=error)


def parse_json(
    text: str, where: str, what: str, *, error: type[HarnessError] = BrokenCheckpoint
) -> dict[str, Any]:
    """The object in a JSON text. Raises `error`, naming `where` and what it should be."""
    return _object(_loaded(text, where, what, error), where, what, error)


def parse_objects(
    text: str, where: str, what: str, *, error: type[HarnessError] = BrokenCheckpoint
) -> list[dict[str, Any]]:
    """The objects in the list of a JSON text. Raises `error`, naming `where`."""
    values = _loaded(text, where, what, error)
    return [_object(value, f"the list of {where}", what, error) for value in values]


def _loaded(text: str, where: str, what: str, error: type[HarnessError]) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise error(f"{where} cannot be read as {what}: {cause}") from cause


def as_json(value: object) -> Any:
    """The value as it is read back: a tuple is a list, a key a text."""
    return json.loads(json.dumps(value))


def read_yaml(
    path: Path, what: str, *, error: type[HarnessError] = BrokenCheckpoint
) -> dict[str, Any]:
    """The object in a YAML file that holds only what JSON can say. Raises `error`, naming it."""
    text = read_text(path, what, largest=LARGEST_YAML, error=error)
    try:
        value = yaml.safe_load(text)
    except Exception as cause:  # the reader has an error of its own for every tag and escape
        reason = " ".join(str(cause).split())
        raise error(f"{path} cannot be read as YAML: {reason}; expected {what}") from cause
    return _object(value, str(path), what, error, most=MOST)


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
    """Raise `error`, naming `where`, for what was read and is too deep, too much or no JSON."""
    if fault := _fault(value, most):
        raise error(f"{where} {fault}; expected {what}")


def _fault(value: object, most: int | None) -> str | None:
    """What is wrong with a value that was read: too deep, too much, or not of JSON's types.

    Aliases of YAML can make a value hold itself, or a few lines billions of entries.
    """
    level: list[object] = [value]
    seen = 0
    for _ in range(DEEPEST):
        below: list[object] = []
        for one in level:
            if one is None or isinstance(one, bool | float):
                continue
            if isinstance(one, dict):
                if odd := next((key for key in one if not isinstance(key, str)), None):
                    return f"has the key {odd!r}, which is no text"
                below += one.keys()
                below += one.values()
            elif isinstance(one, list):
                below += one
            elif isinstance(one, str):
                if not one.isascii() and not _is_unicode(one):
                    return f"has the text {one[:40]!r}, which is no Unicode"
            elif isinstance(one, int) and one.bit_length() > WIDEST:
                return f"has a whole number of {one.bit_length()} bits"
            elif not isinstance(one, int):
                return f"has a {type(one).__name__}, which is no text, number, list or object"
            if most is not None and seen + len(below) > most:
                return f"has more than {most} entries"
        if not below:
            return None
        seen += len(below)
        level = below
    return f"is nested more than {DEEPEST} deep"


def _is_unicode(text: str) -> bool:
    """Whether the text can be written: half of a surrogate pair, which JSON can spell, can not."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# Writing -----------------------------------------------------------------------------------


@contextmanager
def saying(path: Path) -> Iterator[None]:
    """What the system cannot do with a path as CannotWrite: no space, no right, no such place."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise CannotWrite(
            f"{path} cannot be written: {reason}; expected a place with room and the right to "
            "write there"
        ) from error


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes the place of `path`, synced to disk, when the block succeeds.

    Raises CannotWrite, and leaves what was there, where that is not possible.
    """
    with _staged(path) as (file, take_place):
        yield file
        file.flush()
        os.fsync(file.fileno())
        take_place()


def write_files(files: Mapping[Path, str | bytes]) -> None:
    """Write several files, all or none: each is whole on the disk before one takes its place.

    The contents are asked for one after another. Raises CannotWrite, and leaves what was there.
    """
    with ExitStack() as stack:
        ready = []
        for path, content in files.items():
            file, take_place = stack.enter_context(_staged(path))
            with saying(path):
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
            ready.append(take_place)
        for take_place in ready:
            take_place()


@contextmanager
def _staged(path: Path) -> Iterator[tuple[BinaryIO, Callable[[], None]]]:
    """A new file beside `path`, and what gives it that place; it is gone if that was not called."""
    with saying(path), _made(path.parent):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        _tidy(path)
        partial, number = _new(path, _make_file)
        with open(partial, "r+b", opener=lambda *_: number) as file:

            def take_place() -> None:
                with saying(path):
                    partial.replace(path)

            try:
                yield file, take_place
            finally:
                partial.unlink(missing_ok=True)


@contextmanager
def _made(folder: Path) -> Iterator[None]:
    """A folder, made with those above it; what was made goes again if the block fails."""
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        with suppress(OSError):  # somebody else has put something there
            for place in new:
                place.rmdir()
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text, whole or not at all."""
    with replacing(path) as file:
        file.write(text.encode())


_NUMBERS = re.compile(r"\[\n[\s\d.,eE+-]*\]")
"""A list of numbers over several lines, which nothing within a text can look like."""


def write_json(path: Path, value: object, *, indent: int = 2, sort_keys: bool = False) -> None:
    """Write a value as JSON, a list of numbers in one line; whole or not at all."""
    text = json.dumps(value, indent=indent, sort_keys=sort_keys, ensure_ascii=False)
    text = _NUMBERS.sub(lambda match: f"[{' '.join(match[0][1:-1].split())}]", text)
    write_text(path, text + "\n")


def nameless(beside: Path) -> BinaryIO:
    """A new file to write and read, on the disk of a path, which may not be there yet.

    It has no name, so that nothing is left of it when it is closed, whatever stops the process.
    Raises CannotWrite where none can be made.
    """
    there = next(place for place in Path(os.path.realpath(beside)).parents if place.is_dir())
    with saying(there):
        return cast(BinaryIO, tempfile.TemporaryFile(dir=there))


# Unfinished files and folders --------------------------------------------------------------

_PARTIAL = re.compile(r"\.(?P<name>.+)\.(?P<random>[0-9a-f]{16})(?P<check>[0-9a-f]{16})\.partial")
"""How a name of ours looks; `check` is a hash of the rest, which no other program's name has."""
NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
LONGEST = 160
"""Bytes of a name that stand in another, which file systems have room for up to 255 of."""
PATIENCE = 2.0
"""Seconds to wait for a turn: who starts this program by `flock FOLDER` holds it all the time."""


def _partial(place: Path, random: str) -> Path:
    """The name of what is to take a place, beside it."""
    name = place.name
    if len(os.fsencode(name)) > LONGEST:
        name = xxhash.xxh3_64_hexdigest(os.fsencode(name))
    check = xxhash.xxh3_64_hexdigest(os.fsencode(f"merging-harness/{name}/{random}"))
    return place.with_name(f".{name}.{random}{check}.partial")


def is_unfinished(path: Path, place: Path | None = None) -> bool:
    """Whether a path is called as only this program calls what is not whole, here or of a place."""
    found = _PARTIAL.fullmatch(path.name)
    if found is None:
        return False
    return path.name == _partial(place or path.with_name(found["name"]), found["random"]).name


def _make_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | NOFOLLOW, 0o666)


def _make_folder(path: Path) -> int:
    path.mkdir()
    return os.open(path, os.O_RDONLY | NOFOLLOW) if fcntl is not None else -1


def _new(place: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """What is made beside a place under a name that nothing has; open, and locked until closed."""
    while True:
        path = _partial(place, secrets.token_hex(8))
        with suppress(FileNotFoundError):
            number = make(path)
            _lock(number)
            if number < 0 or _is_still(number, path):
                return path, number
            os.close(number)  # another run, which tidied up, had the lock first


def _others(place: Path) -> Iterator[tuple[Path, int, bool | None]]:
    """What other runs have not finished beside a place: open, and whether it could be locked."""
    with os.scandir(place.parent) as entries:
        paths = [Path(entry.path) for entry in entries if entry.name.endswith(".partial")]
    for path in paths:
        if not is_unfinished(path, place) or path.is_symlink() or fcntl is None:
            continue
        try:
            number = os.open(path, os.O_RDONLY | NOFOLLOW)
        except OSError:  # it is done, or somebody else's
            continue
        try:
            yield path, number, _lock(number, wait=False)
        finally:
            os.close(number)


def _tidy(place: Path) -> None:
    """Take away what killed runs left beside a place; what may be in use stays."""
    for path, _, locked in _others(place):
        if locked:
            _take_away(path)


def _take_away(path: Path) -> None:
    """Remove a file, or a folder with all in it; what a link leads to stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def _turn(folder: Path) -> Iterator[None]:
    """One run at a time looks who else works in a folder, and begins."""
    number = os.open(folder, os.O_RDONLY) if fcntl is not None else -1
    try:
        until = time.monotonic() + PATIENCE
        while _lock(number, wait=False) is False and time.monotonic() < until:
            time.sleep(0.01)
        yield
    finally:
        if number >= 0:
            os.close(number)


def _lock(number: int, *, wait: bool = True) -> bool | None:
    """Lock an open file or folder until it is closed; None where there are no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(number, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return None
    return True


def _is_still(number: int, path: Path) -> bool:
    """Whether a path still names what was opened under it."""
    try:
        return os.path.samestat(os.fstat(number), path.lstat())
    except FileNotFoundError:
        return False


# Folders -----------------------------------------------------------------------------------


def cache_dir(what: str) -> Path:
    """Where what can be made again is kept: in HARNESS_CACHE_DIR, else in the user's cache."""
    given = os.environ.get("HARNESS_CACHE_DIR")
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return (Path(given) if given else Path(root) / "merging-harness") / what


FILES = "files"
"""The key under which a folder's marker lists all files in it, with a hash of each."""


@dataclass(frozen=True)
class Layout:
    """What a kind of folder of ours is: what one says of it, and its marker.

    That is a JSON object beside which nothing is ours but what it lists, as it was written, and
    what is called as in the pattern `more`.
    """

    what: str
    marker: str
    more: str = "(?!)"

    def write(
        self, folder: Path, said: Mapping[str, Any], known: Mapping[str, str] | None = None
    ) -> None:
        """Write the marker, last of all: what it says, and a hash of every file by its path.

        `known` are hashes of files that need not be read again.
        """
        inside = [name for name in self._inside(folder) if name != self.marker]
        hashes = {name: (known or {}).get(name) or file_hash(folder / name) for name in inside}
        write_json(
            folder / self.marker, {**said, FILES: {**hashes, self.marker: _seal(said, hashes)}}
        )

    def said(self, folder: Path) -> dict[str, Any]:
        """What the marker of a folder says."""
        return read_json(folder / self.marker, f"a record of {self.what}", error=OutputExists)

    def foreign(self, folder: Path) -> dict[str, str]:
        """What stands in a folder and was not written so by us, by its path: foreign, or edited.

        Raises OutputExists where the marker does not say what was.
        """
        marker = folder / self.marker
        said = self.said(folder)
        hashes = said.pop(FILES, None)
        if not isinstance(hashes, dict):
            raise OutputExists(
                f"{marker} does not list the files of {self.what}, as older versions did not; "
                f"expected '{FILES}': move {folder} away, or choose another output"
            )
        seal = hashes.pop(self.marker, None)
        whole = seal == _seal(said, hashes) and not marker.is_symlink()
        odd = {} if whole else {self.marker: "edited"}
        for name in self._inside(folder):
            if name not in hashes and name != self.marker:
                odd[name] = "foreign"
            elif name != self.marker and (
                (folder / name).is_symlink() or file_hash(folder / name) != hashes[name]
            ):
                odd[name] = "edited"
        return odd

    def _inside(self, folder: Path) -> list[str]:
        """What the marker should list, itself too; not what is left of its being written."""
        return [
            name
            for name in _inside(folder)
            if not re.fullmatch(self.more, name) and not self.begun(folder / name)
        ]

    def begun(self, path: Path) -> bool:
        """Whether a path is what a killed run left of the marker."""
        return is_unfinished(path, path.with_name(self.marker))


def _inside(folder: Path) -> list[str]:
    """All that stands in a folder and is no folder, by its path there; no link is followed."""
    found = []
    for place, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        found += [Path(place, name).relative_to(folder).as_posix() for name in (*files, *links)]
    return sorted(found)


def _seal(said: Mapping[str, Any], hashes: Mapping[str, str | None]) -> str:
    """A hash of what a marker says, but for itself."""
    text = json.dumps([said, hashes], sort_keys=True)
    return str(xxhash.xxh3_128_hexdigest(text.encode()))


def file_hash(path: Path) -> str | None:
    """A hash of the bytes of a file; None for what is no file."""
    if not path.is_file():
        return None
    state = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(2**20):
            state.update(block)
    return str(state.hexdigest())


def check_place(folder: Path) -> None:
    """Raise OutputExists where a folder cannot be, because a file is in the way.

    Raises CannotWrite where it may not be.
    """
    with saying(folder):
        taken = next(place for place in (folder, *folder.parents) if os.path.lexists(place))
    if not taken.is_dir():
        raise OutputExists(f"{taken} is a file, expected a folder: choose another output")
    if not os.access(taken, os.W_OK):
        raise CannotWrite(f"{taken} may not be written to; expected a folder that is yours")


def check_ours(marks: Mapping[Path, bytes]) -> None:
    """Raise OutputExists for a file that is to be written over and was not written by us.

    `marks` are patterns that every file of ours of its path has.
    """
    for path, mark in marks.items():
        if not os.path.lexists(path):
            continue
        with saying(path):
            there = path.read_bytes() if path.is_file() else b""  # a pipe would never end
        if not re.search(mark, there):
            raise OutputExists(
                f"{path} exists and was not written by this program; take it away or name another "
                "folder"
            )


def check_output(out: Path, layout: Layout, *, force: bool = False) -> None:
    """Raise OutputExists unless `out` is free, empty, or with `force` an older one of the kind.

    Nothing that this program did not write is ever replaced.
    """
    place = Path(os.path.realpath(out))
    check_place(place.parent)
    if place == Path.cwd() or place in Path.cwd().parents:
        raise OutputExists(f"{out} is the folder you are in, expected one of its own: name another")
    if place.is_mount():
        raise OutputExists(f"{out} is a mount point, expected a folder below it: name another")
    if not os.path.lexists(place):
        return
    if not place.is_dir():
        raise OutputExists(f"{place} is a file, expected a folder: choose another output")
    with saying(out):
        if all(layout.begun(path) for path in place.iterdir()):
            return
    if not (place / layout.marker).is_file():
        raise OutputExists(
            f"{out} exists and was not written by this program (it holds no {layout.marker}); "
            "expected a new or empty folder: choose another --out or move it away"
        )
    with saying(out):
        odd = layout.foreign(place)
    if odd:
        names = [name if why == "foreign" else f"{name} ({why})" for name, why in odd.items()]
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise OutputExists(
            f"{out} holds {layout.what} and beside it {shown}, which this program did not write "
            f"so; expected nothing but what {layout.marker} lists: move it away, or choose another "
            "--out"
        )
    if not force:
        raise OutputExists(
            f"{out} holds {layout.what} already; expected a new folder: choose another --out, or "
            "replace it with --force"
        )


@contextmanager
def new_folder(out: Path, layout: Layout, *, force: bool = False) -> Iterator[Path]:
    """A folder that takes the place of `out` when the block succeeds; until then nothing changes.

    Whoever is stopped leaves the old folder or the new one. Raises OutputExists as `check_output`
    does, and while another run writes the same folder; CannotWrite where there is no room.
    """
    place = Path(os.path.realpath(out))
    check_output(out, layout, force=force)
    with saying(out), _made(place.parent):
        with _turn(place.parent):
            if any(locked is False for _, _, locked in _others(place)):
                raise OutputExists(f"another run is writing {out}; wait for it, or choose another")
            partial, number = _new(place, _make_folder)
        try:
            _tidy(place)
            yield partial
            check_output(out, layout, force=force)  # it may have been written meanwhile
            _swap(partial, place)
        finally:
            _take_away(partial)
            if number >= 0:
                os.close(number)


def _swap(new: Path, old: Path) -> None:
    """Give a folder the place of another, if there is one, which goes where the new one was."""
    if not old.exists() or not any(old.iterdir()):
        new.replace(old)  # an empty folder is replaced at once
    elif not _exchange(new, old):
        aside = old.with_name(f".{old.name}.{secrets.token_hex(8)}.old")
        old.replace(aside)
        try:
            new.replace(old)
        except OSError:
            aside.replace(old)
            raise
        shutil.rmtree(aside, ignore_errors=True)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one step; False where the system cannot."""
    try:
        rename: Callable[..., int] = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError, TypeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE of Linux
    if rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(second))
