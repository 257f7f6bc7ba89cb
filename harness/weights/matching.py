"""Moving experts to an anchor: how alike two models are in a group, and what brings them nearer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch

from harness.errors import BadOption
from harness.types import StateDict
from harness.weights.lazy import specs
from harness.weights.symmetry import Map, Maps, Member, Permuted, Symmetry, moved
from harness.weights.threads import once

# How alike two models are ------------------------------------------------------------------


@dataclass(frozen=True)
class Overlap:
    """Inner products of the units of two models in a group, in float64.

    `products` [blocks, size, size] are those of unit i of the first model with unit j of the second
    in the same block; `first` and `second` [blocks] are the squared norms of what each has there.
    """

    products: torch.Tensor
    first: torch.Tensor
    second: torch.Tensor

    def distance(self, matched: torch.Tensor) -> float:
        """||first, moved - second|| where the moved one has the inner product `matched`."""
        square = self.first.sum() + self.second.sum() - 2 * matched.sum()
        return math.sqrt(max(0.0, float(square)))

    @property
    def traces(self) -> torch.Tensor:
        """The inner product of the two as they are, [blocks]."""
        return self.products.diagonal(dim1=-2, dim2=-1).sum(-1)


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
        here, there = here + _squares(parts[0]), there + _squares(parts[1])
    return Overlap(products, here, there)


def _squares(blocks: torch.Tensor) -> torch.Tensor:
    return blocks.square().sum((1, 2))


def cross(
    first: StateDict, second: StateDict, members: Sequence[Member], blocks: int = 1
) -> torch.Tensor:
    """The inner products alone of `overlap`, [blocks, size, size]."""
    return overlap(first, second, members, blocks).products


def cross_of_blocks(
    first: StateDict, second: StateDict, members: Sequence[Member], blocks: int
) -> torch.Tensor:
    """`cross` of every block of one model with every block of another.

    [blocks, blocks, size, size], block i of the first and block j of the second.
    """
    return in_blocks(cross(first, second, members)[0], blocks)


def in_blocks(products: torch.Tensor, blocks: int) -> torch.Tensor:
    """A view [blocks, blocks, size, size] of products [units, units]."""
    size = len(products) // blocks
    return products.reshape(blocks, size, blocks, size).movedim(2, 1)


def units_of(state: StateDict, member: Member) -> torch.Tensor:
    """What a tensor has for each unit: [units, everything else] in float64."""
    tensor = state[member.name]
    axis = member.axis
    return tensor.movedim(axis, 0).reshape(tensor.shape[axis], -1).double()


def distance(first: StateDict, second: StateDict, names: Sequence[str]) -> float:
    """||first - second|| over tensors of these names, as float64; one of each at a time."""
    return math.sqrt(sum(float(_gap(first[name], second[name])) for name in names))


def _gap(here: torch.Tensor, there: torch.Tensor) -> torch.Tensor:
    return (here.double() - there.double()).square().sum()


# Orders of units ---------------------------------------------------------------------------


class Match(NamedTuple):
    """What moves a group of one model to another, and how far apart they are before and after."""

    map: Map
    before: float
    after: float


def assignment(products: torch.Tensor) -> torch.Tensor:
    """The order of units that maximises the sum of products[order[j], j]: j is the new place.

    `products` [n, n] are those of the old units with the places. The linear assignment of scipy;
    it is told without where every place has the largest product with a unit of its own.

    By hand: of ((1, 5), (4, 2)) it is (1, 0), with the sum 4 + 5.
    """
    largest = products.argmax(0)
    if len(set(largest.tolist())) == len(largest):
        return largest
    from scipy.optimize import linear_sum_assignment

    return torch.from_numpy(linear_sum_assignment(products.T.numpy(), maximize=True)[1])


GAIN = 1e-12
"""Of the squared norms: a sum that is larger by less is so by rounding."""


def gainful(products: torch.Tensor, squares: float) -> torch.Tensor:
    """The assignment, or the order as it is where nothing is gained by another.

    `squares` is the squared norm that tells rounding from gain.
    """
    order, same = assignment(products), torch.arange(len(products))
    gain = products[order, same].sum() - products.trace()
    return order if float(gain) > GAIN * squares else same


def matched_units(first: StateDict, second: StateDict, members: Sequence[Member]) -> Match:
    """The order of the first model's units that is nearest to the second's (methods.md 2.6).

    It maximises the inner product over all `members`: rows of what makes the units, with their
    biases, and columns of what reads them (Ainsworth et al. 2023, weight matching).
    """
    apart = unmoved_distance(first, second, members)
    if apart is not None:
        return Match(Permuted(torch.arange(first[members[0].name].shape[members[0].axis])), *apart)
    both = overlap(first, second, members)
    products = both.products[0]
    order = gainful(products, float(both.first + both.second))
    matched = products[order, torch.arange(len(order))]
    return Match(Permuted(order), both.distance(both.traces), both.distance(matched))


FEATURES = 64
"""Of each tensor, as many entries of a unit are looked at to tell that units are far apart."""


def unmoved_distance(
    first: StateDict, second: StateDict, members: Sequence[Member]
) -> tuple[float, float] | None:
    """The distance, twice, where units are so near to their own places that all stay there.

    By the triangle inequality: a unit that is nearer to its own place than half of what the nearest
    other place is from there has none that is nearer. Places are at least as far apart as they are
    in some of their entries. Experts of one base are told this way, in a tenth of the time that all
    products would take; None: it cannot be told.
    """
    away = torch.zeros((), dtype=torch.float64)
    seen: list[torch.Tensor] = []
    for one in members:
        here, there = units_of(first, one), units_of(second, one)
        away = away + (here - there).square().sum(1)
        seen.append(there[:, :FEATURES].clone())
    places = torch.cat(seen, 1)
    between = torch.cdist(places, places).fill_diagonal_(math.inf)
    if not bool((away.sqrt() < between.amin(1) * (0.5 - GAIN)).all()):
        return None
    apart = math.sqrt(float(away.sum()))
    return apart, apart


# Anchors -----------------------------------------------------------------------------------

NEAR = 1e-6
"""Experts whose distances from the mean are closer than this, relatively, are equally central."""


def most_central(experts: Sequence[StateDict], names: Sequence[str]) -> int:
    """The place of the expert with the smallest sum of distances from the mean, tensor by tensor.

    Of equally central ones, as two always are, the first (Zhang et al. 2025, arXiv:2502.00264).
    """
    if len(experts) <= 2:
        return 0
    far = torch.zeros(len(experts), dtype=torch.float64)
    for name in names:
        tensors = torch.stack([expert[name].double() for expert in experts])
        far += (tensors - tensors.mean(0)).reshape(len(experts), -1).norm(dim=1)
    return int((far <= far.min() * (1 + NEAR)).nonzero()[0])


def check_anchor(anchor: str | int, count: int) -> None:
    """Raise BadOption for an anchor that is none of so many experts."""
    if isinstance(anchor, int) and not 1 <= anchor <= count:
        raise BadOption(f"anchor is {anchor}, expected an expert from 1 to {count}")


def place_of(anchor: str | int, experts: Sequence[StateDict], base: StateDict) -> int | None:
    """The place of the expert that all others are matched to; None: it is the base.

    `anchor` is `central`, `base`, or the number of an expert, from 1. The most central one is that
    of the parameters that the base has, too.
    """
    if anchor == "base":
        return None
    if isinstance(anchor, int):
        return anchor - 1
    known = [specs(expert) for expert in experts]
    shared = [
        name
        for name, spec in known[0].items()
        if name in base and all(one[name].shape == spec.shape for one in known)
    ]
    return most_central(experts, shared)


@dataclass(frozen=True)
class Alignment:
    """Experts of which all but one are moved to that one, the anchor, or all of them to the base.

    `place` tells which it is, None for the base, reading the experts if it must. `report` is filled
    as the work is done: the anchor, and for every group the distances of all experts from it,
    `before` and `after`.
    """

    experts: Sequence[StateDict]
    base: StateDict
    symmetry: Symmetry
    place: Callable[[], int | None]
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def anchor(self) -> StateDict:
        """The model that the experts are moved to."""
        place = self.place()
        return self.base if place is None else self.experts[place]

    def tell(self, what: str, key: str, value: Any) -> None:
        """Report something of a group."""
        self.report.setdefault(what, {})[key] = value

    def tell_of(self, index: int, what: str, key: str, value: Any) -> None:
        """Report something of a group of one expert: a list of all experts', None where unknown."""
        of_all = self.report.setdefault(what, {}).setdefault(key, [None] * len(self.experts))
        of_all[index] = value


