"""Shell: folders of models -> an `Inspection`, and its folder of JSON and heat maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from math import isfinite
from pathlib import Path

from harness import weights
from harness.checkpoints import align
from harness.checkpoints.bases import check_bases
from harness.checkpoints.families.family import Family
from harness.checkpoints.families.symmetry import TensorPlace, place_in, split_parts
from harness.checkpoints.label_order import ordered_as
from harness.checkpoints.open import open_checkpoint
from harness.errors import BadOption, BadRecipe, NotFinite
from harness.folders import check_output
from harness.inspecting.comparison import WeightComparison, weight_comparison
from harness.inspecting.folder import INSPECTION, write
from harness.inspecting.inspection import InspectedModel, Inspection, Pair, UnitsInPlace, total
from harness.inspecting.units import feed_forward, unit_cosines, units_kept
from harness.passes.workload import Workload
from harness.types import Checkpoint, Progress, StateDict
from harness.values import one_or_more

TENSORS, UNITS = "comparing tensors", "matching feed-forward units"
"""The names of the work in progress reports."""
Indices = tuple[int, int]
"""A pair of models, by their indices."""


@dataclass(frozen=True)
class ComparisonInputs:
    """What is compared: the models' parameters, and the base's tensors of these (`origin`)."""

    family: Family
    states: tuple[StateDict, ...]
    origin: StateDict

    @property
    def pairs(self) -> list[Indices]:
        return [*combinations(range(len(self.states)), 2)]

    @cached_property
    def layers(self) -> dict[weights.Layer, list[weights.Member]]:
        """The axes over the feed-forward units of every layer."""
        return feed_forward(self.family, self.states[0])

    @property
    def names(self) -> list[str]:
        """The names of all parameters that any model has."""
        return [*dict.fromkeys(name for state in self.states for name in state)]

    def shapes(self, pair: Indices, name: str) -> list[tuple[int, ...] | None]:
        """The shapes of a tensor in both models of a pair, None for a model that lacks it."""
        specs = [weights.specs(self.states[index]).get(name) for index in pair]
        return [None if spec is None else spec.shape for spec in specs]

    def shares(self, pair: Indices, name: str) -> bool:
        """Whether both models of a pair have a tensor of this name, in the same shape."""
        first, second = self.shapes(pair, name)
        return first is not None and first == second

    def place(self, name: str) -> TensorPlace:
        """The layer and the role of a parameter."""
        spec = next(specs[name] for s in self.states if name in (specs := weights.specs(s)))
        return place_in(self.family, name, spec)


def inspect(
    models: str | Path | Sequence[str | Path],
    *,
    base: str | Path | None = None,
    other_base: bool = False,
    out: str | Path | None = None,
    units: Sequence[str | int] = (),
    force: bool = False,
    allow_pickle: bool = False,
    progress: Progress | None = None,
) -> Inspection:
    """The distances between all models and, with their base, the similarity of task vectors.

    For every layer and role (query, key, ..., up, down, norm, head): the distance, absolute and
    relative to the norm; cosine, sign agreement and norms of the task vectors; and the share of
    feed-forward units that are matched to themselves (RegMean, Jin et al. 2023, Appendix D).
    Encoders have to agree in names and shapes; heads and poolers are compared where they agree. One
    tensor of each model is in memory at a time, and all is computed in float64.

    A base that models were not made from, by their own records, is refused unless `other_base`.
    With `out` a folder is written: inspect.json, and heat maps as PNG and SVG, also one of all
    pairs of units for each layer in `units`; `force` replaces an older folder. `progress` is called
    with what is being done, how much since the last call, and how much in all. Raises a
    HarnessError for models that cannot be compared, before a tensor is read, BrokenCheckpoint for
    NaN and infinite entries, and NotFinite where a norm is infinite.
    """
    models = one_or_more(models)
    if len(models) < 2:
        raise BadRecipe(f"inspect compares models, found {len(models)}; expected two or more")
    if out is not None:
        check_output(Path(out), INSPECTION, force=force)
    elif units:
        raise BadOption("--units draws pictures, and there is no --out; name a folder for them")
    opened = [_opened(source, allow_pickle, base) for source in models]
    checkpoints = _in_one_order([checkpoint for checkpoint, _ in opened])
    origin = [_opened(base, allow_pickle)] if base is not None else []
    bases = [checkpoint for checkpoint, _ in origin]
    align.check_architecture([*checkpoints, *bases])
    work = _work(checkpoints, *bases)
    layers = _asked(work, units)
    if base is not None and not other_base:
        check_bases(checkpoints, open_checkpoint(base, allow_pickle=allow_pickle))
    workload = Workload(progress)
    workload.plan(TENSORS, len(work.names))
    workload.plan(UNITS, len(work.layers) * len(work.pairs))
    places, in_place = places_of(work, workload.tell), _units(work, workload.tell)
    names = _names(checkpoints)
    all_names = [*names, *(checkpoint.name for checkpoint in bases)]
    all_models = [
        InspectedModel(name, checkpoint.source, observed.digest())
        for name, (checkpoint, observed) in zip(all_names, [*opened, *origin], strict=True)
    ]
    pairs = []
    for i, j in work.pairs:
        tables, lacking = _tables(work, (i, j)), tuple(_left_out(work, (i, j), names))
        cosines = {layer: unit_cosines(*tables, work.layers[layer]) for layer in layers}
        pairs.append(
            Pair(all_models[i], all_models[j], places[i, j], in_place[i, j], lacking, cosines)
        )
    inspected = tuple(all_models[: len(models)])
    inspection = Inspection(inspected, all_models[-1] if origin else None, tuple(pairs))
    if out is not None:
        write(inspection, Path(out), force=force)
    return inspection


# Opening -----------------------------------------------------------------------------------


def _opened(
    source: str | Path, allow_pickle: bool, base: str | Path | None = None
) -> tuple[Checkpoint, weights.Observed]:
    """A checkpoint under the names of a classifier, and its tensors, checked as they are read."""
    checkpoint = open_checkpoint(source, allow_pickle=allow_pickle, base=base)
    observed = weights.Observed(checkpoint.weights, checkpoint.source)
    state = weights.Lazy(weights.specs(checkpoint.weights), observed.__getitem__)
    return align.under_prefix(replace(checkpoint, weights=state)), observed


def _in_one_order(models: Sequence[Checkpoint]) -> list[Checkpoint]:
    """The models; of classifiers with the same labels, outputs are in the order of the first."""
    ordered: list[Checkpoint] = []
    for model in models:
        for before in ordered:
            model = ordered_as(model, before.labels)
        ordered.append(model)
    return ordered


def _names(models: Sequence[Checkpoint]) -> list[str]:
    """The models' names in tables: the last part of the source, the whole source if ambiguous."""
    short = [model.name for model in models]
    names = [model.name if short.count(model.name) == 1 else model.source for model in models]
    return [
        name if names.count(name) == 1 else f"{name} ({place})"
        for place, name in enumerate(names, start=1)
    ]


