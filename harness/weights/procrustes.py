"""Procrustes analysis: orthogonal matrices that bring matrices nearest to one another.

A turn T mixes columns: W becomes W T. The results are those of `polar(W^T M)` at full width
(docs/methods.md#procrustes), but computed from narrower matrices. With more columns than rows, all
matrices that are turned to one reference lie in its row space. With more rows than the columns of
all matrices together, the inner products of the columns are enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import torch

from harness.weights.arithmetic import total
from harness.weights.decompositions import compact_svd, polar, polar_by_squares
from harness.weights.onednn import product
from harness.weights.small_turns import Frame, frame_from, frame_of, small_turn
from harness.weights.threads import one_thread, spread

Turn: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""Multiplies rows [rows, columns], in float64, by an orthogonal matrix [columns, columns]."""

ROUNDING = 1e-13
"""Share of the norm of some rows: a smaller part of them is only rounding."""
SYMMETRIC = 1e-14
"""Products that differ from their transpose by at most this share of their norm are symmetric."""
NEARLY = 1e-5
"""Products that differ from their transpose by at most this share are tried with a small turn."""
CLOSE = 1e-10
"""The error that small turns may leave in the turned rows, as a share of the reference's norm."""
SURE = 1e6
"""Two matrices with condition numbers below this have products of full rank in float64."""
BLOCK = 4096
"""How many rows of a long matrix are converted to float64 at a time."""


@one_thread()
def turns_to(
    reference: torch.Tensor,
    matrices: Sequence[torch.Tensor],
    factor: Callable[[torch.Tensor], torch.Tensor] = polar,
) -> list[Turn]:
    """For each matrix W, the turn T that minimises ||W T - reference||, all [rows, columns].

    T = polar(W^T reference): reflections are allowed, and T moves the null space of W^T reference
    as little as possible. The reference itself is not turned. With fewer rows than columns, no
    matrix with more columns than W has rows is decomposed; otherwise `factor` computes the polar
    factor of a square matrix.

    By hand: of W = (2, 0) and the reference (0, 3), W T = (0, 2).
    """
    if len(reference) < reference.shape[1]:
        target = torch.linalg.qr(reference.mT)

        def turn(matrix: torch.Tensor) -> Turn:
            source = torch.linalg.qr(matrix.mT)
            left, _, right = compact_svd(source.R @ target.R.mT)
            return partial(_turned_within, source.Q @ left, target.Q @ right.mT)
    else:

        def turn(matrix: torch.Tensor) -> Turn:
            return _by(factor(matrix.mT @ reference))

    return spread(lambda matrix: _as_it_is if matrix is reference else turn(matrix), matrices)


def _factor_by_squares(products: torch.Tensor) -> torch.Tensor:
    return polar_by_squares(products)[0]


def _as_it_is(rows: torch.Tensor) -> torch.Tensor:
    return rows


def _by(turn: torch.Tensor) -> Turn:
    return lambda rows: rows @ turn


def _then(first: Turn, second: Turn) -> Turn:
    return lambda rows: second(first(rows))


