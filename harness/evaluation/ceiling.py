"""Ceilings: references made of experts and base with parts for each task, so they are no merges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from harness import weights
from harness.checkpoints.provenance import rows_shown
from harness.errors import BadRecipe, UnknownName
from harness.evaluation.ceilings.emr import emr
from harness.evaluation.ceilings.tall import tall
from harness.evaluation.evaluated import EvaluatedModel, OpenedModel, evaluated_as
from harness.evaluation.run import Run
from harness.evaluation.task_split import unusual_of
from harness.options import resolve
from harness.text import hint
from harness.types import Checkpoint, Choice, Scalar, StateDict, Task

Ceiling: TypeAlias = Callable[..., Sequence[StateDict]]
"""From the encoders of experts and base, and options, to an encoder for each expert's task."""
CEILINGS: Mapping[str, Ceiling] = {"emr": emr, "tall": tall}


def ceilings_on(run: Run, model: OpenedModel, task: Task) -> Iterator[EvaluatedModel]:
    """The ceilings of a run on a task, each under the head of the task's own expert.

    None on a task without an expert.
    """
    if task.name not in model.expert_tasks:
        return
    place = model.expert_tasks.index(task.name)
    expert = model.experts[place]
    for choice in run.ceilings:
        options = options_of(choice)
        unusual = unusual_of(CEILINGS[choice.name], options)
        encoder = CEILINGS[choice.name](*_encoders(model), **options)[place]
        whole = weights.union(weights.cast_like(encoder, expert.weights), expert.weights)
        checkpoint = replace(
            expert,
            weights=weights.select(whole, expert.weights),
            source=f"{choice.name} of {expert.source}",
        )
        method = str(Choice(choice.name, unusual))
        row = evaluated_as(task, run, "ceiling", choice.name, (checkpoint,), "own", method)
        yield replace(row, shown=rows_shown(*(one.path for one in model.experts)))


def check_ceilings(run: Run, model: OpenedModel) -> None:
    """Raise BadRecipe if the model's base and experts cannot make the ceilings of a run.

    There must be two experts or more, and no two of one task. Raises UnknownName and BadOption for
    a ceiling or an option that does not exist.
    """
    if not run.ceilings:
        return
    for choice in run.ceilings:
        options_of(choice)
    named = ", ".join(dict.fromkeys(ceiling.name for ceiling in run.ceilings))
    if model.base is None:
        raise BadRecipe(
            f"the ceilings {named} need the base of {model.name}, found none; give --base"
        )
    if (count := sum(map(bool, model.expert_tasks))) < 2:
        raise BadRecipe(
            f"the ceilings {named} need two experts or more, found {count} of {model.name}; give "
            "--experts"
        )
    for task in model.expert_tasks:
        if (count := model.expert_tasks.count(task)) > 1:
            raise BadRecipe(
                f"the ceilings {named} need one expert of each task, found {count} of {task}; "
                "leave out --ceilings"
            )
    _encoders(model)


def options_of(choice: Choice) -> dict[str, Scalar]:
    """All options of a ceiling. Raises UnknownName if there is no ceiling of this name."""
    if choice.name not in CEILINGS:
        raise UnknownName(f"no ceiling is called '{choice.name}'; {hint(choice.name, CEILINGS)}")
    return resolve("ceiling", choice, CEILINGS[choice.name])


def _encoders(model: OpenedModel) -> tuple[list[StateDict], StateDict]:
    """The encoders of the experts, and that of the base: the floating tensors that all have.

    Raises IncompatibleWeights if shapes differ.
    """
    base = model.base
    assert base is not None  # check_ceilings refuses a run without one
    models: list[Checkpoint] = [*model.experts, base]
    is_head = model.experts[0].family.is_head
    names = [
        name
        for name in weights.floating(base.weights)
        if not is_head(name) and all(name in checkpoint.weights for checkpoint in models)
    ]
    states = [weights.select(checkpoint.weights, names) for checkpoint in models]
    weights.check_same(states, [checkpoint.source for checkpoint in models])
    return states[:-1], states[-1]
