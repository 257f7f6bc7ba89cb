"""Singular value decompositions, polar factors, and least squares without full rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch

from harness.weights.threads import here

EPSILON = torch.finfo(torch.float64).eps
"""2^-52, the relative distance between neighbouring float64 numbers."""
ALIKE = 1e-7
"""Unit vectors that differ by at most this are one direction up to rounding: singular vectors have
errors of 2^-52 over the relative gap between neighbouring singular values."""
Decomposed: TypeAlias = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""A singular value decomposition: U, s and V^T."""


def compact_svd(matrix: torch.Tensor, part_of: float = 0.0) -> Decomposed:
    """U [rows, rank], s [rank] and V^T [rank, columns] of matrix = U diag(s) V^T, in float64.

    The rank counts singular values above (larger side) * 2^-52 * max(largest value, `part_of`),
    where `part_of` is the norm of what the matrix is a part or a difference of: a rest that is only
    rounding has rank 0. For the other values LAPACK gives an arbitrary basis of the null space,
    which differs between machines: nothing may depend on it. The decomposition is the reduced one.
    """
    left, values, right = torch.linalg.svd(matrix.double(), full_matrices=False)
    whole = values[:1].clamp(min=part_of)
    real = values > max(matrix.shape) * EPSILON * whole
    return left[:, real], values[real], right[real]


def leading(decomposed: Decomposed, count: int) -> Decomposed:
    """The first `count` values and vectors, as copies: views would keep all of them in memory."""
    left, values, right = decomposed
    return left[:, :count].clone(), values[:count].clone(), right[:count].clone()


def side_by_side(parts: Sequence[Decomposed]) -> Decomposed:
    """Several decompositions in one: the isometries nearest to all U and V^T, and all values."""
    lefts, values, rights = zip(*parts, strict=True)
    return isometry(torch.cat(lefts, dim=1)), torch.cat(values), isometry(torch.cat(rights))


def isometry(matrix: torch.Tensor) -> torch.Tensor:
    """U V^T of the singular value decomposition of unit vectors side by side, [rows, columns] in
    float64, without the singular values of at most 1e-7 of the largest.

    It is the polar factor, but zero in the directions left out. `polar` completes it there, in
    order to turn whole spaces; here no direction may appear that no input has, nor the difference
    between two singular vectors that are equal up to rounding.

    By hand: isometry((3, 0), (0, 0)) = ((1, 0), (0, 0)), where polar gives the identity.
    """
    left, values, right = compact_svd(matrix)
    apart = values > ALIKE * values[:1]
    return left[:, apart] @ right[apart]


def polar(matrix: torch.Tensor) -> torch.Tensor:
    """The orthogonal polar factor of `matrix` [..., rows, columns], in float64: argmax of
    <matrix, Q> over all Q with orthonormal rows or columns, whichever are fewer.

    Q = U V^T of the singular value decomposition U S V^T; a long matrix is reduced to a square one
    by a QR factorisation first. Reflections are allowed. On the null space of a square matrix Q is
    not unique: there it is the nearest to the identity, so that nothing depends on the basis of the
    null space that LAPACK returns. The factor of a zero matrix is the identity.

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
    """The polar factor Q of square matrices M [..., n, n] in float64, and of Q^T M the eigenvalues
    [..., n], the greatest first, and eigenvectors [..., n, n], in columns.
    """
    left, values, right = torch.linalg.svd(matrix)
    nearest: torch.Tensor = left @ right
    empty = values <= matrix.shape[-1] * EPSILON * values[..., :1]
    for place in map(tuple, torch.nonzero(empty.any(-1)).tolist()):
        nearest[place] = completed(left[place], right[place], empty[place])
    return nearest, values, right.mT


SURE = 1e-3
"""Singular values above this share of the greatest are precise enough if found by their squares."""


def polar_by_squares(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The result of `polar_and_values` for one matrix M [n, n], in three quarters of the time.

    From the eigenvectors V of M^T M; only the small columns of M V, made orthogonal to the others,
    are decomposed themselves. A matrix times Q agrees with that of `polar_and_values` to 1e-11 of
    its norm. If M may have less than full rank, the result is from `polar_and_values`.
    """
    squares, vectors = (part.flip(-1) for part in torch.linalg.eigh(matrix.mT @ matrix))
    values = squares.clamp(min=0).sqrt()
    count = int((values > SURE * values[0]).sum())
    large, small = torch.split(matrix @ vectors, [count, len(matrix) - count], 1)
    large = large / values[:count]
    left, values[count:], right = torch.linalg.svd(
        small - large @ (large.mT @ small), full_matrices=False
    )
    if not values[-1] > len(matrix) * EPSILON * values[0]:
        return polar_and_values(matrix)
    left -= large @ (large.mT @ left)  # rounding left a part along the large ones
    vectors[:, count:] = vectors[:, count:] @ right.mT
    return torch.cat([large, left], 1) @ vectors.mT, values, vectors


