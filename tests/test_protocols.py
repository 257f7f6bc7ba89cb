"""Properties of every protocol; KNN and FT-Classifier agree with plain versions."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import faiss
import numpy as np
import pytest
import torch
from harness.protocols.ft_classifier import Taught, ft_classifier, tune, visits
from harness.protocols.knn import Vote, distances, knn

import harness
from harness import Choice, Draw, Encoded, Features, Head, Predictions, Teacher
from harness.errors import BadOption
from harness.kinds import KINDS
from harness.options import resolve
from harness.rng import rng
from harness.types import Array, Array64
from tests.mistakes import mistake

#: name -> (options, properties that this protocol breaks by design)
CASES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "current": ({}, {"blank_head", "shuffled_lessons"}),
    # what it says of a row is a number, whatever was drawn: no class
    "cosine": (
        {},
        {"relabelling", "fitting_head", "blank_head"}
        | {"shuffled_lessons", "shuffled_rows", "one_per_draw"},
    ),
    "ft-classifier": ({"learning_rate": 0.05, "epochs": 20}, {"relabelling"}),
    "knn": ({}, set()),
    "fresh-head": ({}, set()),
    "linear-probe": ({}, set()),
    "probe": ({"transform": "affine"}, set()),
    "surgery": ({"steps": 30, "learning_rate": 0.05}, {"shuffled_lessons"}),
}

Read = Callable[[Encoded], Sequence[Predictions]]
CLASSES, WIDTH, ROWS, PER_CLASS = 4, 24, 400, 12


def selections(
    groups: Sequence[Sequence[int]], shots: Sequence[int], seeds: int
) -> tuple[Draw, ...]:
    """Draws of so many rows of each group, fewer being a prefix of more."""
    found = []
    for count in shots:
        for seed in range(seeds):
            picked = [rng(seed, "toy", i).permutation(group) for i, group in enumerate(groups)]
            found.append(Draw(count, seed, tuple(tuple(map(int, g[:count])) for g in picked)))
    return tuple(found)


def softmax(logits: Array64) -> Array64:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def through(head: Head, x: Array) -> Array:
    return (x @ head.weight.T + head.bias).astype(np.float32)


def classification(noise: float = 1.0, shots: Sequence[int] = (1, 5), seeds: int = 3) -> Encoded:
    """Clusters, one per class, at distance 3 from the origin, under the head of their centres."""
    random = np.random.default_rng(7)
    centres = 3 * np.eye(CLASSES, WIDTH)
    labels = np.repeat(np.arange(CLASSES), ROWS // CLASSES)
    pool_labels = np.repeat(np.arange(CLASSES), PER_CLASS)
    x = (centres[labels] + noise * random.normal(size=(ROWS, WIDTH))).astype(np.float32)
    pool_x = centres[pool_labels] + noise * random.normal(size=(len(pool_labels), WIDTH))
    pool_x = pool_x.astype(np.float32)
    head = Head(centres.astype(np.float32), np.zeros(CLASSES, dtype=np.float32))
    groups = [np.flatnonzero(pool_labels == label).tolist() for label in range(CLASSES)]
    return Encoded(
        task="toy/classes",
        kind=KINDS["classification"],
        classes=CLASSES,
        test=Features(x, through(head, x), labels.astype(np.float64)),
        head=head,
        pool=Features(pool_x, through(head, pool_x), pool_labels.astype(np.float64)),
        draws=selections(groups, shots, seeds),
        teacher=softmax(4 * np.eye(CLASSES)[pool_labels]),
        teachers=(Teacher(pool_x, head),),
    )


def regression(shots: Sequence[int] = (1, 5), seeds: int = 3) -> Encoded:
    """Labels that are a linear function of the features, taught as they are."""
    random = np.random.default_rng(8)
    x = random.normal(size=(ROWS, WIDTH)).astype(np.float32)
    pool_x = random.normal(size=(5 * PER_CLASS, WIDTH)).astype(np.float32)
    labels, pool_labels = x.sum(axis=1) + 1.0, pool_x.sum(axis=1) + 1.0
    head = Head(
        random.normal(size=(1, WIDTH)).astype(np.float32), np.array([0.5], dtype=np.float32)
    )
    groups = np.argsort(pool_labels).reshape(5, PER_CLASS).tolist()
    return Encoded(
        task="toy/values",
        kind=KINDS["regression"],
        classes=1,
        test=Features(x, through(head, x), labels.astype(np.float64)),
        head=head,
        pool=Features(pool_x, through(head, pool_x), pool_labels.astype(np.float64)),
        draws=selections(groups, shots, seeds),
        teacher=pool_labels[:, None].astype(np.float64),
        teachers=(Teacher(pool_x, head),),
    )


def accuracies(found: Sequence[Predictions], encoded: Encoded) -> list[float]:
    return [float(np.mean(one.values == encoded.test.labels)) for one in found]


def same(first: Sequence[Predictions], second: Sequence[Predictions]) -> bool:
    return len(first) == len(second) and all(
        np.array_equal(one.values, other.values) and one.draw == other.draw
        for one, other in zip(first, second, strict=True)
    )


def with_head(encoded: Encoded, head: Head) -> Encoded:
    test = replace(encoded.test, logits=through(head, encoded.test.x))
    return replace(encoded, head=head, test=test)


def blank(encoded: Encoded) -> Encoded:
    assert encoded.head is not None
    return with_head(
        encoded, Head(np.zeros_like(encoded.head.weight), np.zeros_like(encoded.head.bias))
    )


# Properties --------------------------------------------------------------------------------------


def relabelling(read: Read) -> None:
    """Class c called order[c]: the predictions are called so too."""
    encoded, order = classification(), np.array([2, 0, 3, 1])
    back = np.argsort(order)
    head, pool, teacher = encoded.head, encoded.pool, encoded.teacher
    assert head is not None
    assert pool is not None
    assert teacher is not None
    renamed = replace(
        with_head(encoded, Head(head.weight[back], head.bias[back])),
        pool=replace(pool, labels=order[pool.labels.astype(int)].astype(float)),
        teacher=teacher[:, back],
        teachers=(Teacher(encoded.teachers[0].x, Head(head.weight[back], head.bias[back])),),
        draws=tuple(replace(d, rows=tuple(d.rows[i] for i in back)) for d in encoded.draws),
    )
    for one, other in zip(read(encoded), read(renamed), strict=True):
        assert np.array_equal(order[one.values.astype(int)], other.values)


def row_order(read: Read) -> None:
    for encoded in (classification(), regression()):
        order = np.random.default_rng(1).permutation(ROWS)
        test = encoded.test
        moved = Features(test.x[order], test.logits[order], test.labels[order])
        for one, other in zip(read(encoded), read(replace(encoded, test=moved)), strict=True):
            np.testing.assert_allclose(one.values[order], other.values, rtol=0, atol=1e-9)


def fitting_head(read: Read) -> None:
    """Separable features under the right head: perfect."""
    encoded = classification(noise=0.1)
    assert accuracies(read(encoded), encoded) == [1.0] * len(read(encoded))


def blank_head(read: Read) -> None:
    """Separable features under a head of zeros: perfect."""
    encoded = blank(classification(noise=0.1))
    assert accuracies(read(encoded), encoded) == [1.0] * len(read(encoded))


def shuffled_lessons(read: Read) -> None:
    """Rows drawn for the wrong classes and teachers of other rows, over many draws: chance."""
    encoded = blank(classification(noise=0.1, shots=(3,), seeds=100))
    assert encoded.teacher is not None
    draws = []
    for drawn in encoded.draws:
        rows = np.random.default_rng(drawn.seed).permutation(CLASSES * PER_CLASS)
        groups = rows[: CLASSES * drawn.shots].reshape(CLASSES, drawn.shots)
        draws.append(replace(drawn, rows=tuple(tuple(map(int, group)) for group in groups)))
    order = np.random.default_rng(3).permutation(len(encoded.teacher))
    (one,) = encoded.teachers
    others = Teacher(one.x[order], one.head)
    teacher = encoded.teacher[order]
    found = read(replace(encoded, draws=tuple(draws), teacher=teacher, teachers=(others,)))
    assert len(found) == len(draws)
    assert np.mean(accuracies(found, encoded)) == pytest.approx(1 / CLASSES, abs=0.1)


def shuffled_rows(read: Read) -> None:
    """Features of other rows: chance."""
    encoded = classification(noise=0.1)
    order = np.random.default_rng(2).permutation(ROWS)
    test = encoded.test
    mixed = replace(encoded, test=Features(test.x[order], test.logits[order], test.labels))
    for accuracy in accuracies(read(mixed), mixed):
        assert accuracy == pytest.approx(1 / CLASSES, abs=0.08)


def inputs_untouched(read: Read) -> None:
    for encoded in (classification(), regression()):
        before = copy.deepcopy(encoded)
        read(encoded)
        pairs = [(encoded.test, before.test), (encoded.pool, before.pool)]
        pairs += [(encoded.head, before.head), (encoded.teachers[0], before.teachers[0])]
        pairs += [(encoded.teachers[0].head, before.teachers[0].head)]
        for now, then in pairs:
            for name, value in vars(then).items():
                if name != "head":
                    assert np.array_equal(getattr(now, name), value), name
        assert np.array_equal(encoded.teacher, before.teacher)
        assert encoded.draws == before.draws


def same_again(read: Read) -> None:
    for encoded in (classification(), regression()):
        assert same(read(encoded), read(encoded))


def hidden_labels(read: Read) -> None:
    """Labels of the test rows that are not there: no matter."""
    for encoded in (classification(), regression()):
        hidden = replace(encoded.test, labels=np.full(ROWS, np.nan))
        assert same(read(encoded), read(replace(encoded, test=hidden)))


def one_per_draw(read: Read) -> None:
    """A prediction for every draw in their order, or a single one that names none."""
    for encoded in (classification(), regression()):
        found = read(encoded)
        assert tuple(one.draw for one in found) in [encoded.draws, (None,)]
        for one in found:
            assert one.values.shape == (ROWS,)
            assert one.values.dtype == np.float64
            if encoded.kind.name == "classification":
                assert set(one.values) <= set(range(CLASSES))


PROPERTIES = {
    checked.__name__: checked
    for checked in (
        relabelling,
        row_order,
        fitting_head,
        blank_head,
        shuffled_lessons,
        shuffled_rows,
        inputs_untouched,
        same_again,
        hidden_labels,
        one_per_draw,
    )
}


def test_every_protocol_has_a_line() -> None:
    assert set(CASES) == set(harness.PROTOCOLS)
    for _, broken in CASES.values():
        assert broken <= set(PROPERTIES)


@pytest.mark.parametrize("checked", PROPERTIES)
@pytest.mark.parametrize("name", CASES)
def test_protocol_keeps_the_property(name: str, checked: str) -> None:
    options, broken = CASES[name]
    function = harness.PROTOCOLS[name].function
    if checked in broken:
        with pytest.raises((AssertionError, ValueError)):
            PROPERTIES[checked](lambda encoded: function(encoded, **options))
    else:
        PROPERTIES[checked](lambda encoded: function(encoded, **options))


# Planted faults ----------------------------------------------------------------------------


def peeking(encoded: Encoded) -> list[Predictions]:
    return [Predictions(encoded.test.labels.copy(), drawn) for drawn in encoded.draws]


def first_class(encoded: Encoded) -> list[Predictions]:
    return [Predictions(np.zeros(len(encoded.test)), drawn) for drawn in encoded.draws]


def deaf(encoded: Encoded) -> list[Predictions]:
    """Reads the head, whatever was drawn; 0 on ties."""
    values = encoded.test.logits.argmax(axis=1).astype(np.float64)
    return [Predictions(values, drawn) for drawn in encoded.draws]


def favouring(encoded: Encoded) -> list[Predictions]:
    """The later classes look further away than they are."""
    assert encoded.pool is not None
    far = distances(encoded.test.x, encoded.pool.x)
    found = []
    for drawn in encoded.draws:
        by_class = [far[:, list(rows)].mean(axis=1) + i for i, rows in enumerate(drawn.rows)]
        found.append(Predictions(np.argmin(by_class, axis=0).astype(np.float64), drawn))
    return found


def centring(encoded: Encoded) -> list[Predictions]:
    """Takes the first test row off the others, in place of a mean."""
    x = encoded.test.x - 0.5 * encoded.test.x[0]
    return knn(replace(encoded, test=replace(encoded.test, x=x)))


def in_place(encoded: Encoded) -> list[Predictions]:
    encoded.test.x[:] /= 2
    return knn(encoded)


def tossing(encoded: Encoded) -> list[Predictions]:
    found = knn(encoded)
    return [replace(one, values=one.values + np.random.default_rng().random()) for one in found]


def first_draw(encoded: Encoded) -> list[Predictions]:
    return knn(encoded)[:1]


PLANTED = [
    (peeking, hidden_labels),
    (peeking, shuffled_rows),
    (peeking, shuffled_lessons),
    (first_class, fitting_head),
    (deaf, blank_head),
    (favouring, relabelling),
    (centring, row_order),
    (in_place, inputs_untouched),
    (tossing, same_again),
    (first_draw, one_per_draw),
]


@pytest.mark.fault
@pytest.mark.parametrize(("wrong", "checked"), PLANTED)
def test_properties_catch_planted_faults(wrong: Read, checked: Callable[[Read], None]) -> None:
    with pytest.raises(AssertionError):
        checked(wrong)


# Errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"learning_rate": 0.0},
        {"learning_rate": -1e-3},
        {"learning_rate": float("nan")},
        {"learning_rate": float("inf")},
        {"epochs": 0},
    ],
)
def test_ft_classifier_refuses(options: dict[str, Any]) -> None:
    choice = Choice("ft-classifier", options)
    with mistake(BadOption):
        ft_classifier(
            classification(),
            **resolve("protocol", choice, ft_classifier),
        )


# Current -----------------------------------------------------------------------------------


def test_current_takes_the_first_of_equal_logits() -> None:
    encoded = classification()
    logits = np.array([[1, 3, 3, 0], [2, 2, 2, 2], [0, 0, 1, 2]], dtype=np.float32)
    test = Features(encoded.test.x[:3], logits, np.zeros(3))
    (found,) = harness.PROTOCOLS["current"].function(replace(encoded, test=test))
    assert found.values.tolist() == [1, 0, 3]
    assert found.draw is None


# KNN ---------------------------------------------------------------------------------------


def plain_knn(encoded: Encoded) -> list[Array64]:
    """Two loops in float64."""
    pool = encoded.pool
    assert pool is not None
    found = []
    for drawn in encoded.draws:
        values = np.zeros(len(encoded.test))
        for i, z in enumerate(encoded.test.x.astype(np.float64)):
            if encoded.kind.name == "regression":
                top = bottom = 0.0
                for row in (row for rows in drawn.rows for row in rows):
                    w = 1 / (np.sqrt(((z - pool.x[row].astype(np.float64)) ** 2).sum()) + 1e-8)
                    top, bottom = top + w * pool.labels[row], bottom + w
                values[i] = top / bottom
            else:
                mean = []
                for rows in drawn.rows:
                    gaps = [z - pool.x[row].astype(np.float64) for row in rows]
                    mean.append(np.mean([np.sqrt((gap**2).sum()) for gap in gaps]))
                values[i] = int(np.argmin(mean))
        found.append(values)
    return found


def knn_of(far: Callable[[Array, Array], Array64], encoded: Encoded) -> list[Array64]:
    """KNN under another distance."""
    assert encoded.pool is not None
    table = far(encoded.test.x, encoded.pool.x)
    return [
        np.argmin([table[:, list(rows)].mean(axis=1) for rows in drawn.rows], axis=0)
        for drawn in encoded.draws
    ]


def expanded(x: Array, anchors: Array) -> Array64:
    """|x|^2 - 2 x a + |a|^2 in float32, which cancels."""
    square = (x**2).sum(1)[:, None] - 2 * x @ anchors.T + (anchors**2).sum(1)
    return np.sqrt(np.maximum(square, 0)).astype(np.float64)


def squared(x: Array, anchors: Array) -> Array64:
    return distances(x, anchors) ** 2


def centroids(encoded: Encoded) -> list[Array64]:
    assert encoded.pool is not None
    found = []
    for drawn in encoded.draws:
        centres = np.stack([encoded.pool.x[list(rows)].mean(axis=0) for rows in drawn.rows])
        found.append(distances(encoded.test.x, centres).argmin(axis=1).astype(np.float64))
    return found


def votes(encoded: Encoded) -> list[Array64]:
    """The class of the single nearest anchor."""
    assert encoded.pool is not None
    far = distances(encoded.test.x, encoded.pool.x)
    found = []
    for drawn in encoded.draws:
        nearest = [far[:, list(rows)].min(axis=1) for rows in drawn.rows]
        found.append(np.argmin(nearest, axis=0).astype(np.float64))
    return found


def scattered(offset: float = 0.0, width: int = WIDTH) -> Encoded:
    """Overlapping classes of unlike spread on a grid that float32 holds under any offset here."""
    random = np.random.default_rng(11)
    labels, pool_labels = np.arange(90) % 3, np.arange(36) % 3

    def grid(labels: np.ndarray[Any, Any]) -> Array:
        x = random.normal(size=(len(labels), width)) * (1 + labels[:, None]) + labels[:, None]
        return (offset + np.round(x * 256) / 1024).astype(np.float32)

    groups = [np.flatnonzero(pool_labels == label).tolist() for label in range(3)]
    test, pool = grid(labels), grid(pool_labels)
    logits = np.zeros((90, 3), dtype=np.float32)
    return Encoded(
        task="toy/scattered",
        kind=KINDS["classification"],
        classes=3,
        test=Features(test, logits, labels.astype(np.float64)),
        head=None,
        pool=Features(pool, logits[:36], pool_labels.astype(np.float64)),
        draws=selections(groups, (1, 4, 12), 2),
        teacher=None,
    )


@pytest.mark.parametrize("width", [1, 2, 4, 8, 12, 16, 33])
@pytest.mark.parametrize("offset", [0.0, 4096.0])
def test_knn_agrees_with_two_loops(offset: float, width: int) -> None:
    encoded = scattered(offset, width)
    for one, expected in zip(knn(encoded), plain_knn(encoded), strict=True):
        assert np.array_equal(one.values, expected)


def test_knn_regression_agrees_with_two_loops() -> None:
    encoded = regression()
    for one, expected in zip(knn(encoded), plain_knn(encoded), strict=True):
        np.testing.assert_allclose(one.values, expected, rtol=1e-5, atol=1e-5)


def test_the_loops_tell_knn_from_its_neighbours() -> None:
    near, far = scattered(), scattered(offset=4096.0)
    for wrong, expected in [
        (knn_of(squared, near), plain_knn(near)),
        (centroids(near), plain_knn(near)),
        (votes(near), plain_knn(near)),
        (knn_of(expanded, far), plain_knn(far)),
    ]:
        assert any((a != b).any() for a, b in zip(wrong, expected, strict=True))


def test_one_shot_is_the_nearest_anchor() -> None:
    encoded = replace(scattered(), draws=tuple(d for d in scattered().draws if d.shots == 1))
    for one, nearest in zip(knn(encoded), votes(encoded), strict=True):
        assert np.array_equal(one.values, nearest)


def plain_vote(encoded: Encoded, k: int) -> list[Array64]:
    """The class of most of the k nearest, a row at a time; of as many, that of the nearest."""
    pool, found = encoded.pool, []
    assert pool is not None
    for drawn in encoded.draws:
        values = np.zeros(len(encoded.test))
        for i, z in enumerate(encoded.test.x.astype(np.float64)):
            far = [
                (float(np.sqrt(((z - pool.x[row]) ** 2).sum())), label, row)
                for label, rows in enumerate(drawn.rows)
                for row in rows
            ]
            nearest = sorted(far)[:k]
            if encoded.kind.name == "regression":
                values[i] = np.mean([pool.labels[row] for _, _, row in nearest])
                continue
            counts = Counter(label for _, label, _ in nearest)
            best = [label for _, label, _ in nearest if counts[label] == max(counts.values())]
            values[i] = best[0]
        found.append(values)
    return found


def plain_centroid(encoded: Encoded) -> list[Array64]:
    """The class, or the mean label of the bin, with the nearest mean of anchors."""
    pool, found = encoded.pool, []
    assert pool is not None
    for drawn in encoded.draws:
        centres = [pool.x[list(rows)].astype(np.float64).mean(axis=0) for rows in drawn.rows]
        nearest = [
            int(np.argmin([((z - centre) ** 2).sum() for centre in centres]))
            for z in encoded.test.x.astype(np.float64)
        ]
        means = [pool.labels[list(rows)].mean() for rows in drawn.rows]
        regression = encoded.kind.name == "regression"
        found.append(np.array([means[n] if regression else n for n in nearest], dtype=float))
    return found


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.parametrize("make", [scattered, regression])
def test_a_vote_agrees_with_plain_loops(make: Callable[..., Encoded], k: int) -> None:
    encoded = make()
    for one, expected in zip(
        knn(encoded, rule="vote", neighbours=k), plain_vote(encoded, k), strict=True
    ):
        np.testing.assert_allclose(one.values, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("make", [scattered, regression])
def test_centroids_agree_with_plain_loops(make: Callable[..., Encoded]) -> None:
    encoded = make()
    for one, expected in zip(knn(encoded, rule="centroid"), plain_centroid(encoded), strict=True):
        np.testing.assert_allclose(one.values, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("rule", ["mean", "vote", "centroid"])
def test_rules_decide_class_by_class(rule: Any) -> None:
    """Of several labels, each has the two groups of those that have it, and have it not."""
    encoded = scattered()
    assert encoded.pool is not None
    has = [np.flatnonzero(encoded.pool.labels == label).tolist() for label in range(3)]
    pairs = [(has[0], has[1]), (has[2], has[0]), ([], has[1]), ([], [])]
    many = replace(
        encoded,
        kind=KINDS["multilabel"],
        draws=(Draw(12, 0, tuple(tuple(group) for both in pairs for group in both)),),
    )
    (found,) = knn(many, rule=rule)
    assert found.values.shape == (90, 4)
    for place, both in enumerate(pairs[:3]):
        alone = replace(encoded, draws=(Draw(12, 0, tuple(map(tuple, both))),))
        (one,) = knn(alone, rule=rule)
        assert found.values[:, place].tolist() == (1 - one.values).tolist()
    assert set(found.values[:, 2]) == {0.0}
    assert set(found.values[:, 3]) == {0.0}, "nothing is drawn of it"


def test_rules_by_hand() -> None:
    """A point at 0 with anchors of one class at 1 and 9, of another at 2 and 3."""
    x = np.zeros((1, 1), dtype=np.float32)
    anchors = np.array([[1], [9], [2], [3]], dtype=np.float32)
    pool = Features(anchors, np.zeros((4, 2), dtype=np.float32), np.array([1.0, 2.0, 3.0, 5.0]))
    test = Features(x, np.zeros((1, 2), dtype=np.float32), np.zeros(1))
    for kind, expected in (
        # means 5 and 2.5; two of three nearest; one of two each, 1 the nearer; centres 5 and 2.5
        ("classification", {"mean": 1, "vote": 1, "pair": 0, "centroid": 1}),
        # 3 nearest: (1 + 3 + 5) / 3; 2 nearest: (1 + 3) / 2; the bin at 2.5 has a mean of 4
        ("regression", {"vote": 3, "pair": 2, "centroid": 4}),
    ):
        draws = (Draw(2, 0, ((0, 1), (2, 3))),)
        encoded = Encoded("toy", KINDS[kind], 2, test, None, pool, draws, None)
        asked: dict[str, dict[str, Any]] = {
            "mean": {},
            "vote": {"rule": "vote", "neighbours": 3},
            "pair": {"rule": "vote", "neighbours": 2},
            "centroid": {"rule": "centroid"},
        }
        for name, value in expected.items():
            assert knn(encoded, **asked[name])[0].values[0] == pytest.approx(value), (kind, name)


@pytest.mark.parametrize("rule", ["mean", "vote", "centroid"])
def test_rows_are_read_some_at_a_time(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all rows as anchors there are more distances than can be held."""
    encoded = scattered()
    whole = knn(encoded, rule=rule)
    monkeypatch.setattr("harness.protocols.knn.PAIRS", 100)
    monkeypatch.setattr("harness.protocols.knn.BATCH", 7)
    assert same(knn(encoded, rule=rule), whole)


