"""What can be told of the models of a study before it is done: are they there, do they fit?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from harness.checkpoints.open import described
from harness.checkpoints.processor import check_inputs
from harness.data.splits import parse_task
from harness.merging.plan import check_family, checked
from harness.merging.recipes import Recipe
from harness.studies.steps import Step
from harness.types import Checkpoint


def check_models(steps: Sequence[Step], folder: Path) -> None:
    """Raise a HarnessError for a model that is not there, or no model, and for rows and methods
    that are of others.

    Models that are made here are taken for their base.
    """
    made = {step.name: step for step in steps}
    known = cache(lambda source: described(place_of(source, folder)))
    for step in steps:
        bases = [known(one) for one in dict.fromkeys(_given(step, made))]
        for model in filter(None, bases):
            _check(step, model, folder)


def place_of(source: str, folder: Path) -> str:
    """A model or task of a study whose folder is `folder`: its path, or its name as it is."""
    place = os.path.normpath(folder / source)
    return place if os.path.exists(place) else source


def _check(step: Step, model: Checkpoint, folder: Path) -> None:
    asked = step.request
    if step.verb == "merge":
        check_family(checked(Recipe(**asked)), model.family)
    for task in filter(None, (*asked.get("tasks", ()), asked.get("task"))):
        named, at, split = task.partition("@")
        check_inputs(model, parse_task(f"{place_of(named, folder)}{at}{split}")[0])


def _given(step: Step, made: dict[str, Step]) -> Iterator[str]:
    """The models that a step is given or, of one that is made here, what that one is given."""
    asked = step.request
    named = [asked.get("base"), asked.get("expert"), asked.get("model")]
    for one in (*named, *asked.get("experts", ()), *asked.get("references", ())):
        if one in made:
            yield from _given(made[one], made)
        elif one is not None:
            yield one
