"""The hidden groups of a model: what may be moved without moving its outputs, and moving it.

A group is a set of hidden units that several tensors have an axis for, as the units between two
feed-forward layers. With z the units as a row, a map A takes z to z A. An axis along which the
units are made moves as they do, W to A^T W; where they are read the map is undone: that is an axis
of the *dual*, moved by A^-1. For an orthogonal A both are the same.
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
"""For each tensor, the hidden group that each of its axes runs over; None: it stays as it is."""

DUAL = "*"
Layer: TypeAlias = "int | str"
"""A layer: its number and, in a model of two stacks, the name of its stack before: `encoder.0`."""
LAYER = re.compile(r"\.(?:([a-z]+)\.)?([0-9]+)")
"""The layer in the name of a group, with its stack."""
ATTENTION = ("qk", "rope", "vo")
"""The kinds of groups of attention heads, as far as a model has them."""
CROSS = ".cross"
"""How groups of a decoder's attention to its encoder end: its heads have an order of their own."""


def dual(group: str) -> str:
    """What an axis is said to run over where a map of the group must be undone."""
    return f"{group}{DUAL}"


def group_of(axis: str) -> str:
    """The group that an axis runs over, dual or not."""
    return axis.removesuffix(DUAL)


def layer_of(group: str) -> Layer | None:
    """The layer that a group is of, if it is of one."""
    if (at := LAYER.search(group)) is None:
        return None
    return f"{at[1]}.{at[2]}" if at[1] else int(at[2])


def in_order(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    """Layers in the order of data through a model: those of an encoder before a decoder's."""

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

    Groups of a layer are called `qk.3`, `vo.3` and `ffn.3`. Those of attention are as many blocks
    as there are `heads`: within a block any rotation keeps the function, blocks move in `qk` and
    `vo` alike. All others, `width`, `embedding` and `pooled` among them, may be permuted only.
    In a model of two stacks layers are called `encoder.3` and `decoder.3`, a decoder's attention to
    the encoder is `qk.decoder.3.cross`, and the heads of `heads.encoder`, if that is there, are
    those of all layers of the encoder, which move alike.
    `words` are names of the table of embeddings of tokens, `head` is what gives the outputs;
    `one_task` if those of all experts mean the same. `own` are the axes of each expert's tensors
    that go by one name and run over unlike groups: heads of a classifier of rows and of a tagger.
    `readers` are the norms of a model that has them before its layers, with all that reads each.
    `model_type` is what config.json calls its architecture.
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
        """That of one expert."""
        return replace(self, axes={**self.axes, **self.own[index]}) if self.own else self

    @property
    def groups(self) -> frozenset[str]:
        """The hidden groups that any tensor runs over."""
        return frozenset(group_of(axis) for axes in self.axes.values() for axis in axes if axis)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers, in order."""
        return in_order(layer for one in self.groups if (layer := layer_of(one)) is not None)

    def members(self, group: str, *states: StateDict) -> list[Member]:
        """The axes of a group, of the tensors that all states have in one shape, by their names.

        Heads of different tasks differ in shape, and a base has none.
        """
        known = [specs(state) for state in states]
        return sorted(
            Member(name, place, axis != group)
            for name, axes in self.axes.items()
            for place, axis in enumerate(axes)
            if axis is not None and group_of(axis) == group
            if all(name in one and one[name].shape == known[0][name].shape for one in known)
        )

    def chosen(self, layers: str) -> tuple[Layer, ...]:
        """The layers that an option names: `all`, the first or last few as `first:5`, or a number.

        Numbers are those in the names of tensors, which begin at 0. Of two stacks one is named:
        `encoder`, `decoder.first:5`. Raises BadOption for a layer that the model has not. A model
        without layers has none to choose.
        """
        known, few = self.layers, ""
        choices = {"all": known, **{str(one): (one,) for one in known}}
        for stack, each in groupby(known, lambda layer: str(layer).rpartition(".")[0]):
            own, at = tuple(each), f"{stack}." if stack else ""
            choices |= {f"{at}first:{count}": own[:count] for count in range(1, len(own) + 1)}
            choices |= {f"{at}last:{count}": own[-count:] for count in range(1, len(own) + 1)}
            choices |= {stack: own} if stack else {}
            few = f"{at}first:N or {at}last:N with N from 1 to {len(own)}"
        if known and layers not in choices:
            raise BadOption(
                f"layers is '{layers}', expected {', '.join(filter(str.isalpha, choices))}, {few}, "
                f"or a layer from {known[0]} to {known[-1]}"
            )
        return choices.get(layers, known)

    def within(self, layers: str, *kinds: str) -> list[str]:
        """The groups of some kinds in the layers that an option names, layer by layer."""
        chosen = self.chosen(layers)
        there = [
            (chosen.index(layer), kinds.index(kind), group)
            for group in self.groups
            if (kind := group.partition(".")[0]) in kinds and (layer := layer_of(group)) in chosen
        ]
        return [group for *_, group in sorted(there)]

    def head_orders(self, layers: str) -> dict[str, tuple[str, ...]]:
        """The groups whose heads move alike, by what they are called: those of one attention, or,
        where all of a stack do, of all its layers.

        Raises BadOption for some of the layers of such a stack.
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
                    f"{name.partition('.')[2] or 'encoder'} of {self.model_type} have one order; "
                    "expected all of them, or heads=false"
                )
            alike[name] += (name,)
        return alike


