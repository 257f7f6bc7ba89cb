"""Rotation matching: heads are turned towards an anchor's (Zhang et al. 2025, arXiv:2502.00264)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import numpy as np
import torch

from harness import StateDict, premerge, weights
from harness.options import Anchor, Layers

REAL = 1e-9
"""A root whose imaginary part is smaller than this share of it is a real one."""


@premerge(
    "rotation",
    paper="arXiv:2502.00264",
    exact=True,
    reads_base=("anchor=base",),
    breaks_with={"anchor": ("order",), "anchor=base": ("copies",)},
)
def rotation(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    symmetry: weights.Symmetry,
    parts: Literal["both", "attention", "ffn"] = "both",
    scaling: bool = False,
    proper: bool = False,
    layers: Layers = "all",
    anchor: Anchor = "central",
) -> list[StateDict]:
    """Experts with attention heads rotated and feed-forward units permuted towards an anchor.

    Per head, queries and keys by R, the orthogonal polar factor of A = Wq Wq'^T + Wk Wk'^T + bq
    bq'^T + bk bk'^T, primed for the anchor: Wq becomes R^T Wq, bq becomes bq R, keys alike. Values
    and the columns of attention's output by an R of their own. In DeBERTa with projections of its
    own for relative positions, these are in the sum and turned by the same R. Where positions are
    rotary, as in ModernBERT, queries and keys stay. Units of the feed-forward layers are permuted
    by linear assignment, with their biases.

    `proper` takes reflections out: the nearest R with determinant 1. `scaling` then multiplies the
    queries of a head by a and divides its keys by it, with the real a that brings them nearest, and
    values and outputs alike. `layers` are `all`, `first:N`, `last:N`, or the number of one. The
    anchor is the expert nearest to the mean, an expert by its number from 1 or as the `first`, or
    the base, and stays as it is. The outputs of every expert stay as they are.

    The report has the anchor and the distance of every expert from it, before and after, in each
    group: `qk.0`, `vo.0`, `ffn.0`. Raises BadOption for options of heads where none is turned.

    By hand, one head of two units: queries ((1, 0), (0, 2)) over the anchor's ((0, -2), (1, 0)),
    and keys of zero: A = ((0, 1), (-4, 0)), R = ((0, 1), (-1, 0)), and R^T Wq is the anchor's.
    """
    if parts == "ffn":
        where, given = "parts=ffn, where no head is turned", {"scaling": scaling, "proper": proper}
        idle = {name: (value, False) for name, value in given.items()}
        weights.check_idle("rotation", where, "parts=both or parts=attention", **idle)
    what = weights.alignment(experts, base, symmetry, anchor)
    kinds = {"attention": ("qk", "vo"), "ffn": ("ffn",), "both": ("qk", "vo", "ffn")}[parts]

    def matches(group: str, index: int) -> Mapping[str, weights.Match[weights.Map]]:
        if group.startswith("ffn"):
            members = symmetry.members(group, experts[index], what.anchor)
            return {group: weights.matched_units(experts[index], what.anchor, members)}
        return {group: _turned(what, index, group, scaling=scaling, proper=proper)}

    groups = [f"{kind}.{layer}" for layer in symmetry.chosen(layers) for kind in kinds]
    there = [group for group in groups if group in symmetry.groups]
    return weights.to_anchor(what, {(group,): partial(matches, group) for group in there})


def _turned(
    what: weights.Alignment, index: int, group: str, *, scaling: bool, proper: bool
) -> weights.Match[weights.Turned]:
    """The turn of every head, within it, that brings an expert nearest to the anchor."""
    first, second = what.experts[index], what.anchor
    members, heads = what.symmetry.members(group, first, second), what.symmetry.heads
    made, read = (
        weights.overlap(first, second, [one for one in members if one.dual is dual], heads)
        for dual in (False, True)
    )
    both = weights.Overlap(
        made.products + read.products, made.first + read.first, made.second + read.second
    )
    turn = weights.polar(both.products)
    if proper:
        turn = rotations(turn, both.products)
    scale = _scales(made, read, turn) if scaling else torch.ones(heads, dtype=torch.float64)
    after = weights.Overlap(
        turn, made.first * scale**2 + read.first / scale**2, both.second
    ).distance(_matched(made, turn) * scale + _matched(read, turn) / scale)
    by = scale[:, None, None]
    return weights.Match(weights.Turned(turn * by, turn.mT / by), both.distance(both.traces), after)


def _matched(part: weights.Overlap, turn: torch.Tensor) -> torch.Tensor:
    """The inner product of every head with the anchor's after the turn, [heads]."""
    return (part.products * turn).sum((-2, -1))


def rotations(turn: torch.Tensor, products: torch.Tensor) -> torch.Tensor:
    """The polar factors [heads, size, size] of the products, without reflections.

    Where the determinant is -1, the direction that says least is flipped: that of the smallest
    singular value, the least eigenvalue of the symmetric factor (Kabsch 1976).
    """
    odd = torch.linalg.det(turn) < 0
    symmetric = turn[odd].mT @ products[odd]
    least = torch.linalg.eigh((symmetric + symmetric.mT) / 2).eigenvectors[..., :1]
    turn = turn.clone()
    turn[odd] -= 2 * turn[odd] @ least @ least.mT
    return turn


def _scales(made: weights.Overlap, read: weights.Overlap, turn: torch.Tensor) -> torch.Tensor:
    """The scale of every head, [heads]."""
    sizes = made.first.expand(len(turn)), read.first.expand(len(turn))
    products = _matched(made, turn), _matched(read, turn)
    rows = torch.stack([sizes[0], products[0], sizes[1], products[1]], 1)
    return torch.tensor([nearest_scale(*row) for row in rows.tolist()], dtype=torch.float64)


def nearest_scale(query: float, queries: float, key: float, keys: float) -> float:
    """The a that minimises ||a q - q'||^2 + ||k / a - k'||^2.

    `query` and `key` are the squared norms of q and k, `queries` and `keys` their inner products
    with the primed. It is the best of 1 and the real roots, which may be negative, of
    |q|^2 a^4 - <q, q'> a^3 + <k, k'> a - |k|^2; where q or k is zero, 1.

    By hand: q = 1, q' = 2, k = 2, k' = 1: a^4 - 2 a^3 + 2 a - 4 = (a - 2) (a^3 + 2), and a = 2
    leaves nothing, a = -2^(1/3) leaves 17.3.
    """
    if not query or not key:
        return 1.0
    roots = np.roots([query, -queries, 0.0, keys, -key])
    real = [float(root.real) for root in roots if abs(root.imag) <= REAL * abs(root)]

    def left(a: float) -> float:
        return a * a * query - 2 * a * queries + key / (a * a) - 2 * keys / a

    return min([1.0, *real], key=left)