def _turned_within(source: torch.Tensor, target: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The rows, turned so that `source` goes to `target`, and the rest moves as little as possible.

    Both are orthonormal [columns, size]. In the plane of each pair of principal vectors, u of
    `source` and v of `target` at the angle t, the direction orthogonal to u turns by t as well, to
    the direction orthogonal to v.
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
    """How a generalized analysis continues from its first reference, and when it stops.

    `algorithm1` turns all matrices to the reference and takes their mean as the next reference,
    until the distance between successive references changes by less than `tol`, at most `max_iter`
    times. `fixed_reference` turns the original matrices to the first reference; a second pass,
    which is counted, would change nothing.
    """

    variant: Literal["algorithm1", "fixed_reference"] = "algorithm1"
    max_iter: int = 200
    tol: float = 1e-7


@dataclass(frozen=True)
class Generalized:
    """The result of a generalized analysis: the turned matrices, the turns, the number of passes.

    `turned` is None if there are more rows than all matrices have columns together; otherwise
    `turns` may be empty if they were not asked for. `before` and `after` are the sums of squared
    distances from the mean.
    """

    turned: Sequence[torch.Tensor] | None
    turns: Sequence[Turn]
    iterations: int
    before: float
    after: float


@one_thread()
def generalized(
    matrices: Sequence[torch.Tensor],
    starts: Sequence[int],
    rules: Rules,
    fixed: torch.Tensor | None = None,
    *,
    turns: bool = True,
) -> Generalized:
    """Generalized Procrustes Analysis (Gower 1975) of matrices [rows, columns], in float64.

    `starts` are the places of the matrices that all are turned to first. The mean of the turned
    matrices, or with several starts the mean of these means, is the first reference. The place
    after the last matrix is that of `fixed`, which is not turned itself. `turns=False` saves work
    where only the turned matrices are needed.

    By hand: of (2, 0) and (0, 4), with the first as the start, the second is turned to (4, 0) and
    the mean is (3, 0). Turning both to the mean changes nothing: two passes, and the sum of squared
    distances from the mean falls from 10 to 2.
    """
    models = _narrow([*matrices] if fixed is None else [*matrices, fixed])
    narrowed = len(models[0]) < len(matrices[0])
    before = _apart(models[: len(matrices)])
    cores = (
        None if turns or narrowed or len(starts) > 1 else _square_factors(models, models[starts[0]])
    )
    models, basis = cores or (models, None)
    result = _analysed(models, len(matrices), starts, rules, along=turns or narrowed)
    if narrowed:
        turned = None
    elif basis is None:
        turned = result.matrices
    else:
        turned = spread(lambda core: core @ basis.mT, result.matrices)
    return Generalized(turned, result.turns, result.iterations, before, _apart(result.matrices))


@dataclass(frozen=True)
class _TurnedMatrices:
    """Turned matrices, with their turns if these were asked for."""

    turns: Sequence[Turn]
    matrices: list[torch.Tensor]
    iterations: int = 0


def _analysed(
    matrices: list[torch.Tensor], count: int, starts: Sequence[int], rules: Rules, *, along: bool
) -> _TurnedMatrices:
    """The first `count` of the matrices, turned; with `along`, also turns for other rows.

    The list `matrices` is emptied, so that large matrices are freed as soon as they are turned.
    """
    references, models = [matrices[place] for place in starts], matrices[:count]
    matrices.clear()
    # two starts may cancel in the mean, whose rank then depends on the rounding of these first
    # turns: `polar` is more exact
    factor = polar if len(references) > 1 else _factor_by_squares
    begun = [_apply_turns(turns_to(start, models, factor), models) for start in references]
    reference = _mean([_mean(turned.matrices) for turned in begun])
    if rules.variant == "fixed_reference":
        return _apply_turns(turns_to(reference, models), models, min(2, rules.max_iter))
    del references, models
    if len(reference) >= reference.shape[1]:
        return _continued(begun[0], reference, rules, along=along)
    return _continued_within(begun, reference, rules)


def _apply_turns(
    turns: Sequence[Turn], matrices: Sequence[torch.Tensor], iterations: int = 0
) -> _TurnedMatrices:
    pairs = list(zip(turns, matrices, strict=True))
    return _TurnedMatrices(turns, spread(lambda pair: pair[0](pair[1]), pairs), iterations)


def _continued(
    begun: _TurnedMatrices, reference: torch.Tensor, rules: Rules, *, along: bool
) -> _TurnedMatrices:
    """The passes after the first reference, for at least as many rows as columns."""
    rows, count = begun.matrices, len(reference)
    if along:
        eye = _eye(reference)  # turned along, it becomes the turn
        for place, turn in enumerate(begun.turns):
            rows[place] = torch.cat([rows[place], turn(eye)])
    rows, iterations = _passes(rows, reference, rules)
    turns = [_by(matrix[count:]) for matrix in rows] if along else []
    return _TurnedMatrices(turns, [matrix[:count] for matrix in rows], iterations)


def _continued_within(
    begun: Sequence[_TurnedMatrices], reference: torch.Tensor, rules: Rules
) -> _TurnedMatrices:
    """The passes for fewer rows than columns, within a row space that contains all matrices."""
    turns, matrices = begun[0].turns, begun[0].matrices
    if len(begun) > 1:  # matrices turned to one start lie outside of the mean's row space
        second = _apply_turns(turns_to(reference, matrices), matrices)
        turns, matrices = list(map(_then, turns, second.turns)), second.matrices
    basis = _row_space([reference, *matrices])
    within = _TurnedMatrices([_as_it_is] * len(matrices), [matrix @ basis for matrix in matrices])
    done = _continued(within, reference @ basis, rules, along=True)
    steps = [partial(_turned_in, basis, turn(_eye(basis))) for turn in done.turns]
    wide = [matrix @ basis.mT for matrix in done.matrices]
    return _TurnedMatrices(list(map(_then, turns, steps)), wide, done.iterations)


def _eye(matrix: torch.Tensor) -> torch.Tensor:
    """The identity [columns, columns] for a matrix [rows, columns], in float64."""
    return torch.eye(matrix.shape[1], dtype=torch.float64, device=matrix.device)


_Moving: TypeAlias = "tuple[torch.Tensor, Frame | None]"
"""A matrix during the passes, and the frame of its products with the reference, if known."""


def _passes(
    rows: list[torch.Tensor], reference: torch.Tensor, rules: Rules
) -> tuple[list[torch.Tensor], int]:
    """The rows after repeated turns to the reference, and the number of passes.

    After each pass the mean of the rows becomes the reference, until it settles. Rows beyond those
    of the reference are turned along. The given list is emptied, to free its tensors.
    """
    moving: list[_Moving] = [(matrix, None) for matrix in rows]
    rows.clear()
    moved, iterations = math.nan, 0
    while iterations < rules.max_iter:
        iterations += 1
        spread(partial(_turn_one, reference, moving), range(len(moving)))
        before, reference = reference, _mean([matrix[: len(reference)] for matrix, _ in moving])
        last, moved = moved, float((before - reference).norm())
        if abs(last - moved) < rules.tol:  # false in the first pass: `last` is NaN
            break
    return [matrix for matrix, _ in moving], iterations


def _turn_one(reference: torch.Tensor, moving: list[_Moving], place: int) -> None:
    moving[place] = _nearer(reference, *moving[place])


def _nearer(reference: torch.Tensor, rows: torch.Tensor, frame: Frame | None) -> _Moving:
    """A matrix turned to the reference, and the frame for its next turn.

    It is not turned if their products are symmetric and positive definite, as for the first
    reference itself, and for two matrices of which one has been turned to the other.
    """
    products = rows[: len(reference)].mT @ reference
    asymmetry, size = float((products - products.mT).norm()), float(products.norm())
    if asymmetry <= SYMMETRIC * size and not torch.linalg.cholesky_ex(products).info:
        return rows, frame
    frame = (frame or frame_of(products)) if asymmetry <= NEARLY * size else None
    if frame and (small := small_turn(products, frame, CLOSE)):
        beyond, frame = small
        return rows + product(rows.to(beyond.dtype), beyond), frame
    step, values, vectors = polar_by_squares(products)
    return rows @ step, frame_from(values, vectors)


def _turned_in(basis: torch.Tensor, turn: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The rows, turned only within the span of the basis [columns, size]."""
    along = rows @ basis
    return rows + (along @ turn - along) @ basis.mT


def _mean(matrices: Sequence[torch.Tensor]) -> torch.Tensor:
    return total(matrices).div_(len(matrices))


def _apart(matrices: Sequence[torch.Tensor]) -> float:
    """The sum of squared distances from the mean."""
    mean = _mean(matrices)
    return float(sum((matrix - mean).square().sum() for matrix in matrices))


# In narrower matrices ----------------------------------------------------------------------


def _square_factors(
    models: Sequence[torch.Tensor], reference: torch.Tensor
) -> tuple[list[torch.Tensor], torch.Tensor] | None:
    """Square factors L of matrices W = L Q^T with fewer rows than columns, and the reference's Q.

    Q is [columns, rows]. W turned to the reference L' Q'^T is L polar(L^T L') Q'^T. None for other
    shapes, and if a matrix may have less than full rank: the formula does not hold there.
    """
    if len(reference) >= reference.shape[1]:
        return None
    basis, core = torch.linalg.qr(reference.mT)

    def lower(model: torch.Tensor) -> torch.Tensor:
        upper: torch.Tensor = core if model is reference else torch.linalg.qr(model.mT, mode="r").R
        return upper.mT.contiguous()

    cores = spread(lower, models)
    return (cores, basis) if all(map(_surely_full, cores)) else None


def _surely_full(lower: torch.Tensor) -> bool:
    """Whether a lower triangular matrix is far from singular."""
    inverse = torch.linalg.solve_triangular(lower, _eye(lower), upper=False)
    return float(lower.norm() * inverse.norm()) < SURE


def _row_space(matrices: Sequence[torch.Tensor]) -> torch.Tensor:
    """An orthonormal basis [columns, size] whose span contains all rows.

    `size` is the number of rows of one matrix, unless the first has less than full rank.
    """
    basis: torch.Tensor = torch.linalg.qr(matrices[0].mT).Q
    rows = torch.cat(list(matrices))
    rest = rows - rows @ basis @ basis.mT
    if rest.norm() <= ROUNDING * rows.norm():
        return basis
    return compact_svd(rows)[2].mT


def _narrow(matrices: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The matrices in float64, or shorter ones with the same inner products of columns.

    The shorter ones are for more rows than the columns of all together, as embeddings have: blocks
    of the Cholesky factor of all inner products. It is pivoted, as similar matrices make the
    products singular.
    """
    rows, columns = matrices[0].shape
    width = columns * len(matrices)
    if rows <= width:
        return [matrix.double() for matrix in matrices]
    from scipy.linalg.lapack import dpstrf  # torch has none; not for `import harness`

    # LAPACK stores columns: it gets the transpose, and its factor overwrites the products
    products = _products(matrices).cpu().numpy()
    factor, order, rank, _ = dpstrf(products.T, lower=1, overwrite_a=1)
    upper = torch.empty(rank, width, dtype=torch.float64)
    upper[:, torch.from_numpy(order).long() - 1] = torch.from_numpy(factor.T)[:rank].triu_()
    return list(torch.split(upper.to(matrices[0].device), columns, 1))


def _products(matrices: Sequence[torch.Tensor]) -> torch.Tensor:
    """The inner products of all columns [width, width]: blocks below the diagonal are left zero."""
    rows, columns = matrices[0].shape
    count = len(matrices)
    width, device = count * columns, matrices[0].device
    products = torch.zeros(width, width, dtype=torch.float64, device=device)

    def fill(pair: tuple[int, int]) -> None:
        first, second = pair
        spans = [slice(index * columns, (index + 1) * columns) for index in pair]
        for start in range(0, rows, BLOCK):
            part = slice(start, start + BLOCK)
            left, right = matrices[first][part].double(), matrices[second][part].double()
            products[spans[0], spans[1]].addmm_(left.mT, right)

    spread(fill, [(first, second) for first in range(count) for second in range(first, count)])
    return products
