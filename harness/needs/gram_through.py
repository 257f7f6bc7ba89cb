"""Gram matrices of inputs that come through merged layers, for RegMean++."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from harness.needs.gram import toy_grams
from harness.options import Count
from harness.passes.layerwise import layerwise
from harness.passes.reading import Readings
from harness.registry import need
from harness.types import StateDict

Through: TypeAlias = Callable[[StateDict], StateDict]
"""From the merged model to the Gram matrices of one expert, by the name of the weight."""


def _toy(experts: Sequence[StateDict]) -> list[Through]:
    """Made-up Gram matrices, whatever the merged model."""
    return [partial(_whatever, grams) for grams in toy_grams(experts)]


def _whatever(grams: StateDict, merged: StateDict) -> StateDict:
    return grams


@need("gram_through", paper="arXiv:2508.03121", rows="each", toy=_toy)
def gram_through(
    readings: Readings, *, examples: Count = 256, seed: int = 0, batch_size: Count = 16
) -> list[Through]:
    """Gram matrices of each expert on its own rows, propagated through the merged layers.

    For a layer of the expert, or its pooler and head: the inner products of the inputs of its
    linear layers, where everything before the layer has the merged weights and the layer the
    expert's (the authors' code). See `passes.gram` for which inputs count. The size of a batch
    matters only for DeBERTa, whose layers read the relative positions once for every batch.

    The result is a function for each expert, from the merged model to lazy Gram matrices: a matrix
    that is asked for needs only the merged tensors of earlier layers, which may thus depend on
    their own matrices.
    """
    through = layerwise(readings, batch_size)
    return [partial(through, place) for place in range(len(readings))]
