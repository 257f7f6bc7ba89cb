"""Pure: a board -> where the score goes: what each merge adds to its base, under which head.

Four scores of a merge on a task are needed: the base under a tuned head, the merge under the
experts' heads (Current Eval) and under that tuned head, and the experts. Defined in
docs/methods.md#where-the-score-goes-and-credit.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from math import fsum, inf
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from harness.reporting.boards.tested import MOST_BOARD_ROWS, head_settings
from harness.reporting.difference import (
    by_task,
    constants_of,
    enough_draws,
    mean_difference,
    one_metric,
    significant_pairs,
    task_sets,
)
from harness.reporting.lines import Line, Setting
from harness.reporting.sentences import rendered
from harness.reporting.verdict import ComparedLines, compared_lines, experts_and_bases
from harness.stats.estimate import Estimate, Prior
from harness.stats.intervals import LEVEL, Ratio, credit, median_credit, too_few_sets
from harness.stats.ranks import places
from harness.stats.tests import holm, p_value
from harness.text import few, plain, points

if TYPE_CHECKING:
    from harness.reporting.boards.board import Board

SHORTEST_AXIS = 1.0
"""The smallest length of the axis of scores, in points."""


ScorePart: TypeAlias = Literal["base", "below", "own", "above", "tuned", "lost"]
"""A part of a bar: the base; how far the tuned head is `below` it; what the experts' `own` heads
(Current Eval) add; how far these are `above` the tuned head; what only the `tuned` head adds; what
is `lost` against the experts."""


@dataclass(frozen=True)
class Scored:
    """The four scores that credit is made of: estimates by task, all on the same resamples."""

    base: Sequence[Estimate]
    current: Sequence[Estimate]
    tuned: Sequence[Estimate]
    experts: Sequence[Estimate]


@dataclass(frozen=True)
class MergeCredit:
    """A merge: the means over tasks, x100, of the four scores of `Scored`, and its credit.

    `credit` is None where the experts are not significantly above the base, or the best constant
    prediction; `by_task` has the credit of each task. `of_means`: `credit` is of the means, not the
    median over tasks. `place` and `current_place` are the first and the last place that the merge
    may have by credit and under Current Eval; None if it is out of competition (`transductive`:
    made with the rows that are scored) or tasks have several metrics. `too_low` counts the merges
    that Current Eval places above this one and credit below it, both differences significant,
    `too_high` the opposite. `hidden`: the merge scores significantly more under the tuned head than
    under its own heads, Holm over the merges.
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
        """Points that only the tuned head scores; negative where the kept head is better."""
        return self.tuned - self.current

    @property
    def own_above(self) -> bool:
        """Whether Current Eval scores more than the tuned head, both rounded as printed."""
        return float(points(self.current)) > float(points(self.tuned))

    @property
    def ends(self) -> tuple[float, float] | None:
        """The interval of credit as scores; None if credit is a median or has no interval."""
        if self.credit is None or not self.of_means or not self.credit.has_interval:
            return None
        low, high = (self.base + end * (self.experts - self.base) for end in self.credit.ends)
        return low, high

    def parts(self, low: float) -> list[tuple[ScorePart, float, float]]:
        """The parts of the bar from `low` to the experts, each with its start and end."""
        own, tuned = max(self.current, self.base), max(self.tuned, self.base)
        bounds: list[tuple[ScorePart, float, float]] = [
            ("base", low, min(self.base, self.tuned)),
            ("below", self.tuned, self.base),
            ("own", self.base, min(own, tuned)),
            ("above", tuned, own),
            ("tuned", own, tuned),
            ("lost", max(own, tuned), self.experts),
        ]
        return [(part, start, end) for part, start, end in bounds if end > start]

    @property
    def range(self) -> tuple[float, float] | None:
        """The least and the greatest credit of a task; None for one task or without a credit."""
        values = self.known
        return (min(values), max(values)) if values and len(self.by_task) > 1 else None

    @property
    def known(self) -> list[float]:
        """The credits of the tasks where credit is defined."""
        return [ratio.point for ratio in self.by_task if ratio is not None]


