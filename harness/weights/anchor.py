"""Experts that are moved to one of them, or to the base: which, and moving them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import torch

from harness.errors import BadOption
from harness.types import StateDict
from harness.weights.lazy import specs
from harness.weights.symmetry import Map, Maps, Symmetry, moved
from harness.weights.threads import once

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


def place_of(
    anchor: str | int, experts: Sequence[StateDict], head: Collection[str] = ()
) -> int | None:
    """The place of the expert that all others are matched to; None: it is the base.

    `anchor` is `central`, `first`, `base`, or the number of an expert, from 1. The most central one
    is that of the parameters that all have in one shape, but for those of the `head`.
    """
    if anchor == "base":
        return None
    if anchor == "first":
        return 0
    if isinstance(anchor, int):
        return anchor - 1
    known = [specs(expert) for expert in experts]
    shared = [
        name
        for name, spec in known[0].items()
        if name not in head and all(name in one and one[name].shape == spec.shape for one in known)
    ]
    return most_central(experts, shared)


M = TypeVar("M", bound=Map, covariant=True)


@dataclass(frozen=True)
class Match(Generic[M]):
    """What moves a group of one model to another, and how far apart they are before and after."""

    map: M
    before: float
    after: float


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
    """What is moved where; no tensor is read. Raises BadOption for an anchor that is not there.

    In the choice of the most central expert heads count as they are merged: those of one task do,
    and those of different tasks, which are kept, do not.
    """
    check_anchor(anchor, len(experts))
    report: dict[str, Any] = {}

    def place() -> int | None:
        index = place_of(anchor, experts, () if symmetry.one_task else symmetry.head)
        report["anchor"] = "base" if index is None else index + 1
        return index

    return Alignment(experts, base, symmetry, once(place), report)


Finder: TypeAlias = "Callable[[int], Mapping[str, Match[Map]]]"
"""Of the place of an expert that is not the anchor: what moves each of its groups."""


def to_anchor(what: Alignment, finders: Mapping[tuple[str, ...], Finder]) -> list[StateDict]:
    """The experts with their groups moved to the anchor, which stays as it is.

    `finders` are by the groups that are found together; what they leave out stays.
    """
    return [
        moved(expert, what.symmetry.of(index), _maps(what, index, finders), what.report)
        for index, expert in enumerate(what.experts)
    ]


def _maps(
    what: Alignment, index: int, finders: Mapping[tuple[str, ...], Finder]
) -> dict[str, Maps]:
    def told(groups: Sequence[str], find: Finder) -> dict[str, list[Map]]:
        home = what.place() == index
        matches = {} if home else find(index)
        for group in groups:
            match = matches.get(group)
            if match or home:
                what.tell_of(index, "before", group, match.before if match else 0.0)
                what.tell_of(index, "after", group, match.after if match else 0.0)
        return {group: [match.map] for group, match in matches.items()}

    def of(group: str, found: Callable[[], Mapping[str, list[Map]]]) -> list[Map]:
        return found().get(group, [])

    maps: dict[str, Maps] = {}
    for groups, find in finders.items():
        found = once(partial(told, groups, find))
        maps |= {group: partial(of, group, found) for group in groups}
    return maps
