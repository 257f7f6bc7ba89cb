"""Hidden units in an anchor's order by what they make of the same rows (Ainsworth et al. 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
from scipy.optimize import linear_sum_assignment

from harness import StateDict, premerge
from harness.options import Count
from harness.types import Activations, Products
from harness.weights import (
    Lazy,
    Permuted,
    Symmetry,
    check_anchor,
    moved,
    once,
    place_of,
    specs,
)

NO_BETTER = 1e-12
"""An order that is better by no more than this share is none: units stay where they are."""


@premerge("activation_matching", paper="arXiv:2209.04836", exact=True)
def activation_matching(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    activations: Sequence[Activations],
    symmetry: Symmetry,
    pearson: bool = False,
    layers: str = "all",
    anchor: Literal["central"] | Count = "central",
) -> list[StateDict]:
    """Experts whose feed-forward units are in the order in which they answer as the anchor's do.

    With z the units after the activation function, [tokens, units], of an expert and z' of the
    anchor on the same rows, C = z^T z': the order is the linear assignment that maximises the sum
    of C[i, p(i)], and unit i goes to the place p(i), in what makes it with its bias and in what
    reads it. The outputs of every expert stay as they are. `pearson` takes the correlation of the
    units for C: units of large activations count no more than others, and one that never moves
    counts for nothing.

    `layers` are `all`, `first:N`, `last:N`, or the number of one. The anchor is the expert nearest
    to the mean, or an expert by its number from 1. The rows are those of the first expert's task.
    The report has the anchor, and how many units of each expert went elsewhere. By matching this
    way experts of one pretrained model may come further apart (Jin et al. 2023, Appendix D).

    By hand, two units on two tokens: z = ((1, 0), (0, 2)) and z' = ((0, 1), (3, 0)), so that
    C = ((0, 1), (6, 0)): the two change places.
    """
    check_anchor(anchor, len(experts))
    groups = [f"ffn.{layer}" for layer in symmetry.chosen(layers)]
    central = once(lambda: place_of(anchor, experts, base))
    told: dict[str, Any] = {}

    def find(index: int, group: str) -> Sequence[Permuted]:
        place = central()
        assert place is not None  # the base, which has seen no rows, is no anchor here
        told["anchor"] = place + 1
        if index == place:
            return []
        products = activations[index].products(activations[place], group)
        order = best_order(correlation(products) if pearson else products.inner)
        elsewhere = int((order != torch.arange(len(order))).sum())
        told.setdefault(f"units of expert {index + 1} that moved", {})[group] = elsewhere
        return [Permuted(order)]

    ordered = [
        moved(expert, symmetry, {group: partial(find, index, group) for group in groups})
        for index, expert in enumerate(experts)
    ]
    return [Lazy(specs(one), one.__getitem__, told) for one in ordered]


def best_order(alike: torch.Tensor) -> torch.Tensor:
    """The order of units that maximises the sum of alike[order[j], j]; none better, as they are."""
    places, goals = linear_sum_assignment(alike.numpy(), maximize=True)
    best, as_it_is = float(alike[places, goals].sum()), float(alike.trace())
    order = torch.arange(len(alike))
    if best - as_it_is > NO_BETTER * abs(best):
        order[torch.from_numpy(goals)] = torch.from_numpy(places)
    return order


def correlation(products: Products) -> torch.Tensor:
    """Pearson's correlation of units of the first model with those of the second, [units, units].

    That of a unit which never moves is 0.
    """
    means = [one / products.count for one in products.sums]
    covariance = products.inner / products.count - torch.outer(*means)
    pairs = zip(products.squares, means, strict=True)
    spreads = [(q / products.count - mean.square()).clamp(min=0).sqrt() for q, mean in pairs]
    moving = torch.outer(*map(_moves, spreads, means))
    return torch.where(moving, covariance / torch.outer(*spreads), 0)


def _moves(spread: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """Whether a unit moves by more than the rounding of its mean square."""
    return spread > 1e-7 * mean.abs()