def small(anchors: list[list[float]], rows: tuple[tuple[int, ...], ...], at: float) -> float:
    """The class of one point under a few anchors."""
    x = np.array([[at, 0]], dtype=np.float32)
    pool = Features(
        np.array(anchors, dtype=np.float32),
        np.zeros((len(anchors), 1), dtype=np.float32),
        np.arange(len(anchors), dtype=np.float64),
    )
    none = np.zeros((1, len(rows)), dtype=np.float32)
    test = Features(x, none, np.zeros(1))
    draws = (Draw(1, 0, rows),)
    encoded = Encoded("toy", KINDS["classification"], len(rows), test, None, pool, draws, None)
    return float(knn(encoded)[0].values[0])


def test_knn_by_hand() -> None:
    assert small([[3, 4], [-2, 0]], ((0,), (1,)), at=0) == 1  # distances 5 and 2
    assert small([[1, 0], [9, 0], [4, 0]], ((0, 1), (2,)), at=0) == 1  # means 5 and 4
    assert small([[3, 4], [-5, 0]], ((0,), (1,)), at=0) == 0  # 5 and 5: the lowest
    assert small([[3, 4], [-5, 0]], ((1,), (0,)), at=0) == 0
    assert small([[0, 0], [0, 0], [0, 0]], ((0,), (1, 2)), at=0) == 0  # duplicates of the point
    assert small([[1, 0], [0, 0], [0, 0]], ((0,), (1, 2)), at=0) == 1
    assert small([[7, 7], [8, 8]], ((0, 1),), at=0) == 0  # one class


