"""The looks of series, distinct with and without colour, and the layout of panels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise
from math import ceil
from typing import Any, Literal

from harness.reporting.difference import CI, Difference
from harness.reporting.figures import Axes, Figure, settle, styled, wrapped_title
from harness.reporting.grid import GridCell
from harness.reporting.lines import CURRENT
from harness.reporting.names import CONSTANT
from harness.text import breaks, plain

BLACK, GREY, PALE = "#000000", "#555555", "#D0D0D0"
ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE, YELLOW = (
    "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#F0E442",
)  # fmt: skip
"""The colours of Okabe and Ito (2008), which colour-blind readers tell apart."""
PALETTE = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, BLACK, YELLOW)
"""Colours of classes, which repeat after the last: a number always stands beside them."""


@dataclass(frozen=True)
class Mark:
    """The look of a series: its colour and, to tell it apart without, its sign, line and hatch."""

    colour: str
    sign: str
    line: Any = "-"
    hatch: str = ""
    hollow: bool = False

    @property
    def dots(self) -> dict[str, Any]:
        """Matplotlib's options of the signs: a hollow one is larger, and signs below it show."""
        face, size, above = ("none", 7.5, 4) if self.hollow else (self.colour, 4.5, 3)
        return {
            "color": self.colour,
            "marker": self.sign,
            "markerfacecolor": face,
            "markersize": size,
            "zorder": above,
        }


OF_CURRENT = Mark(VERMILION, "o", ":", hollow=True)
SERIES = (
    Mark(BLUE, "D", "-", ""),
    Mark(GREEN, "^", "--", "//"),
    Mark(PURPLE, "s", "-.", "xx"),
    Mark(SKY, "v", (0, (1, 1)), ".."),
    Mark(BLACK, "P", (0, (5, 1, 1, 1, 1, 1)), "\\\\"),
    Mark(ORANGE, "X", (0, (8, 2)), "--"),
    Mark(YELLOW, "o", (0, (3, 3)), "++"),
)
KNOWN = {CURRENT: OF_CURRENT, "ft-classifier": SERIES[0], "knn": SERIES[1]}
"""Protocols with the same look in every picture."""


