"""Shell: the models and data that steps of a study read and none of them makes: whether they are
there, whether they fit, how many rows there are, and a hash of each."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from functools import cache, partial
from pathlib import Path

from harness.checkpoints.bases import of_two_bases
from harness.checkpoints.hashed import Identity, identity_of
from harness.checkpoints.layout import MODEL_FILES, SHARD_INDEX, WEIGHTS_FILE, files_in
from harness.checkpoints.open import local_folder, opened_config
from harness.checkpoints.processor import check_inputs
from harness.checkpoints.provenance import ExpertJson, read_expert_json
from harness.data.rows import count
from harness.data.sources import data_dir as local
from harness.data.sources import stored_files
from harness.data.splits import parse_task
from harness.errors import BadOption, BadRecipe, HarnessError
from harness.files import file_hash
from harness.hashes import digest_of
from harness.merging.checked import check_family, checked_recipe
from harness.merging.recipes import Recipe, methods_of
from harness.merging.tune import grid
from harness.options import options
from harness.studies.step import TASK_FIELDS, Step
from harness.text import few
from harness.types import Checkpoint, Task
from harness.weights import Symmetry

NOT_HASHED = {"files", "folder", "source", "subset", "revision", "paper"}
"""Fields of a task that its hash leaves out: where its rows are, which may move, and the paper."""
MODELS = ("base", "expert", "model", "heads_from", "experts", "references")
"""Fields of a request that name models, or heads, that a step reads."""
OTHER_WEIGHTS = ("adapter_*", "pytorch_model*")
"""Patterns of the files of an adapter or a pickle, which are read where no safetensors are."""
LAYERS = ("num_hidden_layers", "n_layers")
"""Keys of config.json for the number of layers of a model of one stack."""


def check_models(steps: Sequence[Step], folder: Path) -> None:
    """Raise a HarnessError for a model that is missing or broken, for tasks and methods that do not
    fit it, and for an expert that is named twice in one set.

    For a model that a step makes, its base is checked. Warns of models still to be fetched.
    """
    by_name = {step.name: step for step in steps}

    @cache
    def opened(source: str) -> Checkpoint | None:
        place = place_of(source, folder)
        if local_folder(place) is None:
            note = "is no folder, and is taken for a model of the Hub that is still to be fetched"
            warnings.warn(f"'{source}' {note}", stacklevel=4)
        return opened_config(place)

    for step in steps:
        names = step.asked("experts") if step.verb == "merge" else []
        if twice := [name for name in names if names.count(name) > 1]:
            found = f"{step.name} has the expert {place_of(twice[0], folder)} twice"
            raise BadRecipe(f"{found}; expected each expert of a set once")
        bases = [opened(source) for source in dict.fromkeys(_source_models(step, by_name))]
        for model in filter(None, bases):
            _check(step, model, folder)
    merges = [step for step in steps if step.verb == "merge" and not step.asked("other_base")]
    sets = dict.fromkeys(tuple(step.request["experts"]) for step in merges)
    given = [
        [one for name in names if name not in by_name and (one := opened(name))] for names in sets
    ]
    _check_given(given)


def _check_given(sets: Iterable[Sequence[Checkpoint]]) -> None:
    """Raise BadRecipe for given experts of one task whose records no board takes together: they
    were made from different bases, or have one name in two sets and differ by more than seeds."""
    found = [
        (expert, read_expert_json(expert.path) or ExpertJson(), [one.name for one in experts])
        for experts in sets
        for expert in experts
    ]
    by_task: dict[str, list[Checkpoint]] = {}
    for expert, made, _ in found:
        for task in made.tasks:
            by_task.setdefault(task, []).append(expert)
    for same_task in by_task.values():
        if (pair := of_two_bases(same_task)) is not None:
            first, second = pair
            raise BadRecipe(
                f"{second.model} was made from the base {second.base}, and {first.model}, of the "
                f"same task, from {first.base}; expected one base: make a study for each"
            )
    by_name: dict[tuple[str, str], tuple[Checkpoint, ExpertJson]] = {}
    for expert, made, names in found:
        if names.count(expert.name) > 1 or not made.digest:  # has a longer name, or no digest
            continue
        for task in made.tasks:
            other, theirs = by_name.setdefault((task, expert.name), (expert, made))
            alike = made.training == theirs.training and made.seed != theirs.seed
            if made.digest != theirs.digest and not alike:
                raise BadRecipe(
                    f"{expert.source} and {other.source} are both called {expert.name}, and are "
                    "not the same training with two seeds; expected other names of folders"
                )


def warn_of_downloads(steps: Sequence[Step], folder: Path, data_dir: str | None) -> None:
    """Warn of tasks whose rows are still to be fetched from the Hub."""
    names = dict.fromkeys(name for step in steps for name in step.asked(*TASK_FIELDS))
    data_folder = local(data_dir)
    tasks = (task_of(name, folder) for name in names)
    if far := dict.fromkeys(task.name for task in tasks if _is_far(task, data_folder)):
        message = (
            f"the rows of {few(far)} are still to be fetched from the Hub: no --data-dir is given"
        )
        warnings.warn(message, stacklevel=4)


def place_of(source: str, folder: Path) -> str:
    """The path of a model or task from the study's folder if it exists, else its name unchanged."""
    place = os.path.normpath(folder / source)
    return place if os.path.exists(place) else source


