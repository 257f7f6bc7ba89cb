"""Models to evaluate: an `OpenedModel` has its base and experts; an `EvaluatedModel` is a model as
read on one task, a row of the table."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from harness import weights
from harness.checkpoints.heads import with_head, without_head
from harness.checkpoints.label_order import ordered_as
from harness.checkpoints.pooling import Pooling
from harness.checkpoints.provenance import (
    ExpertJson,
    MergeJson,
    read_expert_json,
    read_merge_json,
    rows_shown,
)
from harness.checkpoints.verbalizer import verbalizer_of
from harness.data.claims import called_in
from harness.data.splits import parse_task
from harness.errors import MissingHead
from harness.evaluation.records import RecordedRecipe, Role
from harness.evaluation.run import Run
from harness.hashes import joined
from harness.kinds import kind_of
from harness.labels import are_labels_of, generic
from harness.passes.features import model_key
from harness.readout import LAST_LINEAR, Readout
from harness.text import few
from harness.types import Checkpoint, StateDict, Task


@dataclass(frozen=True)
class OpenedModel:
    """A model to evaluate with its base, its experts and the task of each.

    The task of an embedding model is ''. `kept` has, by task, the encoder under its kept head, as a
    complete checkpoint. `references` are models to evaluate beside it, which have neither base nor
    experts here. `shown` has the rows that a merge was shown: `name@split` to the digest of their
    texts. `recipe` is how a merge by this harness was made.
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
    shown: Mapping[str, str] = field(default_factory=dict)
    recipe: RecordedRecipe | None = None

    @cached_property
    def sources(self) -> dict[str, Any]:
        """The fields `base` and `experts` of the records of this model."""

        def named(checkpoint: Checkpoint) -> dict[str, Any]:
            return {"source": checkpoint.source, "digest": weights.digest(checkpoint.weights)}

        experts = []
        for expert, task in self._experts:
            own = read_expert_json(expert.path) or ExpertJson()
            facts = {"seed": own.seed, "head_seed": own.head_seed, "training": own.training}
            experts.append({**named(expert), "task": task or None, **facts})
        return {"base": self.base and named(self.base), "experts": experts}

    def has_head(self, task: Task) -> bool:
        """Whether it has a head for a task: a kept one, or its own, by its record or its labels."""
        own = self.checkpoint
        if self.kept or own.labels is None:
            return task.name in self.kept
        if len(own.tasks) > 1 and task.name not in own.tasks:  # one head for a label space
            kind = kind_of(task)
            return kind_of(parse_task(own.tasks[0])[0]) is kind and kind.fits(task, own.labels)
        if own.tasks:
            return task.name in own.tasks
        return are_labels_of(own.labels, task) or (
            generic(own.labels) and len(own.labels) == len(task.labels)
        )

    def with_head_for(self, task: Task) -> tuple[Checkpoint, str]:
        """The checkpoint with the head for a task, and whose head that is.

        'kept' is a head stored beside a merged encoder, 'own' the model's own, 'expert' that of the
        only expert of the task, for a model without a head for it. An embedding model, without any
        head, is 'own'.
        """
        if (kept := self.kept.get(task.name)) is not None:
            return kept, "own" if verbalizer_of(kept) else "kept"
        own = self.checkpoint
        if own.pooling is not None:
            return own, "own"
        experts, labels = self.experts_of(task), own.labels
        fits = labels is not None and (
            len(labels) == len(task.labels) or kind_of(task).fits(task, labels)
        )
        if fits or len(experts) != 1:
            return own, "own"
        if labels is not None and not self.kept:
            warnings.warn(
                f"the head of {own.source} has the labels {few(labels) or 'of a regression'}, not "
                f"those of {task}: it is evaluated under the head of {experts[0].source}",
                stacklevel=3,
            )
        return with_head(own, experts[0], self.base), "expert"

    def experts_of(self, task: Task) -> list[Checkpoint]:
        """The experts of a task."""
        return [expert for expert, name in self._experts if name == task.name]

    def others_of(self, task: Task) -> list[Checkpoint]:
        """The experts of other tasks of the same kind whose heads fit this task's labels."""
        kind = kind_of(task)
        return [
            expert
            for expert, name in self._experts
            if name not in ("", task.name)
            and kind_of(parse_task(name)[0]) is kind
            and kind.fits(task, expert.labels or ())
        ]

    @property
    def _experts(self) -> list[tuple[Checkpoint, str]]:
        return [*zip(self.experts, self.expert_tasks, strict=True)]


STAGE = {"name", "options"}
"""The fields of a method in merge.json that a record copies."""


