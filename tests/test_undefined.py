"""Rows that leave nothing to score are refused in one line, before anything is read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import harness
from harness import Recipe, Row, Run, Task
from harness.cli import main
from harness.data.metrics import score
from harness.data.rows import load_rows
from harness.data.shots import left_out
from harness.errors import BadData, BrokenPlugin
from harness.evaluation.bootstrap import resampled_draws
from harness.evaluation.predictions import Predicted
from harness.passes import features
from tests.conftest import model
from tests.toys import MOODS, TAGS, TOY, VALUE, registered

Change = Callable[[dict[str, Any]], dict[str, Any]]

#: what is wrong -> (task, metrics, what is changed in each row, what is said)
NOTHING: Mapping[str, tuple[Task, tuple[str, ...], dict[str, Any], str]] = {
    "no entity": (TAGS, ("span_f1",), {"ner_tags": "O"}, "has no entity in 24 rows"),
    "nobody said": (MOODS, ("macro_f1",), {"moods": [-100] * 3}, "labelled with any class"),
    "none holds": (MOODS, ("macro_f1",), {"moods": [0, 0, -100]}, "labelled with any class"),
    "no positive": (TOY, ("accuracy", "f1"), {"label": 0}, "no row of its second class in 12"),
    "one class": (TOY, ("matthews",), {"label": 1}, "one and the same label everywhere"),
    "one value": (VALUE, ("pearson",), {"score": 0.5}, "one and the same label .* so pearson is"),
    "one rank": (VALUE, ("spearman",), {"score": -1}, "one and the same label .* so spearman is"),
}


def with_test_rows(task: Task, metrics: tuple[str, ...], change: Mapping[str, Any]) -> Task:
    """The task with something in every row of its test split."""

    def rows(split: str) -> Sequence[Row]:
        assert task.generate is not None
        made = [dict(row) for row in task.generate(split)]
        for row in made if split == "test" else ():
            row |= change
            if "ner_tags" in change:
                row["ner_tags"] = ["O"] * len(row["tokens"])
        return made

    return replace(task, metrics=metrics, generate=rows)


def expert(folder: Path, task: Task, **config: Any) -> Path:
    unit: Any = "word" if task.kind == "tagging" else "row"
    more = {"problem_type": "multi_label_classification"} if task.kind == "multilabel" else {}
    made = model(folder, list(task.labels), unit=unit, **more, **config)
    (made / "expert.json").write_text(json.dumps({"tasks": [task.name]}))
    return made


def refused(folder: Path, task: Task, said: str, **values: Any) -> None:
    """No forward pass, no record."""
    values.setdefault("protocols", (harness.parse_choice("current"),))
    run = Run(model=str(folder), output=str(folder.parent / "out"), **values)
    with registered(task), pytest.MonkeyPatch.context() as patch:
        patch.setattr(features, "one_pass", lambda *_, **__: pytest.fail("a row was read"))
        with pytest.raises((BadData, BrokenPlugin)) as found:
            harness.evaluate(run)
    assert str(found.value).count("\n") == 0
    assert re.search(said, str(found.value)), found.value
    assert not (folder.parent / "out").exists()


@pytest.mark.parametrize("case", NOTHING)
def test_a_test_set_with_nothing_to_score_is_refused(case: str, tmp_path: Path) -> None:
    task, metrics, change, said = NOTHING[case]
    refused(expert(tmp_path / "m", task), with_test_rows(task, metrics, change), said)


@pytest.mark.parametrize(
    "values", [{"limit": 1}, {"limit": 1, "metrics": ("accuracy", "matthews")}]
)
def test_a_limit_that_leaves_nothing_is_refused(values: dict[str, Any], tmp_path: Path) -> None:
    """Also a correlation of one row."""
    task = TOY if "metrics" in values else VALUE
    refused(expert(tmp_path / "m", task), task, "in the one row that is scored", **values)


def test_rows_that_are_left_out_are_not_scored(tmp_path: Path) -> None:
    """The only positive row of 130 is left over by the batches of 128 of some seed."""

    def rows(split: str) -> Sequence[Row]:
        count = 130 if split == "test" else 40
        return [
            {"first": "word1 word2", "second": f"word{i % 9}", "label": int(i == 0)}
            if split == "test"
            else {"first": "word1", "second": f"word{i % 9}", "label": i % 2}
            for i in range(count)
        ]

    task = replace(TOY, metrics=("f1",), generate=rows)
    folder = expert(tmp_path / "m", task, max_position_embeddings=256)
    out = left_out(load_rows(task, "test"), 128, range(500))
    seed = next(seed for seed, rows in out.items() if 0 in rows)
    values = {"preset": "ft-classifier", "seed": seed, "draws": 1, "shots": (1,)}
    tuned = (harness.parse_choice("knn"),)
    refused(folder, task, "no row of its second class in 128 rows", protocols=tuned, **values)


def test_rows_to_tune_on_with_nothing_to_score_are_refused(tmp_path: Path) -> None:
    task = replace(TOY, metrics=("f1",), generate=lambda split: [
        {**row, "label": 0} for row in TOY.generate(split)  # type: ignore[misc]
    ])  # fmt: skip
    folders = [expert(tmp_path / name, task) for name in "ab"]
    said = r"toy/pairs@heldout10 has no row of its second class in 4 rows"
    with registered(task), pytest.raises(BadData, match=said):
        harness.merge(
            Recipe(
                experts=tuple(map(str, folders)),
                merger=harness.parse_choice("soup"),
            ),
            out=tmp_path / "merged",
        )
    assert not (tmp_path / "merged").exists()


def test_held_out_rows_with_nothing_to_score_have_no_score(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training loses nothing by it: it is said, and expert.json has no plausible number."""
    task = replace(TOY, metrics=("f1",), generate=lambda split: [
        {**row, "label": 0} for row in TOY.generate(split)  # type: ignore[misc]
    ])  # fmt: skip
    base = model(tmp_path / "base")
    command = ["finetune", "--base", str(base), "--task", task.name, "--epochs", "1"]
    with registered(task):
        assert main([*command, "--max-length", "24", "--out", str(tmp_path / "expert")]) == 0
    assert "toy/pairs@heldout10" in capsys.readouterr().out
    told = json.loads((tmp_path / "expert" / "expert.json").read_text())
    assert told["scores"] == {}


