"""The experts before and after each pre-merging stage of a merge, and how long the stage works."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from time import perf_counter
from typing import Any

import torch

from harness import weights
from harness.merging.stages import Stage, state_report
from harness.types import StateDict

MAX_SHOWN_DRIFTS = 6
"""The most experts whose drifts are shown one by one."""


class StageClock:
    """The seconds that each stage was at work, by its number; work in several threads counts once.

    A stage that waits for tensors of an earlier one is not at work.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._busy: Counter[int] = Counter()
        self._since = 0.0
        self._seconds: defaultdict[int, float] = defaultdict(float)

    @contextmanager
    def running(self, number: int) -> Iterator[None]:
        """Count the time of the block for a stage."""
        self._turn(number, 1)
        try:
            yield
        finally:
            self._turn(number, -1)

    def _turn(self, number: int, step: int) -> None:
        """Add the time since the last turn to the earliest stage at work; count one more or less
        (`step`) thread at work on a stage."""
        with self._lock:
            now = perf_counter()
            if busy := +self._busy:
                self._seconds[min(busy)] += now - self._since
            self._since = now
            self._busy[number] += step

    def timed(self, number: int, state: StateDict) -> StateDict:
        """The state; the time that its tensors take to compute counts for a stage."""

        def compute(name: str) -> torch.Tensor:
            with self.running(number):
                return state[name]

        return weights.stored(state, compute)

    def seconds(self, number: int) -> float:
        """How long a stage has been at work until now."""
        return self._seconds[number]


class LastRead:
    """A lazy state dict that remembers the tensor read last, to be measured without computing it
    again.

    `state` computes a tensor at every read; the remembered one is given only if its reader has not
    changed it in place.
    """

    def __init__(self, state: StateDict) -> None:
        self._of = state
        self._held: tuple[str, torch.Tensor, int] | None = None
        self.state: StateDict = weights.stored(state, self._compute)

    def _compute(self, name: str) -> torch.Tensor:
        tensor = self._of[name]
        # tensors of inference mode have no counter of changes
        self._held = None if tensor.is_inference() else (name, tensor, tensor._version)
        return tensor

    def __call__(self, name: str) -> torch.Tensor | None:
        """The tensor of this name, if it was read last and was not changed since; else None."""
        held = self._held
        if held is None or held[0] != name or held[1]._version != held[2]:
            return None
        return held[1]


@dataclass(frozen=True)
class PremergeStep:
    """A pre-merging stage with the experts as they enter it and as they leave it.

    `latest` are the experts that leave, each with the tensor that was read last. `encoder_names`
    are the names of the encoder's parameters. `seconds` returns how long the stage has worked until
    now.
    """

    stage: Stage
    entering: tuple[StateDict, ...]
    latest: tuple[LastRead, ...]
    encoder_names: tuple[str, ...]
    seconds: Callable[[], float]

    @property
    def leaving(self) -> tuple[StateDict, ...]:
        """The experts as they leave the stage."""
        return tuple(expert.state for expert in self.latest)

    @property
    def report(self) -> Mapping[str, Any]:
        """The method's report, which its states share: that of the first state with one."""
        return next((report for state in self.leaving if (report := state_report(state))), {})


@dataclass(frozen=True)
class PremergeReport:
    """What a pre-merging stage did to the experts.

    `distance` is between experts, before the stage and after it; None for a single expert, and if
    the stage absorbed norms. `drift` is the largest change of each expert's logits by the stage,
    None if no rows of its task are at hand; () if that holds for all, or it was not to be measured.
    """

    distance: tuple[float, float] | None
    seconds: float
    report: Mapping[str, Any] = field(default_factory=dict)
    drift: tuple[float | None, ...] = ()

    def recorded(self) -> dict[str, Any]:
        """The fields of the stage in merge.json, where empty ones are left out."""
        return {
            "distance": dict(zip(("before", "after"), self.distance or (), strict=False)),
            "drift": list(self.drift),
            "seconds": round(self.seconds, 3),
            "report": dict(self.report),
        }

    @property
    def changes(self) -> list[str]:
        """The measured changes, as short phrases."""
        parts = []
        if self.distance:
            parts.append("distance {:.4g} to {:.4g}".format(*self.distance))
        if absorbed := self.report.get("absorbed"):
            parts.append(f"{absorbed} norms absorbed")
        if drifts := [drift for drift in self.drift if drift is not None]:
            # in the order of the experts: the one that others are aligned to does not move
            listed = ", ".join("?" if drift is None else f"{drift:.2g}" for drift in self.drift)
            span = (
                listed
                if len(self.drift) <= MAX_SHOWN_DRIFTS
                else f"{min(drifts):.2g} to {max(drifts):.2g}"
            )
            parts.append(f"experts' logits move by {span}")
        return parts