def _work(models: Sequence[Checkpoint], base: Checkpoint | None = None) -> ComparisonInputs:
    """The parameters to compare. Raises IncompatibleWeights unless all encoders agree."""
    family = models[0].family
    states = tuple(weights.select(m.weights, weights.floating(m.weights)) for m in models)
    encoders = [weights.select(state, [n for n in state if _in_all(family, n)]) for state in states]
    weights.check_same(encoders, [model.source for model in models])
    return ComparisonInputs(family, states, _origin(models, states, base) if base else {})


def _in_all(family: Family, name: str) -> bool:
    """Whether all models of a family have this tensor: taggers have no pooler, and heads differ."""
    return name.startswith(family.prefix) and not family.is_pooler(name)


def _origin(
    models: Sequence[Checkpoint], states: Sequence[StateDict], base: Checkpoint
) -> StateDict:
    """The base's tensors under the names of the experts, without new ones such as heads.

    Raises IncompatibleWeights where the base lacks a tensor, or has it in another shape.
    """
    tuned: list[StateDict] = []
    for model, state in zip(models, states, strict=True):
        origin = align.aligned_base(base, model)
        fresh = set(align.new_in_experts(origin, model))
        names = [name for name in state if name not in fresh]
        tuned.append(weights.select(origin.weights, names))
        sources = [model.source, f"the base {base.source}"]
        weights.check_same([weights.select(state, names), tuned[-1]], sources)
    return weights.union(*tuned)


