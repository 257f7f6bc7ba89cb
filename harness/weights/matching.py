"""How alike two models are in a group, and the order in which units of one are nearest to another.

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

    `products` [blocks, size, size] are those of unit i of the first model with unit j of the second
    in the same block; `first` and `second` [blocks] are the squared norms of what each has there.
    """

    products: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor


def overlap(
    first: StateDict, second: StateDict, members: Sequence[Member], blocks: int = 1
) -> Overlap:
    """The overlap of two models in all `members`, the axes that tensors of both have for the units.

    <first moved by A, second> is the sum of A * products for every A that is orthogonal within
    blocks. One tensor of each is in memory at a time.
    """
    products, here, there = (torch.zeros((), dtype=torch.float64) for _ in range(3))
    for one in members:
        parts = [
            units.reshape(blocks, -1, units.shape[1])
            for units in (units_of(state, one) for state in (first, second))
        ]
        products = products + torch.bmm(parts[0], parts[1].mT)
        squares = [part.square().sum((1, 2)) for part in parts]
        here, there = here + squares[0], there + squares[1]
    return Overlap(products, here, there)


def in_blocks(products: torch.Tensor, blocks: int) -> torch.Tensor:
    """A view [blocks, blocks, size, size] of products [units, units]."""
    size = len(products) // blocks
    return products.reshape(blocks, size, blocks, size).movedim(2, 1)


def units_of(state: StateDict, member: Member) -> torch.Tensor:
    """What a tensor has for each unit: [units, everything else] in float64."""
    tensor = state[member.name]
    axis = member.axis
    return tensor.movedim(axis, 0).reshape(tensor.shape[axis], -1).double()


def cosine(first: StateDict, second: StateDict, name: str) -> float:
    """That of two tensors of this name, as float64."""
    one, other = (state[name].double().flatten() for state in (first, second))
    return float(torch.cosine_similarity(one, other, dim=0))


def distance(first: StateDict, second: StateDict, names: Sequence[str]) -> float:
    """||first - second|| over tensors of these names, as float64; one of each at a time."""
    gaps = (first[name].double() - second[name].double() for name in names)
    return math.sqrt(sum(float(gap.square().sum()) for gap in gaps))


# Units in order ----------------------------------------------------------------------------


def assignment(products: torch.Tensor) -> torch.Tensor:
    """The order of units that maximises the sum of products[order[j], j]: j is the new place.

    `products` [n, n] are those of the old units with the places. The linear assignment of scipy;
    it is told without where every unit has the largest product with a place of its own. Orders are
    on the processor, wherever the products are.

    By hand: of ((1, 5), (4, 2)) it is (1, 0), with the sum 4 + 5.
    """
    largest = products.argmax(1)
    if len(set(largest.tolist())) == len(largest):
        return largest.argsort().cpu()
    from scipy.optimize import linear_sum_assignment

    return torch.from_numpy(linear_sum_assignment(products.T.cpu().numpy(), maximize=True)[1])


GAIN = 1e-12
"""Of the squared norms: a sum that is larger by less is so by rounding."""


def gainful(products: torch.Tensor, squares: float) -> torch.Tensor:
    """The assignment, or the order as it is where nothing is gained by another.

    `squares` is the squared norm that tells rounding from gain.
    """
    order, same = assignment(products), torch.arange(len(products))
    gain = products[order, same].sum() - products.trace()
    return order if float(gain) > GAIN * squares else same


def matched_units(first: StateDict, second: StateDict, members: Sequence[Member]) -> Permuted:
    """The order of the first model's units that is nearest to the second's.

    It maximises the inner product over all `members`: rows of what makes the units, with their
    biases, and columns of what reads them (Ainsworth et al. 2023, weight matching).
    """
    if settled(first, second, members):
        size = specs(first)[members[0].name].shape[members[0].axis]
        return Permuted(torch.arange(size))
    both = overlap(first, second, members)
    return Permuted(gainful(both.products[0], float(both.first + both.second)))


FEATURES = 64
"""Of each tensor, as many entries of a unit are looked at to tell that units are far apart."""


