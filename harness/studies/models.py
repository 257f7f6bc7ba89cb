"""What can be told of the models of a study before it is done: are they there, do they fit?"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from harness.checkpoints.open import described
from harness.checkpoints.processor import check_inputs
from harness.data.splits import parse_task
from harness.errors import BadOption
from harness.merging.plan import check_family, checked
from harness.merging.recipes import Recipe, methods_of
from harness.merging.tune import grid
from harness.options import options
from harness.studies.steps import Step
from harness.types import Checkpoint, Task
from harness.weights import Symmetry

LAYERS = ("num_hidden_layers", "n_layers")
"""What says in config.json how many layers a model of one stack has."""


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


def task_of(text: str, folder: Path) -> Task:
    """A task that a study whose folder is `folder` names, at a split or not."""
    named, at, split = text.partition("@")
    return parse_task(f"{place_of(named, folder)}{at}{split}")[0]


def _check(step: Step, model: Checkpoint, folder: Path) -> None:
    if step.verb == "merge":
        recipe = checked(Recipe(**step.request))
        check_family(recipe, model.family)
        _check_layers(recipe, model)
    for task in step.asked("tasks", "task"):
        check_inputs(model, task_of(task, folder))


def _check_layers(recipe: Recipe, model: Checkpoint) -> None:
    """Raise BadOption for layers of a method, or that it tries, that the model has not."""
    counts = [int(model.config[one]) for one in LAYERS if one in model.config]
    if len(counts) != 1 or model.family.stacks:
        return
    known = Symmetry({"": tuple(f"ffn.{number}" for number in range(counts[0]))}, heads=1)
    name, tried = grid(recipe)
    for entry, choice in methods_of(recipe):
        if "layers" in options(entry.function) and "symmetry" in entry.needs:
            values = tried if name == f"{choice.name}.layers" else [choice.options["layers"]]
            try:
                _ = [known.chosen(str(value)) for value in values]
            except BadOption as error:
                raise BadOption(f"{choice.name} of {model.source}: {error}") from error


def _given(step: Step, made: dict[str, Step]) -> Iterator[str]:
    """The models that a step is given or, of one that is made here, what that one is given."""
    for one in step.asked("base", "expert", "model", "experts", "references"):
        if one in made:
            yield from _given(made[one], made)
        else:
            yield one
