"""Task arithmetic (Ilharco et al. 2023, arXiv:2212.04089)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from harness import StateDict, merger
from harness.weights import check_weights, entrywise, total


@merger(
    "task_arithmetic",
    paper="arXiv:2212.04089",
    breaks=("copies",),
    breaks_with={"weights": ("order",)},
)
def task_arithmetic(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    scale: float = 0.3,
    weights: list[float] | None = None,
) -> StateDict:
    """base + scale * (sum of task vectors), or base + sum of weight_i * task vector_i.

    The scale multiplies the sum and not the mean. Raises BadOption unless there is one weight for
    each expert.
    """
    if weights is not None:
        check_weights("task_arithmetic", weights, len(experts))

    def add(origin: torch.Tensor, *tuned: torch.Tensor) -> torch.Tensor:
        vectors = [weight - origin for weight in tuned]
        if weights is not None:
            return total([v * w for v, w in zip(vectors, weights, strict=True)]).add_(origin)
        return total(vectors).mul_(scale).add_(origin)

    return entrywise(add, base, *experts)
