"""Shell: which of some records are meant, by task, protocol, limits, base and model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Literal

from pydantic import PositiveInt

from harness.errors import HarnessError, MissingScores
from harness.evaluation.records import Record, each_record, identity_of
from harness.hashes import joined
from harness.registry import PROTOCOLS, scoring_code
from harness.reporting.bases import by_base
from harness.reporting.grid import SINGLES
from harness.reporting.lines import Line, lines_of
from harness.types import ALL
from harness.values import Frozen

NAMED = ("merged", "reference", "ceiling")
"""Roles of what a table is of; those of all others are what these are measured by."""


class Chosen(Frozen):
    """Which of some records are meant: all of them, where nothing is said.

    Tasks are named as in records, their splits and suites left out where that is clear; protocols
    with their options or without. `limit` is that of `evaluate`, or `all` for records of all rows,
    `train_limit` likewise for what adapts to training rows, and `draws` how many of these: all else
    stays. `max_length` is that of `evaluate`, as a number.
    `models` are merges and references, by name or by a pattern as of files (`mrpc-*`); what they
    are measured by stays: the base, ensembles, and experts, those of the merges alone where these
    say them. `bases` are named as boards of several name them, or by their whole source; what
    belongs to no base of the records stays.
    """

    tasks: tuple[str, ...] = ()
    protocols: tuple[str, ...] = ()
    limit: PositiveInt | Literal["all"] | None = None
    train_limit: PositiveInt | Literal["all"] | None = None
    draws: PositiveInt | None = None
    max_length: PositiveInt | None = None
    models: tuple[str, ...] = ()
    bases: tuple[str, ...] = ()


EVERYTHING = Chosen()


def called(task: str) -> tuple[str, ...]:
    """What a task may be called: its name, also without split, without suite, and without both."""
    bare = task.partition("@")[0]
    return task, bare, task.rpartition("/")[2], bare.rpartition("/")[2]


def _length(line: Line) -> int | str:
    """How many tokens of a row a model read at most; of images a word."""
    said = dict(line.work)["max_length"]
    return int(said) if said.isdecimal() else said


_CALLED: Mapping[str, Callable[[Line], tuple[Collection[object], str]]] = {
    "task": lambda line: (called(line.task), line.task),
    "protocol": lambda line: ((line.setting.protocol, line.protocol), line.setting.protocol),
    "limit": lambda line: ((line.limit,), str(line.limit)),
    "max-length": lambda line: ((_length(line),), str(_length(line))),
}
"""All that a line may be called by, and what it is called to who asks."""


def among(lines: Sequence[Line], which: Chosen) -> list[Line]:
    """The lines that are meant. Raises MissingScores for what none of them is of."""
    lines = _of_bases(lines, which.bases) if which.bases else lines
    limits = () if which.limit is None else (which.limit,)
    lengths = () if which.max_length is None else (which.max_length,)
    every: dict[str, tuple[object, ...]] = {"task": which.tasks, "protocol": which.protocols}
    every |= {"limit": limits, "max-length": lengths}
    asked = {what: names for what, names in every.items() if names}
    kept = [*lines]
    for what, names in asked.items():
        known = dict(_CALLED[what](line)[::-1] for line in lines)
        for name in names:
            if not any(name in names for names in known.values()):
                raise _missing(what, name, known)
        kept = [one for one in kept if {*names} & {*_CALLED[what](one)[0]}]
    for what, wanted, of in (
        ("train-limit", which.train_limit, _drawn_from),
        ("draws", which.draws, _draws),
    ):
        if wanted is None:
            continue
        there = dict.fromkeys(said for one in kept if (said := of(one)))
        if str(wanted) not in there:
            raise _missing(what, wanted, there or ["none"])
        kept = [one for one in kept if of(one) in ("", str(wanted))]
    if asked and not kept:
        raise MissingScores(f"no record has the chosen {' and '.join(asked)} together; name fewer")
    return _of_models(kept, which.models) if which.models else kept


def _drawn_from(line: Line) -> str:
    """The limit of training rows of what adapts to some; '' of all else."""
    return str(line.train_limit or ALL) if line.shots and not line.transductive else ""


def _draws(line: Line) -> str:
    """How many draws of rows were adapted to; '' of what adapts to none, or to all whatever is
    asked."""
    said = dict(line.work).get("draws", "")
    return said if said.isdecimal() and not of_all_rows(line.protocol) else ""


def of_all_rows(protocol: str) -> bool:
    """Whether a protocol has one number of shots and of draws, whatever was asked: all rows."""
    name = protocol.partition(":")[0]
    return name in PROTOCOLS and PROTOCOLS[name].all_rows


def _of_bases(lines: Sequence[Line], names: Collection[str]) -> list[Line]:
    """Those of the bases of these names or sources."""
    known = by_base(lines, always=True)
    kept: set[int] = set()
    for name in names:
        found = [
            of
            for base, of in known.items()
            if name == base or any(one.base == name for one in of if one.role == "merged")
        ]
        if not found:
            raise _missing("base", name, known or ["none"])
        kept.update(id(line) for of in found for line in of)
    return [line for line in lines if id(line) in kept]


def _of_models(lines: Sequence[Line], patterns: Collection[str]) -> list[Line]:
    """Those of the models, and what they are measured by."""
    known = dict.fromkeys(line.model for line in lines)
    names: set[str] = set()
    for pattern in patterns:
        found = {name for name in known if name == pattern or fnmatchcase(name, pattern)}
        if not found:
            raise _missing("model", pattern, known)
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
    owners = {one.digest: said for one in lines if (said := one.teachers or one.heads_of)}

    def beside(line: Line) -> bool:
        if line.role in NAMED or line.name not in tasks:
            return False
        if line.role == "ensemble" and experts:
            return line.digest in ensembles
        # a base has the heads of experts: who teaches it under one protocol tells whose
        of_set = {line.digest} if line.role in SINGLES else {*owners.get(line.digest, ())}
        return not experts or of_set <= experts

    return [line for line in lines if line.model in names or beside(line)]


def _missing(what: str, name: object, known: Iterable[str]) -> MissingScores:
    there = [*known]
    these = f"{'one of ' if len(there) > 1 else ''}{', '.join(map(str, there))}"
    return MissingScores(f"no record is of {what} '{name}', expected {these}")


def read_both(
    places: Iterable[str | Path], which: Chosen = EVERYTHING
) -> list[tuple[Line, Record]]:
    """As `read_lines`, each line with its record: all of them are in memory."""
    records = dict(_each(places))
    return [(line, records[line.path]) for line in among([*lines_of(records.items())], which)]


def read_lines(places: Iterable[str | Path], which: Chosen = EVERYTHING) -> list[Line]:
    """The lines of the records in files and folders that are meant. Raises BrokenRecord."""
    return among([*lines_of(_each(places))], which)


def _each(places: Iterable[str | Path]) -> Iterator[tuple[str, Record]]:
    """Records with their files. Of a score that a plug-in of several codes made, that of the code
    that is loaded: after a change an evaluation scores again, and what it had written stays."""
    by_code: dict[str, dict[str, list[tuple[str, Record]]]] = {}
    for path, one in each_record(places):
        settings = dict(one.settings)
        if (code := settings.pop("code", None)) is None:
            yield str(path), one
            continue
        cell = f"{one.model} {identity_of(one.model_copy(update={'settings': settings}))}"
        by_code.setdefault(cell, {}).setdefault(str(code), []).append((str(path), one))
    for codes in by_code.values():
        several = codes if len(codes) > 1 else {}
        now = several.get(loaded_code(next(iter(codes.values()))[0][1]))
        yield from now or chain.from_iterable(codes.values())


def loaded_code(record: Record) -> str:
    """The hash of the code, as it is loaded here, that would make a score; '' where some is not."""
    try:
        return scoring_code(PROTOCOLS[record.protocol], record.metrics)
    except HarnessError:
        return ""
