"""TIES-Merging: trim, elect a sign, merge what agrees (Yadav et al. 2023, arXiv:2306.01708)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, TypeAlias

import torch

from harness import StateDict, merger
from harness.options import PositiveShare
from harness.weights import (
    after,
    check_one_each,
    each,
    entrywise,
    flat_pieces,
    in_pieces,
    once,
    select,
    size,
    smallest_magnitude,
    task_vectors,
    total,
)

Trim: TypeAlias = Callable[..., Sequence[torch.Tensor]]
"""Of pieces of the base and of other states, trimmed task vectors."""


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
    for each expert. `convention` counts what a global trim drops, of d entries:
    int(d * (1 - density)) up to the threshold itself, which stays (`mergelm`), or
    d - int(d * density) (`original`). `weights`, one for each expert, multiply the trimmed vectors;
    the mean is then the weighted one. Entries that sum to 0 elect the sign that most others did, or
    always + (`undecided="positive"`, mergekit).

    By hand: vectors (4, 1) and (-1, 3) at density 0.5, `tensor`: trimmed (4, 0) and (0, 3), elected
    (+, +), merged (4, 3).
    """
    shares = _one_each("densities", density, len(experts))
    factors = None if weights is None else _one_each("weights", weights, len(experts))
    merge = partial(
        _elect_and_merge, base, scale=scale, weights=factors, undecided=undecided, combine=combine
    )
    if trim == "tensor":
        vectors = zip(task_vectors(experts, base), shares, strict=True)
        return merge([_trimmed(*pair) for pair in vectors], lambda _, *parts: parts)
    trim_entries, ready = _global_trim(experts, base, shares, convention)
    return after(ready, merge(experts, trim_entries))


def elected(
    experts: Sequence[StateDict], base: StateDict, density: float
) -> Callable[[str], torch.Tensor]:
    """Which entries of the task vectors merge: of a tensor by name, [experts, entries], as bools.

    Those of the share `density` of each vector that is largest, over the whole vector (counted as
    `original`), whose sign is the one that `ties` elects. By hand: of (3, -1, 0.1) and (-2, 4, 0.1)
    at density 0.5, trimmed to (3, -1, 0) and (-2, 4, 0), the signs are (+, +), and what merges is
    3 of the first and 4 of the second.
    """
    trim, ready = _global_trim(experts, base, [density] * len(experts), "original")
    majority = _majority(trim, base, experts)

    def choose(*pieces: torch.Tensor) -> torch.Tensor:
        parts = trim(*pieces)
        sign = _elected_sign(parts, total(parts), majority)
        return torch.stack([part * sign > 0 for part in parts])

    def chosen(name: str) -> torch.Tensor:
        ready()  # with all cores, not inside a piece
        majority()
        pieces = in_pieces(choose, *(select(state, [name]) for state in (base, *experts)))
        return torch.cat([torch.zeros(len(experts), 0, dtype=torch.bool), *pieces], dim=1)

    return chosen


def _one_each(what: str, given: float | list[float], count: int) -> list[float]:
    values = given if isinstance(given, list) else [given] * count
    check_one_each("ties", values, count, what)
    return values


def _elect_and_merge(
    base: StateDict,
    states: Sequence[StateDict],
    trimmed: Trim,
    *,
    scale: float,
    weights: Sequence[float] | None,
    undecided: str,
    combine: str,
) -> StateDict:
    """base + scale * merged; `trimmed` are task vectors made of pieces of the base and states."""

    def trim(*pieces: torch.Tensor) -> Sequence[torch.Tensor]:
        parts = trimmed(*pieces)
        if weights is None:
            return parts
        return [part * weight for part, weight in zip(parts, weights, strict=True)]

    majority = (lambda: 1.0) if undecided == "positive" else _majority(trim, base, states)

    def merge(origin: torch.Tensor, *tensors: torch.Tensor) -> torch.Tensor:
        parts = trim(origin, *tensors)
        return _disjoint(parts, majority, combine, weights).mul_(scale).add_(origin)

    return after(majority, entrywise(merge, base, *states))


