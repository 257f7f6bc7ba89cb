"""Pure: records of merges along the line between two models -> the barrier, a table, a picture.

The barrier is the most that the loss rises above the straight line between its values at the ends
(Frankle et al. 2020, arXiv:1912.05671; Entezari et al. 2022, arXiv:2110.06296). The barrier of a
score is the most that it falls below that line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from tabulate import tabulate

from harness.errors import MissingScores
from harness.evaluation.records import Record
from harness.evaluation.resamples import estimate_of, loss_of
from harness.reporting.difference import CI
from harness.reporting.figures import Axes, Figure
from harness.reporting.plots.marks import (
    PALE,
    Mark,
    add_legend_entry,
    along_x,
    figure_of,
    legend_label,
    marks,
)
from harness.reporting.stages import stages_of
from harness.stats.estimate import Estimate, elementwise, mean_of, rises
from harness.stats.intervals import interval
from harness.text import csv_cell, markdown, number

AS_THEY_ARE = "as they are"
"""The name of the line between models that are not aligned."""


@dataclass(frozen=True)
class Curve:
    """A loss, or a score, at places from 0, the first model, to 1, the second.

    `up` is 1 for a loss, whose barrier is a rise, and -1 for a score, whose barrier is a fall.
    Numbers that are read off the curve are times `scale`.
    """

    places: tuple[float, ...]
    values: tuple[Estimate, ...]
    up: int = 1
    scale: float = 1.0

    @cached_property
    def above(self) -> list[Estimate]:
        """At each place, how much worse than the straight line, as a positive number."""
        signed = (elementwise(lambda value, _: self.up * value, one, one) for one in self.values)
        return rises(self.places, [*signed])

    @property
    def height(self) -> tuple[float, float, float, float]:
        """The barrier, the ends of its 95 % interval over test units, and its place.

        The barrier is a maximum over places: its low end is that of the place where it is highest,
        or 0; its high end is the highest of all places.
        """
        heights = [self.at(place)[1:] for place in range(len(self.places))]
        (height, low, _), x = max(zip(heights, self.places, strict=True), key=lambda one: one[0][0])
        return height, max(low, 0.0), max(high for *_, high in heights), x

    def at(self, place: int) -> tuple[float, ...]:
        """The value at a place, by number, how much worse it is than the straight line, and the
        ends of the 95 % interval of that difference."""
        ends = interval(self.above[place]) if 0 < place < len(self.places) - 1 else (0.0, 0.0)
        numbers = self.values[place].point, self.above[place].point, *ends
        return tuple(self.scale * value for value in numbers)


@dataclass(frozen=True)
class BarrierLine:
    """Loss and score along the line between two models, under one alignment, on one task or in the
    mean over tasks."""

    alignment: str
    task: str
    loss: Curve
    score: Curve


def lines_between(records: Iterable[Record]) -> list[BarrierLine]:
    """The lines on which merges of two models by `average` with weights 1 - x and x lie.

    One for each alignment and task, and for the mean of several tasks. Raises MissingScores where
    a record keeps no loss, or a line has fewer than three places or lacks an end.
    """
    by_alignment: dict[str, dict[str, dict[float, Record]]] = {}
    for record in records:
        recipe = record.recipe if (record.role, record.protocol) == ("merged", "current") else None
        if recipe is None or recipe.merger.name != "average":
            continue
        weights = recipe.merger.options.get("weights")
        if weights is not None and len(weights) == 2:
            aligned = "+".join(stages_of(recipe, merge_name=record.method).premerge) or AS_THEY_ARE
            by_alignment.setdefault(aligned, {}).setdefault(record.task, {})[weights[1]] = record
    if not by_alignment:
        raise MissingScores(
            "no record is of a merge of two models by average:weights=W1:W2 under current; make "
            "them with harness barrier"
        )
    lines = []
    for aligned, tasks in by_alignment.items():
        lines += [_line(aligned, {name: by_place}) for name, by_place in tasks.items()]
        lines += [_line(aligned, tasks)] if len(tasks) > 1 else []
    return lines


def _line(aligned: str, tasks: Mapping[str, Mapping[float, Record]]) -> BarrierLine:
    """The line on a task, or the mean over tasks, of records by task and place."""
    places = sorted(set.intersection(*({*by_place} for by_place in tasks.values())))
    if len(places) < 3 or (places[0], places[-1]) != (0.0, 1.0):
        raise MissingScores(
            f"the line of {aligned} has the places {', '.join(map(str, places)) or 'none'}; "
            "expected 0, 1 and one or more between"
        )
    losses, scores = [], []
    for place in places:
        estimates = [
            (loss_of(by_place[place]), estimate_of(by_place[place], None))
            for by_place in tasks.values()
        ]
        if any(loss is None for loss, _ in estimates):
            raise MissingScores(
                f"a record of {aligned} at {place:g} keeps no loss, as those of earlier versions; "
                "expected new ones: evaluate into another --output-path"
            )
        losses.append(mean_of([loss for loss, _ in estimates if loss is not None]))
        scores.append(mean_of([score for _, score in estimates]))
    name = next(iter(tasks)) if len(tasks) == 1 else f"mean of {len(tasks)} tasks"
    along = tuple(places)
    return BarrierLine(
        aligned, name, Curve(along, tuple(losses)), Curve(along, tuple(scores), -1, 100.0)
    )


# Tables ------------------------------------------------------------------------------------

OF_EACH = ("{} at the ends", "barrier of the {}", "at")
HEADERS = ("task", "alignment", *(n.format(of) for of in ("loss", "score") for n in OF_EACH))


def table(lines: Sequence[BarrierLine], form: str = "simple") -> str:
    """The heights of all lines, each with its 95 % interval; `form` is one of tabulate's."""
    rows = []
    for line in lines:
        cells = [line.task, line.alignment]
        for curve, digits in ((line.loss, ".4f"), (line.score, ".2f")):
            height, low, high, x = curve.height
            ends = ", ".join(number(end, digits) for end in (curve.at(0)[0], curve.at(-1)[0]))
            barrier = f"{number(height, digits)} [{number(low, digits)}, {number(high, digits)}]"
            cells += [ends, barrier, f"{x:g}"]
        rows.append([markdown(cell) if form == "pipe" else cell for cell in cells])
    return str(tabulate(rows, HEADERS, tablefmt=form, disable_numparse=True))


