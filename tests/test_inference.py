"""Statistics of scores: formulas against the libraries', cases by hand, and what is promised."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binomtest

from harness import METRICS, Task, metric
from harness.data.metrics import score
from harness.evaluation import bootstrap as resampling
from harness.evaluation.bootstrap import intervals, kept_resamples, resampled_draws
from harness.evaluation.counting import (
    PredictedRows,
    metric_on_counts,
    one_by_one,
    scored,
    spearman_on_counts,
)
from harness.evaluation.predictions import Predicted
from harness.evaluation.records import DrawScore, Interval
from harness.evaluation.resamples import estimates_of, range_of
from harness.kinds import IGNORED
from harness.stats.estimate import Estimate
from harness.types import Array64, KindName, Shots

TAGS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
LABELS: dict[KindName, tuple[str, ...]] = {
    "classification": ("a", "b", "c"),
    "regression": (),
    "multilabel": ("a", "b", "c"),
    "tagging": TAGS,
}


def task(kind: KindName, *metrics: str, labels: tuple[str, ...] | None = None) -> Task:
    names = LABELS[kind] if labels is None else labels
    return Task("toy/toy", kind, ("text",), "label", names, metrics, {"test": "test"}, "test")


def random_read(kind: KindName, name: str, seed: int = 0, rows: int = 40) -> PredictedRows:
    """Predictions that are right more often than not, of any kind."""
    random = np.random.default_rng(seed)
    labels = ("no", "yes") if name == "f1" else LABELS[kind]
    units = np.ones(rows, dtype=np.int64)
    if kind == "tagging":
        units = random.integers(0, 7, size=rows)
    count, classes = int(units.sum()), len(labels)
    if kind == "regression":
        true = random.normal(size=count).round(1)
        guess = np.where(random.random(count) < 0.5, random.normal(size=count), true).round(2)
    else:
        shape = (count, classes) if kind == "multilabel" else (count,)
        most = 2 if kind == "multilabel" else classes
        true, other = (random.integers(most, size=shape).astype(float) for _ in range(2))
        guess = np.where(random.random(shape) < 0.4, other, true)
    if name == "span_f1_strict":  # of IOB2 alone: no entity begins with I-
        true = np.where((true > 0) & (true % 2 == 0), true - 1, true)
    if kind == "multilabel":
        true[random.random(true.shape) < 0.2] = IGNORED
        true[:, -1] = np.where(true[:, -1] == 1, 0, true[:, -1])  # a class that holds for no row
    return PredictedRows(task(kind, name, labels=labels), guess, true, units)


CASES = [(kind, name) for name, entry in METRICS.items() for kind in entry.kinds]


def some_counts(rows: int, resamples: int = 25) -> Array64:
    random = np.random.default_rng(1)
    drawn = random.integers(rows, size=(resamples, rows))
    counts = np.stack([np.bincount(one, minlength=rows) for one in drawn]).astype(float)
    counts[0] = np.eye(rows)[0]  # one row alone
    return counts


# Counting -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_metric_of_counts_is_that_of_the_repeated_rows(kind: KindName, name: str) -> None:
    """Of scikit-learn, scipy and seqeval, to the last digits, on every resample."""
    read = random_read(kind, name)
    counts = some_counts(len(read.units))
    values = metric_on_counts(name, read)(counts)
    assert values == pytest.approx(one_by_one(name, read, counts), abs=1e-12, nan_ok=True)
    whole = metric_on_counts(name, read)(np.ones((1, len(read.units))))
    expected = score(read.task, read.predicted, read.labels, read.units).value
    assert whole == pytest.approx([expected], abs=1e-12)
    assert len({*values.round(6)}) > 5


def test_ranks_are_of_their_own_labels_and_counts() -> None:
    """Whichever were asked for last, and whatever the scale of what is ranked."""
    first, second = (random_read("regression", "spearman", seed) for seed in (0, 1))
    both = [some_counts(40), some_counts(40)[::-1].copy()]
    for read, counts in [(r, c) for r in (first, second, first) for c in (*both, both[0])]:
        expected = one_by_one("spearman", read, counts)
        for guess in (read.predicted, np.exp(3 * read.predicted)):
            found = spearman_on_counts(replace(read, predicted=guess), counts)
            assert found == pytest.approx(expected, abs=1e-12, nan_ok=True)
            against = spearman_on_counts(replace(read, predicted=-guess), counts)
            assert against == pytest.approx(-expected, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_what_is_not_there_counts_as_the_metric_says(kind: KindName, name: str) -> None:
    """Constant predictions, and constant labels."""
    read = random_read(kind, name)
    for field in ("predicted", "labels"):
        flat = replace(read, **{field: np.zeros_like(read.labels)})
        counts = some_counts(len(read.units))
        expected = one_by_one(name, flat, counts)
        assert metric_on_counts(name, flat)(counts) == pytest.approx(
            expected, abs=1e-12, nan_ok=True
        )


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("labels", [TAGS, ("O", "I-A", "I-B"), ("O", "B-A", "I-A", "E-A", "S-A")])
def test_entities_are_those_of_seqeval_in_every_scheme(labels: tuple[str, ...], seed: int) -> None:
    read = random_read("tagging", "span_f1", seed)
    odd = np.random.default_rng(seed).integers(len(labels), size=(2, len(read.labels)))
    read = replace(read, task=replace(read.task, labels=labels), predicted=odd[0], labels=odd[1])
    half = np.random.default_rng(seed).random(len(read.labels)) < 0.5
    read = replace(read, predicted=np.where(half, read.labels, read.predicted))
    counts = some_counts(len(read.units))
    expected = one_by_one("span_f1", read, counts)
    assert metric_on_counts("span_f1", read)(counts) == pytest.approx(
        expected, abs=1e-12, nan_ok=True
    )


def test_large_values_that_hardly_vary_keep_their_digits() -> None:
    read = random_read("regression", "pearson")
    counts = some_counts(len(read.units))
    far = replace(read, predicted=1e8 + read.predicted)
    expected = metric_on_counts("pearson", read)(counts)
    assert metric_on_counts("pearson", far)(counts) == pytest.approx(
        expected, abs=1e-6, nan_ok=True
    )


def test_every_shipped_metric_has_a_range() -> None:
    """So that a score of 97.3 is refused, and an interval ends within it."""
    assert {name: range_of([name]) for name in METRICS} == {
        name: (-1.0 if name in ("matthews", "pearson", "spearman") else 0.0, 1.0)
        for name in METRICS
    }
    assert range_of(["odd_rows"]) == (-1e6, 1e6)


def odd_rows(predicted: Array64, labels: Array64) -> float:
    """A metric of one's own that is no sum."""
    return float((predicted == labels)[1::2].mean())


