"""Small turns: what turns a matrix to a reference that it is near to, by products of matrices.

Of rows P and a reference R, P^T R = exp(X) H with an antisymmetric X and a symmetric H, and exp(X)
is what `polar` says. To first order X H + H X = P^T R - R^T P, which the eigenvectors of H solve
entry by entry (Newton's step; Higham 2008, Functions of Matrices, section 8.4). From pass to pass
of an analysis X and these eigenvectors change so little that nothing is decomposed anew but what
belongs to the least eigenvalues, where turns are large.

Corrections are computed in float32 and composed in float64: what one of them lacks, the next
corrects. After a few passes nothing is left to correct among the directions of great eigenvalues:
a `late_turn` is of the others alone, and needs products of a sixth of the width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

NARROWEST = 192
"""Columns from which on this is faster than a decomposition."""
LEAST = 16
"""One in so many directions, those of the least eigenvalues, is turned exactly."""
LATE = 6
"""One in so many directions is turned late, where the least eigenvalues are."""
SETTLED = 8
"""Times what a correction may leave: less of one among the great directions, and the next pass has
nothing to do there. From pass to pass it falls by ten times and more."""
BENT = 0.1
"""Times what a correction may leave: so far from a turn, at most, may a late one take the rows, as
of exp(X) it has 1 + X alone."""
LARGE = 1e-3
"""The norm of a correction from which on it is computed in float64."""
LARGEST = 0.01
"""Of the norm of the reference: a correction that moves the rows by more is no small turn."""
SWEEPS = 5
"""Corrections in a row before a decomposition is as fast."""
FRESH = 1 / 8
"""Of a correction, how much the next may be before the directions count as out of date."""
SWUNG = 1e-4
"""The norm of a turn among the least directions that corrections had better come after."""
NARROW = 1e-4
"""The norm of a step that need not be in float64, whatever rows it is applied to."""
ROOM = 1e12
"""Eigenvalues between this and its inverse have room in float32, with their roots and products."""
TERMS = 12
"""Terms of an exponential that are enough for the largest correction."""
LEFT = 1e-4
"""What a correction is taken to leave at least, though it may be less: directions age."""
ROUNDING = 1e-13
"""What is less in an exponential is left out."""


@dataclass(frozen=True)
class Frame:
    """Eigenvectors of H, nearly, from the greatest eigenvalue to the least.

    `vectors` [n, n] are in float32, the last of them, `least` [n, k], in float64 as well, where
    they are orthonormal; `values` [n] in float64. `left` is the part of a correction that the next
    one makes, a guess at first; `swing` the norm of the last turn among the least
    directions, the largest of them at the end. `great` is by how much the first correction of the
    last small turn moved the rows in the directions that are not turned late.
    """

    vectors: torch.Tensor
    least: torch.Tensor
    values: torch.Tensor
    left: float = 1e-2
    swing: float = 1.0
    great: float = math.inf


class _NotSmall(Exception):
    """The turn is not small, or the frame is out of date."""


def frame_of(products: torch.Tensor) -> Frame | None:
    """The frame of products P^T R [n, n] that are nearly symmetric; None as for `frame_from`."""
    if len(products) < NARROWEST:
        return None
    values, vectors = torch.linalg.eigh((products + products.mT).div_(2))
    return frame_from(values.flip(0), vectors.flip(1))


def frame_from(values: torch.Tensor, vectors: torch.Tensor) -> Frame | None:
    """The frame of these eigenvalues, from the greatest, and eigenvectors; None if it is no use.

    So it is for few directions, and where more eigenvalues are nearly zero than are the least.
    """
    rest, most = len(values) - len(values) // LEAST, float(values[0])
    if len(values) < NARROWEST or not 1 / ROOM < most < ROOM:
        return None
    if not values[rest - 1] > 16 * torch.finfo(torch.float32).eps * most:
        return None
    return Frame(vectors.float(), vectors[:, rest:].contiguous(), values.clamp(min=0))


def small_turn(
    products: torch.Tensor, frame: Frame, close: float
) -> tuple[torch.Tensor, Frame] | None:
    """polar(P^T R) - 1 for products P^T R [n, n], and the frame of what it makes of them.

    It brings P nearest to R but for about `close` times the norm of R, and is in float32 where
    that is enough to add P times it to P. None where the turn is not small, where the frame is out
    of date, or where P^T R is of less than full rank to rounding.
    """
    try:
        if frame.swing <= SWUNG:
            beyond, frame = _swept(products, frame, close, frame.swing)
        else:
            there = frame.least
            turn, frame = _least(there.mT @ (products @ there), frame)
            first, swing = turn @ there.mT, frame.swing
            products = torch.addmm(products, first.mT, there.mT @ products)
            beyond, frame = _swept(products, frame, close, 0.0)
            beyond = torch.addmm(beyond, there, torch.addmm(first, first, beyond))
            frame = replace(frame, swing=max(swing, frame.swing))
    except _NotSmall:
        return None
    return (beyond.float() if float(beyond.norm()) <= NARROW else beyond), frame


def late_turn(
    rows: torch.Tensor, reference: torch.Tensor, frame: Frame, close: float
) -> tuple[torch.Tensor, Frame] | None:
    """Rows P, with all rows after them, turned to a reference R [rows, n] as `small_turn` says, and
    the frame after it; None where it takes the products P^T R to say.

    So it is where the last small turn moved the rows in the great directions by more than nothing,
    and where no small turn would do.
    """
    size, great = float(frame.values.sum().sqrt()), _great(frame)
    if frame.great > SETTLED * close * size:
        return None
    count, least = len(reference), frame.least.shape[1]
    rows, between = rows.clone(), frame.vectors[:, great:-least].double()
    first, swing, last = 0.0, frame.swing, math.nan
    try:
        if swing > SWUNG:
            frame = _turn_least(rows, reference @ frame.least, frame)
            first, swing = frame.swing, 0.0
        for _ in range(SWEEPS):
            low = torch.cat([between, frame.least], 1)
            there, here = reference @ low, rows @ low
            odd = torch.addmm(rows[:count].mT @ there, reference.mT, here[:count], alpha=-1)
            correction = _divided(frame.vectors.mT @ odd.float(), frame, great)
            moved = float((frame.values.sqrt()[:, None] * correction).norm())
            if moved > FRESH * last or moved * float(correction.norm()) > BENT * close * size:
                raise _NotSmall
            if not math.isnan(last):
                frame = replace(frame, left=max(LEFT, moved / last))
            # X = Y L^T - L Y^T of the late directions L, which has twice what is between them
            correction[great:] /= 2
            step = (frame.vectors @ correction).double()
            rows.addmm_(rows @ step, low.mT).addmm_(here, step.mT, alpha=-1)
            frame = _turn_least(rows, there[:, -least:], frame)
            if moved * max(frame.left, swing) <= close * size:
                return rows, replace(frame, swing=max(first, frame.swing))
            last, swing = moved, 0.0
    except _NotSmall:
        pass
    return None


def _turn_least(rows: torch.Tensor, there: torch.Tensor, frame: Frame) -> Frame:
    """Turn rows among the least directions to what a reference has there; the frame after it."""
    directions, here = frame.least, rows @ frame.least
    turn, frame = _least(here[: len(there)].mT @ there, frame)
    rows.addmm_(here @ turn, directions.mT)
    return frame


def _great(frame: Frame) -> int:
    """How many directions are not turned late."""
    return len(frame.values) - len(frame.values) // LATE


def _swept(
    products: torch.Tensor, frame: Frame, close: float, swing: float
) -> tuple[torch.Tensor, Frame]:
    """Correction after correction until what is left is small enough, in float64, and the frame.

    The first of them leaves the part `swing` at least: so far turns among the least directions are.
    """
    size, last = float(frame.values.sum().sqrt()), math.nan
    great = _great(frame)
    beyond: torch.Tensor | None = None
    for _ in range(SWEEPS):
        correction = _correction(products, frame)
        moving = frame.values.sqrt()[:, None] * correction
        moved = float(moving.norm())
        if not moved < LARGEST * size or moved > FRESH * last:
            raise _NotSmall
        if math.isnan(last):
            frame = replace(frame, great=float(moving[:great, :great].norm()))
        if not math.isnan(last):
            frame = replace(frame, left=max(LEFT, moved / last))
        more, frame = _least_turned(products, _beyond_one(_out_of(frame, correction)), frame)
        beyond = more if beyond is None else torch.addmm(beyond + more, beyond, more)
        if moved * max(frame.left, swing) <= close * size:
            return beyond, frame
        products, last, swing = torch.addmm(products, more.mT, products), moved, 0.0
    raise _NotSmall


def _correction(products: torch.Tensor, frame: Frame) -> torch.Tensor:
    """X in the frame, to first order, [n, n] in float32: zero among the least directions."""
    odd = (products - products.mT).float()
    return _divided(frame.vectors.mT @ (odd @ frame.vectors), frame)


def _divided(odd: torch.Tensor, frame: Frame, first: int = 0) -> torch.Tensor:
    """The X of an antisymmetric matrix in the frame, of its columns from `first` on."""
    values = frame.values.float()
    odd /= values[:, None] + values[first:]
    odd[-frame.least.shape[1] :, -frame.least.shape[1] :] = 0
    return odd


def _out_of(frame: Frame, correction: torch.Tensor) -> torch.Tensor:
    """X itself, exactly antisymmetric: no rounding makes its exponential anything but a turn."""
    whole = frame.vectors @ (correction @ frame.vectors.mT)
    return (whole - whole.mT).div_(2)


def _beyond_one(turn: torch.Tensor) -> torch.Tensor:
    """exp(X) - 1 in float64, computed so where float32 would show."""
    norm = float(turn.norm())
    term = turn = turn if norm <= LARGE else turn.double()
    result, size = turn.to(torch.float64, copy=True), norm
    for power in range(2, TERMS):
        size *= norm / power
        if size <= ROUNDING:
            break
        term = (term @ turn).div_(power)
        result += term
    return result


def _least_turned(
    products: torch.Tensor, beyond: torch.Tensor, frame: Frame
) -> tuple[torch.Tensor, Frame]:
    """A turn and then the one among the least directions, both less 1, and the frame after it."""
    there = frame.least
    leaning = torch.addmm(there, beyond, there)
    turn, frame = _least(leaning.mT @ (products @ there), frame)
    return torch.addmm(beyond, leaning @ turn, there.mT), frame


def _least(products: torch.Tensor, frame: Frame) -> tuple[torch.Tensor, Frame]:
    """The turn among the least directions, less 1, from the products there [k, k]; the frame."""
    left, values, right = torch.linalg.svd(products)
    width, rest = len(frame.values), len(frame.values) - len(values)
    if not values[-1] > width * torch.finfo(torch.float64).eps * frame.values[0]:
        raise _NotSmall
    turn = left @ right
    turn.diagonal().sub_(1)
    least = frame.least @ right.mT
    vectors = frame.vectors.clone()
    vectors[:, rest:] = least
    values = torch.cat([frame.values[:rest], values])
    return turn, Frame(vectors, least, values, frame.left, float(turn.norm()), frame.great)
