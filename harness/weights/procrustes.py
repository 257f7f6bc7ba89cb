"""Procrustes analysis: matrices turned, by orthogonal matrices, to be nearest to one another.

A turn T acts on columns, W to W T. What is computed is what `polar(W^T M)` of the full width says
(methods.md 2.1 and 2.3), in narrower matrices: of matrices with more columns than rows, all that
are turned to one reference lie in its row space; of matrices with more rows than all of them have
columns together, inner products are enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import torch

from harness.weights.polar import polar
from harness.weights.spectrum import compact_svd
from harness.weights.threads import spread

Turn: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""Multiplies rows [rows, columns], in float64, by an orthogonal matrix [columns, columns]."""

ROUNDING = 1e-13
"""Of the norm of some rows: a part that is smaller is nothing but rounding."""
SYMMETRIC = 1e-14
"""Of the norm of products: what differs by less from its transposed does so by rounding."""
BLOCK = 4096
"""How many rows of a long matrix are widened at a time."""


def turns_to(reference: torch.Tensor, matrices: Sequence[torch.Tensor]) -> list[Turn]:
    """For each matrix W, the turn T that minimises ||W T - reference||, all [rows, columns].

    T = polar(W^T reference): reflections are allowed, and what W^T reference maps to zero stays as
    near to where it was as it can. The reference itself stays. With fewer rows than columns
    nothing is decomposed that is wider than the rows.

    By hand: of W = (2, 0) and the reference (0, 3), W T = (0, 2).
    """
    if len(reference) < reference.shape[1]:
        there = torch.linalg.qr(reference.mT)

        def turn(matrix: torch.Tensor) -> Turn:
            return partial(_turned_within, *_paired(torch.linalg.qr(matrix.mT), there))
    else:

        def turn(matrix: torch.Tensor) -> Turn:
            return _by(polar(matrix.mT @ reference))

    return spread(lambda one: _as_it_is if one is reference else turn(one), matrices)


def _as_it_is(rows: torch.Tensor) -> torch.Tensor:
    return rows


def _by(turn: torch.Tensor) -> Turn:
    return lambda rows: rows @ turn


def _then(first: Turn, second: Turn) -> Turn:
    return lambda rows: second(first(rows))


Factors: TypeAlias = tuple[torch.Tensor, torch.Tensor]
"""Q [columns, rows] and R [rows, rows] of the transposed of a matrix."""


def _paired(here: Factors, there: Factors) -> tuple[torch.Tensor, torch.Tensor]:
    """Orthonormal directions [columns, rank] of one row space, and those they are turned to."""
    left, _, right = compact_svd(here[1] @ there[1].mT)
    return here[0] @ left, there[0] @ right.mT


