"""The nouns: the results of `inspect`, their remarks, and their JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from harness.checkpoints.families.symmetry import ROLES, Role, TensorPlace
from harness.inspecting.comparison import WeightComparison
from harness.weights import Layer, in_order

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class InspectedModel:
    """An inspected model: its name in tables, its source, and the digest of its weights."""

    name: str
    source: str
    digest: str


@dataclass(frozen=True)
class UnitsInPlace:
    """How many of the feed-forward units of a layer are matched to themselves."""

    units: int
    kept: int

    @property
    def share(self) -> float:
        return self.kept / self.units


@dataclass(frozen=True)
class Pair:
    """Two models compared: sums by place, and matched feed-forward units by layer.

    `left_out` has a line for each tensor that one model lacks or that differs in shape. `alike` has
    the cosines of all pairs of units, [units, units], for the requested layers.
    """

    first: InspectedModel
    second: InspectedModel
    places: Mapping[TensorPlace, WeightComparison]
    units: Mapping[Layer, UnitsInPlace]
    left_out: tuple[str, ...] = ()
    alike: Mapping[Layer, torch.Tensor] = field(default_factory=dict, compare=False, repr=False)

    @property
    def whole(self) -> WeightComparison:
        """All tensors that both have except heads, which are not pretrained."""
        return total(
            comparison for place, comparison in self.places.items() if place.role != "head"
        )

    @property
    def share_in_place(self) -> float | None:
        """The share of units of all layers together that are matched to themselves."""
        units = sum(counts.units for counts in self.units.values())
        return sum(counts.kept for counts in self.units.values()) / units if units else None

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers, in the order of data through a model."""
        return in_order(p.layer for p in self.places if p.layer is not None)

    def sum_over(
        self, layers: Collection[Layer | None], role: Role | None = None
    ) -> WeightComparison | None:
        """The sum over these layers (None: outside of layers), of a role or of all.

        None where there is no such tensor.
        """
        within = [
            (p.role, comparison) for p, comparison in self.places.items() if p.layer in layers
        ]
        chosen = [comparison for own_role, comparison in within if role in (None, own_role)]
        return total(chosen) if chosen else None

    def roles(self, *, in_layers: bool) -> tuple[Role, ...]:
        """The roles within layers, or outside of them, in the order of data through a model."""
        present = {p.role for p in self.places if (p.layer is not None) == in_layers}
        return tuple(role for role in ROLES if role in present)


@dataclass(frozen=True)
class Inspection:
    """All pairs of some models compared, with their base if it was given."""

    models: tuple[InspectedModel, ...]
    base: InspectedModel | None
    pairs: tuple[Pair, ...]


def numbers_of(inspection: Inspection, pair: Pair) -> list[str]:
    """The numbers of both models of a pair, from 1 in the order given."""
    return [str(inspection.models.index(model) + 1) for model in (pair.first, pair.second)]


def total(comparisons: Iterable[WeightComparison]) -> WeightComparison:
    """The sum of several comparisons."""
    return sum(comparisons, WeightComparison())


FEWEST_IN_PLACE = 0.5
"""Units count as permuted if fewer than this share of them are matched to themselves."""
MOST_TIMES_LONGER = 3.0
"""If task vectors differ in length by more than this factor, the longer one dominates a merge."""


def remarks(inspection: Inspection) -> list[str]:
    """Warnings before models are merged, one line for each pair that needs one."""
    return [text for pair in inspection.pairs if (text := _remark(pair, inspection.base))]


def _remark(pair: Pair, base: InspectedModel | None) -> str | None:
    share = pair.share_in_place
    if share is not None and share < FEWEST_IN_PLACE:  # says more than distances
        return (
            f"{1 - share:.0%} of the feed-forward units of {pair.second.name} are matched "
            f"to others of {pair.first.name}: a merge mixes unrelated units unless they are "
            "matched first; see --premerge permutation and rotation."
        )
    if base is None:
        return None
    lengths = sorted(
        zip(pair.whole.task_vector_norms, (pair.first.name, pair.second.name), strict=True)
    )
    (short, shorter), (long, longer) = lengths
    if short == long == 0:
        return f"{shorter} and {longer} are the base {base.name}, but for their heads."
    if short == 0:
        return f"{shorter} is the base {base.name}, but for its head: a merge is {longer}, scaled."
    if long > MOST_TIMES_LONGER * short:
        return (
            f"The task vector of {longer} (norm {long:.3g}) is {long / short:.1f} times as long "
            f"as that of {shorter} ({short:.3g}): a merge of such experts is close to "
            f"{longer} alone."
        )
    return None


# JSON --------------------------------------------------------------------------------------


def as_record(inspection: Inspection) -> dict[str, Any]:
    """The inspection as JSON values; undefined measures are null."""
    return {
        "models": [vars(model) for model in inspection.models],
        "base": vars(inspection.base) if inspection.base else None,
        "pairs": [_pair(pair, with_base=inspection.base is not None) for pair in inspection.pairs],
        "remarks": remarks(inspection),
    }


def _pair(pair: Pair, *, with_base: bool) -> dict[str, Any]:
    return {
        "models": [pair.first.name, pair.second.name],
        "whole": _measures(pair.whole, with_base),
        "places": [
            {"layer": place.layer, "role": place.role, **_measures(comparison, with_base)}
            for place, comparison in pair.places.items()
        ],
        "units": [
            {"layer": layer, "units": counts.units, "kept": counts.kept, "share": counts.share}
            for layer, counts in pair.units.items()
        ],
        "left_out": list(pair.left_out),
    }


def _measures(comparison: WeightComparison, with_base: bool) -> dict[str, Any]:
    names = ["entries", "distance", "relative"]
    if with_base:
        names += ["task_vector_norms", "ratio", "cosine", "moved_by_both", "agreement"]
    return {name: getattr(comparison, name) for name in names}
