"""The anchor that experts are aligned to, one of them or the base, and their alignment."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch

from harness.errors import BadOption
from harness.types import StateDict
from harness.weights.lazy import specs
from harness.weights.matching import distance
from harness.weights.symmetry import Symmetry, UnitMap, moved
from harness.weights.threads import latest, once

NEAR = 1e-6
"""Experts whose distances from the mean differ by less than this share are equally central."""


def place_of(
    anchor: str | int, experts: Sequence[StateDict], head: Collection[str] = ()
) -> int | None:
    """The place of the anchor among the experts, from 0; None if it is the base.

    `anchor` is `central`, `first`, `base`, or the number of an expert, from 1. The central expert
    has the smallest sum of distances from the experts' mean, tensor by tensor, over the tensors
    that all have in one shape, without those of the `head`. Of equals, as two experts always are,
    it is the first (Zhang et al. 2025, arXiv:2502.00264).
    """
    if anchor == "base":
        return None
    if isinstance(anchor, int):
        return anchor - 1
    if anchor == "first" or len(experts) <= 2:
        return 0
    headers = [specs(expert) for expert in experts]
    sums = torch.zeros(len(experts), dtype=torch.float64)
    for name, (shape, _) in headers[0].items():
        if name not in head and all(name in one and one[name].shape == shape for one in headers):
            tensors = torch.stack([expert[name].double() for expert in experts])
            sums += (tensors - tensors.mean(0)).reshape(len(experts), -1).norm(dim=1).cpu()
    return int((sums <= sums.min() * (1 + NEAR)).nonzero()[0])


@dataclass(frozen=True)
class Alignment:
    """Experts to be moved to an anchor, which is the base, or one of them that stays.

    `place` gives the place of the anchor, None for the base; it may read the experts. `report` is
    filled as the work is done: the anchor, and for every group the distances of all experts from
    it, `before` and `after`.
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

    def tell_of(self, index: int, group: str, **facts: float) -> None:
        """Report facts of one expert's group, in lists over all experts; None where unknown."""
        for fact, value in facts.items():
            by_group = self.report.setdefault(fact, {})
            by_group.setdefault(group, [None] * len(self.experts))[index] = value

    def tell_moved(self, index: int, maps: Mapping[str, UnitMap]) -> None:
        """Report how far an expert is from the anchor in the moved groups, before and after."""
        expert, anchor = self.experts[index], self.anchor
        done = moved(expert, self.symmetry, maps.get)
        for group in maps:
            names = sorted({member.name for member in self.symmetry.members(group, expert, anchor)})
            before, after = (distance(state, anchor, names) for state in (expert, done))
            self.tell_of(index, group, before=before, after=after)


def alignment(
    experts: Sequence[StateDict], base: StateDict, symmetry: Symmetry, anchor: str | int
) -> Alignment:
    """The alignment of experts to an anchor; no tensor is read yet.

    In the choice of the central expert heads count only if all experts are of one task: heads of
    different tasks are not merged. Raises BadOption for the number of an expert that is not there.
    """
    if isinstance(anchor, int) and not 1 <= anchor <= len(experts):
        raise BadOption(
            f"anchor is {anchor}, expected the number of an expert, from 1 to {len(experts)}"
        )
    report: dict[str, Any] = {}

    def place() -> int | None:
        index = place_of(anchor, experts, () if symmetry.one_task else symmetry.head)
        report["anchor"] = "base" if index is None else index + 1
        return index

    return Alignment(experts, base, symmetry, once(place), report)


Finder: TypeAlias = "Callable[[int], Mapping[str, UnitMap]]"
"""A function from the place of an expert, not the anchor's, to the map of each of its groups."""


def to_anchor(
    what: Alignment, finders: Mapping[tuple[str, ...], Finder], *, keep: bool = True
) -> list[StateDict]:
    """The experts with their groups moved to the anchor, which stays as it is.

    The keys of `finders` are the groups whose maps are found together; all other groups stay. With
    `keep=False` an expert holds only the maps of the groups that were asked for last.
    """
    return [
        moved(expert, what.symmetry.of(index), _found(what, index, finders, keep), what.report)
        for index, expert in enumerate(what.experts)
    ]


def _found(
    what: Alignment, index: int, finders: Mapping[tuple[str, ...], Finder], keep: bool
) -> Callable[[str], UnitMap | None]:
    """The map of each of an expert's groups, found when one of its tensors is first asked for."""

    def find(groups: tuple[str, ...]) -> Mapping[str, UnitMap]:
        if what.place() == index:
            for group in groups:
                what.tell_of(index, group, before=0.0, after=0.0)
            return {}
        maps = finders[groups](index)
        what.tell_moved(index, maps)
        return maps

    last = latest(find)
    getters = {key: once(partial(find, key)) if keep else partial(last, key) for key in finders}
    by_group = {group: getter for groups, getter in getters.items() for group in groups}

    def map_of(group: str) -> UnitMap | None:
        return by_group[group]().get(group) if group in by_group else None

    return map_of
