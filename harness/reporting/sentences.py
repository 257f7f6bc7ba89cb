"""The sentences of verdicts and comparisons: sentences.jinja has a macro for each."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.data.shots import counted
from harness.reporting.difference import CI, in_percent
from harness.reporting.grid import short_task
from harness.reporting.names import marked
from harness.stats.intervals import Ends
from harness.stats.ranks import FEWEST_TASKS, fewest_tasks
from harness.stats.tests import FEWEST_DRAWS, POWER
from harness.text import points

if TYPE_CHECKING:
    from jinja2 import Environment

UNEQUAL = 20.0
"""Points: experts that are further apart, or further below their merge, are called out."""
TEMPLATE = Path(__file__).with_name("sentences.jinja")


def said(macro: str, one: object) -> str:
    """What the macro of this name says of a value; a line for each of its sentences."""
    text: str = getattr(_module(), macro)(one)
    return text


@cache
def _module() -> Any:
    """The macros; a break of a line in the file is a space."""
    source = " ".join(TEMPLATE.read_text(encoding="utf-8").split())
    return _environment().from_string(source).module


def _environment() -> Environment:
    from jinja2 import Environment, StrictUndefined

    made = Environment(undefined=StrictUndefined, autoescape=False)
    made.filters |= {
        "points": points,
        "signed": signed,
        "to": to,
        "percent": in_percent,
        "shots": counted,
        "p": _p,
        "short": short_task,
    }
    made.globals |= {
        "CI": CI,
        "POWER": f"{100 * POWER:.0f} %",
        "FEWEST_DRAWS": FEWEST_DRAWS,
        "FEWEST_TASKS": FEWEST_TASKS,
        "UNEQUAL": UNEQUAL,
        "fewest_tasks": fewest_tasks,
        "marked": marked,
    }
    return made


def signed(difference: float) -> str:
    """A difference of fractions in points: `+1.2`."""
    return points(100 * difference, "+")


def to(ends: Ends) -> str:
    """The ends of the interval of such a difference."""
    return f"{signed(ends[0])} to {signed(ends[1])}"


def _p(value: float) -> str:
    return f"= {value:.3f}" if value >= 0.001 else "< 0.001"
