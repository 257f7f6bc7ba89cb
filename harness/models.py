"""Shell: what `evaluate --model` names -> a model, its references and its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from harness import weights
from harness.checkpoints import (
    EXPERT_FILE,
    MERGE_FILE,
    MERGEKIT_FILE,
    aligned_base,
    is_head,
    labels_of,
    open_checkpoint,
    open_weights,
)
from harness.data import parse_task
from harness.errors import BadRecipe, BrokenCheckpoint, MissingHead
from harness.files import read_json
from harness.labels import fit, generic, same
from harness.mergekit.config import ingredients
from harness.recipes import Run
from harness.records import Role
from harness.types import Checkpoint, Task


@dataclass(frozen=True)
class Model:
    """A model to evaluate with its base, its experts and the task of each.

    `kept` are complete checkpoints by task, for an encoder with one head per task. `references` are
    models to read beside it, which have neither base nor experts of their own here.
    """

    name: str
    role: Role
    method: str
    checkpoint: Checkpoint
    kept: Mapping[str, Checkpoint]
    base: Checkpoint | None
    experts: tuple[Checkpoint, ...]
    expert_tasks: tuple[str, ...]
    tasks: tuple[str, ...]
    references: tuple[Model, ...] = ()

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


def experts_of(model: Model, task: Task) -> list[Checkpoint]:
    """The experts whose task this is."""
    return [
        expert
        for expert, name in zip(model.experts, model.expert_tasks, strict=True)
        if name == task.name
    ]


def others_of(model: Model, task: Task) -> list[Checkpoint]:
    """The experts of other tasks whose labels are those of this one."""
    return [
        expert
        for expert, name in zip(model.experts, model.expert_tasks, strict=True)
        if name != task.name
        and parse_task(name)[0].kind == task.kind
        and fit(expert.labels or (), task)
    ]


def with_head(encoder: Checkpoint, expert: Checkpoint) -> Checkpoint:
    """The encoder of one checkpoint under the head of another."""
    mine = aligned_base(encoder, expert)
    body = weights.select(mine.weights, [n for n in mine.weights if not is_head(n)])
    whole = weights.select(weights.union(body, expert.weights), list(expert.weights))
    return replace(encoder, config=expert.config, weights=whole, labels=expert.labels)


def resolve_model(run: Run) -> Model:
    """Open the model, its experts and base, as given or as the folder's own record names them."""
    path = Path(run.model)
    merged = _merge_record(path)
    checkpoint = open_checkpoint(run.model, allow_pickle=run.allow_pickle)
    kit = _mergekit_file(checkpoint.path)
    if merged is not None:
        experts, expert_tasks, base = _from_merge(run, path, merged)
    else:
        experts, base = _from_mergekit(run, kit) if kit else (list(run.experts), run.base)
        expert_tasks = _assigned(run, len(experts))
    asked = run.tasks or (() if merged is None else tuple(merged.get("tasks", ())))
    asked = asked or checkpoint.tasks
    if not asked:
        raise BadRecipe(f"{run.model} does not say its tasks; name them with --tasks")
    opened = tuple(open_checkpoint(source, allow_pickle=run.allow_pickle) for source in experts)
    if kit is not None:
        checkpoint = _labelled(checkpoint, opened)
        if not run.experts:
            expert_tasks = [
                found.tasks[0] if len(found.tasks) == 1 else given
                for given, found in zip(expert_tasks, opened, strict=True)
            ]
    parsed = [parse_task(task) for task in asked]
    only = parsed[0][0].name if len({task.name for task, _ in parsed}) == 1 else None
    named = tuple(
        _task_of(found, given or only) for given, found in zip(expert_tasks, opened, strict=True)
    )
    tasks = tuple(f"{task.name}@{split}" for task, split in parsed)
    for task in merged.get("scored_on", ()) if merged else ():
        if task in tasks:
            raise BadRecipe(f"{run.model} was tuned on {task}; expected another split to report")
    kept = _kept(checkpoint, path)
    role, method = _standing(path, kept, alone=not run.experts)
    pattern = next(iter([*kept.values(), *opened, checkpoint]))
    found_base = None
    if base is not None:
        found_base = aligned_base(open_checkpoint(base, allow_pickle=run.allow_pickle), pattern)
    model = Model(
        name=checkpoint.name,
        role=role,
        method=method,
        checkpoint=checkpoint,
        kept=kept,
        base=found_base,
        experts=opened,
        expert_tasks=named,
        tasks=tasks,
        references=tuple(_reference(source, run) for source in run.references),
    )
    _check_references(model, [task for task, _ in parsed])
    return model


