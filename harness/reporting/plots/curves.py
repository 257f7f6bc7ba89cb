"""Curves of scores over a few places along x, a panel for each merge or for each task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from harness.reporting.plots.marks import GREY, Layout, Mark, drawn, legend, marks, named, units

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Point:
    """A score x100 at a place, with its deviation over draws where there are several."""

    x: float
    value: float
    deviation: float | None = None


Curve: TypeAlias = "tuple[str, tuple[Point, ...]]"
"""The name of a curve and its points, along x."""


@dataclass(frozen=True)
class Panel:
    """Curves by name, and levels that do not depend on x."""

    title: str
    unit: str
    curves: tuple[Curve, ...]
    levels: tuple[tuple[str, float], ...]


@dataclass(frozen=True)
class Curves:
    """Panels over the same x, which is named at its ticks. `spread` says what the bars are.

    `slant` is that of the names, in degrees.
    """

    title: str
    x_label: str
    ticks: tuple[tuple[float, str], ...]
    panels: tuple[Panel, ...]
    spread: str
    slant: float = 0


LEVELS: dict[str, Any] = {"experts": "--", "current": ":", "best constant prediction": (0, (1, 3))}
"""How the levels are drawn, from top to bottom as they are expected."""
DODGE = 0.02
"""How far curves are set apart, as a part of x, so that their bars can be told apart."""


def draw(shown: Curves) -> Figure:
    """The picture of some curves: signs joined by lines, bars for the spread, levels across."""
    names = list(dict.fromkeys(name for panel in shown.panels for name, _ in panel.curves))
    looks = marks(names)
    layout = Layout(len(shown.panels), (2.6, 2.1), left=0.5)
    with drawn(shown.title, layout) as (figure, panels):
        for at, (axes, panel) in enumerate(zip(panels, shown.panels, strict=True)):
            _panel(axes, panel, looks, shown.ticks[-1][0] - shown.ticks[0][0])
            axes.set_xticks([x for x, _ in shown.ticks], [name for _, name in shown.ticks])
            if shown.slant:
                axes.tick_params(axis="x", labelrotation=shown.slant)
                for tick in axes.get_xticklabels():
                    tick.set(ha="right", rotation_mode="anchor")
            if at % layout.columns == 0 or panel.unit != shown.panels[at - 1].unit:
                axes.set_ylabel(panel.unit)
        named(panels, [panel.title for panel in shown.panels])
        units(panels, [shown.x_label] * len(panels))
        legend(figure, _handles(shown, looks))
    return figure


def _panel(axes: Axes, panel: Panel, looks: dict[str, Mark], span: float) -> None:
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    for name, value in panel.levels:
        axes.axhline(value, color="black", linestyle=LEVELS[name], linewidth=1, zorder=1)
    middle, step = (len(looks) - 1) / 2, DODGE * span
    for at, (name, look) in enumerate(looks.items()):
        points = dict(panel.curves).get(name, ())
        axes.errorbar(
            [point.x + step * (at - middle) for point in points],
            [point.value for point in points],
            yerr=[point.deviation or 0 for point in points],
            color=look.colour,
            marker=look.sign,
            markersize=4.5,
            linestyle=look.line,
            linewidth=1.4,
            elinewidth=1,
            capsize=2,
        )


def _handles(shown: Curves, looks: dict[str, Mark]) -> list[Any]:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=m.colour, marker=m.sign, markersize=4.5, linestyle=m.line, label=name)
        for name, m in looks.items()
    ]
    points = [point for panel in shown.panels for _, curve in panel.curves for point in curve]
    if any(point.deviation is not None for point in points):
        handles.append(Line2D([], [], color=GREY, marker="|", linewidth=1, label=shown.spread))
    known = dict.fromkeys(name for panel in shown.panels for name, _ in panel.levels)
    return handles + [
        Line2D([], [], color="black", linestyle=LEVELS[name], linewidth=1, label=name)
        for name in LEVELS
        if name in known
    ]
