"""Pure: records of merges along the line between two models -> the barrier, a table, a picture.

The barrier is the most that the loss rises above the straight line between its values at the ends
(Frankle et al. 2020, arXiv:1912.05671; Entezari et al. 2022, arXiv:2110.06296). That of a score is
how far it falls below.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from tabulate import tabulate

from harness.errors import MissingScores
from harness.evaluation.records import Record
from harness.evaluation.resamples import estimate_of, loss_of
from harness.reporting.difference import CI
from harness.reporting.lines import stages
from harness.reporting.plots.marks import PALE, Mark, along_x, drawn, key, marks, named
from harness.stats.estimate import Estimate, mean_of
from harness.stats.intervals import interval
from harness.stats.line import highest, rises
from harness.text import csv_cell, markdown, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

AS_THEY_ARE = "as they are"
MEAN = "mean"


@dataclass(frozen=True)
class Curve:
    """A loss, or a score, times `scale`, at places from 0, the first model, to 1, the second.

    A barrier rises in a loss and falls in a score, which has `up` -1.
    """

    places: tuple[float, ...]
    values: tuple[Estimate, ...]
    up: int = 1
    scale: float = 1.0

    @cached_property
    def above(self) -> list[Estimate]:
        """How far it goes the wrong way from the straight line."""
        signed = (_times(one, self.up) for one in self.values)
        return rises(self.places, [*signed])

    @property
    def height(self) -> tuple[float, float, float, float]:
        """The barrier, the ends of its 95 % interval over test units, and where along it is."""
        at, most = highest(self.above)
        low, high = interval(most)
        return (
            self.scale * most.point,
            self.scale * max(low, 0.0),
            self.scale * high,
            self.places[at],
        )

    def at(self, place: int) -> tuple[float, float, float, float]:
        """A value, how far it goes the wrong way, and the 95 % interval of that."""
        inside = 0 < place < len(self.places) - 1
        ends = interval(self.above[place]) if inside else (0.0, 0.0)
        known = self.values[place].point, self.above[place].point, *ends
        value, away, low, high = (self.scale * one for one in known)
        return value, away, low, high

    def band(self, place: int) -> tuple[float, float, float]:
        """A value, and the interval of how far it goes the wrong way, around it."""
        value, _, low, high = self.at(place)
        return value, value - (high - low) / 2, value + (high - low) / 2

    @property
    def ends(self) -> tuple[float, float]:
        """The values of both models."""
        return self.scale * self.values[0].point, self.scale * self.values[-1].point


def _times(one: Estimate, by: float) -> Estimate:
    """An estimate so many times."""
    return replace(
        one, values=by * one.values, resamples=by * one.resamples, by_draw=by * one.by_draw
    )


@dataclass(frozen=True)
class Line:
    """What one alignment makes of the line between two models, on a task or in the mean."""

    alignment: str
    task: str
    loss: Curve
    score: Curve


def lines_between(records: Iterable[Record]) -> list[Line]:
    """The lines that merges of two models by `average` with weights 1 - x and x are on.

    With one for the mean of several tasks. Raises MissingScores where a record keeps no loss, or a
    line has not three places and both ends.
    """
    known: dict[str, dict[str, dict[float, Record]]] = {}
    for one in records:
        made = one.recipe
        if one.role != "merged" or one.protocol != "current" or made is None:
            continue
        weights = made.merger.options.get("weights")
        if made.merger.name == "average" and weights is not None and len(weights) == 2:
            aligned = stages(one.method)[0] or AS_THEY_ARE
            known.setdefault(aligned, {}).setdefault(one.task, {})[weights[1]] = one
    lines = [_line(aligned, tasks) for aligned, of in known.items() for tasks in _each(of)]
    if not lines:
        raise MissingScores(
            "no record is of a merge of two models by average:weights=W1:W2 under current; make "
            "them with harness barrier"
        )
    return lines


def _each(of: Mapping[str, Mapping[float, Record]]) -> list[Mapping[str, Mapping[float, Record]]]:
    """Each task by itself and, of several, all of them."""
    return [*({task: one} for task, one in of.items()), *([of] if len(of) > 1 else [])]


def _line(aligned: str, tasks: Mapping[str, Mapping[float, Record]]) -> Line:
    places = sorted(set.intersection(*({*one} for one in tasks.values())))
    if len(places) < 3 or (places[0], places[-1]) != (0.0, 1.0):
        raise MissingScores(
            f"the line of {aligned} has the places {', '.join(map(str, places)) or 'none'}; "
            "expected 0, 1 and one or more between"
        )
    losses, scores = [], []
    for place in places:
        read = [(loss_of(one[place]), estimate_of(one[place], None)) for one in tasks.values()]
        if any(loss is None for loss, _ in read):
            raise MissingScores(
                f"a record of {aligned} at {place:g} keeps no loss, as those of earlier versions; "
                "expected new ones: evaluate into another --output-path"
            )
        losses.append(mean_of([loss for loss, _ in read if loss is not None]))
        scores.append(mean_of([score for _, score in read if score is not None]))
    called = next(iter(tasks)) if len(tasks) == 1 else f"{MEAN} of {len(tasks)} tasks"
    along = tuple(places)
    return Line(
        aligned, called, Curve(along, tuple(losses)), Curve(along, tuple(scores), -1, 100.0)
    )


# Tables ------------------------------------------------------------------------------------

HEADERS = (
    "task", "alignment", "loss at the ends", "barrier of the loss", "at",
    "score at the ends", "barrier of the score", "at",
)  # fmt: skip


def table(lines: Sequence[Line], form: str = "simple") -> str:
    """The heights of all lines, each with its 95 % interval; `form` is one of tabulate's."""
    rows = []
    for one in lines:
        cells = [one.task, one.alignment]
        for curve, digits in ((one.loss, ".4f"), (one.score, ".2f")):
            height, low, high, at = curve.height
            ends = ", ".join(number(end, digits) for end in curve.ends)
            most = f"{number(height, digits)} [{number(low, digits)}, {number(high, digits)}]"
            cells += [ends, most, f"{at:g}"]
        rows.append([markdown(cell) if form == "pipe" else cell for cell in cells])
    return str(tabulate(rows, HEADERS, tablefmt=form, disable_numparse=True))


