"""Units of several models matched at once (C2M3, Crisostomi et al. 2024, arXiv:2405.17897)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from harness.weights.arithmetic import total
from harness.weights.matching import assignment

ITERATIONS = 400
"""As many as the published code makes at most."""
STATIONARY = 1e-9
"""Of the squared norms: a gain to first order that is smaller is none."""


@dataclass(frozen=True)
class Universe:
    """Orders of several models' units: at place u of them all is unit `orders[p][u]` of model p.

    `objective` is the sum of the inner products of all pairs in these orders.
    """

    orders: Sequence[torch.Tensor]
    objective: float
    iterations: int


def universe(units: Sequence[torch.Tensor], start: Sequence[torch.Tensor]) -> Universe:
    """The orders of all models together that the method of Frank and Wolfe finds from a start.

    `units` are [units, features] of each model, in float64. Orders are relaxed to doubly stochastic
    matrices: each step goes towards the assignments that are best to first order, as far as the
    objective rises, which is a quadratic function of the step; at the end each matrix is rounded by
    assignment. The way from one model to another is through the universe, so that all ways agree.
    The objective is never below that of the start. (The published code starts at the orders as they
    are, from where two copies of one model in different orders pass one another half-way.)

    By hand: two models of two units, (1, 0) and (0, 1) in the one and (0, 2) and (2, 0) in the
    other: as they are their inner product is 0, and with either reversed it is 4.
    """
    mixtures = [
        Mixture(x, x[order], ((1.0, order),)) for x, order in zip(units, start, strict=True)
    ]
    steps = 0
    while steps < ITERATIONS and (after := _stepped(mixtures)):
        mixtures, steps = after, steps + 1
    rounded = [one.rounded() for one in mixtures]
    best = max([list(start), rounded], key=lambda orders: objective(units, orders))
    return Universe(best, objective(units, best), steps)


def _stepped(mixtures: Sequence[Mixture]) -> list[Mixture] | None:
    """The mixtures one step on; None where to first order nothing is gained any more."""
    summed = total([one.placed for one in mixtures])
    rest = [summed - one.placed for one in mixtures]
    orders = [assignment(x.units @ y.mT) for x, y in zip(mixtures, rest, strict=True)]
    steps = [x.units[order] - x.placed for x, order in zip(mixtures, orders, strict=True)]
    slope = sum(float((y * step).sum()) for y, step in zip(rest, steps, strict=True))
    if slope <= STATIONARY * sum(float(one.units.square().sum()) for one in mixtures):
        return None
    curvature = pairs(steps)  # the objective rises by slope * t + curvature * t^2
    size = 1.0 if curvature >= 0 else min(1.0, slope / (-2 * curvature))
    return [one.towards(order, size) for one, order in zip(mixtures, orders, strict=True)]


def objective(units: Sequence[torch.Tensor], orders: Sequence[torch.Tensor]) -> float:
    """The sum of the inner products of all pairs of models, each in its order."""
    return pairs([x[order] for x, order in zip(units, orders, strict=True)])


def pairs(tensors: Sequence[torch.Tensor]) -> float:
    """The sum of the inner products of all pairs: half of what the square of their sum has beside
    their squares."""
    squares = sum(float(one.square().sum()) for one in tensors)
    return (float(total(tensors).square().sum()) - squares) / 2


@dataclass(frozen=True)
class Mixture:
    """A doubly stochastic matrix, as shares of orders, and the [units, features] that it places."""

    units: torch.Tensor
    placed: torch.Tensor
    shares: tuple[tuple[float, torch.Tensor], ...]

    def towards(self, order: torch.Tensor, size: float) -> Mixture:
        """The mixture with this share of an order, and less of all others."""
        rest = tuple((share * (1 - size), one) for share, one in self.shares if size < 1)
        placed = torch.lerp(self.placed, self.units[order], size)
        return Mixture(self.units, placed, (*rest, (size, order)))

    def rounded(self) -> torch.Tensor:
        """The order that is nearest to the matrix."""
        size = len(self.units)
        matrix = torch.zeros(size, size, dtype=torch.float64)
        for share, order in self.shares:
            matrix[order, torch.arange(size)] += share
        return assignment(matrix)
