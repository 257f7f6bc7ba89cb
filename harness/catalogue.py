"""What is registered, as plain values, and the text of `harness list`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from harness.entries import Method
from harness.errors import BrokenCheckpoint, CannotWrite
from harness.files import cache_dir, read_json, write_json
from harness.hashes import digest_of
from harness.methods import functions
from harness.options import options
from harness.plugins import files_of_ours
from harness.ranges import expected
from harness.registry import REGISTRIES
from harness.text import aligned, wrapped
from harness.types import Task


def catalogue(what: str) -> list[dict[str, Any]]:
    """Name, summary, paper and options of every entry of a registry.

    An option is its default, with its type and range as JSON Schema.
    """
    return [
        {
            "name": name,
            "summary": _summary(value),
            "paper": value.paper,
            "options": {
                option.name: {"default": option.default, **option.schema}
                for function in _functions(value)
                for option in options(function).values()
            },
        }
        for name, value in REGISTRIES[what].items()
    ]


def remembered(what: str) -> list[dict[str, Any]]:
    """The catalogue, read from the cache unless a plug-in is registered or a file of ours changed.

    Importing every method takes seconds, most of them for torch.
    """
    if REGISTRIES[what].has_others:
        return catalogue(what)
    stats = [(path, path.stat()) for path in files_of_ours()]
    files = [(str(path), status.st_size, status.st_mtime_ns) for path, status in stats]
    key = digest_of([what, files])
    path = cache_dir("lists") / f"{key}.json"
    try:
        entries: list[dict[str, Any]] = read_json(path, "a list of what is registered")["entries"]
    except (BrokenCheckpoint, KeyError):
        entries = catalogue(what)
        with suppress(CannotWrite):
            write_json(path, {"entries": entries})
    return entries


def families() -> list[dict[str, Any]]:
    """The supported architectures: names, model types, inputs, and units that they label.

    `symmetries` are the groups of hidden units that can be transformed without changing outputs.
    """
    from harness.checkpoints.families.known import FAMILY_OF_TYPE
    from harness.weights import group_of

    entries = []
    for name, family in {family.name: family for family in FAMILY_OF_TYPE.values()}.items():
        tables = [family.axes, *(top.axes for top in family.tops)]
        axes = [axis for table in tables for of_tensor in table.values() for axis in of_tensor]
        groups = dict.fromkeys(group_of(axis).partition(".")[0] for axis in axes if axis)
        entries.append(
            {
                "name": name,
                "model_types": [*family.model_types],
                "inputs": family.inputs,
                "units": ["row", "word"] if family.word else ["row"],
                "symmetries": [*groups],
            }
        )
    return entries


def in_columns(entries: Sequence[Mapping[str, Any]]) -> str:
    """A table of entries with the same keys, which are its header."""
    rows = [[v if isinstance(v, str) else ", ".join(v) for v in row.values()] for row in entries]
    return aligned(rows, [*entries[0]], "plain", len(entries[0]))


def _functions(value: Any) -> tuple[Callable[..., Any], ...]:
    """The functions whose options an entry has: its own and, for a method, those of its needs."""
    if isinstance(value, Task):
        return ()
    return functions(value) if isinstance(value, Method) else (value.function,)


def _summary(entry: Any) -> str:
    """The first line of a function's docstring; for a task its kind, labels, metrics and source."""
    if not isinstance(entry, Task):
        return (inspect.getdoc(entry.function) or "").partition("\n")[0]
    labels = f"{len(entry.labels)} labels" if entry.labels else "a number"
    place = f"{entry.source} at {entry.revision[:8]}" if entry.revision else entry.source
    source = "generated" if entry.generate else place or "local folder only"
    return f"{entry.kind}, {labels}, {'+'.join(entry.metrics)}, @{entry.reported}; {source}"


WIDTH = 80
"""The width in columns if there is no terminal."""


def rendered(entries: Sequence[Mapping[str, Any]], columns: int | None = None) -> str:
    """The entries as wrapped text: summary, and options with defaults and ranges."""
    columns = columns or WIDTH
    names = max((len(entry["name"]) for entry in entries), default=0)
    lines = []
    for entry in entries:
        paper = f"  [{entry['paper']}]" if entry["paper"] else ""
        text = f"{entry['name']:<{names}}  {entry['summary']}{paper}"
        lines.append(wrapped(text, columns, further=" " * (names + 2)))
        shown = [_option(name, schema) for name, schema in entry["options"].items()]
        if shown:
            # lines end between options, and within an option only if it exceeds a line
            glued = (one.replace(" ", GLUE) if len(one) < columns - 4 else one for one in shown)
            row = ", ".join(glued)
            lines.append(wrapped(row, columns, indent="    ", further="    "))
    return "\n".join(line.replace(GLUE, " ") for line in lines)


GLUE = "\0"
"""Stands for a space at which no line may end."""


def _option(name: str, schema: Mapping[str, Any]) -> str:
    """An option in the form `density=0.2 (a number above 0 and up to 1)`."""
    default = schema["default"]
    value = {"None": "none", "True": "true", "False": "false"}.get(str(default), str(default))
    return f"{name}={value} ({expected(schema)})"
