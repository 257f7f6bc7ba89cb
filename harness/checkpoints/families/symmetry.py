"""A family's table and a model's tensors -> the hidden groups that may be permuted or rotated with
the outputs unchanged, and the layer and the role of each tensor."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple, TypeAlias, get_args

from harness.checkpoints.families.family import (
    CROSS_QK,
    CROSS_VO,
    EMBEDDING,
    FFN,
    QK,
    ROPE,
    VO,
    WIDTH,
    Family,
    Unit,
)
from harness.errors import IncompatibleWeights, UnknownName
from harness.types import StateDict
from harness.weights import Axes, Layer, Spec, dual, floating, group_of, joined, specs, split

LAYER_NUMBER = re.compile(r"\.(\d+)\.")
"""The number of a layer, in the name of a tensor."""


def in_any_layer(name: str) -> str:
    """The name of a tensor as in a family's table: with `{layer}` for the number of its layer."""
    return LAYER_NUMBER.sub(".{layer}.", name, count=1)


def layer_in(family: Family, name: str) -> Layer | None:
    """The layer that a tensor is in, by the first number in its name; None if it is in none."""
    if (number := LAYER_NUMBER.search(name)) is None:
        return None
    stack = next((one for one in family.stacks if f"{one}." in name), None)
    return f"{stack}.{number[1]}" if stack else int(number[1])


def axes_of(family: Family, state: StateDict, unit: Unit = "row") -> Axes:
    """For each parameter of a classifier, the hidden group that each of its axes runs over.

    `state` are the parameters, head included, of a classifier of rows or of words; only headers are
    read. The names are those of `split_parts`. None marks an axis that must stay as it is. What may
    be done with a group, and what must be done with two of them together, is described where they
    are named (family.py).

    Raises UnknownName for a family without a table, and IncompatibleWeights for a tensor that is
    not in it or has another shape than it says.
    """
    top = family.row if unit == "row" else family.word
    if not family.axes or top is None:
        from harness.checkpoints.families.known import FAMILY_OF_TYPE

        supported = [name for name, other in FAMILY_OF_TYPE.items() if other.axes]
        raise UnknownName(
            f"the symmetries of {', '.join(family.model_types)} are not implemented, expected "
            f"one of {', '.join(supported)}"
        )
    state = split_parts(family, state)
    table = {**family.axes, **top.axes}
    placed: dict[str, tuple[str | None, ...]] = {}
    for name in floating(state):
        axes = table.get(in_any_layer(name))
        if axes is None:
            raise IncompatibleWeights(
                f"'{name}' is not among the known tensors of {family.name}; expected only these"
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


def split_parts(family: Family, state: StateDict) -> StateDict:
    """The state with each stored tensor that the family's table has in parts split into these."""
    return split(state, _parts(family, state))


def joined_parts(family: Family, state: StateDict, stored: Iterable[str]) -> StateDict:
    """The inverse of `split_parts`, of a state whose names were `stored`."""
    return joined(state, _parts(family, stored))


def _parts(family: Family, names: Iterable[str]) -> dict[str, list[str]]:
    """The names of the parts of each stored tensor that the table has in parts."""
    part_names = {}
    for name in names:
        if (parts := family.parts.get(in_any_layer(name))) and (match := LAYER_NUMBER.search(name)):
            part_names[name] = [part.replace("{layer}", match[1]) for part in parts]
    return part_names


def readers_of(family: Family, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The norms before layers of a model with tensors of these names, each with its readers."""
    found = {}
    for name in names:
        module = name.removesuffix(".weight")
        if readers := family.readers.get(in_any_layer(module)):
            number = LAYER_NUMBER.search(name)
            layer = number[1] if number else ""
            found[module] = tuple(one.replace("{layer}", layer) for one in readers)
    return found


def _check_sizes(placed: Axes, state: StateDict) -> None:
    """Raise IncompatibleWeights unless a group has the same size in all tensors that have it."""
    sizes: dict[str, int] = {}
    headers = specs(state)
    for name, axes in placed.items():
        shape = headers[name].shape
        if len(shape) != len(axes):
            raise IncompatibleWeights(f"'{name}' is {shape}, expected {len(axes)} axes")
        for axis, size in zip(axes, shape, strict=True):
            group = axis and group_of(axis)
            if group and sizes.setdefault(group, size) != size:
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
"""What a tensor does; a bias has the role of its matrix.

Projections of relative positions count as queries and keys. Without a table of axes, only `matrix`,
two or more axes, and `vector` are known.
"""
ROLES: tuple[Role, ...] = get_args(Role)
"""All roles, in the order in which data passes through a model."""

_BY_GROUP: dict[str, Role] = {EMBEDDING: "embeddings"}
"""The role of a matrix by a group, or its dual, that one of its axes runs over."""
_SIDES: tuple[tuple[tuple[str, ...], Role, Role], ...] = (
    ((QK, ROPE, CROSS_QK), "query", "key"),
    ((VO, CROSS_VO), "value", "attention output"),
    ((FFN,), "up", "down"),
)
"""Groups, the role of the matrix that makes their units, and of the one that reads them."""
for _groups, _made, _read in _SIDES:
    _BY_GROUP |= dict.fromkeys(_groups, _made) | dict.fromkeys(map(dual, _groups), _read)


class TensorPlace(NamedTuple):
    """Where a tensor stands in a model: its layer, None if it is in none, and its role."""

    layer: Layer | None
    role: Role


def place_in(family: Family, name: str, spec: Spec) -> TensorPlace:
    """The place of a tensor of a model of this family. Layers are numbered as in its names."""
    if family.is_head(name):
        return TensorPlace(None, "head")
    if family.is_pooler(name):
        return TensorPlace(None, "pooler")
    stored = in_any_layer(name)
    roles = {_role(family, part) for part in family.parts.get(stored, (stored,))}
    plain: Role = "matrix" if len(spec.shape) > 1 else "vector"
    return TensorPlace(layer_in(family, name), (len(roles) == 1 and roles.pop()) or plain)


def _role(family: Family, name: str) -> Role | None:
    """The role of a tensor by the groups that its module's weight runs over; None if unknown."""
    weight = f"{name.removesuffix('bias').removesuffix('weight')}weight"
    axes = family.axes.get(weight) or family.axes.get(name)
    if axes is None:
        return None
    if len(axes) == 1 and weight in family.axes:
        return "norm"
    for axis in filter(None, axes):
        if axis in _BY_GROUP:
            return _BY_GROUP[axis]
    # a parameter of no module (cls_token, say) counts as embeddings
    return "convolution" if axes[0] and weight in family.axes else "embeddings"
