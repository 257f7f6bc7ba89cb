"""Names of labels: how they are compared, and which of them a value of a data set stands for."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import cache
from numbers import Integral, Real
from typing import Any
from unicodedata import normalize

import numpy as np

from harness.types import Task

PARTING = re.compile(
    r"(?!(?<!\w)-\.?\d|(?<=\d)[-.,:/]\d)"  # not the sign of a number, nor what stands within one
    r"[\s_\-/\\.,:;'\"()\[\]&|]"
)
"""Signs that only part words; others may be all that tells two labels apart: `C`, `C++`, `C#`."""
NUMBER = re.compile(r"[+-]?\d{1,18}(\.\d{0,9})?", re.ASCII)
LONGEST_NAME = 1000
"""Letters of a label: a longer text is a column by mistake, and slow to compare."""


def composed(label: str) -> str:
    """A name with its accents in its letters (NFC), to the letter otherwise."""
    return normalize("NFC", label)


def normal(label: str) -> str:
    """A label name with case and separators taken out, which is how names are compared.

    One that is a number is that number: 1, 1.0 and 01 are one name, and -1 is another. Letters
    with their accents apart, as macOS writes the names of folders, are those with them (NFC).
    """
    kept = composed(PARTING.sub("", label).casefold())
    return str(Decimal(kept).normalize() + 0) if NUMBER.fullmatch(kept) else kept


def is_number(label: str) -> bool:
    """Whether a label is called by a number, or by true or false, as data may have them."""
    kept = normal(label)
    return NUMBER.fullmatch(label.strip()) is not None or kept in ("true", "false")


def called(value: object) -> str | None:
    """How a value of a label is called: 4.0 as 4, and true as true; None where it says nothing."""
    if isinstance(value, str):
        return composed(value) if len(value) < LONGEST_NAME else None
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, Real) or isinstance(value, Integral):
        return None if value is None else str(value)[:LONGEST_NAME]
    number = float(value)
    if not np.isfinite(number):
        return None
    if number.is_integer():
        return str(int(number))
    short = np.float32(number)  # 0.1 of 32 bits is 0.10000000149 to Python
    return str(short if float(short) == number else number)


def placing(task: Task) -> Callable[[object], int | None]:
    """Which label of a task a value of its data stands for, by its place among them.

    A value is the label that it is called by. It is a place in the list only where the task reads
    numbers so and no label is called by one. None: no label.
    """
    spelled, others = spelling(task.labels), spelling([*task.renamed])
    places = {spelled(name): place for place, name in enumerate(task.labels)}
    renamed = {others(theirs): ours for theirs, ours in task.renamed.items()}
    by_index = task.by_index and not any(map(is_number, task.labels))

    @cache  # a name is compared once, however many rows have it
    def named(name: str) -> int | None:
        name = renamed.get(others(name), name)
        place = places.get(spelled(name))
        if place is None and by_index and NUMBER.fullmatch(name):
            index = Decimal(name)
            place = int(index) if index in range(len(places)) else None
        return place

    def place(value: object) -> int | None:
        name = called(value)
        return None if name is None else named(name)

    return place


def spelling(*lists: Sequence[str]) -> Callable[[str], str]:
    """How the names of some label lists are compared: as `normal` has them, unless that makes two
    of a list one; then to the letter."""
    distinct = all(len({*map(normal, names)}) == len({*names}) for names in lists)
    return normal if distinct else composed


def same(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether two label lists have the same names in the same order."""
    spelled = spelling(first, second)
    return list(map(spelled, first)) == list(map(spelled, second))


def as_config(labels: Sequence[str]) -> dict[str, Any]:
    """The names of a head's outputs, as a configuration of transformers' has them."""
    places = {name: place for place, name in enumerate(labels)}
    return {"id2label": {str(place): name for name, place in places.items()}, "label2id": places}


def fit(labels: Sequence[str], task: Task) -> bool:
    """Whether these are the label names of a task, in any order; none for a regression."""
    spelled = spelling(labels, task.labels)
    return sorted(map(spelled, labels)) == sorted(map(spelled, task.labels))


def generic(labels: Sequence[str]) -> bool:
    """Whether the names are the placeholders that transformers writes when nobody named them."""
    return bool(labels) and all(name == f"LABEL_{i}" for i, name in enumerate(labels))
