"""The types and ranges of options: read by pydantic, and said in words.

Apart from `options`, as pydantic takes longer to import than all else that names need.
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
    """What an option of an annotation may be, as JSON Schema."""
    return TypeAdapter(annotation).json_schema()


def reader(annotation: Any) -> Callable[[object], Any]:
    """What turns text or a value of a file into a value of the annotation, or raises ValueError.

    Text is parsed; no number is infinite or NaN.
    """
    return TypeAdapter(reading(annotation), config=ConfigDict(allow_inf_nan=False)).validate_python


# Reading -----------------------------------------------------------------------------------


def _number(value: object) -> object:
    """Anything but true and false, which are 1 and 0 to Python."""
    if isinstance(value, bool):
        raise ValueError("no number")
    return value


def _whole(value: object) -> object:
    """Anything but `2.0`, which is for an option that may be a fraction."""
    if isinstance(value, str) and "." in value:
        raise ValueError("no whole number")
    return _number(value)


def _true_or_false(value: object) -> bool:
    """`true` and `false` alone: 1, `yes` and the like are slips."""
    read = {"true": True, "false": False}.get(str(value).lower())
    if read is None:
        raise ValueError("neither true nor false")
    return read


def _nothing(value: object) -> object:
    return None if str(value).lower() == "none" else value


def _items(value: object) -> object:
    return value.split(":") if isinstance(value, str) else value


READERS: Mapping[Any, tuple[Any, ...]] = {
    float: (BeforeValidator(_number),),
    int: (BeforeValidator(_whole),),
    bool: (BeforeValidator(_true_or_false),),
    type(None): (BeforeValidator(_nothing),),
    str: (Strict(),),
    Literal: (),
    # outside in: text is split before it is held to be a list
    list: (Strict(), BeforeValidator(_items)),
}
"""The types that options may have, and what reads them as strictly as text asks for."""


def reading(annotation: Any) -> Any:
    """The annotation with a reader at every type in it; of a union, the first that fits.

    Raises TypeError for a type that is none of READERS.
    """
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return Annotated[(reading(inner[0]), *inner[1:])]
    if origin in (typing.Union, types.UnionType):
        members: Any = reduce(or_, map(reading, inner))
        return Annotated[members, Field(union_mode="left_to_right")]
    if origin is list:
        annotation = types.GenericAlias(list, reading(inner[0]))
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


def expected(schema: Mapping[str, Any]) -> str:
    """The values that a schema allows, as an error line says it: `a number above 0`."""
    if members := schema.get("anyOf"):
        several = "several separated by ':'"  # of what another member is one of
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
    """The only values that a schema allows, if it names them."""
    return list(schema.get("enum", [schema["const"]] if "const" in schema else []))


def bounds(schema: Mapping[str, Any]) -> list[str]:
    """The limits of a schema: `above 0` and `up to 1`, or `from 0 to 1` where both are closed.

    One that there is no word for is said as JSON Schema does: `multipleOf 2`.
    """
    if {"minimum", "maximum"} <= schema.keys():
        return [f"from {schema['minimum']} to {schema['maximum']}"]
    ordered = [key for key in BOUNDS if key in schema]
    ordered += sorted(schema.keys() - BOUNDS.keys() - UNSAID)
    return [f"{BOUNDS.get(key, key)} {schema[key]}" for key in ordered]
