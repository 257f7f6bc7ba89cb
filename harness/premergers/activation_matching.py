"""Activation matching (Ainsworth et al. 2023, arXiv:2209.04836): units in an anchor's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from harness import StateDict, premerge, weights
from harness.options import ExpertAnchor, Layers
from harness.premergers.cca import covariance
from harness.types import Activations, Products


@premerge(
    "activation_matching",
    paper="arXiv:2209.04836",
    exact=True,
    reads_base=False,
    breaks_with={"anchor": ("order",)},
)
def activation_matching(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    activations: Sequence[Activations],
    symmetry: weights.Symmetry,
    pearson: bool = False,
    layers: Layers = "all",
    anchor: ExpertAnchor = "central",
) -> list[StateDict]:
    """Experts with feed-forward units permuted to match an anchor's activations.

    Let z [tokens, units] be the units of an expert after the activation function, z' those of the
    anchor on the same rows, and C = z^T z'. The order p is the linear assignment that maximises the
    sum of C[i, p(i)]. Unit i goes to the place p(i), in the weights that compute it, with its bias,
    and in those that read it. `pearson` uses the correlations of the units for C: units with large
    activations count no more than others, and constant ones do not count.

    `layers` is `all`, `first:N`, `last:N`, or the number of a layer. The anchor is the expert
    nearest to the mean (`central`), the `first`, or an expert by its number from 1, and stays as it
    is. The rows are training rows of the first expert's task. The outputs of every expert stay.

    The report has the anchor and the distance of the weights of every expert from it, before and
    after, in each group (`ffn.0`). It may grow, as activations are matched and not weights.

    By hand, two units on two tokens: z = ((1, 0), (0, 2)) and z' = ((0, 1), (3, 0)), so that
    C = ((0, 1), (6, 0)): the two change places.
    """
    what = weights.alignment(experts, base, symmetry, anchor)

    def matched(group: str, index: int) -> Mapping[str, weights.Permuted]:
        place = what.place()
        assert place is not None  # the base has seen no rows and is no anchor here
        products = activations[index].products(activations[place], group)
        alike = correlation(products) if pearson else products.inner
        squares = 2 * len(alike) if pearson else float(sum(map(torch.sum, products.squares)))
        return {group: weights.Permuted(weights.gainful(alike, squares))}

    groups = symmetry.within(layers, "ffn")
    return weights.to_anchor(what, {(group,): partial(matched, group) for group in groups})


def correlation(products: Products) -> torch.Tensor:
    """Pearson's correlation of units of the first model with those of the second, [units, units].

    That of a constant unit is 0.
    """
    means = [total / products.count for total in products.sums]
    pairs = zip(products.squares, means, strict=True)
    spreads = [(q / products.count - mean.square()).clamp(min=0).sqrt() for q, mean in pairs]
    # it varies by more than the rounding of its mean square
    moving = [spread > 1e-7 * mean.abs() for spread, mean in zip(spreads, means, strict=True)]
    return torch.where(torch.outer(*moving), covariance(products) / torch.outer(*spreads), 0)
