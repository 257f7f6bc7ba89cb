"""WUDI-Merging, in closed form or by Adam (Cheng et al. 2025, arXiv:2503.08099)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Literal

import torch

from harness import StateDict, merger, weights
from harness.options import Count, NotNegative, Positive

STEPS, LEARNING_RATE = 300, 1e-5
"""The authors'."""


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
    """base + scale * T, with T of every matrix the least interference between task vectors.

    T [out, in] minimises sum_i ||(T - T_i) T_i^T||_F^2 / ||T_i||_F^2 over the experts' task vectors
    T_i. The paper takes 300 steps of Adam at a rate of 1e-5 from the sum of the T_i (`adam`, in
    float64: minutes for a small model, half an hour for BERT-base). By default it is solved: with
    G = sum_i T_i^T T_i / ||T_i||_F^2, T G = sum_i T_i T_i^T T_i / ||T_i||_F^2, and of all solutions
    T is the nearest to that sum, which is where plain gradient descent from it ends. It follows the
    least directions of G as far as the largest, which few steps do not, and may be worse for it
    (Wei et al. 2026, arXiv:2606.07289). No step moves an entry by much more than the rate, all of
    them by 3e-3, so that for longer task vectors the two are different methods: of four random ones
    with entries of 5e-4, 1e-3, 2e-3 and 1e-2 their cosine is 0.998, 0.97, 0.92 and 0.87, where that
    of the plain sum with the solution is 0.85.

    A `ridge` r, of the closed form, takes T_i^T T_i + r I for T_i^T T_i, on both sides: directions
    far below it go to the experts' mean, weighted by 1 / ||T_i||_F^2. Only matrices that are no
    embeddings move, all else stays as the base has it (the authors' code);
    `matrices="all", others="mean"` is the reading of others. The report has the condition number
    of every G (three digits) that is solved, and how many directions are left to the sum. Raises
    BadOption for options of the other solver.

    By hand: T_1 = (1, 0) and T_2 = (1, 1), [1, 2], have G = ((3/2, 1/2), (1/2, 1/2)) and the right
    side (1, 0) + (1, 1) = (2, 1). T = (1, 1) is T_2 along (1, 1), and T_1 along (1, 0). Adam starts
    at (2, 1), where the slope is (3, 1), and its first step at a rate of 0.1 leads to (1.9, 0.9).
    """
    own = {"steps": (steps, STEPS), "learning_rate": (learning_rate, LEARNING_RATE)}
    idle, other = ({"ridge": (ridge, 0.0)}, "exact") if solver == "adam" else (own, "adam")
    weights.check_idle("wudi", f"solver={solver}, which has none", f"solver={other}", **idle)
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
    """Where Adam is after some steps from the sum of the task vectors [out, in], all float64."""
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

    T_i are task vectors [out, in] in float64, d_i what `divisor` says of each; one of which it says
    0 has no say. Solved for the difference from the start, in a basis of the rows of all T_i where
    they do not span the inputs. With a `ridge` r, T_i^T T_i + r I stands for T_i^T T_i.
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
    """G and what it must be times the difference from the start, transposed; in a basis, if any."""
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
