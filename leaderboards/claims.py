"""The numbers in sentences of pages, computed from the boards and records.

A number stands between `<!-- CLAIM WORDS -->` and `<!-- / -->`: it is what the function CLAIM
returns for a folder of boards and the words. `tables.py` writes it, and a test compares.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean

import five_topics
import frames
import pandas
from differences import (
    better,
    between_rows,
    changes,
    changes_by_merger,
    changes_on_tasks,
    column_of,
    credited,
    credits_of,
    experts_of,
    favoured,
    gains_of_base,
    judged,
    known,
    led,
    lines_under,
    losses,
    mean_of_row,
    merges_of,
    over_sets,
    pairs_of_bases,
    plain,
    turned,
    under,
)
from frames import GROUPS, counted, records_of, task_of
from scipy.stats import kendalltau, spearmanr, ttest_ind

from harness.reporting.difference import (
    Difference,
    by_task,
    difference_of,
    in_percent,
    in_points,
)
from harness.reporting.sentences import p as p_of
from harness.stats.estimate import Estimate, minus
from harness.stats.intervals import credit as stats_credit
from harness.stats.ranks import concordance, friedman
from harness.stats.tests import holm
from harness.studies.status import spreads_of
from harness.text import points

ANCHOR = re.compile(r"<!-- ([a-z_]+(?: [^<>]+?)?) -->([^<>]*)<!-- / -->")
FEWEST_MERGES = 3
"""Fewer have no order that is compared: on the rows of toy.py, no merge has credit."""


def said(text: str, place: Path) -> str:
    """A page with its numbers computed anew. Raises KeyError for an unknown claim."""

    def one(found: re.Match[str]) -> str:
        name, *words = shlex.split(found[1])
        return f"<!-- {found[1]} -->{CLAIMS[name](place, *_named(words))}<!-- / -->"

    return ANCHOR.sub(one, text)


def _named(words: Iterable[str]) -> list[str]:
    """The words of a claim, with groups replaced by their boards: `@all !emotions`."""
    found: list[str] = []
    for word in words:
        if word.startswith("!"):
            found.remove(word[1:])
        else:
            found += GROUPS[word[1:]] if word.startswith("@") else [word]
    return found


# Boards with resamples ---------------------------------------------------------------------


def first(place: Path, name: str) -> str:
    """The merge with the most credit, and how many are not significantly behind it."""
    if not credited(place, name).defined:
        return "no merge, as none has credit"
    best = credited(place, name).defined[0]
    behind = best.place[1] - 1 if best.place else 0
    others = {0: "all others are", 1: "one other is not"}.get(
        behind, f"{counted(behind)} others are not"
    )
    text = (
        f"`{best.name}`" if best.credit is None else f"`{best.name}` with {in_percent(best.credit)}"
    )
    return f"{text}; {others} significantly behind"


def boards(_: Path, *names: str) -> str:
    """The number of these boards."""
    return counted(len(names))


def pairs(place: Path, *names: str) -> str:
    """How many pairs of merges differ significantly both by credit and under Current Eval."""
    return counted(sum(credited(place, name).pairs for name in names))


def reversed(place: Path, *names: str) -> str:
    """How many of the pairs of `pairs` credit and Current Eval put in opposite orders."""
    return counted(sum(credited(place, name).reversed for name in names))


def blamed(place: Path, name: str, *rows: str) -> str:
    """In how many of the pairs of `reversed` Current Eval has one of these merges too high."""
    return counted(sum(one.too_high for one in credited(place, name).merges if one.name in rows))


def reversed_alone(place: Path, *names: str) -> str:
    """How many pairs of plain mergers are as in `reversed`, of how many that are as in `pairs`."""
    found = [one for name in names for one in turned(place, name)]
    return f"{counted(sum(found))} of {len(found)}"


def between(place: Path, name: str, first: str, second: str) -> str:
    """How far one row under one setting (`ROW@SETTING`) is above another, in points, on one board
    or across two (`BOARD+BOARD`), by the variance of this difference alone. Two merges under one
    protocol of a board with sets of experts are compared by `gap`, as on the board."""
    boards = known(place, name.split("+")[0]), known(place, name.split("+")[-1])
    found = difference_of(*map(under, boards, (first, second)))
    assert found is not None, f"{first} and {second} on {name} cannot be paired"
    return _apart(found)


def base_gains(place: Path, *names: str) -> str:
    """On how many boards the base scores significantly more under a tuned head than under the
    experts' heads, by Holm over these."""
    each = gains_of_base(place, names)
    return f"{sum(one.significant is True and one.points > 0 for one in each)} of {len(each)}"


