"""Pure: records -> how much of a loss is the head's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.data.shots import amount
from harness.evaluation.records import Record
from harness.reporting.grid import HEADLINE_SHOTS, TUNED, _check_same_work, label, reported
from harness.types import Shots


@dataclass(frozen=True)
class Verdict:
    """How far a merge is below its experts under Current Eval, and what a tuned head wins back.

    All in points (x100), averaged over the tasks; `shots` are those of FT-Classifier Eval.
    `control` is the base under FT-Classifier Eval: what the head can do without any merge.
    """

    experts: float
    current: float
    tuned: float
    shots: Shots
    tasks: int
    control: float | None = None
    setting: str = TUNED

    @property
    def loss(self) -> float:
        return self.experts - self.current

    @property
    def recovered(self) -> float:
        return self.tuned - self.current

    def __str__(self) -> str:
        over = f"averaged over {self.tasks} tasks, " if self.tasks > 1 else ""
        scores = f"{self.current:.1f} against {self.experts:.1f}"
        tuned = f"FT-Classifier Eval with {self.shots} shots reads {self.tuned:.1f}"
        if self.setting != TUNED:
            tuned = tuned.replace("Eval", f"Eval ({self.setting})")
        if self.control is not None:
            tuned += f" (the base {self.control:.1f})"
        if self.loss <= 0:
            return (
                f"{over}the merge is {abs(self.loss):.1f} points above its experts under "
                f"Current Eval ({scores}), so the head hides no loss; {tuned}."
            )
        share = 100 * self.recovered / self.loss
        if self.recovered <= 0:
            cause = "the head explains none of the loss, which lies in the encoder"
        elif share >= 100:
            cause = "the head explains all of the loss"
        elif share >= 50:
            cause = f"the head explains most of the loss ({share:.0f} %)"
        else:
            cause = f"the head explains {share:.0f} % of the loss, the rest lies in the encoder"
        return (
            f"{over}the merge is {self.loss:.1f} points below its experts under Current "
            f"Eval ({scores}); {tuned}: {cause}."
        )


def verdicts(records: Sequence[Record]) -> list[Verdict]:
    """The verdict on the merged model for every setting that FT-Classifier Eval was read with.

    None without experts, or where a task was not read.
    """
    records = reported(records)
    tuned = [r for r in records if r.role == "merged" and r.protocol == TUNED]
    per_setting = (_verdict(records, setting) for setting in dict.fromkeys(map(label, tuned)))
    return [one for one in per_setting if one is not None]


def _verdict(records: Sequence[Record], setting: str) -> Verdict | None:
    merged = [record for record in records if record.role == "merged"]
    tasks = {record.task for record in merged}
    experts = [r for r in records if r.role == "expert" and r.protocol == "current"]
    current = [r for r in merged if r.protocol == "current"]
    tuned = [r for r in merged if r.protocol == TUNED and label(r) == setting]
    base = [r for r in records if r.role == "base" and r.protocol == TUNED and label(r) == setting]
    for read in (experts, current, tuned):
        if {record.task for record in read} != tasks:
            return None
    _check_same_work([*experts, *current])
    shots = _shots(tuned)

    def mean(read: Sequence[Record], count: Shots | None) -> float:
        by_task = [
            np.mean([v for r in read if r.task == task for v in r.values(count)])
            for task in sorted(tasks)
        ]
        return 100 * float(np.mean(by_task))

    control = mean(base, shots) if {record.task for record in base} == tasks else None
    return Verdict(
        experts=mean(experts, None),
        current=mean(current, None),
        tuned=mean(tuned, shots),
        shots=shots,
        tasks=len(tasks),
        control=control,
        setting=setting,
    )


def _shots(records: Sequence[Record]) -> Shots:
    """The number of shots nearest to the papers' five."""
    known = {count for record in records for count in record.shots if count}
    return min(known, key=lambda count: (abs(amount(count) - HEADLINE_SHOTS), amount(count)))