def recipe_of(merged: MergeJson | None) -> RecordedRecipe | None:
    """The recipe of a merge for its records; None without a merge.json that names the merger."""
    if merged is None or merged.merger is None:
        return None
    stages = {"__all__": STAGE}
    included: dict[str, Any] = {"premerge": stages, "merger": STAGE, "postmerge": stages}
    included |= dict.fromkeys(("heads", "seed", "preset", "code"), True)
    tuned = merged.tuned
    return RecordedRecipe(
        **merged.model_dump(include=included),
        tuned={tuned.tune.partition("=")[0]: tuned.chosen} if tuned else {},
        tuned_on=tuple(tuned.on) if tuned else (),
    )


@dataclass(frozen=True)
class EvaluatedModel:
    """A model as read on one task: a row of the table. An ensemble has several members.

    `columns` has, for each member, the output for each label of the task. `head` says whose head it
    is (`OpenedModel.with_head_for`). `shown` are the rows that the model, or what it was made of,
    was shown (`rows_shown`), `recipe` is how it was merged. `owners` are the experts whose heads a
    base has.
    """

    name: str
    role: Role
    method: str
    members: tuple[Checkpoint, ...]
    columns: tuple[tuple[int, ...], ...]
    head: str
    shown: Mapping[str, str] = field(default_factory=dict)
    recipe: RecordedRecipe | None = None
    owners: tuple[Checkpoint, ...] = ()

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """The digests of the members' weights; computing them checks that weights are finite."""
        return tuple(weights.Observed(m.weights, m.source).digest() for m in self.members)

    @property
    def pooling(self) -> Pooling | None:
        """How an embedding model makes an embedding of a row; None for a model with a head."""
        return self.members[0].pooling

    @property
    def digest(self) -> str:
        """One hash of all members' weights."""
        return joined(self.digests)

    @cached_property
    def content(self) -> str:
        """One hash of all that its outputs depend on, and of the order of its labels."""
        parts = zip(self.members, self.digests, self.columns, strict=True)
        return joined([f"{model_key(member, digest)} {order}" for member, digest, order in parts])

    def teachers(self, experts: Sequence[EvaluatedModel]) -> tuple[EvaluatedModel, ...]:
        """The models whose outputs a tuned head is fitted to: the experts of the task itself.

        An expert is its own teacher; so is a reference or a `single` beside which no expert is
        read. An embedding model has no outputs, so it never is.
        """
        own = _own(experts)
        beside = own if self.role == "reference" else experts
        alone = self.role == "expert" or (self.role in ("reference", "single") and not beside)
        return (self,) if alone and self.pooling is None else tuple(own)


def evaluated_as(
    task: Task, run: Run, role: Role, name: str, members: tuple[Checkpoint, ...], head: str,
    method: str = "",
) -> EvaluatedModel:  # fmt: skip
    """Members as one row of the table. Raises MissingHead, or LabelMismatch for other labels."""
    orders, shown = [], rows_shown(*(member.path for member in members))
    for member in members:
        if member.pooling is not None:
            return EvaluatedModel(name, role, method or role, members, ((),), "none", shown=shown)
        if member.labels is None:
            raise MissingHead(
                f"{member.source} has no head for {task}; give an expert with --experts"
            )
        by_index = run.labels == "by-index"
        order = kind_of(task).output_columns(task, member.labels, member.source, by_index=by_index)
        orders.append(tuple(order))
    return EvaluatedModel(name, role, method or role, members, tuple(orders), head, shown=shown)


def experts_on(run: Run, model: OpenedModel, task: Task) -> list[EvaluatedModel]:
    """The experts of a task and, with `singles`, those of other tasks that have its labels.

    Embedding models among the experts have no task, and are read on every task.
    """
    experts: list[tuple[Role, Checkpoint]] = [("expert", one) for one in model.experts_of(task)]
    if run.singles:
        experts += [("single", expert) for expert in model.others_of(task)]
    experts += [("single", expert) for expert in model.experts if expert.pooling is not None]
    names = dict(zip((expert.source for expert in model.experts), names_of(model), strict=True))
    return [
        evaluated_as(task, run, role, names[expert.source], (expert,), "own")
        for role, expert in experts
    ]


def names_of(model: OpenedModel) -> list[str]:
    """The names of the experts in tables: the last part of each path, more if two are equal."""
    parts = [expert.source.rstrip("/").split("/") for expert in model.experts]
    names, length = [expert.name for expert in model.experts], 1
    while len({*names}) < len(names) and length < max(map(len, parts)):
        length += 1
        names = ["/".join(part[-length:]) for part in parts]
    return names


