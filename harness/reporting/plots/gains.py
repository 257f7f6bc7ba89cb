"""What a method before merging adds to the same merger without it (Procrustes, Figures 2 and 3)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from harness.data.shots import counted
from harness.errors import MissingScores
from harness.evaluation.records import Record
from harness.reporting.boards.best import Spot as BoardSpot
from harness.reporting.boards.best import apart
from harness.reporting.boards.gains import OPEN
from harness.reporting.difference import Difference
from harness.reporting.figures import wrapped
from harness.reporting.grid import PROTOCOL_ORDER, Cell, Reading
from harness.reporting.plots import whiskers
from harness.reporting.plots.marks import (
    BLACK,
    GREY,
    Layout,
    Mark,
    drawn,
    height_of,
    legend,
    marks,
    named,
    of_rows,
    width_of,
)
from harness.reporting.plots.scores import Scores, View, headline, scores_of, shown
from harness.stats.intervals import Ends
from harness.text import plain, points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAKE = (
    "harness merge EXPERTS --merger M --out MERGED, once with --premerge P and once without, "
    "and harness evaluate of both"
)
PALE = 0.35
"""How much is seen of a bar that is not significant."""
BAR, CLOSER = 0.14, 0.05
"""Inches: how thick a bar is, and how much closer bars of a merger stand than other rows."""


@dataclass(frozen=True)
class Gain:
    """Points that a method before merging adds, with their deviation over draws, if there are any.

    Draws are those of the same rows with it and without, so differences are taken draw by draw.
    `within` is the paired interval over test units and draws, None where records keep no resamples;
    `open` that without them the intervals of both scores overlap.
    """

    value: float
    deviation: float | None = None
    within: Ends | None = None
    open: bool = False

    @property
    def difference(self) -> Difference:
        """The gain without its deviation over draws."""
        return Difference(self.value, self.within)

    @property
    def span(self) -> Ends:
        """From where to where anything is drawn of it, beside its bar."""
        spread = self.deviation or 0
        ends = (self.value - spread, self.value + spread, *(self.within or ()))
        return min(ends), max(ends)


@dataclass(frozen=True)
class Panel:
    """Gains on a task, by merger and then by what went before it; None where not read."""

    title: str
    unit: str
    gains: tuple[tuple[Gain | None, ...], ...]


Spot: TypeAlias = tuple[int, int]
"""A merger and what went before it, by their places."""


@dataclass(frozen=True)
class Gains:
    """Panels of gains over the mergers, by what went before them, under one reading."""

    mergers: tuple[str, ...]
    before: tuple[str, ...]
    reading: Reading
    panels: tuple[Panel, ...]
    spread: str

    @property
    def known(self) -> list[Gain]:
        """All gains that were read."""
        every = (gain for panel in self.panels for gains in panel.gains for gain in gains)
        return [gain for gain in every if gain is not None]

    @property
    def bars(self) -> list[Spot]:
        """What was read on any task, but for what is exactly zero on all, if anything is not."""
        return [spot for spot in self._read if any(map(_tells, self._of(spot)))] or self._read

    @property
    def silent(self) -> list[Spot]:
        """What was read but has no bar."""
        return [spot for spot in self._read if spot not in self.bars]

    @property
    def _read(self) -> list[Spot]:
        spots = product(range(len(self.mergers)), range(len(self.before)))
        return [spot for spot in spots if any(self._of(spot))]

    def _of(self, spot: Spot) -> list[Gain | None]:
        row, at = spot
        return [panel.gains[row][at] for panel in self.panels]

    @property
    def differences(self) -> list[Difference]:
        """Of all gains that were read."""
        return [gain.difference for gain in self.known]


def _tells(gain: Gain | None) -> bool:
    return gain is not None and gain.span != (0, 0)


def pairs(methods: Iterable[str]) -> dict[tuple[str, str], str]:
    """Methods that are others with something before: by the other and by what goes before it.

    Of several stages the first is what is added, if the others are there alone: `p+dare[ties]` is
    `p` before `dare[ties]`, and without that, `p+dare` before `ties`.
    """
    known = dict.fromkeys(methods)
    made = {}
    for method in known:
        if (
            match := re.fullmatch(r"(?P<before>[^\[]+)\[(?P<merger>.+)\](?P<after>.*)", method)
        ) is None:
            continue
        stages = match["before"].split("+")
        for count in range(1, len(stages) + 1):
            rest, bare = "+".join(stages[count:]), match["merger"] + match["after"]
            other = f"{rest}[{match['merger']}]{match['after']}" if rest else bare
            if other in known:
                made[other, "+".join(stages[:count])] = method
                break
    return made


def picture(records: Sequence[Record], view: View) -> Figure:
    """Gains of all that goes before merging, by merger and task."""
    return draw(gains(records, view))


def gains(records: Sequence[Record], view: View) -> Gains:
    """Differences between pairs of methods of methods with and without something before merging.

    Under Current Eval, unless the view names another protocol; with an interval where records keep
    resamples. Raises MissingScores without pairs.
    """
    asked = view.protocols or (PROTOCOL_ORDER[0],)
    scores = scores_of(shown(records, view.model_copy(update={"protocols": asked})))
    known = pairs(scores.merges)
    if not known:
        raise MissingScores(
            "gains shows merges with something before them beside the same without, found no such "
            f"pair among {', '.join(scores.merges) or 'no merges'}; make them with {MAKE}"
        )
    reading = one_reading("gains", scores, view)
    mergers = tuple(dict.fromkeys(merger for merger, _ in known))
    before = tuple(dict.fromkeys(stage for _, stage in known))
    panels = tuple(
        Panel(
            scores.title(column),
            f"gain in {scores.unit(column)}",
            tuple(
                tuple(
                    _gain(scores, reading, column, known.get((merger, stage)), merger)
                    for stage in before
                )
                for merger in mergers
            ),
        )
        for column in scores.columns_of([reading])
    )
    return Gains(mergers, before, reading, panels, scores.spread)


def one_reading(what: str, scores: Scores, view: View) -> Reading:
    """The only reading of a picture of one protocol.

    Raises MissingScores for several, and for a number of shots of one that draws none.
    """
    known = headline(scores.readings, view.shots)
    if len(known) != 1:
        raise MissingScores(
            f"{what} shows one protocol, found {'; '.join(map(str, known))}; name one with its "
            "options"
        )
    if view.shots is not None and not known[0].shots:
        raise MissingScores(
            f"{what} has {counted(view.shots)}, and {known[0]} adapts to no drawn rows; leave out "
            "--shots, or name another with --protocols"
        )
    return known[0]


def _gain(
    scores: Scores, reading: Reading, column: str, method: str | None, merger: str
) -> Gain | None:
    with_it = scores.cell(method, reading, column) if method else None
    without = scores.cell(merger, reading, column)
    if method is None or with_it is None or without is None:
        return None
    told = scores.difference((method, reading), (merger, reading), column)
    if len(with_it.values) == len(without.values):
        both = np.subtract(with_it.values, without.values)
        difference = Cell(tuple(both.tolist()))
    else:
        difference = Cell((with_it.mean - without.mean,))
    stored = apart(BoardSpot(with_it, ()), BoardSpot(without, ()))
    within = told.within if told else None
    is_open = within is None and stored.significant is False
    return Gain(difference.mean, difference.deviation, within, is_open)


def draw(shown: Gains) -> Figure:
    """Bars from zero below the name of each merger; whiskers where rows say how far."""
    looks = marks(dict.fromkeys(shown.before[at] for _, at in shown.bars))
    rows = [*_rows(shown)]
    names = [shown.mergers[row] if at is None else shown.before[at] for row, at in rows]
    heights = [
        height_of([name]) - (0 if at is None else CLOSER)
        for name, (_, at) in zip(names, rows, strict=True)
    ]
    layout = Layout(
        len(shown.panels),
        (2.3, 0.75 + sum(heights) + whiskers.room(shown.differences)),
        left=width_of(names),
        most=4,
        share_x=False,  # a high picture: every panel has its own numbers
    )
    title = f"Gain over the same merger without, under {shown.reading}"
    with drawn(title, layout) as (figure, panels):
        places = of_rows(panels, names, heights)
        for axes, panel in zip(panels, shown.panels, strict=True):
            axes.axvline(0, color=BLACK, linewidth=1)
            axes.set_xlim(_limits(panel))
            axes.set_xlabel(panel.unit)
            for (row, at), y in zip(rows, places, strict=True):
                if at is not None:
                    _bar(axes, shown, panel.gains[row][at], y, looks[shown.before[at]])
            names_here = axes.get_yticklabels()  # none but in the first column
            for (_, at), name in zip(rows, names_here, strict=False):
                name.set_fontweight("bold" if at is None else "normal")
        named(panels, [panel.title for panel in shown.panels])
        if shown.silent:
            figure.supxlabel(wrapped(_said(shown), layout.size[0]), fontsize=8)
        legend(figure, _handles(shown))
    return figure


def _rows(shown: Gains) -> Iterator[tuple[int, int | None]]:
    """Mergers, each above what went before it, by their places."""
    for row, bars in groupby(shown.bars, key=itemgetter(0)):
        yield row, None
        yield from bars


def _said(shown: Gains) -> str:
    """What is exactly zero everywhere, by merger."""
    parts = [
        f"{', '.join(shown.before[at] for _, at in bars)} before {shown.mergers[row]}"
        for row, bars in groupby(shown.silent, key=itemgetter(0))
    ]
    return plain(f"Not drawn, as they change no score at all: {'; '.join(parts)}")


def _bar(axes: Axes, shown: Gains, gain: Gain | None, y: float, look: Mark) -> None:
    """A gain, if it was read on this task."""
    if gain is None:
        return
    rows_say = whiskers.known(shown.differences)
    spread = gain.deviation or None
    bars = axes.barh(y, gain.value, height=BAR, xerr=spread, **_look(look, ticks=rows_say))
    bars.patches[0].set_alpha(PALE if gain.open else 1)
    if rows_say:
        whiskers.whisker(axes, y, gain.difference)
    side = 1 if gain.value >= 0 else -1
    axes.annotate(
        points(gain.value, "+") + (OPEN if gain.open else ""),
        (gain.span[gain.value >= 0], y),
        (4 * side, 0),
        textcoords="offset points",
        ha="left" if side > 0 else "right",
        va="center",
        fontsize=6.5,
    )


def _limits(panel: Panel) -> tuple[float, float]:
    """The scale of a panel, with room for the numbers at the ends of the bars."""
    ends = [gain.span for gains in panel.gains for gain in gains if gain is not None]
    low, high = min(0, *(low for low, _ in ends)), max(0, *(high for _, high in ends))
    room = 0.3 * (high - low) or 1
    return low - room, high + room


_TICKS = {"elinewidth": 0, "capsize": 4, "ecolor": BLACK, "zorder": 7}
"""The ends of a deviation alone, across the whisker."""


def _look(look: Mark, *, ticks: bool = False) -> dict[str, Any]:
    """How a bar looks; its deviation is but two `ticks` where a whisker is drawn as well."""
    return {
        "facecolor": look.colour,
        "edgecolor": "white" if look.hatch else look.colour,
        "hatch": look.hatch,
        "linewidth": 0,
        "error_kw": _TICKS if ticks else {"elinewidth": 1, "capsize": 2, "ecolor": BLACK},
    }


def _handles(shown: Gains) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    if any(gain.deviation is not None for gain in shown.known):
        width = 0 if whiskers.known(shown.differences) else 1
        handles.append(Line2D([], [], color=BLACK, marker="|", linewidth=width, label=shown.spread))
    if any(gain.open for gain in shown.known):
        label = f"{OPEN} and pale: not significant, as the intervals of both overlap"
        handles.append(Patch(facecolor=GREY, alpha=PALE, label=label))
    return [*handles, *whiskers.handles(shown.differences)]
