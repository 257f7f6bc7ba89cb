"""Shell: what `evaluate --model` names -> a model, its references and its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

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
    read_json,
)
from harness.data import parse_task
from harness.errors import BadRecipe, BrokenCheckpoint
from harness.recipes import Run
from harness.records import Role
from harness.types import Checkpoint, Task


@dataclass(frozen=True)
class Model:
    """A model to evaluate with its base, its experts and the task of each.

    `kept` are complete checkpoints by task, for a merge that kept one head per task.
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

    @cached_property
    def base_digest(self) -> str:
        return weights.digest(self.base.weights) if self.base is not None else ""

    @cached_property
    def expert_digests(self) -> tuple[str, ...]:
        return tuple(weights.digest(expert.weights) for expert in self.experts)

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


def with_head(encoder: Checkpoint, expert: Checkpoint) -> Checkpoint:
    """The encoder of one checkpoint under the head of another."""
    mine = aligned_base(encoder, expert)
    body = weights.select(mine.weights, [n for n in mine.weights if not is_head(n)])
    whole = weights.select(weights.union(body, expert.weights), list(expert.weights))
    return replace(encoder, config=expert.config, weights=whole, labels=expert.labels)


def resolve_model(run: Run) -> Model:
    """Open the model, its experts and base, as given or as the folder's own record names them."""
    path = Path(run.model)
    merged = read_json(path / MERGE_FILE, "a merge") if (path / MERGE_FILE).is_file() else None
    checkpoint = open_checkpoint(run.model, allow_pickle=run.allow_pickle)
    if merged is not None:
        experts, expert_tasks, base = _from_merge(run, path, merged)
        method = str(merged.get("method", "merged"))
    else:
        kit = path / MERGEKIT_FILE
        method = f"mergekit:{_mergekit_method(kit)}" if kit.is_file() else "given"
        method = "expert" if _is_expert(run, path) else method
        experts, base = list(run.experts), run.base
        expert_tasks = _assigned(run)
    asked = run.tasks or (() if merged is None else tuple(merged.get("tasks", ())))
    asked = asked or checkpoint.tasks
    if not asked:
        raise BadRecipe(f"{run.model} does not say its tasks; name them with --tasks")
    opened = tuple(open_checkpoint(source, allow_pickle=run.allow_pickle) for source in experts)
    parsed = [parse_task(task) for task in asked]
    only = parsed[0][0].name if len({task.name for task, _ in parsed}) == 1 else None
    named = tuple(
        _task_of(found, given or only) for given, found in zip(expert_tasks, opened, strict=True)
    )
    tasks = tuple(f"{task.name}@{split}" for task, split in parsed)
    kept = _kept(checkpoint, path)
    pattern = next(iter([*kept.values(), *opened, checkpoint]))
    found_base = None
    if base is not None:
        found_base = aligned_base(open_checkpoint(base, allow_pickle=run.allow_pickle), pattern)
    return Model(
        name=checkpoint.name,
        role="expert" if _is_expert(run, path) else "merged",
        method=method,
        checkpoint=checkpoint,
        kept=kept,
        base=found_base,
        experts=opened,
        expert_tasks=named,
        tasks=tasks,
    )


def _task_of(expert: Checkpoint, given: str | None) -> str:
    """The task of an expert: as given, else as its folder records."""
    if given is not None:
        return given
    if len(expert.tasks) == 1:
        return expert.tasks[0]
    raise BadRecipe(
        f"the task of expert {expert.source} is not known; name one task per expert with --tasks"
    )


def _assigned(run: Run) -> list[str | None]:
    """Which task each given expert is of: one task for all, or in the order of the tasks."""
    names = [parse_task(task)[0].name for task in run.tasks]
    if len(names) == 1:
        return [names[0]] * len(run.experts)
    if len(names) == len(run.experts):
        return list(names)
    return [None] * len(run.experts)


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


def _is_expert(run: Run, path: Path) -> bool:
    """Whether the folder is one that `finetune` wrote, evaluated for itself."""
    return (path / EXPERT_FILE).is_file() and not run.experts


def _mergekit_method(path: Path) -> str:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        return str(found["merge_method"])
    except (yaml.YAMLError, OSError, KeyError, TypeError) as error:
        raise BrokenCheckpoint(f"{path} names no merge_method: {error}") from error
