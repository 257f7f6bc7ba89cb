"""DELLA: drop small entries of task vectors more often (Deep et al. 2024, arXiv:2406.11617)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from harness import StateDict, premerge
from harness.errors import BadOption
from harness.options import Share
from harness.premergers.dare import check_masks
from harness.rng import rng
from harness.weights import piece_size, where_shared


@premerge("della", paper="arXiv:2406.11617", breaks=("order", "copies", "tied"))
def della(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    drop_rate: Share = 0.5,
    epsilon: Share = 0.14,
    rescale: bool = True,
    seed: int = 0,
) -> list[StateDict]:
    """Experts with entries of their task vectors dropped, small ones more likely.

    In every row (all entries at one index of the first axis; a tensor of one axis is a row) the
    drop probability p falls evenly with the rank of the magnitude, from drop_rate + epsilon / 2 for
    the smallest to drop_rate - epsilon / 2 for the largest: epsilon is the paper's window, twice
    mergekit's. Of equal magnitudes the first in order is the smaller. What stays is divided by
    1 - p if `rescale`. Every expert and tensor has a separate draw. Raises BadOption unless the
    window lies in [0, 1].

    By hand: of the row (3, -1, 2) at drop_rate 0.5 and epsilon 0.2, p is (0.4, 0.6, 0.5); if all
    stay they become (5, -2.5, 4).
    """
    return _pruned(experts, base, drop_rate, epsilon, rescale, seed)


def with_masks(
    experts: Sequence[StateDict],
    base: StateDict,
    masks: Sequence[Mapping[str, torch.Tensor]],
    *,
    drop_rate: float,
    epsilon: float,
    rescale: bool = True,
) -> list[StateDict]:
    """`della` with given masks, to repeat a draw that was made elsewhere; only from Python.

    `masks` has, for each expert, a tensor by the name of the weight, of its shape: true or 1 where
    an entry is dropped. What stays is divided by 1 minus its drop probability if `rescale`. Raises
    BadOption for a mask that is missing or of another shape.
    """
    check_masks("della", experts, base, masks)
    return _pruned(experts, base, drop_rate, epsilon, rescale, masks=masks)


def _pruned(
    experts: Sequence[StateDict],
    base: StateDict,
    drop_rate: float,
    epsilon: float,
    rescale: bool,
    seed: int = 0,
    masks: Sequence[Mapping[str, torch.Tensor]] | None = None,
) -> list[StateDict]:
    """The experts pruned by a draw, or by `masks`. Raises BadOption for a window beyond [0, 1]."""
    low, high = drop_rate - epsilon / 2, drop_rate + epsilon / 2
    if not 0 <= low <= high <= 1:
        raise BadOption(
            f"drop_rate {drop_rate:g} and epsilon {epsilon:g} of della drop with probabilities "
            f"{low:g} to {high:g}, expected probabilities within [0, 1]"
        )

    def prune(index: int, name: str, weight: torch.Tensor, origin: torch.Tensor) -> torch.Tensor:
        vector, numbers = (weight - origin).contiguous(), rng(seed, "della", index, name)
        rows = vector.flatten(1) if vector.ndim > 1 else vector.view(1, -1)
        step = max(1, piece_size() // max(1, rows.shape[1]))
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            drop = _probabilities(part, drop_rate, epsilon)
            if masks is None:
                part *= torch.from_numpy(numbers.random(drop.shape)).to(drop.device) >= drop
            else:
                mask = masks[index][name].reshape(rows.shape)
                part *= ~mask[start : start + step].to(drop.device, torch.bool)
            if rescale:
                # where p is 1 nothing stays: 0 / 0 would be NaN
                part /= (1 - drop).masked_fill_(drop == 1, 1)
        return vector.add_(origin)

    return [where_shared(partial(prune, i), expert, base) for i, expert in enumerate(experts)]


def _probabilities(rows: torch.Tensor, drop_rate: float, epsilon: float) -> torch.Tensor:
    """The drop probability of every entry by its rank in its row, in float64."""
    size, exact = rows.shape[1], rows.new_empty(rows.shape, dtype=torch.float64)
    centred = (size - 1) / 2 - torch.arange(size, dtype=exact.dtype, device=rows.device)
    by_rank = (drop_rate + epsilon * centred / max(size - 1, 1)).clamp_(0, 1)
    order = rows.abs().argsort(dim=1, stable=True)
    return exact.scatter_(1, order, by_rank.expand_as(order))