def _own(experts: Sequence[EvaluatedModel]) -> list[EvaluatedModel]:
    """The experts that are read on their own task."""
    return [expert for expert in experts if expert.role == "expert"]


def models_on(
    run: Run, model: OpenedModel, task: Task, experts: Sequence[EvaluatedModel]
) -> Iterator[EvaluatedModel]:
    """The model, then the models beside it on one task; `experts` are those of `experts_on`."""
    own = _own(experts)
    merged, head = model.with_head_for(task)
    role, method = model.role, model.method
    if role == "expert" and called_in(model.checkpoint, task, run.data_dir) is None:
        role, method = "single", ""  # its own record names other tasks
    evaluated = evaluated_as(task, run, role, model.name, (merged,), head, method)
    yield replace(evaluated, shown=model.shown, recipe=model.recipe)
    if model.base is not None:
        heads = [expert.members[0] for expert in own] or model.others_of(task)
        control, owners = _control(merged, model.base, heads)
        row = evaluated_as(task, run, "base", model.base.name, (control,), head)
        yield replace(row, owners=owners, shown=rows_shown(model.base.path))
    yield from experts
    with_heads = [expert for expert in experts if expert.pooling is None]
    groups = {"ensemble": own, "ensemble of all": with_heads if len(with_heads) > len(own) else []}
    for method, group in groups.items():
        if len(group) > 1:
            members = tuple(expert.members[0] for expert in group)
            yield evaluated_as(task, run, "ensemble", "ensemble", members, "own", method)
    for reference in model.references:
        if reference.has_head(task) or reference.checkpoint.pooling is not None:
            checkpoint, head = reference.with_head_for(task)
            arguments = reference.name, (checkpoint,), head, reference.method
            row = evaluated_as(task, run, "reference", *arguments)
            shown = rows_shown(reference.checkpoint.path)
            yield replace(row, shown=shown, recipe=reference.recipe)


def _control(
    merged: Checkpoint, base: Checkpoint, experts: Sequence[Checkpoint]
) -> tuple[Checkpoint, tuple[Checkpoint, ...]]:
    """The base in place of a merge, under heads of experts; and the experts, if it has theirs."""
    if merged.pooling is not None:
        return replace(merged, weights=base.weights, source=base.source), ()
    # so that row i of every head stands for the same label
    alike = [ordered_as(expert, merged.labels) for expert in experts]
    fresh = _missing_tensors(merged, base, alike)
    tensors = weights.union(without_head(base), fresh, merged.weights)
    state = weights.select(tensors, list(merged.weights))
    return replace(merged, weights=state, source=base.source), tuple(experts) if fresh else ()


def _missing_tensors(
    merged: Checkpoint, base: Checkpoint, experts: Sequence[Checkpoint]
) -> StateDict:
    """The tensors that the base lacks, as the mean over experts: the head, and a missing pooler.

    They are not those of the merge, so that every merge of the same experts has the same base as
    its control. `experts` are those of the task or, if there is none, all that have its labels.
    Empty if an expert lacks a tensor or has it in another shape.
    """
    is_head = merged.family.is_head
    names = [n for n in merged.weights if is_head(n) or n not in base.weights]
    specs = weights.specs(weights.select(merged.weights, names))
    states = [expert.weights for expert in experts]
    shapes = [{n: weights.specs(state)[n].shape for n in names if n in state} for state in states]
    if not states or any(own != {n: specs[n].shape for n in names} for own in shapes):
        return {}
    parts = [weights.select(state, names) for state in states]
    return weights.cast_like(weights.mean(parts), merged.weights) if len(parts) > 1 else parts[0]


def warn_of_heads(model: OpenedModel, readout: Readout) -> None:
    """Warn of heads that are read on other features than they were trained on.

    A head of unknown origin is assumed to be trained on the `last_linear` features.
    """
    opened = [*(model.experts or [model.checkpoint]), *(r.checkpoint for r in model.references)]
    unmerged = [expert for expert in opened if not read_merge_json(expert.path)]
    trained = [
        (expert.source, read_expert_json(expert.path) or ExpertJson()) for expert in unmerged
    ]
    if other := [source for source, record in trained if record.readout != readout.name]:
        usual = readout == LAST_LINEAR
        warnings.warn(
            f"the head of {', '.join(other)} was trained on other features than the "
            f"'{readout.name}' that it is evaluated on; {'give' if usual else 'leave out'} "
            f"--preset ft-classifier, or train it {'without' if usual else 'with'} the preset",
            stacklevel=3,
        )
