"""The types and ranges of options: parsed by pydantic, and described in words.

Separate from `options`, since importing pydantic takes longer than all else that registries import.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Mapping
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, Strict, TypeAdapter


def schema(annotation: Any) -> Mapping[str, Any]:
    """The values that an annotation allows, as JSON Schema."""
    return TypeAdapter(annotation).json_schema()


def reader(annotation: Any) -> Callable[[object], Any]:
    """A function that converts text, or a value from a file, to the annotated type.

    It raises ValueError for any other value, and for infinite numbers and NaN.
    """
    return TypeAdapter(
        with_validators(annotation), config=ConfigDict(allow_inf_nan=False)
    ).validate_python


# Reading -----------------------------------------------------------------------------------


def _number(value: object) -> object:
    """The value, unless it is a bool, which Python takes for 1 or 0."""
    if isinstance(value, bool):
        raise ValueError("no number")
    return value


def _whole(value: object) -> object:
    """The value, unless it is a bool, or text with a decimal point such as `2.0`."""
    if isinstance(value, str) and "." in value:
        raise ValueError("no whole number")
    return _number(value)


def _true_or_false(value: object) -> bool:
    """The bool for `true` or `false`; 1, `yes` and the like are refused."""
    truth = {"true": True, "false": False}.get(str(value).lower())
    if truth is None:
        raise ValueError("neither true nor false")
    return truth


def _nothing(value: object) -> object:
    """None for `none`, any other value unchanged."""
    return None if str(value).lower() == "none" else value


def _items(value: object) -> object:
    """The parts of `0.1:0.2`, any other value unchanged."""
    return value.split(":") if isinstance(value, str) else value


READERS: Mapping[Any, tuple[Any, ...]] = {
    float: (BeforeValidator(_number),),
    int: (BeforeValidator(_whole),),
    bool: (BeforeValidator(_true_or_false),),
    type(None): (BeforeValidator(_nothing),),
    str: (Strict(),),
    Literal: (),
    # applied from the last: text is split before the type is checked
    list: (Strict(), BeforeValidator(_items)),
}
"""The types that options may have, and the validators with which each is parsed."""


def with_validators(annotation: Any) -> Any:
    """The annotation with the validators of READERS at every type; a union takes the first type
    that fits.

    Raises TypeError for a type that is not in READERS.
    """
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return Annotated[(with_validators(inner[0]), *inner[1:])]
    if origin in (typing.Union, types.UnionType):
        members: Any = reduce(or_, map(with_validators, inner))
        return Annotated[members, Field(union_mode="left_to_right")]
    if origin is list:
        annotation = types.GenericAlias(list, with_validators(inner[0]))
    if (origin or annotation) not in READERS:
        raise TypeError(f"{annotation} is no type of an option")
    readers = READERS[origin or annotation]
    return Annotated[(annotation, *readers)] if readers else annotation


# In words ----------------------------------------------------------------------------------

ONE = {"number": "a number", "integer": "a whole number", "boolean": "true or false",
       "string": "text", "null": "nothing"}  # fmt: skip
SEVERAL = {"number": "numbers", "integer": "whole numbers", "string": "texts"}
BOUNDS = {"exclusiveMinimum": "above", "minimum": "at least", "exclusiveMaximum": "below",
          "maximum": "up to"}  # fmt: skip
UNSAID = {"type", "items", "enum", "const", "anyOf", "title", "description", "default", "examples"}
"""Keys of a schema that are not limits."""


def expected(schema: Mapping[str, Any]) -> str:
    """The values that a schema allows, in words: `a number above 0`."""
    if members := schema.get("anyOf"):
        several = "several separated by ':'"  # if the type of the items is a member, too
        shown = (several if one.get("items") in members else expected(one) for one in members)
        return " or ".join(shown)
    if chosen := choices(schema):
        return " or ".join(map(repr, chosen))
    if schema.get("type") == "array":
        several = f"{_ranged(SEVERAL, schema['items'])} separated by ':'"
        return ", ".join([several, *bounds(schema)])
    return _ranged(ONE, schema)


def _ranged(kinds: Mapping[str, str], schema: Mapping[str, Any]) -> str:
    """`a whole number of at least 1`, `numbers from 0 to 1`."""
    kind, within = kinds.get(schema.get("type", ""), "another value"), bounds(schema)
    of = " of" if within and within[0].startswith(BOUNDS["minimum"]) else ""
    as_ = f" as {', '.join(map(str, schema['examples']))}" if "examples" in schema else ""
    return f"{kind}{of} {' and '.join(within)}{as_}" if within else f"{kind}{as_}"


def choices(schema: Mapping[str, Any]) -> list[Any]:
    """The values that a schema enumerates, if it does."""
    return list(schema.get("enum", [schema["const"]] if "const" in schema else []))


def bounds(schema: Mapping[str, Any]) -> list[str]:
    """The limits of a schema: `above 0` and `up to 1`, or `from 0 to 1` where both are closed.

    Others are shown under their names in JSON Schema: `multipleOf 2`.
    """
    if {"minimum", "maximum"} <= schema.keys():
        return [f"from {schema['minimum']} to {schema['maximum']}"]
    ordered = [key for key in BOUNDS if key in schema]
    ordered += sorted(schema.keys() - BOUNDS.keys() - UNSAID)
    return [f"{BOUNDS.get(key, key)} {schema[key]}" for key in ordered]
