"""A merge is a fold over stages: methods before the merger, the merger, and methods after it, each
with its needs met."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from harness import weights
from harness.data.splits import parse_task, share_rows
from harness.entries import Merger, Method, Premerge
from harness.errors import BadRecipe, BrokenPlugin, IncompatibleWeights
from harness.merging.device import DeviceTransfer
from harness.merging.providers import JointProvider, Provider, ReadyProvider, StatisticsProvider
from harness.merging.recipes import Recipe, methods_of, unused_fields, with_examples_limit
from harness.merging.spool import Spool
from harness.merging.validation import ValidationScorer, with_tensors
from harness.methods import needs_of, own_options
from harness.options import options
from harness.passes.features import check_readout
from harness.passes.statistic_file import Statistic, read_statistic
from harness.plugins import calling
from harness.presets import preset, task_under_preset
from harness.types import HELD_OUT, Checkpoint, Choice, Need, Progress, Scalar, StateDict, Task


@dataclass(frozen=True)
class Stage:
    """A method with all its options, the providers of its needs, and the scorer of candidates.

    There is no scorer if nothing is tuned and no need is one of shared rows. `device` is where the
    method computes.
    """

    entry: Method
    options: Mapping[str, Scalar]
    providers: tuple[Provider, ...] = ()
    scorer: ValidationScorer | None = None
    device: torch.device = weights.PROCESSOR

    def run(self, *states: StateDict | Sequence[StateDict]) -> Any:
        """The method's result for the experts and the base or, for a post-merging method, for the
        merged state, the experts and the base.

        Raises BrokenPlugin unless it is a state or, for a pre-merging method, a list of states.
        """
        own, whose = own_options(self.entry, self.options), f"{self.entry.called} {self.entry.name}"
        function, transfer = self.entry.function, DeviceTransfer(self.device)
        states = transfer.to_device(states)
        arguments = {p.need.name: transfer.to_device(p.argument) for p in self.providers}
        with calling(whose, function):
            result = function(*states, **own, **arguments)
        if not isinstance(self.entry, Premerge):
            return transfer.to_processor(_state(result, whose, function))
        if not isinstance(result, list | tuple):
            raise _other(whose, result, "a list of experts")
        return [transfer.to_processor(_state(state, whose, function)) for state in result]

    def statistics(self) -> list[dict[str, Any]]:
        """What the needs were met with, for the record."""
        return [fields for provider in self.providers for fields in provider.described()]


def _state(result: Any, whose: str, function: Callable[..., Any]) -> StateDict:
    """A method's result, whose entries are checked to be tensors of the right shape when read."""
    if not isinstance(result, Mapping):
        raise _other(whose, result, "a mapping from names to tensors")

    def tensor(name: str) -> torch.Tensor:
        with calling(f"{whose}, of '{name}',", function):
            value = result[name]
        if not isinstance(value, torch.Tensor):
            raise _other(whose, value, "a torch.Tensor", f" for '{name}'")
        if isinstance(result, weights.Lazy) and value.shape != result.specs[name].shape:
            shape, expected = tuple(value.shape), result.specs[name].shape
            raise IncompatibleWeights(
                f"{whose} made '{name}' of shape {shape}, expected {expected} as its specs say"
            )
        return value

    if not isinstance(result, weights.Lazy):  # it has no headers: check all tensors now
        for name in result:
            tensor(name)
    # tuning asks a ScaledMerge for its direction
    return result if isinstance(result, weights.ScaledMerge) else weights.stored(result, tensor)


def _other(whose: str, result: object, expected: str, what: str = "") -> BrokenPlugin:
    """The error for a method that returned something of another type."""
    return BrokenPlugin(f"{whose} returned a {type(result).__name__}{what}, expected {expected}")


def state_report(state: StateDict) -> Mapping[str, Any]:
    """The report of the method that made a state; empty if it has none."""
    return state.report if isinstance(state, weights.Lazy) else {}


