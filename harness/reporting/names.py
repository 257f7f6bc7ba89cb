"""Pure: lines -> what the rows of a board are called; rows of one name are distinguished."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter

import xxhash

from harness.reporting.lines import Line, grouped
from harness.types import HELD_OUT

EXPERT = "expert of the task"
MAX = "experts, max"
SUMMARY = ("experts, min", "experts, mean", MAX)
BEST_SINGLE = f"best single ({HELD_OUT})"
AVERAGE_SINGLE = "average single"
CONSTANT = "best constant"
"""The best constant prediction: the most frequent label, or the mean of a regression."""
COMPUTED = (EXPERT, *SUMMARY, BEST_SINGLE, AVERAGE_SINGLE, CONSTANT, "base")
"""Rows that are no model of that name."""
FEW = 3
"""Experts whose names stand in the name of a row; of more, their number."""


def row_names(lines: Sequence[Line], *, by_method: bool, one_each: bool) -> list[str]:
    """How a table calls the row of each line; models of one name are distinguished."""
    names = [row_name(line, by_method=by_method, one_each=one_each) for line in lines]
    return told_apart(lines, names)


def told_apart(lines: Sequence[Line], names: Sequence[str]) -> list[str]:
    """The names of lines, such that no two models share a name and a column.

    Where two would, what differs follows the name: the head, who taught it, the model, the
    experts, at last the hash of its weights.
    """
    groups = grouped(zip(names, lines, strict=True), itemgetter(0))
    added = {name: _difference([line for _, line in of]) for name, of in groups.items()}
    return [f"{name}{added[name](line)}" for line, name in zip(lines, names, strict=True)]


def marked(name: str, *, transductive: bool) -> str:
    """A name with its mark, if the rows that are scored were seen."""
    return f"{name} (transductive)" if transductive else name


def row_name(line: Line, *, by_method: bool, one_each: bool) -> str:
    """How a table calls the row of a line, if no other is called so."""
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
    """How many experts a model was merged of or, of a base, gave their heads."""
    count = len(line.experts or line.heads_of)
    return f"experts: {count}" if count else ""


def experts_of(line: Line) -> str:
    """The names of what a model was merged of, or how many they are."""
    names = [source.rstrip("/").rpartition("/")[2] for source, _ in line.experts]
    if not names:
        return ""
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
"""What may differ between models of one name, the plainest first."""
HASHES: tuple[Callable[[Line], str], ...] = (
    lambda line: f"experts {_hash(one for _, one in line.experts)}" if line.experts else "",
    lambda line: line.digest[:8],
    lambda line: line.identity[:8],
)
"""What always differs, and says nothing: of the experts first, which are those of all tasks."""


def _hash(digests: Iterable[str]) -> str:
    return str(xxhash.xxh3_64_hexdigest(" ".join(digests).encode()))[:8]


def _difference(lines: Sequence[Line]) -> Callable[[Line], str]:
    """What to add to the name of these lines, ` (...)`: the trait that tells most of them apart.

    If that is not all, those that each tell more of the rest apart; the first of equals.
    """
    used: list[Callable[[Line], str]] = []
    left = _left(lines, used)
    for traits in (TRAITS, *((one,) for one in HASHES)):
        while left:
            best = min(traits, key=lambda trait: _left(lines, [*used, trait]))
            if (fewer := _left(lines, [*used, best])) == left:
                break
            used, left = [*used, best], fewer

    def added(line: Line) -> str:
        text = ", ".join(filter(None, (trait(line) for trait in used)))
        return f" ({text})" if text else ""

    return added


def _left(lines: Iterable[Line], traits: Sequence[Callable[[Line], str]]) -> int:
    """How many lines still share a row and a column with that of another model."""
    owners: dict[tuple[object, ...], Line] = {}
    return sum(
        not _one_model(
            owners.setdefault((one.task, one.setting, one.set, *(t(one) for t in traits)), one), one
        )
        for one in lines
    )


def _one_model(one: Line, other: Line) -> bool:
    """Whether two lines of a column are of one model: the same by all that outputs depend on, or
    by weights and every score, where files beside the weights differ in what changes nothing."""
    return one.identity == other.identity or all(
        getattr(one, name) == getattr(other, name)
        for name in ("digest", "teachers", "preset", "labels", "values", "resamples")
    )
