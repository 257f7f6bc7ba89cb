"""Pure: a board -> where the score goes: what each merge adds to its base, and who reads it.

Of a merge on a task four scores count: the base under a tuned head, the merge under the experts'
own heads (Current Eval) and under that tuned head, and the experts. Defined in
docs/methods.md#where-the-score-goes-and-credit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations
from math import fsum
from typing import TypeAlias

import numpy as np

from harness.evaluation.resamples import CORRELATIONS
from harness.reporting.boards.board import Board
from harness.reporting.grid import CURRENT, Reading, reading_of
from harness.reporting.lines import Line
from harness.stats.estimate import Estimate, mean_of, minus
from harness.stats.intervals import LEVEL, Ratio, credit
from harness.stats.ranks import places
from harness.stats.tests import holm, p_value
from harness.text import points

MOST = 60
"""Merges that are ranked: of more pairs, Holm leaves next to nothing significant."""


@dataclass(frozen=True)
class Scored:
    """A merge on a task beside what it is measured by: estimates on the same resamples."""

    base: Estimate
    current: Estimate
    tuned: Estimate
    experts: Estimate


@dataclass(frozen=True)
class Merge:
    """A row: means over its tasks, x100, of what `Scored` has of each.

    `credit` is None where the experts are not significantly above the base; `by_task` has it of
    each task. `place` and `current_place` are from which to which place it may be by credit and
    under Current Eval, None out of competition (`transductive`: made with the rows that are
    scored). `too_low` and `too_high` count the merges that Current Eval ranks the other way round,
    both differences significant.
    """

    name: str
    base: float
    current: float
    tuned: float
    experts: float
    credit: Ratio | None
    by_task: tuple[Ratio | None, ...]
    transductive: bool = False
    place: tuple[int, int] | None = None
    current_place: tuple[int, int] | None = None
    too_low: int = 0
    too_high: int = 0

    @property
    def encoder(self) -> float:
        """What the merge's encoder adds to the base, under the same tuned head."""
        return self.tuned - self.base

    @property
    def head(self) -> float:
        """What only a tuned head recovers; below zero where the kept head is better."""
        return self.tuned - self.current

    @property
    def lost(self) -> float:
        """What even a tuned head leaves."""
        return self.experts - self.tuned

    @property
    def range(self) -> tuple[float, float] | None:
        """The least and the greatest credit of a task, where it is defined on two or more."""
        known = [one.point for one in self.by_task if one is not None]
        return (min(known), max(known)) if len(known) > 1 else None


@dataclass(frozen=True)
class Credits:
    """Merges by credit, the highest first, with what their order says.

    `pairs` are those significant both by credit and under Current Eval, `reversed` how many of
    them the two order differently. `several_scales`: credit is the median over the tasks where it
    is defined, whose metrics have no common scale; it has no interval, and no place. `others` are
    merges that are not among these.
    """

    merges: tuple[Merge, ...]
    reading: Reading
    tasks: tuple[str, ...]
    constant: float | None
    pairs: int
    reversed: int
    several_scales: bool = False
    others: int = 0

    @cached_property
    def defined(self) -> tuple[Merge, ...]:
        """Merges in competition whose credit is defined."""
        return tuple(one for one in self.merges if one.credit and not one.transductive)

    @property
    def finding(self) -> list[str]:
        """At most three sentences: what is first, what Current Eval turns round, what it hides."""
        if not self.defined:
            return [
                "No merge has credit: the experts are not significantly above their base under the "
                "same tuned head."
            ]
        return [text for text in (self._first, self._turned, self._hidden) if text]

    @property
    def _first(self) -> str:
        first = self.defined[0]
        assert first.credit is not None
        if self.several_scales:
            return (
                f"{first.name} has the highest median credit over tasks: {percent(first.credit)}; "
                "metrics of several scales have no common interval, so the order says little."
            )
        text = f"{first.name} has the most credit: {percent(first.credit)}"
        if len(self.defined) == 1 or first.place is None:
            return f"{text}."
        ties = first.place[1] - 1
        second = self.defined[1]
        assert second.credit is not None
        if not ties:
            return (
                f"{text}; next is {second.name} with {percent(second.credit)}, significantly less."
            )
        more = "one other is" if ties == 1 else f"{ties} others are"
        return f"{text}; {more} not significantly behind."

    @property
    def _turned(self) -> str:
        if not self.pairs:
            return ""
        first = max(self.defined, key=lambda one: one.current)
        rank = 1 + sorted(self.defined, key=lambda one: -one.current).index(self.defined[0])
        if first is self.defined[0]:
            text = f"Current Eval ranks {first.name} first, too"
        else:
            text = (
                f"Current Eval ranks {first.name} first and {self.defined[0].name} {ordinal(rank)}"
            )
        return (
            f"{text}: of {self.pairs} pairs that are significant both ways, it orders "
            f"{self.reversed or 'none'} the other way round."
        )

    @property
    def _hidden(self) -> str:
        most = max(self.defined, key=lambda one: one.head)
        if most.head <= 0:
            return ""
        return (
            f"Most is hidden in {most.name}: it scores {points(most.current)} under the experts' "
            f"heads and {points(most.tuned)} under a tuned one (base: {points(most.base)})."
        )


