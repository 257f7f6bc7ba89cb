"""Shell: the task that a model's folder says it was trained on, compared with a task."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TypeVar

from harness.checkpoints.provenance import read_expert_json
from harness.data.parts import part_of
from harness.data.rows import load_rows
from harness.data.sources import data_dir
from harness.errors import BadRecipe, HarnessError
from harness.readout import LAST_LINEAR
from harness.types import TRAINED_ON, Checkpoint, Task

V = TypeVar("V")


def check_claim(
    model: Checkpoint, task: Task, folder: str | Path | None, *, flag: str = "--tasks"
) -> None:
    """Raise BadRecipe if a model's folder names the tasks it was trained on, and not this one.

    `flag` is the option in which the task was given. A folder that names no task raises nothing.
    """
    if model.tasks and called_in(model, task, folder) is None:
        raise BadRecipe(
            f"{model.source} was trained on {', '.join(model.tasks)} as its record says, found "
            f"{task} in {flag}; expected that task, or --other-tasks to accept another"
        )


def called_in(model: Checkpoint, task: Task, folder: str | Path | None) -> str | None:
    """The name of a task in the folder of a model trained on it; None for a model of other tasks.

    Recognised by its name or, for a task that a file describes, by the training rows: a user may
    have renamed it since.
    """
    if task.name in model.tasks:
        return task.name
    info = read_expert_json(model.path)
    if info is None or not task.files:
        return None
    for name in info.tasks:
        count, digest = _of(info.rows, name), _of(info.rows_digest, name)
        try:
            if count and load_rows(task, TRAINED_ON, folder=folder, limit=count).digest == digest:
                return name
        except HarnessError:
            return None
    return None


def tell_of_other_rows(model: Checkpoint, task: Task, folder: str | Path | None) -> None:
    """Warn if an expert was trained on other rows of the task than this machine has now.

    Such an expert may have seen the rows that are scored.
    """
    info, here = read_expert_json(model.path), bool(task.generate or task.files or data_dir(folder))
    name = called_in(model, task, folder) if info is not None and here else None
    if info is None or name is None or info.readout != LAST_LINEAR.name:
        return  # a preset reads other columns of the same rows
    count, digest = _of(info.rows, name), _of(info.rows_digest, name)
    if not count or not digest:
        return
    try:
        rows = load_rows(task, TRAINED_ON, folder=folder, limit=None if info.part else count)
    except HarnessError:  # without training rows there is nothing to compare
        return
    if (part_of(rows, info.part) if info.part else rows).digest != digest:
        warnings.warn(
            f"{model.source} was trained on other rows than {task}@{TRAINED_ON} has now: it may "
            "have seen rows that are scored; train it again, or give the data it was trained on",
            stacklevel=2,
        )


def _of(values: V | dict[str, V], task: str) -> V | None:
    """The value for a task: `values` itself, or its entry where it is a mapping by task."""
    return values.get(task) if isinstance(values, dict) else values
