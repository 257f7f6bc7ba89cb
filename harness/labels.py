"""Label names: how they are compared, and which label a value in a data set stands for."""

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
    r"(?!(?<!\w)-\.?\d|(?<=\d)[-.,:/]\d)"  # not the sign of a number, nor a separator within one
    r"[\s_\-/\\.,:;'\"()\[\]&|]"
)
"""Characters that only separate words; others may distinguish labels: `C`, `C++`, `C#`."""
NUMBER = re.compile(r"[+-]?\d{1,18}(\.\d{0,9})?", re.ASCII)
"""A name that is a number."""
LONGEST_NAME = 1000
"""The most characters of a label: a longer text is from a wrong column, and slow to compare."""


def composed(label: str) -> str:
    """A name in Unicode's composed form (NFC), otherwise unchanged."""
    return normalize("NFC", label)


def normal(label: str) -> str:
    """A label name without case and separators, for comparison.

    Names that are numbers are compared as numbers: 1, 1.0 and 01 are the same name, -1 is another.
    Accents are composed (NFC): macOS writes names of folders with separate accents.
    """
    plain = composed(PARTING.sub("", label).casefold())
    return str(Decimal(plain).normalize() + 0) if NUMBER.fullmatch(plain) else plain


def is_number(label: str) -> bool:
    """Whether a label's name is a number, true or false, and so may be a value in the data."""
    name = normal(label)
    return NUMBER.fullmatch(label.strip()) is not None or name in ("true", "false")


def name_of_value(value: object) -> str | None:
    """The label name of a value in the data: "4" for 4.0, "true" for True; None for no label: None,
    nan, infinity, or text that is too long."""
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
    short = np.float32(number)  # 0.1 in float32 is 0.10000000149 in Python
    return str(short if float(short) == number else number)


def label_indexer(task: Task) -> Callable[[object], int | None]:
    """A function from a value in the data to the index of the task's label, None for no label.

    A value is looked up by name. A number is an index into the labels only if the task has
    `by_index` and no label's name is a number.
    """
    spelled, source_key = comparison_key(task.labels), comparison_key([*task.renamed])
    places = {spelled(name): place for place, name in enumerate(task.labels)}
    renamed = {source_key(theirs): ours for theirs, ours in task.renamed.items()}
    by_index = task.by_index and not any(map(is_number, task.labels))

    @cache  # many rows have the same name
    def named(name: str) -> int | None:
        name = renamed.get(source_key(name), name)
        place = places.get(spelled(name))
        if place is None and by_index and NUMBER.fullmatch(name):
            index = Decimal(name)
            place = int(index) if index in range(len(places)) else None
        return place

    def place(value: object) -> int | None:
        name = name_of_value(value)
        return None if name is None else named(name)

    return place


def comparison_key(*lists: Sequence[str]) -> Callable[[str], str]:
    """The function by which names of these label lists are compared: `normal` or, if that makes two
    names of a list equal, `composed`."""
    distinct = all(len({*map(normal, names)}) == len({*names}) for names in lists)
    return normal if distinct else composed


def same(first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether two label lists have the same names in the same order."""
    spelled = comparison_key(first, second)
    return list(map(spelled, first)) == list(map(spelled, second))


def as_config(labels: Sequence[str]) -> dict[str, Any]:
    """The names of a head's outputs as `id2label` and `label2id` in a configuration."""
    places = {name: place for place, name in enumerate(labels)}
    return {"id2label": {str(place): name for name, place in places.items()}, "label2id": places}


def are_labels_of(labels: Sequence[str], task: Task) -> bool:
    """Whether these are the label names of a task, in any order (for a regression, no names)."""
    spelled = comparison_key(labels, task.labels)
    return sorted(map(spelled, labels)) == sorted(map(spelled, task.labels))


def generic(labels: Sequence[str]) -> bool:
    """Whether the names are the placeholders of transformers: LABEL_0, LABEL_1, ..."""
    return bool(labels) and all(name == f"LABEL_{i}" for i, name in enumerate(labels))
