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

    def to_device(self, thing: Any) -> Any:
        """Tensors and states on the device, also within lists and mappings; a function is wrapped
        to return its results there. Anything else stays where it is, such as an expert's
        activations, on the processor.
        """
        if weights.here(self.device):
            return thing
        if isinstance(thing, torch.Tensor):
            return thing.to(self.device)
        if is_state(thing):
            self._handed.append((thing, weights.on(self.device, thing)))
            return self._handed[-1][1]
        if type(thing) in (list, tuple):
            return type(thing)(map(self.to_device, thing))
        if type(thing) is dict:
            return {key: self.to_device(value) for key, value in thing.items()}
        if callable(thing):
            return lambda *args, **options: self.to_device(
                thing(*map(self._argument, args), **options)
            )
        return thing

    def to_processor(self, state: StateDict) -> StateDict:
        """A state on the processor. A `ScaledMerge` remains one, as tuning searches along its
        direction."""
        if weights.here(self.device):
            return state
        if isinstance(state, weights.ScaledMerge):
            base, direction = map(self._here, (state.base, state.direction))
            return weights.ScaledMerge(base, direction, state.scale)
        return self._here(state)

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


def is_state(thing: Any) -> bool:
    """Whether something is a mapping to nothing but tensors."""
    if isinstance(thing, weights.Lazy):
        return True
    mapping = isinstance(thing, Mapping)
    return mapping and all(isinstance(value, torch.Tensor) for value in thing.values())
