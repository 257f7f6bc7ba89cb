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
from harness.types import Checkpoint
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


def _check(step: Step, model: Checkpoint, folder: Path) -> None:
    asked = step.request
    if step.verb == "merge":
        recipe = checked(Recipe(**asked))
        check_family(recipe, model.family)
        _check_layers(recipe, model)
    for task in filter(None, (*asked.get("tasks", ()), asked.get("task"))):
        named, at, split = task.partition("@")
        check_inputs(model, parse_task(f"{place_of(named, folder)}{at}{split}")[0])


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
    asked = step.request
    named = [asked.get("base"), asked.get("expert"), asked.get("model")]
    for one in (*named, *asked.get("experts", ()), *asked.get("references", ())):
        if one in made:
            yield from _given(made[one], made)
        elif one is not None:
            yield one
