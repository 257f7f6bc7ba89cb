"""Singular values, the nearest orthogonal matrix, and least squares of less than full rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from harness.weights.threads import here

EPSILON = torch.finfo(torch.float64).eps
"""2^-52: how far apart neighbouring numbers are, relatively."""
ALIKE = 1e-7
"""What unit vectors differ by that are one direction, up to rounding: singular vectors are known to
2^-52 over the gap between neighbouring values, relatively."""
Decomposed: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Singular vectors and values, U, s and V^T."""


def compact_svd(matrix: torch.Tensor, part_of: float = 0.0) -> Decomposed:
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


def leading(decomposed: Decomposed, count: int) -> Decomposed:
    """The first so many, as copies: views would keep the whole decomposition alive."""
    left, values, right = decomposed
    return left[:, :count].clone(), values[:count].clone(), right[:count].clone()


def side_by_side(parts: Sequence[Decomposed]) -> Decomposed:
    """The singular vectors of several matrices as two isometries, and the values of all."""
    lefts, values, rights = zip(*parts, strict=True)
    return isometry(torch.cat(lefts, dim=1)), torch.cat(values), isometry(torch.cat(rights))


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


def polar(matrix: torch.Tensor) -> torch.Tensor:
    """The orthogonal polar factor of `matrix` [..., rows, columns], in float64: argmax of
    <matrix, Q> over all Q with orthonormal rows or columns, whichever are fewer.

    Q = U V^T of the singular value decomposition U S V^T; a long matrix is reduced to a square one
    by a QR factorisation first. Reflections are allowed. What a square matrix maps to zero leaves
    Q open: there it is the nearest to the identity, so that nothing depends on which basis of the
    null space comes out of LAPACK, and the factor of a zero matrix is the identity.

    By hand: polar((2, 0), (0, -3)) = ((1, 0), (0, -1)); polar((0, -5), (5, 0)) = ((0, -1), (1, 0)).
    """
    matrix = matrix.double()
    rows, columns = matrix.shape[-2:]
    if rows < columns:
        return polar(matrix.mT).mT
    if rows > columns:
        basis, core = torch.linalg.qr(matrix)
        reduced: torch.Tensor = basis @ polar(core)
        return reduced
    return polar_and_values(matrix)[0]


def polar_and_values(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The polar factor Q of square matrices [..., n, n] in float64, and what Q^T times them has
    for eigenvalues [..., n], from the greatest, and eigenvectors [..., n, n], in columns.
    """
    left, values, right = torch.linalg.svd(matrix)
    nearest: torch.Tensor = left @ right
    empty = values <= matrix.shape[-1] * EPSILON * values[..., :1]
    for place in map(tuple, torch.nonzero(empty.any(-1)).tolist()):
        nearest[place] = completed(left[place], right[place], empty[place])
    return nearest, values, right.mT


SURE = 1e-3
"""Of the greatest singular value: those above have the digits that a turn needs when squared."""


def polar_by_squares(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What `polar_and_values` says of one matrix M [n, n], in three quarters of the time.

    By the eigenvectors V of M^T M; only the columns of M V that are small, at right angles to the
    others, are decomposed themselves. A matrix times Q is that of `polar_and_values` to 1e-11 of
    its norm; whether M is of full rank is not sure to rounding, and if it is not, that is asked.
    """
    squares, vectors = (one.flip(-1) for one in torch.linalg.eigh(matrix.mT @ matrix))
    values = squares.clamp(min=0).sqrt()
    count = int((values > SURE * values[0]).sum())
    large, small = torch.split(matrix @ vectors, [count, len(matrix) - count], 1)
    large = large / values[:count]
    left, values[count:], right = torch.linalg.svd(
        small - large @ (large.mT @ small), full_matrices=False
    )
    if not values[-1] > len(matrix) * EPSILON * values[0]:
        return polar_and_values(matrix)
    left -= large @ (large.mT @ left)  # what rounding of the greatest among them left there
    vectors[:, count:] = vectors[:, count:] @ right.mT
    return torch.cat([large, left], 1) @ vectors.mT, values, vectors


def completed(left: torch.Tensor, right: torch.Tensor, empty: torch.Tensor) -> torch.Tensor:
    """U V^T where the null spaces are mapped as near to the identity as they can be.

    What is at right angles in both is left open by that, and is nearest to a matrix that is no
    other for being without meaning: some basis of LAPACK's would be another one each time.
    """
    source, target = right[empty], left[:, empty]
    turn = torch.linalg.svd(target.mT @ source.mT)
    near = turn.S > ALIKE
    completed: torch.Tensor = left[:, ~empty] @ right[~empty]
    completed += target @ (turn.U[:, near] @ turn.Vh[near]) @ source
    if not bool(near.all()):
        source, target = turn.Vh[~near] @ source, target @ turn.U[:, ~near]
        numbers = torch.arange(1, len(left) + 1, dtype=torch.float64, device=left.device)
        turn = torch.linalg.svd(target.mT @ torch.outer(numbers, numbers).cos() @ source.mT)
        completed += target @ (turn.U @ turn.Vh) @ source
    return completed


SINGULAR = 1e-10
"""Below this share of the largest eigenvalue, a direction counts as one that nothing constrains."""


def least_solution(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, float, int]:
    """The least solution X of left X = right, the condition number, the rank that is missing.

    `left` [n, n] is symmetric and positive semidefinite, `right` [n, k], both float64. By Cholesky;
    where that fails or loses the digits, by the pseudo-inverse.
    """
    share, solved = (_by_lapack if here(left.device) else _by_torch)(left)
    if share > SINGULAR:
        return solved(right), 1 / share, 0
    values, vectors = torch.linalg.eigh(left)
    real = values > SINGULAR * values[-1]
    scaled = (vectors[:, real].T @ right) / values[real][:, None]
    missing = int((~real).sum())
    condition = float(values[-1] / values[real][0])
    return vectors[:, real] @ scaled, condition, missing


_Solved: TypeAlias = "tuple[float, Callable[[torch.Tensor], torch.Tensor]]"
"""One over the condition number of a matrix in the 1-norm, 0 if it has no Cholesky factor; and what
solves by that factor."""


def _by_lapack(matrix: torch.Tensor) -> _Solved:
    """On a processor; the condition number is LAPACK's estimate, for little work."""
    from scipy.linalg import lapack  # a fifth of a second, which few commands need

    norm = float(matrix.abs().sum(0).max())
    factor, failed = lapack.dpotrf(matrix.numpy(), lower=True)
    share = 0.0 if failed else float(lapack.dpocon(factor, norm, uplo="L")[0])
    return share, lambda right: torch.from_numpy(lapack.dpotrs(factor, right.numpy(), lower=1)[0])


def _by_torch(matrix: torch.Tensor) -> _Solved:
    """On any device; the condition number is that of the inverse."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    share = 0.0
    if not failed:
        norms = [one.abs().sum(0).max() for one in (matrix, torch.cholesky_inverse(factor))]
        share = float(1 / (norms[0] * norms[1]))
    return share, lambda right: torch.cholesky_solve(right, factor)


def tell(report: dict[str, Any], name: str, facts: Mapping[str, Any]) -> None:
    """Put what is known of a solution into a report, by fact and tensor: `condition`, and others.

    Of a condition number three digits: the last ones depend on the cores and on where in memory the
    matrix lies.
    """
    for fact, value in facts.items():
        told = float(f"{value:.3g}") if fact == "condition" else value
        report.setdefault(fact, {})[name] = told
