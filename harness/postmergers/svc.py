"""Singular value calibration (Li et al. 2026, arXiv:2602.05536)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from harness import StateDict, postmerge
from harness.options import Positive
from harness.weights import ALIKE, EPSILON, each, is_matrix, select, specs, union


@postmerge("svc", paper="arXiv:2602.05536")
def svc(
    merged: StateDict,
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    alpha: Positive = 1.0,
    floor: Literal["each", "mean"] = "each",
) -> StateDict:
    """The merge, with singular values of its task matrices divided where tasks overlap.

    M = U S V^T is the merged task matrix (merged - base), and T_i that of expert i. Along each left
    singular vector u let a = u^T M and b_i = u^T T_i. s_i = <a, b_i> / |b_i|^2 is the share of the
    expert's own response that is left there: above 1 if it was counted repeatedly, 0 if b_i is 0.
    The singular value is divided by the mean of max(alpha, s_i), so that alpha = 1 never makes one
    larger; alpha = 1 / n suits a sum of n task vectors. With `floor="mean"`, as in the authors'
    code, it is divided by max(alpha, mean of s_i) if all s_i are positive, and stays otherwise. In
    float64. Only for tensors of two axes that are no embeddings, as in that code; all others stay.

    By hand: of the task matrices diag(3, 0) and diag(1, 2) the sum is diag(4, 2). Along the first
    vector s is 4 / 3 and 4, mean 8 / 3, so 4 becomes 1.5; along the second s is 0 and 1, which
    count as 1, and 2 stays.
    """
    matrices = [
        name
        for name, spec in specs(merged).items()
        if name in base and is_matrix(name, spec.shape, "linear")
    ]

    def fn(weight: torch.Tensor, origin: torch.Tensor, *tuned: torch.Tensor) -> torch.Tensor:
        wide = origin.double()
        left, values, right = torch.linalg.svd(weight.double() - wide, full_matrices=False)
        own = values[:, None] * right
        rounding = EPSILON * float(wide.norm())

        def share(expert: torch.Tensor) -> torch.Tensor:
            vector = expert.double() - wide
            return _share(own, left.mT @ vector, max(ALIKE * float(vector.norm()), rounding))

        shares = torch.stack([share(expert) for expert in tuned])
        values = values / _divisor(shares, alpha, floor)
        calibrated: torch.Tensor = wide + (left * values) @ right
        return calibrated.to(weight.dtype)

    changed = each(fn, select(merged, matrices), base, *experts)
    return select(union(changed, merged), merged)


def _share(merged: torch.Tensor, own: torch.Tensor, nothing: float) -> torch.Tensor:
    """<a, b> / |b|^2 of each row; 0 where |b| is `nothing` or less."""
    squares = own.square().sum(1)
    present = squares.sqrt() > nothing
    products = (merged * own).sum(1)
    return torch.where(present, products / squares.where(present, 1), 0)


def _divisor(shares: torch.Tensor, alpha: float, floor: str) -> torch.Tensor:
    """The divisor of each singular value, from the shares [experts, values]."""
    if floor == "each":
        return shares.clamp(min=alpha).mean(0)
    positive = (shares > 0).all(0)
    return torch.where(positive, shares.mean(0).clamp(min=alpha), 1.0)
