"""Singular values and vectors, without the directions that a matrix maps to zero."""

from __future__ import annotations

import torch


def compact_svd(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """U [rows, rank], s [rank] and V^T [rank, columns] of matrix = U diag(s) V^T, in float64.

    The rank counts singular values above the larger side * 2^-52 * the largest. What LAPACK gives
    for the others is any basis of the null space, and another one on another machine: nothing may
    depend on it. The long side is never decomposed whole.
    """
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    real = values > max(matrix.shape) * torch.finfo(torch.float64).eps * values[:1]
    return left[:, real], values[real], right[real]


def isometry(matrix: torch.Tensor) -> torch.Tensor:
    """U V^T of the compact decomposition, [rows, columns] in float64: the polar factor, zero on
    what the matrix maps to zero.

    `polar` completes it there, to turn whole spaces; here nothing may appear in a direction that
    no input has.

    By hand: isometry((3, 0), (0, 0)) = ((1, 0), (0, 0)), where polar gives the identity.
    """
    left, _, right = compact_svd(matrix)
    return left @ right