COLUMNS = (
    "task", "alignment", "x", "loss", "barrier", "low", "high", "score", "score_barrier",
    "score_low", "score_high",
)  # fmt: skip


def as_csv(lines: Sequence[Line]) -> str:
    """A row for every place of every line, with how far it is above the straight line.

    `low` and `high` are the ends of the 95 % interval of that.
    """
    made = io.StringIO()
    rows = csv.writer(made, lineterminator="\n")
    rows.writerow(COLUMNS)
    for line in lines:
        for at, x in enumerate(line.loss.places):
            values = [v for one in (line.loss, line.score) for v in one.at(at)]
            said = csv_cell(line.task), csv_cell(line.alignment)
            rows.writerow([*said, f"{x:g}", *(f"{value:.6f}" for value in values)])
    return made.getvalue()


# Picture -----------------------------------------------------------------------------------


def draw(lines: Sequence[Line], first: str, second: str) -> Figure:
    """Loss and score along the line, a pair of panels for every task, a curve for an alignment.

    Dots go straight from end to end; around a curve is the 95 % interval of its height above them.
    """
    tasks = [*dict.fromkeys(line.task for line in lines)]
    looks = marks(dict.fromkeys(line.alignment for line in lines))
    titles = [f"{task}: {what}" for task in tasks for what in ("loss", "score × 100")]
    title = f"Between {first} (0) and {second} (1)"
    with drawn(title, titles, (3.2, 2.5), left=0.4, most=2, sharey=False) as (figure, panels):
        for line in lines:
            place = 2 * tasks.index(line.task)
            for axes, curve in zip(panels[place:], (line.loss, line.score), strict=False):
                _draw(axes, curve, line.alignment, looks[line.alignment])
        along_x(panels, ["weight of the second model"] * len(panels))
        key(panels[0], "straight from end to end", linestyle=":", linewidth=1)
        key(panels[0], f"{CI} of how far away that is", linewidth=6, alpha=0.3)
    return figure


def _draw(axes: Axes, curve: Curve, name: str, look: Mark) -> None:
    values, low, high = zip(*map(curve.band, range(len(curve.places))), strict=True)
    axes.grid(axis="y", color=PALE, linewidth=0.5)
    axes.fill_between(curve.places, low, high, color=look.colour, alpha=0.2, linewidth=0)
    axes.plot([0, 1], curve.ends, color=look.colour, linestyle=":", linewidth=1)
    how = {**look.dots, "linestyle": look.line, "linewidth": 1.4}
    axes.plot(curve.places, values, label=named(name), **how)
