"""OT fusion: feed-forward units moved by optimal transport of weights (Singh and Jaggi 2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import torch

from harness import StateDict, premerge, weights
from harness.errors import BadOption
from harness.options import Anchor, Layers

ALIKE = 1e-7
"""Rows of norm 1 at a smaller distance are the same: `cdist`, from products, rounds by less."""
TINY = 1e-9
"""Added to the norm of a row before the row is divided by it."""


@premerge(
    "ot_fusion",
    paper="arXiv:1910.05653",
    exact=True,
    reads_base=("anchor=base",),
    breaks_with={
        "anchor": ("order",),
        "anchor=base": ("copies",),
        "reference_quirks": ("exact", "family"),
    },
)
def ot_fusion(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    symmetry: weights.Symmetry,
    reference_quirks: bool = False,
    layers: Layers = "all",
    anchor: Anchor = "central",
) -> list[StateDict]:
    """Experts with feed-forward units permuted to an anchor's, by the similarity of weights.

    The cost of moving unit i to the place j is the Euclidean distance of row i of the first layer
    from the anchor's row j, each divided by its norm. With equal masses the optimal plan is a
    permutation. It moves the rows, their biases, and the columns of the second layer, so that the
    outputs of every expert stay as they are.

    `reference_quirks` is the transport of RegMean's code for two experts: biases are not moved, and
    the rows of the second layer are permuted too, by a plan of their own, without the layers that
    read them. The outputs stay only if both plans leave all in place, as they do for most experts
    of one base.

    `layers` is `all`, `first:N`, `last:N`, or the number of a layer. The anchor is the expert
    nearest to the mean (`central`), the `first`, an expert by its number from 1, or the base, and
    stays as it is. The report has the anchor and the distance of every expert from it, before and
    after, in each group (`ffn.0`). Raises BadOption for quirks with another number of experts.

    By hand: rows (5, 0) and (0, 1), and the anchor's (0, 2) and (3, 0). Normalised, the distances
    are sqrt(2) and 0 from the anchor's first row, 0 and sqrt(2) from its second: the rows change
    places.
    """
    if reference_quirks and len(experts) != 2:
        raise BadOption(
            f"reference_quirks of ot_fusion is for 2 experts, found {len(experts)}; "
            "expected 2, or leave it out"
        )
    units = symmetry.within(layers, "ffn")
    groups = [(group, _rows_of(group)) if reference_quirks else (group,) for group in units]
    table = _quirky(symmetry) if reference_quirks else symmetry
    what = weights.alignment(experts, base, table, anchor)
    return weights.to_anchor(what, {names: partial(_transported, what, names) for names in groups})


OUT = "out"
"""Begins the names of made-up groups for the rows of second layers, under the quirks."""


def _rows_of(units: str) -> str:
    return f"{OUT}.{units.partition('.')[2]}"


def _quirky(symmetry: weights.Symmetry) -> weights.Symmetry:
    """The symmetry without biases, with a group of its own for the rows of each second layer."""

    def own_axes(axes: tuple[str | None, ...]) -> tuple[str | None, ...]:
        read = axes[1] if len(axes) == 2 else None
        if read and read.startswith("ffn."):
            return (_rows_of(weights.group_of(read)), read)
        return axes if len(axes) == 2 else (None,) * len(axes)

    return replace(symmetry, axes={name: own_axes(axes) for name, axes in symmetry.axes.items()})


def _transported(
    what: weights.Alignment, groups: Sequence[str], index: int
) -> Mapping[str, weights.Permuted]:
    """The order of an expert's units; under the quirks also that of the second layer's rows."""
    orders: dict[str, weights.Permuted] = {}
    pair = mine, _ = what.experts[index], what.anchor
    for group in groups:
        members = what.symmetry.members(group, *pair)
        maker = next(m for m in members if not m.dual and mine[m.name].ndim == 2)
        rows, goals = (weights.units_of(state, maker) for state in pair)
        if orders:  # their columns are permuted with the units first
            (before,) = orders.values()
            rows = before(rows, 1, dual=True)
        orders[group] = weights.Permuted(transport(rows, goals))
    return orders


def transport(rows: torch.Tensor, goals: torch.Tensor) -> torch.Tensor:
    """The order of rows [units, features] that costs least: place j gets the row order[j]."""
    source, target = (x / (x.norm(dim=1, keepdim=True) + TINY) for x in (rows, goals))
    cost = torch.cdist(source, target)
    cost[cost < ALIKE] = 0.0
    return weights.gainful(-cost, float(cost.trace()))
