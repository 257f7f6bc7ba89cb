"""A method of merging and its needs, taken together: their options are one list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.entries import Method
from harness.errors import UnknownName
from harness.options import options, resolve
from harness.registry import NEEDS
from harness.types import Choice, Need, Scalar


def needs_of(entry: Method) -> tuple[Need, ...]:
    """The needs of a method, in its order. Raises UnknownName for one that is not registered."""
    for name in entry.needs:
        if name not in NEEDS:
            raise UnknownName(
                f"{entry.called} '{entry.name}' asks for '{name}', a keyword-only parameter "
                f"without a default; expected one of {', '.join(NEEDS)}, or a default"
            )
    return tuple(NEEDS[name] for name in entry.needs)


def functions(entry: Method) -> tuple[Callable[..., Any], ...]:
    """The functions whose options a method has: its own, and those of its needs."""
    return (entry.function, *(need.function for need in needs_of(entry)))


def resolved(entry: Method, choice: Choice) -> dict[str, Scalar]:
    """All options of a method and its needs, as `resolve` checks them."""
    return resolve(entry.called, choice, *functions(entry))


def own_options(entry: Method, chosen: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Of all options, those that the method itself is called with."""
    own = set(options(entry.function))
    of_needs = {name for need in needs_of(entry) for name in options(need.function)} - own
    return {name: value for name, value in chosen.items() if name not in of_needs}
