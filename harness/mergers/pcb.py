"""PCB-Merging: entries compete within and between experts (Du et al. 2024, arXiv:2410.02396)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Interval

from harness import StateDict, merger, weights
from harness.options import PositiveShare

NOBODY = 1e-12
"""The least divisor of an entry: where all coefficients are 0 nothing is merged."""
CANCELLED = 1e-5
"""Values that differ by at most this share are equal up to rounding; balances of at most this share
of what they could be come from task vectors that cancel."""


@merger("pcb", paper="arXiv:2410.02396", breaks=("copies",))
def pcb(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    density: PositiveShare = 0.05,
    clamp: Annotated[float, Interval(ge=0, lt=0.5)] = 0.0001,
    inter: Literal["plain", "normalized", "pairwise"] = "plain",
    scale: float = 1.2,
) -> StateDict:
    """base + scale * (sum_i c_i v_i / sum_i c_i), entry by entry, with c_i from a competition.

    v_i is a task vector over the whole model, tensors of all shapes. In the sum its magnitudes are
    clamped to its `clamp` and 1 - `clamp` quantiles. The balance of an entry is intra * inter.
    Intra is exp(n u_i^2) for n experts, with u_i the clamped magnitude rescaled to [0, 1]. Inter
    compares the experts, before clamping: tanh(v_i * sum_j v_j) (`plain`), tanh(v_i * sum_j u_j)
    with the signs of v_j (`normalized`), or sum_j tanh(u_i * u_j) with the signs of both
    (`pairwise`), as in three files of the authors. c_i is the balance rescaled to [0, 1] in the
    share `density` of entries where it is highest, and 0 elsewhere. The defaults are the settings
    of the authors' code, which may search a scale for each expert; here one is for all. If all
    magnitudes, or all balances, of an expert are equal or only rounding, its u_i or c_i are 0.

    By hand, with density 1 and no clamp: v = (4, 0) and (2, 2) have u = (1, 0) and (0, 0), balances
    (e^2 tanh 24, 0) and (tanh 12, tanh 4), and c = (1, 0) both: (4 + 2) / 2 = 3, then nothing.
    """
    bounds = weights.once(lambda: [_bounds(expert, base, clamp) for expert in experts])

    def balance(place: int, vectors: Sequence[torch.Tensor]) -> torch.Tensor:
        return _balance(place, vectors, bounds(), inter)

    def contest(place: int) -> Bounds:
        def of_one(origin: torch.Tensor, *tuned: torch.Tensor) -> torch.Tensor:
            return balance(place, [weight - origin for weight in tuned])

        if not weights.size(base):
            return Bounds(0.0, 0.0)
        bound = _highest(weights.entrywise(of_one, base, *experts), density)
        most = _most(place, bounds(), inter) * CANCELLED
        return bound if max(abs(bound.low), abs(bound.high)) > most else Bounds(0.0, 0.0)

    winning = weights.once(lambda: [contest(place) for place in range(len(experts))])

    def merge(origin: torch.Tensor, *tuned: torch.Tensor) -> torch.Tensor:
        vectors = [weight - origin for weight in tuned]
        shares = [winning()[i].rescaled(balance(i, vectors)) for i in range(len(vectors))]
        held = [bound.clamped(v) for bound, v in zip(bounds(), vectors, strict=True)]
        above = weights.total([v * share for v, share in zip(held, shares, strict=True)])
        return above.div_(weights.total(shares).clamp_(min=NOBODY))

    return weights.ScaledMerge(
        base, weights.after(winning, weights.entrywise(merge, base, *experts)), scale
    )


@dataclass(frozen=True)
class Bounds:
    """A low and a high value of one expert over the whole model, and maps of entries by them."""

    low: float
    high: float

    def clamped(self, vector: torch.Tensor) -> torch.Tensor:
        """The entries with magnitudes clamped to the two; zeros stay zero."""
        return vector.abs().clamp_(self.low, self.high).mul_(vector.sign())

    def rescaled(self, values: torch.Tensor) -> torch.Tensor:
        """The values rescaled to [0, 1]: 0 up to `low`, 1 from `high`; all 0 if these are equal."""
        width = self.high - self.low
        if width <= CANCELLED * max(abs(self.low), abs(self.high)):
            return torch.zeros_like(values)
        return values.clamp(self.low, self.high).sub_(self.low).div_(width)


def _bounds(expert: StateDict, base: StateDict, clamp: float) -> Bounds:
    """The magnitudes, found by rank, that those of the task vector are clamped to."""
    entries = weights.size(base)
    low = int(entries * clamp) + 1
    # the authors' index from above; 1 - 0.9 is not 0.1 in binary
    high = max(low, int(entries * round(1 - clamp, 12) - 1) + 1)
    first, last = (weights.smallest_magnitude(expert, rank, minus=base) for rank in (low, high))
    return Bounds(first, last)


def _balance(
    place: int, vectors: Sequence[torch.Tensor], bounds: Sequence[Bounds], inter: str
) -> torch.Tensor:
    """Intra * inter of one expert, in float32, as ranks are found in float32."""
    mine = bounds[place].rescaled(vectors[place].abs())
    intra = mine.square().mul_(len(vectors)).exp_()
    if inter == "plain":
        return (vectors[place] * weights.total(vectors)).tanh_().mul_(intra).float()
    signed = [
        bound.rescaled(vector.abs()).mul_(vector.sign())
        for bound, vector in zip(bounds, vectors, strict=True)
    ]
    if inter == "normalized":
        return (vectors[place] * weights.total(signed)).tanh_().mul_(intra).float()
    return weights.total([(signed[place] * other).tanh_() for other in signed]).mul_(intra).float()


def _most(place: int, bounds: Sequence[Bounds], inter: str) -> float:
    """About the largest inter of one expert: where all agree at their largest magnitudes."""
    mine = 1.0 if inter == "pairwise" else bounds[place].high
    others = sum(bound.high for bound in bounds) if inter == "plain" else len(bounds)
    return math.tanh(mine * others)


def _highest(balances: StateDict, density: float) -> Bounds:
    """The balance from which entries win, and the highest of all."""
    entries = weights.size(balances)
    # the decimal that the user wrote: 1 - 0.9 is not 0.1 in binary
    rank = min(int(entries * round(1 - density, 12)) + 1, entries)
    top = max(float(highest) for highest in weights.in_pieces(torch.max, balances))
    return Bounds(_ranked(balances, rank), top)


def _ranked(values: StateDict, rank: int) -> float:
    """The value of this rank (1-based) from below, exactly, among positive and negative values."""
    above = weights.smallest_magnitude(weights.entrywise(torch.relu, values), rank)
    if above:
        return above
    below = weights.entrywise(lambda entries: (-entries).relu_(), values)
    return -weights.smallest_magnitude(below, weights.size(values) - rank + 1)
