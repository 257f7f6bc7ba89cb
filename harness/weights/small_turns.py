"""Small turns: the turn of a matrix to a nearby reference, mostly by products of matrices.

For rows P and a reference R, P^T R = exp(X) H with an antisymmetric X and a symmetric H, and exp(X)
is `polar(P^T R)`. To first order X H + H X = P^T R - R^T P, which is solved entry by entry in the
basis of the eigenvectors of H (Newton's step; Higham 2008, Functions of Matrices, section 8.4).
X and these eigenvectors change little from one pass of an analysis to the next, so that only the
directions of the least eigenvalues, where turns are large, are decomposed anew.

Corrections are computed in float32 and composed in float64: each removes the error of the last.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from harness.weights.onednn import product

NARROWEST = 192
"""The number of columns from which on small turns are faster than a decomposition."""
LEAST = 16
"""One in this many directions, those of the least eigenvalues, is turned exactly."""
LARGE = 1e-3
"""The exponential of a correction with a larger norm is computed in float64."""
LARGEST = 0.01
"""A correction that moves the rows by more than this share of the reference's norm is not small."""
SWEEPS = 5
"""The most corrections: a decomposition takes as long as this many."""
MAX_GROWTH = 1 / 8
"""If a correction is larger than this share of the one before, the directions are out of date."""
EARLY_TURN = 1e-4
"""A turn among the least directions with a larger norm is made before the corrections."""
NARROW = 1e-4
"""A step of at most this norm may be in float32, whatever rows it is applied to."""
FLOAT32_RANGE = 1e12
"""Eigenvalues between this and its inverse fit float32, and so do their roots and products."""
TERMS = 12
"""More terms than the exponential of the largest correction needs."""
LEAST_LEFT = 1e-4
"""The least share that a correction is assumed to leave: it grows as the directions age."""
ROUNDING = 1e-13
"""Terms of an exponential with a smaller norm are left out."""


@dataclass(frozen=True)
class Frame:
    """Approximate eigenvectors of H, from the greatest eigenvalue to the least.

    `vectors` [n, n] are in float32; the last k are kept in float64 as well, as `least` [n, k],
    where they are orthonormal. `values` [n] are in float64. `left` is the size of a correction
    relative to the one before it, a guess at first. `swing` is the norm of the last turn among the
    least directions, or of the first of a small turn if that was larger.
    """

    vectors: torch.Tensor
    least: torch.Tensor
    values: torch.Tensor
    left: float = 1e-2
    swing: float = 1.0


class _NotSmall(Exception):
    """The turn is not small, or the frame is out of date."""


def frame_of(products: torch.Tensor) -> Frame | None:
    """The frame of nearly symmetric products P^T R [n, n]; None where `frame_from` gives None."""
    if len(products) < NARROWEST:
        return None
    values, vectors = torch.linalg.eigh((products + products.mT).div_(2))
    return frame_from(values.flip(0), vectors.flip(1))


def frame_from(values: torch.Tensor, vectors: torch.Tensor) -> Frame | None:
    """The frame of eigenvalues, the greatest first, and eigenvectors; None if it would be no use.

    That is for few directions, for eigenvalues out of the range of float32, and if eigenvalues
    outside of the least directions are nearly zero.
    """
    rest, most = len(values) - len(values) // LEAST, float(values[0])
    if len(values) < NARROWEST or not 1 / FLOAT32_RANGE < most < FLOAT32_RANGE:
        return None
    if not values[rest - 1] > 16 * torch.finfo(torch.float32).eps * most:
        return None
    return Frame(vectors.float(), vectors[:, rest:].contiguous(), values.clamp(min=0))


def small_turn(
    products: torch.Tensor, frame: Frame, close: float
) -> tuple[torch.Tensor, Frame] | None:
    """polar(P^T R) - 1 for products P^T R [n, n], and the frame of the products after the turn.

    It brings P nearest to R, up to about `close` times the norm of R. It is in float32 if that is
    precise enough for P + P (polar(P^T R) - 1). None if the turn is not small, if the frame is out
    of date, or if P^T R has less than full rank up to rounding.
    """
    try:
        if frame.swing <= EARLY_TURN:
            beyond, frame = _swept(products, frame, close, frame.swing)
        else:
            least = frame.least
            turn, frame = _least(least.mT @ (products @ least), frame)
            first, swing = turn @ least.mT, frame.swing
            products = torch.addmm(products, first.mT, least.mT @ products)
            beyond, frame = _swept(products, frame, close, 0.0)
            beyond = torch.addmm(beyond, least, torch.addmm(first, first, beyond))
            frame = replace(frame, swing=max(swing, frame.swing))
    except _NotSmall:
        return None
    return (beyond.float() if float(beyond.norm()) <= NARROW else beyond), frame


def _swept(
    products: torch.Tensor, frame: Frame, close: float, swing: float
) -> tuple[torch.Tensor, Frame]:
    """The turn less 1 by repeated corrections, in float64, and the frame after it.

    The first correction is assumed to leave at least the share `swing`, the norm of the turn among
    the least directions. Raises _NotSmall if the corrections do not become small enough.
    """
    size, last = float(frame.values.sum().sqrt()), math.nan
    beyond: torch.Tensor | None = None
    for _ in range(SWEEPS):
        correction = _correction(products, frame)
        moved = float((frame.values.sqrt()[:, None] * correction).norm())
        if not moved < LARGEST * size or moved > MAX_GROWTH * last:
            raise _NotSmall
        if not math.isnan(last):
            frame = replace(frame, left=max(LEAST_LEFT, moved / last))
        more, frame = _least_turned(products, _exp_minus_one(_out_of(frame, correction)), frame)
        beyond = more if beyond is None else torch.addmm(beyond + more, beyond, more)
        if moved * max(frame.left, swing) <= close * size:
            return beyond, frame
        products, last, swing = torch.addmm(products, more.mT, products), moved, 0.0
    raise _NotSmall


def _correction(products: torch.Tensor, frame: Frame) -> torch.Tensor:
    """X to first order in the frame's basis, [n, n] in float32; 0 among the least directions."""
    skew = (products - products.mT).float()
    values = frame.values.float()
    correction = product(frame.vectors.mT, product(skew, frame.vectors))
    correction /= values[:, None] + values
    rest = len(values) - frame.least.shape[1]
    correction[rest:, rest:] = 0
    return correction


def _out_of(frame: Frame, correction: torch.Tensor) -> torch.Tensor:
    """X in the original basis, made exactly antisymmetric: its exponential is orthogonal."""
    whole = product(frame.vectors, product(correction, frame.vectors.mT))
    return (whole - whole.mT).div_(2)


def _exp_minus_one(turn: torch.Tensor) -> torch.Tensor:
    """exp(X) - 1 in float64, also computed in it where the rounding of float32 would matter."""
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
    """A turn followed by the exact one among the least directions, less 1, and the new frame."""
    least = frame.least
    leaning = torch.addmm(least, beyond, least)
    turn, frame = _least(leaning.mT @ (products @ least), frame)
    return torch.addmm(beyond, leaning @ turn, least.mT), frame


def _least(products: torch.Tensor, frame: Frame) -> tuple[torch.Tensor, Frame]:
    """The turn among the least directions, less 1, from their products [k, k]; the new frame."""
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
