"""DARE: drop entries of task vectors, rescale the rest (Yu et al. 2024, arXiv:2311.03099)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from harness import StateDict, premerge
from harness.errors import BadOption
from harness.rng import rng
from harness.weights import PIECE, where_shared


@premerge("dare", paper="arXiv:2311.03099", breaks=("order", "copies", "tied"))
def dare(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    drop_rate: float = 0.5,
    rescale: bool = True,
    strategy: Literal["random", "magnitude"] = "random",
    on: Literal["task_vector", "weights"] = "task_vector",
    seed: int = 0,
) -> list[StateDict]:
    """Experts whose task vectors (or weights) lost a share of their entries.

    `random` drops each entry with probability `drop_rate`, by a draw of its own for every expert
    and tensor; `magnitude` drops, in every tensor, the int(numel * drop_rate) smallest entries and
    what ties with the largest of them. What stays is divided by 1 - drop_rate if `rescale`.
    """
    if not 0 <= drop_rate <= 1:
        raise BadOption(f"drop_rate of dare is {drop_rate:g}, expected a share in [0, 1]")

    def dropped(index: int, expert: StateDict) -> StateDict:
        def fn(name: str, weight: torch.Tensor, origin: torch.Tensor) -> torch.Tensor:
            if not drop_rate:
                return weight.clone()
            vector = weight - origin if on == "task_vector" else weight.clone()
            if strategy == "random":
                keep = random_keep(tuple(vector.shape), drop_rate, seed, index, name)
            else:
                keep = magnitude_keep(vector, drop_rate)
            drop(vector, keep, 1 - drop_rate if rescale else 1.0)
            return vector.add_(origin) if on == "task_vector" else vector

        return where_shared(fn, expert, base)

    return [dropped(index, expert) for index, expert in enumerate(experts)]


def drop(vector: torch.Tensor, keep: torch.Tensor, divisor: float) -> None:
    """Zero the vector where `keep` is false, divide the rest (all is zero if the divisor is)."""
    vector.mul_(keep)
    if divisor:
        vector.div_(divisor)
    else:
        vector.zero_()


def random_keep(
    shape: tuple[int, ...], drop_rate: float, seed: int, index: int, name: str
) -> torch.Tensor:
    """Which entries of tensor `name` of expert `index` stay: a boolean tensor of the shape."""
    numbers, keep = rng(seed, "dare", index, name), torch.empty(shape, dtype=torch.bool)
    for piece in torch.split(keep.view(-1), PIECE):  # the draws, eight times as large, are not held
        piece.copy_(torch.from_numpy(numbers.random(len(piece)) >= drop_rate))
    return keep


def magnitude_keep(vector: torch.Tensor, drop_rate: float) -> torch.Tensor:
    """Which entries are larger than the int(numel * drop_rate)-th smallest magnitude."""
    flat = vector.abs().flatten()
    rank = int(flat.numel() * drop_rate)
    if not rank:
        return torch.ones_like(vector, dtype=torch.bool)
    return (flat > flat.kthvalue(rank).values).view_as(vector)
