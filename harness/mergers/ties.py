"""TIES-Merging: trim, elect a sign, merge what agrees (Yadav et al. 2023, arXiv:2306.01708)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal

import torch

from harness import StateDict, merger
from harness.errors import BadOption
from harness.weights import each, entrywise, smallest_magnitude, specs, task_vectors, total


@merger("ties", paper="arXiv:2306.01708", breaks=("copies",))
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
    if trim == "tensor":
        trimmed = [each(lambda v: _trim_tensor(v, density), vector) for vector in vectors]
        return _elect_and_merge(trimmed, base, lambda _, *parts: parts, scale, combine)
    thresholds = [_threshold(vector, density, convention) for vector in vectors]

    def trim_entries(origin: torch.Tensor, *tuned: torch.Tensor) -> list[torch.Tensor]:
        pairs = zip(tuned, thresholds, strict=True)
        return [_trim_entries(weight - origin, threshold()) for weight, threshold in pairs]

    return _elect_and_merge(experts, base, trim_entries, scale, combine)


def _elect_and_merge(
    states: Sequence[StateDict],
    base: StateDict,
    trim: Callable[..., Sequence[torch.Tensor]],
    scale: float,
    combine: str,
) -> StateDict:
    """base + scale * merged; `trim` makes trimmed task vectors of pieces of the base and states."""

    @cache
    def majority() -> float:
        """The sign that most entries elect over the whole vector (for entries that sum to 0)."""
        elected = entrywise(lambda *pieces: total(trim(*pieces)).sign(), base, *states)
        balance = sum(float(elected[name].double().sum()) for name in elected)
        return float((balance > 0) - (balance < 0))

    def merge(origin: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        return _disjoint(trim(origin, *tensors), majority, combine).mul_(scale).add_(origin)

    return entrywise(merge, base, *states)


def _threshold(vector: StateDict, density: float, convention: str) -> Callable[[], float]:
    """The magnitude below which entries are zeroed, found when it is first asked for."""
    size = sum(math.prod(spec.shape) for spec in specs(vector).values())
    # 1 - 0.9 is not 0.1 in binary; the count must be that of the decimal the user wrote
    dropped = int(size * round(1 - density, 12))
    if convention == "original":
        dropped = size - int(size * density)
    return cache(lambda: smallest_magnitude(vector, dropped) if dropped else 0.0)


def _trim_entries(vector: torch.Tensor, threshold: float) -> torch.Tensor:
    """Zero all entries below the threshold; those that tie with it stay.

    Compared in float32, as the threshold was found: a wider entry must not fall below itself.
    """
    return vector.masked_fill_(vector.abs().to(torch.float32) < threshold, 0)


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
    present = parts[0] != 0
    for part in parts[1:]:
        present |= part != 0
    undecided = present & (summed == 0)
    if undecided.any():
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