def base_loses(place: Path, *names: str) -> str:
    """On how many boards the base scores significantly less, as in `base_gains`."""
    each = gains_of_base(place, names)
    return counted(sum(one.significant is True and one.points < 0 for one in each))


def leads(place: Path, one: str, other: str, protocol: str, *names: str) -> str:
    """On how many boards one of two mergers is significantly above the other, as in `led`."""
    found = [led(place)[name, protocol][one, other] for name in names]
    return f"{sum(bool(of.significant) and of.points > 0 for of in found)} of {len(found)}"


def trails(place: Path, one: str, other: str, protocol: str, *names: str) -> str:
    """On how many boards the one is significantly below the other."""
    found = [led(place)[name, protocol][one, other] for name in names]
    return counted(sum(bool(of.significant) and of.points < 0 for of in found))


def _apart(found: Estimate) -> str:
    low, high = in_points(found)
    return f"{points(100 * found.point, '+')} (95 % CI {points(low)} to {points(high)})"


def staging(one: Difference | None) -> str:
    """A change with half of its symmetric interval, bold if significant; `same` for no change."""
    if one is None:
        return "same"
    bold = "**" if one.significant else ""
    within = "" if one.within is None else f" ± {points(one.points - one.within[0])}"
    return f"{bold}{points(one.points, '+')}{bold}{within}"


def largest(place: Path, stage: str, *names: str) -> str:
    """The largest change by a stage of any merge's mean over tasks, on any of these boards."""
    each = [one for at in ("current", "ft-classifier") for one in changes(place, stage, at, names)]
    return points(max((abs(one.points) for one in each), default=0.0))


def changed(place: Path, name: str, stage: str, protocol: str) -> str:
    """How many scores of merges on tasks a stage changes on a board."""
    return counted(len(changes_on_tasks(place, name, stage, protocol)))


def gained(place: Path, name: str, stage: str, protocol: str, way: str = "up") -> str:
    """How many of the changes of `changed` are significant gains, or losses (`down`)."""
    found = changes_on_tasks(place, name, stage, protocol)
    return counted(
        sum(bool(one.significant) and (one.points > 0) == (way == "up") for one in found)
    )


def lost(place: Path, stage: str, protocol: str, *names: str) -> str:
    """How many of the changes that a stage makes on boards are significant losses."""
    found = changes(place, stage, protocol, names)
    return f"{sum(bool(one.significant) and one.points < 0 for one in found)} of {len(found)}"


def won(place: Path, stage: str, protocol: str, *names: str) -> str:
    """How many of the changes of `lost` are significant gains."""
    found = changes(place, stage, protocol, names)
    return counted(sum(bool(one.significant) and one.points > 0 for one in found))


def losers(place: Path, stage: str, protocol: str, *names: str) -> str:
    """The mergers that a stage makes significantly worse, with the boards."""
    found: dict[str, list[str]] = {}
    for name, merger, one in changes_by_merger(place, stage, protocol, names):
        if one.significant and one.points < 0:
            found.setdefault(merger, []).append(name)
    said = (f"`{merger.split(':')[0]}` on {_listed(boards)}" for merger, boards in found.items())
    return ", ".join(said) or "none"


def _listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def favours(place: Path, protocol: str, *names: str) -> str:
    """For how many merges `procrustes` changes the score on the task of its reference by
    significantly more than the mean of the others, by Holm over all."""
    each = [pair for name in names for pair in favoured(place, name, protocol).values()]
    more = [one for one in judged([minus(*pair) for pair in each]) if one.points > 0]
    return f"{sum(one.significant is True for one in more)} of {len(each)}"


def tilted(place: Path, protocol: str, *names: str) -> str:
    """For how many of these merges that task gains while the others lose in the mean."""
    each = [pair for name in names for pair in favoured(place, name, protocol).values()]
    return f"{sum(on_it.point > 0 > others.point for on_it, others in each)} of {len(each)}"


def tau(place: Path, name: str, first: str = "current", second: str = "ft-classifier") -> str:
    """Kendall's tau of the merges' scores under two protocols."""
    each = [
        [mean_of_row(place, name, row, at) for at in (first, second)]
        for row in merges_of(place, name)
    ]
    return f"{kendalltau(*zip(*each, strict=True)).statistic:.2f}"


def settled(place: Path, name: str, protocol: str, first: str = "") -> str:
    """How many pairs of merges differ significantly under a protocol, of how many; or in how many
    of these `first` is the better one."""
    rows = merges_of(place, name)
    found = [*better(place, name, protocol, rows).values()]
    if first:
        return counted(found.count(first))
    return f"{counted(len(found))} of {math.comb(len(rows), 2)}"


