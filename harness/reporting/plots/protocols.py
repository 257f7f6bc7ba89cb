"""Current Eval against the protocols that read the same features otherwise: the gap between them.

What few shots win back of a score was in the encoder all along (FT-Classifier, Tables 2 and 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from harness.errors import MissingScores
from harness.evaluation.records import Record
from harness.reporting.difference import Difference
from harness.reporting.grid import PROTOCOL_ORDER, Reading
from harness.reporting.plots import whiskers
from harness.reporting.plots.marks import (
    BLACK,
    FAR,
    GREY,
    Layout,
    Mark,
    drawn,
    height_of,
    legend,
    marks,
    named,
    of_rows,
    units,
    width_of,
)
from harness.reporting.plots.scores import View, headline, scores_of, shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURRENT = PROTOCOL_ORDER[0]
MAKE = "harness evaluate --model MODEL --protocols current,knn,ft-classifier"
BELOW = 0.32
"""How far below a row the whisker of its gap is drawn, of the row's height."""
GAP = 0.34
"""How thick the open bar of a gap is, of the row's height."""
BACK = 0.35
"""How opaque the bars of intervals are, behind the marks."""
OPEN: Any = {"facecolor": "none", "edgecolor": GREY, "linewidth": 0.8}


@dataclass(frozen=True)
class Dot:
    """A score x100 with its deviation over draws and its interval, if known."""

    value: float
    deviation: float | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Panel:
    """The scores on a task: a line for each row, a dot for each reading, None where not read.

    `gaps` are the last reading minus the first of each row.
    """

    title: str
    unit: str
    dots: tuple[tuple[Dot | None, ...], ...]
    expert: float | None
    constant: float | None
    gaps: tuple[Difference | None, ...]


@dataclass(frozen=True)
class Gaps:
    """Panels for tasks, and for their mean; the first reading is Current Eval.

    Of the rows the first are those of the `merges`, the rest those of bases.
    """

    rows: tuple[str, ...]
    merges: int
    readings: tuple[Reading, ...]
    panels: tuple[Panel, ...]
    spread: str

    @property
    def differences(self) -> list[Difference | None]:
        """The gaps of all rows in all panels."""
        return [gap for panel in self.panels for gap in panel.gaps]


def gaps(records: Sequence[Record], view: View) -> Gaps:
    """Merges by their Current Eval, the best first, then the base. Raises MissingScores.

    Gaps have an interval where records keep resamples.
    """
    scores = scores_of(shown(records, view))
    known = [
        one
        for one in headline(scores.readings, view.shots)
        if view.protocols or one.protocol.partition(":")[0] in PROTOCOL_ORDER
    ]
    read = scores.read
    merges = [row for row in scores.merges if any((row, one) in read for one in known)]
    if not merges or len(known) < 2 or known[0].protocol != CURRENT:
        names = "; ".join(map(str, known)) or "none"
        raise MissingScores(
            f"protocols shows merges under current and another protocol, found {names} of "
            f"{len(merges)} merges; make them with {MAKE}"
        )

    def dot(row: str, reading: Reading, column: str) -> Dot | None:
        cell = scores.cell(row, reading, column)
        if cell is None:
            return None
        return Dot(cell.mean, cell.deviation, cell.interval)

    def height(row: str) -> float:
        cell = scores.cell(row, known[0], scores.columns_of(known)[-1])
        return float("-inf") if cell is None else cell.mean

    rows = (*sorted(merges, key=height, reverse=True), *scores.bases)
    panels = tuple(
        Panel(
            scores.title(column),
            scores.unit(column),
            tuple(tuple(dot(row, one, column) for one in known) for row in rows),
            scores.expert(known[0], column),
            scores.baseline(column),
            tuple(scores.difference((row, known[-1]), (row, known[0]), column) for row in rows),
        )
        for column in scores.columns_of(known)
    )
    return Gaps(rows, len(merges), tuple(known), panels, scores.spread)


def picture(records: Sequence[Record], view: View) -> Figure:
    """The gap between protocols for every merge and task."""
    return draw(gaps(records, view))


def draw(shown: Gaps) -> Figure:
    """Dots on a line for every row; the bar from Current Eval to the last reading is the gap.

    Where rows say how far a gap may be off, a whisker below the row does: it begins to hold none
    where it reaches the score under Current Eval.
    """
    look_of = marks(one.protocol for one in shown.readings)
    looks = [look_of[one.protocol] for one in shown.readings]
    layout = Layout(
        len(shown.panels),
        (2.45, 0.75 + _height(shown) * len(shown.rows) + whiskers.room(shown.differences)),
        left=width_of(shown.rows),
    )
    last = shown.readings[-1]
    title = f"The same encoders under Current Eval and under {last}"
    with drawn(title, layout) as (figure, panels):
        of_rows(panels, shown.rows)
        for axes, panel in zip(panels, shown.panels, strict=True):
            _reference_lines(axes, panel)
            axes.set_xlim(_limits(shown))
            _bars(axes, panel)
            for number, look in enumerate(looks):
                _marks(axes, [dots[number] for dots in panel.dots], look)
            for at, dots in enumerate(panel.dots):
                _beyond(axes, at, dots, looks)
            if whiskers.known(shown.differences):
                _whiskers(axes, panel)
        named(panels, [panel.title for panel in shown.panels])
        units(panels, [panel.unit for panel in shown.panels])
        legend(figure, _handles(shown, looks))
    return figure


def _height(shown: Gaps) -> float:
    """Inches that a row takes: with room below it where gaps have whiskers."""
    return height_of(shown.rows) * (1.4 if whiskers.known(shown.differences) else 1)


