"""Shell: records -> a comparison of models. Opens no model and no predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar

import numpy as np

from harness.data.shots import amount
from harness.errors import BadOption, BrokenRecord, MissingScores, UnknownName
from harness.evaluation.task_split import configured
from harness.options import parse_choice
from harness.reporting import bases as of_bases
from harness.reporting.boards.board import scores_of
from harness.reporting.boards.tested import priors_of
from harness.reporting.chosen import Chosen, chosen_lines, read_lines
from harness.reporting.comparison import (
    Comparison,
    OverTasks,
    Ranked,
    Ranking,
    TaskDifference,
    Terms,
)
from harness.reporting.difference import (
    by_task,
    enough_draws,
    fewest_draws,
    mean_difference,
    sets_of_all,
    significant_pairs,
    task_sets,
)
from harness.reporting.grid import MEAN, reported
from harness.reporting.lines import Line, shots_distance, tasks_by
from harness.reporting.mixed import check_columns
from harness.reporting.names import marked
from harness.reporting.sets import with_set_numbers
from harness.stats.estimate import Estimate, Prior, minus
from harness.stats.intervals import FARTHEST, fewest_sets, interval
from harness.stats.ranks import (
    interval_over_tasks,
    leave_one_out,
    sign_flip_p,
    standings,
    tie_groups,
)
from harness.stats.tests import detectable, holm, p_value, units_needed
from harness.types import Array64, Choice, Shots
from harness.values import one_or_more, validated

K = TypeVar("K")


def compare(
    models: str | Path | Sequence[str | Path],
    *,
    tasks: Sequence[str] = (),
    protocol: str = "current",
    shots: Shots | None = None,
    limit: int | Literal["all"] | None = None,
    train_limit: int | Literal["all"] | None = None,
    draws: int | None = None,
    max_length: int | None = None,
    records: str | Path = "records",
    margin: float | None = None,
    bases: Sequence[str] = (),
) -> Comparison | Ranking:
    """The comparison of two models, or the ranking of several, from records alone.

    `models` are names of models in the folder `records`, methods as boards call them
    (`dare[ties]`), or folders of records. They are compared on the tasks that all were evaluated
    on, and on the sets of experts that all were made of: replicates, as on boards, whose variance
    is shrunk towards that of all merges in `records`. Of several numbers of shots, the one nearest
    to `shots` (None: 5) is used; `limit` and `train_limit` choose among records of several limits
    (`all`: of all rows), `draws` and `max_length` among several numbers of draws and lengths, and
    `bases` among models of one name, by the names of their bases on boards, or by their sources.
    Two models are practically equal if the 95 % interval of their difference lies within `margin`,
    in points, on either side of zero.
    Raises BadOption for a wrong option, and UnknownName, MissingScores or BrokenRecord, before any
    arithmetic, for what cannot be compared: unknown names, other rows, splits or limits, two models
    of one name, scores on other resampled test units.
    """
    models = one_or_more(models)
    if margin is not None and not (len(models) == 2 and 0 < margin < math.inf):
        raise BadOption(
            f"margin is {margin} for {len(models)} models, expected points above 0, and two models"
        )
    if len(models) < 2 or len({*models}) < len(models):
        opening = f"{', '.join(models)} cannot be compared, expected" if models else "name"
        raise BadOption(f"{opening} two or more different models")
    choice = configured(parse_choice(protocol))
    label = str(Choice(choice.name, choice.unusual))
    fields = {"tasks": tasks, "protocols": (label,), "limit": limit, "train_limit": train_limit}
    fields |= {"draws": draws, "max_length": max_length}
    which = validated(Chosen, fields, "compare")
    by_name, all_lines = _lines(
        models, Path(records), validated(Chosen, {"bases": bases}, "compare")
    )
    chosen = {name: _among(name, group, which) for name, group in by_name.items()}
    sides = _shared(chosen, shots)
    scores, (lines, *_) = _scores(sides), sides.values()
    priors = _priors(all_lines, sides)
    shared, of_any = (
        max(len({line.set for line in group}) for group in by_model.values())
        for by_model in (sides, chosen)
    )
    seeds = sorted({seed for line in chain(*sides.values()) for _, seed, *_ in line.trained})
    task_names = tuple(sorted(tasks_by(lines)))
    terms = Terms(
        label,
        lines[0].shots or None,
        task_names,
        sets=shared,
        of_sets=of_any,
        seeds=tuple(seeds),
        over_sets=shared >= fewest_sets(priors.get(MEAN)),
    )
    if len(sides) == 2:
        fraction = None if margin is None else margin / 100
        return _two(_called(sides), scores, priors, terms, fraction)
    return _several(_called(sides), scores, priors, terms)


# Which lines -------------------------------------------------------------------------------

Sides: TypeAlias = Mapping[str, Sequence[Line]]
"""Lines by model."""


def _lines(
    names: Sequence[str], folder: Path, which: Chosen
) -> tuple[dict[str, list[Line]], list[Line]]:
    """By name, the lines of a model in the folder, or of another folder that is named, numbered by
    sets of experts; and all lines read."""
    in_folder = reported(read_lines([folder], which)) if folder.exists() else []
    models = {line.model for line in in_folder}
    named = [(line.model, line) for line in in_folder]
    for name in names:
        if name in models:
            continue
        rows = [line for line in in_folder if line.role == "merged" and line.method == name]
        if not rows and (not Path(name).exists() or (Path(name) / "config.json").exists()):
            models_there = f"where models are: {', '.join(sorted(models)) or 'none'}"
            description = models_there if folder.exists() else "which is no folder"
            hint = "name a model that --records has, or a folder of records"
            raise UnknownName(f"no records of '{name}' in {folder}, {description}; {hint}")
        named += [(name, line) for line in rows or reported(read_lines([name], which))]
    numbered = with_set_numbers([line for _, line in named])
    pairs = [*zip(named, numbered, strict=True)]
    return {name: [line for (owner, _), line in pairs if owner == name] for name in names}, numbered


def _among(name: str, lines: Sequence[Line], which: Chosen) -> list[Line]:
    """The chosen lines of a model, under the protocol with exactly these options."""
    try:
        return [
            line for line in chosen_lines(lines, which) if line.setting.protocol in which.protocols
        ]
    except MissingScores as error:
        raise MissingScores(f"'{name}': {error}") from None


def _shared(sides: Sides, shots: Shots | None) -> Sides:
    """The lines on the tasks, shots and sets of experts that all models share: one of each."""
    tasks = _on_all(sides, lambda line: line.task)
    places = _on_all(sides, lambda line: (line.task, line.shots))
    shared = [number for _, number in places if all((task, number) in places for task in tasks)]
    if not shared:
        listing = "; ".join(
            f"'{name}' on {', '.join(tasks_by(lines)) or 'none'} with {_counts(lines)} shots"
            for name, lines in sides.items()
        )
        raise BrokenRecord(
            f"the models share no task under one protocol and number of shots: {listing}; evaluate "
            "them on the same tasks"
        )
    drawn = min(shared, key=lambda one: shots_distance(one, shots))
    if shots not in (None, drawn):
        counts = _counts(chain(*sides.values()))
        raise BadOption(
            f"shots is {shots}, but models were evaluated with {counts} shots; choose of these"
        )
    sides = {
        name: [line for line in lines if line.task in tasks and line.shots == drawn]
        for name, lines in sides.items()
    }
    check_columns(chain(*sides.values()))
    _check_presets(sides)
    sets = sets_of_all([task_sets(lines) for lines in sides.values()])
    if not sets and any(len({line.set for line in lines}) > 1 for lines in sides.values()):
        raise BrokenRecord(
            f"{', '.join(sides)} share no set of experts on all of {', '.join(sorted(tasks))}; "
            "expected merges of the same experts: choose --tasks where they do"
        )
    return {
        name: _one_each(name, [line for line in lines if not sets or line.set in sets])
        for name, lines in sides.items()
    }


def _check_presets(sides: Sides) -> None:
    """Raise BrokenRecord for models under different presets, which boards name in the row."""
    presets = {
        name: "+".join(sorted({line.preset or "none" for line in lines}))
        for name, lines in sides.items()
    }
    first, *others = presets
    if wrong := [name for name in others if presets[name] != presets[first]]:
        raise BrokenRecord(
            f"'{wrong[0]}' was evaluated under the preset {presets[wrong[0]]}, '{first}' under "
            f"{presets[first]}; expected the same: evaluate both alike"
        )


def _on_all(sides: Sides, key: Callable[[Line], K]) -> set[K]:
    """The values of a function of lines that all models share."""
    return set.intersection(*({key(line) for line in lines} for lines in sides.values()))


def _counts(lines: Iterable[Line]) -> str:
    """The numbers of shots of some lines, as text."""
    return ", ".join(str(one or "no") for one in sorted({one.shots for one in lines}, key=amount))


OF_A_SET = {"model": "name", "made_of": "what they were merged of"}
OF_A_CELL = {"digest": "weights", "head": "head", "teachers": "teachers", "values": "scores"}
"""The fields that lines of one model share on all tasks, and on one, with names for messages."""


def _one_each(name: str, lines: Sequence[Line]) -> list[Line]:
    """One line for each task and set of experts. Raises BrokenRecord if a name has two models."""
    first: dict[object, Line] = {}
    cells: dict[object, Line] = {}
    for line in lines:
        of_set = first.setdefault((line.set, bool(line.made_of)), line)
        of_cell = cells.setdefault((line.set, line.task), line)
        for other, keys in ((of_set, OF_A_SET), (of_cell, OF_A_CELL)):
            if differing := [keys[k] for k in keys if getattr(line, k) != getattr(other, k)]:
                options = of_bases.base_options(lines)
                raise BrokenRecord(
                    f"'{name}' names two models, {other.model} on {other.task} and {line.model} on "
                    f"{line.task}, which differ in {differing[0]} and not by the seeds of their "
                    "experts alone; expected one: name the folder of its records, or its tasks, or "
                    f"move one away: {other.path}, {line.path}"
                    f"{options and f', or choose with {options}'}"
                )
    return [*cells.values()]


def _priors(all_lines: Sequence[Line], sides: Sides) -> Mapping[str, Prior | None]:
    """By task, and for the mean (of one task, the task), the priors of variances over sets of
    experts, as on a board of the same records: from all merges evaluated as these were."""
    lines = [*chain(*sides.values())]
    places, bases = {(one.task, one.setting) for one in lines}, {one.base_digest for one in lines}
    merges = [
        line
        for line in all_lines
        if line.role == "merged"
        and (line.task, line.setting) in places
        and line.base_digest in bases
    ]
    try:
        scores = scores_of(merges)
    except BrokenRecord:  # records that cannot stand on one board give no prior
        return {}
    by_column = {column: prior for (_, column), prior in priors_of(scores).items()}
    return {**by_column, MEAN: by_column.get(scores.columns[-1])} if by_column else {}


def _scores(sides: Sides) -> list[list[Estimate]]:
    """By model, the score on each task, in the order of the tasks' names. Raises BrokenRecord for
    scores on other resampled test units."""
    designs: dict[str, str] = {}
    for line in chain(*sides.values()):
        design = line.resamples.design
        if designs.setdefault(line.task, design) != design:
            raise BrokenRecord(
                f"the record of '{line.model}' on {line.task} has scores on other resampled test "
                "units; evaluate all models with one version of the harness"
            )
    return by_task(*sides.values()) or []


def _called(sides: Sides) -> Sides:
    """The lines under the names of models instead of folders, if these names differ.

    As on boards, names are marked if the scored rows were seen.
    """
    models = {lines[0].model: lines for lines in sides.values()}
    return {
        marked(name, transductive=any(line.saw_the_scored for line in lines)): lines
        for name, lines in (sides if len(models) < len(sides) else models).items()
    }


# Arithmetic --------------------------------------------------------------------------------


def _two(
    sides: Sides,
    scores: Sequence[Sequence[Estimate]],
    priors: Mapping[str, Prior | None],
    terms: Terms,
    margin: float | None,
) -> Comparison:
    lines = [*chain(*sides.values())]
    of_task = tasks_by(lines)
    differences = [
        replace(difference, prior=priors.get(task))
        for task, difference in zip(terms.tasks, map(minus, *scores), strict=True)
    ]
    p = [p_value(difference) for difference in differences] if enough_draws(lines) else []
    adjusted: Sequence[float | None] = holm(p) or [None] * len(differences)
    tasks = tuple(
        TaskDifference(
            task=task,
            metrics=of_task[task].metrics,
            rows=of_task[task].rows,
            unit=of_task[task].resamples.unit,
            units=difference.units,
            first=mine.point,
            second=theirs.point,
            within=interval(difference),
            p=p[index] if p else None,
            adjusted=adjusted[index],
            detectable=least if (least := detectable(difference)) <= FARTHEST else None,
        )
        for index, (task, difference, mine, theirs) in enumerate(
            zip(terms.tasks, differences, *scores, strict=True)
        )
    )
    (first, second), mean = sides, replace(mean_difference(*scores), prior=priors.get(MEAN))
    return Comparison(
        first=first,
        second=second,
        terms=terms,
        draws=fewest_draws(lines),
        tasks=tasks,
        within=interval(mean),
        p=p_value(mean) if p else None,
        over_tasks=_over_tasks(terms, np.array([difference.point for difference in differences])),
        needed=units_needed(mean, sum(task.units for task in tasks)),
        margin=margin,
    )


def _over_tasks(terms: Terms, differences: Array64) -> OverTasks | None:
    if len(differences) < 2:
        return None
    ends, deciding = leave_one_out(differences)
    tasks = tuple(terms.tasks[index] for index in deciding)
    return OverTasks(float(sign_flip_p(differences)), interval_over_tasks(differences), ends, tasks)


def _several(
    sides: Sides,
    scores: Sequence[Sequence[Estimate]],
    priors: Mapping[str, Prior | None],
    terms: Terms,
) -> Ranking:
    names, lines = [*sides], [*chain(*sides.values())]
    values = np.array([[estimate.point for estimate in estimates] for estimates in scores])
    over_tasks = standings(terms.tasks, values, by="score")
    pairs = significant_pairs(scores, priors.get(MEAN))
    here = tie_groups(over_tasks.order, pairs) if enough_draws(lines) else []

    def named(groups: Sequence[Sequence[int]]) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(names[model] for model in group) for group in groups)

    models = tuple(
        Ranked(
            names[model],
            float(values[model].mean()),
            over_tasks.means[model],
            over_tasks.places[model],
            over_tasks.wins[model],
        )
        for model in over_tasks.order
    )
    return Ranking(terms, fewest_draws(lines), models, named(over_tasks.groups), named(here))