def task_of(text: str, folder: Path) -> Task:
    """The task that a study with this folder names, with a split or without."""
    named, at, split = text.partition("@")
    return parse_task(f"{place_of(named, folder)}{at}{split}")[0]


def _check(step: Step, model: Checkpoint, folder: Path) -> None:
    """Raise a HarnessError if the methods, layers or tasks of a step do not fit a model."""
    if step.verb == "merge":
        recipe = checked_recipe(Recipe(**step.request))
        check_family(recipe, model.family)
        _check_layers(recipe, model)
    for task in step.asked("tasks", "task"):
        check_inputs(model, task_of(task, folder))


def _check_layers(recipe: Recipe, model: Checkpoint) -> None:
    """Raise BadOption if an option `layers`, set or tuned, names layers that the model lacks."""
    if (depth := layers_of(model)) is None:
        return
    symmetry = Symmetry({"": tuple(f"ffn.{number}" for number in range(depth))}, heads=1)
    name, tried = grid(recipe)
    for entry, choice in methods_of(recipe):
        if "layers" in options(entry.function) and "symmetry" in entry.needs:
            values = tried if name == f"{choice.name}.layers" else [choice.options["layers"]]
            try:
                _ = [symmetry.chosen(str(value)) for value in values]
            except BadOption as error:
                raise BadOption(f"{choice.name} of {model.source}: {error}") from error


def layers_of(model: Checkpoint) -> int | None:
    """How many layers a model of one stack has, if its config.json says so."""
    counts = [int(model.config[key]) for key in LAYERS if key in model.config]
    return counts[0] if len(counts) == 1 and not model.family.stacks else None


def _source_models(step: Step, by_name: dict[str, Step]) -> Iterator[str]:
    """The models that a step reads; for one that a step makes, those that this step reads."""
    for name in step.asked("base", "expert", "model", "experts", "references"):
        if name in by_name:
            yield from _source_models(by_name[name], by_name)
        else:
            yield name


# Rows ----------------------------------------------------------------------------------


def rows_of(task: str, limit: int | None, folder: str | None, first: bool = False) -> int | None:
    """How many rows a split has, at most `limit`; None if they are on the Hub."""
    named, _ = parse_task(task)
    data_folder = local(folder)
    if _is_far(named, data_folder):
        return None
    return _counted(task, limit, data_folder and data_folder.resolve(), first)


def _is_far(task: Task, folder: Path | None) -> bool:
    """Whether the rows of a task come from the Hub: no files, no generator, no data folder."""
    return not (task.generate or task.files or folder)


@cache
def _counted(task: str, limit: int | None, folder: Path | None, first: bool) -> int:
    named, split = parse_task(task)
    return count(named, split, folder, limit, first=first)


# Hashes ------------------------------------------------------------------------------------


def with_inputs(steps: Sequence[Step], folder: Path, data_dir: str | None) -> list[Step]:
    """The steps of a study in `folder`, each with a hash of every model and task that it reads.

    A request has only their names, under which the content may change. Models of the Hub that are
    still to be fetched have no hash; the hash of a task leaves out rows of the Hub.
    """
    step_names = {step.name for step in steps}
    cached_hash = cache(partial(_hash, folder=folder, data_dir=data_dir))

    def read(step: Step) -> Iterator[tuple[str, str | None]]:
        for name in step.asked(*MODELS, *TASK_FIELDS):
            if name not in step_names:
                yield name, cached_hash(name, name in step.asked(*TASK_FIELDS))

    return [
        replace(step, inputs={name: digest for name, digest in read(step) if digest})
        for step in steps
    ]


def changed(step: Step, folder: Path, data_dir: str | None) -> str | None:
    """The first model or task that has changed since the step was planned, or None.

    A model of the Hub that is still to be fetched here counts as unchanged.
    """
    for name, digest in step.inputs.items():
        with suppress(HarnessError):  # the step itself reports it
            now = _hash(name, name in step.asked(*TASK_FIELDS), folder=folder, data_dir=data_dir)
            if now not in (None, digest):
                return name
    return None


def _hash(name: str, of_rows: bool, *, folder: Path, data_dir: str | None) -> str | None:
    """The hash of a task, or of a model; None for one of the Hub that is still to be fetched."""
    if of_rows:
        task = task_of(name, folder)
        return digest_of([_said(task), _hash_of(stored_files(task, data_dir))])
    place = local_folder(place_of(name, folder))
    if place is None:
        return None
    whole = files_in(place, (WEIGHTS_FILE, SHARD_INDEX))
    patterns = MODEL_FILES if whole else (*MODEL_FILES, *OTHER_WEIGHTS)
    return _hash_of(path for pattern in patterns for path in sorted(place.glob(pattern)))


def _hash_of(paths: Iterable[Path]) -> str:
    """One hash of the contents of files in order, without their names."""
    return digest_of([_of_file(path, identity_of(path)) for path in paths])


@cache
def _of_file(path: Path, _: Identity | None) -> str | None:
    """The hash of a file, cached until the file changes."""
    return file_hash(path)


def _said(task: Task) -> dict[str, str]:
    """The fields of a task that are not defaults, as text; functions only by their presence.

    So the hash stays the same when a later version adds a field.
    """
    said: dict[str, str] = {}
    for field in fields(task):
        value = getattr(task, field.name)
        if value != field.default and field.name not in NOT_HASHED:
            said[field.name] = "a function" if callable(value) else str(value)
    return said
