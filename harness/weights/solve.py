"""Least squares by normal equations, with the missing rank counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

SINGULAR = 1e-10
"""Below this share of the largest eigenvalue, a direction counts as one that nothing constrains."""


def least_solution(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, float, int]:
    """The least solution X of left X = right, the condition number, the rank that is missing.

    `left` [n, n] is symmetric and positive semidefinite, `right` [n, k], both float64. By Cholesky;
    where that fails or loses the digits, by the pseudo-inverse.
    """
    from scipy.linalg import lapack  # a fifth of a second, which few commands need

    norm = float(left.abs().sum(0).max())
    factor, failed = lapack.dpotrf(left.numpy(), lower=True)
    share = 0.0 if failed else float(lapack.dpocon(factor, norm, uplo="L")[0])
    if share > SINGULAR:
        solution, _ = lapack.dpotrs(factor, right.numpy(), lower=True)
        return torch.from_numpy(solution), 1 / share, 0
    values, vectors = torch.linalg.eigh(left)
    real = values > SINGULAR * values[-1]
    scaled = (vectors[:, real].T @ right) / values[real][:, None]
    missing = int((~real).sum())
    condition = float(values[-1] / values[real][0])
    return vectors[:, real] @ scaled, condition, missing


def tell(report: dict[str, Any], name: str, facts: Mapping[str, Any]) -> None:
    """Put what is known of a solution into a report, by fact and tensor: `condition`, and others.

    Of a condition number three digits: the last ones depend on the cores and on where in memory the
    matrix lies.
    """
    for fact, value in facts.items():
        told = float(f"{value:.3g}") if fact == "condition" else value
        report.setdefault(fact, {})[name] = told
