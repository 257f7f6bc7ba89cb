"""Metrics by hand, against scikit-learn and scipy, and as a module of `evaluate`."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sklearn

import harness
from harness import Task
from harness.data.metrics import check_metrics, evaluation_module, score
from harness.errors import BadData, BrokenPlugin, UnknownName
from tests.conftest import registries_kept
from tests.mistakes import mistake

#: name -> (predicted, labels, worked by hand)
BY_HAND: dict[str, tuple[Sequence[float], Sequence[float], float]] = {
    "accuracy": ((0, 1, 2, 2), (0, 1, 1, 2), 3 / 4),
    # two of three predicted and two of three true: precision and recall are both 2/3
    "f1": ((1, 1, 1, 0, 0), (1, 1, 0, 1, 0), 2 / 3),
    # by class 4/5, 1/2, and 0 for the third, which is predicted and never true
    "macro_f1": ((0, 0, 1, 1, 2), (0, 0, 0, 1, 1), 13 / 30),
    # three right, and two wrong that are each missed once and predicted falsely once
    "micro_f1": ((0, 0, 1, 1, 2), (0, 0, 0, 1, 1), 3 / 5),
    # (2 * 1 - 1 * 1) / sqrt(3 * 3 * 2 * 2)
    "matthews": ((1, 1, 1, 0, 0), (1, 1, 0, 1, 0), 1 / 6),
    # deviations (-1, 0, 1) and (-2, -1, 3): 5 / sqrt(2 * 14)
    "pearson": ((1, 2, 3), (1, 2, 6), 5 / 28**0.5),
    # ranks (1, 2, 3, 4) and (1, 3, 2, 4): 1 - 6 * 2 / (4 * 15)
    "spearman": ((1, 2, 3, 40), (-9, 5, 0, 6), 0.8),
}

DIRECT: dict[str, Callable[[Any, Any], float]] = {
    "accuracy": lambda predicted, labels: sklearn.accuracy_score(labels, predicted),
    "f1": lambda predicted, labels: sklearn.f1_score(labels, predicted),
    "macro_f1": lambda predicted, labels: sklearn.f1_score(labels, predicted, average="macro"),
    "micro_f1": lambda predicted, labels: sklearn.f1_score(labels, predicted, average="micro"),
    "matthews": lambda predicted, labels: sklearn.matthews_corrcoef(labels, predicted),
    "pearson": lambda predicted, labels: stats.pearsonr(predicted, labels)[0],
    "spearman": lambda predicted, labels: stats.spearmanr(predicted, labels)[0],
}
CORRELATIONS = ["pearson", "spearman"]


def measure(name: str, predicted: Sequence[float], labels: Sequence[float]) -> float:
    return harness.METRICS[name].function(
        np.array(predicted, dtype=np.float64), np.array(labels, dtype=np.float64)
    )


def rows(name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Predictions that are right, or near, about two times in three."""
    numbers = np.random.default_rng(seed)
    if name in CORRELATIONS:
        labels = numbers.integers(0, 26, 50) / 5
        return labels + numbers.normal(size=50), labels
    labels = numbers.integers(0, 2 if name == "f1" else 3, 50).astype(np.float64)
    return np.where(numbers.random(50) < 2 / 3, labels, labels[::-1]), labels


def task(*metrics: str) -> Task:
    return Task(
        name="toy",
        kind="classification",
        text=("text",),
        label="label",
        labels=("no", "yes"),
        metrics=metrics,
        splits={"test": "test"},
        reported="test",
    )


def test_every_metric_has_a_line() -> None:
    assert (
        set(BY_HAND)
        == set(DIRECT)
        == {name for name, one in harness.METRICS.items() if one.kinds != ("tagging",)}
    )


@pytest.mark.parametrize("name", BY_HAND)
def test_by_hand(name: str) -> None:
    predicted, labels, expected = BY_HAND[name]
    found = measure(name, predicted, labels)
    assert type(found) is float
    assert found == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", DIRECT)
def test_agrees_with_a_direct_call(name: str, seed: int) -> None:
    predicted, labels = rows(name, seed)
    assert measure(name, predicted, labels) == pytest.approx(
        DIRECT[name](predicted, labels), abs=1e-12
    )


@pytest.mark.parametrize("name", DIRECT)
def test_perfect_predictions_give_one(name: str) -> None:
    _, labels = rows(name, 0)
    assert measure(name, labels, labels) == pytest.approx(1)


@pytest.mark.parametrize("name", DIRECT)
def test_order_of_rows_does_not_matter(name: str) -> None:
    predicted, labels = rows(name, 1)
    turned = np.random.default_rng(0).permutation(len(labels))
    assert measure(name, predicted[turned], labels[turned]) == pytest.approx(
        measure(name, predicted, labels)
    )


@pytest.mark.parametrize("name", ["matthews", *CORRELATIONS])
@pytest.mark.parametrize(
    ("predicted", "labels"),
    [
        ((1, 1, 1, 1), (0, 1, 0, 1)),
        ((0, 1, 0, 1), (1, 1, 1, 1)),
        ((1, 1, 1, 1), (1, 1, 1, 1)),
        ((0, 0, 0, 0), (1, 1, 1, 1)),
        ((1,), (1,)),
        ((2, 2, 2), (0, 1, 2)),
    ],
)
def test_a_constant_side_gives_zero(
    name: str, predicted: Sequence[float], labels: Sequence[float]
) -> None:
    assert measure(name, predicted, labels) == 0


@pytest.mark.parametrize("name", CORRELATIONS)
def test_a_constant_whose_mean_rounds_gives_zero(name: str) -> None:
    assert np.std([0.1] * 3) > 0
    assert measure(name, [0.1] * 3, [0, 1, 2]) == 0