# Maps --------------------------------------------------------------------------------------


class UnitMap(Protocol):
    """What is done to the units of a group."""

    def __call__(self, tensor: torch.Tensor, axis: int, *, dual: bool) -> torch.Tensor:
        """The tensor with one of its axes moved."""


@dataclass(frozen=True)
class Permuted:
    """Blocks of units in another order: the new block i is the old block `order[i]`.

    There are as many as `order` has entries, alike in size: single units, or whole heads.
    """

    order: torch.Tensor

    def __call__(self, tensor: torch.Tensor, axis: int, *, dual: bool) -> torch.Tensor:
        """The tensor with one of its axes in the new order."""
        shape = tensor.shape
        blocks = tensor.reshape(*shape[:axis], len(self.order), -1, *shape[axis + 1 :])
        return blocks.index_select(axis, self.order.to(tensor.device)).reshape(shape)

    def then(self, other: Permuted) -> Permuted:
        """This order first, and the other after it."""
        return Permuted(self.order[other.order])


@dataclass(frozen=True)
class Turned:
    """Every block of units times a matrix of `blocks` [blocks, size, size], in float64.

    `inverse` are the inverses, where they are not the transposed.
    """

    blocks: torch.Tensor
    inverse: torch.Tensor | None = None

    def __call__(self, tensor: torch.Tensor, axis: int, *, dual: bool) -> torch.Tensor:
        """The tensor with one of its axes moved, in its own type."""
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
    """The state with the units of some groups moved, in at least float32.

    `find` says what is done to a group, if anything is, each time that one of its tensors is asked
    for. Tensors of which nothing is moved are copied. `report` is what there is to tell of the
    work, which may be filled as maps are found.
    """

    def compute(name: str) -> torch.Tensor:
        given = state[name]
        tensor = wide(given)
        for place, axis in enumerate(symmetry.axes.get(name, ())):
            if axis is not None and (one := find(group_of(axis))) is not None:
                tensor = one(tensor, place, dual=axis.endswith(DUAL))
        return tensor.clone() if tensor is given else tensor.contiguous()

    return Lazy(widened(state), compute, report=report)


# Norms -------------------------------------------------------------------------------------


def absorbed(state: StateDict, readers: Mapping[str, Sequence[str]]) -> StateDict:
    """The state with gains of 1 and biases of 0 in its norms, in at least float32.

    A linear layer W x + b that reads a norm with the gain g and the bias c becomes W diag(g), and b
    + W c: the function stays. Raises IncompatibleWeights for one that has no bias to take that.
    """
    known = specs(state)
    norm_of = {reader: norm for norm, each in readers.items() for reader in each}
    for reader, norm in norm_of.items():
        if f"{reader}.weight" in known and f"{reader}.bias" not in known:
            raise IncompatibleWeights(f"'{reader}.bias' is missing; the bias of '{norm}' needs it")

    def compute(name: str) -> torch.Tensor:
        module, _, kind = name.rpartition(".")
        given, norm = state[name], norm_of.get(module)
        tensor = wide(given)
        if module in readers:
            return torch.ones_like(tensor) if kind == "weight" else torch.zeros_like(tensor)
        if norm is None:
            return tensor.clone() if tensor is given else tensor
        if kind == "weight":
            made = tensor.double() * state[f"{norm}.weight"].double()
        else:
            weight = state[f"{module}.weight"].double()
            made = tensor.double() + weight @ state[f"{norm}.bias"].double()
        return made.to(tensor.dtype)

    return Lazy(widened(state), compute)