def _turned_within(source: torch.Tensor, target: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The rows, by the turn of `source` to `target` that leaves all else as near as it can.

    In each plane of principal vectors u and v of both, at the angle t, what is orthogonal to u
    turns by t as well, to what is orthogonal to v.
    """
    along = rows @ source
    rest = rows - along @ source.mT
    turned = along @ target.mT
    if rest.norm() <= ROUNDING * rows.norm():
        return turned
    left, cosines, right = torch.linalg.svd(source.mT @ target)
    lifted = rest @ target @ right.mT / (1 + cosines)
    turned += rest - lifted @ (source @ left + target @ right.mT).mT
    return turned


# Of several matrices -----------------------------------------------------------------------


@dataclass(frozen=True)
class Rules:
    """How a generalized analysis goes on from its first reference, and when it stops.

    `algorithm1` turns all matrices to the reference, which their mean becomes, until the distance
    between two references changes by less than `tol`, or `max_iter` times. `fixed_reference` turns
    the matrices as they were to the first reference for good, which its second pass tells.
    """

    variant: Literal["algorithm1", "fixed_reference"] = "algorithm1"
    max_iter: int = 200
    tol: float = 1e-7


@dataclass(frozen=True)
class Generalized:
    """What a generalized analysis found: a turn for each matrix, and how it went.

    `before` and `after` are sums of squared distances from the mean.
    """

    turns: Sequence[Turn]
    iterations: int
    before: float
    after: float


def generalized(
    matrices: Sequence[torch.Tensor],
    starts: Sequence[int],
    rules: Rules,
    fixed: torch.Tensor | None = None,
) -> Generalized:
    """Generalized Procrustes Analysis (Gower 1975) of matrices [rows, columns], in float64.

    Those in `starts` are what all are turned to first: the mean of all then is the reference, or
    the mean of such means. The place after the last is that of `fixed`, which is not turned itself.

    By hand: of (2, 0) and (0, 4), from the first, the second is turned to (4, 0) and the mean is
    (3, 0), to which both are turned by nothing: two passes, from 10 to 2.
    """
    models = _narrow([*matrices] if fixed is None else [*matrices, fixed])
    references, models = [models[place] for place in starts], models[: len(matrices)]
    begun = [_turned(turns_to(one, models), models) for one in references]
    reference = _mean([_mean(one.matrices) for one in begun])
    if rules.variant == "fixed_reference":
        turned = _turned(turns_to(reference, models), models, min(2, rules.max_iter))
    else:
        turned = _continued(begun, reference, rules)
    turns, width = turned.turns, models[0].shape[1]
    if len(models[0]) >= width:
        turns = [_by(turn(torch.eye(width, dtype=torch.float64))) for turn in turns]
    return Generalized(turns, turned.iterations, _apart(models), _apart(turned.matrices))


@dataclass(frozen=True)
class _Turned:
    """Matrices, turned, and by what."""

    turns: Sequence[Turn]
    matrices: Sequence[torch.Tensor]
    iterations: int = 0


def _turned(
    turns: Sequence[Turn], matrices: Sequence[torch.Tensor], iterations: int = 0
) -> _Turned:
    pairs = list(zip(turns, matrices, strict=True))
    return _Turned(turns, spread(lambda pair: pair[0](pair[1]), pairs), iterations)


def _continued(begun: Sequence[_Turned], reference: torch.Tensor, rules: Rules) -> _Turned:
    """The passes from the first reference on, in a row space that all matrices lie in."""
    turns, matrices = begun[0].turns, begun[0].matrices
    if len(reference) >= reference.shape[1]:
        passed = _passes(matrices, reference, rules)
        steps = [_by(turn) for turn in passed.turns]
    else:
        if len(begun) > 1:  # what is turned to one end only does not lie where the mean does
            again = _turned(turns_to(reference, matrices), matrices)
            turns, matrices = list(map(_then, turns, again.turns)), again.matrices
        basis = _row_space([reference, *matrices])
        passed = _passes([one @ basis for one in matrices], reference @ basis, rules)
        steps = [partial(_turned_in, basis, turn) for turn in passed.turns]
    return _Turned(list(map(_then, turns, steps)), passed.matrices, passed.iterations)


@dataclass(frozen=True)
class _Passed:
    """Matrices after the passes, and the orthogonal matrices they were turned by."""

    turns: Sequence[torch.Tensor]
    matrices: Sequence[torch.Tensor]
    iterations: int


def _passes(matrices: Sequence[torch.Tensor], reference: torch.Tensor, rules: Rules) -> _Passed:
    """Step 2 of methods.md 2.3: all are turned to the reference, which their mean becomes."""
    turned = list(matrices)
    turns = [torch.eye(reference.shape[1], dtype=torch.float64) for _ in matrices]
    moved, iterations = math.nan, 0  # no change is less than any before the second pass
    while iterations < rules.max_iter:
        iterations += 1
        steps = spread(partial(_step, reference), turned)
        turned = [matrix for _, matrix in steps]
        turns = [turn @ step for turn, (step, _) in zip(turns, steps, strict=True)]
        before, reference = reference, _mean(turned)
        last, moved = moved, float((before - reference).norm())
        if abs(last - moved) < rules.tol:
            break
    return _Passed(turns, turned, iterations)


def _step(reference: torch.Tensor, matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What turns a matrix to the reference, and the matrix turned.

    It is nothing if their products are symmetric and positive: so it is for the first reference
    itself, and for two matrices of which one has been turned to the other.
    """
    products = matrix.mT @ reference
    odd = (products - products.mT).norm()
    if odd <= SYMMETRIC * products.norm() and not torch.linalg.cholesky_ex(products).info:
        return torch.eye(len(products), dtype=torch.float64), matrix
    step = polar(products)
    return step, matrix @ step


def _turned_in(basis: torch.Tensor, turn: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The rows, turned within the span of the basis [columns, size]; the rest stays."""
    along = rows @ basis
    return rows + (along @ turn - along) @ basis.mT


def _mean(matrices: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.stack(list(matrices)).mean(0)


def _apart(matrices: Sequence[torch.Tensor]) -> float:
    """The sum of squared distances from the mean."""
    mean = _mean(matrices)
    return float(sum((one - mean).square().sum() for one in matrices))


# In narrower matrices ----------------------------------------------------------------------


def _row_space(matrices: Sequence[torch.Tensor]) -> torch.Tensor:
    """Orthonormal directions [columns, size] that all rows lie in: as few as the rows of one.

    More only where the first matrix is of less than full rank.
    """
    basis: torch.Tensor = torch.linalg.qr(matrices[0].mT).Q
    rows = torch.cat(list(matrices))
    rest = rows - rows @ basis @ basis.mT
    if rest.norm() <= ROUNDING * rows.norm():
        return basis
    return compact_svd(rows)[2].mT


def _narrow(matrices: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The matrices in float64, or shorter ones with the same inner products of columns.

    Where there are more rows than all have columns together, as of embeddings, these are blocks of
    the Cholesky factor of all inner products, pivoted, as matrices that are alike leave it of less
    than full rank.
    """
    rows, columns = matrices[0].shape
    width = columns * len(matrices)
    if rows <= width:
        return [one.double() for one in matrices]
    from scipy.linalg.lapack import dpstrf  # scipy's, as torch has none; not for `import harness`

    products = torch.zeros(width, width, dtype=torch.float64)
    for start in range(0, rows, BLOCK):
        block = torch.cat([one[start : start + BLOCK].double() for one in matrices], 1)
        products.addmm_(block.mT, block)
    factor, order, rank, _ = dpstrf(products.numpy())
    upper = torch.empty(rank, width, dtype=torch.float64)
    upper[:, torch.from_numpy(order).long() - 1] = torch.from_numpy(factor[:rank]).triu()
    return list(torch.split(upper, columns, 1))
