"""Shell: the weights in a folder -> a lazy state dict, under the names in the files."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from safetensors import SafetensorError, safe_open

from harness.checkpoints.hashed import Hashed, identity_of
from harness.checkpoints.layout import PICKLES, SHARD_INDEX, WEIGHTS_FILE, files_in
from harness.errors import BrokenCheckpoint
from harness.files import read_json
from harness.types import StateDict
from harness.weights import Lazy, Spec, renamed, specs, union

DTYPES = {
    "I64": torch.int64,
    "F64": torch.float64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""torch's types by safetensors' names, in the order in which it lays tensors out in a file."""
POINTER = b"version https://git-lfs"
"""The first bytes of a file that git-lfs has not fetched: a pointer."""

LEFT_OVER = re.compile(r"\.masked_bias$|\.rotary_emb\.inv_freq$")
"""Constants that older releases of transformers wrote, and that newer ones ignore, like a causal
mask: a `bias` of four dimensions (GPT-2, GPT-NeoX, Llama)."""


def open_weights(path: Path, *, allow_pickle: bool = False) -> StateDict:
    """The lazy state dict of a folder: one safetensors file, or shards with their index; or a
    pickle, with `allow_pickle`."""
    if (path / WEIGHTS_FILE).is_file():
        return open_file(path / WEIGHTS_FILE)
    if (path / SHARD_INDEX).is_file():
        return _open_shards(path)
    pickles = files_in(path, PICKLES)
    if pickles and allow_pickle:
        return _open_pickle(path / pickles[0])
    if pickles:
        raise BrokenCheckpoint(
            f"{path} holds a pickle ({pickles[0]}), which can run code when read; expected "
            f"{WEIGHTS_FILE}: convert it, or read its tensors only with --allow-pickle"
        )
    raise BrokenCheckpoint(f"{path} holds no weights; expected {WEIGHTS_FILE} or {SHARD_INDEX}")


def _open_shards(path: Path) -> StateDict:
    """The state dict of all shards that the index names.

    As in transformers, tensors that the index does not list are read too, and of two tensors of one
    name that in the last shard. Raises BrokenCheckpoint where the index says otherwise.
    """
    shard_of = read_json(path / SHARD_INDEX, "a shard index").get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        raise BrokenCheckpoint(
            f"{path / SHARD_INDEX} has no weight_map, expected a shard for each name"
        )
    for shard in shard_of.values():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise BrokenCheckpoint(
                f"{path / SHARD_INDEX} names the shard {shard!r:.80}, expected a file beside it"
            )
    parts = {shard: _open_plain(path / shard) for shard in sorted(set(shard_of.values()))}
    for name, shard in shard_of.items():
        if name not in parts[shard]:
            raise BrokenCheckpoint(
                f"{path / shard} has no tensor '{name}', which {SHARD_INDEX} lists; expected an "
                "index of these shards"
            )
    last = {name: shard for shard, part in parts.items() for name in part}
    for shard, part in parts.items():
        for name in part:
            if last[name] != shard and shard_of.get(name) != last[name]:
                raise BrokenCheckpoint(
                    f"'{name}' is in {shard} and in {last[name]} of {path}, and {SHARD_INDEX} "
                    f"lists {shard_of.get(name, 'neither')}; expected each tensor in one shard"
                )
    return _modern(union(*reversed(parts.values())), path)


def open_file(path: Path) -> StateDict:
    """The lazy state dict of one safetensors file. Raises BrokenCheckpoint, naming it."""
    return _modern(_open_plain(path), path)


def _open_plain(path: Path) -> StateDict:
    """The lazy state dict of one safetensors file, under the names in the file."""
    if os.path.exists(path) and not path.is_file():  # opening a pipe would block
        raise BrokenCheckpoint(f"{path} is no file, expected a safetensors file")
    identity = identity_of(path)  # taken before opening, so that any later change shows
    try:
        handle: Any = safe_open(path, framework="pt")
        headers = {}
        names = handle.keys()
        for name in names:
            part = handle.get_slice(name)
            dtype = part.get_dtype()
            if dtype not in DTYPES:
                raise BrokenCheckpoint(f"'{name}' of {path} is {dtype}, expected float or integer")
            headers[name] = Spec(tuple(part.get_shape()), DTYPES[dtype])
    except FileNotFoundError:
        raise BrokenCheckpoint(f"{path} is missing; expected a safetensors file") from None
    except (SafetensorError, OSError, MemoryError) as error:  # MemoryError: it is mapped whole
        start = b""
        with suppress(OSError), path.open("rb") as file:
            start = file.read(len(POINTER))
        if start == POINTER:
            raise BrokenCheckpoint(
                f"{path} is a pointer of git-lfs, expected the file itself: git lfs pull"
            ) from error
        raise BrokenCheckpoint(
            f"{path} cannot be read as safetensors ({error}); expected a whole file: copy it again"
        ) from error
    return Lazy(headers, handle.get_tensor, digests=Hashed(path, identity, handle.get_tensor))


def _open_pickle(path: Path) -> StateDict:
    if path.suffix == ".json":
        raise BrokenCheckpoint(f"{path}: sharded pickles are not read; convert to safetensors")
    try:
        mapped = is_zipfile(path)  # torch below 1.6 wrote another format
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # torch raises many types for a broken or unsafe pickle
        raise BrokenCheckpoint(
            f"{path} cannot be read as a pickle of weights alone: {error}"
        ) from error
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(tensor, torch.Tensor) for name, tensor in state.items()
    ):
        raise BrokenCheckpoint(
            f"{path} holds something other than tensors by name, expected a state dict"
        )
    return _modern({name: tensor.detach() for name, tensor in state.items()}, path)


def _modern(state: StateDict, path: Path) -> StateDict:
    """The state with `LayerNorm.gamma` and `.beta`, TensorFlow's names, as weight and bias, and
    without what `LEFT_OVER` names."""
    names: dict[str, str] = {}
    for name, spec in specs(state).items():
        if LEFT_OVER.search(name) or (name.endswith(".bias") and len(spec.shape) == 4):
            continue
        new = name.replace("LayerNorm.gamma", "LayerNorm.weight")
        new = new.replace("LayerNorm.beta", "LayerNorm.bias")
        if new in names:
            raise two_names_error(path, name, names[new])
        names[new] = name
    return renamed(state, names)


def two_names_error(where: object, name: str, other: str) -> BrokenCheckpoint:
    """The error for a tensor that a file has under two names."""
    return BrokenCheckpoint(
        f"{where} has '{name}' and '{other}', two names of one tensor; expected one of them"
    )
