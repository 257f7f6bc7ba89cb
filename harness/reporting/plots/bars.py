"""A few numbers with their names -> bars, those that others are compared with in grey."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.reporting.plots.marks import BLUE, GREY, Layout, drawn, of_rows
from harness.text import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WIDTH, BAR = 4.6, 0.34
"""Inches: the length of the scale, and what a bar takes with the space beside it."""


@dataclass(frozen=True)
class Bar:
    """A number with its name; `reference` if others are compared with it."""

    name: str
    value: float
    reference: bool = False


@dataclass(frozen=True)
class Bars:
    """Bars from the top down, on a scale from 0 to `high` with its unit.

    The number stands behind each, written as `form` says.
    """

    title: str
    bars: tuple[Bar, ...]
    unit: str
    high: float
    form: str = ".1f"


def bar_chart(shown: Bars) -> Figure:
    """The picture of bars, each with its number."""
    layout = Layout(1, (WIDTH, BAR * len(shown.bars)), left=1.9)
    with drawn(shown.title, layout) as (figure, panels):
        (axes,) = panels
        of_rows(panels, [bar.name for bar in shown.bars])
        made = axes.barh(
            range(len(shown.bars)),
            [bar.value for bar in shown.bars],
            height=0.7,
            color=[GREY if bar.reference else BLUE for bar in shown.bars],
        )
        axes.bar_label(made, [number(bar.value, shown.form) for bar in shown.bars], padding=3)
        axes.set_xlim(0, shown.high)
        axes.set_xlabel(shown.unit)
    return figure
