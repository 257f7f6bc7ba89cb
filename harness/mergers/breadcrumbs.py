"""Model Breadcrumbs: entries of middling size (Davari and Belilovsky 2023, arXiv:2312.06795)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from annotated_types import Interval

from harness import StateDict, merger
from harness.errors import BadOption
from harness.options import PositiveShare
from harness.weights import each, piece_size, smallest_magnitude


@merger("breadcrumbs", paper="arXiv:2312.06795", breaks=("copies",))
def breadcrumbs(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    density: PositiveShare = 0.143,
    gamma: Annotated[float, Interval(ge=0, lt=1)] = 0.007,
    per: Literal["tensor", "row"] = "tensor",
    scale: float = 0.3,
) -> StateDict:
    """base + scale * (sum of the task vectors, each thinned out at both ends).

    In every tensor of d entries the int(d * gamma) largest magnitudes are dropped, the
    int(d * density) next largest are kept, and the rest is dropped; of equal magnitudes the first
    in order counts as smaller. `per=row` does the same in every row along the last axis and keeps
    tensors without axes, like the authors' code; the paper does it per layer. The defaults are the
    paper's beta = 85 % and gamma = 99.3 %. Raises BadOption if density + gamma is above 1.

    By hand: of (-9, 1, 4, 2), density 0.5 and gamma 0.25 keep (0, 0, 4, 2). Of the rows (-9, 6) and
    (4, 2), density 0.5 and gamma 0 keep -9 and 6, and per row -9 and 4.
    """
    if density + gamma > 1:
        raise BadOption(
            f"density {density:g} and gamma {gamma:g} of breadcrumbs add up to "
            f"{density + gamma:g}, expected at most 1: no entry can be kept and dropped"
        )

    middle = _middle if per == "tensor" else _middle_of_rows

    def merge(origin: torch.Tensor, *tuned: torch.Tensor) -> torch.Tensor:
        result = torch.zeros_like(origin)
        for weight in tuned:
            vector = weight - origin
            result.add_(vector.mul_(middle(vector, density, gamma)))
        return result.mul_(scale).add_(origin)

    return each(merge, base, *experts)


def _middle(vector: torch.Tensor, density: float, gamma: float) -> torch.Tensor:
    """Which entries stay, by two thresholds: sorting a large embedding takes seconds."""
    # compared in float32, as the thresholds are found
    sizes = vector.abs().to(torch.float32).flatten()
    stay = int(density * sizes.numel())
    below = sizes.numel() - stay - int(gamma * sizes.numel())
    if not stay:
        return torch.zeros_like(vector, dtype=torch.bool)
    low, high = (smallest_magnitude({"": sizes}, rank) for rank in (below + 1, below + stay))

    def first(value: float, count: torch.Tensor) -> torch.Tensor:
        return (sizes == value).nonzero()[: int(count), 0]

    keep = (low <= sizes) & (sizes < high)
    keep[first(high, below + stay - (sizes < high).sum())] = True
    keep[first(low, below - (sizes < low).sum())] = False
    return keep.view_as(vector)


def _middle_of_rows(vector: torch.Tensor, density: float, gamma: float) -> torch.Tensor:
    """Which entries stay, row by row."""
    if not vector.numel() or not vector.ndim:
        return torch.ones_like(vector, dtype=torch.bool)
    size = vector.shape[-1]
    stay = int(density * size)
    below = size - stay - int(gamma * size)
    keep = vector.new_zeros(vector.numel() // size, size, dtype=torch.bool)
    step = max(1, piece_size() // size)
    parts = [torch.split(flat, step) for flat in (vector.reshape(-1, size), keep)]
    for rows, mask in zip(*parts, strict=True):
        order = rows.abs().to(torch.float32).argsort(dim=1, stable=True)
        mask.scatter_(1, order[:, below : below + stay], True)
    return keep.view_as(vector)