def test_a_metric_of_a_plug_in_that_has_no_value_is_refused(tmp_path: Path, as_found: None) -> None:
    """One that says nothing of labels is asked for the score of the right ones."""

    @harness.metric("mine", kinds=("classification",))
    def mine(predicted: Any, labels: Any) -> float:
        return float(np.float64((labels == 1).sum()) / (labels == 1).sum())

    task = with_test_rows(TOY, ("mine",), {"label": 0})
    refused(expert(tmp_path / "m", task), task, "even right predictions have no score")


def test_a_metric_in_percent_is_refused_before_a_model_is_run(
    tmp_path: Path, as_found: None
) -> None:
    @harness.metric("mine", kinds=("classification",))
    def mine(predicted: Any, labels: Any) -> float:
        return float(100 * (predicted == labels).mean())

    task = replace(TOY, metrics=("mine",))
    refused(expert(tmp_path / "m", task), task, "metric mine returned 100, expected at most 1")


# What is no fault of the rows ------------------------------------------------------------------


@pytest.mark.parametrize("name", ["matthews", "pearson", "spearman", "f1", "span_f1", "macro_f1"])
def test_a_prediction_at_fault_scores_0(name: str) -> None:
    kind = {"span_f1": TAGS, "pearson": VALUE, "spearman": VALUE, "macro_f1": MOODS}.get(name, TOY)
    task = replace(kind, metrics=(name,))
    labels = np.array([0.0, 1, 2, 0, 1]) if kind is TAGS else np.array([0.0, 1, 1, 0, 1])
    if kind is MOODS:
        labels = np.stack([labels, labels, labels], axis=1)
    units = np.array([2, 3]) if kind is TAGS else None
    assert score(task, np.zeros_like(labels), labels, units).value == 0


@pytest.mark.parametrize("name", ["matthews", "pearson", "spearman", "f1", "span_f1", "macro_f1"])
def test_resamples_without_anything_to_score_are_drawn_again(name: str) -> None:
    """One row of ten is all there is to score: a third of resamples have not got it.

    Of right predictions all others score 1, so that the interval is [1, 1], not [0, 1].
    """
    kind = {"span_f1": TAGS, "pearson": VALUE, "spearman": VALUE, "macro_f1": MOODS}.get(name, TOY)
    task = replace(kind, metrics=(name,))
    labels = np.eye(10)[3]
    if kind is MOODS:
        labels = np.stack([labels, 0 * labels, labels - 100], axis=1)
    units = np.ones(10, dtype=np.int64)
    predicted = Predicted(task, "digest", units, labels, {(None, None): labels})
    samples = resampled_draws(predicted, None)[0]
    assert len(samples) in (200, 20_000)
    np.testing.assert_allclose(samples, 1)
    wrong = Predicted(task, "digest", units, labels, {(None, None): 0 * labels})
    assert not resampled_draws(wrong, None).any()
