"""Tasks that are not registered by name: how a folder records them, and how they are found."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from harness.checkpoints.provenance import (
    EXPERT_FILE,
    MERGE_FILE,
    ExpertJson,
    MergeJson,
    first_record_in,
)
from harness.errors import BadRecipe, HarnessError, UnknownName
from harness.registry import TASKS, YAML
from harness.types import Checkpoint


def task_fields(tasks: Collection[str], out: Path) -> dict[str, Any]:
    """The keys `spelled` and `described` (provenance.MadeRecord) of a record in `out`."""
    spelled = {task: typed for task in tasks if (typed := TASKS.typed_name(task))}
    paths = {t: os.path.abspath(typed) for t, typed in spelled.items() if typed.endswith(YAML)}
    places = {
        task: {"relative": os.path.relpath(path, os.path.abspath(out)), "path": path}
        for task, path in paths.items()
    }
    return {key: value for key, value in (("spelled", spelled), ("described", places)) if value}


def register_tasks(typed: Sequence[str], *groups: Sequence[Checkpoint]) -> None:
    """Register the tasks that were typed as YAML files; then those of each group of models by the
    descriptions that their folders name, unless an earlier group or the user has described them.

    Tasks registered by code are left as they are. A description in a folder that is missing or
    broken is an error only when the task is looked up. Raises BadRecipe for two descriptions of one
    task.
    """
    registered = _register_typed(typed)
    for models in groups:
        registered |= _register_recorded(models, registered)


def _register_typed(typed: Sequence[str]) -> set[str]:
    """The names of the tasks that were typed as YAML files, which are read and registered.

    Raises BadRecipe for two files that describe one task.
    """
    files: dict[str, str] = {}
    for name in (text.partition("@")[0] for text in typed):
        if name.endswith(YAML):
            task = TASKS[name].name
            if not os.path.samefile(files.setdefault(task, name), name):
                raise BadRecipe(
                    f"{files[task]} and {name} both describe '{task}'; rename the task in one"
                )
    return {*files}


def _register_recorded(models: Sequence[Checkpoint], registered: Collection[str]) -> set[str]:
    """The names of the tasks of models that are not in `registered` and are described where their
    folders say; these are registered."""
    records = [(model, first_record_in(model.path)) for model in models]
    named = [(model, record, task) for model, record in records if record for task in record.tasks]
    places: dict[str, Path] = {}
    for model, record, task in named:
        if task in registered or (
            task in TASKS and not (TASKS.typed_name(task) or "").endswith(YAML)
        ):
            continue
        place = next(_description_files(model, record, task), None)
        if place is None:
            TASKS.hints[task] = _missing_hint(model, record, task)
        elif not places.setdefault(task, place).samefile(place):
            raise BadRecipe(
                f"{places[task]} and {place} both describe '{task}', and models of this run name "
                "either; give the file that is meant with --tasks"
            )
    for task, place in places.items():
        _register(task, place)
    return {*places}


def _register(task: str, place: Path) -> None:
    """Register a task from its description; on an error, or if it describes another task, only
    leave a hint for the look-up."""
    try:
        with TASKS.undone_by_errors():
            if (described := TASKS[str(place)].name) != task:
                raise UnknownName(f"{place} describes '{described}'")
    except HarnessError as error:
        TASKS.hints[task] = f"{error}; type --tasks and the path of its description"


def _description_files(
    model: Checkpoint, record: ExpertJson | MergeJson, task: str
) -> Iterator[Path]:
    """The files that may describe a task: relative to the folder that names it, then by full path.
    No file for a model of the Hub, as its author would decide which files are read here.

    A folder from before both were recorded has only what was typed.
    """
    if not os.path.exists(model.source):
        return
    typed, place = record.spelled.get(task, ""), record.described.get(task)
    names = [place.relative, place.path] if place else [typed]
    for name in names:
        beside = model.path / name
        # where the folder is a link, these two may differ
        for path in (beside, Path(os.path.normpath(beside))):
            if name.endswith(YAML) and path.is_file():
                yield path


def _missing_hint(model: Checkpoint, record: ExpertJson | MergeJson, task: str) -> str:
    """The hint for the look-up of a task that a folder names and whose description is missing."""
    file = model.path / (EXPERT_FILE if isinstance(record, ExpertJson) else MERGE_FILE)
    typed = record.spelled.get(task, "")
    if not typed:
        return f"{file} names it; load the code that registers it with --plugins, or type --tasks"
    if typed.endswith(YAML):
        return f"{file} names {typed}, which does not exist; type --tasks and the path of it"
    return f"{file} names {typed}, and code is imported only if you name it: type --tasks {typed}"
