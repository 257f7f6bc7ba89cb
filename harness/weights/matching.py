"""The overlap of two models in a hidden group, and the order of units that brings them nearest.

Weight matching: Ainsworth et al. 2023, arXiv:2209.04836.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from harness.types import StateDict
from harness.weights.lazy import specs
from harness.weights.symmetry import Member, Permuted, Symmetry, moved


@dataclass(frozen=True)
class Overlap:
    """Inner products of the units of two models in a group, in float64.

    `products` [blocks, size, size] has, for every block, the inner product of unit i of the first
    model with unit j of the second; `first` and `second` [blocks] are their squared norms by block.
    """

    products: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor


def overlap(
    first: StateDict, second: StateDict, members: Sequence[Member], blocks: int = 1
) -> Overlap:
    """The overlap of two models, summed over `members`, the tensors' axes that run over the units.

    <first mapped by A, second> is the sum of A * products for every A that is orthogonal within
    blocks. One tensor of each model is in memory at a time.
    """
    products, left, right = (torch.zeros((), dtype=torch.float64) for _ in range(3))
    for member in members:
        parts = [
            units.reshape(blocks, -1, units.shape[1])
            for units in (units_of(state, member) for state in (first, second))
        ]
        products = products + torch.bmm(parts[0], parts[1].mT)
        squares = [part.square().sum((1, 2)) for part in parts]
        left, right = left + squares[0], right + squares[1]
    return Overlap(products, left, right)


def in_blocks(products: torch.Tensor, blocks: int) -> torch.Tensor:
    """A view [blocks, blocks, size, size] of products [units, units]."""
    size = len(products) // blocks
    return products.reshape(blocks, size, blocks, size).movedim(2, 1)


def units_of(state: StateDict, member: Member) -> torch.Tensor:
    """A tensor as one row for each unit, [units, all else], in float64."""
    tensor = state[member.name]
    axis = member.axis
    return tensor.movedim(axis, 0).reshape(tensor.shape[axis], -1).double()


def cosine(first: StateDict, second: StateDict, name: str) -> float:
    """The cosine between the two tensors of this name, in float64."""
    left, right = (state[name].double().flatten() for state in (first, second))
    return float(torch.cosine_similarity(left, right, dim=0))


def distance(first: StateDict, second: StateDict, names: Sequence[str]) -> float:
    """||first - second|| over the tensors of these names, in float64, one name at a time."""
    gaps = (first[name].double() - second[name].double() for name in names)
    return math.sqrt(sum(float(gap.square().sum()) for gap in gaps))


# Units in order ----------------------------------------------------------------------------


def assignment(products: torch.Tensor) -> torch.Tensor:
    """The order of units that maximises the sum of products[order[j], j]: j is the new place.

    `products` [n, n] are the inner products of the old units with the places. Solved by scipy's
    linear assignment, or directly if every unit has its largest product with a different place. The
    order is on the processor, wherever the products are.

    By hand: of ((1, 5), (4, 2)) it is (1, 0), with the sum 4 + 5.
    """
    largest = products.argmax(1)
    if len(set(largest.tolist())) == len(largest):
        return largest.argsort().cpu()
    from scipy.optimize import linear_sum_assignment

    return torch.from_numpy(linear_sum_assignment(products.T.cpu().numpy(), maximize=True)[1])


GAIN = 1e-12
"""A sum of products that is larger by less than this share of the squared norms is not a gain."""


def gainful(products: torch.Tensor, squares: float) -> torch.Tensor:
    """The assignment, or the present order if the assignment gains no more than rounding.

    `squares` is the squared norm that rounding is relative to.
    """
    order, same = assignment(products), torch.arange(len(products))
    gain = products[order, same].sum() - products.trace()
    return order if float(gain) > GAIN * squares else same


def matched_units(first: StateDict, second: StateDict, members: Sequence[Member]) -> Permuted:
    """The order of the first model's units that is nearest to the second's.

    It maximises the inner product over all `members`: rows of the weights that compute the units,
    with their biases, and columns of those that read them (Ainsworth et al. 2023, weight matching).
    """
    if surely_unmoved(first, second, members):
        size = specs(first)[members[0].name].shape[members[0].axis]
        return Permuted(torch.arange(size))
    shared = overlap(first, second, members)
    return Permuted(gainful(shared.products[0], float(shared.first + shared.second)))


FEATURES = 64
"""The number of entries of a unit, in each tensor, that bound its distance to others from below."""


def surely_unmoved(first: StateDict, second: StateDict, members: Sequence[Member]) -> bool:
    """Whether all units are certain to stay in their own places, those of the second model's units.

    By the triangle inequality, no other place is nearer to a unit that is nearer to its own place
    than half the distance from there to the nearest other place. Some entries of two places bound
    their distance from below. True for most experts of one base, in a tenth of the time that all
    products would take; False leaves it open.
    """
    squares = torch.zeros((), dtype=torch.float64)
    entries: list[torch.Tensor] = []
    for member in members:
        units, others = units_of(first, member), units_of(second, member)
        squares = squares + (units - others).square().sum(1)
        entries.append(others[:, :FEATURES].clone())
    places = torch.cat(entries, 1)
    between = torch.cdist(places, places).fill_diagonal_(math.inf)
    return bool((squares.sqrt() < between.amin(1) * (0.5 - GAIN)).all())


# Units of one group, or heads --------------------------------------------------------------


@dataclass(frozen=True)
class UnitGroup:
    """Units that are permuted together: those of one group, or the heads of several groups."""

    label: str
    groups: tuple[str, ...]
    heads: int = 0


def matched(
    first: StateDict,
    second: StateDict,
    units: UnitGroup,
    symmetry: Symmetry,
    *,
    rotated: bool = False,
) -> dict[str, Permuted]:
    """The best order of some units of the first model, by group; empty if a group has no tensors.

    Heads are compared by their inner product or, if `rotated`, by the largest that it can be after
    a rotation: the nuclear norm of their products in each group. The groups `heads.`, of tables
    with entries for whole heads, are not rotated.
    """
    members = {group: symmetry.members(group, first, second) for group in units.groups}
    if not all(members.values()):
        return {}
    if not units.heads:
        return {group: matched_units(first, second, axes) for group, axes in members.items()}
    overlaps = {group: overlap(first, second, axes) for group, axes in members.items()}
    pairs = {group: in_blocks(one.products[0], units.heads) for group, one in overlaps.items()}
    traces = {group: blocks.diagonal(dim1=-2, dim2=-1).sum(-1) for group, blocks in pairs.items()}
    turned = [group for group in pairs if rotated and not group.startswith("heads.")]
    nuclear = {group: torch.linalg.svdvals(pairs[group]).sum(-1) for group in turned}
    common = torch.stack([*{**traces, **nuclear}.values()]).sum(0)
    order = gainful(common, sum(float(one.first + one.second) for one in overlaps.values()))
    return dict.fromkeys(overlaps, Permuted(order))


# Groups that depend on one another ---------------------------------------------------------

NEARER = 1 - 1e-9
"""A distance counts as smaller than another only below this share of it."""


def descent(
    first: StateDict, second: StateDict, symmetry: Symmetry, units: Sequence[UnitGroup]
) -> tuple[dict[str, Permuted], int]:
    """The orders of all units by coordinate descent on the distance, and the number of sweeps.

    It starts at the present orders. Each order is the best with the others fixed, and is sought
    again when an order that shares a tensor with it has changed. If a tensor runs over a group
    along two of its axes, the assignment need not be optimal: an order is taken only if the
    distance falls, so that the descent ends.
    """

    def names(*groups: str) -> list[str]:
        by_group = (symmetry.members(group, first, second) for group in groups)
        return sorted({member.name for members in by_group for member in members})

    def apart(orders: Mapping[str, Permuted], *groups: str) -> float:
        return distance(moved(first, symmetry, orders.get), second, names(*groups))

    used = {unit.label: set(names(*unit.groups)) for unit in units}
    orders: dict[str, Permuted] = {}
    stale, sweeps = set(used), 0
    while stale:
        sweeps += 1
        for unit in units:
            if unit.label not in stale:
                continue
            stale.remove(unit.label)
            tried = dict(orders)
            best = matched(moved(first, symmetry, orders.get), second, unit, symmetry)
            for group, order in best.items():
                tried[group] = orders[group].then(order) if group in orders else order
            if apart(tried, *unit.groups) < apart(orders, *unit.groups) * NEARER:
                orders = tried
                own = used[unit.label]
                stale |= {other for other in used if other != unit.label and used[other] & own}
    same = Permuted(torch.arange(1))  # all units as one block
    groups = [group for unit in units for group in unit.groups if names(group)]
    return {group: orders.get(group, same) for group in groups}, sweeps
