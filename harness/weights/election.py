"""Trimming of task vectors and election of signs: steps 1 and 2 of TIES.

Yadav et al. 2023 (arXiv:2306.01708); step 3, how the entries are merged, is left to the mergers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import torch

from harness.types import StateDict
from harness.weights.arithmetic import in_pieces, total
from harness.weights.lazy import select, size
from harness.weights.order import smallest_magnitude
from harness.weights.threads import once

Trim: TypeAlias = Callable[..., Sequence[torch.Tensor]]
"""From pieces of the base and of other states to pieces of trimmed task vectors."""


def elected(
    experts: Sequence[StateDict], base: StateDict, density: float
) -> Callable[[str], torch.Tensor]:
    """A function from a tensor's name to the entries that merge, bools [experts, entries].

    An entry merges if it is in the share `density` of largest magnitudes of its whole task vector
    (counted as `original`) and has the sign that `ties` elects. By hand: (3, -1, 0.1) and
    (-2, 4, 0.1) at density 0.5 are trimmed to (3, -1, 0) and (-2, 4, 0), the elected signs are
    (+, +), and 3 of the first and 4 of the second merge.
    """
    trim, ready = global_trim(experts, base, [density] * len(experts), "original")
    majority = majority_sign(trim, base, experts)

    def choose(*pieces: torch.Tensor) -> torch.Tensor:
        parts = trim(*pieces)
        sign = elected_sign(parts, total(parts), majority)
        return torch.stack([part * sign > 0 for part in parts])

    def chosen(name: str) -> torch.Tensor:
        ready()  # with all cores, not inside a piece
        majority()
        pieces = [*in_pieces(choose, *(select(state, [name]) for state in (base, *experts)))]
        if not pieces:
            return base[name].new_zeros(len(experts), 0, dtype=torch.bool)
        return torch.cat(pieces, dim=1)

    return chosen


def majority_sign(trim: Trim, base: StateDict, states: Sequence[StateDict]) -> Callable[[], float]:
    """A function that gives the sign most entries elect, for entries whose parts sum to 0."""

    @once
    def majority() -> float:
        signs = in_pieces(lambda *pieces: total(trim(*pieces)).sign().sum(), base, *states)
        balance = sum(map(int, signs))
        return float((balance > 0) - (balance < 0))

    return majority


def global_trim(
    experts: Sequence[StateDict], base: StateDict, shares: Sequence[float], convention: str
) -> tuple[Trim, Callable[[], object]]:
    """A trim of pieces by thresholds over whole vectors, and a function that finds these."""
    pairs = zip(experts, shares, strict=True)
    thresholds = [once(partial(_threshold, one, base, share, convention)) for one, share in pairs]

    def trim(origin: torch.Tensor, *tuned: torch.Tensor) -> list[torch.Tensor]:
        pairs = zip(tuned, thresholds, strict=True)
        return [_trim_entries(weight - origin, threshold()) for weight, threshold in pairs]

    return trim, lambda: [threshold() for threshold in thresholds]


def _threshold(expert: StateDict, base: StateDict, density: float, convention: str) -> float:
    """The magnitude below which entries are zeroed."""
    entries = size(base)
    # 1 - 0.9 is not 0.1 in binary; the count must be that of the decimal the user wrote
    dropped = int(entries * round(1 - density, 12))
    if convention == "original":
        dropped = entries - int(entries * density)
    return smallest_magnitude(expert, dropped, minus=base) if dropped else 0.0


def _trim_entries(vector: torch.Tensor, threshold: float) -> torch.Tensor:
    """The vector, maybe changed in place, with entries below the threshold zeroed; equal ones stay.

    Compared in float32, as the threshold was found: an entry in float64 may be below its own
    rounded value.
    """
    if vector.dtype == torch.float32:
        least = torch.tensor(threshold, dtype=torch.float32)  # whatever torch's default type
        below = torch.nextafter(least, -torch.ones_like(least))
        return torch.nn.functional.hardshrink(vector, float(below))
    return vector.masked_fill_(vector.abs().to(torch.float32) < threshold, 0)


def elected_sign(
    parts: Sequence[torch.Tensor], summed: torch.Tensor, majority: Callable[[], float]
) -> torch.Tensor:
    """Per entry, the sign of the sum; the majority's where parts that are not 0 sum to 0."""
    sign = summed.sign()
    present = parts[0].abs()
    for part in parts[1:]:
        present.add_(part.abs())
    # signs and products of whole tensors throughout: several times as fast as masks
    undecided = present.sign_().sub_(sign.abs())
    if undecided.any():
        sign.add_(undecided, alpha=majority())
    return sign
