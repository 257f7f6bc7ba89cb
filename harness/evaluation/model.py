"""A model to evaluate: its base, its experts and heads, and what it is on a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from harness import weights
from harness.checkpoints.heads import with_head
from harness.checkpoints.provenance import Merged, Staged, Trained, trained_by
from harness.data.splits import parse_task
from harness.evaluation.records import Recipe, Role, Stage
from harness.kinds import kind_of
from harness.labels import fit, generic
from harness.types import Checkpoint, Task


@dataclass(frozen=True)
class OpenedModel:
    """A model to evaluate with its base, its experts and the task of each.

    `kept` are complete checkpoints by task, for an encoder with one head per task. `references` are
    models to read beside it, which have neither base nor experts of their own here. `shown` are the
    rows that a merge was shown, as `name@split`, `recipe` is how a merge of ours was made.
    """

    name: str
    role: Role
    method: str
    checkpoint: Checkpoint
    kept: Mapping[str, Checkpoint]
    base: Checkpoint | None = None
    experts: tuple[Checkpoint, ...] = ()
    expert_tasks: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    references: tuple[OpenedModel, ...] = ()
    shown: tuple[str, ...] = ()
    recipe: Recipe | None = None

    @cached_property
    def sources(self) -> dict[str, Any]:
        """Base and experts, as records of what they were made into name them."""
        base, experts = self.base, []
        for one, task in zip(self.experts, self.expert_tasks, strict=True):
            said = trained_by(one.path) or Trained()
            named = {"source": one.source, "digest": weights.digest(one.weights), "task": task}
            experts.append({**named, "seed": said.seed, "head_seed": said.head_seed})
        if base is None:
            return {"base": None, "experts": experts}
        named = {"source": base.source, "digest": weights.digest(base.weights)}
        return {"base": named, "experts": experts}

    def has_head(self, task: Task) -> bool:
        """Whether it brings a head for a task: kept, recorded, or with the task's labels."""
        own = self.checkpoint
        if self.kept or own.labels is None:
            return task.name in self.kept
        if own.tasks:
            return task.name in own.tasks
        return fit(own.labels, task) or (
            generic(own.labels) and len(own.labels) == len(task.labels)
        )

    def on(self, task: Task) -> tuple[Checkpoint, str]:
        """The checkpoint with the head for a task, and whose head that is.

        'kept' is the one stored beside a merged encoder, 'own' the model's, 'expert' that of the
        only expert of the task, for an encoder that came without a head for it.
        """
        if task.name in self.kept:
            return self.kept[task.name], "kept"
        own = self.checkpoint
        experts = experts_of(self, task)
        fits = own.labels is not None and len(own.labels) == len(task.labels)
        if fits or len(experts) != 1 or (own.labels and not self.kept and not self.experts):
            return own, "own"
        return with_head(own, experts[0]), "expert"


def recipe_of(said: Merged | None) -> Recipe | None:
    """The stages of a merge, as merge.json says them."""
    if said is None or said.merger is None:
        return None

    def stage(one: Staged) -> Stage:
        return Stage(name=one.name, options=one.options)

    tuned = said.tuned
    return Recipe(
        premerge=tuple(map(stage, said.premerge)),
        merger=stage(said.merger),
        postmerge=tuple(map(stage, said.postmerge)),
        heads=said.heads,
        seed=said.seed,
        preset=said.preset,
        tuned={tuned.tune.partition("=")[0]: tuned.chosen} if tuned else {},
        tuned_on=tuple(tuned.on) if tuned else (),
    )


def experts_of(model: OpenedModel, task: Task) -> list[Checkpoint]:
    """The experts whose task this is."""
    return [
        expert
        for expert, name in zip(model.experts, model.expert_tasks, strict=True)
        if name == task.name
    ]


def others_of(model: OpenedModel, task: Task) -> list[Checkpoint]:
    """The experts of other tasks whose labels are those of this one."""
    return [
        expert
        for expert, name in zip(model.experts, model.expert_tasks, strict=True)
        if name != task.name
        and kind_of(parse_task(name)[0]) is kind_of(task)
        and kind_of(task).fits(task, expert.labels or ())
    ]
