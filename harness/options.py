"""Options of registered functions: their declared types and ranges, parsing and checks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from types import FunctionType
from typing import Annotated, Any, Literal, TypeAlias

from annotated_types import Interval

from harness.errors import BadOption
from harness.text import hint
from harness.types import Choice, Scalar

Share: TypeAlias = Annotated[float, Interval(ge=0, le=1)]
"""A number from 0 to 1."""
PositiveShare: TypeAlias = Annotated[float, Interval(gt=0, le=1)]
"""A number above 0 and up to 1."""
Positive: TypeAlias = Annotated[float, Interval(gt=0)]
"""A number above 0."""
NotNegative: TypeAlias = Annotated[float, Interval(ge=0)]
"""A number of at least 0."""
Count: TypeAlias = Annotated[int, Interval(ge=1)]
"""A whole number of at least 1."""
StepCount: TypeAlias = Annotated[int, Interval(ge=1, le=1_000_000)]
"""A number of steps, or rounds, of a fit; more would run for days."""


@dataclass(frozen=True)
class TextOrNumber:
    """Annotation of a text option whose values may look like numbers: a file may hold an int.

    `examples` are shown in the error message.
    """

    examples: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], Any]) -> Any:
        from pydantic_core.core_schema import no_info_before_validator_function

        return no_info_before_validator_function(_as_written, handler(source))

    def __get_pydantic_json_schema__(self, core: Any, handler: Callable[[Any], Any]) -> Any:
        return {**handler(core), "examples": [*self.examples]}


def _as_written(value: object) -> object:
    """An int as text, any other value unchanged."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Layers: TypeAlias = Annotated[str, TextOrNumber(("all", "first:2", "last:2", "0"))]
"""Layers of a model: `all`, the first or last few, or one by its number; in a model with two stacks
all, or some of one stack, as `decoder.first:2`."""
Anchor: TypeAlias = Literal["central", "first", "base"] | Count
"""What experts are aligned to: the expert nearest to their mean, one by its number, or the base."""
ExpertAnchor: TypeAlias = Literal["central", "first"] | Count
"""An `Anchor` that cannot be the base."""
FREE: Any = int | float | bool | list[float] | str | None
"""The type of an option without an annotation; text is parsed as the first type that fits."""
SCALARS = (int, float, bool, str, list, type(None))
"""The types of values, which files keep as they are."""
VALUES = (
    "a number (harness.options has ranges), a Literal, text, true or false, a list of them, or None"
)


@dataclass(frozen=True)
class Option:
    """A keyword-only parameter with a default: its name, type with range, and default."""

    name: str
    annotation: Any
    default: Scalar

    @property
    def schema(self) -> Mapping[str, Any]:
        """The type and range as JSON Schema."""
        from harness.ranges import schema

        return schema(self.annotation)

    def read(self, value: Scalar, what: str) -> Scalar:
        """The value as the option's type, text parsed. Raises BadOption, a message about `what`."""
        from harness.ranges import expected

        try:
            scalar: Scalar = self._reader(value)
        except ValueError as error:
            message = f"{what} is {_shown(value)}, expected {expected(self.schema)}"
            raise BadOption(message) from error
        return scalar

    @cached_property
    def _reader(self) -> Callable[[object], Any]:
        from harness.ranges import reader

        return reader(self.annotation)


def _shown(value: Scalar) -> str:
    """A value as a user writes it; text in quotes unless it is a number, true or false."""
    scalar = Option("value", FREE, None).read(value, "value") if isinstance(value, str) else value
    return repr(value) if isinstance(scalar, str | None) else str(value)


def options(function: Callable[..., Any]) -> dict[str, Option]:
    """The options of a registered function, in the order of declaration.

    An option without an annotation accepts any value. Raises BadOption for an unsupported
    annotation, such as the type of an array.
    """
    # other callables may not be hashable
    reader = _declared if isinstance(function, FunctionType) else _declared.__wrapped__
    return dict(reader(function))


@cache  # one merge asks for the options of a method ten times
def _declared(function: Callable[..., Any]) -> dict[str, Option]:
    return {
        parameter.name: _option(parameter, function)
        for parameter in _parameters(function, inspect.Parameter.KEYWORD_ONLY)
        if parameter.default is not parameter.empty
    }


