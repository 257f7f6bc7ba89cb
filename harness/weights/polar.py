"""The one primitive of alignment: the nearest orthogonal matrix."""

from __future__ import annotations

import torch

from harness.weights.spectrum import ALIKE


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


def polar_and_values(
    matrix: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The polar factor Q of square matrices [..., n, n] in float64, and what Q^T times them has
    for eigenvalues [..., n], from the greatest, and eigenvectors [..., n, n], in columns.
    """
    left, values, right = torch.linalg.svd(matrix)
    nearest: torch.Tensor = left @ right
    empty = values <= matrix.shape[-1] * torch.finfo(torch.float64).eps * values[..., :1]
    for place in map(tuple, torch.nonzero(empty.any(-1)).tolist()):
        nearest[place] = _completed(left[place], right[place], empty[place])
    return nearest, values, right.mT


def _completed(left: torch.Tensor, right: torch.Tensor, empty: torch.Tensor) -> torch.Tensor:
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
        numbers = torch.arange(1, len(left) + 1, dtype=torch.float64)
        turn = torch.linalg.svd(target.mT @ torch.outer(numbers, numbers).cos() @ source.mT)
        completed += target @ (turn.U @ turn.Vh) @ source
    return completed
