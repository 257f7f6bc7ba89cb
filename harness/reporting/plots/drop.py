"""Relative drop of merges below their experts, as box plots (RegMean, Figure 3)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Literal

import numpy as np

from harness.errors import MissingScores
from harness.evaluation.records import Record
from harness.reporting.grid import PROTOCOL_ORDER, Reading, cell_of, readings
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

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAKE = "harness evaluate --model MODEL --experts E1,E2"
Unit = Literal["merge", "task"]


@dataclass(frozen=True)
class Drops:
    """Drops in percent by method, each over `unit`s; `undefined` are those of no positive score."""

    methods: tuple[str, ...]
    drops: tuple[tuple[float, ...], ...]
    unit: Unit
    reading: Reading
    undefined: int


def relative_drop(expert: float, merge: float) -> float | None:
    """How much of an expert's score a merge of it loses; None where the score is not above 0.

    By hand: 0.8 of an expert and 0.6 of the merge are a drop of a quarter.
    """
    return (expert - merge) / expert if expert > 0 else None


def picture(records: Sequence[Record], view: View) -> Figure:
    """The relative drop of every method."""
    return draw(drops(records, view))


def drops(records: Sequence[Record], view: View) -> Drops:
    """The relative drop of each merge, in the mean over its experts (methods.md 4.5), by method.

    Where every method made one merge alone, that of each of its tasks. Under Current Eval, unless
    the view names another protocol. Raises MissingScores where an expert was not read.
    """
    asked = view.protocols or (PROTOCOL_ORDER[0],)
    records = shown(records, view.model_copy(update={"protocols": asked}))
    reading = one_reading("drop", scores_of(records), view)
    read = [record for record in records if reading in readings([record])]
    by_merge, undefined = _by_merge(read, reading)
    merges = Counter(method for method, _ in by_merge)
    unit: Unit = "merge" if max(merges.values(), default=0) > 1 else "task"
    values = {method: _values(by_merge, method, unit) for method in merges}
    methods = sorted((name for name in values if values[name]), key=lambda m: np.median(values[m]))
    if not methods:
        raise MissingScores(
            f"drop shows merges beside their experts, found none under {reading}; make them with "
            f"{MAKE}"
        )
    return Drops(tuple(methods), tuple(values[m] for m in methods), unit, reading, undefined)


ByMerge = Mapping[tuple[str, str], Mapping[str, Sequence[float]]]


def _by_merge(records: Sequence[Record], reading: Reading) -> tuple[ByMerge, int]:
    """The drop below every expert by method and model, and by task; and how many are undefined."""
    experts = {
        (record.task, record.digest): cell_of(record, reading).mean
        for record in records
        if record.role == "expert"
    }
    drops: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(dict)
    undefined = 0
    for record in records:
        if record.role != "merged":
            continue
        own = [experts.get((record.task, source.digest)) for source in record.experts]
        scores = [score for score in own if score is not None]
        if not scores:
            raise MissingScores(
                f"no expert of {record.model} was read on {record.task} under {reading}; make "
                f"records of them with {MAKE}"
            )
        merge = cell_of(record, reading).mean
        known = [relative_drop(score, merge) for score in scores]
        drops[record.method, record.model][record.task] = [d for d in known if d is not None]
        undefined += known.count(None)
    return drops, undefined


def _values(by_merge: ByMerge, method: str, unit: Unit) -> tuple[float, ...]:
    """In percent, one value for each merge of a method, or for each task of its only one."""
    own = [by_task for (name, _), by_task in by_merge.items() if name == method]
    groups = [[*each.values()] if unit == "task" else [[*chain(*each.values())]] for each in own]
    return tuple(100 * float(np.mean(drops)) for drops in chain(*groups) if drops)


def draw(shown: Drops) -> Figure:
    """Boxes from quartile to quartile, whiskers to the last within 1.5 of their width, all values.

    Drawn part by part, as the way to ask for horizontal boxes differs by version of matplotlib.
    """
    count = {len(drops) for drops in shown.drops}
    counted = f"{min(count)}" if len(count) == 1 else f"{min(count)} to {max(count)}"
    noun = shown.unit if count == {1} else f"{shown.unit}s"
    layout = Layout(
        1,
        (4.6, 0.6 + 1.25 * height_of(shown.methods) * len(shown.methods)),
        left=width_of(shown.methods),
    )
    title = f"Relative drop below the experts under {shown.reading}, over {counted} {noun} a method"
    with drawn(title, layout) as (figure, panels):
        axes = panels[0]
        of_rows(panels, shown.methods)
        axes.axvline(0, color=BLACK, linewidth=1)
        for at, drops in enumerate(shown.drops):
            _box(axes, at, drops)
        note = f"; {shown.undefined} undefined" if shown.undefined else ""
        axes.set_xlabel(f"relative drop (% of the expert's score{note})")
        legend(figure, _handles(shown.unit))
    return figure


def _box(axes: Axes, at: int, drops: Sequence[float]) -> None:
    from matplotlib.cbook import boxplot_stats

    (box,) = boxplot_stats(drops)
    axes.hlines(at, box["whislo"], box["whishi"], color=BLACK, linewidth=1, zorder=2)
    axes.barh(
        at,
        box["q3"] - box["q1"],
        left=box["q1"],
        height=0.55,
        facecolor=SKY,
        edgecolor=BLACK,
        linewidth=0.8,
        zorder=2,
    )
    axes.vlines(box["med"], at - 0.275, at + 0.275, color=BLACK, linewidth=2, zorder=3)
    axes.plot(drops, [at] * len(drops), "o", color=BLUE, markerfacecolor="white", markersize=3.5)


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