def _merge_record(path: Path) -> dict[str, Any] | None:
    """What merge.json says, if there is one."""
    return read_json(path / MERGE_FILE, "a merge") if (path / MERGE_FILE).is_file() else None


def _standing(path: Path, kept: Mapping[str, Checkpoint], *, alone: bool) -> tuple[Role, str]:
    """The role of a model and the method it was made by, as its folder says.

    An expert is one only `alone`: with experts of its own it is what they made.
    """
    merged = _merge_record(path)
    if merged is not None:
        return "merged", str(merged.get("method", "merged"))
    trained = (path / EXPERT_FILE).is_file()
    if trained and kept:
        return "reference", "multi-task"
    if trained and alone:
        return "expert", "expert"
    kit = path / MERGEKIT_FILE
    return "merged", f"mergekit:{ingredients(kit).method}" if kit.is_file() else "given"


def _reference(source: str, run: Run) -> Model:
    """A model that is read beside the one that is evaluated."""
    checkpoint = open_checkpoint(source, allow_pickle=run.allow_pickle)
    kept = _kept(checkpoint, checkpoint.path)
    _, method = _standing(checkpoint.path, kept, alone=True)
    return Model(
        name=checkpoint.name,
        role="reference",
        method=method,
        checkpoint=checkpoint,
        kept=kept,
        base=None,
        experts=(),
        expert_tasks=(),
        tasks=(),
    )


def _check_references(model: Model, tasks: Sequence[Task]) -> None:
    """Each reference has a head for some task, a name of its own, and is nothing else here."""
    others = [model.checkpoint, *model.experts, *([model.base] if model.base else [])]
    taken = {other.path.resolve() for other in others}
    called = {(model.name, model.method)}
    for reference in model.references:
        source = reference.checkpoint.source
        if not any(reference.has_head(task) for task in tasks):
            raise MissingHead(
                f"the reference {source} has no head for {', '.join(map(str, tasks))}; "
                "expected one for a task of the run"
            )
        if reference.checkpoint.path.resolve() in taken:
            raise BadRecipe(
                f"the reference {source} is in the run already; expected a model that is neither "
                "the one evaluated nor its base, an expert or another reference"
            )
        if (reference.name, reference.method) in called:
            raise BadRecipe(
                f"two models are called '{reference.name} ({reference.method})'; expected one, as "
                f"rows are told apart by folder: rename {source}"
            )
        taken.add(reference.checkpoint.path.resolve())
        called.add((reference.name, reference.method))


def _task_of(expert: Checkpoint, given: str | None) -> str:
    """The task of an expert: as given, else as its folder records."""
    if given is not None:
        return given
    if len(expert.tasks) == 1:
        return expert.tasks[0]
    if len(expert.tasks) > 1:
        raise BadRecipe(
            f"{expert.source} is a model of {len(expert.tasks)} tasks, expected an expert of one; "
            "give it with --references"
        )
    raise BadRecipe(
        f"the task of expert {expert.source} is not known; name one task per expert with --tasks"
    )


def _assigned(run: Run, count: int) -> list[str | None]:
    """Which task each of `count` experts is of: one task for all, or in the order of the tasks."""
    names = [parse_task(task)[0].name for task in run.tasks]
    if len(names) == 1:
        return [names[0]] * count
    if len(names) == count:
        return list(names)
    return [None] * count


