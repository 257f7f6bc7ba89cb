"""How series are told apart, in colour and without, and how panels are laid out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate
from math import ceil
from typing import TYPE_CHECKING, Any

from harness.reporting.figures import settle, styled, wrapped
from harness.text import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLACK, GREY, PALE = "#000000", "#555555", "#D0D0D0"
ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE, YELLOW = (
    "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7", "#F0E442",
)  # fmt: skip
"""The colours of Okabe and Ito (2008), which colour-blind readers tell apart."""
PALETTE = (BLUE, ORANGE, GREEN, VERMILION, SKY, PURPLE, BLACK, YELLOW)
"""Colours of classes, which start again after the last: beside a number, never alone."""


@dataclass(frozen=True)
class Mark:
    """How a series looks: a colour and, without it, a sign, a line and a hatch."""

    colour: str
    sign: str
    line: Any = "-"
    hatch: str = ""
    hollow: bool = False

    @property
    def face(self) -> str:
        """What it is filled with: a hollow one shows what lies below it."""
        return "none" if self.hollow else self.colour

    @property
    def size(self) -> float:
        """Points: a hollow one goes around the others."""
        return 7.5 if self.hollow else 4.5


CURRENT = Mark(VERMILION, "o", ":", hollow=True)
SERIES = (
    Mark(BLUE, "D", "-", ""),
    Mark(ORANGE, "^", "--", "//"),
    Mark(GREEN, "s", "-.", "xx"),
    Mark(PURPLE, "v", (0, (1, 1)), ".."),
    Mark(SKY, "P", (0, (5, 1, 1, 1, 1, 1)), "\\\\"),
    Mark(BLACK, "X", (0, (8, 2)), "--"),
    Mark(YELLOW, "o", (0, (3, 3)), "++"),
)
FAR = 0.5
"""By how much what merges are compared with may widen their scale; farther off it is not on it."""
KNOWN = {"current": CURRENT, "ft-classifier": SERIES[0], "knn": SERIES[1]}
"""Protocols that look the same in every picture."""


def marks(names: Iterable[str]) -> dict[str, Mark]:
    """A mark for each of some series; the papers' protocols have their own.

    When all colours are taken they come again with another's shape, line and hatch.
    """
    names = list(names)
    taken = {KNOWN[name] for name in names if name in KNOWN}
    free = [mark for mark in SERIES if mark not in taken]
    count = len(free)
    others = [name for name in names if name not in KNOWN]
    rest = {
        name: replace(free[(at + at // count) % count], colour=free[at % count].colour)
        for at, name in enumerate(others)
    }
    return {name: KNOWN.get(name) or rest[name] for name in names}


# Panels ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """Panels of one size in inches, so many beside one another; `left` is for names of rows."""

    panels: int
    panel: tuple[float, float]
    left: float = 0.7
    most: int = 3
    share_x: bool = True
    share_y: bool = True

    @property
    def columns(self) -> int:
        """As few columns as fill the same number of lines."""
        return ceil(self.panels / ceil(self.panels / self.most))

    @property
    def size(self) -> tuple[float, float]:
        """Width and height of the whole, with title and legend."""
        lines = ceil(self.panels / self.columns)
        width = self.left + self.columns * self.panel[0]
        return max(width, 4.5), 1.1 + lines * self.panel[1]


@contextmanager
def drawn(title: str, layout: Layout) -> Iterator[tuple[Figure, list[Axes]]]:
    """A picture with its panels, to be filled; laid out when that is done."""
    from matplotlib.figure import Figure

    with styled():
        figure = Figure(figsize=layout.size, layout="constrained")
        lines = ceil(layout.panels / layout.columns)
        grid = figure.subplots(
            lines, layout.columns, squeeze=False, sharex=layout.share_x, sharey=layout.share_y
        )
        every = grid.ravel().tolist()
        for axes in every[layout.panels :]:
            axes.set_visible(False)
        for above in every[layout.panels - layout.columns : layout.panels]:
            above.tick_params(labelbottom=True)  # what would be below it is not there
        figure.suptitle(wrapped(plain(title), layout.size[0]))
        yield figure, every[: layout.panels]
        settle(figure)


def named(panels: Sequence[Axes], titles: Sequence[str]) -> None:
    """Titles over panels."""
    for axes, title in zip(panels, titles, strict=True):
        axes.set_title(broken(title))


def of_rows(
    panels: Sequence[Axes], rows: Sequence[str], heights: Sequence[float] | None = None
) -> list[float]:
    """Names of rows at the left, the first on top, with a line to read along; their places.

    A row is one high, the first around 0; with `heights` of their own rows begin below 0.
    """
    tall = heights or [1.0] * len(rows)
    ends = list(accumulate(tall, initial=0.0 if heights else -0.5))
    middles = [end + one / 2 for end, one in zip(ends, tall, strict=False)]
    for axes in panels:
        axes.set_yticks(middles, [broken(row) for row in rows])
        axes.set_ylim(ends[-1], ends[0])
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=PALE, linewidth=0.5)
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
    return middles


LINE, LINES = 28, 3
"""Letters of a line of a name, and lines of a name: what is longer is cut."""


def broken(name: str) -> str:
    """A long name in lines that end where the parts of a method do."""
    lines = [""]
    for part in re.findall(r"[^:,+\[]*[:,+\[]?", plain(name)):
        if lines[-1] and len(lines[-1]) + len(part) > LINE:
            lines.append("")
        lines[-1] += part if len(part) <= LINE else f"{part[: LINE - 1]}…"
    return "\n".join(lines if len(lines) <= LINES else [*lines[: LINES - 1], "…"])


def height_of(names: Iterable[str]) -> float:
    """Inches that a row takes: of the name with the most lines, and space to the next."""
    return 0.085 + 0.15 * max((broken(name).count("\n") + 1 for name in names), default=1)


def units(panels: Sequence[Axes], names: Sequence[str]) -> None:
    """What the values along x are: where all share it, below panels with none below them alone."""
    lowest = panels[-_columns(panels) :]
    for axes, name in zip(panels, names, strict=True):
        if axes in lowest or len({*names}) > 1:
            axes.set_xlabel(name)


def _columns(panels: Sequence[Axes]) -> int:
    """How many panels stand beside one another."""
    place = panels[0].get_subplotspec()
    return len(panels) if place is None else place.get_gridspec().ncols


def width_of(names: Iterable[str]) -> float:
    """Inches that the longest of some names takes."""
    lines = [line for name in names for line in broken(name).splitlines()]
    return 0.25 + 0.072 * max(map(len, lines), default=0)


LEGEND_LINE, LEGEND_LINES = 0.2, 3
"""Inches of a line of what signs mean, and how many of them a layout has room for."""


def legend(figure: Figure, handles: Iterable[Any]) -> None:
    """What the signs mean, below the panels; nothing where there are none.

    A picture that has no room for it is made wider and taller.
    """
    handles = list(handles)
    if not handles:
        return
    for handle in handles:  # matplotlib leaves out what is called _something
        name = plain(handle.get_label())
        handle.set_label(f" {name}" if name.startswith("_") else name)
    inches = [0.55 + 0.068 * len(str(handle.get_label())) for handle in handles]
    figure.set_figwidth(max(figure.get_figwidth(), max(inches)))
    fit = int(figure.get_figwidth() / max(inches))
    whole = sum(inches) <= figure.get_figwidth()
    columns = len(handles) if whole else min(fit, len(handles))
    lines = ceil(len(handles) / columns)
    figure.set_figheight(figure.get_figheight() + LEGEND_LINE * max(0, lines - LEGEND_LINES))
    figure.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False)
