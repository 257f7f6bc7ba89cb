"""Gram matrices of layers behind the already merged blocks of a model, computed as it is merged.

The input of a layer depends on all blocks merged before it, and how these are merged depends on
their Gram matrices. So the merged model is a lazy state dict whose tensors are read block by block;
each block's matrices are cached by the content of all blocks before it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from threading import RLock

import torch

from harness import weights
from harness.errors import NotFinite
from harness.passes.blocks import Blocks, TruncatedModel, blocks_of
from harness.passes.cache import CachedTensors, recall_or_make
from harness.passes.gram import gram_shapes
from harness.passes.reading import Readings
from harness.types import StateDict

NEED_NAME = "gram_through"
"""The name of the matrices in cache keys and progress: that of the need they are made for."""
SHARED = "shared"
"""The key, in a cache entry, of the weights that share the matrix of another weight."""


@dataclass
class LayerwiseGram:
    """All experts, each on its own rows, behind the blocks of one merged model.

    `wanted` are the blocks with weights that are merged and have matrices. Models are made when the
    first matrix is asked for that is not in the cache; models and rows are freed after the last
    wanted block.
    """

    readings: Readings
    batch_size: int
    blocks: Blocks
    merged: StateDict
    wanted: Collection[int]
    _grams: dict[int, list[StateDict]] = field(default_factory=dict, init=False)
    _digests: list[str] = field(default_factory=list, init=False)
    _last: tuple[int, StateDict] | None = field(default=None, init=False)
    _experts: list[TruncatedModel] = field(default_factory=list, init=False)
    _lock: RLock = field(default_factory=RLock, init=False)

    def gram(self, place: int, name: str) -> torch.Tensor | None:
        """The matrix of one expert's weight, [in, in]; None if no row reaches the layer."""
        with self._lock:
            block = self.blocks.block_number(name)
            if block not in self._grams:
                self._grams[block] = self._obtained(block)
            return self._grams[block][place].get(name)

    def _obtained(self, block: int) -> list[StateDict]:
        """For every expert the matrices of a block, from the cache or by a run through it."""
        for before in range(len(self._digests), block):
            tensors = self._merged(before)
            digests = {name: weights.tensor_digest(name, tensors[name]) for name in tensors}
            self._digests.append(weights.join_digests(digests))
        grams = [self._of(place, block) for place in range(len(self.readings))]
        if block == max(self.wanted):
            self._experts, self._last = [], None
        return grams

    def _merged(self, block: int) -> StateDict:
        """The merged weights of a block, all computed; those of the latest block are kept."""
        if self._last is None or self._last[0] != block:
            names = [name for name in self.merged if self.blocks.block_number(name) == block]
            self._last = block, {name: self.merged[name] for name in names}
        return self._last[1]

    def _of(self, place: int, block: int) -> StateDict:
        """The matrices of a block for one expert. Raises NotFinite for NaN or Inf."""
        reading, digest = self.readings.of(place), self.readings.digests[place]
        path = reading.entry(digest, NEED_NAME, self.batch_size, block, self._digests[:block])
        expert = reading.checkpoint
        rows = len(reading.rows)
        step = self.readings.steps(f"{NEED_NAME} of {expert.name}", rows * len(self.wanted))

        def computed() -> CachedTensors:
            stored, shared = self._at(block)[place].gram(step)
            whose = f"the Gram matrices of {expert.source}"
            for name, tensor in stored.items():
                weights.check_finite(name, tensor, whose, NotFinite)
            return stored, {SHARED: dict(shared)}

        stored, description = recall_or_make(path, computed, step, rows)
        return weights.renamed(stored, {**{name: name for name in stored}, **description[SHARED]})

    def _at(self, block: int) -> list[TruncatedModel]:
        """All experts, advanced to this block: the blocks before it have the merged weights."""
        if not self._experts:
            readings = map(self.readings.of, range(len(self.readings)))
            self._experts = [
                TruncatedModel(reading, self.blocks, self.batch_size) for reading in readings
            ]
        for before in range(self._experts[0].block, block):
            tensors = self._merged(before)
            for expert in self._experts:
                expert.pass_on(tensors)
        return self._experts


def layerwise(readings: Readings, batch_size: int) -> Callable[[int, StateDict], StateDict]:
    """A function from an expert's place and a merged model to lazy Gram matrices: of the expert's
    linear layers, behind the blocks of the merged model.

    The matrix of a layer that no row reaches is zero. Those for the latest merged model are kept.
    """
    blocks, latest = blocks_of(readings.checkpoints[0]), list[LayerwiseGram]()

    def through(place: int, merged: StateDict) -> StateDict:
        specs = gram_shapes(readings.checkpoints[place])
        if not latest or latest[0].merged is not merged:
            wanted = {blocks.block_number(name) for name in specs if name in merged}
            latest[:] = [LayerwiseGram(readings, batch_size, blocks, merged, wanted)]
        (grams,) = latest

        def read(name: str) -> torch.Tensor:
            gram = grams.gram(place, name)
            return torch.zeros(specs[name].shape, dtype=torch.float64) if gram is None else gram

        return weights.Lazy(specs, read)

    return through
