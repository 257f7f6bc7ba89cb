"""Pure: records -> how much of a loss is a change of basis, and which fits rows leave open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harness.evaluation.estimates import Estimate
from harness.evaluation.inference import Samples
from harness.evaluation.records import Record
from harness.reporting.difference import (
    MOSTLY,
    NO_INTERVAL,
    SHOWN,
    Difference,
    Spread,
    around,
    in_points,
    mean_over_tasks,
    on_other_rows,
    spread_of,
)
from harness.reporting.grid import Reading, check_same_work, readings, reported, short_task
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
    `spread`, which takes the predictions, differences are taken as they are.
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
        control = "" if self.control is None else f" (the base {points(self.control)})"
        reading = marked(str(self.reading), transductive=self.transductive)
        read = f"{over}{reading} reads {points(self.turned)}{control}"
        return f"{read}: {self._cause}{self._but}.{'' if self.spread else NO_INTERVAL}"

    @property
    def _cause(self) -> str:
        """What of the loss is a change of basis, as far as the rows can show."""
        lost = Difference(self.loss, self.spread.loss if self.spread else None)
        if not lost.told or points(self.loss) == "0.0":
            return (
                f"cannot tell whether anything is lost under Current Eval ({self._scores}), so "
                "there is no loss to be a change of basis"
            )
        if self.loss < 0:
            return (
                f"nothing is lost under Current Eval ({self._scores}), so no change of basis "
                "hides it"
            )
        if self._wins_back == "nothing":
            return (
                f"a rotation of the features wins back nothing of the {points(self.loss)} points "
                f"that are lost under Current Eval ({self._scores}), which are no change of basis"
            )
        if self._wins_back == "cannot tell":
            return (
                "cannot tell whether a rotation of the features wins back any of the "
                f"{points(self.loss)} points that are lost under Current Eval ({self._scores}"
                f"{self._share})"
            )
        return self._part

    @property
    def _part(self) -> str:
        """How much of a loss is a change of basis, where some of it is."""
        low, high = self.spread.share if self.spread else (1.0, 1.0)
        rest = self.loss - self.recovered
        told = high < 1 if self.spread else Difference(rest).told and rest > 0
        if not told and rest < SHOWN:
            if low < MOSTLY:
                return (
                    f"cannot tell how much of the {points(self.loss)} points of the loss "
                    f"({self._scores}) is a change of basis{self._share}"
                )
            return (
                f"the encoder is the expert's up to a rotation: {points(self.loss)} points of the "
                f"loss ({self._scores}) are a change of basis{self._share}"
            )
        return (
            f"{points(self.recovered)} of the {points(self.loss)} points of the loss "
            f"({self._scores}) are a change of basis{self._share}"
            f"{self._rest if told else '; cannot tell whether the rest is one'}"
        )

    @property
    def _rest(self) -> str:
        """Of what a turn does not win back. One that rows leave open might have won back more."""
        return ", the rest is not" if self.determined else ", or more"

    @property
    def _wins_back(self) -> Literal["nothing", "cannot tell", "some"]:
        """What a rotation wins back, as far as the rows can show; what shows as 0.0 is nothing."""
        gain = Difference(self.recovered, self.spread.recovered if self.spread else None)
        most = self.recovered if gain.within is None else gain.within[1]
        if most < SHOWN:
            return "nothing"
        return "some" if gain.told and self.recovered > 0 else "cannot tell"

    @property
    def _scores(self) -> str:
        within = f", {on_other_rows(self.spread.loss)}" if self.spread else ""
        return f"{points(self.current)} against {points(self.experts)}{within}"

    @property
    def _share(self) -> str:
        return f", {around(self.spread.share)} of it" if self.spread else ""

    @property
    def _but(self) -> str:
        """What keeps the sentence from being one about this merge."""
        parts = []
        if self._wins_back == "some" and self._by_the_base:
            parts.append(
                f"the base, turned so, {self._by_the_base}, so this says nothing of the merge"
            )
        if not self.determined:
            parts.append("fitted to fewer rows than features have dimensions, it is open to chance")
        return "".join(f"; {part}" for part in parts)

    @property
    def _by_the_base(self) -> str:
        """That the base reads as much so, as far as can be told; "" where it reads less."""
        if self.control is None:
            return ""
        if self.control > self.turned - SHOWN:
            return "is as high"
        above = self.spread.above_control if self.spread else None
        return "cannot be told from it" if above is not None and above[0] <= 0 else ""


def bases(records: Sequence[Record], *, samples: Samples | None = None) -> list[Basis]:
    """What the orthogonal probe says of the merged model, for every setting it was read with.

    By the most shots there are, which determine a turn best. With `samples`, differences have an
    interval: over rows and draws, paired, the tasks held. None without
    experts, or where a task was not read.
    """
    records = reported(records)
    probes = [r for r in records if r.protocol == PROBE and r.options.get("transform") == TURN]
    merged = [record for record in probes if record.role == "merged"]
    most = {reading.protocol: reading for reading in readings(merged)}
    parts = (_parts(records, probes, reading) for reading in most.values())
    return [_basis(one, samples) for one in parts if one is not None]


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


def _basis(parts: _Parts, samples: Samples | None) -> Basis:
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
        spread=None if samples is None else _spread(parts, samples),
    )


def _spread(parts: _Parts, samples: Samples) -> Spread | None:
    """The differences on resampled rows; None unless all predictions are at hand."""

    def mean(records: Sequence[Record], shots: Shots | None) -> Estimate | None:
        return mean_over_tasks((one.task, _estimate(one, shots, samples)) for one in records)

    experts, current = mean(parts.experts, None), mean(parts.current, None)
    base = mean(parts.base, parts.shots) if parts.base else None
    return spread_of(experts, current, mean(parts.turned, parts.shots), base)


def _estimate(record: Record, shots: Shots | None, samples: Samples) -> Estimate | None:
    return in_points([100 * value for value in record.values(shots)], samples(record, shots))


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
