"""Shell: records and the predictions beside them -> a comparison of models. No model is opened."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from harness.data.shots import amount
from harness.errors import BadOption, BrokenRecord, UnknownName
from harness.evaluation.estimates import (
    Estimate,
    aligned,
    detectable,
    estimate,
    holm,
    mean_of,
    minus,
    over_tasks,
    rows_needed,
    within,
)
from harness.evaluation.inference import FEWEST_APART, PairedTest, paired_test, resampled
from harness.evaluation.predictions import Lookup, Predicted, shelf
from harness.evaluation.records import Record, read_records
from harness.evaluation.task_split import configured
from harness.options import parse_choice
from harness.reporting.chosen import Chosen, called, chosen
from harness.reporting.comparison import Comparison, Ranked, Ranking, TaskDifference, Terms
from harness.reporting.grid import HEADLINE_SHOTS, label, reported
from harness.reporting.lines import flag, limit_of, lines_of, made_of, work
from harness.reporting.names import marked
from harness.reporting.ranking import on_draws, standings
from harness.types import Choice, Shots
from harness.values import validated


def compare(
    models: Sequence[str],
    *,
    tasks: Sequence[str] = (),
    protocol: str = "current",
    shots: Shots | None = None,
    limit: int | Literal["all"] | None = None,
    records: str | Path = "records",
) -> Comparison | Ranking:
    """Two models, or the ranks of several, from records and stored predictions alone.

    `models` are names of models in the folder `records`, or folders of records. Tasks are those
    that all of them were read on, unless some are asked for. Of several numbers of shots, the one
    nearest to 5; of records of several limits, those of the one that is asked for (`all`: of all
    rows). Raises UnknownName or BrokenRecord, before any arithmetic, for what cannot be
    compared: unknown names, other rows, splits or limits, predictions that are not there.
    """
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
    read = _predictions(sides, terms, shelf([records, *models]))
    sides = [_marked(side, terms.tasks) for side in sides]
    return _two(sides, terms, read) if len(sides) == 2 else _several(sides, terms, read)


# Reading -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Side:
    """A model under the protocol that is asked for: its record of every task."""

    name: str
    records: Mapping[str, Record]


def _side(name: str, folder: Path, reading: str, which: Chosen) -> _Side:
    everything = reported(read_records([folder])) if folder.is_dir() else []
    mine = [record for record in everything if record.model == name]
    if not mine and Path(name).exists() and not (Path(name) / "config.json").exists():
        mine = _of_one_model(name, reported(read_records([name])))
    if not mine:
        known = ", ".join(sorted({record.model for record in everything})) or "none"
        there = f"where models are: {known}" if folder.is_dir() else "which is no folder"
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


def _predictions(sides: Sequence[_Side], terms: Terms, look: Lookup) -> list[list[Predicted]]:
    """What each model predicted on each task. Raises BrokenRecord where it is not there."""
    read = []
    for side in sides:
        each = []
        for task in terms.tasks:
            predicted = look(side.records[task])
            if predicted is None:
                raise BrokenRecord(
                    f"no predictions of '{side.name}' on {task} were found; they lie beside the "
                    "records as Parquet files and are not committed: evaluate it again"
                )
            each.append(predicted)
        read.append(each)
    return read


# Arithmetic --------------------------------------------------------------------------------


def _two(sides: Sequence[_Side], terms: Terms, read: Sequence[Sequence[Predicted]]) -> Comparison:
    first, second = sides
    mine, theirs = _estimates(sides, terms, read)
    found = list(map(minus, mine, theirs))
    tests = [
        paired_test(one, other, terms.shots, difference)
        for one, other, difference in zip(*read, found, strict=True)
    ]
    adjusted = holm([test.p for test in tests])
    tasks = tuple(
        TaskDifference(
            task=task,
            metrics=first.records[task].metrics,
            rows=first.records[task].rows,
            first=mine[place].point,
            second=theirs[place].point,
            within=within(found[place]),
            test=tests[place].name,
            p=tests[place].p,
            adjusted=adjusted[place],
            detectable=_shown(found[place], tests[place], first.records[task].rows),
        )
        for place, task in enumerate(terms.tasks)
    )
    return Comparison(
        first=first.name,
        second=second.name,
        terms=terms,
        draws=_draws(sides, terms),
        tasks=tasks,
        within_rows=within(mean_of(found)),
        within=over_tasks(found),
        needed=rows_needed(found, sum(one.rows for one in tasks)),
    )


def _shown(one: Estimate, test: PairedTest, rows: int) -> float | None:
    """The smallest difference that a test shows; None where no row differs."""
    least = FEWEST_APART / rows if test.name == "McNemar" else 0.0
    shown = detectable(one)
    return max(shown, least) if shown else None


def _estimates(
    sides: Sequence[_Side], terms: Terms, read: Sequence[Sequence[Predicted]]
) -> list[list[Estimate]]:
    """The score of every model on every task, on resampled rows and on each draw."""
    return [
        [
            estimate(side.records[task].values(terms.shots), resampled(predicted, terms.shots))
            for task, predicted in zip(terms.tasks, each, strict=True)
        ]
        for side, each in zip(sides, read, strict=True)
    ]


def _draws(sides: Sequence[_Side], terms: Terms) -> int:
    """How many draws of shots every score is the mean of, at least."""
    return min(
        len(side.records[task].values(terms.shots)) for side in sides for task in terms.tasks
    )


def _several(sides: Sequence[_Side], terms: Terms, read: Sequence[Sequence[Predicted]]) -> Ranking:
    known = _estimates(sides, terms, read)
    values = np.array([[one.point for one in each] for each in known])
    flat = aligned([one.rows for each in known for one in each])
    samples = flat.reshape(len(sides), len(terms.tasks), -1)
    draws = on_draws([[one.draws.tolist() for one in each] for each in known])
    made = standings(terms.tasks, values, samples, draws, by="score")
    names = [side.name for side in sides]
    return Ranking(
        terms=terms,
        draws=_draws(sides, terms),
        models=tuple(
            Ranked(
                model=names[place],
                score=float(values[place].mean()),
                rank=made.means[place],
                within=made.intervals[place],
                wins=made.wins[place],
            )
            for place in made.order
        ),
        groups=tuple(tuple(names[place] for place in group) for group in made.groups),
        leaders=tuple(names[place] for place in made.leaders),
    )
