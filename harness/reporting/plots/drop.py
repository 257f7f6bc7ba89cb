"""Relative drop of merges below their experts (RegMean, Figure 3)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal, TypeAlias

import numpy as np

from harness.reporting.boards.tested import with_holm
from harness.reporting.difference import Difference, enough_draws
from harness.reporting.figures import Axes, Figure
from harness.reporting.grid import grid_of_lines
from harness.reporting.lines import CURRENT, Line, Setting
from harness.reporting.names import marked
from harness.reporting.plots.marks import BLACK, SKY, drawn_rows, height_of, whisker
from harness.reporting.plots.scores import View, lacking, lines_under, one_setting
from harness.stats.estimate import Estimate, elementwise, mean_of
from harness.stats.tests import p_value

MAKE = "make them with harness evaluate --model MODEL --experts E1,E2"
Unit = Literal["merge", "task"]
ExpertAndMerge: TypeAlias = tuple[Line, Line]
"""An expert, and a merge of it on the same task."""
LINE_OF_ONE = 0.07
"""The distance between dots with whiskers in a row, in inches."""
FEWEST_OF_A_BOX = 10
"""The fewest values that quartiles are drawn for: of fewer, the values themselves say more."""


@dataclass(frozen=True)
class Drops:
    """Drops in percent by method, the lowest median first, each value of one `unit`.

    Values have paired intervals over test units and draws, where known, and their significance,
    Holm over all values. `undefined` counts the drops from an expert whose score is not positive.
    """

    methods: dict[str, list[Difference]]
    unit: Unit
    setting: Setting
    undefined: int


def picture(lines: Sequence[Line], view: View) -> Figure:
    """The relative drop of every method."""
    return draw(drops(lines, view))


def drops(lines: Sequence[Line], view: View) -> Drops:
    """The relative drop of each merge, averaged over its experts, by method.

    Where every method made only one merge, the drop of each task. Under Current Eval, unless the
    view names another protocol; with intervals where there are enough draws. Raises MissingScores
    where no expert of a merge was evaluated on a task of the merge.
    """
    scores = grid_of_lines(lines_under(lines, view, CURRENT), by_method=True)
    setting = one_setting("drop", scores, view)
    read = [line for line in lines if line.setting == setting]
    experts = {(line.task, line.digest): line for line in read if line.role == "expert"}
    merges = [line for line in read if line.role == "merged"]
    models = Counter(method for method, _ in {(_method(merge), merge.digest) for merge in merges})
    unit: Unit = "merge" if max(models.values(), default=0) > 1 else "task"
    pairs: dict[tuple[str, ...], list[ExpertAndMerge]] = defaultdict(list)
    for merge in merges:
        own = [experts.get((merge.task, digest)) for _, digest in merge.experts]
        found = [(expert, merge) for expert in own if expert is not None]
        if not found:
            place = f"{merge.task} under {setting}"
            raise lacking("drop", f"experts of {merge.model} on {place}", (), MAKE)
        pairs[_method(merge), merge.digest, merge.task if unit == "task" else ""] += found
    defined = {
        key: [pair for pair in group if _drop(pair) is not None] for key, group in pairs.items()
    }
    means = with_holm({key: _mean(group) for key, group in defined.items() if group})
    if not means and pairs:
        shown = "drops in percent of the scores of experts"
        do = "harness plot protocols draws the scores themselves"
        raise lacking("drop", shown, [f"only experts of 0 or less under {setting}"], do)
    if not means:
        raise lacking("drop", f"merges beside their experts under {setting}", (), MAKE)
    methods: dict[str, list[Difference]] = defaultdict(list)
    for (method, *_), difference in means.items():
        methods[method].append(difference)
    by_median = sorted(methods, key=lambda name: np.median([drop.points for drop in methods[name]]))
    undefined = sum(map(len, pairs.values())) - sum(map(len, defined.values()))
    return Drops({name: methods[name] for name in by_median}, unit, setting, undefined)


def _method(merge: Line) -> str:
    return marked(merge.method, transductive=merge.made_on_test)


def _drop(pair: ExpertAndMerge) -> float | None:
    """The share of an expert's score that a merge of it loses; None if that score is not above 0.

    By hand: an expert of 0.8 and a merge of 0.6 have a drop of a quarter.
    """
    expert, merge = (fmean(line.values) for line in pair)
    return (expert - merge) / expert if expert > 0 else None


def _mean(pairs: Sequence[ExpertAndMerge]) -> Difference:
    """The mean drop of some pairs, in percent; without an interval unless all have estimates.

    Tasks that share rows are resampled together, others independently.
    """
    mean = float(np.mean([_drop(pair) for pair in pairs]))
    estimates = [estimate for pair in pairs if (estimate := _estimate(*pair)) is not None]
    if len(estimates) < len(pairs):
        return Difference(100 * mean)
    paired = mean_of(estimates)
    return Difference(100 * mean, paired, p=p_value(paired))


def _estimate(expert: Line, merge: Line) -> Estimate | None:
    """The drop on resamples and draws; None if draws are too few, or one of them has no drop."""
    upper, lower = expert.estimate, merge.estimate
    scores = (upper.values, upper.resamples, upper.by_draw)
    if not enough_draws([expert, merge]) or any((part <= 0).any() for part in scores):
        return None
    return elementwise(lambda high, low: (high - low) / high, upper, lower)


def draw(shown: Drops) -> Figure:
    """Dots with whiskers for all values, and their median; quartiles where values are many."""
    groups = shown.methods.values()
    counts = sorted({len(group) for group in groups})
    counted = " to ".join(map(str, dict.fromkeys([counts[0], counts[-1]])))
    noun = shown.unit if counts == [1] else f"{shown.unit}s"
    note = f"; {shown.undefined} undefined" if shown.undefined else ""
    with drawn_rows(
        f"Relative drop below the experts under {shown.setting}, over {counted} {noun} a method",
        [*shown.methods],
        [("", f"relative drop (% of the expert's score{note})")],
        4.6,
        [max(height_of(shown.methods), LINE_OF_ONE * counts[-1] + 0.1)] * len(shown.methods),
    ) as (figure, (axes,), places):
        axes.axvline(0, color=BLACK, linewidth=1)
        for y, values in zip(places, groups, strict=True):
            _values(axes, y, values, shown.unit)
    return figure


def _values(axes: Axes, y: float, values: Sequence[Difference], unit: Unit) -> None:
    low, median, high = np.percentile([value.points for value in values], [25, 50, 75])
    half = 0.09
    if len(values) >= FEWEST_OF_A_BOX:
        axes.barh(y, high - low, 2 * half, left=low, color=SKY, zorder=2, label="quartiles")
    axes.vlines(median, y - half, y + half, color=BLACK, linewidth=2, zorder=3, label="median")
    for place, value in enumerate(sorted(values, key=lambda value: value.points)):
        aside = LINE_OF_ONE * (place - (len(values) - 1) / 2)
        whisker(axes, y + aside, value, of=f" of one {unit}")
