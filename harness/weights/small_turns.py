"""Small turns: what turns a matrix to a reference that it is near to, by products of matrices.

Of rows P and a reference R, P^T R = exp(X) H with an antisymmetric X and a symmetric H, and exp(X)
is what `polar` says. To first order X H + H X = P^T R - R^T P, which the eigenvectors of H solve
entry by entry (Newton's step; Higham 2008, Functions of Matrices, section 8.4). From pass to pass
of an analysis X and these eigenvectors change so little that nothing is decomposed anew but what
belongs to the least eigenvalues, where turns are large.

Corrections are computed in float32 and composed in float64: what one of them lacks, the next
corrects.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from harness.weights.onednn import product

NARROWEST = 192
"""Columns from which on this is faster than a decomposition."""
LEAST = 16
"""One in so many directions, those of the least eigenvalues, is turned exactly."""
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
    directions, the largest of them at the end.
    """

    vectors: torch.Tensor
    least: torch.Tensor
    values: torch.Tensor
    left: float = 1e-2
    swing: float = 1.0


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


def _swept(
    products: torch.Tensor, frame: Frame, close: float, swing: float
) -> tuple[torch.Tensor, Frame]:
    """Correction after correction until what is left is small enough, in float64, and the frame.

    The first of them leaves the part `swing` at least: so far turns among the least directions are.
    """
    size, last = float(frame.values.sum().sqrt()), math.nan
    beyond: torch.Tensor | None = None
    for _ in range(SWEEPS):
        correction = _correction(products, frame)
        moved = float((frame.values.sqrt()[:, None] * correction).norm())
        if not moved < LARGEST * size or moved > FRESH * last:
            raise _NotSmall
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
    values = frame.values.float()
    correction = product(frame.vectors.mT, product(odd, frame.vectors))
    correction /= values[:, None] + values
    rest = len(values) - frame.least.shape[1]
    correction[rest:, rest:] = 0
    return correction


def _out_of(frame: Frame, correction: torch.Tensor) -> torch.Tensor:
    """X itself, exactly antisymmetric: no rounding makes its exponential anything but a turn."""
    whole = product(frame.vectors, product(correction, frame.vectors.mT))
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
        term = product(term, turn).div_(power)
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
    return turn, Frame(vectors, least, values, frame.left, float(turn.norm()))
