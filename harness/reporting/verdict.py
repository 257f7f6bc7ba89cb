"""Pure: records, and the predictions beside them -> how much of a loss is the head's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from harness.data.shots import amount, counted
from harness.evaluation.estimates import Estimate
from harness.evaluation.inference import Samples
from harness.evaluation.records import Record
from harness.reporting.difference import (
    LEAST,
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
from harness.reporting.grid import CURRENT, HEADLINE_SHOTS, check_work, reported
from harness.reporting.lines import TUNED, Line, lines_of
from harness.text import points
from harness.types import Array64, Shots

UNEQUAL = 20.0
"""Points: experts that are further apart, or further below their merge, are called out."""


@dataclass(frozen=True)
class Verdict:
    """How far a merge is below its experts under Current Eval, and what a tuned head wins back.

    All in points (x100), averaged over the tasks; `shots` are those of FT-Classifier Eval.
    `control` is the base under FT-Classifier Eval: what the head can do without any merge. Without
    a `spread`, which takes the predictions, differences are taken as they are, from a point on;
    `untold`: the intervals of the records do not tell what is won back from none. `unequal` are the
    least and the largest score of an expert where their mean is no measure: those of one task are
    far apart, or one is far below the merge, with a tuned head or without.
    """

    experts: float
    current: float
    tuned: float
    shots: Shots
    tasks: int
    control: float | None = None
    setting: str = TUNED
    spread: Spread | None = None
    untold: bool = False
    unequal: tuple[float, float] | None = None

    @property
    def loss(self) -> float:
        return self.experts - self.current

    @property
    def recovered(self) -> float:
        return self.tuned - self.current

    @property
    def standing(self) -> Literal["below", "above", "cannot tell"]:
        """Where the merge is, of its experts, under Current Eval; what shows as 0.0 is nowhere."""
        lost = Difference(self.loss, self.spread.loss if self.spread else None)
        if not lost.told or self._level:
            return "cannot tell"
        return "below" if self.loss > 0 else "above"

    @property
    def _level(self) -> bool:
        return points(self.loss) == "0.0"

    @property
    def by_the_base(self) -> str:
        """That the base reads as much under a tuned head, as far as can be told; "" if it does not.

        What cannot be told apart is not said to be the same.
        """
        if self.control is None:
            return ""
        if float(points(self.control)) >= float(points(self.tuned)):
            return "the base reads as much"
        above = self.spread.above_control if self.spread else None
        return "the base cannot be told from it" if above is not None and above[0] <= 0 else ""

    @property
    def share(self) -> str:
        """How much of the loss the head explains, in a word or in per cent; "" where none is lost.

        Nothing is divided by a loss that cannot be told from none, or by chance alone.
        """
        if self.standing != "below":
            return ""
        gain = Difference(self.recovered, self.spread.recovered if self.spread else None)
        most = self.recovered if gain.within is None else gain.within[1]
        if most < SHOWN:
            return "none"
        if not gain.told or self.untold or self.recovered <= 0:
            return "cannot tell"
        if self.by_the_base:
            return "as the base"
        beyond = self.spread.share[0] > 1 if self.spread else self.recovered - self.loss >= LEAST
        if beyond:
            return "all and more"
        part = self.recovered / self.loss
        if part >= 1 and self.spread and self.spread.share[0] < MOSTLY:
            return "cannot tell how much"
        return "all" if part >= 1 else f"{100 * part:.0f} %"

    def __str__(self) -> str:
        over = f"averaged over {self.tasks} tasks, " if self.tasks > 1 else ""
        scores = f"{points(self.current)} against {points(self.experts)}"
        tuned = f"FT-Classifier Eval with {counted(self.shots)} reads {points(self.tuned)}"
        if self.setting != TUNED:
            tuned = tuned.replace("Eval", f"Eval ({self.setting})")
        if self.control is not None:
            tuned += f" (the base {points(self.control)})"
        away = (
            f"{points(abs(self.loss))} points {'below' if self.loss > 0 else 'above'} its experts"
        )
        if self._level:
            away = "level with its experts"
        if self.unequal is not None:
            return f"{over}{self._gap}. {self._measure(*self.unequal)}.{self._without}"
        merge = f"{over}the merge is {away} under Current Eval ({scores})"
        if self.standing == "above":
            return f"{merge}{self._within}, so the head hides no loss; {tuned}.{self._without}"
        if self.standing == "cannot tell":
            return (
                f"{merge}{self._within}: cannot tell whether anything is lost, so there is no "
                f"share of it to be the head's; {tuned}.{self._without}"
            )
        return f"{merge}{self._within}; {tuned}: {self._cause}.{self._without}"

    @property
    def _gap(self) -> str:
        """What a tuned head changes."""
        how = counted(self.shots) if self.setting == TUNED else f"{self.setting}, {self.shots}"
        base = "" if self.control is None else f" (base: {points(self.control)})"
        change = "more" if self.recovered > 0 else "less"
        as_base = f", but {self.by_the_base}" if self.recovered > 0 and self.by_the_base else ""
        return (
            f"the merge scores {points(self.current)} under Current Eval and {points(self.tuned)} "
            f"under FT-Classifier Eval with {how}{base}, {points(abs(self.recovered))} points "
            f"{change}{as_base}"
        )

    def _measure(self, least: float, most: float) -> str:
        """Why its experts do not say what is lost."""
        are = "are very unequal" if most - least > UNEQUAL else "are far below that"
        return (
            f"Its experts {are} ({points(least)} to {points(most)}, {points(self.experts)} on "
            f"average), so their mean says little of what is lost{self._within}: check how the "
            "lowest were trained, and whether their heads and labels are right"
        )

    @property
    def _within(self) -> str:
        return "" if self.spread is None else f", {on_other_rows(self.spread.loss)}"

    @property
    def _without(self) -> str:
        return "" if self.spread else NO_INTERVAL

    @property
    def _cause(self) -> str:
        """What of the loss is the head's."""
        known = {
            "none": "the head explains none of the loss, a tuned head leaves all of it",
            "as the base": f"{self.by_the_base}, so a tuned head says nothing of the merge",
            "all and more": "the head explains all of the loss and more",
        }
        if self.share in known:
            return known[self.share]
        if self.spread is None:
            share, rest = (self.recovered / self.loss,) * 2
            within = ""
        else:
            share, rest = self.spread.share
            within = around(self.spread.share)
        if self.share == "cannot tell":
            of_it = f" ({within} of it)" if within else ""
            return f"cannot tell whether the head explains any of the loss{of_it}"
        if self.share == "cannot tell how much":
            return f"cannot tell how much of the loss the head explains ({within} of it)"
        if self.share == "all":
            return f"the head explains all of the loss{within and f' ({within})'}"
        if share >= 0.5:
            return f"the head explains most of the loss ({self.share}{within and f', {within}'})"
        left = ", a tuned head leaves the rest" if rest < 1 else ""
        return f"the head explains {self.share} of the loss{within and f' ({within})'}{left}"


