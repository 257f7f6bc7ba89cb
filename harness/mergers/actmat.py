"""ACTMat: RegMean without data, with Gram matrices of task vectors (Hameed et al. 2026)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from harness import StateDict, merger
from harness.mergers.wudi import least_interference
from harness.weights import Matrices, Vectors, by_matrix, tell


@merger("actmat", paper="arXiv:2604.01329", breaks_with={"scale": ("copies",)})
def actmat(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    matrices: Matrices = "linear",
    scale: float = 1.0,
) -> StateDict:
    """base + scale * T, with T of every matrix the regression mean of the task vectors.

    Gradients of a linear layer are sums of outer products with its inputs, so the rows of a task
    vector T_i [out, in] lie in the span of the inputs, and C_i = T_i^T T_i replaces their Gram
    matrix: T = (sum_i T_i C_i) (sum_i C_i)^-1, with the pseudo-inverse if the sum is singular.
    Experts are not normalised: one whose weights moved twice as far counts four times as much. All
    other tensors take the mean of the task vectors, and so do embedding tables, whose rows are not
    multiplied by inputs; `matrices="all"` is the authors' code without its switches.

    Solved in float64 for the difference from the mean of the T_i. Directions with less than 1e-10
    of the largest eigenvalue keep the mean, which is zero in directions that no task vector has.
    The authors' float32 pseudo-inverse sets directions below about 1e-4 to zero. The report has the
    condition number of every sum (three digits), and how many directions no T_i has. `wudi` differs
    only in a norm: it divides each C_i by ||T_i||_F^2.

    By hand: T_1 = (2, 0) and T_2 = (1, 0), [1, 2]: C is 4 and 1 in the first input, and
    T = ((8 + 1) / 5, 0) = (9/5, 0). T_1 = (2, 0) and T_2 = (0, 1) do not interfere: T = (2, 1).
    """
    report: dict[str, Any] = {"condition": {}}

    def merge(name: str, vectors: Vectors) -> torch.Tensor:
        mean = torch.stack(vectors[:]).mean(0)
        solution, facts = least_interference(
            vectors, mean, lambda vector: float(bool(vector.any()))
        )
        tell(report, name, facts)
        return solution

    return by_matrix(merge, experts, base, scale, matrices=matrices, report=report)