MARKS = {"csv": rb"\Atask,alignment,x,loss,loss_barrier,", "md": rb"\A\| task +\| alignment +\|"}
"""Patterns that every file of a barrier matches, by suffix."""


def as_csv(lines: Sequence[BarrierLine]) -> str:
    """A CSV row for every place of every line; `_barrier` is how much worse than the straight line.

    `_low` and `_high` are the ends of the 95 % interval of `_barrier`.
    """
    import pandas

    rows = [
        (
            csv_cell(line.task),
            csv_cell(line.alignment),
            x,
            *line.loss.at(place),
            *line.score.at(place),
        )
        for line in lines
        for place, x in enumerate(line.loss.places)
    ]
    columns = [
        f"{name}{end}" for name in ("loss", "score") for end in ("", "_barrier", "_low", "_high")
    ]
    frame = pandas.DataFrame(rows, columns=["task", "alignment", "x", *columns])
    return str(frame.to_csv(index=False, float_format="%.6f", lineterminator="\n"))


# Picture -----------------------------------------------------------------------------------


def draw(lines: Sequence[BarrierLine], first: str, second: str) -> Figure:
    """Loss and score along the line: two panels for every task, a curve for every alignment.

    The dotted line goes straight from end to end. The band around a curve is the 95 % interval of
    its height above the dotted line.
    """
    tasks = [*dict.fromkeys(line.task for line in lines)]
    looks = marks(dict.fromkeys(line.alignment for line in lines))
    titles = [f"{task}: {what}" for task in tasks for what in ("loss", "score × 100")]
    title = f"Between {first} (0) and {second} (1)"
    with figure_of(title, titles, (3.2, 2.5), left=0.4, most=2, sharey=False) as (
        figure,
        panels,
    ):
        for line in lines:
            place = 2 * tasks.index(line.task)
            for axes, curve in zip(panels[place:], (line.loss, line.score), strict=False):
                _draw(axes, curve, line.alignment, looks[line.alignment])
        along_x(panels, ["weight of the second model"] * len(panels))
        add_legend_entry(panels[0], "straight from end to end", linestyle=":", linewidth=1)
        add_legend_entry(panels[0], f"{CI} of the difference from it", linewidth=6, alpha=0.3)
    return figure


def _draw(axes: Axes, curve: Curve, name: str, look: Mark) -> None:
    values, _, *ends = np.transpose([curve.at(x) for x in range(len(curve.places))])
    half = (ends[1] - ends[0]) / 2
    axes.grid(axis="y", color=PALE, linewidth=0.5)
    low, high = values - half, values + half
    axes.fill_between(curve.places, low, high, color=look.colour, alpha=0.2, linewidth=0)
    axes.plot([0, 1], values[[0, -1]], color=look.colour, linestyle=":", linewidth=1)
    style = {**look.dots, "linestyle": look.line, "linewidth": 1.4}
    axes.plot(curve.places, values, label=legend_label(name), **style)