def _whiskers(axes: Axes, panel: Panel) -> None:
    """The interval of every gap from Current Eval on, below the row; none beyond the left edge."""
    low, _ = axes.get_xlim()
    for at, (dots, gap) in enumerate(zip(panel.dots, panel.gaps, strict=True)):
        if gap is not None and dots[0] is not None and dots[0].value + gap.points >= low:
            whiskers.whisker(axes, at + BELOW, gap, start=dots[0].value)


def _reference_lines(axes: Axes, panel: Panel) -> None:
    for value, line in ((panel.expert, "--"), (panel.constant, ":")):
        if value is not None:
            axes.axvline(value, color=BLACK, linestyle=line, linewidth=1, zorder=1)


def _bars(axes: Axes, panel: Panel) -> None:
    """Open bars from the first dot of each row to its last: those of intervals are filled."""
    for at, dots in enumerate(panel.dots):
        if dots[0] is not None and dots[-1] is not None:
            first, last = dots[0].value, dots[-1].value
            axes.barh(at, last - first, left=first, height=GAP, zorder=1.5, **OPEN)


def _marks(axes: Axes, dots: Sequence[Dot | None], look: Mark) -> None:
    """One sign for each row on the scale, with the bars of its deviation and its interval."""
    low, _ = axes.get_xlim()
    known = [(at, dot) for at, dot in enumerate(dots) if dot is not None and dot.value >= low]
    for at, dot in known:
        if dot.interval is not None:
            axes.hlines(at, *dot.interval, color=look.colour, linewidth=3, alpha=BACK, zorder=2)
    spread = [float("nan") if dot.deviation is None else dot.deviation for _, dot in known]
    axes.errorbar(
        [dot.value for _, dot in known],
        [at for at, _ in known],
        xerr=spread if any(dot.deviation is not None for _, dot in known) else None,
        color=look.colour,
        marker=look.sign,
        markerfacecolor=look.face,
        markersize=look.size,
        linestyle="none",
        elinewidth=1,
        capsize=2,
        zorder=4 if look.hollow else 3,
    )


def _limits(shown: Gaps) -> tuple[float, float]:
    """Where the scale begins and ends: around all bars of the merges, and of the base if near."""
    experts = [panel.expert for panel in shown.panels if panel.expert is not None]
    count = len(shown.rows)
    merges, bases = _spans(shown, range(shown.merges)), _spans(shown, range(shown.merges, count))
    high = max([*experts, *(end for *_, end in (*merges, *bases))])
    low = min([*experts, *(start for _, start, _ in merges)])
    margin, reach = 0.04 * (high - low) or 1, low - FAR * (high - low)
    for value, start, _ in sorted(bases, reverse=True):
        if value >= min(low - margin, reach):  # what a bar of others made room for is on it, too
            low = min(low, start)
    return low - margin, high + margin


def _spans(shown: Gaps, rows: Iterable[int]) -> list[tuple[float, float, float]]:
    """What is drawn of some rows: values, and from where to where their bars go."""
    spans = []
    for panel, at in product(shown.panels, rows):
        for dot in panel.dots[at]:
            if dot is not None:
                spread = dot.deviation or 0
                ends = (dot.value - spread, dot.value + spread, *(dot.interval or ()))
                spans.append((dot.value, min(ends), max(ends)))
        start, gap = panel.dots[at][0], panel.gaps[at]
        if start is not None and gap is not None and gap.within is not None:
            low, high = gap.within
            spans.append((start.value + gap.points, start.value + low, start.value + high))
    return spans


def _beyond(axes: Axes, at: int, dots: Sequence[Dot | None], looks: Sequence[Mark]) -> None:
    """Numbers at the left edge, in the place of what lies beyond it."""
    low, _ = axes.get_xlim()
    outside = [
        (dot, look)
        for dot, look in zip(dots, looks, strict=True)
        if dot is not None and dot.value < low
    ]
    where: Any = axes.get_yaxis_transform()
    for number, (dot, look) in enumerate(outside):
        x = 0.09 + 0.17 * number
        axes.plot(
            x,
            at,
            color=look.colour,
            marker=look.sign,
            markerfacecolor=look.face,
            markersize=look.size,
            transform=where,
            zorder=5,
        )
        axes.text(x + 0.035, at, f"{dot.value:.0f}", transform=where, va="center", fontsize=7.5)
    if outside:
        axes.text(0.01, at, "◂", transform=where, va="center", color=GREY)


def _handles(shown: Gaps, looks: Sequence[Mark]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def line(label: str, **how: Any) -> Line2D:
        return Line2D([], [], label=label, **how)

    handles: list[Any] = [
        line(
            str(reading),
            color=look.colour,
            marker=look.sign,
            markerfacecolor=look.face,
            markersize=look.size,
            linestyle="none",
        )
        for reading, look in zip(shown.readings, looks, strict=True)
    ]
    handles.append(Patch(label=f"gap to {shown.readings[-1].protocol}", **OPEN))
    dots = [dot for panel in shown.panels for row in panel.dots for dot in row if dot is not None]
    if any(dot.deviation is not None for dot in dots):
        handles.append(line(shown.spread, color=GREY, marker="|", linewidth=1))
    if any(dot.interval is not None for dot in dots):
        sign = "95 % interval"
        handles.append(line(sign, color=GREY, linewidth=3, alpha=BACK))
    if any(panel.expert is not None for panel in shown.panels):
        handles.append(line("experts under current", color=BLACK, linestyle="--", linewidth=1))
    low, high = _limits(shown)
    if any(panel.constant is not None and low < panel.constant < high for panel in shown.panels):
        handles.append(line("best constant prediction", color=BLACK, linestyle=":", linewidth=1))
    return [*handles, *whiskers.handles(shown.differences, " of the gap, from current on")]
