"""EMR-Merging: one elected task vector, a mask and a factor for each task (Huang et al. 2024)."""

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
    """For each expert the encoder base + r_i * (m_i * elected), in the widest type of all.

    Where the sum of the task vectors is above 0, the elected entry is the largest of theirs, else
    the smallest; it is 0 if none has that sign. The mask m_i keeps the entries that have the sign
    of the expert's task vector v_i. The factor r_i = sum |v_i| / sum |m_i * elected| restores the
    mean magnitude of v_i. `rescale=entries`: the sums run over all entries, as in the paper;
    `rescale=tensors`: they are sums over tensors of the mean over a tensor's entries, as in the
    authors' code. Huang et al. 2024, arXiv:2405.17461.

    By hand: task vectors (2, 1) and (1, -3) have the sum (3, -2) and elect (2, -3). The masks are
    (1, 0) and (1, 1), the factors 3/2 and 4/5, and (3, 0) and (1.6, -2.4) are added to the base.
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
    """For each task vector, the elected entries that have its sign, and 0 elsewhere."""
    # a sum of zero counts as negative, as in the authors' code
    signs = (total(vectors) > 0).to(vectors[0].dtype).mul_(2).sub_(1)
    along = [(vector * signs).clamp_(min=0) for vector in vectors]
    elected = torch.stack(along).amax(dim=0).mul_(signs)
    return [elected * (vector > 0) for vector in along]


def _factors(experts: Sequence[StateDict], base: StateDict, *, by_tensor: bool) -> list[float]:
    """The factor r_i of each expert; 1 if its mask keeps nothing."""

    def sums(origin: torch.Tensor, *tuned: torch.Tensor) -> list[float]:
        vectors = [weight - origin for weight in tuned]
        return [float(vector.double().abs().sum()) for vector in (*vectors, *_kept(vectors))]

    by_name, lines = specs(base), []
    for name in base:
        parts = list(in_pieces(sums, *(select(state, [name]) for state in (base, *experts))))
        size = prod(by_name[name].shape) if by_tensor else 1
        lines += [[value / size for value in part] for part in parts]
    whole = [fsum(column) for column in zip(*lines, strict=True)]
    own, kept = whole[: len(experts)], whole[len(experts) :]
    return [a / b if b else 1.0 for a, b in zip(own, kept, strict=True)]
