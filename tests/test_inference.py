"""Statistics of scores: formulas against the libraries', cases by hand, and what is promised."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom, binomtest, bootstrap, norm

from harness import METRICS, Task, metric
from harness.data.metrics import score
from harness.evaluation import bootstrap as resampling
from harness.evaluation import inference
from harness.evaluation.bootstrap import resampled
from harness.evaluation.counting import OneByOne, Read, counted, draws_of
from harness.evaluation.estimates import Estimate, bootstrap_p, detectable, estimate, holm, minus
from harness.evaluation.inference import (
    Interval,
    PairedTest,
    mcnemar,
    paired_test,
    permutation,
    wilson,
)
from harness.evaluation.inference import (
    interval as interval_of,
)
from harness.evaluation.predictions import Predicted
from harness.kinds import IGNORED
from harness.types import Array64, KindName

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


def random_read(kind: KindName, name: str, seed: int = 0, rows: int = 40) -> Read:
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
    return Read(task(kind, name, labels=labels), guess, true, units)


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
    values = counted(name, read).under(counts)
    assert values == pytest.approx(OneByOne(name, read).under(counts), abs=1e-12, nan_ok=True)
    whole = counted(name, read).under(np.ones((1, len(read.units))))
    expected = score(read.task, read.predicted, read.labels, read.units).value
    assert whole == pytest.approx([expected], abs=1e-12)
    assert len({*values.round(6)}) > 5


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_what_is_not_there_counts_as_the_metric_says(kind: KindName, name: str) -> None:
    """Constant predictions, and constant labels."""
    read = random_read(kind, name)
    for field in ("predicted", "labels"):
        flat = replace(read, **{field: np.zeros_like(read.labels)})
        counts = some_counts(len(read.units))
        expected = OneByOne(name, flat).under(counts)
        assert counted(name, flat).under(counts) == pytest.approx(expected, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("labels", [TAGS, ("O", "I-A", "I-B"), ("O", "B-A", "I-A", "E-A", "S-A")])
def test_entities_are_those_of_seqeval_in_every_scheme(labels: tuple[str, ...], seed: int) -> None:
    read = random_read("tagging", "span_f1", seed)
    odd = np.random.default_rng(seed).integers(len(labels), size=(2, len(read.labels)))
    read = replace(read, task=replace(read.task, labels=labels), predicted=odd[0], labels=odd[1])
    half = np.random.default_rng(seed).random(len(read.labels)) < 0.5
    read = replace(read, predicted=np.where(half, read.labels, read.predicted))
    counts = some_counts(len(read.units))
    expected = OneByOne("span_f1", read).under(counts)
    assert counted("span_f1", read).under(counts) == pytest.approx(expected, abs=1e-12, nan_ok=True)


def test_large_values_that_hardly_vary_keep_their_digits() -> None:
    read = random_read("regression", "pearson")
    counts = some_counts(len(read.units))
    far = replace(read, predicted=1e8 + read.predicted)
    expected = counted("pearson", read).under(counts)
    assert counted("pearson", far).under(counts) == pytest.approx(expected, abs=1e-6, nan_ok=True)


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
    assert len(resampled(made, None)) == resampling.SLOW


# Intervals ------------------------------------------------------------------------------------


def interval(made: Predicted, shots: int | None) -> Interval:
    return interval_of(made, shots, resampled(made, shots))


def predicted_of(*reads: Read, shots: int | None = None, digest: str = "rows") -> Predicted:
    """One prediction, or as many draws with so many shots."""
    keys = [(shots, None if shots is None else seed) for seed in range(len(reads))]
    first = reads[0]
    values = {key: read.predicted for key, read in zip(keys, reads, strict=True)}
    return Predicted(first.task, digest, first.units, first.labels, values)


def test_the_accuracy_of_one_prediction_has_wilsons_interval() -> None:
    """8 of 10 right, z = 1.96: from 0.490 to 0.943."""
    labels = np.zeros(10)
    guess = labels + (np.arange(10) < 2)
    read = Read(task("classification", "accuracy"), guess, labels, np.ones(10, dtype=np.int64))
    found = interval(predicted_of(read), None)
    assert (found.low, found.high) == (
        pytest.approx(0.4902, abs=1e-4),
        pytest.approx(0.9433, abs=1e-4),
    )
    assert (found.method, found.level, found.shots) == ("wilson", 0.95, None)
    assert (found.low, found.high) == wilson(8, 10)


def test_rows_that_are_not_scored_are_of_no_interval() -> None:
    labels = np.zeros(10)
    guess = labels + (np.arange(10) < 2)
    read = Read(task("classification", "accuracy"), guess, labels, np.ones(10, dtype=np.int64))
    made = replace(predicted_of(read), left_out={0: (0, 9), 1: (5,)})
    found = interval(made, None)
    assert (found.low, found.high) == wilson(7, 8)
    drawn = replace(predicted_of(read, read, shots=2), left_out={0: (0, 1), 1: (0, 1)})
    assert interval(drawn, 2).low == interval(drawn, 2).high == 1


def test_an_interval_for_every_number_of_shots_is_of_the_mean_over_draws() -> None:
    few = [random_read("classification", "accuracy", seed, 200) for seed in (0, 1)]
    reads = [replace(one, labels=few[0].labels) for one in few]
    one, two = (predicted_of(*reads, shots=shots) for shots in (1, 5))
    both = replace(one, values={**one.values, **two.values})
    found = [interval(both, shots) for shots in both.shots]
    assert [(i.shots, i.method) for i in found] == [(1, "bootstrap"), (5, "bootstrap")]
    assert (found[0].low, found[0].high) == (found[1].low, found[1].high)
    middle = np.mean([(read.predicted == read.labels).mean() for read in reads])
    assert found[0].low < middle < found[0].high
    # a row is right by 0, 1/2 or 1, so the plain interval of a mean holds
    right = np.mean([read.predicted == read.labels for read in reads], axis=0)
    half = norm.ppf(0.975) * right.std() / len(right) ** 0.5
    assert found[0].high - found[0].low == pytest.approx(2 * half, rel=0.1)


def test_the_bootstrap_is_scipys() -> None:
    read = random_read("classification", "f1", rows=150)
    found = interval(predicted_of(read), None)

    def f1(guess: Array64, true: Array64) -> float:
        return METRICS["f1"].function(guess, true)

    known = bootstrap(
        (read.predicted, read.labels),
        f1,
        paired=True,
        vectorized=False,
        n_resamples=300,
        method="percentile",
        rng=np.random.default_rng(0),
    ).confidence_interval
    assert (found.low, found.high) == pytest.approx((known.low, known.high), abs=0.02)


def test_the_same_rows_are_drawn_for_every_model_and_however_many_are_held() -> None:
    read = random_read("classification", "accuracy", rows=50)
    once = resampled(predicted_of(read), None)
    assert np.array_equal(once, resampled(predicted_of(read), None))
    wrong = replace(read, predicted=read.labels + 1)
    none = resampled(predicted_of(wrong), None)
    assert not none.any()
    assert not np.array_equal(once, resampled(predicted_of(read, digest="others"), None))


def test_blocks_are_counted_like_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    read = random_read("regression", "spearman", rows=30)
    made = predicted_of(read)
    values = resampled(made, None)
    assert len(values) == resampling.resamples_of(30, ("spearman",)) == 20_000
    assert len({*values.round(12)}) > 19_000, "no block is drawn twice"


SIMULATED = 400


def covered(
    made: Callable[[np.random.Generator], Sequence[Read]], truth: float, shots: int | None = None
) -> float:
    """How often the interval holds the value of the population."""
    held = 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resampling, "resamples_of", lambda *_: 1000)  # enough for a share
        for seed in range(SIMULATED):
            reads = made(np.random.default_rng(seed))
            found = interval(predicted_of(*reads, shots=shots), shots)
            held += found.low <= truth <= found.high
    return held / SIMULATED


def units(rows: int) -> Any:
    return np.ones(rows, dtype=np.int64)


def binary(
    random: np.random.Generator, name: str, rows: int = 250, right: tuple[float, float] = (0.9, 0.7)
) -> Read:
    """0.6 of the rows are of class 0, which is found in 0.9; class 1 in 0.7."""
    labels = (random.random(rows) < 0.4).astype(float)
    hit = random.random(rows) < np.where(labels == 1, right[1], right[0])
    names = ("no", "yes")
    known = task("classification", name, labels=names)
    return Read(known, np.where(hit, labels, 1 - labels), labels, units(rows))


def pair(random: np.random.Generator, name: str, rows: int = 250) -> Read:
    """Bivariate normal, correlation 0.7."""
    x, noise = random.normal(size=(2, rows))
    y = 0.7 * x + 0.51**0.5 * noise
    return Read(task("regression", name), x, y, units(rows))


def several(random: np.random.Generator, rows: int = 250) -> Read:
    """Three classes that hold in 0.3 of the rows; each is predicted right in 0.8."""
    labels = (random.random((rows, 3)) < 0.3).astype(float)
    wrong = random.random((rows, 3)) < 0.2
    return Read(
        task("multilabel", "macro_f1"), np.where(wrong, 1 - labels, labels), labels, units(rows)
    )


def sentences(random: np.random.Generator, rows: int = 200) -> Read:
    """Five one-word mentions in each sentence, most of them found in easy ones, few in hard."""
    labels = np.tile([1.0, 3.0, 1.0, 3.0, 1.0], rows)
    found = random.random(5 * rows) < np.repeat(np.where(random.random(rows) < 0.5, 0.95, 0.35), 5)
    guess = np.where(found, labels, 0)
    return Read(task("tagging", "span_f1"), guess, labels, np.full(rows, 5))


TP, FP, FN, TN = 0.28, 0.06, 0.12, 0.54
F1 = 2 * TP / (2 * TP + FP + FN)
MATTHEWS = (TP * TN - FP * FN) / ((TP + FP) * (TP + FN) * (TN + FP) * (TN + FN)) ** 0.5
POPULATIONS: dict[str, tuple[Callable[[np.random.Generator], Read], float]] = {
    "accuracy": (lambda random: binary(random, "accuracy"), TP + TN),
    "f1": (lambda random: binary(random, "f1"), F1),
    "macro f1": (lambda random: binary(random, "macro_f1"), (F1 + 2 * TN / (2 * TN + FP + FN)) / 2),
    "matthews": (lambda random: binary(random, "matthews"), MATTHEWS),
    "pearson": (lambda random: pair(random, "pearson"), 0.7),
    "spearman": (lambda random: pair(random, "spearman", 100), 6 / np.pi * np.arcsin(0.35)),
    "multilabel": (several, 2 * 0.24 / (2 * 0.24 + 0.14 + 0.06)),
    "tagging": (sentences, 2 * 0.65 / 1.65),
}


@pytest.mark.parametrize("name", POPULATIONS)
def test_intervals_cover_what_they_say(name: str) -> None:
    """95 of 100 hold the value of the population that the rows are of."""
    made, truth = POPULATIONS[name]
    assert 0.93 <= covered(lambda random: [made(random)], truth) <= 0.97


@pytest.mark.parametrize(("rows", "share"), [(100, 0.9), (277, 0.55), (2000, 0.97)])
def test_wilsons_interval_covers_what_it_says(rows: int, share: float) -> None:
    """Over every number of right rows that there may be."""
    counts = range(rows + 1)
    chance = binom.pmf(counts, rows, share)
    held = [
        low <= share <= high
        for low, high in (
            wilson(k, rows) if p > 1e-5 else (1, 0) for k, p in zip(counts, chance, strict=True)
        )
    ]
    assert 0.93 <= chance[held].sum() <= 0.97


def test_intervals_of_a_mean_over_draws_cover_what_they_say() -> None:
    """Draws are held: rows that are hard for one are hard for the others."""

    def drawn(random: np.random.Generator) -> list[Read]:
        labels = np.zeros(250)
        hard = random.random(250) < 0.3
        guesses = [random.random(250) < np.where(hard, 0.8, 0.05) for _ in range(3)]
        known = task("classification", "accuracy")
        return [Read(known, guess.astype(float), labels, units(250)) for guess in guesses]

    assert 0.93 <= covered(drawn, 1 - 0.3 * 0.8 - 0.7 * 0.05, shots=5) <= 0.97


# Two models -----------------------------------------------------------------------------------


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx((0.03, 0.06, 0.06))
    assert holm([0.5, 0.9]) == (1.0, 1.0)
    assert holm([0.02]) == (0.02,)
    assert holm([]) == ()


def test_holm_rejects_step_by_step() -> None:
    """The smallest against a / n, the next against a / (n - 1), until one is not rejected."""
    random = np.random.default_rng(0)
    for _ in range(50):
        values = random.random(6) ** 3
        left, rejected = sorted(values), set()
        while left and left[0] <= 0.05 / len(left):
            rejected.add(left.pop(0))
        assert {v for v, p in zip(values, holm(values), strict=True) if p <= 0.05} == rejected


@pytest.mark.parametrize(("first", "second", "p"), [(1, 5, 0.21875), (0, 6, 0.03125), (3, 3, 1)])
def test_mcnemar_by_hand(first: int, second: int, p: float) -> None:
    assert mcnemar(first, second) == mcnemar(second, first) == pytest.approx(p)
    assert mcnemar(first, second) == pytest.approx(binomtest(first, first + second).pvalue)


def test_no_row_that_differs_is_no_difference() -> None:
    assert mcnemar(0, 0) == 1
    for kind, name in CASES:
        made = predicted_of(random_read(kind, name))
        assert compared(made, made, None).p == 1


def answers(right: Sequence[Sequence[int]], name: str = "accuracy", **given: Any) -> Predicted:
    """Predictions of class 1 or 0 that are right where it says so; the rows are of both classes."""
    labels = np.arange(len(right[0])) % 2
    return predicted_of(
        *[
            Read(
                task("classification", name, labels=("no", "yes")),
                np.where(np.asarray(one) == 1, labels, 1 - labels).astype(float),
                labels.astype(float),
                units(len(labels)),
            )
            for one in right
        ],
        **given,
    )


def compared(first: Predicted, second: Predicted, shots: int | None) -> PairedTest:
    """The test of two predictions, whatever their scores on each draw: one of both."""
    return paired_test(first, second, shots, difference(first, second, shots))


def difference(first: Predicted, second: Predicted, shots: int | None) -> Estimate:
    """That of the scores, on resampled rows and on each draw."""

    def known(one: Predicted) -> Estimate:
        each = [replace(one, values={key: one.values[key]}) for key in one.draws(shots)]
        values = [draws_of(part, shots).under(np.ones((1, len(one.units))))[0] for part in each]
        return estimate(values, resampled(one, shots))

    return minus(known(first), known(second))


FEW = [1, 1, 1, 0, 1, 1, 1, 1], [1, 0, 1, 1, 0, 0, 1, 0]


def test_the_accuracy_of_one_prediction_is_tested_by_mcnemar() -> None:
    first, second = (answers([one]) for one in FEW)
    found = compared(first, second, None)
    assert (found.name, found.p) == ("McNemar", pytest.approx(mcnemar(4, 1)))
    # on so few rows every exchange is tried: the same test
    assert permutation(*(draws_of(one, None) for one in (first, second)), "") == found.p
    left = [replace(one, left_out={0: (4, 5)}) for one in (first, second)]
    assert compared(*left, None).p == mcnemar(2, 1)


def test_exchanged_rows_are_read_anew() -> None:
    """Against a loop over all exchanges of six rows, of two draws each."""
    other = [0, 1, 1, 1, 1, 1], [1, 0, 0, 1, 0, 1]
    draws = [(one[:6], two) for one, two in zip(FEW, other, strict=True)]
    first, second = (answers(both, "f1", shots=5) for both in draws)

    def value(guesses: Sequence[Array64]) -> float:
        each = [2 * (one * first.labels).sum() / (one + first.labels).sum() for one in guesses]
        return float(np.mean(each))

    a, b = ([*one.values.values()] for one in (first, second))
    differences = []
    for theirs in product([False, True], repeat=6):
        swapped = [
            (np.where(theirs, y, x), np.where(theirs, x, y)) for x, y in zip(a, b, strict=True)
        ]
        one, two = zip(*swapped, strict=True)
        differences.append(value(one) - value(two))
    seen = value(a) - value(b)
    tails = [np.mean(np.array(differences) * sign >= seen * sign - 1e-9) for sign in (1, -1)]
    found = permutation(*(draws_of(one, 5) for one in (first, second)), "")
    assert found == pytest.approx(min(1, 2 * min(tails)))


def test_correlations_are_bootstrapped_and_several_draws_are_tested_with_their_spread() -> None:
    one, two = (predicted_of(random_read("regression", "pearson", seed)) for seed in (0, 1))
    assert compared(one, replace(two, labels=one.labels), None).name == "bootstrap"
    first, second = answers([*FEW], shots=5), answers([FEW[0]], shots=5)
    assert compared(first, second, 5).name == "draws"
    assert compared(first, first, 5).p == 1


def test_a_bootstrap_p_is_twice_the_smaller_tail() -> None:
    assert bootstrap_p(np.arange(-7, 93) + 0.5) == pytest.approx(2 * 8 / 101)
    assert bootstrap_p(np.ones(99)) == pytest.approx(2 / 100)
    assert bootstrap_p(np.zeros(99)) == 1


def test_a_tail_that_is_empty_is_that_of_a_normal() -> None:
    """So that it can be small enough for Holm over many pairs."""
    far = np.random.default_rng(0).normal(5, 1, size=1000)
    assert bootstrap_p(far) == bootstrap_p(-far) == pytest.approx(2 * norm.sf(5), rel=0.5)
    some = np.concatenate([np.full(997, 1.0), [-30.0, -40.0, -50.0]])
    assert bootstrap_p(some) == 2 * 6 / 1001, "no less certain than a count of five"


def rejected(made: Callable[[np.random.Generator], float], times: int) -> float:
    """How often a p-value is below 0.05."""
    return float(np.mean([made(np.random.default_rng(seed)) < 0.05 for seed in range(times)]))


def two_alike(random: np.random.Generator, name: str) -> tuple[Predicted, Predicted]:
    """Two models of the same worth on the same rows: both find what is easy."""
    base = pair(random, name, 120) if name in ("pearson", "spearman") else binary(random, name, 120)
    noise = random.normal(size=(2, 120))
    if base.task.kind == "regression":
        both = [base.labels + 0.7 * one for one in noise]
    else:
        both = [np.where(one > 1.2, 1 - base.predicted, base.predicted) for one in noise]
    first, second = (predicted_of(replace(base, predicted=one)) for one in both)
    return first, second


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("accuracy", 0.005, 0.06),  # exact, so on the safe side
        ("f1", 0.02, 0.08),
        ("matthews", 0.02, 0.08),
        ("pearson", 0.02, 0.08),
    ],
)
def test_models_of_the_same_worth_are_told_apart_by_chance_alone(
    name: str, low: float, high: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inference, "PERMUTATIONS", 200)
    share = rejected(lambda random: compared(*two_alike(random, name), None).p, 250)
    assert low <= share <= high


def test_a_difference_that_rows_can_show_is_shown_in_four_of_five() -> None:
    """The second model is worse by what is said to be the smallest that 400 rows show."""
    random = np.random.default_rng(0)
    sizes, shown = [], 0
    for _ in range(250):
        a = random.random(400) < 0.8
        b = np.where(random.random(400) < 0.107, random.random(400) < 0.5, a)
        first, second = answers([a.astype(int)]), answers([b.astype(int)])
        found = difference(first, second, None)
        sizes.append(detectable(found))
        shown += bootstrap_p(found.rows) < 0.05
    # the difference is 0.107 x (0.8 - 0.5) = 0.032, its error (0.107 / 2 - 0.032^2)^0.5 / 20
    assert np.mean(sizes) == pytest.approx(0.032, rel=0.1)
    assert 0.74 <= shown / 250 <= 0.86
