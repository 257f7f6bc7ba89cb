"""Shell: tensors kept in a file with a seal, by which damage is noticed.

A cache is read where nothing but speed is at stake: what is missing or damaged is made again, and
where nothing can be written nothing is kept. The library checks the header of a file against its
size, and there is nothing in it that could be unpacked or run.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors import safe_open

from harness import weights
from harness.caches import make_room
from harness.checkpoints.open import open_file
from harness.checkpoints.stream import write_file
from harness.errors import BrokenCheckpoint, CannotWrite
from harness.files import parse_json, replacing
from harness.hashes import digest_of, join_digests
from harness.types import StateDict, Steps

KEY = "merging-harness"
"""Where a file's own description stands in its metadata, as one JSON object: the library writes
several in another order every time."""
SEAL = "seal"
"""Where the description has the hash of all tensors and of all else in it."""
ENTRY = "entry"
"""Where an entry of a cache says which it is: one that lies in another's place is none."""


def seal(tensors: StateDict, said: Mapping[str, Any]) -> str:
    """A hash of tensors and of what is said of them, but for the seal itself."""
    parts = {f"tensor {name}": weights.tensor_digest(name, tensors[name]) for name in tensors}
    own = {key: said[key] for key in said if key != SEAL}
    return join_digests({**parts, "said": digest_of(own)})


def write_sealed(path: Path, tensors: StateDict, said: Mapping[str, Any]) -> None:
    """Write tensors and what is said of them, whole or not at all. Raises CannotWrite."""
    whole = {name: tensors[name].contiguous() for name in tensors}
    text = json.dumps({**said, SEAL: seal(whole, said)}, sort_keys=True)
    with replacing(path) as file:
        # the library would put another file in the place of this one, which is locked and synced
        write_file(Path(file.name), whole, lambda _: None, str(path), {KEY: text})


def read_sealed(path: Path) -> tuple[StateDict, dict[str, Any]]:
    """The tensors of a file, lazily, and what is said of them; the seal is not looked at.

    Raises BrokenCheckpoint, naming the file.
    """
    tensors = open_file(path)
    with safe_open(path, framework="pt") as file:
        text = (file.metadata() or {}).get(KEY, "{}")
    return tensors, parse_json(text, str(path), "a file with a description of its tensors")


def is_whole(tensors: StateDict, said: Mapping[str, Any]) -> bool:
    """Whether what was read is what was written; every tensor is read."""
    return said.get(SEAL) == seal(tensors, said)


def keep(path: Path, tensors: Mapping[str, torch.Tensor], said: Mapping[str, Any]) -> bool:
    """Write an entry of a cache; whether that was possible. Where it is not, a warning says so."""
    global _written
    if _written is None or _written > OFTEN:
        make_room()
        _written = 0
    _written += sum(one.nbytes for one in tensors.values())
    try:
        write_sealed(path, tensors, {**said, ENTRY: path.stem})
    except CannotWrite as error:
        cause = error.__cause__
        reason = (cause.strerror if isinstance(cause, OSError) else None) or str(cause)
        _warn_once(
            f"{path.parent} cannot be written ({reason}): nothing is kept; see HARNESS_CACHE_DIR"
        )
        return False
    return True


OFTEN = 2**30
"""Bytes after which a process looks again whether the cache is within its limit."""
_written: int | None = None


@cache
def _warn_once(message: str) -> None:
    """Warn of the same thing once in a process; Python forgets it when a filter changes."""
    warnings.warn(message, stacklevel=3)


def recall(path: Path) -> tuple[StateDict, dict[str, Any]] | None:
    """An entry of a cache as it was written; None where there is none, or a damaged one."""
    try:
        tensors, said = read_sealed(path)
    except BrokenCheckpoint:
        return None
    if said.get(ENTRY) != path.stem or not is_whole(tensors, said):
        return None
    with suppress(OSError):  # of somebody else, or gone by now
        os.utime(path)
    return tensors, said


CachedTensors: TypeAlias = tuple[StateDict, Mapping[str, Any]]
"""Tensors, and what is said of them."""


def obtained(
    path: Path, make: Callable[[], CachedTensors], step: Steps | None, rows: int
) -> CachedTensors:
    """What an entry of a cache holds, else what is made now, from disk where it could be kept.

    A `step` is told that the rows which `make` would tell of are done, where it is not called.
    """
    if (entry := recall(path)) is not None:
        if step:
            step(rows)
        return entry
    made = make()
    return (recall(path) if keep(path, *made) else None) or made
