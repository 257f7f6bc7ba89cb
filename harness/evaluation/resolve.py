"""Shell: what `evaluate --model` names -> a model, its references and its tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from harness.checkpoints.align import aligned_base, check_architecture, in_all, new_in_experts
from harness.checkpoints.bases import check_bases
from harness.checkpoints.described import by_file, learn
from harness.checkpoints.layout import MERGEKIT_FILE
from harness.checkpoints.mergekit import ingredients
from harness.checkpoints.provenance import (
    EXPERT_FILE,
    Merged,
    merged_by,
)
from harness.checkpoints.unchanged import check_unchanged
from harness.data.claims import called_in
from harness.data.groups import expanded
from harness.data.splits import parse_task, share_rows
from harness.errors import BadRecipe, BrokenCheckpoint, MissingHead
from harness.evaluation.merges import ingredients_of, kept_heads, opened_for
from harness.evaluation.model import Model
from harness.evaluation.records import Role
from harness.evaluation.run import Run
from harness.labels import same
from harness.types import Checkpoint, Task


def resolve_model(run: Run) -> Model:
    """Open the model, its experts and base, as given or as the folder's own record names them."""
    checkpoint = opened_for(run, run.model)
    path = checkpoint.path
    merged = merged_by(path)
    kit = _mergekit_file(path)
    recorded: list[str | None] = []
    if merged is not None:
        opened, recorded, base = ingredients_of(run, path, merged)
        check_architecture([checkpoint, *opened, *([base] if base else [])])
    else:
        experts, named_base = _from_mergekit(run, kit) if kit else (list(run.experts), run.base)
        opened = tuple(opened_for(run, source) for source in experts)
        base = opened_for(run, named_base) if named_base is not None else None
    references = [opened_for(run, source) for source in run.references]
    # those that a merge was made of are told by what they hold
    for one in (checkpoint, *(() if merged else opened), *references):
        check_unchanged(one)
    if base is not None and not (run.other_base or (merged and merged.other_base)):
        check_bases([*opened, checkpoint], base)
    known = learn([checkpoint], by_file(run.tasks))
    learn([*opened, *references], known)
    asked = _asked_tasks(run, checkpoint, merged)
    if kit is not None:
        checkpoint = _labelled(checkpoint, opened)
    tasks = [*{task.name: task for task, _ in asked}.values()]
    named = _tasks_of(run, tasks, opened, recorded)
    if merged is None and kit is None and opened and not run.singles:
        _check_experts(opened, named, tasks)
    called = {old: new for old, new in zip(recorded, named, strict=False) if old}
    kept = {called.get(name, name): one for name, one in kept_heads(checkpoint, merged).items()}
    role, method = _standing(path, merged, kept, alone=not run.experts)
    pattern = in_all([*kept.values()] or opened or [checkpoint])
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
        references=tuple(_reference(one) for one in references),
        shown=merged.shown if merged else (),
    )
    _check_references(model, tasks)
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
    names = expanded(run.tasks, run.data_dir) or checkpoint.tasks
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


def _reference(checkpoint: Checkpoint) -> Model:
    """A model that is read beside the one that is evaluated."""
    merged = merged_by(checkpoint.path)
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


def _tasks_of(
    run: Run,
    tasks: Sequence[Task],
    experts: Sequence[Checkpoint],
    recorded: Sequence[str | None],
) -> tuple[str, ...]:
    """The task of each expert: as a merge recorded it, else as its own folder says, else as given.

    Given is one task for all, or one for each in their order. Raises BadRecipe where nobody says.
    """
    names = [task.name for task in tasks]
    in_order = run.tasks and len(names) == len(experts)
    given = names if in_order else (names if len(names) == 1 else [None]) * len(experts)
    told = recorded or [None] * len(experts)
    return tuple(
        _task_of(one, (merged, *_own_tasks(one, tasks, run)), names, asked)
        for one, merged, asked in zip(experts, told, given, strict=True)
    )


def _own_tasks(expert: Checkpoint, tasks: Sequence[Task], run: Run) -> list[str]:
    """What the folder of an expert says of its task, first by what that is called in this run."""
    here = [task.name for task in tasks if called_in(expert, task, run.data_dir)]
    return [*here, *expert.tasks]


def _task_of(
    expert: Checkpoint, said: Sequence[str | None], names: Sequence[str], given: str | None
) -> str:
    """The task of an expert: the first that is said and read, else any that is said, else given."""
    if len(expert.tasks) > 1:
        raise BadRecipe(
            f"{expert.source} is a model of {len(expert.tasks)} tasks, expected an expert of one; "
            "give it with --references"
        )
    for task in (*(one for one in said if one in names), *said, given):
        if task is not None:
            return task
    raise BadRecipe(
        f"the task of expert {expert.source} is not known; name one task per expert with --tasks"
    )


def _check_experts(
    experts: Sequence[Checkpoint], named: Sequence[str], tasks: Sequence[Task]
) -> None:
    """Raise BadRecipe where experts were given and none is of a task that is read."""
    if not {*named} & {task.name for task in tasks}:
        raise BadRecipe(
            f"{experts[0].source} is of {named[0]} by its own record, found "
            f"{', '.join(map(str, tasks))} in --tasks; expected experts of them: --singles reads "
            "others there, and --references beside"
        )


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
