"""Curves of scores over a few places along x, a panel for each merge or for each task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from harness.reporting.plots.marks import (
    BLACK,
    CURRENT,
    FAR,
    GREY,
    Layout,
    Mark,
    drawn,
    legend,
    marks,
    named,
    units,
)

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


Scale: TypeAlias = tuple[float, float]
"""Where what is drawn begins and ends along y."""


@dataclass(frozen=True)
class Panel:
    """Curves by name, and levels that do not depend on x; `base` if they are of no merge."""

    title: str
    unit: str
    curves: tuple[Curve, ...]
    levels: tuple[tuple[str, float], ...]
    base: bool = False

    @property
    def span(self) -> Scale:
        """From where to where it is drawn, without the constant."""
        points = [point for _, curve in self.curves for point in curve]
        ends = [
            *(point.value - (point.deviation or 0) for point in points),
            *(point.value + (point.deviation or 0) for point in points),
            *(value for name, value in self.levels if name != CONSTANT),
        ]
        return min(ends), max(ends)

    def on(self, scale: Scale) -> list[tuple[str, float]]:
        """The levels that can be seen on a scale."""
        low, high = scale
        return [(name, value) for name, value in self.levels if low <= value <= high]


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


CONSTANT = "best constant prediction"
LEVELS: dict[str, Any] = {
    "experts": {"color": BLACK, "linestyle": "--"},
    "current": {"color": CURRENT.colour, "linestyle": "-"},
    CONSTANT: {"color": BLACK, "linestyle": ":"},
}
"""How the levels are drawn, from top to bottom as they are expected."""
DODGE = 0.02
"""How far curves are set apart, as a part of x, so that their bars can be told apart."""


def draw(shown: Curves) -> Figure:
    """The picture of some curves: signs joined by lines, bars for the spread, levels across."""
    names = list(dict.fromkeys(name for panel in shown.panels for name, _ in panel.curves))
    looks = marks(names)
    scales = scales_of(shown.panels)
    layout = Layout(len(shown.panels), (2.6, 2.1), left=0.5, share_y=False)
    with drawn(shown.title, layout) as (figure, panels):
        for at, (axes, panel) in enumerate(zip(panels, shown.panels, strict=True)):
            _panel(axes, panel, looks, shown.ticks[-1][0] - shown.ticks[0][0], scales[at])
            first = at % layout.columns == 0
            axes.tick_params(labelleft=first or scales[at] != scales[at - 1])
            axes.set_xticks([x for x, _ in shown.ticks], [name for _, name in shown.ticks])
            if shown.slant:
                axes.tick_params(axis="x", labelrotation=shown.slant)
                for tick in axes.get_xticklabels():
                    tick.set(ha="right", rotation_mode="anchor")
            if first or panel.unit != shown.panels[at - 1].unit:
                axes.set_ylabel(panel.unit)
        named(panels, [panel.title for panel in shown.panels])
        units(panels, [shown.x_label] * len(panels))
        seen = [name for at, panel in enumerate(shown.panels) for name, _ in panel.on(scales[at])]
        legend(figure, _handles(shown, looks, seen))
    return figure


def scales_of(panels: Sequence[Panel]) -> list[Scale]:
    """The scale of each panel: all merges share one, and a base has its own if it is far off."""
    merges = [panel for panel in panels if not panel.base] or panels
    shared = _around(merges)
    near = [panel for panel in panels if panel.base and _near(panel.span, shared)]
    shared = _with_constants([*merges, *near])
    return [
        shared if panel in merges or panel in near else _with_constants([panel]) for panel in panels
    ]


def _around(panels: Sequence[Panel]) -> Scale:
    spans = [panel.span for panel in panels]
    return min(low for low, _ in spans), max(high for _, high in spans)


def _near(span: Scale, scale: Scale) -> bool:
    """Whether a scale needs not be made much longer to hold this as well."""
    low, high = scale
    reach = FAR * (high - low)
    return low - reach <= span[0] and span[1] <= high + reach


def _with_constants(panels: Sequence[Panel]) -> Scale:
    """Around panels and their constants, but for those far off, beside which curves lie flat."""
    scale = _around(panels)
    constants = [value for panel in panels for name, value in panel.levels if name == CONSTANT]
    ends = [*scale, *(value for value in constants if _near((value, value), scale))]
    low, high = min(ends), max(ends)
    margin = 0.05 * (high - low) or 1
    return low - margin, high + margin


def _panel(axes: Axes, panel: Panel, looks: dict[str, Mark], span: float, scale: Scale) -> None:
    axes.grid(axis="y", color="#E4E4E4", linewidth=0.5)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylim(scale)
    for name, value in panel.on(scale):
        axes.axhline(value, linewidth=1, zorder=1, **LEVELS[name])
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


def _handles(shown: Curves, looks: dict[str, Mark], seen: Iterable[str]) -> list[Any]:
    """What the signs mean, of the levels those that are `seen` in any panel."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=m.colour, marker=m.sign, markersize=4.5, linestyle=m.line, label=name)
        for name, m in looks.items()
    ]
    points = [point for panel in shown.panels for _, curve in panel.curves for point in curve]
    if any(point.deviation is not None for point in points):
        handles.append(Line2D([], [], color=GREY, marker="|", linewidth=1, label=shown.spread))
    known = {*seen}
    return handles + [
        Line2D([], [], linewidth=1, label=name, **look)
        for name, look in LEVELS.items()
        if name in known
    ]
