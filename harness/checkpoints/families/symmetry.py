"""A family's table and a model's tensors -> what may be moved without moving its outputs, and the
layer and the role of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, TypeAlias, get_args

from harness.checkpoints.families.family import (
    CROSS_QK,
    CROSS_VO,
    EMBEDDING,
    FFN,
    QK,
    VO,
    WIDTH,
    Family,
    Unit,
)
from harness.errors import IncompatibleWeights, UnknownName
from harness.types import StateDict
from harness.weights import Axes, Layer, Spec, dual, floating, group_of, specs

NUMBER = re.compile(r"\.(\d+)\.")
"""The number of a layer, in the name of a tensor."""


def in_any_layer(name: str) -> str:
    """The name of a tensor as tables have it: with `{layer}` for the number of its layer."""
    return NUMBER.sub(".{layer}.", name, count=1)


def layer_in(family: Family, name: str) -> Layer | None:
    """The layer that a tensor is in, by the first number in its name; None if it is in none."""
    if (number := NUMBER.search(name)) is None:
        return None
    stack = next((one for one in family.stacks if f"{one}." in name), None)
    return f"{stack}.{number[1]}" if stack else int(number[1])


def axes_of(family: Family, state: StateDict, unit: Unit = "row") -> Axes:
    """For each parameter of a classifier, the hidden group that each of its axes runs over.

    `state` are the parameters with the head of a classifier of rows or of words; headers are read
    and no tensor. None is for an axis that stays as it is. What may be done with a group, and what
    must be done to two of them together, is described where they are named (family.py).

    Raises UnknownName for a family without a table, and IncompatibleWeights for a tensor that is
    not in it or has another shape than it says.
    """
    top = family.row if unit == "row" else family.word
    if not family.axes or top is None:
        from harness.checkpoints.families.known import FAMILIES

        known = [name for one in FAMILIES if one.axes for name in one.model_types]
        raise UnknownName(
            f"the symmetries of {', '.join(family.model_types)} are not implemented, expected "
            f"one of {', '.join(known)}; rotary positions and the first DeBERTa have others"
        )
    table = {**family.axes, **top.axes}
    placed: dict[str, tuple[str | None, ...]] = {}
    for name in floating(state):
        axes = table.get(in_any_layer(name))
        if axes is None:
            raise IncompatibleWeights(
                f"'{name}' is not in the table of {family.name}, expected its tensors alone"
            )
        layer = str(layer_in(family, name))
        placed[name] = tuple(group and group.replace("{layer}", layer) for group in axes)
    if family.projection not in placed:
        placed = {
            name: tuple(WIDTH if group == EMBEDDING else group for group in axes)
            for name, axes in placed.items()
        }
    _check_sizes(placed, state)
    return placed


def readers_of(family: Family, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The norms before layers of a model with tensors of these names, with all that reads each."""
    found = {}
    for name in names:
        number = NUMBER.search(name)
        module, _, kind = in_any_layer(name).rpartition(".")
        if kind == "weight" and module in family.readers:
            each = family.readers[module]
            layer = number[1] if number else ""
            found[name.rpartition(".")[0]] = tuple(one.replace("{layer}", layer) for one in each)
    return found


def _check_sizes(placed: Axes, state: StateDict) -> None:
    """Raise IncompatibleWeights unless a group has one size, whichever tensor it is read off."""
    sizes: dict[str, int] = {}
    known = specs(state)
    for name, axes in placed.items():
        shape = known[name].shape
        if len(shape) != len(axes):
            raise IncompatibleWeights(f"'{name}' is {shape}, expected {len(axes)} axes")
        for group, size in zip(axes, shape, strict=True):
            if group is None:
                continue
            group = group_of(group)
            if sizes.setdefault(group, size) != size:
                raise IncompatibleWeights(
                    f"'{name}' is {shape}, expected {sizes[group]} for its axis of {group}"
                )


# What a tensor does -----------------------------------------------------------------------

Role: TypeAlias = Literal[
    "embeddings",
    "query",
    "key",
    "value",
    "attention output",
    "up",
    "down",
    "convolution",
    "norm",
    "matrix",
    "vector",
    "pooler",
    "head",
]
"""What a tensor does, a bias with the matrix that it is added to.

Projections of relative positions count as queries and keys. Of an architecture without a table no
more is known than `matrix`, two or more axes, and `vector`.
"""
ROLES: tuple[Role, ...] = get_args(Role)
"""All of them, in the order of data through a model."""

_BY_GROUP: Mapping[str | None, Role] = {
    QK: "query",
    dual(QK): "key",
    VO: "value",
    dual(VO): "attention output",
    CROSS_QK: "query",
    dual(CROSS_QK): "key",
    CROSS_VO: "value",
    dual(CROSS_VO): "attention output",
    FFN: "up",
    dual(FFN): "down",
    EMBEDDING: "embeddings",
}


class Place(NamedTuple):
    """Where a tensor stands in a model: its layer, None if it is in none, and its role."""

    layer: Layer | None
    role: Role


def place_in(family: Family, name: str, spec: Spec) -> Place:
    """The place of a tensor of a model of this family. Layers are numbered as in its names."""
    if family.is_head(name):
        return Place(None, "head")
    if family.is_pooler(name):
        return Place(None, "pooler")
    weight = in_any_layer(name).removesuffix("bias").removesuffix("weight")
    axes = family.axes.get(f"{weight}weight")
    role = _role(axes) if axes else "matrix" if len(spec.shape) > 1 else "vector"
    if weight in family.axes:  # a parameter of no module: of a token
        role = "embeddings"
    return Place(layer_in(family, name), role)


def _role(axes: tuple[str | None, ...]) -> Role:
    """What the weight of a module does, by the groups that its axes run over."""
    if len(axes) == 1:
        return "norm"
    for axis in axes:
        if axis in _BY_GROUP:
            return _BY_GROUP[axis]
    return "embeddings" if axes[0] is None else "convolution"
