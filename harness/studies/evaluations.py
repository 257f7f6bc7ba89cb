"""The evaluations of a study: a step for every merge, task and numbers of shots."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from harness.data.groups import expanded
from harness.data.splits import parse_task
from harness.evaluation.run import Run
from harness.evaluation.task_split import protocols_of
from harness.kinds import kind_of
from harness.registry import PROTOCOLS
from harness.studies.experts import ExpertSet, leaf
from harness.studies.inputs import rows_of
from harness.studies.step import Step
from harness.studies.study import OF_EXPERTS, ScoreOn, Study, choice_of
from harness.text import few, is_whole_number
from harness.types import ALL, Choice, Shots
from harness.values import validated


def evaluations(
    study: Study,
    experts: ExpertSet,
    merging: Step,
    name: str,
    references: Mapping[str, Step | None],
    data_dir: str | None,
) -> Iterator[Step]:
    """The steps that score a merge for the evaluation `name`, for every task and numbers of shots.

    The protocols of a step share the forward passes.
    """
    reading = study.evaluations[name]
    named = study.references_of(reading)
    tasks = [t for t in _tasks(reading, experts, data_dir) if _has_head(study, reading, experts, t)]
    if experts.has_unrecorded and not tasks:
        raise study.fault(
            f"the folders of {experts.name} do not each say one task; name the tasks to score: "
            f"score_on: {{{name}: {{tasks: [...]}}}}"
        )
    flags = _flags(study, reading)
    for shots, protocols in _by_shots(study, reading.protocols or study.protocols).items():
        values = {
            "model": merging.name,
            "protocols": protocols,
            "references": [*references],
            "best_single": "best-single" in named and _has_several(study, reading, experts),
            "singles": "singles" in named,
            **flags,
            **({"shots": shots} if shots else {}),
            "output": f"records/{reading.board or name}",
        }
        field = f"score_on.{name}.evaluate" if study.score_on else "evaluate"
        run: Run = validated(Run, values, f"{study.study}: {field}")
        used = protocols_of(run)
        if study.limit and any(ALL in protocol.drawing(run).shots for protocol in used):
            run = run.but(train_limit=min(study.limit, run.train_limit or study.limit))
        # given folders of experts record their tasks: one step for all of them
        for task in tasks if experts.tasks else tasks or ("",):
            task_run = run.but(tasks=(task,) if task else ())
            parts = [f"records/{name}", merging.name, leaf(task) or "all"]
            parts += [f"shots-{'-'.join(map(str, shots))}"] if shots else []
            yield Step(
                "/".join(parts),
                "evaluate",
                task_run.model_dump(mode="json", exclude_defaults=True),
                needs=(merging.name, *(step.name for step in references.values() if step)),
                cells=len(used) * (len(task_run.tasks) or experts.recorded_tasks or 1),
                base=experts.base,
                about=f"{task} {' '.join(map(str, protocols))} {task_run.shots} {task_run.draws}",
                size=rows_of(task, task_run.limit, data_dir, task_run.first) if task else None,
            )


def _tasks(reading: ScoreOn, group: ExpertSet, data_dir: str | None) -> list[str]:
    """The tasks, with splits or without, that merges of a set are scored on, each once."""
    named = (group.tasks if t == OF_EXPERTS else expanded((t,), data_dir) for t in reading.tasks)
    return [*dict.fromkeys(chain.from_iterable(named))]


def _has_head(study: Study, reading: ScoreOn, group: ExpertSet, text: str) -> bool:
    """Whether an expert of a set, and so its merge, has a head for the labels of a task. Assumed
    with `heads_from`, and of given folders."""
    if {**study.merge, **_flags(study, reading)}.get("heads_from"):
        return True
    task = parse_task(text)[0]
    kind, trained = kind_of(task), [parse_task(name)[0] for name in group.tasks]
    return not trained or any(
        other.name == task.name or (kind_of(other) is kind and kind.fits(task, other.labels))
        for other in trained
    )


def _has_several(study: Study, reading: ScoreOn, group: ExpertSet) -> bool:
    """Whether a task of a set has several experts, of which one is the best. With `singles` experts
    of other tasks count, and given folders may hold several."""
    singles = "singles" in study.references_of(reading) or _flags(study, reading).get("singles")
    return bool(singles) or len(group.members) > len(group.tasks)


def _flags(study: Study, reading: ScoreOn) -> dict[str, Any]:
    """The fields of a run that a study and an evaluation set, within the study's limit."""
    return study.limited({**study.evaluate, **reading.evaluate}, "limit")


def warn_of_left_out(study: Study, sets: Sequence[ExpertSet], data_dir: str | None) -> None:
    """Warn of tasks, and `best-single`, that cannot be scored. Raises BadRecipe if no task can."""
    left_out: dict[str, list[str]] = {}
    scored = False
    for name, reading in study.evaluations.items():
        pairs = [(group, task) for group in sets for task in _tasks(reading, group, data_dir)]
        for group, task in pairs:
            if _has_head(study, reading, group, task):
                scored = True
            else:
                left_out.setdefault(f"score_on.{name}: " if study.score_on else "", []).append(task)
    lines = [
        f"{board}no expert has a head for the labels of {few([*dict.fromkeys(tasks)])}"
        for board, tasks in left_out.items()
    ]
    if lines and not scored:
        raise study.fault(f"{lines[0]}; expected tasks with the labels of an expert's task")
    for line in lines:
        warnings.warn(f"{line}: these are not scored", stacklevel=4)
    asking = [r for r in study.evaluations.values() if "best-single" in study.references_of(r)]
    choices = [_has_several(study, reading, group) for reading in asking for group in sets]
    if asking and not any(choices):
        message = "no task has several experts to choose from: best-single is left out"
        warnings.warn(message, stacklevel=4)


def _by_shots(study: Study, protocols: Sequence[str]) -> dict[tuple[Shots, ...], list[Choice]]:
    """Protocols by the numbers of shots that they name: `ft-classifier:shots=[1,5]`; () if none."""
    by_shots: dict[tuple[Shots, ...], list[Choice]] = {}
    for text in dict.fromkeys(protocols):
        choice = choice_of(text)
        options = {name: value for name, value in choice.options.items() if name != "shots"}
        numbers = [shot.strip() for shot in str(choice.options.get("shots", "")).split(":")]
        if wrong := [n for n in numbers if n and n != ALL and not is_whole_number(n)]:
            raise study.fault(f"shots of {choice.name} are {wrong[0]!r}, expected numbers or {ALL}")
        entry, named = PROTOCOLS[choice.name], ":".join(numbers)
        if named and (entry.all_rows or entry.adapts == "nothing"):
            trained = "trains on all rows" if entry.all_rows else "does not adapt to any rows"
            raise study.fault(f"{choice.name} has shots {named} and {trained}; leave shots out")
        shots = tuple(ALL if shot == ALL else int(shot) for shot in numbers if shot)
        by_shots.setdefault(shots, []).append(Choice(choice.name, options))
    return by_shots or {(): []}
