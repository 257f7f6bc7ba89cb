"""The boards of a study, from the records that its plan asks for, and its figures: scores over the
option that its merges differ in, and plots of its boards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.errors import BadRecipe, HarnessError, MissingScores
from harness.files import read_json, write_json
from harness.hashes import digest_of
from harness.merging.recipes import Recipe, with_choices
from harness.reporting.boards.leaderboard import INDEX, leaderboard
from harness.reporting.plots.plot import plot
from harness.reporting.plots.scores import View
from harness.reporting.plots.sweep import EXPERTS
from harness.studies.experts import leaf, slug
from harness.studies.outcomes import OUTCOMES, Outcome
from harness.studies.plan import Plan, latest_in, read_plan
from harness.studies.step import Step
from harness.studies.study import Figure, Study, choice_of
from harness.types import Choice

BOARDS = "boards"


def boards(
    plan: Plan, outcomes: Mapping[str, Outcome], folder: Path, *, anew: bool = False
) -> list[Path]:
    """Write the boards of a study into `folder`/boards; returns their folders.

    They show only records that the plan asks for, though there may be more. Nothing is written if
    all boards are there, of these very records and with the same figures, unless `anew`. Raises
    MissingScores where the plan has evaluations and no record is there.
    """
    places = record_paths(plan, outcomes, folder)
    if not places and plan.evaluations:
        raise MissingScores(f"there is no record of {plan.study} in {folder}; run the study first")
    drawn = folder / OUTCOMES / BOARDS / f"{plan.study}.json"
    key = {
        "of": {reading: digest_of(sorted(map(str, paths))) for reading, paths in places.items()},
        "figures": [figure.model_dump(mode="json") for figure in plan.figures],
    }
    whole = all((folder / BOARDS / reading / INDEX).is_file() for reading in places)
    with suppress(HarnessError):  # if the file is broken, draw again
        if whole and not anew and drawn.is_file() and read_json(drawn, "boards' records") == key:
            return []
    for reading, records in places.items():
        leaderboard(sorted(records), out=folder / BOARDS / reading)
    write_json(drawn, key)  # last: a run that is killed before draws them again
    return [folder / BOARDS / reading for reading in places]


def check_boards(plan: Plan, folder: Path, before: Sequence[Plan]) -> None:
    """Raise BadRecipe if another study, in the folder already or planned `before` in it, has a
    board of the same name."""
    own = {step.board for step in plan.evaluations}
    others = [read_plan(path) for path in latest_in(folder) if path.stem != plan.study]
    for other in (*others, *before):
        if shared := own.intersection(step.board for step in other.evaluations):
            raise BadRecipe(
                f"{plan.study} and {other.study} in {folder} both have a board '{min(shared)}'; "
                "expected one each: choose another --out, or another name in score_on"
            )


def record_paths(
    plan: Plan, outcomes: Mapping[str, Outcome], folder: Path, base: str | None = None
) -> dict[str, set[Path]]:
    """The paths of a plan's records, of all bases or of one, by the name of their board."""
    places: dict[str, set[Path]] = {}
    for step in plan.evaluations:
        if (records := outcomes[step.name].records) and base in (None, step.base):
            places.setdefault(step.board, set()).update(folder / path for path in records)
    return places


# Figures -----------------------------------------------------------------------------------


def check_figures(study: Study, steps: Sequence[Step]) -> None:
    """Raise BadRecipe for a sweep over an option that no two merges differ in, and for a figure of
    protocols that the study lacks."""
    lists = [reading.protocols or study.protocols for reading in study.evaluations.values()]
    known = {choice_of(text).name for texts in lists for text in texts}
    for figure in study.figures:
        if unknown := {choice_of(text).name for text in figure.protocols} - known:
            raise study.fault(
                f"figures: '{min(unknown)}' is no protocol of the study; expected one of "
                f"{', '.join(sorted(known)) or 'those that its protocols name'}"
            )
        if figure.sweep and not curves_of({step.name: step for step in steps}, figure):
            raise study.fault(
                f"figures: no two merges differ in {figure.sweep} alone; expected METHOD.OPTION of "
                f"an option with several values, such as ties.density, or {EXPERTS} for sets that "
                "grow"
            )