@dataclass(frozen=True)
class Credits:
    """Merges by credit, the highest first, and how their order differs under Current Eval.

    `constant` is the mean score of the best constant predictions, None if one is unknown. `pairs`
    counts the pairs of merges that differ significantly both by credit and under Current Eval,
    `reversed` those of them in opposite order. `several_metrics`: the mean over tasks has no scale,
    so credit is the median over the tasks where it is defined, and there are no places. `others`
    counts the merges left out because they score lower; `unscored` names those left out because
    they lack a score under one of the heads.
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
        return tuple(merge for merge in self.merges if merge.credit and not merge.transductive)

    @cached_property
    def axis(self) -> tuple[float, float]:
        """The ends of the axis: the best constant (else 0), or a lower score; the highest score."""
        scores = [x for one in self.merges for x in (one.base, one.current, one.tuned, one.experts)]
        low = min(*scores, self.constant or 0.0)
        return low, max(*scores, low + SHORTEST_AXIS)

    @property
    def left_out(self) -> str:
        """A sentence on the `unscored` merges, which might score higher; '' if there are none."""
        names = plain(few(self.unscored))
        return f"Not evaluated under both heads on all tasks, and left out: {names}." * bool(names)

    @property
    def shared(self) -> dict[str, float]:
        """The score of the best constant, and of base and experts if all merges have the same."""
        shared = {} if self.constant is None else {"best constant": self.constant}
        for name in ("base", "experts"):
            values = [getattr(merge, name) for merge in self.merges]
            if len({*map(points, values)}) == 1:
                shared[name] = values[0]
        return shared

    @property
    def undefined(self) -> bool:
        """Whether any credit, of a merge or of one of its tasks, is undefined."""
        return any(None in (merge.credit, *merge.by_task) for merge in self.merges)

    @property
    def finding(self) -> list[str]:
        """At most three sentences: the first merge, reversed pairs, what Current Eval hides."""
        macros = ("first", "turned", "hidden") if self.defined else ("no_credit",)
        return [text for macro in macros if (text := rendered(macro, self))]


# From estimates ----------------------------------------------------------------------------


def ranked(
    rows: Mapping[str, Scored],
    *,
    setting: Setting,
    tasks: Sequence[str],
    transductive: Collection[str] = (),
    constants: Sequence[float | None] = (),
    several_metrics: bool = False,
    priors: tuple[Prior | None, Prior | None] = (None, None),
    sets: Mapping[str, object] | None = None,
) -> Credits:
    """The credits of merges, given by name.

    `constants` are the best constant predictions by task, as fractions; `priors` what variances
    over sets of experts are shrunk towards, under the tuned head and under the experts' own; merges
    of different `sets` are not told apart.
    """
    floors = constants or [None] * len(tasks)
    known_floors = [floor for floor in floors if floor is not None]
    gaps = [mean_difference(scores.tuned, scores.current) for scores in rows.values()]
    of_sets = max(len(gap.by_set) for gap in gaps)
    too_few = [too_few_sets(len(gap.by_set), of_sets) for gap in gaps]
    higher = holm([1.0 if few else p_value(gap) for few, gap in zip(too_few, gaps, strict=True)])
    merges = []
    for (name, scores), p in zip(rows.items(), higher, strict=True):
        merge = _merge(name, scores, floors, several_metrics, transductive=name in transductive)
        merges.append(replace(merge, hidden=p < 1 - LEVEL and merge.head > 0))
    merges.sort(key=lambda one: (-one.credit.point if one.credit else inf, -one.tuned))
    placed = [merge for merge in merges if not merge.transductive]
    pairs = turned = 0
    if not several_metrics:
        scored = [rows[merge.name] for merge in placed]
        own_sets = [sets[merge.name] for merge in placed] if sets else []
        placed, pairs, turned = _placed(placed, scored, priors, own_sets)
    by_name = {merge.name: merge for merge in placed}
    return Credits(
        tuple(by_name.get(merge.name, merge) for merge in merges),
        setting,
        tuple(tasks),
        100 * fsum(known_floors) / len(known_floors) if len(known_floors) == len(floors) else None,
        pairs,
        turned,
        several_metrics,
    )


def _placed(
    merges: Sequence[MergeCredit],
    scored: Sequence[Scored],
    priors: Sequence[Prior | None],
    sets: Sequence[object],
) -> tuple[list[MergeCredit], int, int]:
    """The merges with their places, the number of `Credits.pairs`, and that of those reversed."""
    by_credit = significant_pairs([scores.tuned for scores in scored], priors[0], sets)
    by_current = significant_pairs([scores.current for scores in scored], priors[1], sets)
    pairs = by_credit.keys() & by_current.keys()
    turned = [pair for pair in pairs if by_credit[pair] != by_current[pair]]
    credit_places = _places([merge.tuned for merge in merges], by_credit)
    current_places = _places([merge.current for merge in merges], by_current)
    placed = [
        replace(
            merge,
            place=credit_places[index],
            current_place=current_places[index],
            too_low=sum(by_credit[pair] == index for pair in turned),
            too_high=sum(by_current[pair] == index for pair in turned),
        )
        for index, merge in enumerate(merges)
    ]
    return placed, len(pairs), len(turned)


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
        defined = [i for i, ratio in enumerate(by_task) if ratio is not None]
        chosen = ([column[i] for i in defined] for column in columns)
        whole = median_credit(*chosen) if defined else None

    def mean(column: Sequence[Estimate]) -> float:
        return 100 * float(np.mean([estimate.point for estimate in column]))

    means: dict[str, Any] = {field: mean(estimates) for field, estimates in vars(scored).items()}
    return MergeCredit(
        name,
        **means,
        credit=whole,
        by_task=by_task,
        of_means=not several,
        transductive=transductive,
    )


def _places(
    values: Sequence[float], significant: Mapping[tuple[int, int], int]
) -> list[tuple[int, int]]:
    order = sorted(range(len(values)), key=lambda index: -values[index])
    return places(order, significant.keys())


# From a board ------------------------------------------------------------------------------


def credits_of(board: Board) -> Credits | None:
    """The credits of the merges of a board that were evaluated on all of its tasks.

    At most `MOST_BOARD_ROWS` merges, those with the highest scores under the tuned head. None
    without experts or base, or where no merge was evaluated under a tuned head with three draws or
    more.
    """
    heads = head_settings(board.scores)
    if heads is None:
        return None
    against = experts_and_bases(board.lines)
    merges = board.scores.models("merged")
    compared = {row: _compared(board, row, heads, against) for row in merges}
    scored = {row: scores for row in merges if (scores := _scored(compared[row])) is not None}
    if not scored:
        return None
    by_score = sorted(scored, key=lambda row: -fsum(one.point for one in scored[row].tuned))
    best = by_score[:MOST_BOARD_ROWS]
    tasks, whole = sorted(board.tasks), board.scores.columns[-1]
    lines = [board.tasks[task] for task in tasks]
    placed = ranked(
        {row: scores for row, scores in scored.items() if row in best},
        setting=heads[-1],
        tasks=tasks,
        transductive=[row for row in best if board.scores.line_of_row[row].made_on_test],
        constants=constants_of(lines),
        several_metrics=not one_metric(lines),
        priors=(board.priors[heads[1], whole], board.priors[heads[0], whole]),
        sets={row: task_sets(compared[row].current) for row in best},
    )
    unscored = tuple(row for row in merges if row not in scored)
    return replace(placed, others=len(scored) - len(best), unscored=unscored)


def _compared(
    board: Board, row: str, settings: Sequence[Setting], against: Mapping[str, Sequence[Line]]
) -> ComparedLines:
    """The lines of a merge under both heads; without any unless they are on every task."""
    places = product(settings, board.tasks)
    cells = [board.scores.cells.get((row, *place)) for place in places]
    lines = [line for cell in cells if cell for line in cell.lines] if all(cells) else []
    return compared_lines(lines, against, settings[-1]) or ComparedLines([], [], [], [])


def _scored(compared: ComparedLines) -> Scored | None:
    """The four scores of a merge; None unless all exist on every task, on the same resamples."""
    if not compared.current or not enough_draws([*compared.adapted, *compared.base]):
        return None
    estimates = by_task(compared.base, compared.current, compared.adapted, compared.experts)
    return None if estimates is None else Scored(*estimates)
