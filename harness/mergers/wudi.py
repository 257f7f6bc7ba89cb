"""WUDI-Merging in closed form (Cheng et al. 2025, arXiv:2503.08099)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from harness import StateDict, merger
from harness.options import NotNegative
from harness.weights import Line, Matrices, Others, Vectors, by_matrix, least_solution, tell


@merger("wudi", paper="arXiv:2503.08099", breaks=("copies",))
def wudi(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    ridge: NotNegative = 0.0,
    matrices: Matrices = "linear",
    others: Others = "zero",
    scale: float = 1.0,
) -> StateDict:
    """base + scale * T, with T of every matrix the least interference between task vectors.

    T [out, in] minimises sum_i ||(T - T_i) T_i^T||_F^2 / ||T_i||_F^2 over the experts' task vectors
    T_i. The paper takes 300 steps of Adam from the sum of the T_i; here it is solved: with
    G = sum_i T_i^T T_i / ||T_i||_F^2, T G = sum_i T_i T_i^T T_i / ||T_i||_F^2, and of all solutions
    T is the nearest to that sum, which is where plain gradient descent from it ends. It follows the
    least directions of G as far as the largest, which few steps do not, and may be worse for it
    (Wei et al. 2026, arXiv:2606.07289). A `ridge` r takes T_i^T T_i + r I for T_i^T T_i, on both
    sides: directions far below it go to the experts' mean, weighted by 1 / ||T_i||_F^2. Only
    matrices that are no embeddings move, all else stays as the base has it (the authors' code);
    `matrices="all", others="mean"` is the reading of others. The report has the condition number
    of every G (three digits), and how many directions are left to the sum.

    By hand: T_1 = (1, 0) and T_2 = (1, 1), [1, 2], have G = ((3/2, 1/2), (1/2, 1/2)) and the right
    side (1, 0) + (1, 1) = (2, 1). T = (1, 1) is T_2 along (1, 1), and T_1 along (1, 0).
    """
    report: dict[str, Any] = {"condition": {}}

    def merge(name: str, vectors: Vectors) -> torch.Tensor:
        solution, facts = nearest(vectors, ridge)
        tell(report, name, facts)
        return solution

    direction = by_matrix(merge, experts, base, matrices=matrices, others=others, report=report)
    return Line(base, direction, scale)


def nearest(vectors: Sequence[torch.Tensor], ridge: float) -> tuple[torch.Tensor, dict[str, Any]]:
    """The minimiser nearest to the sum of the task vectors [out, in], all float64, and facts."""
    start = vectors[0].clone()
    for place in range(1, len(vectors)):
        start += vectors[place]
    return least_interference(vectors, start, lambda vector: float(vector.square().sum()), ridge)


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
    basis = _row_basis(vectors) if len(vectors) * start.shape[0] < start.shape[1] else None
    left = torch.zeros((start if basis is None else basis).shape[1:] * 2, dtype=torch.float64)
    right = torch.zeros(len(left), len(start), dtype=torch.float64)
    for vector in vectors:
        if norm := divisor(vector):
            rows = vector if basis is None else vector @ basis
            gram = (rows.T @ rows).div_(norm)
            gram.diagonal().add_(ridge / norm)
            left += gram
            missed = vector - start
            right += gram @ (missed if basis is None else missed @ basis).T
    if not bool(left.any()):
        return start, facts
    step, facts["condition"], missing = least_solution(left, right)
    if missing := missing + start.shape[1] - len(left):
        facts["directions that no task vector has"] = missing
    return start + (step.T if basis is None else step.T @ basis.T), facts


def _row_basis(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Orthonormal columns [in, n * out] that span the rows of all task vectors."""
    basis: torch.Tensor = torch.linalg.qr(torch.cat([v.T for v in vectors], dim=1))[0]
    return basis
