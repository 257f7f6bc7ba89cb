"""Names of what is not whole: beside its place, known to nobody before, and locked while in use.

What a killed run left under such a name is told by the name itself, of which a part is a hash of
the rest, and goes when the next run writes the same place. Nothing else is ever taken for ours.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import xxhash

try:
    import fcntl
except ImportError:  # no such locks on Windows: runs that share an output take turns there by hand
    fcntl = None  # type: ignore[assignment]  # a module elsewhere

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF)
"""What file systems of clusters say that have no locks: runs that share an output take turns."""
_PARTIAL = re.compile(r"\.(?P<name>.+)\.(?P<random>[0-9a-f]{16})(?P<check>[0-9a-f]{16})\.partial")
"""How a name of ours looks; `check` is a hash of the rest, which no other program's name has."""
NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
TRIES = 100
"""Names that are tried where what is made is gone at once."""
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


def make_file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | NOFOLLOW, 0o666)


def make_folder(path: Path) -> int:
    path.mkdir()
    return os.open(path, os.O_RDONLY | NOFOLLOW) if fcntl is not None else -1


def new(place: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """What is made beside a place under a name that nothing has; open, and locked until closed.

    Raises OSError where nothing can be made, as in /proc.
    """
    for left in reversed(range(TRIES)):
        path = _partial(place, secrets.token_hex(8))
        try:
            number = make(path)
            _lock(number)
            if number < 0 or _is_still(number, path):
                return path, number
            os.close(number)  # another run, which tidied up, had the lock first
        except FileNotFoundError:
            if not left:
                raise
    raise FileExistsError(f"{place} is taken away by other runs as often as it is made")


def others(place: Path) -> Iterator[tuple[Path, bool | None]]:
    """What other runs have not finished beside a place, and whether it could be locked."""
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
            yield path, _lock(number, wait=False)
        finally:
            os.close(number)


def is_written(place: Path) -> bool:
    """Whether another run is writing a place."""
    return any(locked is False for _, locked in others(place))


def tidy(place: Path) -> None:
    """Take away what killed runs left beside a place; what may be in use stays."""
    for path, locked in others(place):
        if locked:
            take_away(path)


def take_away(path: Path) -> None:
    """Remove a file, or a folder with all in it; what a link leads to stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def turn(folder: Path) -> Iterator[None]:
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