@pytest.mark.usefixtures("as_found")
def test_a_metric_of_ones_own_has_an_interval_too() -> None:
    metric("odd_rows", kinds=("classification",))(odd_rows)
    read = random_read("classification", "accuracy", rows=60)
    made = predicted_of(replace(read, task=task("classification", "odd_rows")))
    found = interval(made, None)
    assert found.low < odd_rows(read.predicted, read.labels) < found.high
    assert len(resampled_draws(made, None)[0]) == resampling.SLOW_RESAMPLES


# Intervals ------------------------------------------------------------------------------------


def estimates(made: Predicted) -> dict[Shots | None, Estimate]:
    """As a record keeps them."""
    scores = []
    for shots in made.shots:
        for key in made.draws(shots):
            value = scored(made, key)
            scores.append(DrawScore(value=value, parts={"x": value}, shots=shots, seed=key[1]))
    return estimates_of(kept_resamples(made, scores), scores, made.task.metrics)


def interval(made: Predicted, shots: int | None) -> Interval:
    found = intervals(made.task.metrics, estimates(made))
    return next(one for one in found if one.shots == shots)


def predicted_of(
    *reads: PredictedRows, shots: int | None = None, digest: str = "rows"
) -> Predicted:
    """One prediction, or as many draws with so many shots."""
    keys = [(shots, None if shots is None else seed) for seed in range(len(reads))]
    first = reads[0]
    values = {key: read.predicted for key, read in zip(keys, reads, strict=True)}
    return Predicted(first.task, digest, first.units, first.labels, values)


def test_the_accuracy_of_one_prediction_has_wilsons_interval() -> None:
    """Of 300 rows of which 270 are right, by scipy."""
    labels = np.zeros(300)
    read = PredictedRows(
        task("classification", "accuracy"), labels + (np.arange(300) < 30), labels, ONES
    )
    found = interval(predicted_of(read), None)
    known = binomtest(270, 300).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((known.low, known.high), abs=2e-3)
    assert (found.method, found.level, found.shots) == ("student", 0.95, None)


ONES = np.ones(300, dtype=np.int64)


def test_rows_that_are_not_scored_are_of_no_interval() -> None:
    labels = np.zeros(300)
    read = PredictedRows(
        task("classification", "accuracy"), labels + (np.arange(300) < 30), labels, ONES
    )
    made = replace(predicted_of(read), left_out={0: tuple(range(30))})
    assert interval(made, None).high == 1


def test_an_interval_is_over_rows_and_draws() -> None:
    """Three draws of 80, 82 and 78 points: an error of 1.15 points, times a t of 4.3."""
    labels = np.zeros(300)
    reads = [
        PredictedRows(
            task("classification", "accuracy"), labels + (np.arange(300) < wrong), labels, ONES
        )
        for wrong in (60, 54, 66)
    ]
    found = interval(predicted_of(*reads, shots=5), 5)
    assert found.high - found.low > 2 * np.hypot(4.303 * 0.0115, 1.8 * 0.0231) * 0.95


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_every_metric_has_an_interval_near_that_of_the_percentiles(
    kind: KindName, name: str
) -> None:
    made = predicted_of(random_read(kind, name, rows=300))
    found, sample = interval(made, None), resampled_draws(made, None)
    low, high = np.percentile(sample, [2.5, 97.5])
    width = high - low
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.12 * width)


def test_the_same_rows_are_drawn_for_every_model_and_however_many_are_held() -> None:
    read = random_read("classification", "accuracy", rows=50)
    once = resampled_draws(predicted_of(read), None)
    assert np.array_equal(once, resampled_draws(predicted_of(read), None))
    wrong = replace(read, predicted=read.labels + 1)
    none = resampled_draws(predicted_of(wrong), None)
    assert not none.any()
    assert not np.array_equal(once, resampled_draws(predicted_of(read, digest="others"), None))


def test_blocks_are_counted_like_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    read = random_read("regression", "spearman", rows=30)
    made = predicted_of(read)
    values = resampled_draws(made, None)[0]
    assert len(values) == resampling.resample_count(30, ("spearman",)) == 20_000
    assert len({*values.round(12)}) > 19_000, "no block is drawn twice"
