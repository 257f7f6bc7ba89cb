"""CCA merging: feed-forward features mapped to those that correlate most (Horoi et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from harness import StateDict, premerge, weights
from harness.options import ExpertAnchor, Layers, Positive
from harness.types import Activations, Products


@premerge("cca", paper="arXiv:2407.05385", breaks=("order",), costly=True, reads_base=False)
def cca(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    activations: Sequence[Activations],
    symmetry: weights.Symmetry,
    gamma: Positive = 0.1,
    layers: Layers = "all",
    anchor: ExpertAnchor = 1,
) -> list[StateDict]:
    """Experts with feed-forward features mapped to an anchor's by canonical correlation analysis.

    Let x be the units of the anchor after the activation function, y those of an expert on the same
    rows, and S their covariances, with `gamma` added to the diagonals of Sxx and Syy. With U and V
    the singular vectors of Sxx^-1/2 Sxy Syy^-1/2, A = Syy^-1/2 V U^T Sxx^1/2. The first layer and
    its bias are mapped, W to A^T W and b to b A, and the second maps back, W to W A^-T. As the
    activation function is between the two, the outputs of an expert change.

    `layers` is `all`, `first:N`, `last:N`, or the number of a layer. The anchor is an expert by its
    number from 1, the `first`, or with `central` the one nearest to the mean, and stays as it is.
    The rows are those of the first expert's task.

    The report has the anchor and the distance of the weights of every expert from it, before and
    after, in each group (`ffn.0`). It may grow, as features are matched and not weights.

    By hand, one unit each, with the covariances Sxx = 4 and Syy = 1 and a gamma near 0: A = 2.
    """
    what = weights.alignment(experts, base, symmetry, anchor)

    def find(group: str, index: int) -> Mapping[str, weights.Turned]:
        place = what.place()
        assert place is not None  # the base has seen no rows and is no anchor here
        anchors, mine = activations[place], activations[index]
        pairs = (anchors, anchors), (mine, anchors), (mine, mine)
        products = [first.products(second, group) for first, second in pairs]
        of_anchor, between, own = map(covariance, products)
        few = products[0].count <= len(own)  # tokens: some directions correlate with nothing
        return {group: mapped(of_anchor, between.mT, own, gamma, full=not few)}

    groups = symmetry.within(layers, "ffn")
    # not kept: a map is two matrices [units, units], for each expert and layer
    return weights.to_anchor(what, {(group,): partial(find, group) for group in groups}, keep=False)


def covariance(products: Products) -> torch.Tensor:
    """The covariances [units, units] of units of the first model with those of the second."""
    first, second = (total / products.count for total in products.sums)
    return products.inner / products.count - torch.outer(first, second)


def mapped(
    anchors: torch.Tensor,
    between: torch.Tensor,
    mine: torch.Tensor,
    gamma: float,
    *,
    full: bool = True,
) -> weights.Turned:
    """A and its inverse, from the covariances Sxx, Sxy and Syy of the anchor x and an expert y.

    With the Cholesky factors L L^T = S + gamma I of both, A = Ly^-T V U^T Lx^T, by the singular
    vectors of Lx^-1 Sxy Ly^-T: the same A in less than two thirds of the time. Symmetric roots are
    used if some directions correlate with nothing, as they do if not `full`: these are mapped near
    to the identity, which only symmetric roots define.
    """
    solved, ridge = torch.linalg.solve_triangular, gamma * torch.eye(len(mine), dtype=mine.dtype)
    (low, failed), (my, my_failed) = map(torch.linalg.cholesky_ex, (anchors + ridge, mine + ridge))
    if full and not failed and not my_failed:
        half = solved(low, between, upper=False)
        left, values, right = torch.linalg.svd(solved(my.mT, half, upper=True, left=False))
        if bool((values > UNCORRELATED).all()):
            turn = left @ right
            matrix = solved(my.mT, turn.mT @ low.mT, upper=True)
            return weights.Turned(matrix[None], solved(low.mT, turn @ my.mT, upper=True)[None])
    (root, back), (my_root, my_back) = (_roots(one, gamma) for one in (anchors, mine))
    turn = _rotation(back @ between @ my_back)
    return weights.Turned((my_back @ turn.mT @ root)[None], (back @ turn @ my_root)[None])


UNCORRELATED = 1e-10
"""A canonical correlation, of at most 1, that is less is rounding, as of constant units."""


def _rotation(correlations: torch.Tensor) -> torch.Tensor:
    """U V^T of the singular vectors, as near to the identity as it can be where none correlate."""
    left, values, right = torch.linalg.svd(correlations)
    correlated = values > UNCORRELATED
    return left @ right if bool(correlated.all()) else weights.completed(left, right, ~correlated)


def _roots(covariances: torch.Tensor, gamma: float) -> tuple[torch.Tensor, torch.Tensor]:
    """(S + gamma I)^1/2 and its inverse."""
    values, vectors = torch.linalg.eigh(covariances)
    # the eigenvalues are negative only by rounding
    root = (values.clamp(min=0) + gamma).sqrt()
    return vectors * root @ vectors.mT, vectors / root @ vectors.mT
