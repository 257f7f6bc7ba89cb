"""Writes api.md, the page of all public names, from their docstrings: `make docs`."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, get_origin

import harness
from harness.registry import Registry

PAGE = Path(__file__).with_name("api.md")
HEAD = """# API

Every public name with its docstring, written by `make docs`.
Everything else may change without notice.
"""
ROOMS = {
    "harness.weights": "Verbs on state dicts, for methods; tensors are computed when asked for.",
    "harness.options": "Ranges of options, to be used as their types.",
    "harness.rng": "Random numbers that depend on names alone.",
    "harness.errors": "What can go wrong, in one line, and exit 2 (CellsFailed: 3).",
}
"""Public modules beside `harness` itself, and what they are for."""


def page() -> str:
    """The page: the names of `harness`, and those of the modules in `ROOMS`."""
    parts = [HEAD, "## harness", *_sections(harness, harness.__all__)]
    for name, what in ROOMS.items():
        room = importlib.import_module(name)
        parts += [f"## {name}", what, *_sections(room, _public(room))]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _public(room: ModuleType) -> list[str]:
    """The names in `__all__` of a module, else the public names that it defines."""
    if hasattr(room, "__all__"):
        return sorted(room.__all__)
    own = [name for name in vars(room) if not name.startswith("_")]
    return [name for name in own if name in _described(room) or _is_of(room, name)]


def _is_of(room: ModuleType, name: str) -> bool:
    value = getattr(room, name)
    made = _is_class(value) or inspect.isfunction(value)
    return made and value.__module__ == room.__name__


def _is_class(value: Any) -> bool:
    """Whether a value is a class; Python 3.10 also takes `tuple[int]` for one."""
    return inspect.isclass(value) and get_origin(value) is None


def _described(room: ModuleType) -> dict[str, str]:
    """Docstrings of plain values: the bare string below an assignment."""
    lines = re.findall(
        r'^(\w+)(?:: [^\n=]+)? = [^\n]*\n"""(.*?)"""', inspect.getsource(room), re.M | re.S
    )
    return {name: " ".join(text.split()) for name, text in lines}


def _sections(room: ModuleType, names: list[str]) -> Iterator[str]:
    for name in names:
        yield _section(name, getattr(room, name), _described(room))


def _section(name: str, value: Any, described: dict[str, str]) -> str:
    if isinstance(value, Registry):
        return f"### {name}\n\nThe registry of {value.kind}s, a mapping from names."
    if _is_class(value):
        return f"### {name}\n\n{_doc(value)}{_fields(value)}{_methods(value)}"
    if inspect.isfunction(value):
        return f"### {name}\n\n```python\n{name}{_signature(value)}\n```\n\n{_doc(value)}"
    return f"### {name}\n\n{described.get(name) or _spelled(value)}"


def _doc(value: Any) -> str:
    return (inspect.getdoc(value) or "").strip() if value.__doc__ else ""


def _spelled(value: Any) -> str:
    return f"`{str(value).replace('typing.', '')}`"


def _signature(function: Any) -> str:
    """The parameters and the result, with a line for each parameter if that is long."""
    signature = inspect.signature(function)
    parameters, kinds = [], list(signature.parameters.values())
    for before, one in zip([None, *kinds], kinds, strict=False):
        if one.kind is one.KEYWORD_ONLY and (before is None or before.kind is not one.kind):
            parameters.append("*")
        parameters.append(_parameter(one))
    given = signature.return_annotation
    result = "" if given is signature.empty else f" -> {given}"
    whole = f"({', '.join(parameters)}){result}"
    if len(whole) <= 80:
        return whole
    return "(\n" + "".join(f"    {line},\n" for line in parameters) + f"){result}"


def _parameter(one: inspect.Parameter) -> str:
    stars = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    kind = "" if one.annotation is one.empty else f": {one.annotation}"
    default = "" if one.default is one.empty else f"{' = ' if kind else '='}{_shown(one.default)}"
    return f"{stars}{one.name}{kind}{default}"


def _shown(value: object) -> str:
    """A default as text, without memory addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def _fields(value: Any) -> str:
    """A table of the fields of a frozen value: name, type and default."""
    if dataclasses.is_dataclass(value):
        known = {one.name: (str(one.type), one.default) for one in dataclasses.fields(value)}
        empty: Any = dataclasses.MISSING
    elif hasattr(value, "model_fields"):
        types = {
            k: v
            for kind in reversed(value.__mro__)
            for k, v in vars(kind).get("__annotations__", {}).items()
        }
        known = {name: (str(types[name]), one.default) for name, one in value.model_fields.items()}
        from pydantic_core import PydanticUndefined as empty
    else:
        return ""
    rows = [
        f"| `{name}` | `{kind}` | {'' if default is empty else f'`{_shown(default)}`'} |".replace(
            " | None", " \\| None"
        )
        for name, (kind, default) in known.items()
        if not name.startswith("_")
    ]
    return "\n\n| field | type | default |\n|---|---|---|\n" + "\n".join(rows)


def _methods(value: Any) -> str:
    """A list of a class's own public methods and properties."""
    lines = []
    for name, member in vars(value).items():
        if isinstance(member, property | cached_property):
            shown = name
        elif inspect.isfunction(member):
            signature = str(inspect.signature(member)).replace("'", "")
            shown = name + re.sub(r"self(, )?", "", signature, count=1)
        else:
            continue
        if not name.startswith("_") and name not in getattr(value, "__dataclass_fields__", ()):
            lines.append(f"- `{shown}`: {' '.join(_doc(member).split())}")
    return "\n\n" + "\n".join(lines) if lines else ""


if __name__ == "__main__":
    from harness.files import write_text

    write_text(PAGE, page())
    print(f"wrote {PAGE}")