# Comparing ---------------------------------------------------------------------------------


def places_of(
    work: ComparisonInputs, tell: Progress
) -> dict[Indices, dict[TensorPlace, WeightComparison]]:
    """The comparisons of all pairs by place, in the order of the models' tensors."""
    places: dict[Indices, dict[TensorPlace, WeightComparison]] = {pair: {} for pair in work.pairs}
    for name in work.names:
        place = work.place(name)
        for pair, comparison in _of_tensor(work, name).items():
            places[pair][place] = places[pair].get(place, WeightComparison()) + comparison
        tell(TENSORS, 1, len(work.names))
    return places


def _of_tensor(work: ComparisonInputs, name: str) -> dict[Indices, WeightComparison]:
    """The comparisons of a tensor in all pairs that share it; it is read once for each model."""
    pairs = [pair for pair in work.pairs if work.shares(pair, name)]
    shared = sorted({index for pair in pairs for index in pair})
    flat = {index: work.states[index][name].reshape(-1) for index in shared}
    origin = work.origin[name].reshape(-1) if pairs and name in work.origin else None

    def of_piece(part: slice) -> list[WeightComparison]:
        start = None if origin is None else origin[part].double()
        wide = {index: tensor[part].double() for index, tensor in flat.items()}
        return [weight_comparison(wide[first], wide[second], start) for first, second in pairs]

    # heads of one name may differ in size: pieces beyond the end of a tensor are empty
    longest = max((tensor.numel() for tensor in flat.values()), default=0)
    pieces = weights.by_piece(of_piece, longest)
    comparisons = [total(piece[place] for piece in pieces) for place in range(len(pairs))]
    for comparison in comparisons:
        if not isfinite(sum(vars(comparison).values())):
            raise NotFinite(f"the norm of '{name}' is infinite, expected smaller weights")
    return dict(zip(pairs, comparisons, strict=True))


def _units(
    work: ComparisonInputs, tell: Progress
) -> dict[Indices, dict[weights.Layer, UnitsInPlace]]:
    """By pair and layer, how many units are matched to themselves."""
    units: dict[Indices, dict[weights.Layer, UnitsInPlace]] = {pair: {} for pair in work.pairs}
    for pair in work.pairs:
        first, second = _tables(work, pair)
        for layer, members in work.layers.items():
            units[pair][layer] = units_kept(first, second, members)
            tell(UNITS, 1, len(work.layers) * len(work.pairs))
    return units


def _tables(work: ComparisonInputs, pair: Indices) -> tuple[StateDict, StateDict]:
    """The tensors of both models of a pair, as the table of their family names them."""
    first, second = (split_parts(work.family, work.states[index]) for index in pair)
    return first, second


def _asked(work: ComparisonInputs, units: Sequence[str | int]) -> list[weights.Layer]:
    """The layers named in `units`. Raises BadOption for one without feed-forward units."""
    by_name = {str(layer): layer for layer in work.layers}
    if unknown := [str(layer) for layer in units if str(layer) not in by_name]:
        layers = ", ".join(by_name) or "none"
        raise BadOption(
            f"--units is {unknown[0]}, expected a layer of feed-forward units: {layers}"
        )
    return [by_name[str(layer)] for layer in dict.fromkeys(units)]


def _left_out(work: ComparisonInputs, pair: Indices, names: Sequence[str]) -> Iterator[str]:
    """A line for each parameter that a pair does not share."""
    for name in work.names:
        shapes = work.shapes(pair, name)
        if shapes[0] != shapes[1]:
            by_model = zip(shapes, (names[index] for index in pair), strict=True)
            texts = [
                f"{'none' if shape is None else [*shape]} in {model}" for shape, model in by_model
            ]
            yield f"{name} ({', '.join(texts)})"
