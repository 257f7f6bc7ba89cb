"""The hidden groups of a model, and maps of their units that leave the model's outputs unchanged.

A group is a set of hidden units that several tensors have an axis for, such as the units between
two feed-forward layers. A map A takes the units, as a row vector z, to z A. A tensor that computes
the units is mapped along its axis, W to A^T W. In a tensor that reads them the map is undone: its
axis is *dual*, and mapped by A^-1. For an orthogonal A both are mapped alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch

from harness.errors import BadOption, IncompatibleWeights
from harness.types import StateDict
from harness.weights.arithmetic import wide, widened
from harness.weights.lazy import Lazy, specs

Axes: TypeAlias = "Mapping[str, tuple[str | None, ...]]"
"""For each tensor, the hidden group that each of its axes runs over; None: the axis stays."""

DUAL = "*"
"""Ends the name of a dual axis."""
Layer: TypeAlias = "int | str"
"""A layer: its number, in a model of two stacks after the name of the stack: `encoder.0`."""
LAYER = re.compile(r"\.(?:([a-z]+)\.)?([0-9]+)")
"""Finds the layer in the name of a group, with its stack."""
ATTENTION = ("qk", "rope", "vo")
"""The kinds of groups that consist of attention heads; a model may lack some."""
CROSS = ".cross"
"""Ends the names of groups of a decoder's attention to its encoder: its heads have an own order."""


def dual(group: str) -> str:
    """The name of a group for a dual axis, along which a map of the group is undone."""
    return f"{group}{DUAL}"


def group_of(axis: str) -> str:
    """The group that an axis runs over, dual or not."""
    return axis.removesuffix(DUAL)


def layer_of(group: str) -> Layer | None:
    """The layer that a group belongs to, or None."""
    if (found := LAYER.search(group)) is None:
        return None
    return f"{found[1]}.{found[2]}" if found[1] else int(found[2])


