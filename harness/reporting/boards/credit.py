"""Pure: a board -> where the score goes: what each merge adds to its base, under which head.

Of a merge on a task four scores count: the base under a tuned head, the merge under the experts'
heads (Current Eval) and under that tuned head, and the experts. Defined in
docs/methods.md#where-the-score-goes-and-credit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import fsum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from harness.reporting.boards.tested import MOST, under_heads
from harness.reporting.difference import (
    apart,
    by_task,
    constants_of,
    enough_draws,
    one_metric,
    significant_pairs,
)
from harness.reporting.lines import Line, Setting
from harness.reporting.sentences import said
from harness.reporting.verdict import against_of, compared
from harness.stats.estimate import Estimate, Prior
from harness.stats.intervals import LEVEL, Ratio, credit, median_credit
from harness.stats.ranks import places
from harness.stats.tests import holm, p_value
from harness.text import few, plain, points

if TYPE_CHECKING:
    from harness.reporting.boards.board import Board

LEAST = 1.0
"""Points from end to end of the axis of scores."""


ScorePart: TypeAlias = Literal["base", "below", "own", "above", "tuned", "lost"]
"""Of a score: the base, and how far the tuned head is below it; what Current Eval scores, and how
far that is above the tuned head; what only this scores, and what is lost."""


@dataclass(frozen=True)
class Scored:
    """A merge beside what it is measured by: estimates by task, on the same resamples."""

    base: Sequence[Estimate]
    current: Sequence[Estimate]
    tuned: Sequence[Estimate]
    experts: Sequence[Estimate]


@dataclass(frozen=True)
class MergeCredit:
    """A row: means over its tasks, x100, of what `Scored` has of each.

    `credit` is None where the experts are not significantly above the base, or the best constant
    prediction; `by_task` has it of each task. `of_means`: it is of these means, no median over the
    tasks. `place` and `current_place` are from which to which
    place it may be by credit and under Current Eval, None out of competition (`transductive`: made
    with the rows that are scored). `too_low` and `too_high` count the merges that Current Eval
    orders the other way round, both differences significant. `hidden`: it scores significantly more
    under the tuned head than under its own, Holm over the merges.
    """

    name: str
    base: float
    current: float
    tuned: float
    experts: float
    credit: Ratio | None
    by_task: tuple[Ratio | None, ...]
    of_means: bool = True
    transductive: bool = False
    place: tuple[int, int] | None = None
    current_place: tuple[int, int] | None = None
    too_low: int = 0
    too_high: int = 0
    hidden: bool = False

    @property
    def head(self) -> float:
        """What only a tuned head recovers; below zero where the kept head is better."""
        return self.tuned - self.current

    @property
    def own_above(self) -> bool:
        """Whether Current Eval is above the tuned head, as it is printed."""
        return float(points(self.current)) > float(points(self.tuned))

    @property
    def ends(self) -> tuple[float, float] | None:
        """The scores at the ends of the interval of credit, if it is of means and has one."""
        if self.credit is None or not self.of_means or not self.credit.is_open:
            return None
        low, high = (self.base + end * (self.experts - self.base) for end in self.credit.ends)
        return low, high

    def parts(self, low: float) -> list[tuple[ScorePart, float, float]]:
        """What the score is made of from `low` to the experts: each part from where to where."""
        own, tuned = max(self.current, self.base), max(self.tuned, self.base)
        known: list[tuple[ScorePart, float, float]] = [
            ("base", low, min(self.base, self.tuned)),
            ("below", self.tuned, self.base),
            ("own", self.base, min(own, tuned)),
            ("above", tuned, own),
            ("tuned", own, tuned),
            ("lost", max(own, tuned), self.experts),
        ]
        return [(part, start, end) for part, start, end in known if end > start]

    @property
    def range(self) -> tuple[float, float] | None:
        """The least and the greatest credit of a task, of several where it is defined on any."""
        known = self.known
        return (min(known), max(known)) if known and len(self.by_task) > 1 else None

    @property
    def known(self) -> list[float]:
        """The credit of each task where it is defined."""
        return [one.point for one in self.by_task if one is not None]


@dataclass(frozen=True)
class Credits:
    """Merges by credit, the highest first, with what their order says.

    `pairs` are those significant both by credit and under Current Eval, `reversed` how many of
    them the two order differently. `several_metrics`: credit is the median over the tasks where
    it is defined, as their mean has no scale, and has no place. `others` are merges that are not
    among these, as they score lower, `unscored` those that lack a score under one of the heads.
    """

    merges: tuple[MergeCredit, ...]
    setting: Setting
    tasks: tuple[str, ...]
    constant: float | None
    pairs: int
    reversed: int
    several_metrics: bool = False
    others: int = 0
    unscored: tuple[str, ...] = ()

    @cached_property
    def defined(self) -> tuple[MergeCredit, ...]:
        """Merges in competition whose credit is defined."""
        return tuple(one for one in self.merges if one.credit and not one.transductive)

    @cached_property
    def axis(self) -> tuple[float, float]:
        """From the best constant, or 0 without one, if no score is lower, to the highest score."""
        scores = [x for one in self.merges for x in (one.base, one.current, one.tuned, one.experts)]
        low = min(*scores, self.constant or 0.0)
        return low, max(*scores, low + LEAST)

    @property
    def left_out(self) -> str:
        """A sentence on the merges that are not among these, though they may score higher."""
        known = plain(few(self.unscored))
        return f"Not evaluated under both heads on all tasks, and left out: {known}." * bool(known)

    @property
    def shared(self) -> dict[str, float]:
        """The score of the best constant, and those of base and experts that all merges share."""
        each = {name: [getattr(one, name) for one in self.merges] for name in ("base", "experts")}
        known = {name: of[0] for name, of in each.items() if len({*map(points, of)}) == 1}
        return known if self.constant is None else {"best constant": self.constant, **known}

    @property
    def undefined(self) -> bool:
        """Whether any credit is, of a merge or of one of its tasks."""
        return any(None in (one.credit, *one.by_task) for one in self.merges)

    @property
    def finding(self) -> list[str]:
        """At most three sentences: what is first, which pairs it reverses, what it hides."""
        macros = ("first", "turned", "hidden") if self.defined else ("no_credit",)
        return [text for macro in macros if (text := said(macro, self))]


# From estimates ----------------------------------------------------------------------------


def ranked(
    rows: Mapping[str, Scored],
    *,
    setting: Setting,
    tasks: Sequence[str],
    transductive: Collection[str] = (),
    constants: Sequence[float | None] = (),
    several_metrics: bool = False,
    others: int = 0,
    priors: tuple[Prior | None, Prior | None] = (None, None),
) -> Credits:
    """Merges, by name, in the order of their credit; `constants` are fractions, by task, and
    `priors` what variances over sets of experts are shrunk towards, under a tuned head and the
    experts' own."""
    floors = constants or [None] * len(tasks)
    known = [one for one in floors if one is not None]
    merges = [
        _merge(name, of, floors, several_metrics, transductive=name in transductive)
        for name, of in rows.items()
    ]
    higher = holm([p_value(apart(of.tuned, of.current)) for of in rows.values()])
    merges = [
        replace(one, hidden=p < 1 - LEVEL and one.head > 0)
        for one, p in zip(merges, higher, strict=True)
    ]
    merges.sort(key=lambda one: (one.credit is None, -(one.credit or _NONE).point, -one.tuned))
    inside = [one for one in merges if not one.transductive]
    scored = [rows[one.name] for one in inside]
    by_credit = significant_pairs([one.tuned for one in scored], priors[0])
    by_current = significant_pairs([one.current for one in scored], priors[1])
    both = {} if several_metrics else by_credit.keys() & by_current.keys()
    turned = [pair for pair in both if by_credit[pair] != by_current[pair]]
    if not several_metrics:
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
        setting,
        tuple(tasks),
        100 * fsum(known) / len(known) if len(known) == len(floors) else None,
        len(both),
        len(turned),
        several_metrics,
        others,
    )


