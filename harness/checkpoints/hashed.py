"""Shell: digests of the tensors in a file, computed once and cached from run to run.

A file is identified by its path, size, device, inode, mtime and ctime. One of them differs after
any write of another program, a copy, or a replacement; ctime differs also when somebody sets the
others back. Two things are trusted: that the clocks of this machine and of the file system agree
within two seconds, and that only trusted users can write into the cache folder. As in git, nothing
is cached of a file that was changed within two seconds of being hashed: a second write in the same
tick of the clock would not show.
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

MIN_AGE_NS = 2 * 10**9
"""Nanoseconds for which a file must have been unchanged: a tick of the coarsest clocks."""


class Identity(NamedTuple):
    """What distinguishes a file from every other, and from itself after a change."""

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
    """The digests of an open file's tensors, each computed once while the file is unchanged.

    Called with {name that is hashed: name in the file}. A tensor that is not finite has no digest,
    and none has in a file that was changed since it was opened.
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
            self._known = cached_digests(now)
        digests = {own: dict(self._known.get(own, {})) for own in names.values()}
        trusted = time.time_ns() - max(now.modified, now.changed) >= MIN_AGE_NS
        missing = {name: own for name, own in names.items() if name not in digests[own]}
        for name, own in missing.items():
            with suppress(BrokenCheckpoint):  # whoever reads it raises
                digests[own][name] = finite_digest(name, self._read(own), "")
        if missing:
            if identity_of(self._path) != now:
                return {}
            self._known |= digests
            if trusted:
                cache_digests(now, self._known)
        return {name: digests[own][name] for name, own in names.items() if name in digests[own]}


def _place(identity: Identity) -> Path:
    """The cache file for a path: a changed file replaces its former entry."""
    return cache_dir("digests") / f"{xxhash.xxh3_128_hexdigest(os.fsencode(identity.path))}.json"


def _sealed(identity: Identity, tensors: object) -> dict[str, Any]:
    """The cache entry of a file, with a checksum. Its path, which may be no text, is hashed."""
    content = {"file": [_place(identity).stem, *identity[1:]], "tensors": tensors}
    return {**content, "seal": digest_of(["digests of tensors", content])}


def cache_digests(identity: Identity, tensors: Mapping[str, Mapping[str, str]]) -> None:
    """Cache digests of tensors, {name in the file: {name that is hashed: digest}}, if possible."""
    with suppress(CannotWrite):
        write_json(_place(identity), _sealed(identity, tensors), indent=0)


def cached_digests(identity: Identity) -> dict[str, dict[str, str]]:
    """The cached digests of a file; empty if the file has changed or the entry is damaged."""
    try:
        entry = read_json(_place(identity), "digests of tensors")
    except BrokenCheckpoint:
        return {}
    digests: dict[str, dict[str, str]] = entry.get("tensors", {})
    return digests if entry == _sealed(identity, digests) else {}
