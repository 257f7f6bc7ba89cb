"""Shell: a lazy state dict -> a safetensors file, with two tensors in memory at a time.

The library needs all tensors at once. Here one tensor is hashed and written while the next is
computed; the bytes are those that the library would write.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType

import torch
import xxhash

from harness import weights
from harness.checkpoints.weight_files import DTYPES
from harness.errors import IncompatibleWeights, NotFinite
from harness.types import StateDict, Steps

FORMAT = {"format": "pt"}
"""The metadata of a file of weights."""
CODES = {dtype: code for code, dtype in DTYPES.items()}


def write_file(
    path: Path,
    state: StateDict,
    step: Steps,
    what: str = "the merge",
    metadata: Mapping[str, str] = FORMAT,
    spelled: Mapping[str, str] = MappingProxyType({}),
    transposed: Collection[str] = (),
) -> tuple[dict[str, str], str]:
    """Write every tensor of a state to a new file, which is hashed meanwhile.

    Returns the digests of tensors by name, and the hash of the file's bytes (`files.file_hash`).

    `step` is called with 1 for each tensor that was computed. `spelled` has the names in the file
    of tensors that have another name in the state. The matrices in `transposed` are so in the file,
    but not in their digests. Raises NotFinite, naming `what`, for NaN and
    infinite entries, which could not be read back; IncompatibleWeights for a tensor of a type that
    is not read, or that is not what the state's specs say; and OSError where the disk is full.
    """
    specs = weights.specs(state)
    codes = list(DTYPES)
    for name, spec in specs.items():
        if spec.dtype not in CODES:
            raise IncompatibleWeights(f"'{name}' is {spec.dtype}, expected {', '.join(codes)}")
    stored = {name: spelled.get(name, name) for name in specs}
    names = sorted(specs, key=lambda name: (codes.index(CODES[specs[name].dtype]), stored[name]))
    digests: dict[str, str] = {}
    whole = xxhash.xxh3_128()
    with path.open("wb") as file, ThreadPoolExecutor(1) as pool:

        def add(content: bytes | memoryview) -> None:
            whole.update(content)
            file.write(content)

        def put(name: str, tensor: torch.Tensor) -> None:
            try:
                digests[name] = weights.finite_digest(name, tensor, what, NotFinite)
            except NotFinite as error:
                if tensor.dtype is not torch.float16:
                    raise
                raise NotFinite(
                    f"{error}: float16 holds {torch.finfo(torch.float16).max:.0f} at most; save "
                    "an expert in float32 or bfloat16, and the merge is written in a wider type"
                ) from None
            add(weights.flat_bytes(tensor.T.contiguous() if name in transposed else tensor))

        laid_out = {n: weights.Spec(specs[n].shape[::-1], specs[n].dtype) for n in transposed}
        header = _header({stored[n]: laid_out.get(n, specs[n]) for n in names}, metadata)
        pending = pool.submit(add, header)
        for name in names:
            tensor = state[name].contiguous()
            computed = weights.Spec(tuple(tensor.shape), tensor.dtype)
            if computed != specs[name]:
                raise IncompatibleWeights(
                    f"'{name}' was computed as {computed}, expected {specs[name]}"
                )
            pending.result()
            if tensor.numel() < weights.piece_size():  # a thread would take longer
                put(name, tensor)
            else:
                pending = pool.submit(put, name, tensor)
            step(1)
        pending.result()
    return digests, whole.hexdigest()


def _header(specs: Mapping[str, weights.Spec], metadata: Mapping[str, str]) -> bytes:
    """Eight bytes of length, and the names, types, shapes and offsets of all tensors as JSON."""
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, spec in specs.items():
        start, end = end, end + spec.bytes
        entry = {"dtype": CODES[spec.dtype], "shape": spec.shape, "data_offsets": (start, end)}
        header[name] = entry
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