Sampled: TypeAlias = Callable[[Line], "Array64 | None"]
"""What a line says on resampled rows; None without its predictions."""


def verdicts(
    records: Sequence[Record],
    *,
    merged: Sequence[Record] | None = None,
    samples: Samples | None = None,
) -> list[Verdict]:
    """The verdict on the merged model for every setting that FT-Classifier Eval was read with.

    `merged` are its records, if they are not those of that role. With `samples`, differences have
    an interval: over rows and draws, paired, the tasks held. None without
    experts, or where a task was not read.
    """
    records = reported(records)
    given = [r for r in records if r.role == "merged"] if merged is None else merged
    each = {id(record): record for record in [*records, *given]}
    of_line = {id(line): (line, r) for r in each.values() for line in lines_of([("", r)])}
    ours = {id(record) for record in given}
    lines = [line for line, _ in of_line.values()]
    mine = [line for line, record in of_line.values() if id(record) in ours]

    def sampled(line: Line) -> Array64 | None:
        return samples(of_line[id(line)][1], line.shots or None) if samples else None

    return verdicts_of(lines, mine, sampled if samples else None)


def verdicts_of(
    lines: Sequence[Line], merged: Sequence[Line], sampled: Sampled | None = None
) -> list[Verdict]:
    """The verdicts on a model, whose lines are among those that are given.

    None by a head that was tuned on the rows that are scored.
    """
    settings = dict.fromkeys(line.setting for line in merged if line.tuned)
    parts = (_parts(lines, merged, setting) for setting in settings)
    return [_verdict(one, sampled) for one in parts if one is not None]