def test_a_class_without_anchors_is_never_predicted() -> None:
    assert small([[3, 4], [-2, 0]], ((), (0,), (1,)), at=0) == 2


def test_regression_on_an_anchor_is_its_label() -> None:
    encoded = regression(shots=(5,), seeds=1)
    assert encoded.pool is not None
    anchor = encoded.draws[0].rows[0][0]
    test = replace(encoded.test, x=encoded.pool.x[[anchor]])
    value = knn(replace(encoded, test=test))[0].values[0]
    assert value == pytest.approx(encoded.pool.labels[anchor], abs=1e-5)


def test_knn_regression_by_hand() -> None:
    """Labels 1 and 4 at distances 1 and 2: (1/1 + 4/2) / (1/1 + 1/2) = 2."""
    x = np.zeros((1, 1), dtype=np.float32)
    pool = Features(np.array([[1], [-2]], dtype=np.float32), x, np.array([1.0, 4.0]))
    draws = (Draw(1, 0, ((0,), (1,))),)
    encoded = Encoded(
        "toy", KINDS["regression"], 1, Features(x, x, np.zeros(1)), None, pool, draws, None
    )
    assert knn(encoded)[0].values[0] == pytest.approx(2, abs=1e-7)


def test_distances_leave_faiss_as_it_was() -> None:
    before = faiss.cvar.distance_compute_blas_threshold
    distances(np.zeros((2, 3), dtype=np.float32), np.ones((2, 3), dtype=np.float32))
    assert faiss.cvar.distance_compute_blas_threshold == before


