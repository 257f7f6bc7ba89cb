"""TIES-Merging: trim, elect a sign, merge what agrees (Yadav et al. 2023, arXiv:2306.01708)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal

import torch

from harness import StateDict, merger
from harness.errors import BadOption
from harness.weights import each, smallest_magnitude, specs, task_vectors, total


@merger("ties", paper="arXiv:2306.01708")
def ties(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    density: float = 0.2,
    scale: float = 1.0,
    trim: Literal["global", "tensor"] = "global",
    convention: Literal["mergelm", "original"] = "mergelm",
    combine: Literal["mean", "sum", "max"] = "mean",
) -> StateDict:
    """base + scale * (the trimmed task vectors, combined where their signs agree).

    `density` is the share of entries kept in each task vector, by magnitude over the whole vector
    (`trim="global"`, the paper) or in every tensor (`trim="tensor"`, mergekit). `convention`
    counts what a global trim drops, of d entries: int(d * (1 - density)) up to the threshold
    itself, which stays (`mergelm`), or d - int(d * density) (`original`).

    By hand: vectors (4, 1) and (-1, 3) at density 0.5, `tensor`: trimmed (4, 0) and (0, 3), elected
    (+, +), merged (4, 3).
    """
    if not 0 < density <= 1:
        raise BadOption(f"density of ties is {density:g}, expected a share in (0, 1]")
    vectors = task_vectors(experts, base)
    if trim == "global":
        trimmed = [_trim_global(vector, density, convention) for vector in vectors]
    else:
        trimmed = [each(lambda v: _trim_tensor(v, density), vector) for vector in vectors]

    @cache
    def majority() -> float:
        """The sign that most entries elect over the whole vector (for entries that sum to 0)."""
        elected = each(lambda *parts: total(parts).sign(), *trimmed)
        balance = sum(float(elected[name].double().sum()) for name in elected)
        return float((balance > 0) - (balance < 0))

    def merge(origin: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
        return _disjoint(parts, majority, combine).mul_(scale).add_(origin)

    return each(merge, base, *trimmed)


def _trim_global(vector: StateDict, density: float, convention: str) -> StateDict:
    """Zero all entries below one threshold; entries that tie at the threshold stay."""
    size = sum(math.prod(spec.shape) for spec in specs(vector).values())
    # 1 - 0.9 is not 0.1 in binary; the count must be that of the decimal the user wrote
    dropped = int(size * round(1 - density, 12))
    if convention == "original":
        dropped = size - int(size * density)

    @cache
    def threshold() -> float:
        return smallest_magnitude(vector, dropped) if dropped else 0.0

    # compared in float32, as the threshold was found: a wider entry must not fall below itself
    return each(lambda v: v.masked_fill(v.abs().to(torch.float32) < threshold(), 0), vector)


def _trim_tensor(vector: torch.Tensor, density: float) -> torch.Tensor:
    """Keep exactly int(density * numel) entries, at least one; of equals, the first in order."""
    flat = vector.abs().flatten()
    if not flat.numel():
        return vector
    kept = max(1, int(density * flat.numel()))
    threshold = flat.kthvalue(flat.numel() - kept + 1).values
    keep = flat > threshold
    ties_at = (flat == threshold).nonzero()[: kept - int(keep.sum()), 0]
    keep[ties_at] = True
    return vector * keep.view_as(vector)


def _disjoint(
    parts: Sequence[torch.Tensor], majority: Callable[[], float], combine: str
) -> torch.Tensor:
    """Per entry, combine the parts that are nonzero and have the elected sign."""
    summed = total(parts)
    sign = summed.sign()
    undecided = summed == 0
    if undecided.any() and any((part[undecided] != 0).any() for part in parts):
        sign[undecided] = majority()
    result = torch.zeros_like(summed)
    count = torch.zeros_like(summed)
    for part in parts:
        agrees = (part * sign) > 0
        if combine == "max":
            result = torch.where(agrees, torch.maximum(result, part.abs()), result)
        else:
            result.add_(part * agrees)
            count.add_(agrees)
    if combine == "max":
        return result * sign
    return result.div_(count.clamp_(min=1)) if combine == "mean" else result
