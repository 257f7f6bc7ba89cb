"""Pure: lines -> whether one table can have them, or would mix scores that are not comparable."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from harness.errors import BrokenRecord
from harness.reporting import bases
from harness.reporting.lines import Line, Setting, limit_options
from harness.types import ALL


def check_comparable(lines: Sequence[Line]) -> None:
    """Raise BrokenRecord, naming both, for two lines of a column that are not comparable."""
    _check_sets(lines)
    check_columns(lines)


def check_columns(lines: Iterable[Line]) -> None:
    """`check_comparable` without the check of the experts."""
    lines = [*lines]
    _check_recipes(lines)
    seen: dict[tuple[str, Setting], Line] = {}
    for line in sorted(lines, key=lambda one: -len(one.conditions)):  # lines with most facts first
        other = seen.setdefault((line.task, line.setting), line)
        mine, theirs = dict(line.conditions), dict(other.conditions)
        if (differing := next((k for k in mine if mine[k] != theirs.get(k)), None)) is None:
            continue
        pair = (line, other)
        lengths, draws = (
            [facts[what] for facts in (mine, theirs) if facts.get(what, "").isdecimal()]
            for what in ("max_length", "draws")
        )
        options = (
            limit_options(*(one.limit for one in pair))
            or limit_options(*(one.train_limit or ALL for one in pair), option="--train-limit")
            or limit_options(*lengths, option="--max-length")
            or limit_options(*draws, option="--draws")
        )
        files = f", or leave out one of {other.path} and {line.path}" if line.path else ""
        advice = f"choose {options}" if options else f"evaluate them alike{files}"
        if differing == "code":
            advice = f"evaluate both with the present code, and give --plugins{files}"
        raise BrokenRecord(
            f"{line.task} under {line.setting}: '{line.model}' was evaluated with "
            f"{differing} {mine.get(differing)}, '{other.model}' with {theirs.get(differing)}; "
            f"expected the same {differing} in a column: {advice}"
        )


def _check_sets(lines: Sequence[Line]) -> None:
    """Raise BrokenRecord, naming both, for experts of one name and task with different weights.

    They are of a study that was run twice: merges of one run are not measured by experts of the
    other.
    """
    seen: dict[tuple[str, str, int], Line] = {}
    for line in lines:
        if line.role != "expert":
            continue
        other = seen.setdefault((line.task, line.model, line.set), line)
        if other.digest == line.digest:
            continue
        first, second = (_merges_of(expert.digest, lines) for expert in (other, line))
        merges = (merge for merge in lines if merge.role == "merged" and merge.task == line.task)
        options = bases.base_options(merges)
        if not options and first and second and not {*first} & {*second}:
            options = f"--models {','.join(first)} or --models {','.join(second)}"
        raise BrokenRecord(
            f"records are of two sets of experts: '{line.model}' of {line.task} has the weights "
            f"{other.digest[:8]} in {other.path or 'one'} and {line.digest[:8]} in "
            f"{line.path or 'another'}; expected one set, or sets that differ by "
            "their seeds alone: name a folder with one set"
            f"{options and f', or choose its merges with {options}'}"
        )


def _check_recipes(lines: Iterable[Line]) -> None:
    """Raise BrokenRecord, naming both, for merges of two sets of experts with one name and
    different recipes: a name leaves out defaults, which a plug-in may have changed."""
    seen: dict[tuple[str, Setting, str, str], tuple[str, Line]] = {}
    for line in lines:
        for option, value in line.method_options if line.role == "merged" else ():
            key = (line.task, line.setting, line.method, option)
            other_value, other = seen.setdefault(key, (value, line))
            if other_value != value and line.set != other.set:
                raise BrokenRecord(
                    f"merges by {line.method} are of two recipes: {option} is {other_value} in "
                    f"{other.path or other.model} and {value} in {line.path or line.model}; "
                    "expected one recipe for all sets of experts: merge the one again, or leave "
                    "it out"
                )


def _merges_of(expert: str, lines: Iterable[Line]) -> list[str]:
    """The names of the merges that an expert is in."""
    merges = (line for line in lines if line.role == "merged")
    return [*dict.fromkeys(one.model for one in merges if expert in dict(one.experts).values())]