# FT-Classifier -----------------------------------------------------------------------------


def plain_tune(encoded: Encoded, drawn: Draw, learning_rate: float, epochs: int) -> Array64:
    """One draw, one row at a time, by autograd and torch's Adam; bias last."""
    head, pool, teacher = encoded.head, encoded.pool, encoded.teacher
    assert head is not None
    assert pool is not None
    assert teacher is not None
    layer = torch.nn.Linear(head.weight.shape[1], len(head.weight), dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(head.weight))
        layer.bias.copy_(torch.from_numpy(head.bias))
    adam = torch.optim.Adam(layer.parameters(), lr=learning_rate)
    x, target = torch.from_numpy(pool.x).double(), torch.from_numpy(teacher)
    rows = [row for group in drawn.rows for row in group]
    for epoch in range(epochs):
        for place in rng(drawn.seed, "ftc", encoded.task, epoch).permutation(len(rows)):
            row = rows[place]
            outputs = layer(x[row : row + 1])
            wanted = target[row : row + 1]
            if encoded.kind.name == "classification":
                logs = outputs.log_softmax(1)
                loss = torch.nn.functional.kl_div(logs, wanted, reduction="batchmean")
            else:
                loss = torch.nn.functional.mse_loss(outputs, wanted)
            adam.zero_grad()
            loss.backward()
            adam.step()
    return np.column_stack([layer.weight.detach().numpy(), layer.bias.detach().numpy()])