@pytest.mark.parametrize("name", CORRELATIONS)
def test_nearly_constant_predictions_give_a_number(name: str) -> None:
    predicted = 1 + np.array([0, 1, 2]) * 2.0**-52
    assert -1 <= measure(name, predicted, [0, 1, 2]) <= 1


@pytest.mark.parametrize(
    ("predicted", "labels", "expected"),
    [
        ((0, 0, 0), (0, 1, 1), 0.0),
        ((1, 1, 1), (0, 0, 0), 0.0),
        ((0, 0, 0), (0, 0, 0), 0.0),
        ((1, 1, 1), (1, 1, 1), 1.0),
        ((1, 1, 1), (0, 1, 0), 0.5),
    ],
)
def test_f1_where_a_class_is_missing(
    predicted: Sequence[float], labels: Sequence[float], expected: float
) -> None:
    assert measure("f1", predicted, labels) == pytest.approx(expected)


def test_f1_is_of_the_second_class() -> None:
    predicted, labels, expected = (1, 0, 0, 0), (1, 1, 0, 0), 2 / 3
    assert measure("f1", predicted, labels) == pytest.approx(expected)
    assert measure("f1", [1 - p for p in predicted], [1 - y for y in labels]) == pytest.approx(0.8)


def test_score_is_the_plain_mean_of_its_parts() -> None:
    predicted, labels, _ = BY_HAND["f1"]
    found = score(task("accuracy", "f1"), np.array(predicted), np.array(labels))
    assert found.parts == pytest.approx({"accuracy": 3 / 5, "f1": 2 / 3})
    assert list(found.parts) == ["accuracy", "f1"]
    assert found.value == pytest.approx((3 / 5 + 2 / 3) / 2)
    assert found.rows == 5


SEVEN = tuple("abcdefg")
#: what a task has -> what is said of it
UNFIT: dict[str, tuple[dict[str, Any], Sequence[str]]] = {
    "no such metric": ({"metrics": ("acuracy",)}, ["did you mean 'accuracy'"]),
    "of classes": (
        {"kind": "regression", "labels": (), "metrics": ("pearson", "accuracy")},
        ["'toy' is a regression task, not one for accuracy", "expected pearson, spearman"],
    ),
    "of values": (
        {"metrics": ("accuracy", "pearson")},
        ["'toy' is a classification task, not one for pearson"],
    ),
    "of two classes": (
        {"labels": SEVEN, "metrics": ("accuracy", "f1")},
        ["'toy' has 7 classes, f1 is for 2; use macro_f1 or micro_f1"],
    ),
}


@pytest.mark.parametrize("case", UNFIT)
def test_metrics_that_do_not_fit_a_task(case: str) -> None:
    changes, said = UNFIT[case]
    with pytest.raises((BadData, UnknownName)) as caught:
        check_metrics(replace(task("accuracy"), **changes))
    assert all(part in str(caught.value) for part in said), caught.value
    assert "\n" not in str(caught.value)


def test_a_metric_of_another_number_of_classes_names_those_that_fit() -> None:
    three = harness.METRICS["accuracy"].function
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(harness.METRICS, "_values", dict(harness.METRICS))
        entry = replace(harness.METRICS["accuracy"], name="odd", function=three, classes=3)
        patch.setitem(harness.METRICS._values, "odd", entry)
        check_metrics(replace(task("odd"), labels=("a", "b", "c")))
        with mistake(BadData, "2 odd 3 accuracy, f1"):
            check_metrics(task("odd"))


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (lambda predicted, labels: 5.0, "own 5 1"),
        (lambda predicted, labels: 100 * float(np.mean(predicted == labels)), "own 100 1"),
        (lambda predicted, labels: 2 * float(np.sum(predicted != labels)), "own 4 1"),
        (lambda predicted, labels: 1 - 9 * float(np.mean(predicted != labels)), None),
    ],
    ids=["constant", "points", "errors", "below -1"],
)
def test_a_score_of_a_plug_in_is_1_at_most(value: Callable[..., float], said: str | None) -> None:
    """Tables print it times 100."""
    labels, wrong = np.array([0.0, 0, 1, 1]), np.array([1.0, 1, 1, 1])
    with registries_kept():
        harness.metric("own", kinds=("classification",))(value)
        if said is None:
            assert score(task("own"), wrong, labels).value == -3.5
            return
        with mistake(BrokenPlugin, said):
            score(task("own"), wrong, labels)


def test_metrics_that_fit() -> None:
    check_metrics(replace(task("accuracy", "macro_f1", "micro_f1", "matthews"), labels=SEVEN))
    check_metrics(task("accuracy", "f1"))
    check_metrics(replace(task("pearson", "spearman"), kind="regression", labels=()))


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No name can be looked up and no connection opened; `evaluate` writes to a fresh folder."""
    import evaluate

    def refuse(*args: object, **kwargs: object) -> NoReturn:
        raise AssertionError(f"the network was asked for {args}")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(evaluate.config, "HF_METRICS_CACHE", str(tmp_path))


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(
    "metrics",
    [("accuracy",), ("accuracy", "f1"), ("matthews",), ("pearson", "spearman")],
    ids="+".join,
)
def test_evaluation_module_agrees_with_score(metrics: tuple[str, ...]) -> None:
    name = "f1" if "f1" in metrics else metrics[0]
    predicted, labels = rows(name, 2)
    expected = score(task(*metrics), predicted, labels)
    module = evaluation_module(task(*metrics))
    for given in ((predicted, labels), (predicted.tolist(), labels.tolist())):
        found = module.compute(predictions=given[0], references=given[1])
        assert found == {**expected.parts, "score": expected.value}
