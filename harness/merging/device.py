"""What a method is handed, on the device of its arithmetic, and what it makes, on the processor.

Nothing else of a merge knows of it: what lies between two methods, on disk or in a file, is there
as ever, and one tensor of each model is on the device at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch

from harness import weights
from harness.types import StateDict


@dataclass
class Crossing:
    """The way of one method to its device and back."""

    device: torch.device
    _latest: tuple[Any, Any] = field(default=(None, None), init=False)

    def handed(self, given: Any) -> Any:
        """Tensors and states on the device, alone or in lists; of a function, what it returns.

        All else stays: of activations of an expert, products are where the rows were run.
        """
        if isinstance(given, torch.Tensor):
            return given.to(self.device)
        if is_state(given):
            return weights.on(self.device, given)
        if type(given) in (list, tuple):
            return type(given)(map(self.handed, given))
        if isinstance(given, FunctionType | MethodType | partial):
            return lambda *args, **options: self.handed(
                given(*map(self._argument, args), **options)
            )
        return given

    def _argument(self, given: Any) -> Any:
        """A state on the processor; the same one for several functions, which may ask."""
        if not is_state(given):
            return given
        if self._latest[0] is not given:
            self._latest = given, weights.on(weights.PROCESSOR, given)
        return self._latest[1]


def is_state(given: Any) -> bool:
    """Whether something is a mapping to nothing but tensors."""
    if isinstance(given, weights.Lazy):
        return True
    known = isinstance(given, Mapping)
    return known and all(isinstance(one, torch.Tensor) for one in given.values())


def returned(made: StateDict) -> StateDict:
    """A state on the processor; one on a line stays on it, as its direction is searched along."""
    if isinstance(made, weights.ScaledMerge):
        base, direction = (
            weights.on(weights.PROCESSOR, one) for one in (made.base, made.direction)
        )
        return weights.ScaledMerge(base, direction, made.scale)
    return weights.on(weights.PROCESSOR, made)