def tuned(encoded: Encoded, learning_rate: float, epochs: int) -> Array64:
    """The heads of all draws at once."""
    head, pool, teacher = encoded.head, encoded.pool, encoded.teacher
    assert head is not None
    assert pool is not None
    assert teacher is not None
    x = np.column_stack([pool.x, np.ones(len(pool))]).astype(np.float64)
    orders = [visits(encoded.task, drawn, epochs) for drawn in encoded.draws]
    return tune(head, Taught(x, teacher, np.ones(len(x))), orders, encoded.kind, learning_rate)


def read_off(head: Array64, encoded: Encoded) -> Array64:
    outputs = encoded.test.x.astype(np.float64) @ head[:, :-1].T + head[:, -1]
    return outputs.argmax(axis=1) if encoded.kind.name == "classification" else outputs[:, 0]


@pytest.mark.parametrize("make", [classification, regression])
def test_ft_classifier_agrees_with_autograd(make: Callable[..., Encoded]) -> None:
    encoded = make(shots=(2, 1, 5), seeds=2)
    heads = tuned(encoded, 5e-3, 4)
    found = ft_classifier(encoded, learning_rate=5e-3, epochs=4)
    for drawn, head, one in zip(encoded.draws, heads, found, strict=True):
        expected = plain_tune(encoded, drawn, 5e-3, 4)
        np.testing.assert_allclose(head, expected, rtol=0, atol=1e-9)
        np.testing.assert_allclose(one.values, read_off(expected, encoded), rtol=0, atol=1e-9)


