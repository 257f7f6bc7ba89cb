"""Groups of tasks, by name: `glue`, `ner`, `emotion-ood`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from harness.data.sources import data_dir, is_there
from harness.errors import BadData
from harness.registry import TASKS
from harness.types import Task


def expanded(names: Sequence[str], folder: str | Path | None = None) -> tuple[str, ...]:
    """Names of tasks, with every group (`ner`, `glue@heldout10`) replaced by its tasks.

    With a local data folder, only those tasks of a group that it has. Raises BadData if it has
    none of them.
    """
    tasks: list[str] = []
    for text in names:
        name, sign, split = text.partition("@")
        members = groups().get(name, []) if "/" not in name and name not in TASKS else []
        available = [task for task in members if is_there(task, folder)]
        if members and not available:
            listed = ", ".join(task.name for task in members)
            place = data_dir(folder) or "--data-dir, which is not given"
            raise BadData(f"no data for any task of '{name}' at {place}; the group is {listed}")
        found = [f"{task.name}{sign}{split}" for task in available] if members else [text]
        tasks += [name for name in found if not members or name not in tasks]
    return tuple(tasks)


def groups() -> dict[str, list[Task]]:
    """The tasks of every group, by the name of the group."""
    by_group: dict[str, list[Task]] = {}
    for name, task in TASKS.items():
        for group in (task.group or name.partition("/")[0]).split():
            if group != name:
                by_group.setdefault(group, []).append(task)
    return by_group
