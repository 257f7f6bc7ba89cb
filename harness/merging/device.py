"""The arguments of a method, moved to the device of its arithmetic, and its results, moved back.

Nothing else in a merge knows of the device: between two methods, on disk and in files, tensors are
on the processor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from harness import weights
from harness.types import StateDict


@dataclass
class DeviceTransfer:
    """Moves tensors to the device of one method and back."""

    device: torch.device
    _handed: list[tuple[StateDict, StateDict]] = field(default_factory=list, init=False)
    _latest: tuple[Any, Any] = field(default=(None, None), init=False)

    def to_device(self, given: Any) -> Any:
        """Tensors and states on the device, also within lists and mappings; a function is wrapped
        to return its results there. Anything else stays where it is, such as an expert's
        activations, on the processor.
        """
        if weights.here(self.device):
            return given
        if isinstance(given, torch.Tensor):
            return given.to(self.device)
        if is_state(given):
            self._handed.append((given, weights.on(self.device, given)))
            return self._handed[-1][1]
        if type(given) in (list, tuple):
            return type(given)(map(self.to_device, given))
        if type(given) is dict:
            return {key: self.to_device(value) for key, value in given.items()}
        if callable(given):
            return lambda *args, **options: self.to_device(
                given(*map(self._argument, args), **options)
            )
        return given

    def to_processor(self, made: StateDict) -> StateDict:
        """A state on the processor. A `ScaledMerge` remains one, as tuning searches along its
        direction."""
        if weights.here(self.device):
            return made
        if isinstance(made, weights.ScaledMerge):
            base, direction = map(self._here, (made.base, made.direction))
            return weights.ScaledMerge(base, direction, made.scale)
        return self._here(made)

    def _here(self, state: StateDict) -> StateDict:
        """A state on the processor: for one that was handed over, the original."""
        originals = (original for original, moved in self._handed if moved is state)
        return next(originals, None) or weights.on(weights.PROCESSOR, state)

    def _argument(self, argument: Any) -> Any:
        """A state on the processor; the latest is kept, as several functions may be given it."""
        if not is_state(argument):
            return argument
        if self._latest[0] is not argument:
            self._latest = argument, self._here(argument)
        return self._latest[1]


def is_state(given: Any) -> bool:
    """Whether something is a mapping to nothing but tensors."""
    if isinstance(given, weights.Lazy):
        return True
    mapping = isinstance(given, Mapping)
    return mapping and all(isinstance(value, torch.Tensor) for value in given.values())
