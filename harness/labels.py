"""Labels: how names are compared, and how a label is read off logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from harness.errors import LabelMismatch, NotFinite
from harness.types import Array, Array64, Kind, Task

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


def fit(found: Sequence[str], task: Task) -> bool:
    """Whether these are the label names of a task, in any order; none for a regression."""
    spelled = spelling(found, task.labels)
    return sorted(map(spelled, found)) == sorted(map(spelled, task.labels))


def generic(labels: Sequence[str]) -> bool:
    """Whether the names are the placeholders that transformers writes when nobody named them."""
    return bool(labels) and all(name == f"LABEL_{i}" for i, name in enumerate(labels))


def columns(task: Task, found: Sequence[str], where: str, *, by_index: bool = False) -> list[int]:
    """For each label of the task, the output of the head that stands for it.

    Names decide, whatever their order. Generic names are taken in the task's order only if
    `by_index`. Raises LabelMismatch otherwise.
    """
    if task.kind == "regression":
        if not found:
            return [0]
    elif fit(found, task):
        spelled = spelling(found, task.labels)
        names = [spelled(name) for name in found]
        return [names.index(spelled(name)) for name in task.labels]
    elif generic(found) and len(found) == len(task.labels) and by_index:
        return list(range(len(found)))
    hint = ""
    if generic(found) and len(found) == len(task.labels):
        hint = "; if its outputs are in that order, say so with --labels by-index"
    raise LabelMismatch(
        f"{where} has the labels {', '.join(found) or 'none (regression)'}; "
        f"{task} expects {', '.join(task.labels) or 'none (regression)'}{hint}"
    )


def predicted(kind: Kind, logits: Array | Array64) -> Array64:
    """Labels read off logits [rows, classes]: the arg max (lowest index on ties), or the value.

    Raises NotFinite for NaN, of which the arg max would be the first label.
    """
    values = np.asarray(logits, dtype=np.float64)
    if not np.isfinite(values).all():
        raise NotFinite("outputs are NaN or infinite, expected finite ones")
    values = values.reshape(len(values), -1)
    return values[:, 0] if kind == "regression" else values.argmax(axis=1).astype(np.float64)
