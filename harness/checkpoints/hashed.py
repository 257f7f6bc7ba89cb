"""Shell: digests of the tensors in a file, computed once and remembered from run to run.

A file is known by its place, size, inode and times of change. One of them differs after any write
of another program, a copy, or a file put in its place; the time of the last change of the inode,
too, when somebody sets the others back. Two things are trusted: that the clocks of this machine and
of the file system agree within two seconds, and that nobody writes into the cache folder who may
not say what weights hash to. As in git, nothing is remembered of a file that was changed within
two seconds of being hashed: a second write in the same tick of the clock would not show.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
import xxhash

from harness.errors import BrokenCheckpoint, CannotWrite
from harness.files import cache_dir, read_json, write_json
from harness.hashes import digest_of
from harness.weights import finite_digest

RACY = 2 * 10**9
"""Nanoseconds that a file must have been left alone for: the coarsest clocks tick that slowly."""


class Identity(NamedTuple):
    """What tells a file from every other, and from itself after a change."""

    path: str
    size: int
    modified: int
    changed: int
    inode: int
    device: int


def identity_of(path: Path) -> Identity | None:
    """The identity of a file, links followed; None where there is none."""
    try:
        place = path.resolve(strict=True)
        status = place.stat()
    except (OSError, RuntimeError, ValueError):  # a link to itself; a name with a zero byte
        return None
    times = status.st_mtime_ns, status.st_ctime_ns
    return Identity(str(place), status.st_size, *times, status.st_ino, status.st_dev)


class Hashed:
    """The digests of an open file's tensors, each computed once while the file is as it was.

    Called with names of the file by what a digest calls them; what is not finite has none, and
    nothing has in a file that was changed since it was opened.
    """

    def __init__(
        self, path: Path, identity: Identity | None, read: Callable[[str], torch.Tensor]
    ) -> None:
        self._path, self._identity, self._read = path, identity, read
        self._known: dict[str, dict[str, str]] | None = None

    def __call__(self, names: Mapping[str, str]) -> dict[str, str]:
        now = identity_of(self._path)
        if now is None or now != self._identity:
            return {}
        if self._known is None:
            self._known = recall(now)
        known = {own: dict(self._known.get(own, {})) for own in names.values()}
        trusted = time.time_ns() - max(now.modified, now.changed) >= RACY
        missing = {called: own for called, own in names.items() if called not in known[own]}
        for called, own in missing.items():
            with suppress(BrokenCheckpoint):  # whoever reads it says where
                known[own][called] = finite_digest(called, self._read(own), "")
        if missing:
            if identity_of(self._path) != now:
                return {}
            self._known |= known
            if trusted:
                remember(now, self._known)
        return {called: known[own][called] for called, own in names.items() if called in known[own]}


def _place(identity: Identity) -> Path:
    """One place for each path, so that what was known of a file goes when it changes."""
    return cache_dir("digests") / f"{xxhash.xxh3_128_hexdigest(os.fsencode(identity.path))}.json"


def _sealed(identity: Identity, tensors: object) -> dict[str, Any]:
    """What is kept of a file; a path need not be text, so its hash, the name, stands for it."""
    said = {"file": [_place(identity).stem, *identity[1:]], "tensors": tensors}
    return {**said, "seal": digest_of(["digests of tensors", said])}


def remember(identity: Identity, tensors: Mapping[str, Mapping[str, str]]) -> None:
    """Keep the digests of a file's tensors, by name and what they are called; or do without."""
    with suppress(CannotWrite):
        write_json(_place(identity), _sealed(identity, tensors), indent=0)


def recall(identity: Identity) -> dict[str, dict[str, str]]:
    """What was kept of a file; nothing of one that has changed, or where the memory is damaged."""
    try:
        said = read_json(_place(identity), "digests of tensors")
    except BrokenCheckpoint:
        return {}
    known: dict[str, dict[str, str]] = said.get("tensors", {})
    return known if said == _sealed(identity, known) else {}
