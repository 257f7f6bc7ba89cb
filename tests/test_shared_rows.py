"""Rows that are scored are none that a model was trained on; texts that they share are told."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.errors import BadData, HarnessError
from tests.conftest import FAST, WORDS, model
from tests.mistakes import refused

pytestmark = pytest.mark.usefixtures("as_found")


def rows(first: int, last: int) -> list[dict[str, Any]]:
    """Rows of texts of their own."""
    return [
        {"body": f"{WORDS[i % 40]} {WORDS[i // 40]} {WORDS[3]}", "mood": ["bad", "good"][i % 2]}
        for i in range(first, last)
    ]


def jsonl(path: Path, made: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in made))


def csv(path: Path, made: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{a},{b}\n" for a, b in [("body", "mood"), *map(dict.values, made)]))


TRAIN = rows(0, 60)
#: what stands in the place of a file of its own for test
SAME: dict[str, Callable[[Path], object]] = {
    "a link": lambda folder: (folder / "test.jsonl").symlink_to("train.jsonl"),
    "a hard link": lambda folder: os.link(folder / "train.jsonl", folder / "test.jsonl"),
    "a copy": lambda folder: shutil.copy(folder / "train.jsonl", folder / "test.jsonl"),
    "another form": lambda folder: csv(folder / "test.csv", TRAIN),
    "another order": lambda folder: jsonl(folder / "test.jsonl", TRAIN[::-1]),
    "other blanks": lambda folder: jsonl(
        folder / "test.jsonl", [{**row, "body": f" {row['body']}\t"} for row in TRAIN]
    ),
    "other case": lambda folder: jsonl(
        folder / "test.jsonl", [{**row, "body": row["body"].title()} for row in TRAIN]
    ),
    "other labels": lambda folder: jsonl(
        folder / "test.jsonl", [{**row, "mood": "good"} for row in TRAIN]
    ),
    "a part": lambda folder: jsonl(folder / "test.jsonl", TRAIN[20:40]),
    "more": lambda folder: jsonl(folder / "test.jsonl", [*TRAIN, *rows(60, 62)]),
}


@pytest.fixture
def task(tmp_path: Path) -> str:
    """A task whose train split alone is there."""
    (tmp_path / "data").mkdir()
    jsonl(tmp_path / "data/train.jsonl", TRAIN)
    (tmp_path / "mine.yaml").write_text("text: body\nlabel: mood\nfiles: data\n")
    return str(tmp_path / "mine.yaml")


def evaluated(task: str, *flags: str) -> int:
    place = Path(task).parent
    if not (place / "model").exists():
        model(place / "model", ["bad", "good"])
    command = ["evaluate", "--model", str(place / "model"), "--protocols", "current", "--tasks"]
    out = ["--output-path", str(place / "records"), "--device", "cpu"]
    return main([*command, task, *out, *flags])


@pytest.mark.parametrize("case", SAME)
def test_the_rows_of_train_are_not_scored(case: str, task: str) -> None:
    SAME[case](Path(task).parent / "data")
    model(Path(task).parent / "model", ["bad", "good"])
    refused(lambda: evaluated(task, "--limit", "5"), BadData, "mine@test mine@train")
    assert not (Path(task).parent / "records").exists()


def test_nothing_is_trained_or_tuned_where_they_are(task: str, tmp_path: Path) -> None:
    base, expert = str(model(tmp_path / "base")), str(model(tmp_path / "e", ["bad", "good"]))
    SAME["a copy"](tmp_path / "data")
    finetune = ["finetune", "--base", base, "--task", task, "--out", tmp_path / "x"]
    merge = ["merge", expert, expert, "--base", base, "--tasks", task, "--merger=task_arithmetic"]
    for command in (finetune, [*merge, "--tune", "scale=0.5:1:0.5", "--out", tmp_path / "m"]):
        refused(command, BadData, "same rows")
    assert {path.name for path in tmp_path.iterdir()} == {"base", "e", "data", "mine.yaml"}


def test_one_file_under_two_names_is_refused(task: str, tmp_path: Path) -> None:
    for said in ("files: data/train.jsonl\nsplits: {test: train}",
                 "files: {train: data/train.jsonl, test: data/train.jsonl}"):  # fmt: skip
        Path(task).write_text(f"text: body\nlabel: mood\n{said}\n")
        refused(lambda: evaluated(task), BadData)
    SAME["a copy"](tmp_path / "data")
    jsonl(tmp_path / "data/validation.jsonl", rows(70, 90))
    jsonl(tmp_path / "data/test.jsonl", rows(70, 90))
    Path(task).write_text("text: body\nlabel: mood\nfiles: data\n")
    refused(lambda: evaluated(task), BadData, "mine@validation mine@test")


def test_a_split_in_another_case_is_scored_beside_its_own(task: str, tmp_path: Path) -> None:
    """A test of robustness: both are apart from train, whatever their case."""
    said = "text: body\nlabel: mood\nfiles: {train: data/train.jsonl, test: data/test.jsonl, "
    Path(task).write_text(f"{said}loud: data/loud.jsonl}}\n")
    jsonl(tmp_path / "data/test.jsonl", rows(70, 90))
    for of, fault in ((TRAIN, True), (rows(70, 90), False)):
        loud = [{**row, "body": row["body"].upper()} for row in of]
        jsonl(tmp_path / "data/loud.jsonl", loud)
        if fault:
            refused(lambda: evaluated(task), BadData, "mine@loud mine@train")
        else:
            assert evaluated(task) == 0


def test_train_under_another_name_is_refused_wherever_it_lies(task: str, tmp_path: Path) -> None:
    """Of a data set of the Hub nothing is fetched to see it."""
    said = f"text: body\nlabel: mood\nlabels: [bad, good]\nhub: {tmp_path / 'data'}\n"
    Path(task).write_text(f"{said}splits: {{test: train}}\n")
    refused(lambda: evaluated(task), BadData, "mine@test mine@train")
    base = str(model(tmp_path / "base"))
    command = ["finetune", "--base", base, "--task", task, "--out", tmp_path / "x"]
    refused(command, BadData, "mine@test mine@train")


def test_splits_of_the_hub_are_compared_as_well(
    task: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a folder in the Hub's place: the library reads both alike."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    said = "text: body\nlabel: mood\nlabels: [bad, good]\nsplits: [test]\n"
    Path(task).write_text(f"{said}hub: {tmp_path / 'data'}\n")
    jsonl(tmp_path / "data/test.jsonl", TRAIN[::-1])
    refused(lambda: evaluated(task), HarnessError, "mine@test mine@train")
    jsonl(tmp_path / "data/test.jsonl", [*TRAIN[:3], *rows(70, 87)])
    assert evaluated(task) == 0
    assert "3 of 20 rows" in capsys.readouterr().err


def test_texts_that_stand_in_train_too_are_counted_and_told(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cased = {**TRAIN[2], "body": TRAIN[2]["body"].upper()}
    jsonl(tmp_path / "data/test.jsonl", [*TRAIN[:2], cased, *rows(70, 87)])
    for _ in range(2):  # read back it is told again
        assert evaluated(task) == 0
        told = [line for line in capsys.readouterr().err.splitlines() if "3 of 20 rows" in line]
        assert len(told) == 1
    (file,) = (tmp_path / "records").rglob("*.json")
    assert json.loads(file.read_text())["dataset"]["shared_with_train"] == 3


def test_nothing_is_told_of_rows_of_their_own(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tenth that is held out has what is left of the same file."""
    jsonl(tmp_path / "data/test.jsonl", rows(70, 90))
    assert evaluated(task) == 0
    assert evaluated(f"{task}@heldout10") == 0
    assert "training rows" not in capsys.readouterr().err
    said = [
        json.loads(file.read_text())["dataset"] for file in (tmp_path / "records").rglob("*.json")
    ]
    assert [one["shared_with_train"] for one in said] == [0, 0]


def test_texts_that_repeat_by_nature_are_counted_alone(
    task: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    jsonl(tmp_path / "data/train.jsonl", TRAIN[:10] * 6)
    jsonl(tmp_path / "data/test.jsonl", TRAIN[:8])
    assert evaluated(task) == 0
    assert "8 of 8 rows" in capsys.readouterr().err
    base = model(tmp_path / "base")
    finetune = ["finetune", "--base", str(base), "--task", task, "--out", str(tmp_path / "x")]
    flags = [f"--{name}={value}" for name, value in FAST.items() if name != "progress"]
    assert main([*finetune, *flags, "--epochs", "1"]) == 0
