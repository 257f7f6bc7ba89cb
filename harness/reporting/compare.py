"""Shell: records -> a comparison of models. No model or prediction is opened."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from harness.data.shots import amount
from harness.errors import BadOption, BrokenRecord, UnknownName
from harness.evaluation.task_split import configured
from harness.options import parse_choice
from harness.reporting.chosen import Chosen, among, called, read_lines
from harness.reporting.comparison import (
    Comparison,
    OverTasks,
    Ranked,
    Ranking,
    TaskDifference,
    Terms,
)
from harness.reporting.difference import apart, enough_draws, fewest_draws, significant_pairs
from harness.reporting.grid import check_columns, reported
from harness.reporting.lines import Line, far, flag
from harness.reporting.names import marked
from harness.stats.estimate import Estimate, minus
from harness.stats.intervals import FARTHEST, interval
from harness.stats.ranks import left_out, over_tasks, sign_flip, standings, tie_groups
from harness.stats.tests import detectable, holm, p_value, units_needed
from harness.types import Array64, Choice, Shots
from harness.values import validated


def compare(
    models: Sequence[str],
    *,
    tasks: Sequence[str] = (),
    protocol: str = "current",
    shots: Shots | None = None,
    limit: int | Literal["all"] | None = None,
    records: str | Path = "records",
    margin: float | None = None,
) -> Comparison | Ranking:
    """Two models, or the ranks of several, from records alone.

    `models` are names of models in the folder `records`, or folders of records. Tasks are those
    that all of them were evaluated on, unless some are named. Of several numbers of shots, the one
    nearest to 5 is used; `limit` chooses among records of several limits (`all`: of all rows). Two
    models are practically equal whose 95 % interval lies within a `margin`, in points. Raises
    UnknownName or BrokenRecord, before any arithmetic, for what cannot be compared: unknown names,
    other rows, splits or limits, records without scores on resampled test units.
    """
    if margin is not None and not (len(models) == 2 and 0 < margin < math.inf):
        raise BadOption(
            f"margin is {margin} of {len(models)} models, expected points above 0, and two models"
        )
    if len(models) < 2 or len({*models}) < len(models):
        raise BadOption(
            f"{', '.join(models) or 'nothing'} cannot be compared, expected two or more different "
            "models"
        )
    choice = configured(parse_choice(protocol))
    asked = str(Choice(choice.name, choice.unusual))
    which = validated(Chosen, {"limit": limit}, "compare")
    folder = Path(records)
    known = reported(read_lines([folder])) if folder.exists() else []
    found = {name: among(_lines(name, folder, known), which) for name in models}
    evaluated = {name: _under(name, lines, asked) for name, lines in found.items()}
    tasks = _tasks(evaluated, tasks, asked)
    drawn = _shots(evaluated, tasks, shots)
    sides = {name: [of[task, drawn] for task in tasks] for name, of in evaluated.items()}
    _check(sides)
    scores = [[*map(_estimate, lines)] for lines in sides.values()]
    terms = Terms(asked, drawn or None, tuple(tasks))
    if len(sides) == 2:
        return _two(_called(sides), scores, terms, None if margin is None else margin / 100)
    return _several(_called(sides), scores, terms)


# Which lines -------------------------------------------------------------------------------

Evaluated = Mapping[str, Mapping[tuple[str, Shots], Line]]
"""By model, by task and shots."""
Sides = Mapping[str, Sequence[Line]]
"""By model, a line of every task, in one order."""


def _lines(name: str, folder: Path, known: Sequence[Line]) -> list[Line]:
    """The lines of a model of the folder, or those of another folder."""
    mine = [line for line in known if line.model == name]
    if not mine and Path(name).exists() and not (Path(name) / "config.json").exists():
        mine = reported(read_lines([name]))
        if len(several := {line.model for line in mine}) > 1:
            raise BrokenRecord(
                f"{name} holds records of several models ({', '.join(sorted(several))}); expected "
                "one: name the folder of one of them"
            )
    if not mine:
        models = ", ".join(sorted({line.model for line in known})) or "none"
        there = f"where models are: {models}" if folder.exists() else "which is no folder"
        raise UnknownName(
            f"no records of '{name}' in {folder}, {there}; name a model that --records has, or a "
            "folder of records"
        )
    return mine


def _under(name: str, lines: Sequence[Line], protocol: str) -> dict[tuple[str, Shots], Line]:
    """The lines under a protocol, by task and shots; of two, nobody can say which is meant."""
    found: dict[tuple[str, Shots], Line] = {}
    for line in lines:
        if line.setting.protocol != protocol:
            continue
        other = found.setdefault((line.task, line.shots), line)
        keys = ("digest", "limit", "work", "values", "parts", "head", "teachers")
        if differing := [key for key in keys if getattr(line, key) != getattr(other, key)]:
            limits = flag(line.limit, other.limit)
            works = (dict(one.work) for one in (line, other)) if "work" in differing else ()
            kinds = sorted({one["dtype"] for one in works})
            what = f"dtype ({', '.join(kinds)})" if len(kinds) > 1 else differing[0]
            raise BrokenRecord(
                f"'{name}' has two records of {line.task} under {protocol}, which differ in "
                f"{what}; expected one: "
                f"{f'choose one with {limits}' if limits else 'name a folder of one alone'}"
            )
    if not found:
        others = ", ".join(sorted({line.setting.protocol for line in lines}))
        raise BrokenRecord(f"'{name}' was not evaluated under {protocol}, only under {others}")
    return found


def _tasks(evaluated: Evaluated, asked_for: Sequence[str], protocol: str) -> list[str]:
    """The tasks that are compared: all that are asked for, or all that every model has."""
    of = {name: dict.fromkeys(task for task, _ in lines) for name, lines in evaluated.items()}
    if not asked_for:
        first, *others = of.values()
        shared = [task for task in first if all(task in one for one in others)]
        if not shared:
            each = "; ".join(f"'{name}' on {', '.join(tasks)}" for name, tasks in of.items())
            raise BrokenRecord(f"all models share no task under {protocol}: {each}")
        return shared
    tasks: dict[str, None] = {}
    for asked in asked_for:
        fitting = {task for known in of.values() for task in known if asked in called(task)}
        for name, known in of.items():
            if lacking := sorted((fitting or {asked}) - known.keys()):
                raise BrokenRecord(
                    f"'{name}' was not evaluated on {lacking[0]} under {protocol}, only on "
                    f"{', '.join(known)}"
                )
        tasks |= dict.fromkeys(sorted(fitting))
    return [*tasks]


def _shots(evaluated: Evaluated, tasks: Iterable[str], wanted: Shots | None) -> Shots:
    """The number of shots that all have and that is asked for, or nearest to the usual; 0: none."""
    each = [
        {shots for of, shots in lines if of == task}
        for task in tasks
        for lines in evaluated.values()
    ]
    shared = sorted(set.intersection(*each), key=amount)
    if not shared:
        raise BrokenRecord("the models share no number of shots; evaluate them with the same")
    if wanted is not None and wanted not in shared:
        known = f"with {', '.join(map(str, shared))}" if shared != [0] else "without; leave it out"
        raise BadOption(f"shots is {wanted}, but all models were evaluated {known}")
    return min(shared, key=far) if wanted is None else wanted


def _check(sides: Sides) -> None:
    """Raise BrokenRecord where a name is of two models, or scores are not on the same rows."""
    for name, lines in sides.items():
        made: dict[tuple[str, ...], list[str]] = {}
        for line in lines:
            if line.made_of:
                made.setdefault(line.made_of, []).append(line.task)
        if len(made) > 1:
            each = "; ".join(f"one on {', '.join(on)}" for on in made.values())
            raise BrokenRecord(
                f"{len(made)} models are called '{name}', {each}; expected one: name the folder of "
                "its records, or its tasks with --tasks"
            )
    check_columns([line for lines in sides.values() for line in lines])
    for column in zip(*sides.values(), strict=True):
        if len({line.resamples.design for line in column if line.resamples}) > 1:
            raise BrokenRecord(
                f"the records of {column[0].task} are of different resamples of its test units; "
                "evaluate the models with one version of the harness"
            )


def _estimate(line: Line) -> Estimate:
    if (found := line.estimate) is None:
        raise BrokenRecord(
            f"the record of '{line.model}' on {line.task} has no scores on resampled test units; "
            "evaluate it again"
        )
    return found


def _called(sides: Sides) -> Sides:
    """With the names of the models for folders of their records, where these differ.

    With a mark behind the name if the rows that are scored were seen, as rows of boards have.
    """
    models = {lines[0].model: lines for lines in sides.values()}
    return {
        marked(name, transductive=any(line.saw_the_scored for line in lines)): lines
        for name, lines in (sides if len(models) < len(sides) else models).items()
    }


# Arithmetic --------------------------------------------------------------------------------


def _two(
    sides: Sides, scores: Sequence[Sequence[Estimate]], terms: Terms, margin: float | None
) -> Comparison:
    lines, others = sides.values()
    every = [*lines, *others]
    found = list(map(minus, *scores))
    p = [p_value(one) for one in found] if enough_draws(every) else []
    adjusted: Sequence[float | None] = holm(p) or [None] * len(found)
    tasks = tuple(
        TaskDifference(
            task=line.task,
            metrics=line.metrics,
            rows=line.rows,
            unit=line.resamples.unit if line.resamples else "row",
            units=one.units,
            first=mine.point,
            second=theirs.point,
            within=interval(one),
            p=p[at] if p else None,
            adjusted=adjusted[at],
            detectable=least if (least := detectable(one)) <= FARTHEST else None,
        )
        for at, (line, one, mine, theirs) in enumerate(zip(lines, found, *scores, strict=True))
    )
    whole, (first, second) = apart(*scores), sides
    return Comparison(
        first=first,
        second=second,
        terms=terms,
        draws=fewest_draws(every),
        tasks=tasks,
        within=interval(whole),
        p=p_value(whole) if p else None,
        over_tasks=_over_tasks(terms, np.array([one.point for one in found])),
        needed=units_needed(whole, sum(one.units for one in tasks)),
        margin=margin,
    )


def _over_tasks(terms: Terms, differences: Array64) -> OverTasks | None:
    if len(differences) < 2:
        return None
    ends, deciding = left_out(differences)
    tasks = tuple(terms.tasks[at] for at in deciding)
    return OverTasks(float(sign_flip(differences)), over_tasks(differences), ends, tasks)


def _several(sides: Sides, scores: Sequence[Sequence[Estimate]], terms: Terms) -> Ranking:
    names, every = [*sides], [line for lines in sides.values() for line in lines]
    values = np.array([[one.point for one in each] for each in scores])
    made = standings(terms.tasks, values, by="score")
    here = tie_groups(made.order, significant_pairs(scores)) if enough_draws(every) else []

    def named(groups: Sequence[Sequence[int]]) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(names[at] for at in group) for group in groups)

    models = tuple(
        Ranked(names[at], float(values[at].mean()), made.means[at], made.places[at], made.wins[at])
        for at in made.order
    )
    return Ranking(terms, fewest_draws(every), models, named(made.groups), named(here))
