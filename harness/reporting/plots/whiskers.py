"""Differences as signs: a whisker for the interval, hollow where that is not significant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from harness.reporting.difference import CI, Difference
from harness.reporting.plots.marks import BLACK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

RIM = "white"
"""Around black lines and dots, which would not be seen on a dark bar."""
PAIRED = f"paired {CI} over test units and draws"


def whisker(axes: Axes, y: float, difference: Difference, *, start: float = 0.0) -> None:
    """A dot at a difference, counted from `start`, with its interval; hollow unless it is
    significant, which nothing is without an interval.
    """
    if difference.within is not None:
        low, high = (start + end for end in difference.within)
        for width, colour in ((2.5, RIM), (1.0, BLACK)):
            axes.hlines(y, low, high, color=colour, linewidth=width, zorder=5)
    filled = difference.within is not None and difference.significant
    axes.plot(
        start + difference.points,
        y,
        "o",
        markersize=4,
        markerfacecolor=BLACK if filled else RIM,
        markeredgecolor=RIM if filled else BLACK,
        markeredgewidth=0.8,
        zorder=6,
    )


def known(differences: Iterable[Difference | None]) -> bool:
    """Whether of any difference an interval is known; without one, nothing is drawn of them."""
    return any(one is not None and one.within is not None for one in differences)


def room(differences: Iterable[Difference | None]) -> float:
    """Inches that the legend of whiskers takes, if there are any."""
    return 0.35 if known(differences) else 0


def handles(differences: Iterable[Difference | None], of: str = "") -> list[Any]:
    """What the dots and whiskers mean, `of` what they are; nothing where no interval is known."""
    from matplotlib.lines import Line2D

    every = [one for one in differences if one is not None]
    if not known(every):
        return []
    dot: dict[str, Any] = {"marker": "o", "color": BLACK, "markersize": 4, "linewidth": 1}
    signs = [Line2D([], [], label=f"{PAIRED}{of}", **dot)]
    if any(one.within is None or not one.significant for one in every):
        lacking = any(one.within is None for one in every)
        label = f"hollow: not significant{' or not known' if lacking else ''}"
        signs.append(Line2D([], [], label=label, markerfacecolor=RIM, **dot))
    return signs
