"""A method of merging together with its needs: their options form one list."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from harness.code import code_of_plugins
from harness.entries import Claim, Merger, Method, Postmerge, Premerge
from harness.errors import BrokenPlugin, UnknownName
from harness.options import options, resolve
from harness.registry import NEEDS
from harness.text import hint
from harness.types import Choice, Need, Scalar

SEVERAL = "several"
"""In a condition `NAME=several`: any list. `harness list` uses the same word."""


def needs_of(entry: Method) -> tuple[Need, ...]:
    """The needs of a method, in the order of its parameters. Raises UnknownName for one that is not
    registered."""
    for name in entry.needs:
        if name not in NEEDS:
            raise UnknownName(
                f"{entry.called} '{entry.name}' asks for '{name}', a keyword-only parameter "
                f"without a default; expected one of {', '.join(NEEDS)}, or a default"
            )
    return tuple(NEEDS[name] for name in entry.needs)


def code_of_methods(entries: Iterable[Method]) -> str:
    """A hash of the plug-ins' code among methods and their needs; '' if all are ours."""
    return code_of_plugins(function for entry in entries for function in functions_run(entry))


def functions_run(entry: Method) -> list[Callable[..., Any]]:
    """The functions that a method runs: its own, and those of its registered needs."""
    return [entry.function, *(NEEDS[name].function for name in entry.needs if name in NEEDS)]


def functions(entry: Method) -> tuple[Callable[..., Any], ...]:
    """The functions whose options a method has: its own, and those of its needs.

    Raises BrokenPlugin for an option of two functions with different defaults, since both receive
    the same value.
    """
    needs = needs_of(entry)
    method = f"{entry.called} '{entry.name}'"
    parts = [(method, entry.function), *((f"'{need.name}'", need.function) for need in needs)]
    defaults: dict[str, tuple[str, Scalar]] = {}
    for called, function in parts:
        for name, option in options(function).items():
            first, default = defaults.setdefault(name, (called, option.default))
            if default != option.default:
                source = "" if first == method else f", which {method} asks for,"
                raise BrokenPlugin(
                    f"{first}{source} has an option '{name}' with the default {default}, and "
                    f"{called} has one with {option.default}; expected one default, or another name"
                )
    return tuple(function for _, function in parts)


def resolved_options(entry: Method, choice: Choice) -> dict[str, Scalar]:
    """All options of a method and its needs, as `resolve` checks them."""
    return resolve(entry.called, choice, *functions(entry))


def own_options(entry: Method, chosen: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The options among `chosen` that the method itself is called with."""
    own = set(options(entry.function))
    of_needs = {name for need in needs_of(entry) for name in options(need.function)} - own
    return {name: value for name, value in chosen.items() if name not in of_needs}


def condition_holds(entry: Method, condition: str, chosen: Mapping[str, Scalar]) -> bool:
    """Whether the options `chosen` meet a condition that the method's author declared: a key as in
    `entries.BreaksWith`.

    Raises UnknownName for a condition on an option that the method lacks.
    """
    declared = {name: option for fn in functions(entry) for name, option in options(fn).items()}
    name, equals, value = condition.partition("=")
    if name not in declared:
        called = f"{entry.called} '{entry.name}'"
        raise UnknownName(
            f"{called} declares something for '{name}', no option of it; {hint(name, declared)}"
        )
    if not equals:
        return chosen[name] != declared[name].default
    if value == SEVERAL:
        return isinstance(chosen[name], list)
    what = f"option '{name}' that {entry.called} '{entry.name}' declares something for"
    return chosen[name] == declared[name].read(value, what)


def reads_base(entry: Method, chosen: Mapping[str, Scalar]) -> bool:
    """Whether a method with these options reads the base."""
    if isinstance(entry, Merger):
        return entry.task_vectors
    return not isinstance(entry, Premerge) or _claimed(entry, entry.reads_base, chosen)


def reads_norms(entry: Method, chosen: Mapping[str, Scalar]) -> bool:
    """Whether a method with these options requires models with a norm before each layer."""
    return isinstance(entry, Premerge) and _claimed(entry, entry.reads_norms, chosen)


def rereads(entry: Method, chosen: Mapping[str, Scalar]) -> bool:
    """Whether a method with these options reads the merged tensors more than once."""
    return isinstance(entry, Postmerge) and _claimed(entry, entry.rereads, chosen)


def _claimed(entry: Method, claim: Claim, chosen: Mapping[str, Scalar]) -> bool:
    if isinstance(claim, bool):
        return claim
    return any(condition_holds(entry, condition, chosen) for condition in claim)
