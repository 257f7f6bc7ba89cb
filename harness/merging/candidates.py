"""`--tune OPTION=FIRST:LAST:STEP`: the values of an option that are tried."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

from harness.entries import Merger
from harness.errors import BadOption
from harness.options import options, resolve
from harness.types import Choice

TRIALS = 1000
"""More candidates than this are taken for a slip in the step."""


def checked_values(text: str, merger: Merger) -> tuple[str, list[float]]:
    """The option of a merger that a grid is of, and its values, as `values_of` reads them.

    Raises BadOption for an option that is no number, and for a value out of its range.
    """
    name, values = values_of(text)
    known = options(merger.function).values()
    numbers = [
        option.name
        for option in known
        if isinstance(option.default, int | float) and not isinstance(option.default, bool)
    ]
    if name not in numbers:
        raise BadOption(
            f"'{name}' of {merger.name} cannot be tuned; expected a number among its options: "
            f"{', '.join(numbers) or 'it has none'}"
        )
    for value in values:
        resolve("merger", Choice(merger.name, {name: value}), merger.function)
    return name, values


def values_of(text: str) -> tuple[str, list[float]]:
    """`scale=0.1:1.0:0.1` -> the option and its values, from first to last by the step."""
    name, equals, spelled = text.partition("=")
    try:
        first, last, step = map(Decimal, spelled.split(":"))
        fits = bool(equals) and first.is_finite() and last >= first and step > 0
    except (InvalidOperation, ValueError):
        fits = False
    if not fits or (last - first) / step >= TRIALS:
        raise BadOption(
            f"--tune is '{text}', expected OPTION=FIRST:LAST:STEP with FIRST <= LAST, a positive "
            f"STEP and at most {TRIALS} values: scale=0.1:1.0:0.1"
        )
    count = int((last - first) / step) + 1
    return name.strip(), [float(first + step * index) for index in range(count)]