@dataclass(frozen=True)
class _Parts:
    """The lines that a verdict compares, all of the same tasks, and the shots of the tuned."""

    experts: list[Line]
    current: list[Line]
    tuned: list[Line]
    base: list[Line]
    shots: Shots
    setting: str

    @property
    def tasks(self) -> list[str]:
        return sorted({line.task for line in self.current})


def _parts(lines: Sequence[Line], merged: Sequence[Line], setting: str) -> _Parts | None:
    tasks = {line.task for line in merged}
    experts = [one for one in lines if one.role == "expert" and one.protocol == CURRENT]
    experts = [one for one in experts if one.task in tasks]
    current = [one for one in merged if one.protocol == CURRENT]
    tuned = [one for one in merged if one.protocol == TUNED and one.setting == setting]
    for read in (experts, current, tuned):
        if {line.task for line in read} != tasks:
            return None
    check_work([*experts, *current])
    shots = min({one.shots for one in tuned}, key=_away)
    ours = {id(line) for line in merged}
    base = [one for one in lines if one.role == "base" and one.setting == setting]
    base = [one for one in base if one.shots == shots and one.task in tasks]
    if {line.task for line in base} != tasks or any(id(one) in ours for one in base):
        base = []
    tuned = [one for one in tuned if one.shots == shots]
    return _Parts(experts, current, tuned, base, shots, setting)


def _away(shots: Shots) -> tuple[float, float]:
    """How far a number of shots is from the papers' five."""
    return abs(amount(shots) - HEADLINE_SHOTS), amount(shots)


def _verdict(parts: _Parts, sampled: Sampled | None) -> Verdict:
    def mean(read: Sequence[Line]) -> float:
        by_task = [
            np.mean([value for line in read if line.task == task for value in line.values])
            for task in parts.tasks
        ]
        return float(np.mean(by_task))

    return Verdict(
        unequal=_unequal(parts),
        experts=mean(parts.experts),
        current=mean(parts.current),
        tuned=mean(parts.tuned),
        shots=parts.shots,
        tasks=len(parts.tasks),
        control=mean(parts.base) if parts.base else None,
        setting=parts.setting,
        spread=None if sampled is None else _spread(parts, sampled),
    )


def _unequal(parts: _Parts) -> tuple[float, float] | None:
    """The least and the largest score of an expert, where some are too far from what is theirs."""
    ends: list[float] = []
    far = False
    for task in parts.tasks:
        read = [float(np.mean(one.values)) for one in parts.experts if one.task == task]
        own = [float(np.mean(one.values)) for one in parts.current if one.task == task]
        tuned = [value for one in parts.tuned if one.task == task for value in one.values]
        far = far or max(*read, *own, float(np.mean(tuned))) - min(read) > UNEQUAL
        ends += read
    return (min(ends), max(ends)) if far else None


def _spread(parts: _Parts, sampled: Sampled) -> Spread | None:
    """The differences on resampled rows; None unless all predictions are at hand."""

    def mean(read: Sequence[Line]) -> Estimate | None:
        return mean_over_tasks((line.task, in_points(line.values, sampled(line))) for line in read)

    base = mean(parts.base) if parts.base else None
    return spread_of(mean(parts.experts), mean(parts.current), mean(parts.tuned), base)