def in_order(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    """Layers in the order in which data pass through a model: an encoder's before a decoder's."""

    def place(layer: Layer) -> tuple[bool, int]:
        stack, _, number = str(layer).rpartition(".")
        return stack == "decoder", int(number)

    return tuple(sorted(set(layers), key=place))


class Member(NamedTuple):
    """An axis of a tensor that runs over a group."""

    name: str
    axis: int
    dual: bool


@dataclass(frozen=True)
class Symmetry:
    """Which axis of which parameter of a model runs over which hidden group.

    The groups of layer 3 are `qk.3` (queries and keys), `vo.3` (values and outputs) and `ffn.3`.
    An attention group consists of `heads` blocks: any rotation within a block keeps the function,
    and the blocks of `qk` and `vo` are permuted alike. All other groups, such as `width`,
    `embedding` and `pooled`, may only be permuted. In a model of two stacks layers are called
    `encoder.3` and `decoder.3`, and a decoder's attention to the encoder `qk.decoder.3.cross`. If
    there is a group `heads.encoder`, the heads of all encoder layers are permuted alike.
    `words` are the names of the token embedding table, `head` those of the head's tensors.
    `one_task` is true if the outputs of all experts mean the same. `own` has, for each expert, the
    axes of tensors whose name is shared but whose groups differ, as in the heads of a classifier of
    rows and of a tagger. `readers` maps the norms of a model with norms before its layers to the
    modules that read each. `model_type` is the name of the architecture in config.json.
    """

    axes: Axes
    heads: int
    words: tuple[str, ...] = ()
    head: tuple[str, ...] = ()
    one_task: bool = True
    own: tuple[Axes, ...] = ()
    readers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    model_type: str = "the model"

    def of(self, index: int) -> Symmetry:
        """The symmetry of one expert, with its `own` axes."""
        return replace(self, axes={**self.axes, **self.own[index]}) if self.own else self

    @property
    def groups(self) -> frozenset[str]:
        """The hidden groups that any tensor runs over."""
        return frozenset(group_of(axis) for axes in self.axes.values() for axis in axes if axis)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers, in order."""
        return in_order(layer for group in self.groups if (layer := layer_of(group)) is not None)

    def members(self, group: str, *states: StateDict) -> list[Member]:
        """The axes that run over a group in tensors that all states have in one shape, by name.

        Heads of different tasks may differ in shape, and a base has no head.
        """
        headers = [specs(state) for state in states]
        return sorted(
            Member(name, place, axis != group)
            for name, axes in self.axes.items()
            for place, axis in enumerate(axes)
            if axis is not None and group_of(axis) == group
            if all(name in one and one[name].shape == headers[0][name].shape for one in headers)
        )

    def chosen(self, layers: str) -> tuple[Layer, ...]:
        """The layers that an option names: `all`, the first or last few as `first:5`, or a number.

        Layers are numbered as in the names of tensors, from 0. For a model of two stacks the stack
        is named: `encoder`, `decoder.first:5`. Raises BadOption for a layer that the model lacks.
        Of a model without layers the result is empty, whatever the option.
        """
        all_layers, few = self.layers, ""
        choices = {"all": all_layers, **{str(layer): (layer,) for layer in all_layers}}
        for stack, members in groupby(all_layers, lambda layer: str(layer).rpartition(".")[0]):
            own, prefix = tuple(members), f"{stack}." if stack else ""
            choices |= {f"{prefix}first:{count}": own[:count] for count in range(1, len(own) + 1)}
            choices |= {f"{prefix}last:{count}": own[-count:] for count in range(1, len(own) + 1)}
            choices |= {stack: own} if stack else {}
            few = f"{prefix}first:N or {prefix}last:N with N from 1 to {len(own)}"
        if all_layers and layers not in choices:
            raise BadOption(
                f"layers is '{layers}', expected {', '.join(filter(str.isalpha, choices))}, {few}, "
                f"or a layer from {all_layers[0]} to {all_layers[-1]}"
            )
        return choices.get(layers, all_layers)

    def within(self, layers: str, *kinds: str) -> list[str]:
        """The groups of the given kinds (`ffn`, ...) in the layers of an option, layer by layer."""
        chosen = self.chosen(layers)
        placed = [
            (chosen.index(layer), kinds.index(kind), group)
            for group in self.groups
            if (kind := group.partition(".")[0]) in kinds and (layer := layer_of(group)) in chosen
        ]
        return [group for *_, group in sorted(placed)]

    def head_orders(self, layers: str) -> dict[str, tuple[str, ...]]:
        """The groups whose heads are permuted alike, by a name for them: those of one attention or,
        in a stack where all layers share the order of heads, those of all its layers.

        Raises BadOption if only some layers of such a stack are chosen.
        """

        def called(group: str) -> str:
            place = group.partition(".")[2]
            shared = f"heads.{place.rpartition('.')[0]}".rstrip(".")
            of_all = shared in self.groups and not group.endswith(CROSS)
            return shared if of_all else f"heads.{place}"

        alike: dict[str, tuple[str, ...]] = {}
        for group in self.within(layers, *ATTENTION):
            alike[called(group)] = (*alike.get(called(group), ()), group)
        for name in alike.keys() & self.groups:
            if [*map(called, self.within("all", *ATTENTION))].count(name) > len(alike[name]):
                raise BadOption(
                    f"layers is '{layers}', and the heads of all layers of the "
                    f"{name.partition('.')[2] or 'encoder'} of {self.model_type} share one order; "
                    "expected all of these layers, or heads=false"
                )
            alike[name] += (name,)
        return alike


# Maps --------------------------------------------------------------------------------------


class UnitMap(Protocol):
    """A map of the units of a group, applied to a tensor along one axis."""

    def __call__(self, tensor: torch.Tensor, axis: int, *, dual: bool) -> torch.Tensor:
        """The tensor mapped along an axis; `dual` if the tensor reads the units."""


@dataclass(frozen=True)
class Permuted:
    """Blocks of units in another order: the new block i is the old block `order[i]`.

    There are len(order) blocks of equal size: single units, or whole heads.
    """

    order: torch.Tensor

    def __call__(self, tensor: torch.Tensor, axis: int, *, dual: bool) -> torch.Tensor:
        """The tensor with one of its axes in the new order."""
        shape = tensor.shape
        blocks = tensor.reshape(*shape[:axis], len(self.order), -1, *shape[axis + 1 :])
        return blocks.index_select(axis, self.order.to(tensor.device)).reshape(shape)

    def then(self, other: Permuted) -> Permuted:
        """This permutation followed by the other."""
        return Permuted(self.order[other.order])


@dataclass(frozen=True)
class Turned:
    """Every block of units multiplied by its matrix of `blocks` [blocks, size, size], in float64.

    `inverse` has the inverse matrices; None if they are the transposes.
    """

    blocks: torch.Tensor
    inverse: torch.Tensor | None = None

    def __call__(self, tensor: torch.Tensor, axis: int, *, dual: bool) -> torch.Tensor:
        """The tensor mapped along an axis, in its own type."""
        matrices = self.inverse if dual and self.inverse is not None else self.blocks.mT
        front = tensor.movedim(axis, 0)
        parts = front.reshape(*matrices.shape[:2], -1).to(matrices.dtype)
        turned = torch.bmm(matrices.to(tensor.device), parts).reshape(front.shape)
        return turned.movedim(0, axis).to(tensor.dtype)


def moved(
    state: StateDict,
    symmetry: Symmetry,
    find: Callable[[str], UnitMap | None],
    report: Mapping[str, Any] | None = None,
) -> StateDict:
    """The state with the units of some groups mapped, in at least float32.

    `find` gives the map of a group, None if it stays, and is called each time that one of the
    group's tensors is computed. Tensors that no map changes are copied. `report` is the report of
    the result; it may be filled as maps are found.
    """

    def compute(name: str) -> torch.Tensor:
        original = state[name]
        tensor = wide(original)
        for place, axis in enumerate(symmetry.axes.get(name, ())):
            if axis is not None and (unit_map := find(group_of(axis))) is not None:
                tensor = unit_map(tensor, place, dual=axis.endswith(DUAL))
        return tensor.clone() if tensor is original else tensor.contiguous()

    return Lazy(widened(state), compute, report=report)


# Norms -------------------------------------------------------------------------------------


def absorbed(state: StateDict, readers: Mapping[str, Sequence[str]]) -> StateDict:
    """The state with its norms absorbed by the layers that read them, in at least float32.

    The norms are left with gains of 1 and biases of 0. In a linear layer W x + b that reads a norm
    with gain g and bias c, W becomes W diag(g) and b becomes b + W c: the function stays. Raises
    IncompatibleWeights for a layer without a bias.
    """
    headers = specs(state)
    norm_of = {reader: norm for norm, modules in readers.items() for reader in modules}
    for reader, norm in norm_of.items():
        if f"{reader}.weight" in headers and f"{reader}.bias" not in headers:
            raise IncompatibleWeights(
                f"'{reader}.bias' is missing, which would absorb the bias of '{norm}'; expected a "
                "model with this bias"
            )

    def compute(name: str) -> torch.Tensor:
        module, _, kind = name.rpartition(".")
        original, norm = state[name], norm_of.get(module)
        tensor = wide(original)
        if module in readers:
            return torch.ones_like(tensor) if kind == "weight" else torch.zeros_like(tensor)
        if norm is None:
            return tensor.clone() if tensor is original else tensor
        if kind == "weight":
            result = tensor.double() * state[f"{norm}.weight"].double()
        else:
            weight = state[f"{module}.weight"].double()
            result = tensor.double() + weight @ state[f"{norm}.bias"].double()
        return result.to(tensor.dtype)

    return Lazy(widened(state), compute)
