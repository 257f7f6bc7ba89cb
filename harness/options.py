"""Options of registered functions: declared, given as text, checked."""

from __future__ import annotations

import difflib
import inspect
import math
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from harness.errors import BadOption
from harness.types import Choice, Scalar


@dataclass(frozen=True)
class Option:
    """A keyword-only parameter with a default: its name, type and default."""

    name: str
    annotation: Any
    default: Scalar


def options(function: Callable[..., Any]) -> dict[str, Option]:
    """The options of a registered function, in the order it declares them."""
    scope = getattr(inspect.unwrap(function), "__globals__", {})
    found = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is not parameter.empty:
            kind = parameter.annotation
            # postponed annotations are text; only those of options are needed, and can be read
            kind = eval(kind, scope) if isinstance(kind, str) else kind
            found[parameter.name] = Option(parameter.name, kind, parameter.default)
    return found


def needs(function: Callable[..., Any]) -> tuple[str, ...]:
    """The keyword-only parameters without a default, which the harness and not the user gives."""
    return tuple(
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
    )


FREE = int | float | bool | list[float] | str | None
"""What an option may be that the function does not declare; text is read in this order."""


def _takes_anything(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)


def resolve(kind: str, choice: Choice, *functions: Callable[..., Any]) -> dict[str, Scalar]:
    """All options of a choice including defaults, each checked against its type.

    The options are those of all the functions together; one that takes any keyword takes any
    option, as given. Raises BadOption with the near miss for an unknown name, and for a value of
    another type.
    """
    known = {name: option for function in functions for name, option in options(function).items()}
    if any(_takes_anything(function) for function in functions):
        known |= {name: Option(name, FREE, None) for name in choice.options if name not in known}
    for name in choice.options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"known: {', '.join(known) or 'none'}"
            raise BadOption(f"{kind} '{choice.name}' has no option '{name}'; {hint}")
    return {
        name: _coerce(f"option '{name}' of {kind} '{choice.name}'", choice.options[name], option)
        if name in choice.options
        else option.default
        for name, option in known.items()
    }


def parse_choice(text: str) -> Choice:
    """Read `NAME`, `NAME:key=value,...` or `module:function[:key=value,...]`."""
    parts = text.split(":")
    name, rest = parts[0], parts[1:]
    if rest and "=" not in rest[0]:
        name, rest = f"{name}:{rest[0]}", rest[1:]
    found: dict[str, Scalar] = {}
    for pair in filter(None, ":".join(rest).split(",")):
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise BadOption(
                f"'{text}': '{pair}' is no option, expected NAME or NAME:key=value,key=value"
            )
        found[key.strip()] = value.strip()
    return Choice(name, found)


def _coerce(what: str, value: Scalar, option: Option) -> Scalar:
    kinds = typing.get_args(option.annotation) if _is_union(option.annotation) else ()
    for kind in kinds or (option.annotation,):
        coerced, fits = _as(kind, value)
        if fits:
            return coerced
    raise BadOption(f"{what} is {value!r}, expected {_spell(option.annotation)}")


def _is_union(annotation: Any) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _spell(annotation: Any) -> str:
    if _is_union(annotation):
        return " or ".join(_spell(kind) for kind in typing.get_args(annotation))
    if typing.get_origin(annotation) is Literal:
        return " or ".join(repr(value) for value in typing.get_args(annotation))
    if typing.get_origin(annotation) is list:
        return "numbers separated by ':'"
    spelled = {float: "a number", int: "a whole number", bool: "true or false", str: "text"}
    return spelled.get(annotation, "nothing" if annotation is type(None) else str(annotation))


def _as(kind: Any, value: Scalar) -> tuple[Scalar, bool]:
    """The value as the kind, and whether it fits. Text (from a command line) is parsed."""
    if kind is type(None):
        return None, value is None or str(value).lower() == "none"
    if typing.get_origin(kind) is Literal:
        return value, value in typing.get_args(kind)
    if typing.get_origin(kind) is list:
        items = value.split(":") if isinstance(value, str) else value
        if not isinstance(items, list):
            return None, False
        numbers = [_as(float, item) for item in items]
        return [float(n) for n, _ in numbers if isinstance(n, float)], all(f for _, f in numbers)
    if kind is bool:
        spelled = {"true": True, "false": False}.get(str(value).lower())
        return spelled, spelled is not None
    if kind is str:
        return value, isinstance(value, str)
    if isinstance(value, bool):
        return None, False
    try:
        number = kind(value)
        whole = not (kind is int and isinstance(value, float) and value % 1)
        return number, whole and math.isfinite(number)
    except (TypeError, ValueError, OverflowError):
        return None, False
