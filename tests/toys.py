"""Tasks in the words of the miniatures, and experts of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import pytest

from harness import TASKS, Row, Task
from tests.conftest import WORDS

SIZES = {"train": 40, "test": 12}
LEARNT = {"train": 200, "test": 24}
"""Rows that a miniature can learn from."""


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

PEOPLE, PLACES = WORDS[2:8], WORDS[8:14]


def tagged(split: str) -> Sequence[Row]:
    """Sentences in which some words are people and some are places, of one word or two."""
    numbers = np.random.default_rng([len(split), 7])
    rows = []
    for index in range(LEARNT[split]):
        words, tags = [], []
        for _ in range(numbers.integers(2, 7)):
            names = {"PER": PEOPLE, "LOC": PLACES, "": WORDS[14:]}
            kind = str(numbers.choice([*names])) if index % 4 else ""
            count = int(numbers.integers(1, 3)) if kind else 1
            words += numbers.choice(names[kind], count).tolist()
            tags += [f"{prefix}-{kind}" if kind else "O" for prefix in "BI"[:count]]
        rows.append({"tokens": words, "ner_tags": tags})
    return rows


TAGS = Task(
    name="toy/tags",
    kind="tagging",
    text=("tokens",),
    label="ner_tags",
    labels=("O", "B-PER", "I-PER", "B-LOC", "I-LOC"),
    metrics=("span_f1",),
    splits={"test": "test"},
    reported="test",
    generate=tagged,
)


def moods(split: str) -> Sequence[Row]:
    """Rows whose words say which classes hold; of the last one, one row in two says nothing."""
    numbers = np.random.default_rng([len(split), 8])
    rows = []
    for index in range(LEARNT[split]):
        holds = numbers.random(3) < 0.5
        words = [f"word{4 * place + numbers.integers(4)}" for place in np.flatnonzero(holds)]
        words += numbers.choice(WORDS[20:], numbers.integers(1, 6)).tolist()
        said = [int(one) for one in holds]
        said[2] = said[2] if index % 2 else -100
        rows.append({"first": " ".join(numbers.permutation(words)), "moods": said})
    return rows


MOODS = Task(
    name="toy/moods",
    kind="multilabel",
    text=("first",),
    label="moods",
    labels=("glad", "sad", "odd"),
    metrics=("macro_f1",),
    splits={"test": "test"},
    reported="test",
    generate=moods,
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


def known(*tasks: Task, scope: Literal["function", "module"] = "function") -> Any:
    """A fixture by which all tests of the module that keeps it know the tasks."""

    @pytest.fixture(scope=scope, autouse=True)
    def fixture() -> Iterator[None]:
        with registered(*tasks):
            yield

    return fixture
