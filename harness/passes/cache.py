"""Shell: tensors in a file with a description and a seal, a hash that reveals damage.

The cache only saves time: what is missing or damaged is computed again, and where nothing can be
written nothing is kept. safetensors checks the header of a file against its size, and such a file
holds nothing that could be unpickled or run.
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
from harness.checkpoints.stream import write_file
from harness.checkpoints.weight_files import open_file
from harness.errors import BrokenCheckpoint, CannotWrite
from harness.files import parse_json, replacing
from harness.hashes import digest_of, join_digests
from harness.types import StateDict, Steps

KEY = "merging-harness"
"""The key of a file's description in its metadata, one JSON object: safetensors writes several keys
in another order every time."""
SEAL = "seal"
"""The key, in the description, of a hash of all tensors and of the rest of the description."""
ENTRY = "entry"
"""The key of a cache entry's own name: an entry under another file name is not used."""


def seal(tensors: StateDict, description: Mapping[str, Any]) -> str:
    """A hash of tensors and of their description, except for the seal itself."""
    parts = {f"tensor {name}": weights.tensor_digest(name, tensors[name]) for name in tensors}
    rest = {key: description[key] for key in description if key != SEAL}
    return join_digests({**parts, "said": digest_of(rest)})


def write_sealed(path: Path, tensors: StateDict, description: Mapping[str, Any]) -> None:
    """Write tensors and their description, completely or not at all. Raises CannotWrite."""
    whole = {name: tensors[name].contiguous() for name in tensors}
    text = json.dumps({**description, SEAL: seal(whole, description)}, sort_keys=True)
    with replacing(path) as file:
        # safetensors itself would replace this file, which is locked and synced, by another
        write_file(Path(file.name), whole, lambda _: None, str(path), {KEY: text})


def read_sealed(path: Path) -> tuple[StateDict, dict[str, Any]]:
    """The tensors of a file, lazily, and their description; the seal is not checked.

    Raises BrokenCheckpoint, naming the file.
    """
    tensors = open_file(path)
    with safe_open(path, framework="pt") as file:
        text = (file.metadata() or {}).get(KEY, "{}")
    return tensors, parse_json(text, str(path), "a file with a description of its tensors")


def is_whole(tensors: StateDict, description: Mapping[str, Any]) -> bool:
    """Whether tensors and description are as they were written; reads every tensor."""
    return description.get(SEAL) == seal(tensors, description)


def keep(path: Path, tensors: Mapping[str, torch.Tensor], description: Mapping[str, Any]) -> bool:
    """Write a cache entry; returns whether that was possible, and warns if not."""
    global _written
    if _written is None or _written > BYTES_BETWEEN_CHECKS:
        make_room()
        _written = 0
    _written += sum(tensor.nbytes for tensor in tensors.values())
    try:
        write_sealed(path, tensors, {**description, ENTRY: path.stem})
    except CannotWrite as error:
        cause = error.__cause__
        reason = (cause.strerror if isinstance(cause, OSError) else None) or str(cause)
        _warn_once(
            f"the cache {path.parent} cannot be written ({reason}): nothing is kept there; set "
            "HARNESS_CACHE_DIR to another folder"
        )
        return False
    return True


BYTES_BETWEEN_CHECKS = 2**30
"""Bytes written after which a process checks again whether the cache is within its limit."""
_written: int | None = None
"""Bytes written since the last check; None before the first one."""


@cache
def _warn_once(message: str) -> None:
    """Warn once per process; Python itself forgets what it warned of when a filter changes."""
    warnings.warn(message, stacklevel=3)


def recall(path: Path) -> tuple[StateDict, dict[str, Any]] | None:
    """A cache entry as it was written; None if it is missing or damaged."""
    try:
        tensors, description = read_sealed(path)
    except BrokenCheckpoint:
        return None
    if description.get(ENTRY) != path.stem or not is_whole(tensors, description):
        return None
    with suppress(OSError):  # another user's file, or gone by now
        os.utime(path)
    return tensors, description


CachedTensors: TypeAlias = tuple[StateDict, Mapping[str, Any]]
"""Tensors, and their description."""


def recall_or_make(
    path: Path, make: Callable[[], CachedTensors], step: Steps | None, rows: int
) -> CachedTensors:
    """What a cache entry holds, else what `make` returns, read back from disk if it could be kept.

    If `make` is not called, `step` is called with all `rows`, as `make` would have done.
    """
    if (entry := recall(path)) is not None:
        if step:
            step(rows)
        return entry
    result = make()
    return (recall(path) if keep(path, *result) else None) or result
