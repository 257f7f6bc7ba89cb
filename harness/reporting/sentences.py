"""The sentences of verdicts and comparisons: sentences.jinja has a macro for each."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from harness.reporting.boards.templates import environment
from harness.reporting.difference import CI, in_percent
from harness.reporting.grid import short_task
from harness.reporting.names import CONSTANT, MAX, marked
from harness.stats.intervals import FEWEST_SETS, LEVEL, Ends
from harness.stats.ranks import FEWEST_TASKS, fewest_tasks
from harness.stats.tests import FEWEST_DRAWS, POWER
from harness.text import counted, points

UNEQUAL = 20.0
"""Points: a verdict warns of experts that are further apart, or further below their merge."""
TEMPLATE = Path(__file__).with_name("sentences.jinja")


def rendered(macro: str, *of: object) -> str:
    """The text of a macro for these values."""
    text: str = getattr(_module(), macro)(*of)
    return text


@cache
def _module() -> Any:
    """The macros as a Jinja module; a line break in the file counts as a space."""
    env = environment()
    filters = signed, to, in_percent, counted, p, short_task, ordinal
    env.filters |= {function.__name__: function for function in filters}
    env.globals |= {
        "CI": CI, "CONSTANT": CONSTANT, "MAX": MAX, "UNEQUAL": UNEQUAL, "FEWEST_SETS": FEWEST_SETS,
        "FEWEST_DRAWS": FEWEST_DRAWS, "FEWEST_TASKS": FEWEST_TASKS, "fewest_tasks": fewest_tasks,
        "LEVEL": f"{100 * LEVEL:.0f} %", "POWER": f"{100 * POWER:.0f} %", "marked": marked,
    }  # fmt: skip
    source = " ".join(TEMPLATE.read_text(encoding="utf-8").split())
    return env.from_string(source).module


def ordinal(number: int) -> str:
    """1st, 2nd, 3rd, 4th; 11th."""
    ending = "th" if 10 < number % 100 < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def span(ends: Ends | None, joint: str = " to ", times: int = 1) -> str:
    """`2 to 5`; `1` if both ends are equal; '' for None."""
    return joint.join(dict.fromkeys(f"{round(times * end)}" for end in ends or ()))


def signed(difference: float) -> str:
    """A difference of fractions in points: `+1.2`."""
    return points(100 * difference, "+")


def to(ends: Ends) -> str:
    """The ends of the interval of a difference, in points: `-0.3 to +2.7`."""
    return f"{signed(ends[0])} to {signed(ends[1])}"


def p(value: float) -> str:
    """A p-value behind the letter p: `= 0.031` or `< 0.001`."""
    return f"= {value:.3f}" if value >= 0.001 else "< 0.001"
