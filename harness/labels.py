"""Names of labels: how they are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.types import Task

SEPARATORS = frozenset("_-/\\.,:;'\"()[]&|")
"""Signs that only part words; others may be all that tells two labels apart: `C`, `C++`, `C#`."""


def normal(label: str) -> str:
    """A label name with case and separators taken out, which is how names are compared."""
    kept = (sign for sign in label if not sign.isspace() and sign not in SEPARATORS)
    return "".join(kept).casefold()


def spelling(*lists: Sequence[str]) -> Callable[[str], str]:
    """How the names of some label lists are compared: as `normal` has them, unless that makes two
    of a list one; then to the letter."""
    distinct = all(len({*map(normal, names)}) == len({*names}) for names in lists)
    return normal if distinct else str


def same(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether two label lists have the same names in the same order."""
    spelled = spelling(first, second)
    return list(map(spelled, first)) == list(map(spelled, second))


def fit(labels: Sequence[str], task: Task) -> bool:
    """Whether these are the label names of a task, in any order; none for a regression."""
    spelled = spelling(labels, task.labels)
    return sorted(map(spelled, labels)) == sorted(map(spelled, task.labels))


def generic(labels: Sequence[str]) -> bool:
    """Whether the names are the placeholders that transformers writes when nobody named them."""
    return bool(labels) and all(name == f"LABEL_{i}" for i, name in enumerate(labels))