def marks(names: Iterable[str]) -> dict[str, Mark]:
    """A distinct mark for each series; the papers' protocols have their own.

    When all colours are taken, they repeat with the sign, line and hatch of another mark.
    """
    names = list(names)
    taken = {KNOWN[name] for name in names if name in KNOWN}
    free = [mark for mark in SERIES if mark not in taken]
    count = len(free)
    others = [name for name in names if name not in KNOWN]
    rest = {
        name: replace(free[(index + index // count) % count], colour=free[index % count].colour)
        for index, name in enumerate(others)
    }
    return {name: KNOWN.get(name) or rest[name] for name in names}


# Panels ------------------------------------------------------------------------------------

AROUND = 0.6
"""Inches above and below all panels, without the legend."""


@contextmanager
def figure_of(
    title: str,
    panels: Sequence[str],
    size: tuple[float, float],
    *,
    left: float = 0.7,
    most: int = 3,
    **how: Any,
) -> Iterator[tuple[Figure, list[Axes]]]:
    """A context with a picture of titled panels, each of a `size` in inches, to draw in.

    Panels fill as few lines as `most` columns allow, and then as few columns as that takes; `left`
    is the room for names of rows. Scales are shared, unless `how` (options of matplotlib's
    `subplots`) says otherwise. On exit a legend of all labels is added, and the layout is settled.
    """
    from matplotlib.figure import Figure

    lines = ceil(len(panels) / most)
    columns = ceil(len(panels) / lines)
    width = max(left + columns * size[0], 4.5)
    with styled():
        figure = Figure(figsize=(width, AROUND + lines * size[1]), layout="constrained")
        shared = {"sharex": True, "sharey": True, "squeeze": False}
        grid = figure.subplots(lines, columns, **{**shared, **how})
        all_axes = grid.ravel().tolist()
        for axes in all_axes[len(panels) :]:
            axes.set_visible(False)
        for above in all_axes[len(panels) - columns : len(panels)]:
            above.tick_params(labelbottom=True)  # no panel is below it
        for axes, name in zip(all_axes, panels, strict=False):
            axes.set_title(name_in_lines(name))
            axes.set_axisbelow(True)
            axes.spines[["top", "right"]].set_visible(False)
        figure.suptitle(wrapped_title(plain(title), width))
        yield figure, all_axes[: len(panels)]
        _legend(figure)
        settle(figure)


@contextmanager
def drawn_rows(
    title: str,
    rows: Sequence[str],
    panels: Sequence[tuple[str, str]],
    width: float,
    heights: Sequence[float] | None = None,
    **how: Any,
) -> Iterator[tuple[Figure, list[Axes], list[float]]]:
    """A picture as of `figure_of`, of panels by title and unit along x, with rows named at the
    left.

    Also yields the middle of each row along y, in inches; the first row is on top. Rows are as tall
    as their names need, unless `heights` are given.
    """
    ends = [*accumulate(heights or [height_of([row]) for row in rows], initial=0.0)]
    middles = [(low + high) / 2 for low, high in pairwise(ends)]
    size = width, 0.75 + ends[-1]
    with figure_of(title, [name for name, _ in panels], size, left=width_of(rows), **how) as (
        figure,
        all_axes,
    ):
        for axes in all_axes:
            axes.set_yticks(middles, [name_in_lines(row) for row in rows])
            axes.set_ylim(ends[-1], 0)
            axes.tick_params(axis="y", length=0)
            axes.grid(axis="x", color=PALE, linewidth=0.5)
            axes.spines["left"].set_visible(False)
        along_x(all_axes, [unit for _, unit in panels])
        yield figure, all_axes, middles


def along_x(panels: Sequence[Axes], names: Sequence[str]) -> None:
    """Name the x axes; where all have one name, only below panels with no panel below them."""
    place = panels[0].get_subplotspec()
    columns = len(panels) if place is None else place.get_gridspec().ncols
    for axes, name in zip(panels, names, strict=True):
        if axes in panels[-columns:] or len({*names}) > 1:
            axes.set_xlabel(name)


LINE, LINES = 28, 3
"""The most letters of a line of a name, and lines of a name: longer ones are cut."""


def name_in_lines(name: str) -> str:
    """A name in lines that end between the parts of a method."""
    lines = [""]
    for part in breaks(name):
        if lines[-1] and len(lines[-1]) + len(part) > LINE:
            lines.append("")
        lines[-1] += part if len(part) <= LINE else f"{part[: LINE - 1]}…"
    return "\n".join(lines if len(lines) <= LINES else [*lines[: LINES - 1], "…"])


def height_of(names: Iterable[str]) -> float:
    """The inches that a row takes: the lines of its longest name, and space to the next row."""
    return 0.085 + 0.15 * max((name_in_lines(name).count("\n") + 1 for name in names), default=1)


def width_of(names: Iterable[str]) -> float:
    """The inches that the longest line of some names takes."""
    lines = [line for name in names for line in name_in_lines(name).splitlines()]
    return 0.25 + 0.072 * max(map(len, lines), default=0)


# Legend ------------------------------------------------------------------------------------

LEGEND_LINE = 0.2
"""The height of a line of the legend, in inches."""


def legend_label(label: str) -> str:
    """The label of a series; matplotlib leaves out labels that begin with an underscore."""
    return f" {plain(label)}" if label.startswith("_") else plain(label)


def add_legend_entry(axes: Axes, label: str, **look: Any) -> None:
    """Add a sign that several series share to the legend, after all series."""
    from matplotlib.lines import Line2D

    axes.figure.add_artist(Line2D([], [], label=label, color=GREY, **look))


def _legend(figure: Figure) -> None:
    """Add the legend below the panels; the picture grows to hold it."""
    handles: dict[str, Any] = {}
    signs = chain.from_iterable(axes.get_legend_handles_labels()[0] for axes in figure.axes)
    for handle in (*signs, *figure.artists):
        handles.setdefault(str(handle.get_label()), handle)
    if not handles:
        return
    inches = [0.55 + 0.068 * len(label) for label in handles]
    figure.set_figwidth(max(figure.get_figwidth(), max(inches)))
    whole = sum(inches) <= figure.get_figwidth()
    columns = len(handles) if whole else min(int(figure.get_figwidth() / max(inches)), len(handles))
    lines = ceil(len(handles) / columns)
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE * (lines + 1))
    place: Any = "outside lower center"
    figure.legend([*handles.values()], [*handles], loc=place, ncols=columns, frameon=False)


# Signs -------------------------------------------------------------------------------------

LEVELS: Mapping[str, Any] = {
    f"experts under {CURRENT}": {"color": BLACK, "linestyle": "--"},
    CURRENT: {"color": OF_CURRENT.colour, "linestyle": "-"},
    CONSTANT: {"color": BLACK, "linestyle": ":"},
}
"""Lines across panels, from top to bottom in the order that is expected."""


def draw_levels(axes: Axes, levels: Mapping[str, float], along: Literal["x", "y"]) -> None:
    """Draw lines across a panel at some scores; without a constant the scale includes 0."""
    line = axes.axvline if along == "x" else axes.axhline
    for name, value in levels.items():
        line(value, label=name, linewidth=1, zorder=1, **LEVELS[name])
    if CONSTANT not in levels:
        axes.update_datalim([(0, 0)], updatex=along == "x", updatey=along == "y")


def draw_scores(
    axes: Axes,
    cells: Sequence[tuple[float, GridCell]],
    look: Mark,
    label: str,
    spread: str,
    *,
    along: Literal["x", "y"],
    **how: Any,
) -> None:
    """Draw signs at scores `along` x or y and places on the other axis, with bars for deviations.

    `spread` is the label of the bars, if there are any.
    """
    places, means = [place for place, _ in cells], [cell.mean for _, cell in cells]
    xs, ys = (means, places) if along == "x" else (places, means)
    axes.plot(xs, ys, label=legend_label(label), **look.dots, **how)
    deviations = [cell.deviation or 0 for _, cell in cells]
    if any(deviations):
        bars: Any = {f"{along}err": deviations, "ecolor": look.colour, "elinewidth": 1}
        axes.errorbar(xs, ys, fmt="none", capsize=2, zorder=3, **bars)
        add_legend_entry(axes, spread, marker="|", linewidth=1)


RIM = "white"
"""The colour around black lines and dots, which would not be seen on a dark bar."""


def whisker(axes: Axes, y: float, difference: Difference, start: float = 0.0, of: str = "") -> None:
    """Draw a dot at a difference from `start`, with its interval; hollow unless significant.

    Intervals are not corrected, significance is: so an interval may exclude zero beside a hollow
    dot. The legend says so.
    """
    if difference.within is not None:
        low, high = (start + end for end in difference.within)
        axes.hlines(y, low, high, color=RIM, linewidth=2.5, zorder=5)
        label = f"paired {CI}{of}, each by itself"
        axes.hlines(y, low, high, color=BLACK, linewidth=1, zorder=5, label=label)
    axes.plot(
        start + difference.points,
        y,
        "o",
        markersize=4,
        markerfacecolor=BLACK if difference.significant else RIM,
        markeredgecolor=RIM if difference.significant else BLACK,
        markeredgewidth=0.8,
        zorder=6,
        label="significant after Holm"
        if difference.significant
        else "not significant, or not tested",
    )
