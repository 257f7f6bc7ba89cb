"""Shell: which of some records are meant, by task, protocol, limit and model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import PositiveInt

from harness.errors import MissingScores
from harness.evaluation.records import Record, each_record
from harness.reporting.lines import Line, label, limit_of, lines_of
from harness.values import Frozen

Where = TypeVar("Where")
SINGLES = ("expert", "single")
NAMED = ("merged", "reference", "ceiling")
"""Roles of what a table is of; those of all others are what these are measured by."""


class Chosen(Frozen):
    """Which of some records are meant: all of them, where nothing is said.

    Tasks are named as in records, their splits and suites left out where that is clear; protocols
    with their options or without. `limit` is that of `evaluate`, or `all` for records of all rows.
    `models` are merges and references, by name or by a pattern as of files (`mrpc-*`); what they
    are measured by stays: the base, ensembles, and experts, those of the merges alone where these
    say them.
    """

    tasks: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    limit: PositiveInt | Literal["all"] | None = None
    models: tuple[str, ...] = ()


EVERYTHING = Chosen()


def called(task: str) -> tuple[str, ...]:
    """What a task may be called: its name, also without split, without suite, and without both."""
    bare = task.partition("@")[0]
    return task, bare, task.rpartition("/")[2], bare.rpartition("/")[2]


_CALLED: Mapping[str, Callable[[Record], tuple[Collection[object], str]]] = {
    "task": lambda record: (called(record.task), record.task),
    "protocol": lambda record: ((label(record), record.protocol), label(record)),
    "limit": lambda record: ((limit_of(record),), str(limit_of(record))),
}
"""All that a record may be called by, and what it is called to who asks."""


def chosen(
    records: Iterable[tuple[Where, Record]], which: Chosen
) -> Iterator[tuple[Where, Record]]:
    """The records that are meant. Raises MissingScores for what none of them is of."""
    if which.models:
        yield from _of_models([*_matching(records, which)], which.models)
    else:
        yield from _matching(records, which)


def _matching(
    records: Iterable[tuple[Where, Record]], which: Chosen
) -> Iterator[tuple[Where, Record]]:
    """Those of the tasks, protocols and limit. At the end, what none is of is an error."""
    asked = {"task": which.tasks, "protocol": which.protocols, "limit": (which.limit,)}
    asked = {what: names for what, names in asked.items() if names not in ((), (None,))}
    known: dict[str, dict[str, None]] = {what: {} for what in asked}
    met: set[tuple[str, object]] = set()
    count = 0
    for where, record in records:
        fits = True
        for what, names in asked.items():
            called, own = _CALLED[what](record)
            known[what].setdefault(own)
            mine = {(what, name) for name in names if name in called}
            met |= mine
            fits = fits and bool(mine)
        if fits:
            count += 1
            yield where, record
    for what, names in asked.items():
        for name in names:
            if (what, name) not in met:
                raise MissingScores(
                    f"no record is of {what} '{name}', expected one of {', '.join(known[what])}"
                )
    if asked and not count:
        raise MissingScores(
            f"no record is of the {' and the '.join(asked)} that were chosen; name fewer"
        )


def _of_models(
    records: Sequence[tuple[Where, Record]], patterns: Collection[str]
) -> Iterator[tuple[Where, Record]]:
    """Those of the models, and what they are measured by."""
    known = dict.fromkeys(record.model for _, record in records)
    names: set[str] = set()
    for pattern in patterns:
        found = {name for name in known if name == pattern or fnmatchcase(name, pattern)}
        if not found:
            raise MissingScores(
                f"no record is of model '{pattern}', expected one of {', '.join(known)}"
            )
        names |= found
    experts = {
        one.digest for _, record in records if record.model in names for one in record.experts
    }
    teachers = {record.digest: record.teachers for _, record in records if record.teachers}
    for where, record in records:
        # a base is read under the heads of experts: who teaches it under one protocol tells whose
        of_set = {record.digest} if record.role in SINGLES else {*teachers.get(record.digest, ())}
        beside = record.role not in NAMED and (not experts or of_set <= experts)
        if beside or record.model in names:
            yield where, record


def read_lines(places: Iterable[str | Path], which: Chosen = EVERYTHING) -> list[Line]:
    """The lines of the records in files and folders that are meant. Raises BrokenRecord."""
    return [*lines_of((str(path), one) for path, one in chosen(each_record(places), which))]
