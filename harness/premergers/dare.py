"""DARE: drop entries of task vectors, rescale the rest (Yu et al. 2024, arXiv:2311.03099)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

import torch

from harness import StateDict, premerge
from harness.errors import BadOption
from harness.options import Share
from harness.rng import rng
from harness.weights import check_one_each, each, flat_pieces, specs, where_shared


@premerge(
    "dare",
    paper="arXiv:2311.03099",
    breaks=("order", "copies", "tied"),
    breaks_with={"on": ("zero",)},
)
def dare(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    drop_rate: Share = 0.5,
    rescale: bool = True,
    strategy: Literal["random", "magnitude"] = "random",
    on: Literal["task_vector", "weights"] = "task_vector",
    seed: int = 0,
) -> list[StateDict]:
    """Experts with a share of the entries of their task vectors (or weights) dropped.

    `random` drops each entry with probability `drop_rate`, by a separate draw for every expert and
    tensor; `magnitude` drops, in every tensor, the int(numel * drop_rate) smallest entries and
    those equal to the largest of them. What stays is divided by 1 - drop_rate if `rescale`.
    `with_masks` does the same with given masks.
    """

    def drawn(index: int, name: str, vector: torch.Tensor) -> torch.Tensor:
        if strategy == "magnitude":
            return magnitude_keep(vector, drop_rate)
        return random_keep(tuple(vector.shape), drop_rate, seed, index, name)

    if not drop_rate:
        return [each(torch.clone, expert) for expert in experts]
    return _masked(experts, base, drawn, 1 - drop_rate if rescale else 1.0, on)


def with_masks(
    experts: Sequence[StateDict],
    base: StateDict,
    masks: Sequence[Mapping[str, torch.Tensor]],
    *,
    drop_rate: float,
    rescale: bool = True,
    on: Literal["task_vector", "weights"] = "task_vector",
) -> list[StateDict]:
    """`dare` with given masks, to repeat a draw that was made elsewhere; only from Python.

    `masks` has, for each expert, a tensor by the name of the weight, of its shape: true or 1 where
    an entry is dropped, as the published code draws them. `drop_rate` is the rate of that draw: the
    rest is divided by 1 - drop_rate if `rescale`. Raises BadOption for a mask that is missing or of
    another shape.

    By hand: of the task vector (4, 6) the mask (0, 1) at drop_rate 0.5 leaves (8, 0).
    """
    check_masks("dare", experts, base, masks)

    def from_masks(index: int, name: str, vector: torch.Tensor) -> torch.Tensor:
        return ~masks[index][name].to(torch.bool)

    return _masked(experts, base, from_masks, 1 - drop_rate if rescale else 1.0, on)


def check_masks(
    method: str,
    experts: Sequence[StateDict],
    base: StateDict,
    masks: Sequence[Mapping[str, torch.Tensor]],
) -> None:
    """Raise BadOption, naming the tensor, unless all that the base has too have fitting masks."""
    check_one_each(method, masks, len(experts), "sets of masks")
    for place, (expert, own) in enumerate(zip(experts, masks, strict=True)):
        found, needed = specs(own), specs(expert)
        for name in filter(base.__contains__, needed):
            shape, expected = found[name].shape if name in found else "missing", needed[name].shape
            if shape != expected:
                raise BadOption(
                    f"the mask of '{name}' of expert {place + 1} is {shape}, expected {expected}"
                )


def _masked(
    experts: Sequence[StateDict],
    base: StateDict,
    keep: Callable[[int, str, torch.Tensor], torch.Tensor],
    divisor: float,
    on: str,
) -> list[StateDict]:
    """The experts with vectors masked by `keep(index, name, vector)` and divided by the divisor.

    The vectors are zero if the divisor is.
    """

    def drop(index: int, name: str, weight: torch.Tensor, origin: torch.Tensor) -> torch.Tensor:
        vector = weight - origin if on == "task_vector" else weight.clone()
        vector.mul_(keep(index, name, vector).to(vector.device))  # drawn on the processor
        vector = vector.div_(divisor) if divisor else vector.zero_()
        return vector.add_(origin) if on == "task_vector" else vector

    return [where_shared(partial(drop, i), expert, base) for i, expert in enumerate(experts)]


def random_keep(
    shape: tuple[int, ...], drop_rate: float, seed: int, index: int, name: str
) -> torch.Tensor:
    """Which entries of tensor `name` of expert `index` stay: a boolean tensor of the shape."""
    numbers, keep = rng(seed, "dare", index, name), torch.empty(shape, dtype=torch.bool)
    for piece in flat_pieces(keep):  # the draws take eight times the memory
        piece.copy_(torch.from_numpy(numbers.random(len(piece)) >= drop_rate))
    return keep


def magnitude_keep(vector: torch.Tensor, drop_rate: float) -> torch.Tensor:
    """Which entries are larger than the int(numel * drop_rate)-th smallest magnitude."""
    flat = vector.abs().flatten()
    rank = int(flat.numel() * drop_rate)
    if not rank:
        return torch.ones_like(vector, dtype=torch.bool)
    return (flat > flat.kthvalue(rank).values).view_as(vector)
