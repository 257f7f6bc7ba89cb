"""What is kept of earlier runs, by what it is: how much of it there is, and taking it away.

Nothing in a cache is needed: what is gone is made again. Only files that this program names are
counted or removed, and no link is followed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
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
DAY = 24 * 60 * 60
_ENTRY = re.compile(r"[0-9a-f]{32}\.(safetensors|jsonl?)")


@dataclass(frozen=True)
class CachedFile:
    """A file of the cache, of which kind, its bytes, and how many days ago it was written."""

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
    """Remove all entries that were written so many days ago or more, and return them."""
    gone = [entry for entry in entries() if entry.age >= older_than]
    for entry in gone:
        entry.path.unlink(missing_ok=True)
    return gone