_NONE = Ratio(0.0, (0.0, 0.0))


def _merge(
    name: str, scored: Scored, floors: Sequence[float | None], several: bool, *, transductive: bool
) -> MergeCredit:
    columns = scored.tuned, scored.base, scored.experts
    by_task = tuple(
        credit([tuned], [base], [expert], [floor])
        for tuned, base, expert, floor in zip(*columns, floors, strict=True)
    )
    whole = credit(*columns, floors)
    if several:
        known = [at for at, one in enumerate(by_task) if one is not None]
        whole = median_credit(*([each[at] for at in known] for each in columns)) if known else None

    def mean(each: Sequence[Estimate]) -> float:
        return 100 * float(np.mean([one.point for one in each]))

    means: dict[str, Any] = {what: mean(of) for what, of in vars(scored).items()}
    return MergeCredit(
        name,
        **means,
        credit=whole,
        by_task=by_task,
        of_means=not several,
        transductive=transductive,
    )


def _places(values: Sequence[float], known: Mapping[tuple[int, int], int]) -> list[tuple[int, int]]:
    order = sorted(range(len(values)), key=lambda at: -values[at])
    return places(len(values), order, known.keys())


# From a board ------------------------------------------------------------------------------


def credits_of(board: Board) -> Credits | None:
    """The credits of the merges of a board that were evaluated on all of its tasks.

    Of more than `MOST`, those with the highest scores under the tuned head. None where nothing was
    evaluated under a tuned head with three draws or more, and
    without experts or base.
    """
    heads = under_heads(board.scores)
    if heads is None:
        return None
    against = against_of(board.lines)
    merges = board.scores.models("merged")
    found = {row: _scored(board, row, heads, against) for row in merges}
    scored = {row: one for row, one in found.items() if one is not None}
    if not scored:
        return None
    kept = sorted(scored, key=lambda row: -fsum(one.point for one in scored[row].tuned))[:MOST]
    tasks, whole = sorted(board.tasks), board.scores.columns[-1]
    lines = [board.tasks[task] for task in tasks]
    placed = ranked(
        {row: one for row, one in scored.items() if row in kept},
        setting=heads[-1],
        tasks=tasks,
        transductive=[row for row in kept if board.scores.of_row[row].made_on_test],
        constants=constants_of(lines),
        several_metrics=not one_metric(lines),
        others=len(scored) - len(kept),
        priors=(board.priors[heads[1], whole], board.priors[heads[0], whole]),
    )
    return replace(placed, unscored=tuple(row for row in merges if row not in scored))


def _scored(
    board: Board, row: str, settings: Sequence[Setting], against: Mapping[str, Sequence[Line]]
) -> Scored | None:
    """A merge and what it is measured by; None unless all of it is there, on the same resamples."""
    cells = [board.scores.cells.get((row, one, task)) for one in settings for task in board.tasks]
    if not all(cells):
        return None
    of = compared([line for one in cells if one for line in one.lines], against, settings[-1])
    if of is None or not enough_draws([*of.adapted, *of.base]):
        return None
    found = by_task(of.base, of.current, of.adapted, of.experts)
    return None if found is None else Scored(*found)
