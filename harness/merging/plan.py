"""A recipe -> a `MergePlan`: models are checked by headers, the merge is composed lazily."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from harness import weights
from harness.checkpoints import align
from harness.checkpoints.bases import check_bases
from harness.checkpoints.build import check_configured
from harness.checkpoints.families.family import Family
from harness.checkpoints.families.symmetry import joined_parts, split_parts
from harness.checkpoints.label_order import ordered_as
from harness.checkpoints.open import open_checkpoint
from harness.checkpoints.pooling import check_poolings
from harness.checkpoints.recorded_tasks import register_tasks
from harness.checkpoints.text_heads import read_heads, with_missing_parts
from harness.checkpoints.verbalizer import verbalizer_of
from harness.data.claims import check_claim
from harness.data.splits import parse_task
from harness.entries import Merger, Premerge
from harness.errors import BadRecipe, IncompatibleWeights, LabelMismatch, MissingHead
from harness.kinds import share_label_space
from harness.labels import generic, same
from harness.merging.checked import check_family, checked_recipe, short_method
from harness.merging.label_rows import mean_over_annotators, warn_of_mixed_schemes
from harness.merging.premerge_steps import LastRead, PremergeReport, PremergeStep, StageClock
from harness.merging.providers import Provider
from harness.merging.recipes import Recipe, methods_of
from harness.merging.spool import Spool
from harness.merging.stages import Stage, StageBuilder, experts_entering, state_report
from harness.methods import needs_of, reads_base, rereads, resolved_options
from harness.passes.placement import check_arithmetic, check_placement
from harness.registry import MERGERS
from harness.types import Checkpoint, Choice, Progress, Scalar, StateDict


@dataclass(frozen=True, repr=False)
class MergePlan:
    """A checked merge of which no weight has been read yet.

    `recipe` has every option filled in and heads decided. `merger_inputs` and `head_states` are the
    experts after the pre-merging methods: encoders (with heads, if they are merged alike), and
    heads; `base_state` is the base. `steps` are the pre-merging methods with the experts before and
    after each, `stages` all methods in order. `merged` is what the merger returned, `postmerged`
    what each post-merging method made of it, `state` what is written: with averaged heads and
    buffers, in the experts' types, without kept heads. `premerge_reports` is what each pre-merging
    method did, known when the merge has been written. `stored_base` is the base under its own
    names, `source_weights` the weights of every source, hashed as they are read.
    """

    recipe: Recipe
    base: Checkpoint | None
    experts: tuple[Checkpoint, ...]
    tasks: tuple[str, ...]
    merger_inputs: tuple[StateDict, ...] = ()
    base_state: StateDict = field(default_factory=dict)
    head_states: tuple[StateDict, ...] = ()
    steps: tuple[PremergeStep, ...] = ()
    stages: tuple[Stage, ...] = ()
    merged: StateDict = field(default_factory=dict)
    postmerged: tuple[StateDict, ...] = ()
    state: StateDict = field(default_factory=dict)
    premerge_reports: tuple[PremergeReport, ...] = ()
    stored_base: Checkpoint | None = None
    source_weights: Mapping[str, weights.Observed] = field(default_factory=dict)
    spool: Spool | None = field(default=None, repr=False, compare=False)

    def __repr__(self) -> str:
        many = f"{len(self.experts)} experts, heads: {self.recipe.heads}, {len(self.state)} tensors"
        return f"MergePlan({short_method(self.recipe)!r} of {many}, {self.size / 1e6:.1f} MB)"

    @property
    def models(self) -> tuple[Checkpoint, ...]:
        """The experts and, if there is one, the base."""
        return self.experts if self.base is None else (*self.experts, self.base)

    @property
    def kept_tasks(self) -> tuple[str, ...]:
        """The tasks of the experts, if the merge has a folder heads/TASK/ for each."""
        kept = self.recipe.heads == "keep" or verbalizer_of(self.experts[0])
        return self.tasks if kept else ()

    @property
    def merger_stage(self) -> Stage:
        """The stage of the merger."""
        return self.stages[len(self.steps)]

    @property
    def postmerge_stages(self) -> tuple[Stage, ...]:
        """The stages after the merger."""
        return self.stages[len(self.steps) + 1 :]

    @property
    def providers(self) -> list[Provider]:
        """The providers of the needs of all stages."""
        return [provider for stage in self.stages for provider in stage.providers]

    @property
    def size(self) -> int:
        """Bytes of the merged weights."""
        return sum(spec.bytes for spec in weights.specs(self.state).values())

    @property
    def report(self) -> Mapping[str, Any]:
        """The report of the merger; complete when every tensor has been computed."""
        return state_report(self.merged)


def plan(
    recipe: Recipe,
    *,
    allow_pickle: bool = False,
    progress: Progress | None = None,
    spool: Spool | None = None,
) -> MergePlan:
    """Check a recipe by headers alone and compose the lazy merge.

    `progress` is called for rows that a merger scores candidates on. Tensors of costly stages are
    kept in `spool`; without one they are computed at every read.
    """
    check_placement(recipe.placement)
    check_arithmetic(recipe.arithmetic)
    merger = MERGERS[recipe.merger.name]
    recipe = checked_recipe(recipe)
    experts, stored, observed = _opened(recipe, allow_pickle)
    base = stored
    register_tasks((*recipe.tasks, *recipe.tune_on), experts)
    tasks = _tasks(recipe, experts)
    named, given_heads = tasks or [None] * len(experts), read_heads(recipe.heads_from, base)
    pairs = zip(experts, named, strict=True)
    experts = tuple(with_missing_parts(expert, base, task, given_heads) for expert, task in pairs)
    ordered = tuple(ordered_as(expert, experts[0].labels) for expert in experts)
    heads = _heads(recipe, ordered, tasks, merger)
    if heads == "none":
        experts = tuple(map(align.under_prefix, experts))
    elif heads != "keep":
        experts = ordered
    if base is not None:
        base = align.aligned_base(base, align.in_all(experts))
    if experts[0].pooling is not None:
        before, experts = experts, align.with_shared_poolers(base, experts)
        if sum(len(one.weights) for one in experts) < sum(len(one.weights) for one in before):
            warnings.warn(
                "not all of these models have a pooler, and their embeddings do not use it: the "
                "merge has none",
                stacklevel=2,
            )
    for expert in experts:
        check_configured(expert)
    fresh = align.new_in_any(base, experts)
    recipe = recipe.but(heads=heads, tasks=tasks)
    builder = StageBuilder(recipe, fresh, progress, spool)
    builder.check(experts[0])
    # a model without a head is of no task: its tasks only say whose rows are read
    of_tasks = () if experts[0].labels is None else tasks
    draft = MergePlan(
        recipe, base, experts, of_tasks, stored_base=stored, source_weights=observed, spool=spool
    )
    return compose_merge(_with_stages(draft, builder))


def _opened(
    recipe: Recipe, allow_pickle: bool
) -> tuple[tuple[Checkpoint, ...], Checkpoint | None, Mapping[str, weights.Observed]]:
    """The experts, the base, and the weights of every source, which are hashed as they are read.

    Raises a HarnessError for models that cannot be merged, by their headers and records.
    """
    observed: dict[str, weights.Observed] = {}

    def opened(source: str, base: str | None = None) -> Checkpoint:
        checkpoint = open_checkpoint(source, allow_pickle=allow_pickle, base=base)
        watched = observed[source] = weights.Observed(checkpoint.weights, source)
        return replace(checkpoint, weights=watched)

    experts = tuple(opened(source, recipe.base) for source in recipe.experts)
    base = opened(recipe.base) if recipe.base is not None else None
    align.check_architecture([*experts, *([base] if base else [])])
    check_family(recipe, experts[0].family)
    if not recipe.other_base:
        check_bases(experts, read=False)
    return experts, base, observed


def compose_merge(draft: MergePlan, **changed: Scalar) -> MergePlan:
    """The plan with its merge composed, with some of the merger's options changed.

    Raises BadOption for a value that the merger does not accept.
    """
    choice, stage = draft.recipe.merger, draft.merger_stage
    chosen = resolved_options(stage.entry, Choice(choice.name, {**choice.options, **changed}))
    recipe = draft.recipe.but(merger=Choice(choice.name, chosen))
    stage = replace(stage, options=chosen)
    before = (step.stage for step in draft.steps)
    draft = replace(draft, recipe=recipe, stages=(*before, stage, *draft.postmerge_stages))
    merged = stage.run(draft.merger_inputs, draft.base_state)
    return with_merged_state(draft, _checked_result(draft.merger_inputs[0], merged, stage))


def with_merged_state(draft: MergePlan, merged: StateDict, spool: Spool | None = None) -> MergePlan:
    """The plan with what its merger returned, and with the state to write that follows from it.

    What a post-merging method reads twice is kept in `spool`; without one it is computed twice.
    """
    recipe, whole = draft.recipe, merged
    by_label = MERGERS[recipe.merger.name].by_label
    after = []
    for later in draft.postmerge_stages:
        if spool is not None and rereads(later.entry, later.options):
            (whole,) = spool.states([whole])
        changed = later.run(whole, draft.merger_inputs, draft.base_state)
        whole = _checked_result(merged, changed, later)
        after.append(whole)
    if recipe.heads in ("average", "none"):
        whole = weights.union(whole, weights.mean(draft.head_states))
    if recipe.heads == "average" or (recipe.heads == "merge" and not by_label):
        whole = mean_over_annotators(draft.experts, draft.head_states, whole)
    first = draft.experts[0]
    moving = set(weights.floating(first.weights))
    unmerged = [name for name in first.weights if name not in moving]
    buffers = [_part(model.weights, unmerged) for model in (draft.base, first) if model]
    whole = weights.cast(whole, _widest(draft.experts))
    state = _part(weights.union(whole, *buffers), first.weights)
    return replace(draft, merged=merged, postmerged=tuple(after), state=state)


def _widest(experts: Sequence[Checkpoint]) -> dict[str, torch.dtype]:
    """For each tensor the type that those of all experts promote to, whatever their order."""
    types: dict[str, torch.dtype] = {}
    for expert in experts:
        for name, spec in weights.specs(expert.weights).items():
            kind = expert.stored_dtypes.get(name, spec.dtype)
            types[name] = torch.promote_types(types.get(name, kind), kind)
    return types


def spool_rereads(draft: MergePlan, spool: Spool) -> MergePlan:
    """The plan with what post-merging methods read twice kept in `spool`; itself if none does."""
    twice = any(rereads(later.entry, later.options) for later in draft.postmerge_stages)
    return with_merged_state(draft, draft.merged, spool) if twice else draft


def _checked_result(before: StateDict, result: StateDict, stage: Stage) -> StateDict:
    """What a method made, checked to have the names and shapes that went in."""
    weights.check_same([before, result], ["expert 1", f"the result of {stage.entry.name}"])
    return result


# Checks ------------------------------------------------------------------------------------


def _tasks(recipe: Recipe, experts: Sequence[Checkpoint]) -> tuple[str, ...]:
    """The task of each expert: as asked, else as recorded in its folder; () if unknown."""
    if recipe.tasks:
        named = tuple(parse_task(name)[0] for name in recipe.tasks)
        if len(named) not in (1, len(experts)):
            raise BadRecipe(
                f"found {len(named)} tasks for {len(experts)} experts; expected one task for all, "
                "or one for each expert"
            )
        by_expert = named * len(experts) if len(named) == 1 else named
        for expert, task in zip(experts, by_expert, strict=True):
            if not recipe.other_tasks:
                check_claim(expert, task, recipe.data_dir)
        return tuple(task.name for task in by_expert)
    recorded = [expert.tasks for expert in experts]
    if all(len(tasks) == 1 for tasks in recorded):
        return tuple(tasks[0] for tasks in recorded)
    return ()


def _heads(
    recipe: Recipe, experts: Sequence[Checkpoint], tasks: Sequence[str], merger: Merger
) -> str:
    """What is done with heads: merge, average, keep or none; `auto` is decided by the experts."""
    if _are_headless(recipe, experts):
        return "none"
    first = experts[0]
    other = next((e for e in experts if not same(e.labels or (), first.labels or ())), None)
    parsed = (parse_task(task)[0] for task in tasks)
    different = len(set(tasks)) > 1 and not (other is None and share_label_space(parsed))
    if recipe.heads == "keep" or (recipe.heads == "auto" and different):
        repeated = [task for task in set(tasks) if tasks.count(task) > 1]
        if not tasks:
            raise BadRecipe("kept heads are stored by task; name one task per expert with --tasks")
        if repeated:
            raise BadRecipe(
                f"several experts are of {repeated[0]}, and one head is kept for each task; merge "
                "these experts first"
            )
        return "keep"
    if other is not None:
        unnamed = next((e.source for e in (other, first) if generic(e.labels or ())), None)
        tip = "if their tasks differ, name the task of each expert with --tasks"
        raise LabelMismatch(
            f"{other.source} has the labels "
            f"{', '.join(other.labels or ()) or 'none (regression)'}, expected "
            f"{', '.join(first.labels or ()) or 'none (regression)'} as {first.source}; "
            f"{f'write the names into id2label of {unnamed}/config.json' if unnamed else tip}"
        )
    warn_of_mixed_schemes(experts)
    if recipe.heads == "auto":
        return "average" if merger.task_vectors else "merge"
    return recipe.heads


def _are_headless(recipe: Recipe, experts: Sequence[Checkpoint]) -> bool:
    """Whether the experts have no heads: they embed, answer in words, or generate text.

    Raises BadRecipe if the recipe says otherwise, MissingHead for classifiers without their heads.
    """
    if check_poolings(experts) is not None:
        needs = (need for entry, _ in methods_of(recipe) for need in needs_of(entry))
        unread = all(need.rows == "none" for need in needs)
        if (recipe.tasks and unread) or recipe.heads not in ("auto", "none"):
            flag = "--tasks" if recipe.tasks and unread else "--heads"
            raise BadRecipe(
                f"{experts[0].source} is an embedding model, without a head or a task; omit {flag}"
            )
        return True
    if verbalizer_of(experts[0]):
        if recipe.heads not in ("auto", "none"):
            raise BadRecipe(
                f"{experts[0].source} answers in words by its lm_head, which is merged like every "
                "other layer; omit --heads"
            )
        return True
    for expert in experts:
        if recipe.heads == "none" and expert.labels is not None:
            raise BadRecipe(f"{expert.source} has a head; leave out --heads none")
        if expert.labels is None and not (recipe.heads == "none" and expert.family.stacks):
            raise MissingHead(f"{expert.source} has no head; expected a head, or --heads-from")
    return recipe.heads == "none"  # of models that generate text


# What goes into the merger -----------------------------------------------------------------


def _part(state: StateDict, names: Iterable[str]) -> StateDict:
    """The tensors of a state dict with these names, as far as it has them."""
    return weights.select(state, [name for name in names if name in state])


def _with_stages(draft: MergePlan, builder: StageBuilder) -> MergePlan:
    """The plan with its stages, and with what enters the merger: bodies, origin and tops.

    Pre-merging methods are given whole models: a permutation in an encoder may need the same one in
    its head.
    """
    experts, base, fresh = draft.experts, draft.base, set(builder.new_names)
    sources = [expert.source for expert in experts]
    wholes: Sequence[StateDict] = [
        weights.select(expert.weights, weights.floating(expert.weights)) for expert in experts
    ]
    encoders = [_without(whole, fresh) for whole in wholes]
    weights.check_same(encoders, sources)
    body, origin = tuple(encoders[0]), _part(base.weights, encoders[0]) if base else {}
    if base:
        weights.check_same([encoders[0], origin], [sources[0], f"the base {base.source}"])
    steps: list[PremergeStep] = []
    clock = StageClock()
    before, methods = len(draft.recipe.premerge), methods_of(draft.recipe)
    for number, (entry, choice) in enumerate(methods[:before]):
        stage = builder.stage(entry, choice, experts_entering(experts, wholes))
        with clock.running(number):
            changed = _premerged(stage, wholes, origin, draft.experts[0].family)
        after: Sequence[StateDict] = [clock.timed(number, state) for state in changed]
        if isinstance(entry, Premerge) and entry.costly and builder.spool is not None:
            after = builder.spool.states(after)
        latest = tuple(map(LastRead, after))
        seconds = partial(clock.seconds, number)
        steps.append(PremergeStep(stage, tuple(wholes), latest, body, seconds))
        wholes = steps[-1].leaving
    bodies = tuple(weights.select(whole, body) for whole in wholes)
    tops = tuple(_without(whole, {*body}) for whole in wholes)
    heads = draft.recipe.heads
    if heads != "keep":
        weights.check_same(tops, sources)
    if heads == "merge":
        own = ordered_as(base, experts[0].labels) if base else None
        origin = _with_head(origin, own, tops[0], MERGERS[draft.recipe.merger.name])
        bodies = tuple(map(weights.union, bodies, tops))
    averaged = None
    if heads == "average":
        averaged = mean_over_annotators(experts, tops, weights.mean(tops))
    entered = experts_entering(experts, wholes)
    later = [builder.stage(*method, entered, averaged) for method in methods[before:]]
    return replace(
        draft,
        merger_inputs=bodies,
        base_state=origin,
        head_states=tops,
        steps=tuple(steps),
        stages=(*(step.stage for step in steps), *later),
    )


def _with_head(
    origin: StateDict, base: Checkpoint | None, head: Iterable[str], merger: Merger
) -> StateDict:
    """The base with its head, if the merger subtracts it. Raises MissingHead if it has none."""
    if not (merger.task_vectors and base):
        return origin
    if lacking := [name for name in head if name not in base.weights]:
        lacks = f"the base {base.source} has no '{lacking[0]}'"
        raise MissingHead(f"{lacks}, so the head has no task vector; use --heads average")
    return weights.union(origin, _part(base.weights, head))


def _without(state: StateDict, names: Collection[str]) -> StateDict:
    return weights.select(state, [name for name in state if name not in names])


def _premerged(
    stage: Stage, wholes: Sequence[StateDict], origin: StateDict, family: Family
) -> Sequence[StateDict]:
    """The experts after a pre-merging method, checked to have the names and shapes that went in.

    A method with the need `symmetry` is given the tensors of the family's table, not of the files.
    """
    name = stage.entry.name
    base = origin if reads_base(stage.entry, stage.options) else {}
    by_table = "symmetry" in stage.entry.needs
    inputs = [split_parts(family, state) if by_table else state for state in (*wholes, base)]
    changed: Sequence[StateDict] = stage.run(inputs[:-1], inputs[-1])
    if len(changed) != len(wholes):
        raise IncompatibleWeights(
            f"{name} returned {len(changed)} experts, expected {len(wholes)}, as it was given"
        )
    if by_table:
        changed = [joined_parts(family, *pair) for pair in zip(changed, wholes, strict=True)]
    for index, pair in enumerate(zip(wholes, changed, strict=True), start=1):
        weights.check_same(pair, [f"expert {index}", f"expert {index} after {name}"])
    return changed
