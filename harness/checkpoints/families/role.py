"""The name of a tensor -> its layer and what it does there, read off the family's table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias, get_args

from harness.checkpoints.families.family import EMBEDDING, FFN, QK, VO, WIDTH, Family
from harness.checkpoints.families.symmetry import NUMBER, in_any_layer
from harness.weights import Spec, dual

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
    FFN: "up",
    dual(FFN): "down",
    EMBEDDING: "embeddings",
}


class Place(NamedTuple):
    """Where a tensor stands in a model: its layer, None if it is in none, and its role."""

    layer: int | None
    role: Role


def place_in(family: Family, name: str, spec: Spec) -> Place:
    """The place of a tensor of a model of this family. Layers are numbered as in its names."""
    if family.is_head(name):
        return Place(None, "head")
    if family.is_pooler(name):
        return Place(None, "pooler")
    number = NUMBER.search(name)
    weight = in_any_layer(name).removesuffix("bias").removesuffix("weight")
    axes = family.axes.get(f"{weight}weight")
    role = _role(axes) if axes else "matrix" if len(spec.shape) > 1 else "vector"
    return Place(int(number[1]) if number else None, role)


def _role(axes: tuple[str | None, ...]) -> Role:
    """What the weight of a module does, by the groups that its axes run over."""
    if len(axes) == 1:
        return "norm"
    for axis in axes:
        if axis in _BY_GROUP:
            return _BY_GROUP[axis]
    return "embeddings" if axes == (None, WIDTH) else "convolution"
