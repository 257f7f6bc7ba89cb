"""The weighted average of the experts (Wortsman et al. 2022, arXiv:2203.05482)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from harness import StateDict, merger
from harness.errors import BadOption
from harness.weights import factors_of, mean


@merger(
    "linear",
    paper="arXiv:2203.05482",
    task_vectors=False,
    breaks_with={"weights": ("order",), "normalize": ("copies", "zero")},
)
def linear(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    weights: list[float] | None = None,
    normalize: bool = True,
) -> StateDict:
    """sum of weight_i * expert_i, divided by the sum of the weights if `normalize`.

    The weights are 1 each unless given, and may be negative. Raises BadOption unless there is one
    for each expert, for weights that are all 0, and for a sum of 0 that would divide. The base is
    not read.

    By hand: entries 1 and 5 with weights 3 and 1 give (3 + 5) / 4 = 2, or 8 unnormalised.
    """
    factors = factors_of("linear", weights, len(experts))
    total = math.fsum(factors)
    # 0.1 + 0.2 - 0.3 is 2.8e-17 in binary, but meant as 0
    if normalize and abs(total) <= 1e-12 * math.fsum(map(abs, factors)):
        raise BadOption("the weights of linear sum to 0; expected another sum, or normalize=false")
    return mean(experts, [weight / total for weight in factors] if normalize else factors)
