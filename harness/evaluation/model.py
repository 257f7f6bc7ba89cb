"""A model to evaluate: its base, its experts and heads, and what it is on a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from harness import weights
from harness.checkpoints.heads import with_head
from harness.checkpoints.provenance import Merged, Staged, Trained, merged_by, trained_by
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
    rows that a merge was shown, as `name@split`.
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

    @cached_property
    def recipe(self) -> Recipe | None:
        """How a merge of ours was made; None for what is none."""
        return recipe_of(merged_by(self.checkpoint.path))

    @cached_property
    def trained(self) -> tuple[Trained, ...]:
        """What the folders of the experts say of their training."""
        return tuple(trained_by(expert.path) or Trained() for expert in self.experts)

    @cached_property
    def base_digest(self) -> str:
        return weights.digest(self.base.weights) if self.base is not None else ""

    @cached_property
    def expert_digests(self) -> tuple[str, ...]:
        return tuple(weights.digest(expert.weights) for expert in self.experts)

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