def test_draws_are_tuned_apart() -> None:
    """Together or alone, a draw gives the same head."""
    encoded = classification(shots=(5, 1), seeds=2)
    together = ft_classifier(encoded, learning_rate=0.05)
    for drawn, one in zip(encoded.draws, together, strict=True):
        alone = ft_classifier(replace(encoded, draws=(drawn,)), learning_rate=0.05)
        assert same([one], alone)


@pytest.mark.parametrize("padded", [1, 3, 7])
def test_steps_are_padded_some_at_a_time(padded: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws of unlike length, and examples of unlike length."""
    encoded = classification(shots=(5, 1, 2), seeds=2)
    examples = ((0, 1, 2), (3,), (4, 5))
    draws = tuple(replace(one, examples=examples[: one.shots]) for one in encoded.draws)
    encoded = replace(encoded, draws=draws)
    whole = tuned(encoded, 5e-3, 3)
    monkeypatch.setattr("harness.protocols.ft_classifier.PADDED", padded)
    np.testing.assert_allclose(tuned(encoded, 5e-3, 3), whole, rtol=0, atol=1e-12)


def test_saturated_logits_stay_finite() -> None:
    encoded = classification(shots=(2,), seeds=1)
    assert encoded.head is not None
    certain = replace(
        with_head(encoded, Head(1e4 * encoded.head.weight, encoded.head.bias)),
        teacher=np.eye(CLASSES)[::-1].repeat(PER_CLASS, axis=0),
    )
    head = tuned(certain, 5e-3, 2)[0]
    assert np.isfinite(head).all()
    np.testing.assert_allclose(head, plain_tune(certain, certain.draws[0], 5e-3, 2), atol=1e-9)


@pytest.mark.parametrize("make", [classification, regression])
def test_an_expert_taught_by_itself_stays(make: Callable[..., Encoded]) -> None:
    encoded = make()
    weight, bias = (part.astype(np.float64) for part in vars(encoded.head).values())
    outputs = encoded.pool.x.astype(np.float64) @ weight.T + bias
    taught = replace(encoded, teacher=encoded.kind.target([outputs]))
    for head in tuned(taught, 5e-4, 5):
        np.testing.assert_allclose(head, np.column_stack([weight, bias]), rtol=0, atol=1e-6)
    (current,) = harness.PROTOCOLS["current"].function(taught)
    for one in ft_classifier(taught):
        np.testing.assert_allclose(one.values, current.values, rtol=0, atol=1e-5)


def test_the_head_and_teacher_name_the_classes() -> None:
    """With the drawn rows in one order, renamed outputs rename the predictions."""
    encoded, back = classification(), np.array([2, 0, 3, 1])
    assert encoded.head is not None
    assert encoded.teacher is not None
    head = Head(encoded.head.weight[back], encoded.head.bias[back])
    renamed = replace(with_head(encoded, head), teacher=encoded.teacher[:, back])
    for one, other in zip(ft_classifier(encoded), ft_classifier(renamed), strict=True):
        assert np.array_equal(one.values, back[other.values.astype(int)])


@pytest.mark.parametrize("make", [classification, regression])
def test_ft_classifier_reads_no_labels(make: Callable[..., Encoded]) -> None:
    encoded = make()
    mixed = np.random.default_rng(0).permutation(encoded.pool.labels)
    other = replace(encoded, pool=replace(encoded.pool, labels=mixed))
    assert same(ft_classifier(encoded), ft_classifier(other))


def test_teachers_are_averaged_after_the_softmax() -> None:
    logits = [np.array([[0.0, np.log(3.0)]]), np.array([[1000.0, -1000.0]])]
    taught = KINDS["classification"].target(logits)
    np.testing.assert_allclose(taught, [[0.625, 0.375]], rtol=0, atol=1e-12)
    values = [np.array([[1.0]]), np.array([[4.0]])]
    np.testing.assert_allclose(KINDS["regression"].target(values), [[2.5]])


def test_the_same_neighbours_predict_the_same_number_in_whatever_order_they_are_near() -> None:
    """Else rounding alone ranks the rows: with five anchors and five neighbours all are equal."""
    labels = np.array([0.1, 0.7, 0.3, 0.9, -1.62])
    far = np.array(list(permutations(range(5))), dtype=float)
    values = Vote(far, 5).value([[0, 1], [2, 3, 4]], labels)
    assert len({*values.tolist()}) == 1
    assert values[0] == pytest.approx(labels.mean())
