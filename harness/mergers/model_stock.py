"""Model Stock: the mean, the nearer to the base the less experts agree (arXiv:2403.19522)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from harness import StateDict, merger
from harness.weights import EPSILON, each, flat_pieces, total


@merger("model_stock", paper="arXiv:2403.19522")
def model_stock(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    """t * (mean of the experts) + (1 - t) * base, with t = n cos / (1 + (n - 1) cos).

    For each tensor of n experts, cos is the mean cosine over all pairs of task vectors; a task
    vector that is 0 has cosine 0 with every other, and a mean below 0 counts as 0. For one expert
    cos is 1 and the result is that expert. No options.

    By hand: task vectors (1, 0) and (3, 3) have cos 1/sqrt(2), so t is 2 / (sqrt(2) + 1) = 0.828
    and the task vector of the result 0.828 * (2, 1.5).
    """

    def merge(origin: torch.Tensor, *tuned: torch.Tensor) -> torch.Tensor:
        t = _ratio(origin, tuned)
        return total(tuned).mul_(t / len(tuned)).add_(origin, alpha=1 - t)

    return each(merge, base, *experts)


def _ratio(origin: torch.Tensor, tuned: Sequence[torch.Tensor]) -> float:
    """How far to go from the base to the mean, in [0, 1]; sums are in float64.

    A mean cos below 0 counts as 0: the formula would lead away from the experts, without bound near
    cos = 1 / (1 - n), where it divides by 0.
    """
    count = len(tuned)
    if count == 1:
        return 1.0
    products = torch.zeros(count, count, dtype=torch.float64)
    square = 0.0
    flat = (flat_pieces(tensor) for tensor in (origin, *tuned))
    for start, *pieces in zip(*flat, strict=True):
        rows = torch.stack(pieces).double() - start
        products += (rows @ rows.T).cpu()
        square += float(start.double().square().sum())
    lengths = products.diagonal().sqrt()
    # a task vector that is only the rounding of weights has no direction
    lengths.masked_fill_(lengths <= EPSILON * square**0.5, math.inf)
    cosines = (products / lengths.outer(lengths)).fill_diagonal_(0)
    cosine = min(max(float(cosines.sum()) / (count * (count - 1)), 0.0), 1.0)
    return count * cosine / (1 + (count - 1) * cosine)
