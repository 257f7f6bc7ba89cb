"""Values read from files and flags: validated, frozen, with errors in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from numbers import Integral
from pathlib import PurePath
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    PositiveInt,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from harness.errors import BadRecipe, HarnessError
from harness.hyperparameters import MOST_TOKENS
from harness.options import parse_choice
from harness.text import hint, is_whole_number
from harness.types import AUTO, Choice, Length

Value = TypeVar("Value", bound="Frozen")
RequestT = TypeVar("RequestT", bound="Request")
Model = TypeVar("Model", bound=BaseModel)


def _choice(value: object) -> object:
    """`"ties:density=0.2"` or `{name: ties, density: 0.2}` as a Choice."""
    if isinstance(value, str):
        return parse_choice(value)
    if isinstance(value, Mapping):
        if not isinstance(value.get("name"), str):
            raise ValueError("a method is written as NAME, NAME:key=value or {name: NAME, ...}")
        options = value.get("options", {k: v for k, v in value.items() if k != "name"})
        return Choice(value["name"], dict(options))
    return value


def _written(choice: Choice) -> dict[str, Any]:
    return {"name": choice.name, **choice.options}


Chosen = Annotated[Choice, BeforeValidator(_choice), PlainSerializer(_written)]


def _no_truth(value: object) -> object:
    """The value, unless it is true or false, which Python takes for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError(f"{EXPECTED}a whole number")
    return value


Whole = Annotated[int, BeforeValidator(_no_truth)]
PositiveWhole = Annotated[PositiveInt, BeforeValidator(_no_truth)]


def tokens(value: object, of: str = "tokens") -> Length:
    """The length for `128`, as a number or text, or `auto`. Raises ValueError for anything else.

    `of` is what is counted, for the message.
    """
    text = str(value)
    if text == AUTO:
        return AUTO
    if isinstance(value, bool) or not is_whole_number(text) or not 0 < int(text) <= MOST_TOKENS:
        most = f"greater than 0 and at most {MOST_TOKENS}"
        raise ValueError(f"{text[:40]!r} is no number of {of} {most}, nor auto")
    return int(text)


Tokens = Annotated[Length, BeforeValidator(tokens)]
RowsAtOnce = Annotated[Length, BeforeValidator(partial(tokens, of="rows"))]


def one_or_more(names: str | PurePath | Iterable[str | PurePath]) -> list[str]:
    """The names as text; a text is one name, whose letters Python would take for names."""
    return [str(name) for name in ([names] if isinstance(names, str | PurePath) else names)]


def one_name(name: str | PurePath, what: str) -> str:
    """The name or path as text. Raises BadRecipe, naming `what` it is of, for anything else."""
    if not isinstance(name, str | PurePath):
        raise BadRecipe(f"{what} is {name!r:.80}, expected one name or path")
    return str(name)


class Frozen(BaseModel):
    """A value that refuses unknown fields and never changes."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    def but(self: Value, **changed: Any) -> Value:
        """A copy with some fields changed, without validation."""
        return self.model_copy(update=changed)


class Request(Frozen):
    """A request that may be made in Python too: a Path stands for its text, and a single value for
    a list of one.

    Raises BadRecipe, in one line, for invalid fields.
    """

    @model_validator(mode="wrap")
    @classmethod
    def _in_one_line(cls, fields: Any, make: Callable[[Any], Any], info: ValidationInfo) -> Any:
        if not isinstance(fields, Mapping) and not isinstance(fields, cls):
            raise BadRecipe(f"{cls.__name__} is {fields!r:.80}, expected fields by their names")
        try:
            return make({name: cls._spelled(name, value) for name, value in dict(fields).items()})
        except ValidationError as error:
            raise BadRecipe(f"{info.context or cls.__name__}: {reason(error, cls)}") from error

    def but(self: RequestT, **changed: Any) -> RequestT:
        """A copy with some fields changed, which are validated."""
        checked = type(self)(**{**dict(self), **changed})
        return self.model_copy(update={name: getattr(checked, name) for name in changed})

    @classmethod
    def _spelled(cls, name: str, value: Any) -> Any:
        """The value of a field: a path as text and, for a tuple field, a single value as a list."""
        field = cls.model_fields.get(name)
        single = isinstance(value, str | Integral | PurePath | Choice | Mapping)
        single = single and not isinstance(value, bool)
        several = field is not None and get_origin(field.annotation) is tuple
        if several and (single or isinstance(value, Iterable)):
            return [cls._spelled("", item) for item in ([value] if single else value)]
        return str(value) if isinstance(value, PurePath) else value


def validated(
    kind: type[Model], values: Mapping[str, Any], where: str, error: type[HarnessError] = BadRecipe
) -> Model:
    """The values as a model `kind`. Raises `error`, naming `where` and the field, if invalid."""
    if wrong := [key for key in values if not isinstance(key, str)]:
        raise error(f"{where}: no field is called {wrong[0]!r}; {hint('', kind.model_fields)}")
    try:
        return kind.model_validate(dict(values), context=where)
    except ValidationError as found:
        raise error(f"{where}: {reason(found, kind)}") from found


def reason(error: ValidationError, kind: type[BaseModel]) -> str:
    """The first mistake in values for a model `kind`, in one line: an unknown field or, if there is
    none, an invalid field with the value found and the reason."""
    faults = error.errors()
    # for `expert` in place of `experts`, report the unknown name, not the missing field
    first = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    # for a union, the location names one of its types: `labels.tuple[str, ...]`
    field = ".".join(part for part in map(str, first["loc"]) if "[" not in part) or "the whole"
    if first["type"] == "extra_forbidden":
        *outer, last = first["loc"]
        return f"no field is called '{field}'; {hint(str(last), _within(kind, outer).model_fields)}"
    message = first["msg"].removeprefix("Value error, ")
    if message.startswith(EXPECTED):
        expected = message.removeprefix(EXPECTED).replace("tuple", "list")
        return f"{field} is {first['input']!r:.80}, expected {expected}"
    return f"{field}: {message}"


EXPECTED = "Input should be "
"""Prefix of pydantic's message about an expected value."""


def _within(kind: type[BaseModel], place: Sequence[int | str]) -> type[BaseModel]:
    """The model class of the values at a location in a value of `kind`; list indices and other keys
    that are not fields are skipped."""
    for part in place:
        field = kind.model_fields.get(str(part))
        kind = next(_kinds(field.annotation), kind) if field else kind
    return kind


def _kinds(annotation: Any) -> Iterator[type[Frozen]]:
    """The model classes in a type annotation."""
    if isinstance(annotation, type) and issubclass(annotation, Frozen):
        yield annotation
    for part in get_args(annotation):
        yield from _kinds(part)
