"""How alike two models are in a group: what they have in common, and how far apart they are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from harness.types import StateDict
from harness.weights.symmetry import Member


@dataclass(frozen=True)
class Overlap:
    """Inner products of the units of two models in a group, in float64.

    `products` [blocks, size, size] are those of unit i of the first model with unit j of the second
    in the same block; `first` and `second` [blocks] are the squared norms of what each has there.
    """

    products: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor

    def distance(self, matched: torch.Tensor) -> float:
        """||first, moved - second|| where the moved one has the inner product `matched`."""
        square = self.first.sum() + self.second.sum() - 2 * matched.sum()
        return math.sqrt(max(0.0, float(square)))

    @property
    def traces(self) -> torch.Tensor:
        """The inner product of the two as they are, [blocks]."""
        return self.products.diagonal(dim1=-2, dim2=-1).sum(-1)


def overlap(
    first: StateDict, second: StateDict, members: Sequence[Member], blocks: int = 1
) -> Overlap:
    """The overlap of two models in all `members`, the axes that tensors of both have for the units.

    <first moved by A, second> is the sum of A * products for every A that is orthogonal within
    blocks. One tensor of each is in memory at a time.
    """
    products, here, there = (torch.zeros((), dtype=torch.float64) for _ in range(3))
    for one in members:
        parts = [
            units.reshape(blocks, -1, units.shape[1])
            for units in (units_of(state, one) for state in (first, second))
        ]
        products = products + torch.bmm(parts[0], parts[1].mT)
        squares = [part.square().sum((1, 2)) for part in parts]
        here, there = here + squares[0], there + squares[1]
    return Overlap(products, here, there)


def in_blocks(products: torch.Tensor, blocks: int) -> torch.Tensor:
    """A view [blocks, blocks, size, size] of products [units, units]."""
    size = len(products) // blocks
    return products.reshape(blocks, size, blocks, size).movedim(2, 1)


def units_of(state: StateDict, member: Member) -> torch.Tensor:
    """What a tensor has for each unit: [units, everything else] in float64."""
    tensor = state[member.name]
    axis = member.axis
    return tensor.movedim(axis, 0).reshape(tensor.shape[axis], -1).double()


def distance(first: StateDict, second: StateDict, names: Sequence[str]) -> float:
    """||first - second|| over tensors of these names, as float64; one of each at a time."""
    gaps = (first[name].double() - second[name].double() for name in names)
    return math.sqrt(sum(float(gap.square().sum()) for gap in gaps))
