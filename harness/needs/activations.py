"""Activations of the hidden units of all experts on the same unlabeled rows, to match units by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from harness.checkpoints.build import unit_of
from harness.checkpoints.families.symmetry import axes_of, split_parts
from harness.needs.symmetry import toy_family, toy_symmetry
from harness.options import Count
from harness.passes.activations import ExpertActivations, Pairs
from harness.passes.reading import Readings
from harness.registry import need
from harness.rng import rng
from harness.types import Products, StateDict
from harness.weights import Axes, dual, group_of

UNITS = "ffn."
"""Begins the names of groups of units between two feed-forward layers."""


def _by_group(axes: Axes, *, reading: bool) -> dict[str, str]:
    """By group, the weight of the layer that reads its units, or of the one that computes them."""
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

    The units are sorted by their biases, or by their first weights if they have none, so that the
    units of two experts do not match in the given order.
    """

    expert: StateDict
    makers: Mapping[str, str]

    def products(self, other: _MadeUp, group: str) -> Products:
        left, right = self._of(group), other._of(group)
        sums, squares = ((left.sum(0), right.sum(0)), (left.square().sum(0), right.square().sum(0)))
        return Products(left.T @ right, sums, squares, len(left))

    def _of(self, group: str) -> torch.Tensor:
        name = self.makers[group]
        weight = self.expert[name].double()
        bias = self.expert.get(f"{name[:-6]}bias", weight[:, 0]).double()
        rows = rng(0, "activations", group).normal(size=(64, weight.shape[1]))
        return torch.from_numpy(rows).matmul(weight.T).add(bias).relu()[:, bias.argsort()]


def _toy(experts: Sequence[StateDict]) -> list[_MadeUp]:
    makers = _by_group(toy_symmetry(experts).axes, reading=False)
    family = toy_family(experts[0])
    return [_MadeUp(split_parts(family, expert), makers) for expert in experts]


@need("activations", paper="arXiv:2209.04836", rows="same", toy=_toy)
def activations(
    readings: Readings, *, examples: Count = 1024, seed: int = 0, batch_size: Count = 16
) -> list[ExpertActivations]:
    """Hidden units of every expert on the same `examples` rows, without labels.

    The units are those between two feed-forward layers, after the activation function, at every
    token of the rows except padding. A method gets their inner products with the units of another
    expert, sums and squares, computed when it asks for them (`Activations`). Raises UnknownName for
    an architecture whose groups are not known.
    """
    first = readings.checkpoints[0]
    axes = axes_of(first.family, first.weights, unit_of(first))
    readers = _by_group(axes, reading=True)
    layers = {group: name.removesuffix(".weight") for group, name in readers.items()}
    pairs = Pairs(readings, layers, batch_size)
    return [ExpertActivations(pairs, place) for place in range(len(readings))]
