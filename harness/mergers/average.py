"""The entrywise mean of the experts (Wortsman et al. 2022, arXiv:2203.05482)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

from harness import StateDict, merger
from harness.errors import BadOption
from harness.weights import mean


@merger("average", paper="arXiv:2203.05482", task_vectors=False)
def average(
    experts: Sequence[StateDict], base: StateDict, *, weights: list[float] | None = None
) -> StateDict:
    """The mean of the experts, or their sum with the given weights, used as they are.

    Raises BadOption unless there is one weight for each expert. The base is not read.
    """
    if weights is not None:
        if len(weights) != len(experts):
            raise BadOption(
                f"average got {len(weights)} weights for {len(experts)} experts; expected one each"
            )
        if abs(sum(weights) - 1) > 1e-6:
            warnings.warn(
                f"the weights of average sum to {sum(weights):g}, not 1; used as given",
                stacklevel=2,
            )
    return mean(experts, weights)
