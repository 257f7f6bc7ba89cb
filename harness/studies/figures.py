"""The figures of a study: scores against what its merges differ in, and pictures of its boards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.errors import MissingScores
from harness.hashes import digest_of
from harness.merging.recipes import Recipe, with_choices
from harness.reporting.plots.plot import plot
from harness.reporting.plots.scores import View
from harness.reporting.plots.sweep import EXPERTS
from harness.studies.board import BOARDS, readings
from harness.studies.experts import leaf, slug
from harness.studies.outcomes import Outcome
from harness.studies.plan import Plan
from harness.studies.steps import Step
from harness.studies.study import Figure, Study, choice_of
from harness.types import Choice


def check_figures(study: Study, steps: Sequence[Step]) -> None:
    """Raise BadRecipe for a figure over an option that no two merges differ in, or of protocols
    that the study has not."""
    every = [one.protocols or study.protocols for one in study.readings.values()]
    asked = {choice_of(text).name for of in every for text in of}
    for figure in study.figures:
        if other := {choice_of(text).name for text in figure.protocols} - asked:
            raise study.fault(
                f"figures: '{min(other)}' is no protocol of the study; expected one of "
                f"{', '.join(sorted(asked)) or 'those that its protocols name'}"
            )
        if figure.sweep and not curves_of({step.name: step for step in steps}, figure):
            raise study.fault(
                f"figures: no two merges differ in {figure.sweep} alone; expected an option of "
                f"theirs with several values, as METHOD.OPTION: ties.density, or {EXPERTS} of sets "
                "that grow"
            )


def figures(plan: Plan, known: Mapping[str, Outcome], folder: Path) -> tuple[list[Path], list[str]]:
    """Draw the figures of a study into `folder`/boards; the paths, and why others are not there."""
    made: list[Path] = []
    missing: list[str] = []
    for figure in plan.figures:
        view = View(option=figure.sweep, loss=figure.loss, protocols=figure.protocols)
        for name, records in records_of(plan, known, folder, figure).items():
            what, out = figure.plot or "sweep", folder / BOARDS / name
            try:
                made += plot(what, sorted(records), out=out, view=view)
            except MissingScores as error:
                missing.append(f"no figure {name}: {error}")
    return made, missing


def records_of(
    plan: Plan, known: Mapping[str, Outcome], folder: Path, figure: Figure
) -> dict[str, set[Path]]:
    """What each picture of a figure is of, by its name."""
    if figure.plot is None:
        return {
            name: {folder / path for one in steps for path in known[one.name].records}
            for name, steps in curves_of(plan.steps, figure).items()
        }
    bases = {step.base for step in plan.steps.values() if step.verb == "evaluate"}
    return {
        slug("-".join([board, figure.plot, *[leaf(base)] * (len(bases) > 1)])): records
        for base in sorted(bases)
        for board, records in readings(plan, known, folder, base).items()
    }


def curves_of(steps: Mapping[str, Step], figure: Figure) -> dict[str, list[Step]]:
    """The evaluations of each figure, by its name: of one board and base, and of merges that differ
    in one option alone, or in how many experts they are of.

    Of sets that share a task, as pairs do, each has a figure of its own.
    """
    merges = {n: told for n, one in steps.items() if (told := _told(one, figure.sweep)) is not None}
    scored = [one for one in steps.values() if one.verb == "evaluate" and one.needs[0] in merges]
    each: dict[tuple[str, ...], dict[tuple[str, ...], list[Step]]] = {}
    for step in scored:
        merge = steps[step.needs[0]]
        rest, _ = merges[merge.name]
        board = leaf(step.request["output"])
        tasks = [steps[one].about for one in merge.needs if one.startswith("experts/")]
        # sets that grow have their first expert in common
        of = tuple(tasks[:1] if figure.sweep == EXPERTS else sorted(tasks))
        each.setdefault((board, leaf(step.base), rest), {}).setdefault(of, []).append(step)
    found: dict[str, list[Step]] = {}
    several = len({base for _, base, _ in each}) > 1
    for (board, base, rest), by_tasks in each.items():
        together = _apart([*by_tasks.values()])
        for of, some in by_tasks.items():
            parts = [board, figure.sweep, rest, *[base] * several, *map(leaf, of * (not together))]
            found.setdefault(slug("-".join(parts)), []).extend(some)
    return {n: of for n, of in found.items() if len({merges[one.needs[0]][1] for one in of}) > 1}


def _apart(groups: Sequence[Sequence[Step]]) -> bool:
    """Whether no task is scored in two of the groups."""
    tasks = [{*one.asked("tasks")} for group in groups for one in group[:1]]
    return sum(map(len, tasks)) == len(set[str]().union(*tasks))


def _told(step: Step, option: str) -> tuple[str, str] | None:
    """What a merge is but for an option, `METHOD.OPTION`, and its value; None for one without.

    Of `experts` it is the number.
    """
    if step.verb != "merge":
        return None
    method, _, name = option.rpartition(".")
    asked = {key: one for key, one in step.request.items() if key not in ("experts", "base")}
    values: list[Any] = [len(step.request["experts"])] * (option == EXPERTS)

    def bare(_: Any, choice: Choice) -> Choice:
        if choice.name != method:
            return choice
        values.append(choice.options.get(name))
        return Choice(method, {n: one for n, one in choice.options.items() if n != name})

    recipe = with_choices(Recipe(experts=(), **asked), bare)
    return (recipe.method, digest_of(values)) if values else None
