"""What is registered, as plain values: the text of `harness list`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.merging.plan import parts
from harness.options import options
from harness.registry import MERGERS, METRICS, PREMERGE, PROTOCOLS, TASKS, Merger
from harness.types import Task

REGISTRIES: Mapping[str, Mapping[str, Any]] = {
    "mergers": MERGERS,
    "premerge": PREMERGE,
    "tasks": TASKS,
    "protocols": PROTOCOLS,
    "metrics": METRICS,
}


def catalogue(what: str) -> list[dict[str, Any]]:
    """Name, first line, paper and options with defaults of everything in one registry."""
    registry = REGISTRIES[what]
    return [
        {
            "name": name,
            "summary": _task_summary(value) if isinstance(value, Task) else _first_line(value),
            "paper": value.paper,
            "options": {
                option.name: option.default
                for function in _functions(value)
                for option in options(function).values()
            },
        }
        for name, value in registry.items()
    ]


def _functions(value: Any) -> tuple[Callable[..., Any], ...]:
    """The functions whose options an entry has; a merger's are also those of its statistics."""
    if isinstance(value, Task):
        return ()
    return parts(value) if isinstance(value, Merger) else (value.function,)


def _first_line(value: Any) -> str:
    return (inspect.getdoc(value.function) or "").partition("\n")[0]


def _task_summary(task: Task) -> str:
    labels = f"{len(task.labels)} labels" if task.labels else "a number"
    place = f"{task.source} at {task.revision[:8]}" if task.revision else task.source
    source = "generated" if task.generate else place or "local folder only"
    return f"{task.kind}, {labels}, {'+'.join(task.metrics)}, @{task.reported}; {source}"


def rendered(found: Sequence[Mapping[str, Any]]) -> str:
    """The entries as text: a line each, options below."""
    width = max((len(entry["name"]) for entry in found), default=0)
    lines = []
    for entry in found:
        paper = f"  [{entry['paper']}]" if entry["paper"] else ""
        lines.append(f"{entry['name']:<{width}}  {entry['summary']}{paper}")
        if entry["options"]:
            shown = ", ".join(f"{key}={_shown(value)}" for key, value in entry["options"].items())
            lines.append(f"{'':<{width}}    {shown}")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return {"None": "none", "True": "true", "False": "false"}.get(str(value), str(value))
