"""The entrywise mean of the experts (Wortsman et al. 2022, arXiv:2203.05482)."""

from __future__ import annotations

from collections.abc import Sequence

from harness import StateDict, merger
from harness.weights import mean, shares_of_mean


@merger(
    "average",
    paper="arXiv:2203.05482",
    task_vectors=False,
    breaks_with={"weights": ("order", "copies", "zero")},
)
def average(
    experts: Sequence[StateDict], base: StateDict, *, weights: list[float] | None = None
) -> StateDict:
    """The mean of the experts, or their sum with the given weights, used as they are.

    Raises BadOption unless there is one weight for each expert, and if all are 0. The base is not
    read.
    """
    return mean(experts, shares_of_mean("average", weights, len(experts)))
