"""Shell: what a folder says of the task that its model was trained on, held to a task."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from harness.checkpoints.provenance import trained_by
from harness.data.rows import load_rows
from harness.errors import BadRecipe, HarnessError
from harness.types import TRAINED_ON, Checkpoint, Task

V = TypeVar("V")


def check_claim(
    model: Checkpoint, task: Task, folder: str | Path | None, *, flag: str = "--tasks"
) -> None:
    """Raise BadRecipe for a task, typed behind a flag, that a model's folder says it is not of.

    A model whose folder says nothing may be of any.
    """
    if model.tasks and called_in(model, task, folder) is None:
        raise BadRecipe(
            f"{model.source} was trained on {', '.join(model.tasks)} by its own record, found "
            f"{task} in {flag}; expected that task, or --other-tasks to accept another"
        )


def called_in(model: Checkpoint, task: Task, folder: str | Path | None) -> str | None:
    """What the folder of a model calls a task that it is of; None where it is of others.

    Names tell and, of a task that a file describes, the rows that it was trained on: one's own
    task may have been given another name since.
    """
    if task.name in model.tasks:
        return task.name
    said = trained_by(model.path)
    if said is None or not task.files:
        return None
    for name in said.tasks:
        count, digest = _of(said.rows, name), _of(said.rows_digest, name)
        try:
            if count and load_rows(task, TRAINED_ON, folder=folder, limit=count).digest == digest:
                return name
        except HarnessError:
            return None
    return None


def _of(said: V | dict[str, V], task: str) -> V | None:
    """What is said of a task, alone or by task."""
    return said.get(task) if isinstance(said, dict) else said