def settled(first: StateDict, second: StateDict, members: Sequence[Member]) -> bool:
    """Whether units are so near to their own places that all stay there.

    By the triangle inequality: a unit that is nearer to its own place than half of what the nearest
    other place is from there has none that is nearer. Places are at least as far apart as they are
    in some of their entries. Experts of one base are told this way, in a tenth of the time that all
    products would take; of others it may be untold.
    """
    away = torch.zeros((), dtype=torch.float64)
    seen: list[torch.Tensor] = []
    for one in members:
        here, there = units_of(first, one), units_of(second, one)
        away = away + (here - there).square().sum(1)
        seen.append(there[:, :FEATURES].clone())
    places = torch.cat(seen, 1)
    between = torch.cdist(places, places).fill_diagonal_(math.inf)
    return bool((away.sqrt() < between.amin(1) * (0.5 - GAIN)).all())


# Units of one group, or heads --------------------------------------------------------------


@dataclass(frozen=True)
class UnitGroup:
    """What is permuted together: the units of a group, or, of two groups, so many heads."""

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
    """The best order of some units of the first model, by group; none where tensors lack.

    What two heads have in common is their inner product, or, `rotated`, the best that it can be
    once they have been turned: the nuclear norm of their products, in each of the groups. What a
    table has for a whole head is not turned.
    """
    members = {group: symmetry.members(group, first, second) for group in units.groups}
    if not all(members.values()):
        return {}
    if not units.heads:
        return {group: matched_units(first, second, axes) for group, axes in members.items()}
    overlaps = {group: overlap(first, second, axes) for group, axes in members.items()}
    pairs = {group: in_blocks(one.products[0], units.heads) for group, one in overlaps.items()}
    traces = {group: one.diagonal(dim1=-2, dim2=-1).sum(-1) for group, one in pairs.items()}
    turned = [group for group in pairs if rotated and not group.startswith("heads.")]
    nuclear = {group: torch.linalg.svdvals(pairs[group]).sum(-1) for group in turned}
    common = torch.stack([*{**traces, **nuclear}.values()]).sum(0)
    order = gainful(common, sum(float(one.first + one.second) for one in overlaps.values()))
    return dict.fromkeys(overlaps, Permuted(order))


# Groups that depend on one another ---------------------------------------------------------

NEARER = 1 - 1e-9
"""A distance that is not below this share of another is no smaller."""


def descent(
    first: StateDict, second: StateDict, symmetry: Symmetry, units: Sequence[UnitGroup]
) -> tuple[dict[str, Permuted], int]:
    """The orders of all units, found in turn until none brings the models nearer, and the sweeps.

    Each is the best while the others are held, and is looked for again when one has changed that
    shares a tensor with it. It begins at the order as it is. A tensor may run over a group along
    two of its axes, where the assignment need not be an optimum: an order is taken only if the
    distance falls, so that it ends.
    """

    def names(*groups: str) -> list[str]:
        by_group = (symmetry.members(group, first, second) for group in groups)
        return sorted({one.name for members in by_group for one in members})

    def apart(orders: Mapping[str, Permuted], *groups: str) -> float:
        return distance(moved(first, symmetry, orders.get), second, names(*groups))

    known = {one.label: set(names(*one.groups)) for one in units}
    orders: dict[str, Permuted] = {}
    stale, sweeps = set(known), 0
    while stale:
        sweeps += 1
        for one in units:
            if one.label not in stale:
                continue
            stale.remove(one.label)
            tried = dict(orders)
            found = matched(moved(first, symmetry, orders.get), second, one, symmetry)
            for group, order in found.items():
                tried[group] = orders[group].then(order) if group in orders else order
            if apart(tried, *one.groups) < apart(orders, *one.groups) * NEARER:
                orders = tried
                mine = known[one.label]
                stale |= {other for other in known if other != one.label and known[other] & mine}
    same = Permuted(torch.arange(1))  # all units as one block
    groups = [group for one in units for group in one.groups if names(group)]
    return {group: orders.get(group, same) for group in groups}, sweeps
