"""Pure: records -> where the score of a merge goes, and how much of a loss is the head's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from harness.data.shots import amount, counted
from harness.evaluation.records import Record
from harness.reporting.difference import (
    CI,
    NO_INTERVAL,
    Difference,
    Spread,
    below,
    fewest_draws,
    in_percent,
    spread_of,
)
from harness.reporting.grid import CURRENT, HEADLINE_SHOTS, check_work, reported
from harness.reporting.lines import TUNED, Line, lines_of
from harness.stats.tests import FEWEST_DRAWS
from harness.text import points
from harness.types import Shots

UNEQUAL = 20.0
"""Points: experts that are further apart, or further below their merge, are called out."""


@dataclass(frozen=True)
class Verdict:
    """How far a merge is below its experts under Current Eval, and what a tuned head wins back.

    All in points (x100), averaged over the tasks; `shots` are those of FT-Classifier Eval, `draws`
    how many draws of them. `control` is the base under FT-Classifier Eval: what the head can do
    without any merge. Without a `spread`, which takes records that keep resamples, no ratio is
    said. `unequal` are the least and the largest score of an expert where their mean is no measure:
    those of one task are far apart, or one is far below the merge, with a tuned head or without.
    """

    experts: float
    current: float
    tuned: float
    shots: Shots
    tasks: int
    control: float | None = None
    setting: str = TUNED
    spread: Spread | None = None
    draws: int = FEWEST_DRAWS
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
        if not lost.significant or points(self.loss) == "0.0":
            return "cannot tell"
        return "below" if self.loss > 0 else "above"

    @property
    def as_the_base(self) -> bool:
        """Whether the base does not score less under a tuned head: then that says nothing."""
        if self.control is None:
            return False
        if float(points(self.control)) >= float(points(self.tuned)):
            return True
        above = self.spread.above_control if self.spread else None
        return above is not None and above[0] <= 0

    @property
    def share(self) -> str:
        """How much of the loss the head explains, with its interval; "" where that is not known.

        Of a significant loss alone, whatever is recovered: a share that is printed where it is
        large would be too large.
        """
        if self.standing != "below":
            return ""
        if self.as_the_base:
            return "as the base"
        known = self.spread.share if self.spread else None
        if known is None:
            return ""
        return in_percent(known) if known.ends[1] > 0 else "none"

    def __str__(self) -> str:
        over = f"averaged over {self.tasks} tasks, " if self.tasks > 1 else ""
        if self.unequal is not None:
            return f"{over}{self._gap}. {self._measure(*self.unequal)}.{self._without}"
        how = f"{points(abs(self.loss))} points {'below' if self.loss > 0 else 'above'} its experts"
        if points(self.loss) == "0.0":
            how = "as much as its experts"
        scores = f"{points(self.experts)}{below(self.spread.loss) if self.spread else ''}"
        merge = (
            f"{over}the merge scores {points(self.current)} under Current Eval, {how} ({scores})"
        )
        return f"{merge}; {self._tuned}: {self._cause}.{self._parts}{self._without}"

    @property
    def _tuned(self) -> str:
        setting = "" if self.setting == TUNED else f" ({self.setting})"
        base = "" if self.control is None else f" (base: {points(self.control)})"
        with_ = f"FT-Classifier Eval{setting} with {counted(self.shots)}"
        return f"{with_} scores {points(self.tuned)}{base}"

    @property
    def _gap(self) -> str:
        """What a tuned head changes."""
        change = "more" if self.recovered > 0 else "less"
        as_base = ""
        if self.recovered > 0 and self.as_the_base:
            as_base = ", which is not significantly more than the base"
        return (
            f"the merge scores {points(self.current)} under Current Eval; {self._tuned}, "
            f"{points(abs(self.recovered))} points {change}{as_base}"
        )

    def _measure(self, least: float, most: float) -> str:
        """Why its experts do not say what is lost."""
        are = "are very unequal" if most - least > UNEQUAL else "are far below that"
        return (
            f"Its experts {are} ({points(least)} to {points(most)}, {points(self.experts)} on "
            "average), so their mean says little of what is lost: check how the lowest were "
            "trained, and whether their heads and labels are right"
        )

    @property
    def _without(self) -> str:
        return "" if self.spread else NO_INTERVAL

    @property
    def _cause(self) -> str:
        """What of the loss is the head's."""
        if self.standing == "above":
            return "no loss to explain"
        if self.standing == "cannot tell":
            return "no significant loss, so none to explain"
        if self.as_the_base:
            return (
                "the base does not score significantly less, so a tuned head says nothing of the "
                "merge"
            )
        known = self.spread.share if self.spread else None
        if known and known.ends[0] <= 0 < known.ends[1]:
            low, high = (f"{100 * end:.0f}" for end in known.ends)
            return f"no significant share of the loss is the head's ({CI} {low} to {high} %)"
        if self.share:
            return f"the head explains {self.share} of the loss"
        if self.spread and self.draws < FEWEST_DRAWS:
            return f"needs more draws to say what the head explains, {FEWEST_DRAWS} or more"
        return "what the head explains is not known"

    @property
    def _parts(self) -> str:
        """The four parts of the experts' score, and the credit of the merge."""
        if self.control is None:
            return ""
        known = self.spread.credit if self.spread else None
        said = f"; credit {in_percent(known)}" if known else ""
        head = f"only a tuned head recovers {points(self.recovered)}"
        if self.recovered < 0:
            head = f"a tuned head scores {points(-self.recovered)} less than the experts' own"
        return (
            f" Of the experts' {points(self.experts)} points the base has {points(self.control)} "
            f"under a tuned head, the encoder adds {points(self.tuned - self.control)} and "
            f"{points(self.experts - self.tuned)} are lost; {head}{said}."
        )


