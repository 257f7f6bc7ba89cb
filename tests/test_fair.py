"""The first rows of a split that are no fair sample of it are told of; those of shuffled rows never
are."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from harness import Row, Task
from harness.cli import main
from harness.data.fair import unlike
from harness.data.rows import load_rows
from harness.types import Rows
from tests.conftest import WORDS, model
from tests.mistakes import names
from tests.toys import MOODS, THREE, VALUE
from tests.toys import TAGS as TAGGED

pytestmark = [
    pytest.mark.usefixtures("as_found"),
    pytest.mark.filterwarnings("default:.* no fair sample"),  # as they are told, not as errors
]
ROWS, FIRST = 240, 40


def in_order(task: Task, *, shuffled: int | None = None) -> Task:
    """The task with more rows, in the order of their labels or in a random one."""

    def generate(split: str) -> Sequence[Row]:
        assert task.generate is not None
        rows = [*task.generate(split)] * (ROWS // len(task.generate(split)))
        rows = sorted(rows, key=lambda row: _key(row[task.label]))
        if shuffled is None:
            return rows
        return [rows[i] for i in np.random.default_rng(shuffled).permutation(len(rows))]

    return replace(task, generate=generate)


def _key(label: Any) -> tuple[bool, str]:
    """Rows without people come first where labels are tags."""
    text = json.dumps(label)
    return "PER" in text, text


def classes(*labels: int) -> Rows:
    """Rows of these labels."""
    return Rows(THREE, "test", (("",),) * len(labels), np.array(labels, dtype=float), "")


def test_shares_of_the_first_rows_and_of_all_are_held_together() -> None:
    sorted_ = classes(*[0] * 50, *[1] * 100, *[2] * 50)
    assert unlike(sorted_, 50) == {
        "label 'x'": (1, 0.25),
        "label 'y'": (0, 0.5),
        "label 'z'": (0, 0.25),
    }
    assert unlike(sorted_, 100) == {"label 'z'": (0, 0.25), "label 'x'": (0.5, 0.25)}
    assert unlike(classes(*[0, 1, 2] * 60), 30) == {}


@pytest.mark.parametrize(
    ("labels", "first"),
    {
        "a class of less than one row in twenty": ([*[0, 1] * 480, *[2] * 40], 900),
        "so few rows that chance may have it": ([*[0, 1] * 4, *[2] * 2, *[0, 1] * 95], 10),
        "less than twice as many": ([*[0] * 550, *[1] * 450, *[0] * 150, *[1] * 850], 1000),
    }.values(),
    ids=["rare", "few", "near"],
)
def test_shares_that_are_near_or_small_or_of_chance_are_not_told(
    labels: list[int], first: int
) -> None:
    assert unlike(classes(*labels), first) == {}


@pytest.mark.parametrize("task", [THREE, MOODS, TAGGED, VALUE], ids=str)
def test_rows_in_the_order_of_their_labels_are_told_and_shuffled_ones_are_not(task: Task) -> None:
    with pytest.warns(UserWarning, match="no fair sample") as told:
        rows = load_rows(in_order(task), "test", limit=FIRST, first=True)
    (line,) = (str(one.message) for one in told)
    assert len(rows) == FIRST
    assert rows.skewed_labels
    name, (here, all_over) = next(iter(rows.skewed_labels.items()))
    names(line, f"{task}@test", FIRST, ROWS, *name.split()[:1], f"{here:.1%}", f"{all_over:.1%}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for seed in range(100):
            shuffled = in_order(task, shuffled=seed)
            assert not load_rows(shuffled, "test", limit=FIRST, first=True).skewed_labels
        assert not load_rows(in_order(task), "test").skewed_labels
        assert not load_rows(in_order(task), "test", limit=ROWS, first=True).skewed_labels


# Through the command -----------------------------------------------------------------------


@pytest.fixture
def task(tmp_path: Path) -> str:
    """A task whose rows are in the order of their classes."""
    (tmp_path / "data").mkdir()
    for split, first in (("train", 0), ("test", 60)):
        rows = [
            {"body": f"{WORDS[i % 40]} {WORDS[i // 40]}", "mood": mood}
            for i, mood in enumerate(["bad"] * 30 + ["good"] * 30, start=first)
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"data/{split}.jsonl").write_text(text)
    said = "text: body\nlabel: mood\nlabels: [bad, good]\nfiles: data\n"
    (tmp_path / "mine.yaml").write_text(said)
    model(tmp_path / "m", ["bad", "good"])
    return str(tmp_path / "mine.yaml")


def told(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [line for line in capsys.readouterr().err.splitlines() if "no fair sample" in line]


def evaluated(task: str, *flags: str) -> list[Any]:
    room = Path(task).parent
    command = ["evaluate", "--model", str(room / "m"), "--tasks", task, "--protocols", "current"]
    assert main([*command, "--device", "cpu", "--output-path", str(room / "r"), *flags]) == 0
    return [json.loads(file.read_text())["dataset"] for file in (room / "r").rglob("*.json")]


def test_an_evaluation_tells_of_them_and_records_it(
    task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):  # read back it is told again
        (said,) = evaluated(task, "--limit", "30", "--first")
        (line,) = told(capsys)
        names(line, "mine@test", 30, 60, "bad 100.0% 50.0%", "good 0.0%")
    assert said["unfair"] == {"label 'bad'": [1.0, 0.5], "label 'good'": [0.0, 0.5]}
    both = evaluated(task)
    assert not told(capsys)
    assert sorted("unfair" in one for one in both) == [False, True]


def test_rows_that_are_drawn_are_told_from_the_first_ones(
    task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = evaluated(task, "--limit", "30")
    both = evaluated(task, "--limit", "30", "--first")
    assert len(both) == 2
    assert not any("unfair" in one for one in drawn)
    room = Path(task).parent
    records = [json.loads(file.read_text()) for file in (room / "r").rglob("*.json")]
    limits = [(one["settings"]["limit"], one["settings"].get("drawn")) for one in records]
    assert sorted(limits, key=str) == [(30, None), (30, True)]
    # one board has no room for both, and says so
    assert main(["leaderboard", str(room / "r"), "--out", str(room / "board")]) == 2
    names(capsys.readouterr().err.splitlines()[-1], "--limit 30 --first", "--limit 30")
    assert main(["evaluate", "--model", str(room / "m"), "--tasks", task, "--first"]) == 2
    names(capsys.readouterr().err.splitlines()[-1], "first", "--limit")


def test_labels_that_cannot_be_read_further_on_are_no_matter(
    task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows that are scored are whole."""
    with (Path(task).parent / "data/test.jsonl").open("a") as file:
        file.write('{"body": "word1", "mood": "ugly"}\n')
    (said,) = evaluated(task, "--limit", "30", "--first")
    assert "unfair" not in said
    assert not told(capsys)


def test_experts_are_trained_on_rows_in_random_order(
    task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    room = Path(task).parent
    base = model(room / "base")
    command = ["finetune", "--base", str(base), "--task", task, "--out", str(room / "e")]
    assert main([*command, "--device=cpu", "--epochs=1", "--limit=25"]) == 0
    assert not told(capsys)


def test_a_plan_tells_of_them_before_anything_is_done(
    task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    room = Path(task).parent
    said = {
        "study": "s", "base": str(model(room / "base")), "mergers": ["average"],
        "experts": {"tasks": task, "seeds": [0, 1]}, "sets": {"by": "task"},
        "protocols": ["current"], "evaluate": {"limit": 30, "first": True},
    }  # fmt: skip
    (room / "s.yaml").write_text(yaml.safe_dump(said))
    assert main(["study", "plan", str(room / "s.yaml"), "--out", str(room / "out")]) == 0
    (line,) = told(capsys)
    names(line, "mine@test", 30, 60)
