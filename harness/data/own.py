"""Shell: a task that a user describes in a few lines of YAML -> `Task`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from harness.data.sources import SUFFIXES, label_values
from harness.errors import BadData
from harness.files import read_yaml
from harness.kinds import KINDS, kind_of
from harness.kinds.kind import called
from harness.types import DERIVED, Hyperparameters, KindName, Task
from harness.values import Frozen

TRAIN = "train"
SPLITS = ("test", "validation", "dev", "valid")
"""Files of these names are splits to score, the first of them the reported one."""
MOST = 1000
"""Labels of a task: a column with more different values is no column of labels."""


class Described(Frozen):
    """What a file says of a task.

    `files` are a folder with a file for each split, a pattern with `{split}`, a file for each split
    by name, or one file, which is the train split; relative to the folder of the description.
    """

    name: str = ""
    kind: KindName = "classification"
    text: str | tuple[str, ...]
    label: str = ""
    labels: tuple[str | int | float | bool, ...] | Literal["from data"] = "from data"
    renamed: dict[str | int | float, str] = Field(default_factory=dict)
    metric: str | tuple[str, ...] = ()
    files: str | dict[str, str] = ""
    hub: str = ""
    subset: str | None = None
    revision: str | None = None
    splits: dict[str, str] | tuple[str, ...] = ()
    reported: str = ""
    finetune: dict[str, float] = Field(default_factory=dict)


def task_of_file(path: str) -> Task:
    """The task that a YAML file describes.

    Its name is that of the file unless it says another. Without a split to score, a tenth of the
    train split is held out. Raises BadData, naming file and field, for what does not fit.
    """
    place = Path(path)
    try:
        said = Described(**read_yaml(place, "a task: kind, text, label, files", error=BadData))
    except (ValidationError, TypeError) as error:
        raise BadData(
            f"{place}: {_reason(error)}; known: {', '.join(Described.model_fields)}"
        ) from error
    if bool(said.files) == bool(said.hub):
        sources = "both files and hub" if said.hub else "neither files nor hub"
        raise BadData(f"{place} says {sources}, expected one of them")
    files = _files(place, said)
    splits = _splits(place, said, files)
    kind = KINDS[said.kind]
    metrics = (said.metric,) if isinstance(said.metric, str) else said.metric
    try:
        settings = Hyperparameters(**_typed(said.finetune))
    except TypeError as error:
        known = ", ".join(vars(Hyperparameters()))
        raise BadData(f"{place}: finetune: {error}; known: {known}") from error
    task = Task(
        name=said.name or place.name.partition(".")[0],
        kind=said.kind,
        text=(said.text,) if isinstance(said.text, str) else said.text,
        label=said.label,
        labels=_texts(said.labels) if said.labels != "from data" else kind.unread,
        renamed={called(key): name for key, name in said.renamed.items()},
        metrics=metrics or kind.metrics,
        splits=splits,
        reported=said.reported or next(iter(splits), DERIVED[1]),
        source=said.hub,
        subset=said.subset,
        revision=said.revision,
        files=files,
        finetune=settings,
    )
    return _with_labels(task, place) if said.labels == "from data" else task


def _reason(error: ValidationError | TypeError) -> str:
    if isinstance(error, TypeError):
        return str(error)
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the whole'}: {first['msg']}"


def _typed(given: Mapping[str, float]) -> dict[str, Any]:
    whole = {"batch_size", "max_length"}
    return {key: int(value) if key in whole else value for key, value in given.items()}


def _files(place: Path, said: Described) -> dict[str, str]:
    """The file of each split that there is."""
    if isinstance(said.files, dict):
        return {split: str(place.parent / file) for split, file in said.files.items()}
    if not said.files:
        return {}
    if (place.parent / said.files).is_file():
        return {TRAIN: str(place.parent / said.files)}
    known = (TRAIN, *(said.splits.values() if isinstance(said.splits, dict) else said.splits))
    paths: dict[str, str] = {}
    for split in dict.fromkeys((*known, *SPLITS)):
        pattern = said.files.replace("{split}", split)
        if "{split}" in said.files:
            files: Iterable[Path] = [place.parent / pattern]
        else:
            files = [place.parent / pattern / f"{split}.{suffix}" for suffix in SUFFIXES]
        for file in files:
            if file.is_file():
                paths.setdefault(split, str(file))
    if TRAIN not in paths:
        raise BadData(
            f"{place} has files '{said.files}', and there is none of the split '{TRAIN}'; expected "
            f"a file, a folder with {TRAIN}.{SUFFIXES[0]} or the like, or a pattern with {{split}}"
        )
    return paths


def _splits(place: Path, said: Described, files: Mapping[str, str]) -> dict[str, str]:
    """The splits that are scored, by the name a user gives them."""
    if isinstance(said.splits, dict):
        splits = dict(said.splits)
    else:
        splits = {split: split for split in said.splits or [s for s in files if s != TRAIN]}
    if files and (lacking := [split for split in splits.values() if split not in files]):
        raise BadData(f"{place} has no file of the split '{lacking[0]}'; found {', '.join(files)}")
    return splits


def _texts(labels: Iterable[Any]) -> tuple[str, ...]:
    return tuple(map(called, labels))


def _with_labels(task: Task, place: Path) -> Task:
    """The task with the labels that stand in its train split: sorted, O first."""
    kind = kind_of(task)
    if not kind.unread:
        return task
    if not task.label:
        raise BadData(f"{place} names no column of labels and no labels; expected either")
    values: set[Any] = set()
    for value in label_values(task):
        values.update(value if isinstance(value, list) else [value])
        if len(values) > MOST:
            raise BadData(
                f"the column '{task.label}' of {task} has more than {MOST} different values, "
                "expected labels; for numbers say kind: regression"
            )
    values.discard(None)
    numbers = all(isinstance(value, int | float) for value in values)
    ordered = sorted(values) if numbers else sorted(values, key=called)
    names = [task.renamed.get(called(value), called(value)) for value in ordered]
    labels = kind.ordered(names)
    if numbers and labels != tuple(map(str, range(len(labels)))):
        # a number is an index into the labels unless it is said what it is called
        task = replace(task, renamed={**{name: name for name in labels}, **task.renamed})
    return replace(task, labels=labels)