def credit_under(place: Path, name: str, row: str, protocol: str) -> str:
    """The credit of a merge with the head of `protocol` in place of the board's tuned head."""
    (experts,) = lines_under(place, name, "current", experts_of(place, name))
    known = by_task(*lines_under(place, name, protocol, row, "base"), experts)
    assert known is not None
    tuned, base, own = known
    found = stats_credit(tuned, base, own)
    return "none" if found is None else in_percent(found)


def agreement(place: Path, of: str, *names: str) -> str:
    """Kendall's W of the orders of the plain mergers over boards, with Friedman's p. They are
    ordered by `credit`, or by the mean over tasks under the protocol `of`."""
    return _concordance({name: plain(place, name, of) for name in names})


def alike(place: Path, of: str, name: str, other: str) -> str:
    """Kendall's tau of two boards' orders of the plain mergers, as in `agreement`."""
    each = pandas.DataFrame({one: plain(place, one, of) for one in (name, other)}).dropna()
    if len(each) < FEWEST_MERGES:
        return "none, of too few merges"
    return f"{kendalltau(*each.to_numpy().T).statistic:.2f}"


def agreeing(place: Path) -> str:
    """Kendall's W, as in `agreement`, over bases: all merges of pairs of experts, by credit."""
    return _concordance({base: credits_of(board) for base, board in pairs_of_bases().items()})


def _concordance(values: Mapping[str, Mapping[str, float]]) -> str:
    each = pandas.DataFrame(values).dropna().to_numpy()
    if len(each) < FEWEST_MERGES:
        return "none, of too few merges"
    chance = p_of(friedman(each)).replace("<", "below")  # ANCHOR allows no <
    return f"W = {concordance(each):.2f}, p {chance}"


def behind(place: Path, row: str, other: str, protocol: str, *names: str) -> str:
    """In how many sets of experts one merge scores less than another in the mean over tasks, on the
    boards that have both."""
    lower = []
    for name in names:
        if not {row, other} <= {one.method for one in known(place, name).lines}:
            continue
        first, second = (
            pandas.Series({(o.set, o.task): fmean(o.values) for o in each}).groupby(level=0).mean()
            for each in lines_under(place, name, protocol, row, other)
        )
        lower += [*(first < second)]
    return f"{sum(lower)} of {len(lower)}"


def needed(place: Path, name: str, protocol: str, difference: str) -> str:
    """About how many sets of experts make a difference of so many points between two merges
    significant with a power of 80 %, for the median pair."""
    found = spreads_of(records_of(place, name), float(difference))
    each = (one.needed for one in found if one.protocol.split(",")[0] == protocol)
    return counted(next(each, 0))


def predicts(place: Path, protocol: str, *names: str) -> str:
    """Spearman's correlation, over the tasks of boards, of the expert's lead over the base under a
    tuned head with the mean loss of the plain mergers under a protocol."""
    found = spearmanr(*zip(*losses(place, protocol, names), strict=True))
    return f"{found.statistic:.2f}"


def predicts_each(place: Path, protocol: str, *names: str) -> str:
    """On how many boards the correlation of `predicts` is above 0, and its least and most."""
    pairs = (zip(*losses(place, protocol, [name]), strict=True) for name in names)
    each = [float(spearmanr(*of).statistic) for of in pairs]
    above = sum(one > 0 for one in each)
    return f"{above} of {len(each)} boards ({min(each):+.2f} to {max(each):+.2f})"


def foretells(place: Path, name: str, column: str, protocol: str) -> str:
    """Spearman's correlation, over the experts of a board, of a column of its geometry.csv with
    the mean loss of the plain mergers on their task under a protocol."""
    board = known(place, name)
    at = board.scores.headlines[protocol]
    of = pandas.read_csv(place / name / "geometry.csv").set_index("digest")[column]
    scores: dict[tuple[str, int], list[float]] = {}
    for one in board.lines:
        if one.role == "merged" and not one.premerge and one.setting == at:
            scores.setdefault((one.task, one.set), []).append(fmean(one.values))
    experts = [o for o in board.lines if (o.role, o.protocol) == ("expert", "current")]
    losses = [fmean(one.values) - fmean(scores[one.task, one.set]) for one in experts]
    found = spearmanr([of[one.digest] for one in experts], losses)
    return f"{found.statistic:+.2f}"


def gap(place: Path, name: str, row: str, other: str, protocol: str, task: str = "") -> str:
    """How far a merge is above another under a protocol, with its interval, in points, in the mean
    or on one task."""
    return _apart(between_rows(place, name, row, other, protocol, task))


def trained_otherwise(place: Path, name: str, other: str, row: str, protocol: str) -> str:
    """How far a row is above the same row of another board with differently trained experts, in
    points: Welch's interval over the sets of experts, on these test rows."""
    known = (over_sets(place, one, row, protocol) for one in (name, other))
    found = ttest_ind(*known, equal_var=False)
    ends = found.confidence_interval()
    middle = (ends.low + ends.high) / 2
    return f"{points(middle, '+')} (95 % CI {points(ends.low)} to {points(ends.high)})"


