"""Shell: what `evaluate --model` names -> a model, its references and its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.checkpoints.align import aligned_base, check_architecture, new_in_experts
from harness.checkpoints.layout import MERGEKIT_FILE
from harness.checkpoints.mergekit import ingredients
from harness.checkpoints.provenance import (
    EXPERT_FILE,
    Merged,
    merged_by,
    trained_by,
)
from harness.data.groups import expanded
from harness.data.splits import parse_task, share_rows
from harness.errors import BadRecipe, BrokenCheckpoint, MissingHead, UnknownName
from harness.evaluation.merges import check_unchanged, ingredients_of, kept_heads, opened_for
from harness.evaluation.model import Model
from harness.evaluation.records import Role
from harness.evaluation.run import Run
from harness.labels import same
from harness.registry import TASKS
from harness.types import Checkpoint, Task


def resolve_model(run: Run) -> Model:
    """Open the model, its experts and base, as given or as the folder's own record names them."""
    checkpoint = opened_for(run, run.model)
    path = checkpoint.path
    merged = merged_by(path)
    kit = _mergekit_file(path)
    if merged is not None:
        check_unchanged(checkpoint, merged)
        opened, expert_tasks, base = ingredients_of(run, path, merged)
        check_architecture([checkpoint, *opened, *([base] if base else [])])
    else:
        experts, named_base = _from_mergekit(run, kit) if kit else (list(run.experts), run.base)
        expert_tasks = _assigned(run, len(experts))
        opened = tuple(opened_for(run, source) for source in experts)
        base = opened_for(run, named_base) if named_base is not None else None
    asked = _asked_tasks(run, checkpoint, merged)
    if kit is not None:
        checkpoint = _labelled(checkpoint, opened)
        if not run.experts:
            expert_tasks = [
                one.tasks[0] if len(one.tasks) == 1 else given
                for given, one in zip(expert_tasks, opened, strict=True)
            ]
    only = asked[0][0].name if len({task.name for task, _ in asked}) == 1 else None
    named = tuple(
        _task_of(one, given or only) for given, one in zip(expert_tasks, opened, strict=True)
    )
    kept = kept_heads(checkpoint, merged)
    role, method = _standing(path, merged, kept, alone=not run.experts)
    pattern = next(iter([*kept.values(), *opened, checkpoint]))
    model = Model(
        name=checkpoint.name,
        role=role,
        method=method,
        checkpoint=checkpoint,
        kept=kept,
        base=_whole_base(base, pattern) if base is not None else None,
        experts=opened,
        expert_tasks=named,
        tasks=tuple(f"{task.name}@{split}" for task, split in asked),
        references=tuple(_reference(source, run) for source in run.references),
        shown=merged.shown if merged else (),
    )
    _check_references(model, [task for task, _ in asked])
    return model


def _whole_base(base: Checkpoint, pattern: Checkpoint) -> Checkpoint:
    """The base under the names of a model made from it.

    Raises IncompatibleWeights where it lacks a tensor, which would be read as the model's own.
    """
    aligned = aligned_base(base, pattern)
    new_in_experts(aligned, pattern)
    return aligned


def _asked_tasks(run: Run, checkpoint: Checkpoint, merged: Merged | None) -> list[tuple[Task, str]]:
    """The tasks to read with their splits: as asked for, else as the folder says.

    Raises BadRecipe where nobody says, and for rows that the model was tuned on.
    """
    said = trained_by(checkpoint.path) or merged
    spelled = said.spelled if said else {}
    asked_for = expanded(run.tasks, run.data_dir)
    names = list(asked_for) or [_known_task(name, spelled, run.model) for name in checkpoint.tasks]
    if not names:
        raise BadRecipe(f"{run.model} does not say its tasks; name them with --tasks")
    asked = [parse_task(name) for name in names]
    tuned_on = merged.scored_on if merged else []
    for tuned in tuned_on:
        name, _, tuned_split = tuned.partition("@")
        for task, split in asked:
            if task.name == name and share_rows(task, split, tuned_split):
                raise BadRecipe(
                    f"{run.model} was tuned on {tuned}, and {task}@{split} has rows of it; "
                    "expected another split to report"
                )
    return asked


def _known_task(name: str, spelled: Mapping[str, str], where: str) -> str:
    """The name of a task in a file, if it is registered: no name in a file imports code."""
    if name not in TASKS and name in spelled:
        raise UnknownName(
            f"{where} is of the task '{name}', which was given as {spelled[name]} and is not "
            f"registered here; names in files import no code: type --tasks {spelled[name]}"
        )
    return name


def _standing(
    path: Path, merged: Merged | None, kept: Mapping[str, Checkpoint], *, alone: bool
) -> tuple[Role, str]:
    """The role of a model and the method it was made by, as its folder says.

    An expert is one only `alone`: with experts of its own it is what they made.
    """
    if merged is not None:
        return "merged", merged.method
    trained = (path / EXPERT_FILE).is_file()
    if trained and kept:
        return "reference", "multi-task"
    if trained and alone:
        return "expert", "expert"
    kit = path / MERGEKIT_FILE
    return "merged", f"mergekit:{ingredients(kit).method}" if kit.is_file() else "given"


def _reference(source: str, run: Run) -> Model:
    """A model that is read beside the one that is evaluated."""
    checkpoint = opened_for(run, source)
    merged = merged_by(checkpoint.path)
    if merged is not None:
        check_unchanged(checkpoint, merged)
    kept = kept_heads(checkpoint, merged)
    _, method = _standing(checkpoint.path, merged, kept, alone=True)
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
        shown=merged.shown if merged else (),
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
    names = [parse_task(task)[0].name for task in expanded(run.tasks, run.data_dir)]
    if len(names) == 1:
        return [names[0]] * count
    if len(names) == count:
        return list(names)
    return [None] * count


def _from_mergekit(run: Run, kit: Path) -> tuple[list[str], str | None]:
    """Experts and base that mergekit_config.yml names, unless the run names others.

    Raises BrokenCheckpoint for one that is not there.
    """
    config = ingredients(kit)
    named = [(name, "--experts") for name in config.experts if not run.experts]
    if config.base is not None and run.base is None:
        named.append((config.base, "--base"))
    for name, flag in named:
        _check_there(name, run, f"{kit} names it: say where it is with {flag}")
    return list(run.experts or config.experts), run.base or config.base


def _check_there(source: str, run: Run, hint: str) -> None:
    try:
        opened_for(run, source)
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
