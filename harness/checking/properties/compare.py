"""Whether states are alike, and the tensor and entry where they are not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from harness import weights
from harness.checking.properties.property import Broken, Method
from harness.checking.toys import Tensors
from harness.types import StateDict


def same_names(state: StateDict, expected: StateDict) -> None:
    """Raise Broken for a tensor that is missing or extra."""
    if missing := sorted(set(expected) - set(state)):
        raise Broken(f"'{missing[0]}' is missing")
    if extra := sorted(set(state) - set(expected)):
        raise Broken(f"'{extra[0]}' is there, which no input has")


def alike(state: StateDict, expected: StateDict, *, tolerance: float = 0.0) -> None:
    """Raise Broken where a tensor differs: in a bit, or by more than a tolerance that is given."""
    same_names(state, expected)
    for name in expected:
        have, want = state[name], expected[name]
        if have.shape != want.shape:
            raise Broken(f"'{name}' is {tuple(have.shape)}, expected {tuple(want.shape)}")
        if tolerance:
            _near(name, have, want, tolerance)
        elif weights.tensor_digest(name, have) != weights.tensor_digest(name, want):
            if have.dtype != want.dtype:
                raise Broken(
                    f"'{name}' is {dtype_name(have.dtype)}, expected {dtype_name(want.dtype)}"
                )
            raise Broken(_worst(name, have, want))


def _near(name: str, have: torch.Tensor, want: torch.Tensor, tolerance: float) -> None:
    near = torch.isclose(have.double(), want.double(), rtol=tolerance, atol=tolerance)
    if not near.all():
        raise Broken(_worst(name, have, want))


def _worst(name: str, have: torch.Tensor, want: torch.Tensor) -> str:
    """The entry that is furthest off, NaN before all."""
    gap = (have.double() - want.double()).abs().nan_to_num(nan=torch.inf).flatten()
    place = int(gap.argmax())
    at = [int(i) for i in np.unravel_index(place, tuple(have.shape))]
    index = f" at {at}" if at else ""
    return f"'{name}'{index} is {have.flatten()[place]:.9g}, expected {want.flatten()[place]:.9g}"


def dtype_name(dtype: torch.dtype) -> str:
    """`float32`, as one says it."""
    return str(dtype).removeprefix("torch.")


def copied(state: StateDict) -> Tensors:
    """Every tensor computed, and apart from where it came from."""
    return {name: state[name].clone() for name in state}


def alike_at(where: str, state: StateDict, expected: StateDict, *, tolerance: float = 0.0) -> None:
    """As `alike`, saying where."""
    try:
        alike(state, expected, tolerance=tolerance)
    except Broken as broken:
        raise Broken(f"{where}{broken}") from None


def which(place: int, method: Method) -> str:
    """How a result is called in what is found: a merger has but one."""
    return "" if method.makes_one else f"expert {place + 1}: "


def all_alike(
    method: Method,
    states: Sequence[StateDict],
    expected: Sequence[StateDict],
    *,
    tolerance: float = 0.0,
    when: str = "",
) -> None:
    """Raise Broken, saying when and in which result, where one of several states differs."""
    if len(states) != len(expected):
        raise Broken(f"{when}{len(states)} experts come out, expected {len(expected)}")
    for place, (have, want) in enumerate(zip(states, expected, strict=True)):
        alike_at(f"{when}{which(place, method)}", have, want, tolerance=tolerance)
