"""Singular values and vectors, without the directions that a matrix maps to zero."""

from __future__ import annotations

import torch

EPSILON = torch.finfo(torch.float64).eps
"""2^-52: how far apart neighbouring numbers are, relatively."""
ALIKE = 1e-7
"""What unit vectors differ by that are one direction, up to rounding: singular vectors are known to
2^-52 over the gap between neighbouring values, relatively."""


def compact_svd(
    matrix: torch.Tensor, part_of: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """U [rows, rank], s [rank] and V^T [rank, columns] of matrix = U diag(s) V^T, in float64.

    The rank counts singular values above the larger side * 2^-52 * the largest, or the norm of what
    the matrix is a part or a difference of (`part_of`): a rest of nothing but rounding has none.
    What LAPACK gives for the others is any basis of the null space, and another one on another
    machine: nothing may depend on it. The long side is never decomposed whole.
    """
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    whole = values[:1].clamp(min=part_of)
    real = values > max(matrix.shape) * EPSILON * whole
    return left[:, real], values[real], right[real]


def isometry(matrix: torch.Tensor) -> torch.Tensor:
    """U V^T of the singular value decomposition of unit vectors side by side, [rows, columns] in
    float64: the polar factor, zero on what the matrix maps to zero or to 1e-7 of the most.

    `polar` completes it there, to turn whole spaces; here nothing may appear in a direction that
    no input has, nor in what two singular vectors differ by that are one.

    By hand: isometry((3, 0), (0, 0)) = ((1, 0), (0, 0)), where polar gives the identity.
    """
    left, values, right = compact_svd(matrix)
    apart = values > ALIKE * values[:1]
    return left[:, apart] @ right[apart]
