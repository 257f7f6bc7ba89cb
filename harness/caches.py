"""What is kept of earlier runs, by what it is: how much of it there is, and taking it away.

Nothing in a cache is needed: what is gone is made again. Only files that this program names are
counted or removed, and no link is followed.
"""

from __future__ import annotations

import os
import re
import shutil
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness.files import cache_dir
from harness.unfinished import is_unfinished

KINDS: Mapping[str, str] = {
    "features": "what models make of rows",
    "statistics": "what methods ask of an expert's data",
    "digests": "what the tensors of files hash to",
    "lists": "what is registered",
    "times": "how long steps of studies took",
}
"""Every kind of entry, which is a folder of the cache, and what it is."""
LARGE = ("features", "statistics")
"""Kinds that would fill a disk: of these what was used last stays."""
MOST, SPARE = 20.0, 0.05
"""GB of these at most, unless HARNESS_CACHE_GB says otherwise; the part of a disk that they leave
free."""
DAY = 24 * 60 * 60
_ENTRY = re.compile(r"[0-9a-f]{32}\.(safetensors|jsonl?)")


@dataclass(frozen=True)
class CachedFile:
    """A file of the cache, of which kind, its bytes, and how many days ago it was used last."""

    kind: str
    path: Path
    bytes: int
    age: float


def entries() -> Iterator[CachedFile]:
    """All entries by kind, with what killed runs left: a partial file of a day ago or more."""
    for kind in KINDS:
        folder = cache_dir(kind)
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            partial = is_unfinished(path)
            if not (partial or _ENTRY.fullmatch(path.name)) or path.is_symlink():
                continue
            try:
                status = path.stat()
            except FileNotFoundError:  # another run has put it in its place, or taken it away
                continue
            age = (time.time() - status.st_mtime) / DAY
            if not partial or age >= 1:
                yield CachedFile(kind, path, status.st_size, age)


def cleared(older_than: float = 0) -> list[CachedFile]:
    """Remove all entries that were used last so many days ago or more, and return them."""
    gone = [entry for entry in entries() if entry.age >= older_than]
    for entry in gone:
        entry.path.unlink(missing_ok=True)
    return gone


def make_room() -> None:
    """Remove what was used longest ago of the large kinds until they are within their limit."""
    kept = sorted((one for one in entries() if one.kind in LARGE), key=lambda one: -one.age)
    if not kept:
        return
    held, disk = sum(one.bytes for one in kept), shutil.disk_usage(cache_dir(""))
    most = min(1e9 * limit(), held + disk.free - SPARE * disk.total)
    if held <= most:
        return
    for one in kept:
        if held <= _KEPT * most:
            break
        one.path.unlink(missing_ok=True)
        held -= one.bytes


_KEPT = 0.9
"""Of the limit, once it is reached: not every entry after it takes one away."""


def limit() -> float:
    """GB that the large kinds may have in all. Warns of a HARNESS_CACHE_GB that is no number."""
    said = os.environ.get("HARNESS_CACHE_GB", "")
    with suppress(ValueError):
        if (most := float(said or MOST)) >= 0:  # which nan is not
            return most
    warnings.warn(
        f"HARNESS_CACHE_GB is {said!r}, expected a number; {MOST:.0f} is taken", stacklevel=2
    )
    return MOST
