"""Shell: what a folder says of the task that its model was trained on, held to a task."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TypeVar

from harness.checkpoints.provenance import trained_by
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


def tell_of_other_rows(model: Checkpoint, task: Task, folder: str | Path | None) -> None:
    """Warn of an expert of a task whose training rows, if they are on this machine, are others by
    now: it may have seen those that are scored."""
    said, here = trained_by(model.path), bool(task.generate or task.files or data_dir(folder))
    name = called_in(model, task, folder) if said is not None and here else None
    if said is None or name is None or said.readout != LAST_LINEAR.name:
        return  # a preset reads other columns of the same rows
    count, digest = _of(said.rows, name), _of(said.rows_digest, name)
    if not count or not digest:
        return
    try:
        rows = load_rows(task, TRAINED_ON, folder=folder, limit=None if said.part else count)
    except HarnessError:  # without training rows there is nothing to be held to
        return
    if (part_of(rows, said.part) if said.part else rows).digest != digest:
        warnings.warn(
            f"{model.source} was trained on other rows than {task}@{TRAINED_ON} has now: it may "
            "have seen those that are scored; train it again, or give the data that it was of",
            stacklevel=2,
        )


def _of(said: V | dict[str, V], task: str) -> V | None:
    """What is said of a task, alone or by task."""
    return said.get(task) if isinstance(said, dict) else said
