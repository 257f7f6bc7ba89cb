"""Pure: records -> how much of a loss is a change of basis, and which fits rows leave open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.evaluation.records import Record
from harness.reporting.grid import Reading, _check_same_work, readings, reported, short_task
from harness.types import Shots

PROBE, TURN = "probe", "orthogonal"
SHOWN = 0.05
"""Points that are seen in one decimal."""


@dataclass(frozen=True)
class Basis:
    """How far a merge is below its experts, and how high its features are under an orthogonal map.

    All in points (x100), averaged over the tasks, under one reading of the probe. `control` is the
    base under the same: what a turn can do without any merge. `determined`: no fit had fewer rows
    than features have dimensions.
    """

    experts: float
    current: float
    turned: float
    reading: Reading
    tasks: int
    control: float | None = None
    determined: bool = True

    @property
    def loss(self) -> float:
        return self.experts - self.current

    @property
    def recovered(self) -> float:
        return self.turned - self.current

    def __str__(self) -> str:
        over = f"averaged over {self.tasks} tasks, " if self.tasks > 1 else ""
        control = "" if self.control is None else f" (the base {self.control:.1f})"
        read = f"{over}{self.reading} reads {self.turned:.1f}{control}"
        return f"{read}: {self._cause}{self._but}."

    @property
    def _cause(self) -> str:
        scores = f"{self.current:.1f} against {self.experts:.1f}"
        if self.loss < SHOWN:
            return f"nothing is lost under Current Eval ({scores}), so no change of basis hides it"
        if self.recovered < SHOWN:
            return (
                f"a rotation of the features wins back nothing of the {self.loss:.1f} points that "
                f"are lost under Current Eval ({scores}), which are no change of basis"
            )
        if self.turned > self.experts - SHOWN:
            return (
                f"the encoder is the expert's up to a rotation: {self.loss:.1f} points of the loss "
                f"({scores}) are a change of basis"
            )
        return (
            f"{self.recovered:.1f} of the {self.loss:.1f} points of the loss ({scores}) are a "
            "change of basis, the rest is not"
        )

    @property
    def _but(self) -> str:
        """What keeps the sentence from being one about this merge."""
        parts = []
        control = self.control is not None and self.control > self.turned - SHOWN
        if self.recovered >= SHOWN and control:
            parts.append("the base, turned so, is as high, so this says nothing of the merge")
        if not self.determined:
            parts.append("fitted to fewer rows than features have dimensions, it is open to chance")
        return "".join(f"; {part}" for part in parts)


def bases(records: Sequence[Record]) -> list[Basis]:
    """What the orthogonal probe says of the merged model, for every setting it was read with.

    By the most shots there are, which determine a turn best. None without experts, or where a task
    was not read.
    """
    records = reported(records)
    probes = [r for r in records if r.protocol == PROBE and r.options.get("transform") == TURN]
    merged = [record for record in probes if record.role == "merged"]
    most = {reading.protocol: reading for reading in readings(merged)}
    each = (_basis(records, probes, reading) for reading in most.values())
    return [one for one in each if one is not None]


def _basis(records: Sequence[Record], probes: Sequence[Record], reading: Reading) -> Basis | None:
    merged = [record for record in records if record.role == "merged"]
    tasks = {record.task for record in merged}
    experts = [r for r in records if r.role == "expert" and r.protocol == "current"]
    current = [record for record in merged if record.protocol == "current"]
    read = [record for record in probes if reading in readings([record])]
    turned = [record for record in read if record.role == "merged"]
    control = [record for record in read if record.role == "base"]
    if any({record.task for record in part} != tasks for part in (experts, current, turned)):
        return None
    _check_same_work([*experts, *current])
    shots = reading.shots or None
    facts = [one.facts for record in turned for one in record.scores if one.shots == shots]
    known = {record.task for record in control} == tasks
    return Basis(
        experts=_mean(experts, None),
        current=_mean(current, None),
        turned=_mean(turned, shots),
        reading=reading,
        tasks=len(tasks),
        control=_mean(control, shots) if known else None,
        determined=all(told.get("rows_per_dimension", 1) >= 1 for told in facts),
    )


def _mean(records: Sequence[Record], shots: Shots | None) -> float:
    """The mean over tasks of that over models and draws, x100."""
    by_task: dict[str, list[float]] = {}
    for record in records:
        by_task.setdefault(record.task, []).extend(record.values(shots))
    return 100 * float(np.mean([np.mean(values) for values in by_task.values()]))


def left_open(records: Sequence[Record]) -> list[str]:
    """A line for every reading with fits to fewer rows than features have dimensions."""
    tasks = list(dict.fromkeys(record.task for record in records))
    fewest: dict[Reading, dict[str, float]] = {}
    for record in records:
        for reading in readings([record]):
            of_draws = [s for s in record.scores if s.shots == (reading.shots or None)]
            told = [one.facts.get("rows_per_dimension", 1.0) for one in of_draws]
            if min(told, default=1.0) < 1:
                known = fewest.setdefault(reading, {})
                known[record.task] = min(known.get(record.task, 1.0), *told)
    return [
        f"{reading}: fitted to fewer rows than features have dimensions, with so many rows to a "
        "dimension: "
        + ", ".join(f"{short_task(task, tasks)} {value:.2f}" for task, value in known.items())
        for reading, known in fewest.items()
    ]
