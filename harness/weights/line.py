"""Merges on a line: base + scale * direction, of which the direction is found once."""

from __future__ import annotations

from typing import Any

import torch

from harness.types import StateDict
from harness.weights.arithmetic import entrywise
from harness.weights.lazy import Lazy, select, specs

SCALE = "scale"
"""The option of a merger that moves its result along a line, and moves nothing else."""


class Line(Lazy):
    """The lazy state dict base + scale * direction, in at least float32.

    What is searched along a line needs its direction, the merged task vector, only once: whoever
    has it on disk makes another Line of it, with the same bytes at the same scale. The report is
    the direction's.
    """

    def __init__(self, base: StateDict, direction: StateDict, scale: float) -> None:
        self.base, self.direction, self.scale = base, direction, scale

        def add(origin: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            return (step * scale).add_(origin)

        def compute(name: str) -> torch.Tensor:
            # before the pieces: a decomposition has all cores for itself
            step = {name: direction[name]}
            return entrywise(add, select(base, [name]), step)[name]

        super().__init__(specs(entrywise(add, base, direction)), compute)

    @property
    def report(self) -> dict[str, Any]:
        """What was told of the direction."""
        return self.direction.report if isinstance(self.direction, Lazy) else {}
