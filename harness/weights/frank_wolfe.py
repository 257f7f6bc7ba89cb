"""Units of several models matched at once (C2M3, Crisostomi et al. 2024, arXiv:2405.17897)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from harness.weights.arithmetic import total
from harness.weights.matching import assignment

ITERATIONS = 400
"""The most steps, as in the published code."""
STATIONARY = 1e-9
"""A first-order gain below this share of the squared norms counts as none."""


@dataclass(frozen=True)
class Universe:
    """An order of the units of each model: unit `orders[p][u]` of model p is at the common place u.

    `objective` is the sum of the inner products of all pairs of models in these orders.
    """

    orders: Sequence[torch.Tensor]
    objective: float
    iterations: int


def universe(units: Sequence[torch.Tensor], start: Sequence[torch.Tensor]) -> Universe:
    """Orders of the units of all models, found jointly by the Frank-Wolfe method from a start.

    `units` are [units, features] of each model, in float64. Orders are relaxed to doubly stochastic
    matrices. Each step goes towards the assignments that are best to first order, as far as the
    objective, a quadratic function of the step, rises; at the end each matrix is rounded by
    assignment. One model is mapped to another through the common places, so that chains of maps
    agree. The objective is never below that of the start. (The published code starts at the present
    orders, from where two copies of one model in different orders move past one another.)

    By hand: two models of two units, (1, 0) and (0, 1) in one and (0, 2) and (2, 0) in the other.
    In the present orders their inner product is 0; with either order reversed it is 4.
    """
    mixtures = [
        Mixture(x, x[order], ((1.0, order),)) for x, order in zip(units, start, strict=True)
    ]
    steps = 0
    while steps < ITERATIONS and (after := _stepped(mixtures)):
        mixtures, steps = after, steps + 1
    rounded = [mixture.rounded() for mixture in mixtures]
    best = max([list(start), rounded], key=lambda orders: objective(units, orders))
    return Universe(best, objective(units, best), steps)


def _stepped(mixtures: Sequence[Mixture]) -> list[Mixture] | None:
    """The mixtures after one step; None if there is no more gain to first order."""
    summed = total([mixture.placed for mixture in mixtures])
    rest = [summed - mixture.placed for mixture in mixtures]
    orders = [assignment(x.units @ y.mT) for x, y in zip(mixtures, rest, strict=True)]
    steps = [x.units[order] - x.placed for x, order in zip(mixtures, orders, strict=True)]
    slope = sum(float((y * step).sum()) for y, step in zip(rest, steps, strict=True))
    if slope <= STATIONARY * sum(float(mixture.units.square().sum()) for mixture in mixtures):
        return None
    curvature = pairs(steps)  # the objective rises by slope * t + curvature * t^2
    size = 1.0 if curvature >= 0 else min(1.0, slope / (-2 * curvature))
    return [mixture.towards(order, size) for mixture, order in zip(mixtures, orders, strict=True)]


def objective(units: Sequence[torch.Tensor], orders: Sequence[torch.Tensor]) -> float:
    """The sum of the inner products of all pairs of models, each in its order."""
    return pairs([x[order] for x, order in zip(units, orders, strict=True)])


def pairs(tensors: Sequence[torch.Tensor]) -> float:
    """The sum of the inner products of all pairs: half of ||sum||^2 minus the sum of ||x||^2."""
    squares = sum(float(tensor.square().sum()) for tensor in tensors)
    return (float(total(tensors).square().sum()) - squares) / 2


@dataclass(frozen=True)
class Mixture:
    """A doubly stochastic matrix as `shares` of orders; `placed` is its product with the units."""

    units: torch.Tensor
    placed: torch.Tensor
    shares: tuple[tuple[float, torch.Tensor], ...]

    def towards(self, order: torch.Tensor, size: float) -> Mixture:
        """This mixture times 1 - `size`, plus `size` times an order."""
        rest = tuple((share * (1 - size), previous) for share, previous in self.shares if size < 1)
        placed = torch.lerp(self.placed, self.units[order], size)
        return Mixture(self.units, placed, (*rest, (size, order)))

    def rounded(self) -> torch.Tensor:
        """The order that is nearest to the matrix."""
        size = len(self.units)
        matrix = torch.zeros(size, size, dtype=torch.float64)
        for share, order in self.shares:
            matrix[order, torch.arange(size)] += share
        return assignment(matrix)
