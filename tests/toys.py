"""Tasks in the words of the miniatures, and experts of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from harness import Row, Task
from harness.registry import TASKS
from tests.conftest import WORDS

SIZES = {"train": 40, "test": 12}


def sentences(split: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    """Rows of random words, of unlike length, so that padding matters."""
    numbers = np.random.default_rng([len(split), len(columns)])
    rows = []
    for index in range(SIZES[split]):
        row: dict[str, Any] = {
            column: " ".join(numbers.choice(WORDS, numbers.integers(1, 12))) for column in columns
        }
        rows.append({**row, "label": index % 2, "score": float(numbers.normal())})
    return rows


def pairs(split: str) -> Sequence[Row]:
    return sentences(split, ("first", "second"))


TOY = Task(
    name="toy/pairs",
    kind="classification",
    text=("first", "second"),
    label="label",
    labels=("no", "yes"),
    metrics=("accuracy",),
    splits={"test": "test"},
    reported="test",
    generate=pairs,
)
THREE = Task(
    name="toy/three",
    kind="classification",
    text=("first",),
    label="label",
    labels=("x", "y", "z"),
    metrics=("accuracy",),
    splits={"test": "test"},
    reported="test",
    generate=lambda split: [
        {**row, "label": i % 3} for i, row in enumerate(sentences(split, ("first",)))
    ],
)
VALUE = Task(
    name="toy/value",
    kind="regression",
    text=("first",),
    label="score",
    labels=(),
    metrics=("pearson",),
    splits={"test": "test"},
    reported="test",
    generate=lambda split: sentences(split, ("first",)),
)


@contextmanager
def registered(*tasks: Task) -> Iterator[None]:
    """The tasks under their names for a while."""
    with pytest.MonkeyPatch.context() as patch:
        len(TASKS)  # the folder is scanned before the copies are made
        for kept in ("_values", "_origins"):
            patch.setattr(TASKS, kept, dict(getattr(TASKS, kept)))
        for task in tasks:
            TASKS.add(task, __name__)
        yield