def figures(
    plan: Plan, outcomes: Mapping[str, Outcome], folder: Path
) -> tuple[list[Path], list[str]]:
    """Draw the figures of a study into `folder`/boards; their paths, and why others are missing."""
    paths: list[Path] = []
    missing: list[str] = []
    for figure in plan.figures:
        view = View(option=figure.sweep, loss=figure.loss, protocols=figure.protocols)
        for name, records in records_of(plan, outcomes, folder, figure).items():
            what, out = figure.plot or "sweep", folder / BOARDS / name
            if not records:
                missing.append(f"no figure {name}: all evaluations for it failed")
                continue
            try:
                paths += plot(what, sorted(records), out=out, view=view)
            except MissingScores as error:
                missing.append(f"no figure {name}: {error}")
    return paths, missing


def records_of(
    plan: Plan, outcomes: Mapping[str, Outcome], folder: Path, figure: Figure
) -> dict[str, set[Path]]:
    """The records that each picture of a figure shows, by the name of the picture."""
    if figure.plot is None:
        return {
            name: {folder / path for step in steps for path in outcomes[step.name].records}
            for name, steps in curves_of(plan.steps, figure).items()
        }
    bases = {step.base for step in plan.evaluations}
    return {
        slug("-".join([board, figure.plot, *[leaf(base)] * (len(bases) > 1)])): records
        for base in sorted(bases)
        for board, records in record_paths(plan, outcomes, folder, base).items()
    }


def curves_of(steps: Mapping[str, Step], figure: Figure) -> dict[str, list[Step]]:
    """The evaluations of each picture of a sweep, by its name: of one board and base, and of merges
    that differ only in the option, or in the number of experts.

    Sets that share a task, as pairs do, have a picture each.
    """
    pairs = {name: _method_and_value(step, figure.sweep) for name, step in steps.items()}
    merges = {name: pair for name, pair in pairs.items() if pair is not None}
    curves: dict[tuple[str, ...], dict[tuple[str, ...], list[Step]]] = {}
    for step in steps.values():
        if step.verb != "evaluate" or step.needs[0] not in merges:
            continue
        merge = steps[step.needs[0]]
        rest, _ = merges[merge.name]
        tasks = [steps[need].about for need in merge.needs if need.startswith("experts/")]
        # sets that grow have their first expert in common
        key = tuple(tasks[:1] if figure.sweep == EXPERTS else sorted(tasks))
        curve = curves.setdefault((leaf(step.board), leaf(step.base), rest), {})
        curve.setdefault(key, []).append(step)
    found: dict[str, list[Step]] = {}
    several = len({base for _, base, _ in curves}) > 1
    for (board, base, rest), by_tasks in curves.items():
        tasks = [one for group in by_tasks.values() for one in {*group[0].asked("tasks")}]
        disjoint = len(tasks) == len({*tasks})
        for key, group in by_tasks.items():
            parts = [board, figure.sweep, rest, *[base] * several, *map(leaf, key * (not disjoint))]
            found.setdefault(slug("-".join(parts)), []).extend(group)
    return {
        name: group
        for name, group in found.items()
        if len({merges[step.needs[0]][1] for step in group}) > 1
    }


def _method_and_value(step: Step, option: str) -> tuple[str, str] | None:
    """The methods of a merge without one option, `METHOD.OPTION`, and a digest of its value; None
    if the step is no merge, has no such method, or tunes the option.

    The value of `experts` is their number.
    """
    if step.verb != "merge":
        return None
    tuned = str(step.request.get("tune", "")).partition("=")[0]
    merger = step.request.get("merger", {}).get("name")
    if option in (tuned, f"{merger}.{tuned}"):  # each set may have another value
        return None
    method, _, name = option.rpartition(".")
    fields = {key: value for key, value in step.request.items() if key not in ("experts", "base")}
    values: list[Any] = [len(step.request["experts"])] * (option == EXPERTS)

    def bare(_: Any, choice: Choice) -> Choice:
        if choice.name != method:
            return choice
        values.append(choice.options.get(name))
        return Choice(method, {n: value for n, value in choice.options.items() if n != name})

    recipe = with_choices(Recipe(experts=(), **fields), bare)
    return (recipe.method, digest_of(values)) if values else None
