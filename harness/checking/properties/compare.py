"""Comparisons of state dicts that name the tensor and the entry that differ."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from harness import weights
from harness.checking.properties.property import Broken, CheckedMethod
from harness.checking.toys import Tensors
from harness.types import StateDict


def same_names(state: StateDict, expected: StateDict, where: str = "") -> None:
    """Raise Broken for a tensor that is missing or extra."""
    if missing := sorted(set(expected) - set(state)):
        raise Broken(f"{where}'{missing[0]}' is missing")
    if extra := sorted(set(state) - set(expected)):
        raise Broken(f"{where}'{extra[0]}' is in the result and in no input")


def alike(
    state: StateDict, expected: StateDict, *, where: str = "", tolerance: float = 0.0
) -> None:
    """Raise Broken, prefixed by `where`, for a tensor that differs.

    All bits must be equal or, with a `tolerance`, all entries within it.
    """
    same_names(state, expected, where)
    for name in expected:
        if difference := _unlike(name, state[name], expected[name], tolerance):
            raise Broken(f"{where}'{name}'{difference[0]}, expected {difference[1]}")


def _unlike(
    name: str, have: torch.Tensor, want: torch.Tensor, tolerance: float
) -> tuple[str, str] | None:
    """What a tensor is and should be, if unlike: its shape, dtype or worst entry (NaN is worst)."""
    if have.shape != want.shape:
        return f" is {tuple(have.shape)}", str(tuple(want.shape))
    if tolerance:
        same = torch.allclose(have.double(), want.double(), rtol=tolerance, atol=tolerance)
    else:
        same = weights.tensor_digest(name, have) == weights.tensor_digest(name, want)
    if same:
        return None
    if not tolerance and have.dtype != want.dtype:
        return f" is {dtype_name(have.dtype)}", dtype_name(want.dtype)
    gap = (have.double() - want.double()).abs().nan_to_num(nan=torch.inf)
    gap = gap.masked_fill(have == want, 0).flatten()  # infinity and infinity too
    place = int(gap.argmax())
    position = [int(i) for i in np.unravel_index(place, tuple(have.shape))]
    index = f" at {position}" if position else ""
    found, sought = (float(tensor.flatten()[place]) for tensor in (have, want))
    is_nan = math.isnan(found) and math.isnan(sought)
    return f"{index} is {found:.9g}", "a number" if is_nan else f"{sought:.9g}"


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype without `torch.`: `float32`."""
    return str(dtype).removeprefix("torch.")


def copied(state: StateDict) -> Tensors:
    """All tensors of a state, computed and cloned."""
    return {name: state[name].clone() for name in state}


def all_alike(
    method: CheckedMethod,
    states: Sequence[StateDict],
    expected: Sequence[StateDict],
    *,
    tolerance: float = 0.0,
    when: str = "",
) -> None:
    """Raise Broken, prefixed by `when` and the expert, if one of several states differs."""
    if len(states) != len(expected):
        raise Broken(f"{when}{len(states)} models are returned, expected {len(expected)}")
    for place, (have, want) in enumerate(zip(states, expected, strict=True)):
        alike(have, want, where=f"{when}{method.which(place)}", tolerance=tolerance)