def alignment(
    experts: Sequence[StateDict], base: StateDict, symmetry: Symmetry, anchor: str | int
) -> Alignment:
    """What is moved where; no tensor is read. Raises BadOption for an anchor that is not there."""
    check_anchor(anchor, len(experts))
    report: dict[str, Any] = {}

    def place() -> int | None:
        found = place_of(anchor, experts, base)
        report["anchor"] = "base" if found is None else found + 1
        return found

    return Alignment(experts, base, symmetry, once(place), report)


Finder: TypeAlias = "Callable[[int], Mapping[str, Match]]"
"""Of the place of an expert that is not the anchor: what moves each of its groups."""


def to_anchor(what: Alignment, finders: Mapping[tuple[str, ...], Finder]) -> list[StateDict]:
    """The experts with their groups moved to the anchor, which stays as it is.

    `finders` are by the groups that are found together; what they leave out stays.
    """
    return [
        moved(expert, what.symmetry, _maps(what, index, finders), what.report)
        for index, expert in enumerate(what.experts)
    ]


def _maps(
    what: Alignment, index: int, finders: Mapping[tuple[str, ...], Finder]
) -> dict[str, Maps]:
    def found(groups: Sequence[str], find: Finder) -> dict[str, Match]:
        home = what.place() == index
        matches = {} if home else dict(find(index))
        for group in groups:
            match = matches.get(group)
            if match or home:
                what.tell_of(index, "before", group, match.before if match else 0.0)
                what.tell_of(index, "after", group, match.after if match else 0.0)
        return matches

    def of(group: str, matches: Callable[[], Mapping[str, Match]]) -> list[Map]:
        match = matches().get(group)
        return [match.map] if match else []

    maps: dict[str, Maps] = {}
    for groups, find in finders.items():
        matches = once(partial(found, groups, find))
        maps |= {group: partial(of, group, matches) for group in groups}
    return maps
