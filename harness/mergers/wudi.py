"""WUDI-Merging, in closed form or by Adam (Cheng et al. 2025, arXiv:2503.08099)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Literal

import torch

from harness import StateDict, merger, weights
from harness.options import Count, NotNegative, Positive

STEPS, LEARNING_RATE = 300, 1e-5
"""The authors' settings of Adam."""


@merger("wudi", paper="arXiv:2503.08099", breaks=("copies",))
def wudi(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    solver: Literal["exact", "adam"] = "exact",
    steps: Count = STEPS,
    learning_rate: Positive = LEARNING_RATE,
    ridge: NotNegative = 0.0,
    matrices: weights.Matrices = "linear",
    others: weights.Others = "zero",
    scale: float = 1.0,
) -> StateDict:
    """base + scale * T, with the T of every matrix that interferes least with the task vectors.

    T [out, in] minimises sum_i ||(T - T_i) T_i^T||_F^2 / ||T_i||_F^2 over the experts' task vectors
    T_i. The paper takes 300 steps of Adam at a rate of 1e-5 from the sum of the T_i (`adam`, in
    float64: minutes for a small model, half an hour for BERT-base). The default is the closed form
    (`exact`): with G = sum_i T_i^T T_i / ||T_i||_F^2, T G = sum_i T_i T_i^T T_i / ||T_i||_F^2, and
    of all solutions T is the nearest to the sum of the T_i, where plain gradient descent from there
    ends. It fits the directions with the least eigenvalues of G as fully as those with the largest,
    which few steps do not, and may be worse for it (Wei et al. 2026, arXiv:2606.07289). One step of
    Adam moves an entry by little more than the rate, 300 by 3e-3, so that for longer task vectors
    the two solvers are different methods: for four random task vectors with entries of 5e-4, 1e-3,
    2e-3 and 1e-2 the cosine of their results is 0.998, 0.97, 0.92 and 0.87, where the cosine of the
    plain sum and the exact solution is 0.85.

    A `ridge` r, for the closed form only, replaces T_i^T T_i by T_i^T T_i + r I on both sides: in
    directions far below r, T tends to the mean of the T_i, weighted by 1 / ||T_i||_F^2. Only
    matrices other than embeddings change, and all else stays as the base has it (the authors'
    code); other codes have `matrices="all", others="mean"`. The report has the condition number of
    every G (three digits) that is solved, and how many directions keep the sum. Raises BadOption
    for options of the other solver.

    By hand: T_1 = (1, 0) and T_2 = (1, 1), [1, 2], have G = ((3/2, 1/2), (1/2, 1/2)) and the right
    side (1, 0) + (1, 1) = (2, 1). T = (1, 1) is T_2 along (1, 1), and T_1 along (1, 0). Adam starts
    at (2, 1), where the slope is (3, 1), and its first step at a rate of 0.1 leads to (1.9, 0.9).
    """
    own = {"steps": (steps, STEPS), "learning_rate": (learning_rate, LEARNING_RATE)}
    idle, other = ({"ridge": (ridge, 0.0)}, "exact") if solver == "adam" else (own, "adam")
    weights.check_idle("wudi", f"solver={solver}", f"solver={other}", **idle)
    report: dict[str, Any] = {"condition": {}} if solver == "exact" else {}

    def merge(name: str, vectors: weights.Vectors) -> torch.Tensor:
        if solver == "adam":
            return descended(vectors, steps, learning_rate)
        solution, facts = least_interference(vectors, reduce(torch.add, vectors), _square, ridge)
        weights.tell(report, name, facts)
        return solution

    return weights.by_matrix(
        merge, experts, base, scale, matrices=matrices, others=others, report=report
    )


def descended(vectors: Sequence[torch.Tensor], steps: int, learning_rate: float) -> torch.Tensor:
    """T after some steps of Adam from the sum of the task vectors [out, in], all float64."""
    start = reduce(torch.add, vectors)
    left, right = _equations(vectors, start, _square)
    moved = torch.zeros_like(start)
    adam = torch.optim.Adam([moved], lr=learning_rate)
    for _ in range(steps):
        moved.grad = 2 * (moved @ left - right.T)
        adam.step()
    return start + moved


def _square(vector: torch.Tensor) -> float:
    return float(vector.square().sum())


def least_interference(
    vectors: Sequence[torch.Tensor],
    start: torch.Tensor,
    divisor: Callable[[torch.Tensor], float],
    ridge: float = 0.0,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """The T nearest to `start` that minimises sum_i ||(T - T_i) T_i^T||_F^2 / d_i, and facts.

    T_i are task vectors [out, in] in float64, and d_i = divisor(T_i); a T_i with d_i = 0 is left
    out. Solved for the difference from `start`, in a basis of the rows of all T_i if they are too
    few to span the inputs. A `ridge` r replaces T_i^T T_i by T_i^T T_i + r I.
    """
    facts: dict[str, Any] = {"condition": 1.0}
    basis = None
    if len(vectors) * start.shape[0] < start.shape[1]:
        basis = torch.linalg.qr(torch.cat([vector.T for vector in vectors], dim=1))[0]
    left, right = _equations(vectors, start, divisor, ridge, basis)
    if not bool(left.any()):
        return start, facts
    step, facts["condition"], missing = weights.least_solution(left, right)
    if missing := missing + start.shape[1] - len(left):
        facts["directions that no task vector has"] = missing
    return start + (step.T if basis is None else step.T @ basis.T), facts


def _equations(
    vectors: Sequence[torch.Tensor],
    start: torch.Tensor,
    divisor: Callable[[torch.Tensor], float],
    ridge: float = 0.0,
    basis: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both sides of G X = R, with X the transposed T - start, in the `basis` if there is one."""
    left = start.new_zeros((start if basis is None else basis).shape[1:] * 2)
    right = start.new_zeros(len(left), len(start))
    for vector in vectors:
        if norm := divisor(vector):
            rows = vector if basis is None else vector @ basis
            gram = (rows.T @ rows).div_(norm)
            gram.diagonal().add_(ridge / norm)
            left += gram
            missed = vector - start
            right += gram @ (missed if basis is None else missed @ basis).T
    return left, right
