"""Values that are read from files and flags: validated, frozen, and said in one line if wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from numbers import Integral
from pathlib import PurePath
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    ValidationError,
    ValidationInfo,
    model_validator,
)

from harness.errors import BadRecipe, HarnessError
from harness.options import parse_choice
from harness.text import hint
from harness.types import AUTO, MOST_TOKENS, Choice, Length

Value = TypeVar("Value", bound="Frozen")
Request = TypeVar("Request", bound="Asked")
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


def tokens(value: object, of: str = "tokens") -> Length:
    """`128`, as a number or as text, or `auto`. Raises ValueError for any other length."""
    text = str(value)
    if text == AUTO:
        return AUTO
    if isinstance(value, bool) or not text.isdecimal() or not 0 < int(text) <= MOST_TOKENS:
        most = f"greater than 0 and at most {MOST_TOKENS}"
        raise ValueError(f"{text[:40]!r} is no number of {of} {most}, nor auto")
    return int(text)


Tokens = Annotated[Length, BeforeValidator(tokens)]
RowsAtOnce = Annotated[Length, BeforeValidator(partial(tokens, of="rows"))]


class Frozen(BaseModel):
    """A value that refuses unknown fields and never changes."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    def but(self: Value, **changed: Any) -> Value:
        """The same with some fields changed, which are taken as they are."""
        return self.model_copy(update=changed)


class Asked(Frozen):
    """What is asked for in Python as well: a folder may be a Path, and one value a list of one.

    Raises BadRecipe, in one line, for what does not fit.
    """

    @model_validator(mode="wrap")
    @classmethod
    def _in_one_line(cls, given: Any, made: Callable[[Any], Any], about: ValidationInfo) -> Any:
        if not isinstance(given, Mapping) and not isinstance(given, cls):
            raise BadRecipe(f"{cls.__name__} is {given!r:.80}, expected fields by their names")
        try:
            return made({name: cls._spelled(name, value) for name, value in dict(given).items()})
        except ValidationError as error:
            raise BadRecipe(f"{about.context or cls.__name__}: {reason(error, cls)}") from error

    def but(self: Request, **changed: Any) -> Request:
        """The same with some fields changed, which are read as when it is made."""
        made = type(self)(**{**dict(self), **changed})
        return self.model_copy(update={name: getattr(made, name) for name in changed})

    @classmethod
    def _spelled(cls, name: str, value: Any) -> Any:
        field = cls.model_fields.get(name)
        alone = isinstance(value, str | Integral | PurePath | Choice | Mapping)
        alone = alone and not isinstance(value, bool)
        several = field is not None and get_origin(field.annotation) is tuple
        if several and (alone or isinstance(value, list | tuple)):
            return [cls._spelled("", one) for one in ([value] if alone else value)]
        return str(value) if isinstance(value, PurePath) else value


def validated(
    kind: type[Model], values: Mapping[str, Any], where: str, error: type[HarnessError] = BadRecipe
) -> Model:
    """The values as a model. Raises `error`, naming the field, for what does not fit."""
    if odd := [key for key in values if not isinstance(key, str)]:
        raise error(f"{where}: no field is called {odd[0]!r}; {hint('', kind.model_fields)}")
    try:
        return kind.model_validate(dict(values), context=where)
    except ValidationError as found:
        raise error(f"{where}: {reason(found, kind)}") from found


def reason(error: ValidationError, kind: type[BaseModel]) -> str:
    """What does not fit a kind of values: the first field that is none of it, else the first that
    does not fit, what was found, and why."""
    found = error.errors()
    # `expert` for `experts` lacks one field and has another: the name is what is wrong
    first = next((one for one in found if one["type"] == "extra_forbidden"), found[0])
    # of a value that may be of several types, the place names one: `labels.tuple[str, ...]`
    field = ".".join(one for one in map(str, first["loc"]) if "[" not in one) or "the whole"
    if first["type"] == "extra_forbidden":
        *outer, last = first["loc"]
        return f"no field is called '{field}'; {hint(str(last), _within(kind, outer).model_fields)}"
    message = first["msg"].removeprefix("Value error, ")
    if message.startswith(EXPECTED):
        expected = message.removeprefix(EXPECTED).replace("tuple", "list")
        return f"{field} is {first['input']!r:.80}, expected {expected}"
    return f"{field}: {message}"


EXPECTED = "Input should be "
"""How pydantic says what it expected."""


def _within(kind: type[BaseModel], place: Sequence[int | str]) -> type[BaseModel]:
    """The kind of the values at a place in one of a kind, among lists and names of any."""
    for part in place:
        field = kind.model_fields.get(str(part))
        kind = next(_kinds(field.annotation), kind) if field else kind
    return kind


def _kinds(annotation: Any) -> Iterator[type[Frozen]]:
    """The kinds of values in a type."""
    if isinstance(annotation, type) and issubclass(annotation, Frozen):
        yield annotation
    for part in get_args(annotation):
        yield from _kinds(part)