def _from_merge(
    run: Run, path: Path, merged: Mapping[str, Any]
) -> tuple[list[str], list[str | None], str | None]:
    """Experts, their tasks and the base that merge.json names, unless the run names others."""
    recorded = merged.get("experts") or [None]
    if not all(map(_is_origin, recorded)) or not (
        merged.get("base") is None or _is_origin(merged["base"])
    ):
        raise BrokenCheckpoint(
            f"{path / MERGE_FILE} does not say where its experts and base are and what they held; "
            "expected a source and a digest for each"
        )
    base = run.base
    if base is None and merged.get("base"):
        base = _place(merged["base"], path, "--base", run.allow_pickle)
    if run.experts:
        if len(run.experts) != len(recorded):
            raise BadRecipe(
                f"{run.model} was merged from {len(recorded)} experts, found {len(run.experts)} "
                "in --experts; expected one for each, in the same order"
            )
        experts = list(run.experts)
    else:
        experts = [_place(entry, path, "--experts", run.allow_pickle) for entry in recorded]
    return experts, [entry.get("task") for entry in recorded], base


def _is_origin(entry: object) -> bool:
    return isinstance(entry, dict) and {"source", "digest"} <= entry.keys()


def _place(entry: Mapping[str, str], path: Path, flag: str, allow_pickle: bool) -> str:
    """Where a recorded checkpoint is now: as it was named, or beside the merged folder.

    Raises BrokenCheckpoint when it is gone or its weights are no longer those that were merged.
    """
    candidates = [entry["source"]]
    if "relative" in entry:
        candidates.append(str(path / entry["relative"]))
    for candidate in candidates:
        if Path(candidate).is_dir():
            found = weights.digest(open_checkpoint(candidate, allow_pickle=allow_pickle).weights)
            if found == entry["digest"]:
                return candidate
            raise BrokenCheckpoint(
                f"{candidate} has changed since it was merged into {path}: its weights hash to "
                f"{found[:12]}, expected {entry['digest'][:12]}; name the right one with {flag}"
            )
    if "relative" not in entry:
        return entry["source"]
    raise BrokenCheckpoint(
        f"{path / MERGE_FILE} names {entry['source']}, which is not there; expected that folder: "
        f"say where it is with {flag}"
    )


def _kept(checkpoint: Checkpoint, path: Path) -> dict[str, Checkpoint]:
    """The encoder under each head of heads/<task>/."""
    found = {}
    for config in sorted((path / "heads").glob("**/config.json")):
        task = config.parent.relative_to(path / "heads").as_posix()
        head = open_weights(config.parent)
        settings = read_json(config, "a configuration")
        found[task] = replace(
            checkpoint,
            config=settings,
            weights=weights.union(checkpoint.weights, head),
            labels=labels_of(settings, str(config)),
        )
    return found


def _from_mergekit(run: Run, kit: Path) -> tuple[list[str], str | None]:
    """Experts and base that mergekit_config.yml names, unless the run names others.

    Raises BrokenCheckpoint for one that is not there.
    """
    found = ingredients(kit)
    named = [(name, "--experts") for name in found.experts if not run.experts]
    if found.base is not None and run.base is None:
        named.append((found.base, "--base"))
    for name, flag in named:
        _check_there(name, run, f"{kit} names it: say where it is with {flag}")
    return list(run.experts or found.experts), run.base or found.base


def _check_there(source: str, run: Run, hint: str) -> None:
    try:
        open_checkpoint(source, allow_pickle=run.allow_pickle)
    except BrokenCheckpoint as error:
        raise BrokenCheckpoint(f"{error}; {hint}") from error


def _mergekit_file(path: Path) -> Path | None:
    """The configuration in a folder that mergekit wrote, and nobody has tuned since."""
    kit = path / MERGEKIT_FILE
    return kit if kit.is_file() and not (path / EXPERT_FILE).is_file() else None


def _labelled(checkpoint: Checkpoint, experts: Sequence[Checkpoint]) -> Checkpoint:
    """A model of mergekit's with the label names of its experts.

    It comes with the configuration of the base, or of any one model, and with heads merged by
    position: experts that agree on the labels say what its outputs mean. A head merged from heads
    of different labels says nothing, and counts as none.
    """
    labels = [expert.labels for expert in experts]
    if checkpoint.labels is None or not labels or labels[0] is None:
        return checkpoint
    if not all(other is not None and same(other, labels[0]) for other in labels):
        return replace(checkpoint, labels=None)
    fits = len(labels[0]) == len(checkpoint.labels)
    return replace(checkpoint, labels=labels[0]) if fits else checkpoint