def percent(one: Ratio) -> str:
    """A credit as it is shown: `93 %`, or with its interval where it has one."""
    text = f"{100 * one.point:.0f} %"
    return text if one.ends == (one.point, one.point) else f"{text} ({ends(one)})"


def ends(one: Ratio) -> str:
    """The interval of a credit: `91 to 95 %`."""
    low, high = (f"{100 * end:.0f}" for end in one.ends)
    return f"{100 * LEVEL:.0f} % CI {low} to {high} %"


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th; 11th."""
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


# From estimates ----------------------------------------------------------------------------


def ranked(
    rows: Mapping[str, Sequence[Scored]],
    *,
    reading: Reading,
    tasks: Sequence[str],
    transductive: Iterable[str] = (),
    constant: float | None = None,
    several_scales: bool = False,
    others: int = 0,
) -> Credits:
    """Merges, by name and with their scores on the same tasks, in the order of their credit."""
    aside = {*transductive}
    merges = [_merge(name, of, name in aside, several_scales) for name, of in rows.items()]
    merges.sort(key=lambda one: (one.credit is None, -(one.credit or _NONE).point, -one.tuned))
    inside = [one for one in merges if not one.transductive]
    scored = [rows[one.name] for one in inside]
    by_credit = _significant([mean_of([one.tuned for one in each]) for each in scored])
    by_current = _significant([mean_of([one.current for one in each]) for each in scored])
    both = {} if several_scales else by_credit.keys() & by_current.keys()
    turned = [pair for pair in both if by_credit[pair] != by_current[pair]]
    if not several_scales:
        first = _places([one.tuned for one in inside], by_credit)
        second = _places([one.current for one in inside], by_current)
        inside = [
            replace(
                one,
                place=first[at],
                current_place=second[at],
                too_low=sum(by_credit[pair] == at for pair in turned),
                too_high=sum(by_current[pair] == at for pair in turned),
            )
            for at, one in enumerate(inside)
        ]
    placed = {one.name: one for one in inside}
    return Credits(
        tuple(placed.get(one.name, one) for one in merges),
        reading,
        tuple(tasks),
        constant,
        len(both),
        len(turned),
        several_scales,
        others,
    )


_NONE = Ratio(0.0, (0.0, 0.0))


def _merge(name: str, scored: Sequence[Scored], transductive: bool, several: bool) -> Merge:
    by_task = tuple(credit([one.tuned], [one.base], [one.experts]) for one in scored)
    whole = credit(
        [one.tuned for one in scored], [one.base for one in scored], [one.experts for one in scored]
    )
    if several:
        known = [one.point for one in by_task if one is not None]
        middle = float(np.median(known)) if known else 0.0
        whole = Ratio(middle, (middle, middle)) if known else None

    def mean(each: Iterable[Estimate]) -> float:
        return 100 * float(np.mean([one.point for one in each]))

    return Merge(
        name=name,
        base=mean(one.base for one in scored),
        current=mean(one.current for one in scored),
        tuned=mean(one.tuned for one in scored),
        experts=mean(one.experts for one in scored),
        credit=whole,
        by_task=by_task,
        transductive=transductive,
    )


def _significant(models: Sequence[Estimate]) -> dict[tuple[int, int], int]:
    """The pairs of models whose difference is significant, Holm over all; the better of each."""
    pairs = list(combinations(range(len(models)), 2))
    differences = [minus(models[one], models[other]) for one, other in pairs]
    adjusted = holm([p_value(one) for one in differences]) if pairs else ()
    return {
        pair: pair[0] if one.point > 0 else pair[1]
        for pair, one, p in zip(pairs, differences, adjusted, strict=True)
        if p < 1 - LEVEL
    }


def _places(values: Sequence[float], known: Mapping[tuple[int, int], int]) -> list[tuple[int, int]]:
    order = sorted(range(len(values)), key=lambda at: -values[at])
    return places(len(values), order, known.keys())


# From a board ------------------------------------------------------------------------------


def credits_of(board: Board) -> Credits | None:
    """The credits of the merges of a board that were evaluated on all of its tasks.

    Of more than `MOST`, those with the highest scores under the tuned head. None where a record
    keeps no resamples, or nothing was evaluated under a tuned head, or neither experts nor base
    were.
    """
    tuned = next((one for one in board.headlines.values() if _is_tuned(board, one)), None)
    current = next((one for one in board.headlines.values() if one.protocol == CURRENT), None)
    if tuned is None or current is None:
        return None
    beside = _beside(board, current, tuned)
    merges = {row: line for row, line in board.of_row.items() if line.role == "merged"}
    groups = {row: _groups(board, row, current, tuned, beside) for row in merges}
    whole = {row: each for row, each in groups.items() if each is not None}
    means = {
        row: fsum(fsum(merge.values) / len(merge.values) for _, _, (merge,), _ in each)
        for row, each in whole.items()
    }
    kept = sorted(whole, key=lambda row: -means[row])[:MOST]
    scored = {row: [_scored(of) for of in whole[row]] for row in merges if row in kept}
    if not scored:
        return None
    metrics = {metric for line in board.tasks.values() for metric in line.metrics}
    constants = [line.majority for line in board.tasks.values() if line.majority is not None]
    return ranked(
        scored,
        reading=tuned,
        tasks=tuple(board.tasks),
        transductive=[row for row in scored if merges[row].made_on_test],
        constant=float(np.mean(constants)) if len(constants) == len(board.tasks) else None,
        several_scales=len({metric in CORRELATIONS for metric in metrics}) > 1,
        others=len(whole) - len(kept),
    )


def _is_tuned(board: Board, reading: Reading) -> bool:
    line = board.readings.get(reading)
    return line is not None and line.tuned


Beside: TypeAlias = "Mapping[tuple[str, str], Sequence[Line]]"
"""By task and role, what merges are measured by: experts under Current Eval, a base under a tuned
head."""
Group: TypeAlias = "tuple[list[Line], list[Line], list[Line], list[Line]]"
"""The lines of a merge on a task: of its base, of itself under both heads, of its experts."""


def _beside(board: Board, current: Reading, tuned: Reading) -> Beside:
    found: dict[tuple[str, str], list[Line]] = {}
    for line in board.lines:
        if (line.role, reading_of(line)) in (("expert", current), ("base", tuned)):
            found.setdefault((line.task, line.role), []).append(line)
    return found


def _groups(
    board: Board, row: str, current: Reading, tuned: Reading, beside: Beside
) -> list[Group] | None:
    """By task the lines of a merge; None unless all of them are there, on the same resamples."""
    groups: list[Group] = []
    for task in board.tasks:
        merge = [board.scores.lines.get((row, one, task)) for one in (current, tuned)]
        experts, bases = (beside.get((task, role), ()) for role in ("expert", "base"))
        if merge[0] is None or merge[1] is None or not (experts and bases):
            return None
        own = {digest for _, digest in merge[0].experts}
        group = (
            [line for line in bases if line.head == merge[1].head] or [*bases],
            [merge[0]],
            [merge[1]],
            [line for line in experts if line.digest in own] or [*experts],
        )
        designs = {line.resamples and line.resamples.design for of in group for line in of}
        if len(designs) > 1 or None in designs:
            return None
        groups.append(group)
    return groups


def _scored(group: Group) -> Scored:
    means = [mean_of([one for line in lines if (one := line.estimate)]) for lines in group]
    return Scored(*means)
