"""TIES-Merging: trim, elect a sign, merge what agrees (Yadav et al. 2023, arXiv:2306.01708)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch

from harness import StateDict, merger
from harness.options import PositiveShare
from harness.weights import (
    Trim,
    after,
    check_weights,
    each,
    elected_sign,
    entrywise,
    flat_pieces,
    global_trim,
    majority_sign,
    smallest_magnitude,
    task_vectors,
    total,
)


@merger(
    "ties",
    paper="arXiv:2306.01708",
    breaks=("copies",),
    breaks_with={"weights": ("order",), "density=several": ("order",)},
)
def ties(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    density: PositiveShare | list[PositiveShare] = 0.2,
    scale: float = 1.0,
    weights: list[float] | None = None,
    trim: Literal["global", "tensor"] = "global",
    convention: Literal["mergelm", "original"] = "mergelm",
    undecided: Literal["majority", "positive"] = "majority",
    combine: Literal["mean", "sum", "max"] = "mean",
) -> StateDict:
    """base + scale * (the trimmed task vectors, combined where their signs agree).

    `density` is the share of entries kept in each task vector, by magnitude over the whole vector
    (`trim="global"`, the paper) or in every tensor (`trim="tensor"`, mergekit); one for all, or one
    for each expert. A global trim of d entries drops those below the k-th smallest magnitude, with
    k = int(d * (1 - density)) (`convention="mergelm"`) or d - int(d * density) (`original`).
    `weights`, one for each expert, multiply the trimmed vectors; the mean is then the weighted one.
    Where the trimmed vectors sum to 0, the sign is the one that most other entries elect, or always
    + (`undecided="positive"`, mergekit).

    By hand: vectors (4, 1) and (-1, 3) at density 0.5, `tensor`: trimmed (4, 0) and (0, 3), elected
    (+, +), merged (4, 3).
    """
    shares = [density] * len(experts) if isinstance(density, float | int) else density
    check_weights("ties", shares, len(experts), "densities")
    if weights is not None:
        check_weights("ties", weights, len(experts))

    def merged(states: Sequence[StateDict], trimmed: Trim) -> StateDict:
        """base + scale * merged; `trimmed` gives task vectors, from pieces of base and states."""

        def weighted(*pieces: torch.Tensor) -> Sequence[torch.Tensor]:
            parts = trimmed(*pieces)
            if weights is None:
                return parts
            return [part * factor for part, factor in zip(parts, weights, strict=True)]

        majority = (
            (lambda: 1.0) if undecided == "positive" else majority_sign(weighted, base, states)
        )

        def merge(origin: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
            parts = weighted(origin, *tensors)
            return _disjoint(parts, majority, combine, weights).mul_(scale).add_(origin)

        return after(majority, entrywise(merge, base, *states))

    if trim == "tensor":
        vectors = zip(task_vectors(experts, base), shares, strict=True)
        trimmed = [each(partial(_trim_tensor, density=share), vector) for vector, share in vectors]
        return merged(trimmed, lambda _, *parts: parts)
    trim_entries, ready = global_trim(experts, base, shares, convention)
    return after(ready, merged(experts, trim_entries))


def _trim_tensor(vector: torch.Tensor, density: float) -> torch.Tensor:
    """The vector with exactly int(density * numel) entries kept, at least 1; of equals, the first.

    The vector, which must be contiguous and used nowhere else, is changed in place. Magnitudes are
    compared in float32, as mergekit does.
    """
    if not vector.numel():
        return vector
    entries = vector.view(-1)
    count = max(1, int(density * len(entries)))
    threshold = smallest_magnitude({"": entries}, len(entries) - count + 1)
    pieces = flat_pieces(entries)

    def sizes_of(piece: torch.Tensor) -> torch.Tensor:
        return piece.to(torch.float32).abs()

    spare = count - sum(int((sizes_of(piece) > threshold).sum()) for piece in pieces)
    for piece in pieces:
        sizes = sizes_of(piece)
        equal = sizes == threshold
        first = equal & (equal.cumsum(0) <= spare)
        spare -= int(first.sum())
        piece.mul_(first | (sizes > threshold))
    return vector


def _disjoint(
    parts: Sequence[torch.Tensor],
    majority: Callable[[], float],
    combine: str,
    weights: Sequence[float] | None,
) -> torch.Tensor:
    """Per entry, combine the parts that are nonzero and have the elected sign.

    The mean divides by the sum of the weights of these parts, by default 1 each.
    """
    summed = total(parts)
    sign = elected_sign(parts, summed, majority)
    result = torch.zeros_like(summed)
    count = torch.zeros_like(summed)
    for part, weight in zip(parts, weights or [1.0] * len(parts), strict=True):
        agreeing = (part * sign).relu_()
        if combine == "max":
            torch.maximum(result, agreeing, out=result)
        else:
            result.add_(agreeing)
            count.add_(agreeing.sign_(), alpha=weight)
    if combine == "mean":
        result.div_(count.clamp_(min=1) if weights is None else count.masked_fill_(count == 0, 1))
    return result.mul_(sign)
