"""What hidden units of all experts make of the same unlabeled rows, to match them by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from harness.checkpoints.build import unit_of
from harness.checkpoints.families.symmetry import axes_of, in_table
from harness.needs.symmetry import toy_family, toy_symmetry
from harness.options import Count
from harness.passes.activations import ExpertActivations, Pairs
from harness.passes.reading import Readings
from harness.registry import need
from harness.rng import rng
from harness.types import Products, StateDict
from harness.weights import Axes, dual, group_of

UNITS = "ffn."
"""What groups of units between two feed-forward layers are called."""


def _by_group(axes: Axes, *, reading: bool) -> dict[str, str]:
    """The weight of the layer that reads the units of each group, or of that which makes them."""
    place = 1 if reading else 0
    names = {}
    for name, groups in axes.items():
        group = groups[place] if len(groups) == 2 else None
        if group and group.startswith(UNITS) and (group == dual(group_of(group))) == reading:
            names[group_of(group)] = name
    return names


@dataclass(frozen=True, eq=False)
class _MadeUp:
    """Activations of a toy expert: ReLU of its first feed-forward layer on made-up inputs.

    The units are told in the order of their biases, or of their first weights, so that those of two
    experts do not match as they stand and something is to be done.
    """

    expert: StateDict
    makers: Mapping[str, str]

    def products(self, other: _MadeUp, group: str) -> Products:
        here, there = self._of(group), other._of(group)
        sums, squares = ((here.sum(0), there.sum(0)), (here.square().sum(0), there.square().sum(0)))
        return Products(here.T @ there, sums, squares, len(here))

    def _of(self, group: str) -> torch.Tensor:
        name = self.makers[group]
        weight = self.expert[name].double()
        bias = self.expert.get(f"{name[:-6]}bias", weight[:, 0]).double()
        rows = rng(0, "activations", group).normal(size=(64, weight.shape[1]))
        return torch.from_numpy(rows).matmul(weight.T).add(bias).relu()[:, bias.argsort()]


def _toy(experts: Sequence[StateDict]) -> list[_MadeUp]:
    makers = _by_group(toy_symmetry(experts).axes, reading=False)
    family = toy_family(experts[0])
    return [_MadeUp(in_table(family, expert), makers) for expert in experts]


@need("activations", paper="arXiv:2209.04836", rows="same", toy=_toy)
def activations(
    readings: Readings, *, examples: Count = 1024, seed: int = 0, batch_size: Count = 16
) -> list[ExpertActivations]:
    """Hidden units of every expert on the same `examples` rows, without labels.

    The units are those between two feed-forward layers, after the activation function, at every
    token of the rows but for padding. What is handed over are their inner products with those of
    another expert, sums and squares, when they are asked for (`Activations`). Raises UnknownName
    for an architecture whose groups are not known.
    """
    first = readings.checkpoints[0]
    axes = axes_of(first.family, first.weights, unit_of(first))
    readers = _by_group(axes, reading=True)
    layers = {group: name.removesuffix(".weight") for group, name in readers.items()}
    pairs = Pairs(readings, layers, batch_size)
    return [ExpertActivations(pairs, place) for place in range(len(readings))]