def pvalue(place: Path, name: str, other: str, row: str, *rows: str) -> str:
    """The p of `trained_otherwise` under Current Eval, by Holm over these rows and both heads."""
    boards, asked = (name, other), product((row, *rows), ("current", "ft-classifier"))
    known = [[over_sets(place, board, *one) for board in boards] for one in asked]
    return f"{holm([float(ttest_ind(*each, equal_var=False).pvalue) for each in known])[0]:.2g}"


def part(place: Path, name: str, row: str) -> str:
    """The share of a merge's loss that its head explains, with its interval."""
    board = known(place, name)
    shares = (one.share for one in board.shares if one.row == board.joint_names.get(row, row))
    return next(shares, "") or "none given, as the loss is not significant"


def by_head(place: Path, name: str, *rows: str) -> str:
    """How many of these merges, or of all, score significantly more under a tuned head than under
    Current Eval, by Holm over all of the board, in the mean over tasks."""
    board, of = known(place, name), rows or merges_of(place, name)
    places = [(board.joint_names.get(row, row), board.scores.columns[-1]) for row in of]
    gains = filter(None, map(board.gaps.get, places))
    return counted(sum(bool(one.significant) and one.points > 0 for one in gains))


def lowest(place: Path, name: str, protocol: str, task: str, *rows: str) -> str:
    """Which of these merges scores least on a task."""
    board = known(place, name)
    at, column = board.scores.headlines[protocol], column_of(board, task)
    scores = {
        row: board.scores.cells[board.joint_names.get(row, row), at, column].mean for row in rows
    }
    return f"`{min(scores, key=scores.__getitem__)}`"


def mean(place: Path, name: str, row: str, protocol: str) -> str:
    """The score of a row of a board, in the mean over tasks."""
    return points(mean_of_row(place, name, row, protocol))


def outside(place: Path) -> str:
    """How many experts are ahead of all of average, Fisher and RegMean out of their domains."""
    by_corpus, merges = frames.outside(place)
    best = merges[["average", "fisher", "regmean"]].max()
    return f"{counted(int((by_corpus > best).sum()))} of {counted(len(by_corpus))}"


def weak(place: Path, name: str) -> str:
    """The tasks whose experts score less than the best constant prediction, with both scores."""
    board = known(place, name)
    at = board.scores.headlines["current"]
    experts = {t: board.scores.cells[experts_of(place, name), at, t].mean for t in board.tasks}
    found = [
        f"{task_of(task)} ({points(experts[task])} against {points(line.majority)})"
        for task, line in board.tasks.items()
        if line.majority is not None and experts[task] < line.majority
    ]
    return ", ".join(found) or "none"


def sink(place: Path, *names: str) -> str:
    """How many merges of boards score less under a tuned head than under Current Eval."""
    merges = [one for name in names for one in credited(place, name).merges]
    return f"{sum(one.tuned < one.current for one in merges)} of {len(merges)}"


def raised(place: Path, *names: str) -> str:
    """How many merges of boards score significantly more under a tuned head than under Current
    Eval, by Holm over the merges of a board."""
    return counted(sum(one.hidden for name in names for one in credited(place, name).merges))


def sunken(place: Path, name: str) -> str:
    """How many merges of a board score less under a tuned head than the best constant does."""
    merges, constant = credited(place, name).merges, credited(place, name).constant or 0
    return f"{sum(one.tuned < constant for one in merges)} of {len(merges)}"


def constant(place: Path, name: str) -> str:
    """The score of the best constant prediction, in the mean over tasks."""
    lines = known(place, name).tasks.values()
    return points(fmean(one.majority for one in lines if one.majority is not None))


def credit(place: Path, name: str, row: str) -> str:
    """The credit of a merge, with its interval."""
    of = known(place, name).joint_names.get(row, row)
    every = (one.credit for one in credited(place, name).merges if one.name == of)
    return next((in_percent(one) for one in every if one), "none")


CLAIMS: dict[str, Callable[..., str]] = {
    one.__name__: one
    for one in (
        *(boards, first, pairs, reversed, blamed, between, lost, won, losers, tau, gap, part, mean),
        *(gained, changed, favours, tilted, outside, constant, credit),
        *(agreement, agreeing, behind, needed, predicts, predicts_each, foretells, weak),
        *(alike, pvalue, sink, sunken, settled, credit_under, by_head, lowest, largest),
        *(leads, trails, base_gains, base_loses, reversed_alone, raised),
        *five_topics.SAID,
    )
}