def verdicts(records: Sequence[Record], *, merged: Sequence[Record] | None = None) -> list[Verdict]:
    """The verdict on the merged model for every setting that FT-Classifier Eval was run with.

    `merged` are its records, if they are not those of that role. Differences of records that keep
    resamples have an interval: over test units and draws, paired, the tasks held. None without
    experts, or where a task was not evaluated.
    """
    records = reported(records)
    given = [r for r in records if r.role == "merged"] if merged is None else merged
    each = {id(one): [*lines_of([("", one)])] for one in [*records, *given]}
    mine = [line for one in given for line in each[id(one)]]
    return verdicts_of([line for of in each.values() for line in of], mine)


def verdicts_of(lines: Sequence[Line], merged: Sequence[Line]) -> list[Verdict]:
    """The verdicts on a model, whose lines are among those that are given.

    None by a head that was tuned on the rows that are scored.
    """
    settings = dict.fromkeys(line.setting.protocol for line in merged if line.tuned)
    parts = (_parts(lines, merged, setting) for setting in settings)
    return [_verdict(one) for one in parts if one is not None]


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
    tuned = [one for one in merged if one.protocol == TUNED and one.setting.protocol == setting]
    for read in (experts, current, tuned):
        if {line.task for line in read} != tasks:
            return None
    check_work([*experts, *current])
    shots = min({one.shots for one in tuned}, key=_away)
    ours = {id(line) for line in merged}
    base = [one for one in lines if one.role == "base" and one.setting.protocol == setting]
    base = [one for one in base if one.shots == shots and one.task in tasks]
    if {line.task for line in base} != tasks or any(id(one) in ours for one in base):
        base = []
    tuned = [one for one in tuned if one.shots == shots]
    return _Parts(experts, current, tuned, base, shots, setting)


def _away(shots: Shots) -> tuple[float, float]:
    """How far a number of shots is from the papers' five."""
    return abs(amount(shots) - HEADLINE_SHOTS), amount(shots)


def _verdict(parts: _Parts) -> Verdict:
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
        spread=spread_of(parts.experts, parts.current, parts.tuned, parts.base),
        draws=fewest_draws([*parts.tuned, *parts.base]),
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
