"""EMR-Merging: one elected task vector, with a mask and a factor for each task (2024)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import fsum, prod
from typing import Literal

import torch

from harness.types import StateDict
from harness.weights import after, entrywise, in_pieces, once, select, specs, total


def emr(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    rescale: Literal["entries", "tensors"] = "entries",
) -> list[StateDict]:
    """For each expert base + r_i * (m_i * elected), in the widest type of all.

    Where the sum of the task vectors is above 0 the elected entry is the largest of theirs, else
    the smallest; where none has that sign it is 0. The mask m_i keeps the entries whose sign the
    expert's own task vector v_i has, and r_i = sum |v_i| / sum |m_i * elected| gives it back its
    mean magnitude: over all entries, as in the paper, or with the sum over tensors of the mean over
    the entries of each, as in the authors' code. Huang et al. 2024, arXiv:2405.17461.

    By hand: task vectors (2, 1) and (1, -3), of sum (3, -2), elect (2, -3). The masks are (1, 0)
    and (1, 1), the factors 3/2 and 4/5, and what is added is (3, 0) and (1.6, -2.4).
    """
    factors = once(lambda: _factors(experts, base, by_tensor=rescale == "tensors"))

    def reached(place: int, origin: torch.Tensor, *tuned: torch.Tensor) -> torch.Tensor:
        kept = _kept([weight - origin for weight in tuned])[place]
        return kept.mul_(factors()[place]).add_(origin)

    return [
        after(factors, entrywise(partial(reached, place), base, *experts))
        for place in range(len(experts))
    ]


def _kept(vectors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """For each task vector, the elected entries that have its sign."""
    # a sum of zero counts as negative, as in the authors' code
    signs = (total(vectors) > 0).to(vectors[0].dtype).mul_(2).sub_(1)
    along = [(vector * signs).clamp_(min=0) for vector in vectors]
    elected = torch.stack(along).amax(dim=0).mul_(signs)
    return [elected * (one > 0) for one in along]


def _factors(experts: Sequence[StateDict], base: StateDict, *, by_tensor: bool) -> list[float]:
    """The factor of each expert; 1 where nothing was kept of it."""

    def sums(origin: torch.Tensor, *tuned: torch.Tensor) -> list[float]:
        vectors = [weight - origin for weight in tuned]
        return [float(one.double().abs().sum()) for one in (*vectors, *_kept(vectors))]

    known, lines = specs(base), []
    for name in base:
        parts = list(in_pieces(sums, *(select(state, [name]) for state in (base, *experts))))
        size = prod(known[name].shape) if by_tensor else 1
        lines += [[one / size for one in part] for part in parts]
    whole = [fsum(column) for column in zip(*lines, strict=True)]
    own, kept = whole[: len(experts)], whole[len(experts) :]
    return [a / b if b else 1.0 for a, b in zip(own, kept, strict=True)]
