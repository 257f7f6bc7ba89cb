"""Hashes of tensors, and a check that they are finite."""

from __future__ import annotations

from functools import partial

import torch
import xxhash

from harness.errors import BrokenCheckpoint, HarnessError
from harness.hashes import join_digests
from harness.types import StateDict
from harness.weights.lazy import Lazy, known_digests, specs


def tensor_digest(name: str, tensor: torch.Tensor) -> str:
    """A hash of a tensor's name, type, shape and bytes."""
    state = xxhash.xxh3_128(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
    state.update(flat_bytes(tensor))
    return str(state.hexdigest())


def finite_digest(
    name: str, tensor: torch.Tensor, where: str, error: type[HarnessError] = BrokenCheckpoint
) -> str:
    """The `tensor_digest` of a tensor. Raises the error of `check_finite`."""
    check_finite(name, tensor, where, error)
    return tensor_digest(name, tensor)


def flat_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a tensor in order, without a copy where it is contiguous and on a processor."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data


def digest(state: StateDict) -> str:
    """A hash of all tensors, whatever their order and their distribution over files."""
    known = known_digests(state, {name: name for name in state})
    return join_digests({n: known.get(n) or tensor_digest(n, state[n]) for n in state})


def check_finite(
    name: str, tensor: torch.Tensor, where: str, error: type[HarnessError] = BrokenCheckpoint
) -> None:
    """Raise the error, naming the tensor, if an entry is NaN or infinite."""
    # first a sum, in half the time: it is NaN or infinite if an entry is, or if it overflows
    if tensor.is_floating_point() and not torch.isfinite(tensor.sum(dtype=torch.float32)):
        low, high = torch.aminmax(tensor)
        if not (torch.isfinite(low) and torch.isfinite(high)):
            kind = "NaN" if torch.isnan(low) or torch.isnan(high) else "infinite"
            raise error(f"'{name}' of {where} has {kind} entries, expected finite numbers")


class Observed(Lazy):
    """A state dict that checks and hashes every tensor the first time it is read."""

    def __init__(self, state: StateDict, source: str) -> None:
        super().__init__(specs(state), self._read, digests=partial(known_digests, state))
        self._state, self._source = state, source
        self._digests: dict[str, str] = {}

    def _read(self, name: str) -> torch.Tensor:
        tensor = self._state[name]
        if name not in self._digests:
            self._digests[name] = finite_digest(name, tensor, self._source)
        return tensor

    def digest(self) -> str:
        """The digest of all tensors; reads those that are unread and have no known digest."""
        unread = {name: name for name in self._state if name not in self._digests}
        self._digests |= known_digests(self._state, unread)
        for name in unread.keys() - self._digests.keys():
            self[name]
        return join_digests(self._digests)
