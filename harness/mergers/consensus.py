"""Consensus merging: entries of several TALL-masks (Wang et al. 2024, arXiv:2405.07813)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness import StateDict, merger
from harness.options import Count, NotNegative
from harness.weights import check_at_most_all, entrywise, total


@merger("consensus", paper="arXiv:2405.07813", breaks=("copies",))
def consensus(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    threshold: NotNegative = 0.4,
    agree: Count = 2,
    scale: float = 0.3,
) -> StateDict:
    """base + scale * (sum of task vectors, where it is useful to at least `agree` experts).

    An entry is useful to expert i if |v_i| >= threshold * |sum - v_i|: its own part outweighs what
    the others add. The paper picks a threshold in 0.2, ..., 0.6 for each task and a scale on
    validation data; here one threshold, by default the middle one, is for all. At threshold 0 this
    is task arithmetic. Raises BadOption if `agree` is more than the number of experts.

    By hand: at threshold 1/2 and scale 1, vectors (4, 1) and (3, -4) give (7, 0): in the second
    entry only -4 outweighs half of what the other adds.
    """
    check_at_most_all("agree of consensus", agree, len(experts))

    def merge(origin: torch.Tensor, *tuned: torch.Tensor) -> torch.Tensor:
        vectors = [weight - origin for weight in tuned]
        summed = total(vectors)
        uses = [v.abs() >= (summed - v).abs_().mul_(threshold) for v in vectors]
        keep = torch.stack(uses).sum(dim=0) >= agree
        return summed.mul_(keep).mul_(scale).add_(origin)

    return entrywise(merge, base, *experts)
