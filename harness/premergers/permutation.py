"""Weight matching: hidden units in an anchor's order (Ainsworth et al. 2023, arXiv:2209.04836)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import torch

from harness import StateDict, premerge, weights
from harness.errors import BadOption
from harness.options import Anchor, Layers

RESIDUAL = ("width", "embedding", "pooled")
"""The groups of no one layer, those with most tensors first."""
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

    `ffn` permutes the units between feed-forward layers: the linear assignment that maximises the
    inner product of what makes and what reads them, biases too. `heads` permutes attention heads,
    queries and keys alike with values and outputs; what two heads have in common is their inner
    product, or, `rotated`, the most it can be once `rotation` has turned them: by itself this may
    set heads further apart. `residual` permutes the width of the whole model as well, with
    embeddings, normalisations, pooler and head: group after group from the order as it is, each by
    the assignment with the others held, until none brings the expert nearer. Tensors of heads count
    where they have one shape. Heads that were turned as well are found only by what they can
    become, and once the width is in order: `residual`, then `heads` and `rotated`, then `rotation`.

    `cycle_consistent` matches all experts at once (C2M3, Crisostomi et al. 2024, arXiv:2405.17897;
    `universe`) from the order that matching to the anchor gives, and tells their orders against
    the anchor's. The report has the sum of the inner products of all pairs: before, matched to the
    anchor (`pairwise`), and matched at once.

    `layers` are `all`, `first:N`, `last:N`, or the number of one; the width is of all. The anchor
    is the expert nearest to the mean, an expert by its number from 1 or as the `first`, or the
    base, and stays as it is. The outputs of every expert stay as they are. After `residual` a task
    vector has a meaning only if the anchor is in the order of the base: the base, or fine-tuned
    from it.

    The report has the anchor, the distance of every expert from it, before and after, in each group
    (`ffn.0`), and the iterations. Raises BadOption for options that do not go together.

    By hand: rows (1, 0) and (0, 1) over the anchor's (0, 2) and (3, 0): the products are
    ((0, 3), (2, 0)), so the rows change places.
    """
    asked = {"ffn": ffn, "heads": heads, "residual": residual}
    if not any(asked.values()):
        raise BadOption("permutation leaves all as it is; expected one of ffn, heads and residual")
    if rotated and not heads:
        raise BadOption("rotated is about the order of heads; expected heads=true with it")
    given = {"rotated": rotated, "residual": residual, "cycle_consistent": cycle_consistent}
    if len(both := [name for name, one in given.items() if one]) > 1:
        raise BadOption(
            f"{both[0]} and {both[1]} are both given, and no objective is for both; "
            "expected one of them, or one after the other: the width first"
        )
    if layers != "all" and not (ffn or heads):
        raise BadOption(
            f"layers is '{layers}', and only the width is permuted, which all layers share; "
            "expected ffn=true or heads=true with it, or leave it out"
        )
    what = weights.alignment(experts, base, symmetry, anchor)
    units = _units(symmetry, layers, asked)
    if residual:
        groups = tuple(group for one in units for group in one.groups)
        return weights.to_anchor(what, {groups: partial(_in_turn, what, units)})
    if cycle_consistent:
        return weights.to_anchor(what, {one.groups: _at_once(what, one) for one in units})

    def pairwise(one: weights.UnitGroup, index: int) -> Orders:
        return weights.matched(experts[index], what.anchor, one, symmetry, rotated=rotated)

    return weights.to_anchor(what, {one.groups: partial(pairwise, one) for one in units})


def _units(
    symmetry: weights.Symmetry, layers: str, asked: Mapping[str, bool]
) -> list[weights.UnitGroup]:
    """What is permuted, as far as the model has it."""
    groups = [group for group in RESIDUAL if group in symmetry.groups and asked["residual"]]
    groups += symmetry.within(layers, "ffn") if asked["ffn"] else []
    orders = symmetry.head_orders(layers) if asked["heads"] else {}
    heads = [weights.UnitGroup(name, alike, symmetry.heads) for name, alike in orders.items()]
    return [*(weights.UnitGroup(group, (group,)) for group in groups), *heads]


def _in_turn(what: weights.Alignment, units: Sequence[weights.UnitGroup], index: int) -> Orders:
    """The orders of groups that depend on one another."""
    both = (what.experts[index], what.anchor)
    orders, sweeps = weights.descent(*both, what.symmetry, units)
    what.tell_of(index, "residual", iterations=sweeps)
    return orders


# All experts at once -----------------------------------------------------------------------


def _at_once(what: weights.Alignment, units: weights.UnitGroup) -> weights.Finder:
    """What moves every expert to the anchor by way of the universe of all, which has the base in it
    where that is the anchor."""
    solved = weights.once(partial(_solved, what, units))
    return lambda index: solved()[index]


def _solved(what: weights.Alignment, units: weights.UnitGroup) -> list[Orders]:
    place = what.place()
    models = [*what.experts, *([what.base] if place is None else [])]
    at = len(models) - 1 if place is None else place
    by_group = {group: what.symmetry.members(group, *models) for group in units.groups}
    whole = [_stacked(model, by_group.values(), units.heads) for model in models]
    pairwise = [weights.assignment(one @ whole[at].mT) for one in whole]
    solution = weights.universe(whole, pairwise)
    same = [torch.arange(len(one)) for one in whole]
    before, matched = (weights.objective(whole, orders) for orders in (same, pairwise))
    objectives = {"before": before, "pairwise": matched, "cycle_consistent": solution.objective}
    facts = {"objective": objectives, "iterations": solution.iterations}
    weights.tell(what.report, units.label, facts)
    back = solution.orders[at].argsort()
    orders = [weights.Permuted(order[back]) for order in solution.orders]
    return [dict.fromkeys(by_group, order) for order in orders]


def _stacked(
    model: StateDict, by_group: Iterable[Sequence[weights.Member]], heads: int
) -> torch.Tensor:
    """[units, features]: all that the tensors of a model have for a unit, or for a head."""
    stacks = [torch.cat([weights.units_of(model, one) for one in each], 1) for each in by_group]
    return torch.cat([one.reshape(heads or len(one), -1) for one in stacks], 1)
