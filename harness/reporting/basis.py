"""Pure: records -> how much of a loss is a change of basis, and which fits rows leave open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness.evaluation.records import Record
from harness.reporting.difference import (
    NO_INTERVAL,
    Difference,
    Spread,
    below,
    in_percent,
    spread_of,
)
from harness.reporting.grid import Reading, check_same_work, readings, reported, short_task
from harness.reporting.lines import Line, lines_of
from harness.reporting.names import marked
from harness.text import points
from harness.types import Shots

PROBE, TURN = "probe", "orthogonal"


@dataclass(frozen=True)
class Basis:
    """How far a merge is below its experts, and how high its features are under an orthogonal map.

    All in points (x100), averaged over the tasks, under one reading of the probe. `control` is the
    base under the same: what a turn can do without any merge. `determined`: no fit had fewer rows
    than features have dimensions; `transductive`: they were to the rows that are scored. Without a
    `spread`, which takes records that keep resamples, no share is said.
    """

    experts: float
    current: float
    turned: float
    reading: Reading
    tasks: int
    control: float | None = None
    determined: bool = True
    transductive: bool = False
    spread: Spread | None = None

    @property
    def loss(self) -> float:
        return self.experts - self.current

    @property
    def recovered(self) -> float:
        return self.turned - self.current

    def __str__(self) -> str:
        over = f"averaged over {self.tasks} tasks, " if self.tasks > 1 else ""
        control = "" if self.control is None else f" (base: {points(self.control)})"
        reading = marked(str(self.reading), transductive=self.transductive)
        scores = f"{over}{reading} scores {points(self.turned)}{control}"
        return f"{scores}: {self._cause}{self._but}.{'' if self.spread else NO_INTERVAL}"

    @property
    def _cause(self) -> str:
        """How much of the loss is a change of basis."""
        lost = Difference(self.loss, self.spread.loss if self.spread else None)
        ends = below(self.spread.loss) if self.spread else ""
        scores = f"{points(self.current)}, experts {points(self.experts)}{ends}"
        if not lost.significant or points(self.loss) == "0.0" or self.loss < 0:
            no = "no loss" if lost.significant else "no significant loss"
            return f"{no} under Current Eval ({scores}), so none that is a change of basis"
        said = (
            f"a rotation of the features recovers {points(self.recovered)} of the "
            f"{points(self.loss)} points lost under Current Eval ({scores})"
        )
        if self.spread is None or self.spread.share is None:
            return said
        share = f"{said}: {in_percent(self.spread.share)} of the loss is a change of basis"
        if self.spread.share.ends[1] >= 1:
            return share
        return f"{share}, {'the rest is not' if self.determined else 'or more'}"

    @property
    def _but(self) -> str:
        """What keeps the sentence from being one about this merge."""
        parts = []
        if self.recovered > 0 and self._as_the_base:
            parts.append(
                "the base, turned so, does not score significantly less, so this says nothing of "
                "the merge"
            )
        if not self.determined:
            parts.append("fitted to fewer rows than features have dimensions, it is open to chance")
        return "".join(f"; {part}" for part in parts)

    @property
    def _as_the_base(self) -> bool:
        """Whether the base does not score less so."""
        if self.control is None:
            return False
        above = self.spread.above_control if self.spread else None
        as_high = float(points(self.control)) >= float(points(self.turned))
        return as_high or (above is not None and above[0] <= 0)


def bases(records: Sequence[Record]) -> list[Basis]:
    """What the orthogonal probe says of the merged model, for every setting it was run with.

    By the most shots there are, which determine a turn best. Differences of records that keep
    resamples have an interval: over test units and draws, paired, the tasks held. None without
    experts, or where a task was not evaluated.
    """
    records = reported(records)
    probes = [r for r in records if r.protocol == PROBE and r.options.get("transform") == TURN]
    merged = [record for record in probes if record.role == "merged"]
    most = {reading.protocol: reading for reading in readings(merged)}
    parts = (_parts(records, probes, reading) for reading in most.values())
    return [_basis(one) for one in parts if one is not None]


@dataclass(frozen=True)
class _Parts:
    """The records that are compared, all of the same tasks; the base only if it is of them, too."""

    experts: list[Record]
    current: list[Record]
    turned: list[Record]
    base: list[Record]
    reading: Reading

    @property
    def shots(self) -> Shots | None:
        """Of the probe."""
        return self.reading.shots or None


def _parts(records: Sequence[Record], probes: Sequence[Record], reading: Reading) -> _Parts | None:
    merged = [record for record in records if record.role == "merged"]
    tasks = {record.task for record in merged}
    experts = [r for r in records if r.role == "expert" and r.protocol == "current"]
    current = [record for record in merged if record.protocol == "current"]
    read = [record for record in probes if reading in readings([record])]
    turned = [record for record in read if record.role == "merged"]
    base = [record for record in read if record.role == "base"]
    if any({record.task for record in part} != tasks for part in (experts, current, turned)):
        return None
    check_same_work([*experts, *current])
    known = {record.task for record in base} == tasks
    return _Parts(experts, current, turned, base if known else [], reading)


def _basis(parts: _Parts) -> Basis:
    shots = parts.shots
    facts = [one.facts for record in parts.turned for one in record.scores if one.shots == shots]
    return Basis(
        experts=_mean(parts.experts, None),
        current=_mean(parts.current, None),
        turned=_mean(parts.turned, shots),
        reading=parts.reading,
        tasks=len({record.task for record in parts.current}),
        control=_mean(parts.base, shots) if parts.base else None,
        transductive=any(one.adaptation and one.adaptation.transductive for one in parts.turned),
        determined=all(told.get("rows_per_dimension", 1) >= 1 for told in facts),
        spread=_spread(parts),
    )


def _spread(parts: _Parts) -> Spread | None:
    """The intervals of the differences; None unless all records keep resamples."""

    def lines(records: Sequence[Record], shots: Shots | None) -> list[Line]:
        every = lines_of(("", record) for record in records)
        return [line for line in every if (line.shots or None) == shots]

    turned, base = lines(parts.turned, parts.shots), lines(parts.base, parts.shots)
    fixed = lines(parts.experts, None), lines(parts.current, None)
    return spread_of(*fixed, turned, base)


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