def completed(left: torch.Tensor, right: torch.Tensor, empty: torch.Tensor) -> torch.Tensor:
    """U V^T of a decomposition, mapping the null space (`empty`) as near to the identity as it can.

    Directions of one null space that are orthogonal to all of the other are still undetermined.
    They are mapped nearest to an arbitrary but fixed matrix, as LAPACK's basis may differ each
    time.
    """
    source, target = right[empty], left[:, empty]
    turn = torch.linalg.svd(target.mT @ source.mT)
    near = turn.S > ALIKE
    result: torch.Tensor = left[:, ~empty] @ right[~empty]
    result += target @ (turn.U[:, near] @ turn.Vh[near]) @ source
    if not bool(near.all()):
        source, target = turn.Vh[~near] @ source, target @ turn.U[:, ~near]
        numbers = torch.arange(1, len(left) + 1, dtype=torch.float64, device=left.device)
        turn = torch.linalg.svd(target.mT @ torch.outer(numbers, numbers).cos() @ source.mT)
        result += target @ (turn.U @ turn.Vh) @ source
    return result


SINGULAR = 1e-10
"""Directions with eigenvalues below this share of the largest count as unconstrained."""


def least_solution(left: torch.Tensor, right: torch.Tensor) -> tuple[torch.Tensor, float, int]:
    """The least solution X of left X = right, the condition number, and n minus the rank of `left`.

    `left` [n, n] is symmetric and positive semidefinite, `right` [n, k], both float64. Solved by
    Cholesky, with the condition number in the 1-norm, or, if that fails or loses too many digits,
    by the pseudo-inverse, with the ratio of the eigenvalues that count.
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
"""One over the condition number of a matrix in the 1-norm, 0 if it has no Cholesky factor; and a
function that solves with that factor."""


def _by_lapack(matrix: torch.Tensor) -> _Solved:
    """On a processor; the condition number is LAPACK's estimate, which costs little."""
    from scipy.linalg import lapack  # importing it takes a fifth of a second

    norm = float(matrix.abs().sum(0).max())
    factor, failed = lapack.dpotrf(matrix.numpy(), lower=True)
    share = 0.0 if failed else float(lapack.dpocon(factor, norm, uplo="L")[0])
    return share, lambda right: torch.from_numpy(lapack.dpotrs(factor, right.numpy(), lower=1)[0])


def _by_torch(matrix: torch.Tensor) -> _Solved:
    """On any device; the condition number is exact, from the inverse."""
    factor, failed = torch.linalg.cholesky_ex(matrix)
    share = 0.0
    if not failed:
        norms = [one.abs().sum(0).max() for one in (matrix, torch.cholesky_inverse(factor))]
        share = float(1 / (norms[0] * norms[1]))
    return share, lambda right: torch.cholesky_solve(right, factor)


def tell(report: dict[str, Any], name: str, facts: Mapping[str, Any]) -> None:
    """Add facts about one tensor, such as `condition`, to a report: report[fact][name] = value.

    A condition number is rounded to three digits: the last ones depend on the number of cores and
    on where in memory the matrix lies.
    """
    for fact, value in facts.items():
        rounded = float(f"{value:.3g}") if fact == "condition" else value
        report.setdefault(fact, {})[name] = rounded
