"""Pure: lines -> the names of the rows of a board, distinct for different models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

import xxhash

from harness.reporting.lines import Line, grouped
from harness.text import last_part
from harness.types import HELD_OUT

EXPERT = "expert of the task"
MAX = "experts, max"
SUMMARY = ("experts, min", "experts, mean", MAX)
BEST_SINGLE = f"best single ({HELD_OUT})"
AVERAGE_SINGLE = "average single"
CONSTANT = "best constant"
"""The best constant prediction: the most frequent label, or the mean of a regression."""
COMPUTED = (EXPERT, *SUMMARY, BEST_SINGLE, AVERAGE_SINGLE, CONSTANT, "base")
"""Names of rows that no model may have: such a model is called `model NAME`."""
FEW = 3
"""The most experts whose names a row's name has; for more, it has their number."""


def row_names(lines: Sequence[Line], *, by_method: bool, one_each: bool) -> list[str]:
    """The name of each line's row in a table, distinct for different models."""
    names = [row_name(line, by_method=by_method, one_each=one_each) for line in lines]
    return distinct_names(lines, names)


def distinct_names(lines: Sequence[Line], names: Sequence[str]) -> list[str]:
    """The names of lines, extended so that no two models share a name and a column.

    Where two would, the name is followed by what differs: TRAITS first, then HASHES.
    """
    groups = grouped(zip(names, lines, strict=True), itemgetter(0))
    suffix = {name: _difference([line for _, line in group]) for name, group in groups.items()}
    return [f"{name}{suffix[name](line)}" for line, name in zip(lines, names, strict=True)]


def marked(name: str, *, transductive: bool) -> str:
    """A name, with the mark `(transductive)` if the scored rows were seen."""
    return f"{name} (transductive)" if transductive else name


def row_name(line: Line, *, by_method: bool, one_each: bool) -> str:
    """The name of a line's row in a table, before `distinct_names`."""
    own = f"model {line.model}" if line.model in COMPUTED else line.model
    if line.role == "expert":
        return EXPERT if one_each else own
    if line.role == "single":
        return own
    if line.role == "base":
        return "base" if by_method else f"base ({line.model})"
    if line.role == "ensemble":
        return "logit ensemble" if line.method == line.role else f"logit {line.method}"
    if line.role == "ceiling":
        return f"ceiling: {line.method} (not one model)"
    method = marked(line.method, transductive=line.made_on_test)
    if line.role == "reference":
        return f"{line.model} ({method})"
    plain = by_method or line.model == line.method
    return method if plain else f"{line.model} ({method})"


def _many(line: Line) -> str:
    """How many experts a model was merged from; for a base, how many gave their heads."""
    count = len(line.experts or line.heads_of)
    return f"experts: {count}" if count else ""


def experts_of(line: Line) -> str:
    """The names of the experts that a model was merged from; of more than FEW, their number."""
    names = [last_part(source) for source, _ in line.experts]
    return " + ".join(names) if len(names) <= FEW else f"{len(names)} experts"


TRAITS: tuple[Callable[[Line], str], ...] = (
    lambda line: f"{line.head} head",
    lambda line: f"{len(line.teachers)} teachers" if line.teachers else "",
    lambda line: f"preset {line.preset}" if line.preset else "",
    lambda line: f"labels {line.labels}",
    lambda line: line.model,
    _many,
    experts_of,
)
"""What may differ between models of one name, the easiest to understand first."""
HASHES: tuple[Callable[[Line], str], ...] = (
    lambda line: f"experts {_hash(digest for _, digest in line.experts)}" if line.experts else "",
    lambda line: line.digest[:8],
    lambda line: line.identity[:8],
)
"""Hashes, which always differ but tell a reader nothing: that of the experts first, as it is the
same on all tasks."""


def _hash(digests: Iterable[str]) -> str:
    return str(xxhash.xxh3_64_hexdigest(" ".join(digests).encode()))[:8]


def _difference(lines: Sequence[Line]) -> Callable[[Line], str]:
    """A function that gives the suffix of a line's name, ` (...)`.

    It has the trait that tells most of these lines apart. While some are still alike, the trait
    that tells most of these apart is added; the first among equals.
    """
    used: list[Callable[[Line], str]] = []
    clashes = _clash_count(lines, used)
    for traits in (TRAITS, *((trait,) for trait in HASHES)):
        while clashes:
            best = min(traits, key=lambda trait: _clash_count(lines, [*used, trait]))
            if (fewer := _clash_count(lines, [*used, best])) == clashes:
                break
            used, clashes = [*used, best], fewer

    def added(line: Line) -> str:
        text = ", ".join(filter(None, (trait(line) for trait in used)))
        return f" ({text})" if text else ""

    return added


def _clash_count(lines: Iterable[Line], traits: Sequence[Callable[[Line], str]]) -> int:
    """How many lines share all traits and a column with a line of another model."""
    alike = grouped(lines, lambda o: (o.task, o.setting, o.set, *(trait(o) for trait in traits)))
    return sum(not _one_model(group[0], line) for group in alike.values() for line in group)


def _one_model(one: Line, other: Line) -> bool:
    """Whether two lines of a column are of one model: equal in all that outputs depend on, or in
    weights and all scores, if other files differ without an effect."""
    return one.identity == other.identity or all(
        getattr(one, name) == getattr(other, name)
        for name in ("digest", "teachers", "preset", "labels", "values", "resamples")
    )
