"""Rotation matching: heads turned towards an anchor's (Zhang et al. 2025, arXiv:2502.00264)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import numpy as np
import torch

from harness import StateDict, premerge, weights
from harness.options import Anchor, Layers

REAL = 1e-9
"""A root whose imaginary part is at most this share of it is a real one."""
STREAM = "width"
"""The group of the residual stream."""
NEARER = 0.999
"""Sweeps over all groups end with one that leaves the distance above this share of what it was."""


@premerge(
    "rotation",
    paper="arXiv:2502.00264",
    exact=True,
    reads_base=("anchor=base",),
    reads_norms=("residual=true",),
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
    residual: bool = False,
    layers: Layers = "all",
    anchor: Anchor = "central",
) -> list[StateDict]:
    """Experts with attention heads rotated and feed-forward units permuted towards an anchor.

    Queries and keys of each head are turned by R, the orthogonal polar factor of A = Wq Wq'^T + Wk
    Wk'^T + bq bq'^T + bk bk'^T, with primes for the anchor: Wq becomes R^T Wq, bq becomes bq R, and
    keys alike. Values and the columns of the attention output are turned by another R. In a DeBERTa
    with separate projections of relative positions, these are part of the sum and turned by the
    same R. With rotary positions, as in ModernBERT, queries and keys stay. Units of the
    feed-forward layers are permuted by linear assignment, with their biases.

    `proper` excludes reflections: R is the nearest with determinant 1. `scaling` then multiplies
    the queries of a head by a and divides its keys by it, with the real a that brings them nearest,
    and values and outputs alike. `layers` is `all`, `first:N`, `last:N`, or the number of a layer.
    The anchor is the expert nearest to the mean (`central`), the `first`, an expert by its number
    from 1, or the base, and stays as it is. The outputs of every expert stay as they are.

    `residual` also turns the residual stream of a model with norms before its layers (vit). First
    the layers that read a norm absorb its gain and bias, also those of the last norm and of the
    anchor's norms: all norms are left with 1 and 0. Then every orthogonal R with R 1 = 1 keeps the
    outputs, as such a norm subtracts the mean. R is the polar factor, on the complement of the
    vector of ones, of the products of the weights that write or read the stream: first of the
    embeddings alone, then of all, in sweeps over heads, units and stream, until a sweep brings the
    expert nearer by less than a thousandth. Afterwards expert - base is no task vector: the base's
    norms are as they were.

    The report has the anchor and the distance of every expert from it, before and after, in each
    group: `qk.0`, `vo.0`, `ffn.0`, and `width` with the number of norms `absorbed` and of sweeps
    (`iterations`). Raises BadOption for options of heads if no head is turned, IncompatibleWeights
    if a layer that reads a norm has no bias.

    By hand, one head of two units: queries ((1, 0), (0, 2)), the anchor's ((0, -2), (1, 0)), and
    keys of zero. A = ((0, 1), (-4, 0)), R = ((0, 1), (-1, 0)), and R^T Wq is the anchor's.
    """
    if parts == "ffn":
        condition = "parts=ffn, where no head is turned"
        idle = {"scaling": (scaling, False), "proper": (proper and not residual, False)}
        weights.check_idle("rotation", condition, "parts=both or parts=attention", **idle)
    if residual:
        experts, base, symmetry = _absorbed(experts, base, symmetry)
    what = weights.alignment(experts, base, symmetry, anchor)
    kinds = {"attention": ("qk", "vo"), "ffn": ("ffn",), "both": ("qk", "vo", "ffn")}[parts]

    def map_of(group: str, first: StateDict) -> weights.UnitMap:
        members = symmetry.members(group, first, what.anchor)
        if group == STREAM:
            return _stream(first, what.anchor, members, proper=proper)
        if group.startswith("ffn"):
            return weights.matched_units(first, what.anchor, members)
        return _turned(first, what.anchor, members, symmetry.heads, scaling=scaling, proper=proper)

    def alone(group: str, index: int) -> Mapping[str, weights.UnitMap]:
        return {group: map_of(group, experts[index])}

    groups = symmetry.within(layers, *kinds)
    if residual:
        what.report["absorbed"] = len(symmetry.readers)
        of_all = (STREAM, *groups)
        return weights.to_anchor(what, {of_all: partial(_alternating_maps, what, of_all, map_of)})
    return weights.to_anchor(what, {(group,): partial(alone, group) for group in groups})


def _turned(
    first: StateDict,
    second: StateDict,
    members: Sequence[weights.Member],
    heads: int,
    *,
    scaling: bool,
    proper: bool,
) -> weights.Turned:
    """The turn within each head that brings an expert nearest to the anchor."""
    computed, read = (
        weights.overlap(first, second, [m for m in members if m.dual is dual], heads)
        for dual in (False, True)
    )
    products = computed.products + read.products
    turn = weights.polar(products)
    if proper:
        turn = rotations(turn, products)
    if not scaling:
        return weights.Turned(turn)
    scales = _scales(computed, read, turn)[:, None, None]
    return weights.Turned(turn * scales, turn.mT / scales)


def rotations(turn: torch.Tensor, products: torch.Tensor) -> torch.Tensor:
    """The polar factors [heads, size, size] of the products, without reflections.

    Where the determinant is -1, the direction that matters least is flipped: that of the smallest
    singular value, found as the least eigenvalue of the symmetric factor (Kabsch 1976).
    """
    reflected = torch.linalg.det(turn) < 0
    symmetric = turn[reflected].mT @ products[reflected]
    least = torch.linalg.eigh((symmetric + symmetric.mT) / 2).eigenvectors[..., :1]
    turn = turn.clone()
    turn[reflected] -= 2 * turn[reflected] @ least @ least.mT
    return turn


def _scales(computed: weights.Overlap, read: weights.Overlap, turn: torch.Tensor) -> torch.Tensor:
    """The scale of every head, [heads]."""
    sizes = computed.first.expand(len(turn)), read.first.expand(len(turn))
    products = [(part.products * turn).sum((-2, -1)) for part in (computed, read)]
    rows = torch.stack([sizes[0], products[0], sizes[1], products[1]], 1)
    return rows.new_tensor([nearest_scale(*row) for row in rows.tolist()])


def nearest_scale(query: float, queries: float, key: float, keys: float) -> float:
    """The a that minimises ||a q - q'||^2 + ||k / a - k'||^2.

    `query` and `key` are the squared norms of q and k, `queries` and `keys` their inner products
    with q' and k'. It is the best of 1 and the real roots, which may be negative, of
    |q|^2 a^4 - <q, q'> a^3 + <k, k'> a - |k|^2; where q or k is zero, 1.

    By hand: q = 1, q' = 2, k = 2, k' = 1: a^4 - 2 a^3 + 2 a - 4 = (a - 2) (a^3 + 2), and a = 2
    leaves nothing, a = -2^(1/3) leaves 17.3.
    """
    if not query or not key:
        return 1.0
    roots = np.roots([query, -queries, 0.0, keys, -key])
    real = [float(root.real) for root in roots if abs(root.imag) <= REAL * abs(root)]

    def distance(a: float) -> float:
        return a * a * query - 2 * a * queries + key / (a * a) - 2 * keys / a

    return min([1.0, *real], key=distance)


# The residual stream -----------------------------------------------------------------------


def _absorbed(
    experts: Sequence[StateDict], base: StateDict, symmetry: weights.Symmetry
) -> tuple[list[StateDict], StateDict, weights.Symmetry]:
    """Experts and base with their norms absorbed, and the symmetry without these norms."""
    readers = symmetry.readers
    norms = {f"{norm}.{kind}" for norm in readers for kind in ("weight", "bias")}
    axes = {name: groups for name, groups in symmetry.axes.items() if name not in norms}
    states = [weights.absorbed(state, readers) for state in (*experts, base)]
    return states[:-1], states[-1], replace(symmetry, axes=axes)


def _alternating_maps(
    what: weights.Alignment,
    groups: Sequence[str],
    find: Callable[[str, StateDict], weights.UnitMap],
    index: int,
) -> Mapping[str, weights.UnitMap]:
    """The maps of all groups of an expert, each the best with the others fixed."""
    expert, anchor, symmetry = what.experts[index], what.anchor, what.symmetry.of(index)
    maps: dict[str, weights.UnitMap] = {}

    def moved(but: str = "") -> StateDict:
        held = {group: unit_map for group, unit_map in maps.items() if group != but}
        return weights.moved(expert, symmetry, held.get)

    def apart(state: StateDict, *chosen: str) -> float:
        names = {m.name for group in chosen for m in symmetry.members(group, expert, anchor)}
        return weights.distance(state, anchor, sorted(names))

    alone = {n: axes for n, axes in symmetry.axes.items() if {*axes} <= {STREAM, None}}
    start = replace(symmetry, axes=alone).members(STREAM, expert, anchor)
    maps[STREAM] = _stream(expert, anchor, start, proper=False)
    last, sweeps = float("inf"), 0
    while (now := apart(moved(), *groups)) < last * NEARER:
        last, sweeps = now, sweeps + 1
        for group in (*groups[1:], STREAM):
            maps[group] = find(group, moved(group))
    what.tell_of(index, "residual", iterations=sweeps)
    return maps


def _stream(
    first: StateDict, second: StateDict, members: Sequence[weights.Member], *, proper: bool
) -> weights.Turned:
    """The turn of the residual stream that brings an expert nearest to the anchor."""
    products = weights.overlap(first, second, members).products[0]
    return weights.Turned(fixing_ones(products, proper=proper)[None])


def fixing_ones(products: torch.Tensor, *, proper: bool = False) -> torch.Tensor:
    """The orthogonal Q with Q 1 = 1 that has the greatest inner product with `products` [n, n].

    A reflection M takes 1 / sqrt(n) to the first axis. Q is M diag(1, R) M, with the polar factor R
    of M products M without its first row and column.
    """
    normal = products.new_full((len(products),), len(products) ** -0.5)
    normal[0] -= 1
    mirror = torch.eye(len(products), dtype=products.dtype, device=products.device)
    mirror -= 2 * torch.outer(normal, normal) / (normal @ normal)
    rest = (mirror @ products @ mirror)[1:, 1:]
    turn = weights.polar(rest)
    result = torch.eye(len(products), dtype=products.dtype, device=products.device)
    result[1:, 1:] = rotations(turn[None], rest[None])[0] if proper else turn
    return mirror @ result @ mirror
