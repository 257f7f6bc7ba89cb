"""Relative drop of merges below their experts, as box plots (RegMean, Figure 3)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from harness.errors import MissingScores
from harness.evaluation.records import Record
from harness.evaluation.resamples import estimate_of
from harness.reporting.difference import Difference
from harness.reporting.grid import PROTOCOL_ORDER, Reading, cell_of, readings
from harness.reporting.names import marked
from harness.reporting.plots import whiskers
from harness.reporting.plots.gains import one_reading
from harness.reporting.plots.marks import (
    BLACK,
    BLUE,
    SKY,
    Layout,
    drawn,
    height_of,
    legend,
    of_rows,
    width_of,
)
from harness.reporting.plots.scores import View, scores_of, shown
from harness.stats.estimate import Estimate, mean_of, of
from harness.stats.intervals import Ends, interval
from harness.stats.tests import FEWEST_DRAWS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAKE = "harness evaluate --model MODEL --experts E1,E2"
Unit = Literal["merge", "task"]
BOX = 0.55
"""The height of a box, of the row that it stands in."""
LINE_OF_ONE = 0.07
"""Inches that the dot of one value takes."""


@dataclass(frozen=True)
class Drops:
    """Drops in percent by method, each over `unit`s; `undefined` are those of no positive score.

    `within` are their paired intervals over test units and draws, if any is known, None for what
    has none: of records without resamples, or of an expert that is not above 0 on all of them.
    """

    methods: tuple[str, ...]
    drops: tuple[tuple[float, ...], ...]
    unit: Unit
    reading: Reading
    undefined: int
    within: tuple[tuple[Ends | None, ...], ...] = ()

    @property
    def differences(self) -> list[list[Difference]]:
        """Of every method, the drops with their intervals; none where no interval is known."""
        pairs = zip(self.drops, self.within, strict=True) if self.within else ()
        return [[*map(Difference, *each)] for each in pairs]


def relative_drop(expert: float, merge: float) -> float | None:
    """How much of an expert's score a merge of it loses; None where the score is not above 0.

    By hand: 0.8 of an expert and 0.6 of the merge are a drop of a quarter.
    """
    return (expert - merge) / expert if expert > 0 else None


def picture(records: Sequence[Record], view: View) -> Figure:
    """The relative drop of every method."""
    return draw(drops(records, view))


def drops(records: Sequence[Record], view: View) -> Drops:
    """The relative drop of each merge, in the mean over its experts, by method.

    Where every method made one merge alone, that of each of its tasks. Under Current Eval, unless
    the view names another protocol; with intervals where records keep resamples. Raises
    MissingScores where an expert was not read.
    """
    asked = view.protocols or (PROTOCOL_ORDER[0],)
    records = shown(records, view.model_copy(update={"protocols": asked}))
    reading = one_reading("drop", scores_of(records), view)
    read = [record for record in records if reading in readings([record])]
    by_merge, undefined = _by_merge(read, reading)
    merges = Counter(method for method, _ in by_merge)
    unit: Unit = "merge" if max(merges.values(), default=0) > 1 else "task"
    groups = {method: _groups(by_merge, method, unit) for method in merges}
    values = {name: tuple(map(_mean, each)) for name, each in groups.items() if each}
    methods = sorted(values, key=lambda name: np.median(values[name]))
    if not methods:
        raise MissingScores(
            f"drop shows merges beside their experts, found none under {reading}; make them with "
            f"{MAKE}"
        )
    within = tuple(tuple(map(_within, groups[name])) for name in methods)
    rows_say = any(ends is not None for each in within for ends in each)
    drawn = tuple(values[name] for name in methods)
    return Drops(tuple(methods), drawn, unit, reading, undefined, within if rows_say else ())


@dataclass(frozen=True)
class _Drop:
    """A relative drop, and the same on resampled rows and on each draw, if that is known."""

    value: float
    estimate: Estimate | None


Group: TypeAlias = Sequence[_Drop]
ByMerge: TypeAlias = Mapping[tuple[str, str], Mapping[str, Group]]


def _by_merge(records: Sequence[Record], reading: Reading) -> tuple[ByMerge, int]:
    """The drop below every expert by method and model, and by task; and how many are undefined."""
    experts = {(one.task, one.digest): one for one in records if one.role == "expert"}
    drops: dict[tuple[str, str], dict[str, Group]] = defaultdict(dict)
    undefined = 0
    for record in records:
        if record.role != "merged":
            continue
        known = [experts.get((record.task, source.digest)) for source in record.experts]
        own = [expert for expert in known if expert is not None]
        if not own:
            raise MissingScores(
                f"no expert of {record.model} was read on {record.task} under {reading}; make "
                f"records of them with {MAKE}"
            )
        made = [_drop(expert, record, reading) for expert in own]
        method = marked(record.method, transductive=record.transductive)
        drops[method, record.model][record.task] = [one for one in made if one is not None]
        undefined += made.count(None)
    return drops, undefined


def _drop(expert: Record, merge: Record, reading: Reading) -> _Drop | None:
    """The drop of a merge below an expert; None where it is undefined."""
    cells = [cell_of(record, reading) for record in (expert, merge)]
    value = relative_drop(*(cell.mean for cell in cells))
    if value is None:
        return None
    shots = reading.shots or None
    upper, lower = estimate_of(expert, shots), estimate_of(merge, shots)
    if upper is None or lower is None or min(*upper.resamples, *upper.values) <= 0:
        return _Drop(value, None)
    if shots and min(len(upper.values), len(lower.values)) < FEWEST_DRAWS:
        return _Drop(value, None)
    return _Drop(value, of(lambda high, low: (high - low) / high, upper, lower))


def _groups(by_merge: ByMerge, method: str, unit: Unit) -> list[Group]:
    """The drops that are one value: of each merge of a method, or each task of its only one."""
    own = [by_task for (name, _), by_task in by_merge.items() if name == method]
    groups = [[*each.values()] if unit == "task" else [[*chain(*each.values())]] for each in own]
    return [group for group in chain(*groups) if group]


def _mean(group: Group) -> float:
    """In percent."""
    return 100 * float(np.mean([drop.value for drop in group]))


def _within(group: Group) -> Ends | None:
    """In percent; tasks that share rows are paired, those that do not are drawn apart."""
    known = [drop.estimate for drop in group if drop.estimate is not None]
    if len(known) < len(group):
        return None
    low, high = interval(mean_of(known))
    return 100 * low, 100 * high


def draw(shown: Drops) -> Figure:
    """Boxes from quartile to quartile, whiskers to the last within 1.5 of their width, all values.

    Where rows say how far values may be off, each has its own whisker instead. Drawn part by part,
    as the way to ask for horizontal boxes differs by version of matplotlib.
    """
    count = {len(drops) for drops in shown.drops}
    counted = f"{min(count)}" if len(count) == 1 else f"{min(count)} to {max(count)}"
    noun = shown.unit if count == {1} else f"{shown.unit}s"
    every = [*chain(*shown.differences)]
    layout = Layout(
        1,
        (4.6, 0.6 + _height(shown) * len(shown.methods) + whiskers.room(every)),
        left=width_of(shown.methods),
    )
    title = f"Relative drop below the experts under {shown.reading}, over {counted} {noun} a method"
    with drawn(title, layout) as (figure, panels):
        axes = panels[0]
        of_rows(panels, shown.methods)
        axes.axvline(0, color=BLACK, linewidth=1)
        for at, drops in enumerate(shown.drops):
            _box(axes, at, drops, reach=not every)
            if every:
                _whiskers(axes, at, shown.differences[at])
            else:
                _dots(axes, at, drops)
        note = f"; {shown.undefined} undefined" if shown.undefined else ""
        axes.set_xlabel(f"relative drop (% of the expert's score{note})")
        intervals = whiskers.handles(every, f" of one {shown.unit}")
        dot, *others, reach = _handles(shown.unit)
        legend(figure, [*intervals, *others] if intervals else [dot, *others, reach])
    return figure


def _height(shown: Drops) -> float:
    """Inches that a box takes: with a line for every value that has a whisker."""
    most = max(map(len, shown.within), default=0)
    return max(1.25 * height_of(shown.methods), LINE_OF_ONE * most / BOX)


def _box(axes: Axes, at: int, drops: Sequence[float], *, reach: bool) -> None:
    """Quartiles and median, and how far those values `reach` that are not far off."""
    from matplotlib.cbook import boxplot_stats

    (box,) = boxplot_stats(drops)
    if reach:
        axes.hlines(at, box["whislo"], box["whishi"], color=BLACK, linewidth=1, zorder=2)
    axes.barh(
        at,
        box["q3"] - box["q1"],
        left=box["q1"],
        height=BOX,
        facecolor=SKY,
        edgecolor=BLACK,
        linewidth=0.8,
        zorder=2,
    )
    axes.vlines(box["med"], at - BOX / 2, at + BOX / 2, color=BLACK, linewidth=2, zorder=3)


def _dots(axes: Axes, at: int, drops: Sequence[float]) -> None:
    axes.plot(drops, [at] * len(drops), "o", color=BLUE, markerfacecolor="white", markersize=3.5)


def _whiskers(axes: Axes, at: int, drops: Sequence[Difference]) -> None:
    """A whisker for every value, the smallest on top, spread over the height of the box."""
    ordered = sorted(drops, key=lambda one: one.points)
    for place, drop in enumerate(ordered):
        whiskers.whisker(axes, at + BOX * ((place + 0.5) / len(ordered) - 0.5), drop)


def _handles(unit: Unit) -> list[object]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    return [
        Line2D([], [], linestyle="none", marker="o", color=BLUE, markerfacecolor="white",
               markersize=3.5, label=f"one {unit}"),
        Line2D([], [], linestyle="none", marker="|", color=BLACK, markersize=10, markeredgewidth=2,
               label="median"),
        Patch(facecolor=SKY, edgecolor=BLACK, linewidth=0.8, label="quartiles"),
        Line2D([], [], color=BLACK, linewidth=1, label="to the last within 1.5 boxes"),
    ]  # fmt: skip