def _majority(trim: Trim, base: StateDict, states: Sequence[StateDict]) -> Callable[[], float]:
    """The sign that most entries elect over the whole vector (for entries that sum to 0)."""

    @once
    def majority() -> float:
        signs = in_pieces(lambda *pieces: total(trim(*pieces)).sign().sum(), base, *states)
        balance = sum(map(int, signs))
        return float((balance > 0) - (balance < 0))

    return majority


def _global_trim(
    experts: Sequence[StateDict], base: StateDict, shares: Sequence[float], convention: str
) -> tuple[Trim, Callable[[], object]]:
    """The trim of pieces by thresholds over whole vectors, and what finds these thresholds."""
    pairs = zip(experts, shares, strict=True)
    thresholds = [_threshold(expert, base, share, convention) for expert, share in pairs]

    def trim(origin: torch.Tensor, *tuned: torch.Tensor) -> list[torch.Tensor]:
        pairs = zip(tuned, thresholds, strict=True)
        return [_trim_entries(weight - origin, threshold()) for weight, threshold in pairs]

    return trim, lambda: [threshold() for threshold in thresholds]


def _threshold(
    expert: StateDict, base: StateDict, density: float, convention: str
) -> Callable[[], float]:
    """The magnitude below which entries are zeroed, found when it is first asked for."""
    entries = size(base)
    # 1 - 0.9 is not 0.1 in binary; the count must be that of the decimal the user wrote
    dropped = int(entries * round(1 - density, 12))
    if convention == "original":
        dropped = entries - int(entries * density)
    return once(lambda: smallest_magnitude(expert, dropped, minus=base) if dropped else 0.0)


def _trim_entries(vector: torch.Tensor, threshold: float) -> torch.Tensor:
    """Zero all entries below the threshold; those that tie with it stay.

    Compared in float32, as the threshold was found: a wider entry must not fall below itself.
    """
    if vector.dtype == torch.float32:
        below = torch.nextafter(torch.tensor(threshold), torch.tensor(-1.0))
        return torch.nn.functional.hardshrink(vector, float(below))
    return vector.masked_fill_(vector.abs().to(torch.float32) < threshold, 0)


def _trimmed(vector: StateDict, density: float) -> StateDict:
    return each(lambda tensor: _trim_tensor(tensor, density), vector)


def _trim_tensor(vector: torch.Tensor, density: float) -> torch.Tensor:
    """Keep exactly int(density * numel) entries, at least one; of equals, the first in order.

    The vector, contiguous and nobody else's, is changed in place. Magnitudes are compared in
    float32, as mergekit does.
    """
    if not vector.numel():
        return vector
    entries = vector.view(-1)
    kept = max(1, int(density * len(entries)))
    threshold = smallest_magnitude({"": entries}, len(entries) - kept + 1)
    pieces = flat_pieces(entries)

    def sizes_of(piece: torch.Tensor) -> torch.Tensor:
        return piece.to(torch.float32).abs()

    spare = kept - sum(int((sizes_of(piece) > threshold).sum()) for piece in pieces)
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

    The mean divides by the weights of those that are combined, by default 1 each.
    """
    summed = total(parts)
    sign = _elected_sign(parts, summed, majority)
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


def _elected_sign(
    parts: Sequence[torch.Tensor], summed: torch.Tensor, majority: Callable[[], float]
) -> torch.Tensor:
    """Per entry, the sign of the sum; of parts that sum to 0, that of the majority."""
    sign = summed.sign()
    present = parts[0].abs()
    for part in parts[1:]:
        present.add_(part.abs())
    # signs and products of whole tensors throughout: several times as fast as masks
    undecided = present.sign_().sub_(sign.abs())
    if undecided.any():
        sign.add_(undecided, alpha=majority())
    return sign
