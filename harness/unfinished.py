"""Unfinished outputs: beside their destination, under unpredictable names, locked while in use.

What a killed run left is recognised by its name, which contains a hash of the rest of the name,
and is removed by the next run that writes the same destination. No other file is ever taken for
one of ours.
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
except ImportError:  # Windows has no such locks: there, one run at a time may write an output
    fcntl = None  # type: ignore[assignment]  # a module elsewhere

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF)
"""Errors of file systems without locks, as of clusters: there, one run at a time may write an
output."""
_PARTIAL = re.compile(r"\.(?P<name>.+)\.(?P<random>[0-9a-f]{16})(?P<check>[0-9a-f]{16})\.partial")
"""The form of our names; `check` is a hash of the rest, which tells them from other programs'."""
NOFOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
TRIES = 100
"""Attempts to create an output that other runs keep removing."""
LONGEST = 160
"""The most bytes of a destination's name within ours: file systems allow 255 for a whole name."""
PATIENCE = 2.0
"""Seconds to wait for a lock, then go on without: a program started by `flock FOLDER harness ...`
would wait forever."""


def _partial(place: Path, random: str) -> Path:
    """The path of an unfinished output beside its destination `place`."""
    name = place.name
    if len(os.fsencode(name)) > LONGEST:
        name = xxhash.xxh3_64_hexdigest(os.fsencode(name))
    check = xxhash.xxh3_64_hexdigest(os.fsencode(f"merging-harness/{name}/{random}"))
    return place.with_name(f".{name}.{random}{check}.partial")


def is_unfinished(path: Path, place: Path | None = None) -> bool:
    """Whether a path has the name of an unfinished output of this program, for `place` if given."""
    found = _PARTIAL.fullmatch(path.name)
    if found is None:
        return False
    return path.name == _partial(place or path.with_name(found["name"]), found["random"]).name


def make_file(path: Path) -> int:
    """Create a file and return its open descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | NOFOLLOW, 0o666)


def make_folder(path: Path) -> int:
    """Create a folder and return its open descriptor; -1 where there are no locks."""
    path.mkdir()
    return os.open(path, os.O_RDONLY | NOFOLLOW) if fcntl is not None else -1


def new(place: Path, make: Callable[[Path], int]) -> tuple[Path, int]:
    """A new output that `make` creates beside a destination: its path, and its open descriptor,
    which is locked until it is closed.

    Raises OSError where nothing can be created, as in /proc.
    """
    for tries_left in reversed(range(TRIES)):
        path = _partial(place, secrets.token_hex(8))
        try:
            number = make(path)
            _lock(number)
            if number < 0 or _is_still(number, path):
                return path, number
            os.close(number)  # another run that was tidying up removed it before the lock
        except FileNotFoundError:
            if not tries_left:
                raise
    raise FileExistsError(f"{place} was removed by another run each time that it was made")


def unfinished_outputs(place: Path) -> Iterator[tuple[Path, bool | None]]:
    """Unfinished outputs of other runs for a destination, and whether each could be locked (None:
    there are no locks)."""
    with os.scandir(place.parent) as entries:
        paths = [Path(entry.path) for entry in entries if entry.name.endswith(".partial")]
    for path in paths:
        if not is_unfinished(path, place) or path.is_symlink() or fcntl is None:
            continue
        try:
            number = os.open(path, os.O_RDONLY | NOFOLLOW)
        except OSError:  # finished meanwhile, or of another user
            continue
        try:
            yield path, _lock(number, wait=False)
        finally:
            os.close(number)


def is_written(place: Path) -> bool:
    """Whether another run is writing the destination `place`."""
    return any(locked is False for _, locked in unfinished_outputs(place))


def tidy(place: Path) -> None:
    """Remove what killed runs left for a destination; what may be in use stays."""
    for path, locked in unfinished_outputs(place):
        if locked:
            remove_path(path)


def remove_path(path: Path) -> None:
    """Remove a file, a folder with its contents, or a link without its target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, so that one run at a time checks for other writers and begins.

    After PATIENCE seconds the block runs without the lock.
    """
    number = os.open(folder, os.O_RDONLY) if fcntl is not None else -1
    try:
        deadline = time.monotonic() + PATIENCE
        while _lock(number, wait=False) is False and time.monotonic() < deadline:
            time.sleep(0.01)
        yield
    finally:
        if number >= 0:
            os.close(number)


def _lock(number: int, *, wait: bool = True) -> bool | None:
    """Lock an open file or folder until it is closed: True, or False if another process holds the
    lock and `wait` is off. None where there are no locks."""
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
    """Whether a path still names the file or folder that was opened under it."""
    try:
        return os.path.samestat(os.fstat(number), path.lstat())
    except FileNotFoundError:
        return False
