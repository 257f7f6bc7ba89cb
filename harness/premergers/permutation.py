"""Weight matching: hidden units in an anchor's order (Ainsworth et al. 2023, arXiv:2209.04836)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import torch

from harness import StateDict, premerge, weights
from harness.errors import BadOption
from harness.options import Anchor, Layers

RESIDUAL = ("width", "embedding", "pooled")
"""The groups that belong to no single layer, those with most tensors first."""
Orders: TypeAlias = Mapping[str, weights.Permuted]
"""The order of the units of an expert, by group."""


@premerge(
    "permutation",
    paper="arXiv:2209.04836",
    exact=True,
    reads_base=("anchor=base",),
    breaks_with={"anchor": ("order",), "anchor=base": ("copies",)},
)
def permutation(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    symmetry: weights.Symmetry,
    ffn: bool = True,
    heads: bool = False,
    rotated: bool = False,
    residual: bool = False,
    cycle_consistent: bool = False,
    layers: Layers = "all",
    anchor: Anchor = "central",
) -> list[StateDict]:
    """Experts with hidden units permuted so that their weights are nearest to an anchor's.

    `ffn` permutes the units between feed-forward layers, by the linear assignment that maximises
    the inner product of the weights that compute and read them, with biases. `heads` permutes
    attention heads, those of queries, keys, values and outputs alike. Attention heads are compared
    by their inner product or, if `rotated`, by the largest that it can be after `rotation`: without
    that step they may end further apart. `residual` also permutes the width of the whole model,
    with embeddings, normalisations, pooler and head: from the present order, one group after the
    other gets the best assignment with the others fixed, until none brings the expert nearer.
    Tensors of the model's head count if all have one shape. Attention heads that were rotated and
    permuted are found only with `rotated`, once the width is in order: run `residual`, then `heads`
    with `rotated`, then `rotation`.

    `cycle_consistent` matches all experts at once (C2M3, Crisostomi et al. 2024, arXiv:2405.17897;
    `universe`), starting from the orders of matching to the anchor; the anchor's order stays. The
    report has the sum of the inner products of all pairs of experts: `before`, matched to the
    anchor (`pairwise`), and matched at once (`cycle_consistent`).

    `layers` is `all`, `first:N`, `last:N`, or the number of a layer; the width belongs to all. The
    anchor is the expert nearest to the mean (`central`), the `first`, an expert by its number from
    1, or the base, and stays as it is. The outputs of every expert stay as they are. After
    `residual` task vectors have a meaning only if the anchor has the base's order of units: the
    base, or an expert fine-tuned from it.

    The report has the anchor, the distance of every expert from it, before and after, in each group
    (`ffn.0`), and the iterations. Raises BadOption for options that do not go together.

    By hand: rows (1, 0) and (0, 1), and the anchor's (0, 2) and (3, 0). The products are
    ((0, 3), (2, 0)), so the rows change places.
    """
    switches = {"ffn": ffn, "heads": heads, "rotated": rotated, "residual": residual}
    switches |= {"cycle_consistent": cycle_consistent}
    on = [name for name, value in switches.items() if value]
    _check(on, layers)
    what = weights.alignment(experts, base, symmetry, anchor)
    units = _units(symmetry, layers, on)
    if residual:
        groups = tuple(group for unit in units for group in unit.groups)
        return weights.to_anchor(what, {groups: partial(_descent_orders, what, units)})
    if cycle_consistent:
        return weights.to_anchor(what, {unit.groups: _at_once(what, unit) for unit in units})

    def pairwise(unit: weights.UnitGroup, index: int) -> Orders:
        return weights.matched(experts[index], what.anchor, unit, symmetry, rotated=rotated)

    return weights.to_anchor(what, {unit.groups: partial(pairwise, unit) for unit in units})


def _check(on: Collection[str], layers: str) -> None:
    """Raise BadOption for switches that do not go together."""
    if not {"ffn", "heads", "residual"}.intersection(on):
        raise BadOption("permutation would change nothing; expected ffn, heads or residual true")
    if "rotated" in on and "heads" not in on:
        raise BadOption("rotated only applies to heads; expected heads=true as well")
    exclusive = {"rotated", "residual", "cycle_consistent"}
    if len(names := [name for name in on if name in exclusive]) > 1:
        raise BadOption(
            f"{names[0]} and {names[1]} are both true, and there is no objective for both at once; "
            "expected one of them, or two permutations in turn, residual first"
        )
    if layers != "all" and not {"ffn", "heads"}.intersection(on):
        raise BadOption(
            f"layers is '{layers}', and residual permutes only the width, which all layers share; "
            "expected ffn=true or heads=true as well, or leave layers out"
        )


def _units(symmetry: weights.Symmetry, layers: str, on: Collection[str]) -> list[weights.UnitGroup]:
    """The units to permute that the model has."""
    groups = [group for group in RESIDUAL if group in symmetry.groups and "residual" in on]
    groups += symmetry.within(layers, "ffn") if "ffn" in on else []
    orders = symmetry.head_orders(layers) if "heads" in on else {}
    heads = [weights.UnitGroup(name, alike, symmetry.heads) for name, alike in orders.items()]
    return [*(weights.UnitGroup(group, (group,)) for group in groups), *heads]


def _descent_orders(
    what: weights.Alignment, units: Sequence[weights.UnitGroup], index: int
) -> Orders:
    """The orders of an expert's units in groups that depend on one another."""
    pair = (what.experts[index], what.anchor)
    orders, sweeps = weights.descent(*pair, what.symmetry, units)
    what.tell_of(index, "residual", iterations=sweeps)
    return orders


# All experts at once -----------------------------------------------------------------------


def _at_once(what: weights.Alignment, units: weights.UnitGroup) -> weights.Finder:
    """The maps of all experts to the anchor, by matching all at once, with the base if it is the
    anchor."""
    solved = weights.once(partial(_solved, what, units))
    return lambda index: solved()[index]


def _solved(what: weights.Alignment, units: weights.UnitGroup) -> list[Orders]:
    """The orders of all experts relative to the anchor's, by group."""
    place = what.place()
    models = [*what.experts, *([what.base] if place is None else [])]
    anchor = len(models) - 1 if place is None else place
    by_group = {group: what.symmetry.members(group, *models) for group in units.groups}
    whole = [_stacked(model, by_group.values(), units.heads) for model in models]
    pairwise = [weights.assignment(features @ whole[anchor].mT) for features in whole]
    solution = weights.universe(whole, pairwise)
    same = [torch.arange(len(features)) for features in whole]
    before, matched = (weights.objective(whole, orders) for orders in (same, pairwise))
    objectives = {"before": before, "pairwise": matched, "cycle_consistent": solution.objective}
    facts = {"objective": objectives, "iterations": solution.iterations}
    weights.tell(what.report, units.label, facts)
    back = solution.orders[anchor].argsort()
    orders = [weights.Permuted(order[back]) for order in solution.orders]
    return [dict.fromkeys(by_group, order) for order in orders]


def _stacked(
    model: StateDict, by_group: Iterable[Sequence[weights.Member]], heads: int
) -> torch.Tensor:
    """[units, features]: all entries of a model's tensors for a unit, or for an attention head."""
    stacks = [torch.cat([weights.units_of(model, m) for m in members], 1) for members in by_group]
    return torch.cat([stack.reshape(heads or len(stack), -1) for stack in stacks], 1)
