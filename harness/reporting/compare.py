"""Shell: records -> a comparison of models. No model is opened, no prediction read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np

from harness.data.shots import amount
from harness.errors import BadOption, BrokenRecord, UnknownName
from harness.evaluation.records import Record, read_records
from harness.evaluation.resamples import Resamples, estimate_of
from harness.evaluation.task_split import configured
from harness.options import parse_choice
from harness.reporting.chosen import Chosen, called, chosen
from harness.reporting.comparison import (
    Comparison,
    OverTasks,
    Ranked,
    Ranking,
    TaskDifference,
    Terms,
)
from harness.reporting.grid import HEADLINE_SHOTS, label, reported
from harness.reporting.lines import flag, limit_of, lines_of, made_of, work
from harness.reporting.names import marked
from harness.reporting.ranking import standings
from harness.stats.estimate import Estimate, mean_of, minus
from harness.stats.intervals import FARTHEST, LEVEL, interval
from harness.stats.ranks import left_out, over_tasks, sign_flip, tie_groups
from harness.stats.tests import FEWEST_DRAWS, detectable, holm, p_value, units_needed
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
    that all of them were read on, unless some are asked for. Of several numbers of shots, the one
    nearest to 5; of records of several limits, those of the one that is asked for (`all`: of all
    rows). Two models are practically equal whose 95 % interval lies within a `margin`, in points.
    Raises UnknownName or BrokenRecord, before any arithmetic, for what cannot be compared: unknown
    names, other rows, splits or limits, records without scores on resampled test units.
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
    reading = str(Choice(choice.name, choice.unusual))
    which = validated(Chosen, {"limit": limit}, "compare")
    sides = _shortly([_side(name, Path(records), reading, which) for name in models])
    terms = Terms(reading, None, _shared(sides, tasks, reading))
    terms = Terms(reading, _shots(sides, terms.tasks, shots), terms.tasks)
    _check_one_model(sides, terms.tasks)
    _check_same(sides, terms.tasks)
    known = _estimates(sides, terms)
    sides = [_marked(side, terms.tasks) for side in sides]
    if len(sides) == 2:
        return _two(sides, terms, known, None if margin is None else margin / 100)
    return _several(sides, terms, known)


# Reading -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Side:
    """A model under the protocol that is asked for: its record of every task."""

    name: str
    records: Mapping[str, Record]


def _side(name: str, folder: Path, reading: str, which: Chosen) -> _Side:
    everything = reported(read_records([folder])) if folder.exists() else []
    mine = [record for record in everything if record.model == name]
    if not mine and Path(name).exists() and not (Path(name) / "config.json").exists():
        mine = _of_one_model(name, reported(read_records([name])))
    if not mine:
        known = ", ".join(sorted({record.model for record in everything})) or "none"
        there = f"where models are: {known}" if folder.exists() else "which is no folder"
        raise UnknownName(
            f"no records of '{name}' in {folder}, {there}; name a model that --records has, or a "
            "folder of records"
        )
    by_task: dict[str, Record] = {}
    for _, record in chosen([("", record) for record in mine], which):
        if label(record) == reading:
            other = by_task.setdefault(record.task, record)
            _check_one(name, other, record, reading)
    if not by_task:
        known = ", ".join(sorted({label(record) for record in mine}))
        raise BrokenRecord(f"'{name}' was not read under {reading}, only under {known}")
    return _Side(name, by_task)


def _of_one_model(place: str, records: list[Record]) -> list[Record]:
    names = sorted({record.model for record in records})
    if len(names) > 1:
        raise BrokenRecord(
            f"{place} holds records of several models ({', '.join(names)}); expected one: name the "
            "folder of one of them"
        )
    return records


def _shortly(sides: Sequence[_Side]) -> Sequence[_Side]:
    """With the names of the models for folders of their records, where these tell them apart."""
    names = [next(iter(side.records.values())).model for side in sides]
    if len({*names}) < len(names):
        return sides
    return [replace(side, name=name) for side, name in zip(sides, names, strict=True)]


def _marked(side: _Side, tasks: Iterable[str]) -> _Side:
    """With a mark behind its name if the rows that are scored were seen, as rows of boards have."""
    lines = lines_of(("", side.records[task]) for task in tasks)
    seen = any(line.saw_the_scored for line in lines)
    return replace(side, name=marked(side.name, transductive=seen))


def _check_one(name: str, first: Record, second: Record, reading: str) -> None:
    """Raise BrokenRecord for two records of which nobody can say which one is meant."""
    keys = ("digest", "settings", "rows", "scores", "head", "teachers")
    differing = next((k for k in keys if getattr(first, k) != getattr(second, k)), None)
    if differing:
        limits = limit_of(first), limit_of(second)
        how = f"choose one with {said}" if (said := flag(*limits)) else "name a folder of one alone"
        raise BrokenRecord(
            f"'{name}' has two records of {first.task} under {reading}, which differ in "
            f"{differing}; expected one: {how}"
        )


def _check_one_model(sides: Sequence[_Side], tasks: Iterable[str]) -> None:
    """Raise BrokenRecord where a name is that of one model on some tasks, of another on others."""
    for side in sides:
        read: dict[tuple[str, ...], list[str]] = {}
        for task in tasks:
            if made := made_of(side.records[task]):
                read.setdefault(made, []).append(task)
        if len(read) > 1:
            each = "; ".join(f"one on {', '.join(on)}" for on in read.values())
            raise BrokenRecord(
                f"{len(read)} models are called '{side.name}', {each}; expected one: name the "
                "folder of its records, or its tasks with --tasks"
            )


def _shared(sides: Sequence[_Side], asked_for: Sequence[str], reading: str) -> tuple[str, ...]:
    """The tasks that are compared: all that are asked for, or all that every model has."""
    if not asked_for:
        shared = [task for task in sides[0].records if all(task in s.records for s in sides)]
        if not shared:
            each = "; ".join(f"'{side.name}' on {', '.join(side.records)}" for side in sides)
            raise BrokenRecord(f"no task was read by all models under {reading}: {each}")
        return tuple(shared)
    tasks: dict[str, None] = {}
    for name in asked_for:
        fitting = {task for side in sides for task in side.records if name in called(task)}
        for side in sides:
            if lacking := sorted((fitting or {name}) - side.records.keys()):
                raise BrokenRecord(
                    f"'{side.name}' was not read on {lacking[0]} under {reading}, only on "
                    f"{', '.join(side.records)}"
                )
        tasks |= dict.fromkeys(sorted(fitting))
    return tuple(tasks)


def _shots(sides: Sequence[_Side], tasks: Iterable[str], wanted: Shots | None) -> Shots | None:
    """The number of shots that all records have and that is asked for, or nearest to the usual."""
    each = [{*side.records[task].shots} for task in tasks for side in sides]
    shared = sorted(set.intersection(*each), key=amount)
    if wanted is not None and wanted not in shared:
        if shared == [None]:
            raise BadOption(f"shots is {wanted}, but all models were read without; leave it out")
        known = ", ".join(str(count) for count in shared if count) or "no number in common"
        raise BadOption(f"shots is {wanted}, but all models were read with {known}")
    if not shared:
        raise BrokenRecord("the models share no number of shots; evaluate them with the same")
    if wanted is not None:
        return wanted
    return min(shared, key=lambda count: abs(amount(count) - HEADLINE_SHOTS))


def _check_same(sides: Sequence[_Side], tasks: Iterable[str]) -> None:
    """Raise BrokenRecord where two models were not read on the same rows in the same way."""
    first, *others = sides
    for task in tasks:
        mine = work(first.records[task])
        for other in others:
            theirs = work(other.records[task])
            if differing := next(
                (k for k in {**mine, **theirs} if mine.get(k) != theirs.get(k)), None
            ):
                limits = limit_of(first.records[task]), limit_of(other.records[task])
                how = flag(*limits) or "evaluate both alike"
                raise BrokenRecord(
                    f"{task}: '{first.name}' was read with {differing} {mine.get(differing)}, "
                    f"'{other.name}' with {theirs.get(differing)}; expected the same: {how}"
                )


def _estimates(sides: Sequence[_Side], terms: Terms) -> list[list[Estimate]]:
    """The score of each model on each task. Raises BrokenRecord where they are not paired."""
    known = []
    for side in sides:
        each = [estimate_of(side.records[task], terms.shots) for task in terms.tasks]
        lacking = [task for task, one in zip(terms.tasks, each, strict=True) if one is None]
        if lacking:
            raise BrokenRecord(
                f"the record of '{side.name}' on {lacking[0]} has no scores on resampled test "
                "units, which records of before version 5 lack; evaluate it again"
            )
        known.append([one for one in each if one is not None])
    for task in terms.tasks:
        if len({_kept(side, task, terms).design for side in sides}) > 1:
            raise BrokenRecord(
                f"the records of {task} are of different resamples of its test units; evaluate "
                "the models with one version of the harness"
            )
    return known


def _kept(side: _Side, task: str, terms: Terms) -> Resamples:
    return next(one for one in side.records[task].resamples if one.shots == terms.shots)


# Arithmetic --------------------------------------------------------------------------------


def _two(
    sides: Sequence[_Side], terms: Terms, known: Sequence[Sequence[Estimate]], margin: float | None
) -> Comparison:
    first, second = sides
    draws = _draws(sides, terms)
    found = list(map(minus, *known))
    enough = terms.shots is None or draws >= FEWEST_DRAWS
    p = [p_value(one) for one in found] if enough else []
    adjusted = holm(p)
    tasks = tuple(
        TaskDifference(
            task=task,
            metrics=first.records[task].metrics,
            rows=first.records[task].rows,
            unit=_kept(first, task, terms).unit,
            units=_kept(first, task, terms).units,
            first=known[0][place].point,
            second=known[1][place].point,
            within=interval(found[place]),
            p=p[place] if enough else None,
            adjusted=adjusted[place] if enough else None,
            detectable=_detectable(found[place]),
        )
        for place, task in enumerate(terms.tasks)
    )
    whole = mean_of(found)
    return Comparison(
        first=first.name,
        second=second.name,
        terms=terms,
        draws=draws,
        tasks=tasks,
        within=interval(whole),
        p=p_value(whole) if enough else None,
        over_tasks=_over_tasks(terms, np.array([one.point for one in found])),
        needed=units_needed(whole, sum(one.units for one in tasks)),
        margin=margin,
    )


def _detectable(one: Estimate) -> float | None:
    """The smallest detectable difference; None where no two scores are so far apart."""
    found = detectable(one)
    return found if found <= FARTHEST else None


def _over_tasks(terms: Terms, differences: Array64) -> OverTasks | None:
    if len(differences) < 2:
        return None
    without = left_out(differences)
    return OverTasks(
        p=float(sign_flip(differences)),
        within=over_tasks(differences),
        left_out=without.ends,
        deciding=tuple(terms.tasks[at] for at in without.deciding),
    )


def _draws(sides: Sequence[_Side], terms: Terms) -> int:
    """How many draws of shots every score is the mean of, at least."""
    return min(
        len(side.records[task].values(terms.shots)) for side in sides for task in terms.tasks
    )


def _several(sides: Sequence[_Side], terms: Terms, known: Sequence[Sequence[Estimate]]) -> Ranking:
    values = np.array([[one.point for one in each] for each in known])
    made = standings(terms.tasks, values, by="score")
    draws, names = _draws(sides, terms), [side.name for side in sides]
    enough = terms.shots is None or draws >= FEWEST_DRAWS
    here = tie_groups(made.order, _differ_here(known)) if enough else []
    return Ranking(
        terms=terms,
        draws=draws,
        models=tuple(
            Ranked(
                model=names[place],
                score=float(values[place].mean()),
                rank=made.means[place],
                places=made.places[place],
                wins=made.wins[place],
            )
            for place in made.order
        ),
        groups=_named(names, made.groups),
        here=_named(names, here),
    )


def _differ_here(known: Sequence[Sequence[Estimate]]) -> set[tuple[int, int]]:
    """The pairs of models whose means over these very tasks differ, Holm over all pairs."""
    pairs = list(combinations(range(len(known)), 2))
    p = holm([p_value(mean_of(list(map(minus, known[i], known[j])))) for i, j in pairs])
    return {pair for pair, value in zip(pairs, p, strict=True) if value < 1 - LEVEL}


def _named(names: Sequence[str], groups: Sequence[Sequence[int]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(names[place] for place in group) for group in groups)