@dataclass(frozen=True)
class StageBuilder:
    """What the stages of a merge have in common.

    `recipe` has every option filled in, heads decided and a task for each expert, if known.
    `new_names` are the names of tensors that are new in the experts: heads, and poolers that the
    base lacks. `spool` keeps the tensors of costly stages; without one they are computed at every
    read.
    """

    recipe: Recipe
    new_names: tuple[str, ...]
    progress: Progress | None = None
    spool: Spool | None = None

    @cached_property
    def needs(self) -> tuple[Need, ...]:
        """The needs of all stages, one after the other."""
        return tuple(need for entry, _ in methods_of(self.recipe) for need in needs_of(entry))

    @cached_property
    def files(self) -> tuple[Statistic, ...]:
        """The given files of statistics. Raises BadRecipe for one that no method needs."""
        files = tuple(read_statistic(file) for file in self.recipe.statistics)
        names = list(dict.fromkeys(need.name for need in self.needs if need.rows == "own"))
        if files and not names:
            raise BadRecipe(f"{self._called} needs no statistics; leave out --statistics")
        for file in files:
            if file.need not in names:
                expected = " or ".join(names)
                raise BadRecipe(f"{file.source} holds {file.need} statistics, expected {expected}")
        return files

    def check(self, first: Checkpoint) -> None:
        """Raise BadRecipe for files, rows to score on, or a dtype, that no stage uses; and for
        methods that run classifiers, if the `first` expert has no head."""
        _ = self.files
        reading = [need for need in self.needs if need.rows != "none"]
        headed = [need for need in reading if first.pooling is None or not need.embeds]
        if first.labels is None and (headed or self.recipe.tune is not None):
            why = f"for its need '{headed[0].name}'" if headed else "to score what is tuned"
            raise BadRecipe(
                f"{self._called} runs classifiers, {why}, and {first.source} has no head; "
                "expected a method that reads weights alone, or regmean for embedding models"
            )
        for need in self.needs:
            self.recipe.placement.check(need)
        for name, reason in unused_fields(self.recipe).items():
            flag = name.replace("_", "-")
            raise BadRecipe(f"--{flag} has no effect on {self._called}: {reason}; leave it out")

    @property
    def _called(self) -> str:
        first, methods = len(self.recipe.premerge), methods_of(self.recipe)
        names = [entry.name for entry, _ in methods]
        called = f"{names[first]} after {', '.join(names[:first])}" if first else names[first]
        return ", then ".join([called, *names[first + 1 :]])

    def stage(
        self,
        entry: Method,
        choice: Choice,
        entering: tuple[Checkpoint, ...],
        averaged: StateDict | None = None,
    ) -> Stage:
        """The stage of a method on experts as they enter it; no row is read yet.

        `averaged` are averaged heads, if any, which candidates of a merger are scored with.
        """
        needs = needs_of(entry)
        tuned = isinstance(entry, Merger) and self.recipe.tune is not None
        shared = any(need.rows == "shared" for need in needs)
        scorer = scorer_of(self, entering, averaged or {}) if tuned or shared else None
        headed = tuple(with_tensors(expert, averaged or {}) for expert in entering)
        pairs = ((need, headed if need.rows == "tasks" else entering) for need in needs)
        providers = tuple(self._provider(need, choice, models, scorer) for need, models in pairs)
        in_own_process = entry.name.startswith("mergekit:")
        device = weights.PROCESSOR if in_own_process else self.recipe.arithmetic.where
        return Stage(entry, choice.options, providers, scorer, device)

    def _provider(
        self,
        need: Need,
        choice: Choice,
        entering: tuple[Checkpoint, ...],
        scorer: ValidationScorer | None,
    ) -> Provider:
        """The provider of one need of a method, for the experts as they enter the method."""
        values = {name: choice.options[name] for name in options(need.function)}
        chosen = with_examples_limit(values, self.recipe.examples_limit)
        if need.check:
            need.check(chosen)
        if need.rows in ("shared", "none"):
            argument = scorer if need.rows == "shared" else self._of_tasks(entering)
            with calling(f"need {need.name}", need.function):
                return ReadyProvider(need, need.function(argument, **chosen))
        common = need, chosen, entering, self.recipe, self.progress
        if need.rows == "own":
            files = tuple(file for file in self.files if file.need == need.name)
            elsewhere = self.needs.count(need) > 1
            return StatisticsProvider(*common, files, elsewhere)
        return JointProvider(*common)

    def _of_tasks(self, entering: tuple[Checkpoint, ...]) -> tuple[Checkpoint, ...]:
        """The experts, each with its task in the recipe, if that names one."""
        tasks = self.recipe.tasks or [None] * len(entering)
        pairs = zip(entering, tasks, strict=True)
        return tuple(replace(expert, tasks=(task,)) if task else expert for expert, task in pairs)


def experts_entering(
    experts: Sequence[Checkpoint], wholes: Sequence[StateDict]
) -> tuple[Checkpoint, ...]:
    """The experts as they enter a stage: with the weights that the stages before it made."""
    return tuple(map(with_tensors, experts, wholes))


def unreported_split(name: str) -> tuple[Task, str]:
    """A task and a split to score candidates on. Raises BadRecipe for rows that are reported."""
    task, split = parse_task(name)
    for reported in task.splits:
        if share_rows(task, split, reported):
            free = not share_rows(task, HELD_OUT, reported) and split != HELD_OUT
            other = f": --tune-on {task}@{HELD_OUT}" if free else ""
            raise BadRecipe(
                f"{task}@{split} has rows of {task}@{reported}, whose scores are reported; "
                f"expected other rows{other}"
            )
    return task, split


def scorer_of(
    builder: StageBuilder, experts: Sequence[Checkpoint], averaged: StateDict
) -> ValidationScorer:
    """The scorer of candidates on the tasks and splits asked for, by default on held-out rows.

    A tensor that a candidate lacks is taken from `averaged`, else from the first expert of the
    task.
    """
    recipe = builder.recipe
    names = recipe.tune_on or tuple(f"{t}@{HELD_OUT}" for t in dict.fromkeys(recipe.tasks))
    readout = preset(recipe.preset).readout
    places = []
    for name in names:
        task, split = unreported_split(name)
        of_task = [e for e, t in zip(experts, recipe.tasks, strict=False) if t == task.name]
        if recipe.heads == "keep" and not of_task:
            raise BadRecipe(
                f"no expert is of task {task}, so there is no kept head to score it with; expected "
                "a task of an expert: --tune-on"
            )
        template = of_task[0] if of_task else experts[0]
        adapted = task_under_preset(task, recipe.preset)
        check_readout(template, readout, adapted.finetune.max_length)
        places.append((with_tensors(template, averaged), adapted, split))
    return ValidationScorer(
        tuple(places),
        recipe.data_dir,
        recipe.placement,
        # of n experts, a selection scores each, and then the mean of 2, ..., n
        2 * len(experts) - 1,
        builder.progress,
        readout,
        kept=builder.new_names if recipe.heads == "keep" else (),
        max_length=recipe.max_length,
        limit=recipe.tune_limit,
    )
