"""RegMean: the linear maps nearest to the experts' on their own inputs (Jin et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from harness import StateDict, merger
from harness.options import NotNegative, Share
from harness.weights import Lazy, least_solution, mean, shares_of_mean, specs, tell, total

DEAD = 1e-12
"""An input whose summed square is at most this share of the largest is said never to move."""


@merger(
    "regmean",
    paper="arXiv:2212.09849",
    task_vectors=False,
    breaks_with={"weights": ("order", "copies", "zero")},
)
def regmean(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    gram: Sequence[StateDict],
    off_diagonal: Share = 0.9,
    diagonal: NotNegative = 0.0,
    weights: list[NotNegative] | None = None,
) -> StateDict:
    """W^T = (sum_i c_i G_i)^-1 sum_i c_i G_i W_i^T for linear layers, sum_i c_i W_i for all else.

    `gram` has each expert's inner products of inputs G_i [in, in], by the name of the weight
    [out, in]. Entries off their diagonal are multiplied by `off_diagonal`, from 0 (every input is
    weighted by itself) to 1. `diagonal` is added to those on it: the larger, the nearer is W to the
    mean. c_i is the expert's weight, by default 1 / n each. The paper's least squares are solved in
    float64 for the difference from the mean: an input that never moves keeps the mean, and if the
    sum is singular, W is the solution nearest to the mean. The report has the condition number of
    every layer (in the 1-norm, three digits) and says where this was needed. The base is not read.

    By hand: W_1 = (1, 0), W_2 = (0, 1), G_1 = diag(3, 1), G_2 = diag(1, 1): W = (3/4, 1/2).
    Weights (1/4, 3/4) make it (3/4 / (3/2), 3/4 / 1) = (1/2, 3/4).
    """
    return regression_mean("regmean", experts, gram, off_diagonal, weights, diagonal)


def regression_mean(
    method: str,
    experts: Sequence[StateDict],
    gram: Sequence[StateDict],
    off_diagonal: float,
    weights: list[float] | None,
    diagonal: float = 0.0,
) -> StateDict:
    """`regmean`; `method` is the name in messages about its options."""
    shares = shares_of_mean(method, weights, len(experts))
    averaged = mean(experts, shares)
    headers = specs(averaged)
    solved = {name for name in headers if all(name in state for state in gram)}
    report: dict[str, Any] = {"condition": {}}

    def compute(name: str) -> torch.Tensor:
        if name not in solved:
            return averaged[name]
        # before all else: in RegMean++ this merges the layers that come before
        grams = [_regular(state[name].double(), off_diagonal, diagonal) for state in gram]
        tensors = [expert[name].double() for expert in experts]
        solution, facts = nearest(tensors, grams, shares)
        tell(report, name, facts)
        return solution.to(headers[name].dtype)

    return Lazy(headers, compute, report)


def _regular(gram: torch.Tensor, off_diagonal: float, diagonal: float) -> torch.Tensor:
    regular = gram * off_diagonal
    regular.diagonal().copy_(gram.diagonal() + diagonal)
    return regular


def nearest(
    weights: Sequence[torch.Tensor], grams: Sequence[torch.Tensor], shares: Sequence[float]
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The W that minimises sum_i c_i tr (W - W_i) G_i (W - W_i)^T, and facts about the solution.

    Of several such W it is the nearest to the mean sum_i c_i W_i, with the experts' shares c_i.
    Weights are [out, in], Gram matrices [in, in], all float64. The facts are the condition number
    and, if there are any, how many inputs never move and how many directions no input has.
    """
    middle = total([w * share for w, share in zip(weights, shares, strict=True)])
    scaled = [g * share for g, share in zip(grams, shares, strict=True)]
    left = total(scaled)
    right = total([g @ (w - middle).T for w, g in zip(weights, scaled, strict=True)])
    moving = left.diagonal() > DEAD * left.diagonal().max()
    facts: dict[str, Any] = {"condition": 1.0}
    if not bool(moving.all()):
        facts["inputs that never move"] = int((~moving).sum())
        left, right = left[moving][:, moving], right[moving]
    if not len(left):
        return middle, facts
    step, condition, missing = least_solution(left, right)
    facts["condition"] = condition
    if missing:
        facts["directions that no input has"] = missing
    solution = middle.clone()
    solution[:, moving] += step.T
    return solution, facts
