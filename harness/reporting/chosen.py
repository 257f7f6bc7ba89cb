"""Shell: files and folders -> the records chosen by task, protocol, limits, base and model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Literal

from harness.errors import HarnessError, MissingScores
from harness.evaluation.records import Record, each_record, identity_of
from harness.hashes import joined
from harness.registry import PROTOCOLS, scoring_code
from harness.reporting.bases import by_base
from harness.reporting.grid import SINGLES
from harness.reporting.lines import Line, lines_of
from harness.types import ALL
from harness.values import Frozen, PositiveWhole

TABLE_ROLES = ("merged", "reference", "ceiling")
"""Roles of the models that a table is about; these are measured by models of the other roles."""


class Chosen(Frozen):
    """A choice among records; a field that is empty or None chooses all.

    Tasks are named as in records, with or without suite and split; protocols with or without their
    options. `limit` is that of `evaluate`, or `all` for records of all rows. `train_limit` likewise
    chooses among records that adapt to training rows, and `draws` by their number of draws: other
    records stay. `max_length` is that of `evaluate`, as a number.
    `models` are merges and references, by name or by a file pattern (`mrpc-*`); the models that
    they are measured by stay: the base, ensembles, and experts, only those of the merges if these
    name them. `bases` are named as on boards of several bases, or by their whole source; records
    that belong to no base stay.
    """

    tasks: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    limit: PositiveWhole | Literal["all"] | None = None
    train_limit: PositiveWhole | Literal["all"] | None = None
    draws: PositiveWhole | None = None
    max_length: PositiveWhole | None = None
    models: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()


EVERYTHING = Chosen()


def task_names(task: str) -> tuple[str, ...]:
    """The names of a task: in full, without its split, without its suite, and without both."""
    bare = task.partition("@")[0]
    return task, bare, task.rpartition("/")[2], bare.rpartition("/")[2]


_NAMES: Mapping[str, Callable[[Line], tuple[str, ...]]] = {
    "task": lambda line: task_names(line.task),
    "protocol": lambda line: (line.setting.protocol, line.protocol),
    "limit": lambda line: (str(line.limit),),
    "max-length": lambda line: (dict(line.conditions)["max_length"],),
}
"""By option, the names that choose a line; messages have the first."""


def chosen_lines(lines: Sequence[Line], which: Chosen) -> list[Line]:
    """The chosen lines. Raises MissingScores for a name or number that no line has."""
    lines = _of_bases(lines, which.bases) if which.bases else lines
    choices = {"task": which.tasks, "protocol": which.protocols}
    for what, number in (("limit", which.limit), ("max-length", which.max_length)):
        choices[what] = () if number is None else (str(number),)
    choices = {what: names for what, names in choices.items() if names}
    chosen = [*lines]
    for what, names in choices.items():
        names_of = _NAMES[what]
        by_name = {names_of(line)[0]: names_of(line) for line in lines}
        for name in names:
            if not any(name in known for known in by_name.values()):
                raise _missing(what, name, by_name)
        chosen = [line for line in chosen if {*names} & {*names_of(line)}]
    if choices and not chosen:
        raise MissingScores(
            f"no record has the chosen {' and '.join(choices)} together; choose fewer"
        )
    for what, value, value_of in (
        ("train-limit", which.train_limit, _drawn_from),
        ("draws", which.draws, _draws),
    ):
        if value is None:
            continue
        values = dict.fromkeys(found for line in chosen if (found := value_of(line)))
        if not values:
            raise MissingScores(
                f"--{what} is {value}, and no chosen record adapts to drawn rows; leave it out"
            )
        if str(value) not in values:
            raise _missing(what, value, values)
        chosen = [line for line in chosen if value_of(line) in ("", str(value))]
    return _of_models(chosen, which.models) if which.models else chosen


def _drawn_from(line: Line) -> str:
    """The limit of training rows, `all` without one; '' where none are adapted to."""
    return str(line.train_limit or ALL) if line.shots and not line.transductive else ""


def _draws(line: Line) -> str:
    """How many draws of rows a line adapts to; '' if it adapts to none, or always to all rows."""
    draws = dict(line.conditions).get("draws", "")
    return draws if draws.isdecimal() and not takes_all_rows(line.protocol) else ""


def takes_all_rows(protocol: str) -> bool:
    """Whether a protocol always takes all rows, in one draw, whatever was asked for."""
    name = protocol.partition(":")[0]
    return name in PROTOCOLS and PROTOCOLS[name].all_rows


def _of_bases(lines: Sequence[Line], names: Collection[str]) -> list[Line]:
    """The lines of bases with these names or sources."""
    by_name = by_base(lines, always=True)
    ids: set[int] = set()
    for name in names:
        found = [
            group
            for base, group in by_name.items()
            if name == base or any(line.base == name for line in group if line.role == "merged")
        ]
        if not found:
            raise _missing("base", name, by_name or ["none"])
        ids.update(id(line) for group in found for line in group)
    return [line for line in lines if id(line) in ids]


def _of_models(lines: Sequence[Line], patterns: Collection[str]) -> list[Line]:
    """The lines of the models, and of what these are measured by."""
    all_names = dict.fromkeys(line.model for line in lines)
    names: set[str] = set()
    for pattern in patterns:
        found = {name for name in all_names if name == pattern or fnmatchcase(name, pattern)}
        if not found:
            raise _missing("model", pattern, all_names)
        names |= found
    models = [line for line in lines if line.model in names]
    experts = {digest for line in models for _, digest in line.experts}
    trained = {(line.digest, line.task) for line in lines if line.role == "expert"}
    ensembles: set[str] = set()
    for line in models:
        every = [digest for _, digest in line.experts]
        own = [digest for digest in every if (digest, line.task) in trained]
        ensembles |= {joined(group) for group in (every, own) if group}
    tasks = {line.name for line in models}
    owners = {one.digest: teachers for one in lines if (teachers := one.teachers or one.heads_of)}

    def beside(line: Line) -> bool:
        if line.role in TABLE_ROLES or line.name not in tasks:
            return False
        if line.role == "ensemble" and experts:
            return line.digest in ensembles
        # a base has the heads of experts: its teachers under one protocol tell which experts
        of_set = {line.digest} if line.role in SINGLES else {*owners.get(line.digest, ())}
        return not experts or of_set <= experts

    return [line for line in lines if line.model in names or beside(line)]


def _missing(what: str, name: object, names: Iterable[str]) -> MissingScores:
    """The error for a chosen name that no record has; `names` are the names there are."""
    listed = [*names]
    expected = f"{'one of ' if len(listed) > 1 else ''}{', '.join(map(str, listed))}"
    return MissingScores(f"no record has the {what} '{name}', expected {expected}")


def read_both(
    places: Iterable[str | Path], which: Chosen = EVERYTHING
) -> list[tuple[Line, Record]]:
    """`read_lines`, each line with its record; keeps all records in memory."""
    records = dict(_each(places))
    return [
        (line, records[line.path]) for line in chosen_lines([*lines_of(records.items())], which)
    ]


def read_lines(places: Iterable[str | Path], which: Chosen = EVERYTHING) -> list[Line]:
    """The chosen lines of the records in files and folders. Raises BrokenRecord."""
    return chosen_lines([*lines_of(_each(places))], which)


def _each(places: Iterable[str | Path]) -> Iterator[tuple[str, Record]]:
    """(file, record). Of records that differ only in the plug-in code that scored them, those of
    the loaded code, or all if there are none: records from before a change of code stay on disk."""
    by_code: dict[str, dict[str, list[tuple[str, Record]]]] = {}
    for path, record in each_record(places):
        settings = dict(record.settings)
        if (code := settings.pop("code", None)) is None:
            yield str(path), record
            continue
        cell = f"{record.model} {identity_of(record.model_copy(update={'settings': settings}))}"
        by_code.setdefault(cell, {}).setdefault(str(code), []).append((str(path), record))
    for codes in by_code.values():
        several = codes if len(codes) > 1 else {}
        current = several.get(loaded_code(next(iter(codes.values()))[0][1]))
        yield from current or chain.from_iterable(codes.values())


def loaded_code(record: Record) -> str:
    """The hash of the loaded code that would score a record; '' if part of it is not loaded."""
    try:
        return scoring_code(PROTOCOLS[record.protocol], record.metrics)
    except HarnessError:
        return ""
