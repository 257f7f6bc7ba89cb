"""Values that are read from files and flags: validated, frozen, and said in one line if wrong."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer, ValidationError

from harness.errors import BadRecipe
from harness.options import parse_choice
from harness.text import hint
from harness.types import AUTO, MOST_TOKENS, Choice, Length

Value = TypeVar("Value", bound="Frozen")


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


def validated(kind: type[Value], values: Mapping[str, Any], where: str) -> Value:
    """A recipe or run of the values. Raises BadRecipe, naming the field, for what does not fit."""
    if odd := [key for key in values if not isinstance(key, str)]:
        raise BadRecipe(f"{where}: no field is called {odd[0]!r}; {hint('', kind.model_fields)}")
    try:
        return kind(**values)
    except ValidationError as error:
        raise BadRecipe(f"{where}: {reason(error, kind)}") from error


def reason(error: ValidationError, kind: type[Frozen]) -> str:
    """What does not fit a kind of values: the first field, and why."""
    first = error.errors()[0]
    field = ".".join(map(str, first["loc"])) or "the whole"
    if first["type"] == "extra_forbidden":
        return f"no field is called '{field}'; {hint(field, kind.model_fields)}"
    return f"{field}: {first['msg'].removeprefix('Value error, ')}"
