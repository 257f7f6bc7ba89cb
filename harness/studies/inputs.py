"""Shell: what the steps of a study read and none of them makes, models and data, with a hash."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

from harness.checkpoints.layout import MODEL_FILES
from harness.checkpoints.open import at_hand
from harness.data.sources import stored_files
from harness.files import file_hash
from harness.hashes import digest_of
from harness.studies.models import place_of, task_of
from harness.studies.steps import Step
from harness.types import Task

APART = {"files", "folder", "source", "subset", "revision", "paper"}
"""Fields of a task that say where its rows are, which may be moved, and who wrote of them."""


def with_inputs(steps: Sequence[Step], folder: Path, data_dir: str | None) -> list[Step]:
    """The steps of a study in `folder`, each with a hash of every model and task that it reads.

    A request only names them, and what has a name may be changed. Nothing is said of models of the
    Hub that are still to be fetched, nor of the rows of data sets of the Hub.
    """
    made = {step.name for step in steps}

    @cache
    def model(source: str) -> str | None:
        place = at_hand(place_of(source, folder))
        if place is None:
            return None
        return _hash_of(one for name in MODEL_FILES for one in sorted(place.glob(name)))

    @cache
    def task(text: str) -> str:
        known = task_of(text, folder)
        return digest_of([_said(known), _hash_of(stored_files(known, data_dir))])

    def read(step: Step) -> Iterator[tuple[str, str | None]]:
        for one in step.asked("base", "expert", "model", "heads_from", "experts", "references"):
            if one not in made:
                yield one, model(one)
        for one in step.asked("task", "tasks", "tune_on"):
            yield one, task(one)

    return [replace(one, inputs={name: of for name, of in read(one) if of}) for one in steps]


def _hash_of(paths: Iterable[Path]) -> str:
    """One hash of files in their order, whatever they are called."""
    return digest_of([file_hash(path) for path in paths])


def _said(task: Task) -> dict[str, str]:
    """What a task says of itself that is no default; of functions, whether there are any.

    So a field that a later version adds changes nothing.
    """
    said = {one.name: (getattr(task, one.name), one.default) for one in fields(task)}
    kept = {name: of for name, (of, usual) in said.items() if of != usual and name not in APART}
    return {name: "a function" if callable(of) else str(of) for name, of in kept.items()}