def _option(parameter: inspect.Parameter, function: Callable[..., Any]) -> Option:
    """The option of a parameter. Raises BadOption for a default that its type does not allow, or
    that a record would give back as another value: an enum, a tuple, a number of NumPy."""
    option = Option(parameter.name, _annotation(parameter, function), parameter.default)
    what = f"the default of option '{option.name}' of {_called(function)}"
    if type(option.default) not in SCALARS:
        found = f"{option.default!r:.80}, a {type(option.default).__name__}"
        raise BadOption(f"{what} is {found}; expected {VALUES}")
    option.read(option.default, what)
    return option


_signature = cache(inspect.signature)


def _parameters(function: Callable[..., Any], kind: Any) -> list[inspect.Parameter]:
    # a board asks for the needs of a method at every record
    read = _signature if isinstance(function, FunctionType) else inspect.signature
    return [one for one in read(function).parameters.values() if one.kind is kind]


def _annotation(parameter: inspect.Parameter, function: Callable[..., Any]) -> Any:
    """The type of an option. Raises BadOption for an unsupported or unresolvable annotation."""
    from harness.ranges import with_validators

    kind = parameter.annotation
    if kind is parameter.empty:
        return FREE
    try:
        # postponed annotations are text; those of other parameters may not resolve at run time
        if isinstance(kind, str):
            kind = eval(kind, getattr(inspect.unwrap(function), "__globals__", {}))
        with_validators(kind)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise BadOption(
            f"option '{parameter.name}' of {_called(function)} is declared wrongly: {error}; "
            f"expected {VALUES}"
        ) from error
    return kind


def _called(function: Callable[..., Any]) -> object:
    return getattr(function, "__qualname__", function)


def misplaced(function: Callable[..., Any], given: Sequence[str]) -> str | None:
    """What is wrong with the positional parameters of a function: they have to be `given`, in this
    order, without options, which would never be passed. None if they are right."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [parameter.name for kind in kinds for parameter in _parameters(function, kind)]
    expected = ", ".join(given)
    if more := names[len(given) :]:
        return f"has '{more[0]}' before a *, expected options after it: ({expected}, *, {more[0]})"
    if any(name in given and given.index(name) != place for place, name in enumerate(names)):
        return f"takes ({', '.join(names)}), expected ({expected}) in this order"
    if len(names) < len(given) and not _parameters(function, inspect.Parameter.VAR_POSITIONAL):
        return f"takes ({', '.join(names)}), expected ({expected})"
    return None


def needs(function: Callable[..., Any]) -> tuple[str, ...]:
    """The keyword-only parameters without a default: the harness, not the user, provides them."""
    parameters = _parameters(function, inspect.Parameter.KEYWORD_ONLY)
    return tuple(parameter.name for parameter in parameters if parameter.default is parameter.empty)


def resolve(kind: str, choice: Choice, *functions: Callable[..., Any]) -> dict[str, Scalar]:
    """All options of a choice including defaults, each checked against its type and range.

    The options of all functions are combined; if one takes **kwargs, any option is accepted, as
    given. Raises BadOption for an unknown name (with the nearest known one), and for a value of the
    wrong type or out of range.
    """
    known = {name: option for function in functions for name, option in options(function).items()}
    if any(_parameters(function, inspect.Parameter.VAR_KEYWORD) for function in functions):
        known |= {name: Option(name, FREE, None) for name in choice.options if name not in known}
    for name in choice.options:
        if name not in known:
            near = hint(name, known)
            raise BadOption(f"{kind} '{choice.name}' has no option '{name}'; {near}")
    return {
        name: option.read(choice.options[name], f"option '{name}' of {kind} '{choice.name}'")
        if name in choice.options
        else option.default
        for name, option in known.items()
    }


def parse_choice(text: str) -> Choice:
    """The choice for `NAME`, `NAME:key=value,...` or `module:function[:key=value,...]`.

    Raises BadOption for a part without `=`.
    """
    parts = text.split(":")
    name, rest = parts[0], parts[1:]
    if rest and "=" not in rest[0]:
        name, rest = f"{name}:{rest[0]}", rest[1:]
    values: dict[str, Scalar] = {}
    for pair in filter(None, ":".join(rest).split(",")):
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise BadOption(f"'{text}': '{pair}' is no option, expected NAME or NAME:key=value")
        values[key.strip()] = value.strip()
    return Choice(name, values)
