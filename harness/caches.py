"""The cache of earlier runs: its entries by kind, their sizes, and removing them.

Entries that are removed are computed again when needed. Only files with names that this program
gives are counted or removed, and no link is followed.
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
"""Every kind of entry, by its folder in the cache, with a description."""
LARGE = ("features", "statistics")
"""Kinds that would fill a disk: together they are limited, and the most recently used stay."""
LIMIT_GB, FREE_SHARE = 20.0, 0.05
"""The limit of the large kinds in GB, unless HARNESS_CACHE_GB sets it; the share of the disk that
they leave free."""
DAY = 24 * 60 * 60
_ENTRY = re.compile(r"[0-9a-f]{32}\.(safetensors|jsonl?)")


@dataclass(frozen=True)
class CachedFile:
    """A file of the cache: its kind, its bytes, and its age in days since it was last used."""

    kind: str
    path: Path
    bytes: int
    age: float


def entries() -> Iterator[CachedFile]:
    """All entries, kind by kind, and the partial files that killed runs left, once a day old."""
    for kind in KINDS:
        folder = cache_dir(kind)
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            partial = is_unfinished(path)
            if not (partial or _ENTRY.fullmatch(path.name)) or path.is_symlink():
                continue
            try:
                status = path.stat()
            except FileNotFoundError:  # another run has finished or removed it
                continue
            age = (time.time() - status.st_mtime) / DAY
            if not partial or age >= 1:
                yield CachedFile(kind, path, status.st_size, age)


def cleared(older_than: float = 0) -> list[CachedFile]:
    """Remove and return all entries that were last used `older_than` days ago or earlier."""
    removed = [entry for entry in entries() if entry.age >= older_than]
    for entry in removed:
        entry.path.unlink(missing_ok=True)
    return removed


def make_room() -> None:
    """Remove the least recently used entries of the large kinds if these exceed their limit."""
    large = sorted((file for file in entries() if file.kind in LARGE), key=lambda file: -file.age)
    if not large:
        return
    size, disk = sum(file.bytes for file in large), shutil.disk_usage(cache_dir(""))
    most = min(1e9 * limit(), size + disk.free - FREE_SHARE * disk.total)
    if size <= most:
        return
    for file in large:
        if size <= _KEPT * most:
            break
        file.path.unlink(missing_ok=True)
        size -= file.bytes


_KEPT = 0.9
"""The share of the limit that is kept once it is exceeded, so that not every new entry removes
one."""


def limit() -> float:
    """The limit of the large kinds together, in GB. Warns if HARNESS_CACHE_GB is not a number."""
    text = os.environ.get("HARNESS_CACHE_GB", "")
    with suppress(ValueError):
        if (most := float(text or LIMIT_GB)) >= 0:  # false for nan
            return most
    warnings.warn(
        f"HARNESS_CACHE_GB is {text!r}, expected a number of at least 0; {LIMIT_GB:.0f} is used",
        stacklevel=2,
    )
    return LIMIT_GB
