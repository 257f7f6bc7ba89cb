"""Probe, Surgery and the linear probe, against plain versions in float64."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from harness.protocols import linear_probe as linear_probe_module
from harness.protocols import probe as probe_module
from harness.protocols import surgery as surgery_module
from harness.protocols.linear_probe import fresh_head, linear_probe
from harness.protocols.probe import CLOSED, ProbeMap, probe
from harness.protocols.surgery import corrected, gradients, surgery
from scipy.linalg import orthogonal_procrustes, pinv
from scipy.optimize import minimize, minimize_scalar
from scipy.special import logsumexp
from scipy.stats import ortho_group

from harness import Draw, Encoded, Features, Head, Teacher
from harness.errors import BadData, IncompatibleWeights
from harness.kinds import KINDS
from harness.rng import rng
from harness.types import Array64
from tests.faults import Plant, around
from tests.mistakes import mistake

Pair: TypeAlias = tuple[Array64, Array64]
WIDTH = 6


def pair(rows: int, width: int = WIDTH, seed: int = 0) -> Pair:
    """Features of two models that have something, and not all, to do with one another."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(rows, width)) + 0.2
    turn = ortho_group.rvs(width, random_state=seed)
    return x, 1.5 * x @ turn + 0.5 * random.normal(size=(rows, width)) - 2


# Closed forms ------------------------------------------------------------------------------


def plain_affine(x: Array64, y: Array64) -> ProbeMap:
    both = pinv(np.column_stack([x, np.ones(len(x))])) @ y
    return ProbeMap(both[:-1], both[-1])


def plain_linear(x: Array64, y: Array64) -> ProbeMap:
    return ProbeMap(pinv(x) @ y, np.zeros(len(y.T)))


def plain_orthogonal(x: Array64, y: Array64) -> ProbeMap:
    return ProbeMap(orthogonal_procrustes(x, y)[0], np.zeros(len(y.T)))


def plain_euclidean(x: Array64, y: Array64) -> ProbeMap:
    turn, _ = orthogonal_procrustes(x - x.mean(0), y - y.mean(0))
    return ProbeMap(turn, y.mean(0) - x.mean(0) @ turn)


def plain_similarity(x: Array64, y: Array64) -> ProbeMap:
    turn, size = orthogonal_procrustes(x - x.mean(0), y - y.mean(0))
    a = size / ((x - x.mean(0)) ** 2).sum() * turn
    return ProbeMap(a, y.mean(0) - x.mean(0) @ a)


def plain_scaling(x: Array64, y: Array64) -> ProbeMap:
    best = minimize_scalar(lambda s: ((s * x - y) ** 2).sum(), tol=1e-12)
    return ProbeMap(best.x * np.eye(len(x.T)), np.zeros(len(y.T)))


PLAIN: dict[str, Callable[[Array64, Array64], ProbeMap]] = {
    "affine": plain_affine,
    "linear": plain_linear,
    "invertible": plain_linear,
    "euclidean": plain_euclidean,
    "orthogonal": plain_orthogonal,
    "scaling": plain_scaling,
    "similarity": plain_similarity,
}


def test_every_transform_has_a_plain_version() -> None:
    assert set(PLAIN) == set(CLOSED)


@pytest.mark.parametrize("transform", CLOSED)
def test_closed_forms_agree_with_scipy(transform: str) -> None:
    x, y = pair(40)
    made, expected = CLOSED[transform](x, y), PLAIN[transform](x, y)
    np.testing.assert_allclose(made.a, expected.a, rtol=0, atol=1e-8)
    np.testing.assert_allclose(made.c, expected.c, rtol=0, atol=1e-8)


@pytest.mark.parametrize("transform", ["affine", "linear"])
def test_with_few_rows_the_least_of_all_solutions(transform: str) -> None:
    """They fit any rows."""
    x, y = pair(4)
    made, expected = CLOSED[transform](x, y), PLAIN[transform](x, y)
    np.testing.assert_allclose(made.a, expected.a, rtol=0, atol=1e-10)
    assert made.facts(x, y)["fit_error"] < 1e-20


@pytest.mark.parametrize("rows", [1, 2, 4])
@pytest.mark.parametrize("transform", ["orthogonal", "euclidean"])
def test_what_few_rows_leave_open_stays(transform: str, rows: int) -> None:
    """The limit of the turn that is drawn to the identity ever more weakly."""
    x, y = pair(rows, seed=rows)
    made = CLOSED[transform](x, y)
    if transform == "euclidean":
        x, y = x - x.mean(0), y - y.mean(0)
    left, _, right = np.linalg.svd(x.T @ y + 1e-7 * np.eye(WIDTH))
    np.testing.assert_allclose(made.a, left @ right, rtol=0, atol=1e-6)
    np.testing.assert_allclose(made.a.T @ made.a, np.eye(WIDTH), rtol=0, atol=1e-12)


def test_an_invertible_map_has_an_inverse() -> None:
    x, y = pair(4)
    values = np.linalg.svd(CLOSED["invertible"](x, y).a, compute_uv=False)
    assert values[-1] / values[0] == pytest.approx(1e-8, rel=1e-4)
    assert np.linalg.svd(CLOSED["linear"](x, y).a, compute_uv=False)[-1] < 1e-12


def test_transforms_by_hand() -> None:
    """(1, 0) and (0, 1) of the model are (0, 2) and (-2, 0) of the expert."""
    x, y = np.eye(2), np.array([[0.0, 2.0], [-2.0, 0.0]])
    by_hand = {
        "orthogonal": ([[0, 1], [-1, 0]], [0, 0]),
        "linear": ([[0, 2], [-2, 0]], [0, 0]),
        "scaling": ([[0, 0], [0, 0]], [0, 0]),
    }
    for transform, (a, c) in by_hand.items():
        made = CLOSED[transform](x, y)
        np.testing.assert_allclose(made.a, a, rtol=0, atol=1e-12)
        np.testing.assert_allclose(made.c, c, rtol=0, atol=1e-12)
    facts = CLOSED["orthogonal"](x, y).facts(x, y)
    assert facts["fit_error"] == pytest.approx(1)  # (0, 1) for (0, 2), a distance of 1, twice
    assert facts["orthogonality"] == pytest.approx(0, abs=1e-12)
    assert facts["rows_per_dimension"] == 1
    assert CLOSED["linear"](x, y).facts(x, y)["orthogonality"] == pytest.approx(18**0.5)  # 4 I - I
    assert CLOSED["scaling"](np.zeros((2, 2)), y).a.tolist() == np.eye(2).tolist()


@pytest.mark.parametrize(
    ("weaker", "stronger"),
    [
        ("affine", "linear"),
        ("affine", "similarity"),
        ("similarity", "euclidean"),
        ("linear", "orthogonal"),
        ("linear", "scaling"),
        ("euclidean", "orthogonal"),
    ],
)
def test_a_weaker_constraint_fits_better(weaker: str, stronger: str) -> None:
    x, y = pair(40)
    errors = [CLOSED[one](x, y).facts(x, y)["fit_error"] for one in (weaker, stronger)]
    assert errors[0] < errors[1]


# Gradient ----------------------------------------------------------------------------------


@pytest.mark.parametrize("transform", ["affine", "linear", "scaling"])
def test_descent_comes_to_the_closed_form(transform: str) -> None:
    """Where the objective is convex, and there is no penalty."""
    x, y = pair(40)
    solved = probe_module.Descent(transform, 600, 0.05, 1.0).solved(x, y)
    expected = CLOSED[transform](x, y)
    np.testing.assert_allclose(solved.a, expected.a, rtol=0, atol=1e-4)
    np.testing.assert_allclose(solved.c, expected.c, rtol=0, atol=1e-4)


def turned(transform: str, rows: int = 40) -> Pair:
    """Rows that a map of this kind, near the identity, takes to one another exactly."""
    x, _ = pair(rows)
    random = np.random.default_rng(3)
    skew = 0.2 * random.normal(size=(WIDTH, WIDTH))
    shift = random.normal(size=WIDTH) if transform in probe_module.SHIFTED else 0
    factor = 1.3 if transform in probe_module.SCALED else 1
    left, _, right = np.linalg.svd(np.eye(WIDTH) + skew - skew.T)
    return x, factor * x @ (left @ right) + shift


@pytest.mark.parametrize("transform", probe_module.TURNED)
def test_descent_comes_to_the_turn_there_is(transform: str) -> None:
    """The penalty is zero there, so it agrees with the constraint."""
    x, y = turned(transform)
    solved = probe_module.Descent(transform, 600, 0.05, 1.0).solved(x, y)
    expected = CLOSED[transform](x, y)
    np.testing.assert_allclose(solved.a, expected.a, rtol=0, atol=1e-4)
    np.testing.assert_allclose(solved.c, expected.c, rtol=0, atol=1e-4)


def test_a_penalty_is_not_a_constraint() -> None:
    """Where no turn fits, a weaker one fits better and is further from a turn."""
    x, y = pair(40)
    made = [
        probe_module.Descent("orthogonal", 400, 0.02, penalty).solved(x, y).facts(x, y)
        for penalty in (0.1, 10.0)
    ]
    assert made[0]["fit_error"] < made[1]["fit_error"]
    assert made[0]["orthogonality"] > made[1]["orthogonality"] > 1e-3


def test_descent_to_an_inverse_is_symmetric() -> None:
    """M^T M + 0.01 I begins at the identity, and fits what is of this form."""
    x, _ = pair(40)
    root = np.eye(WIDTH) + 0.1 * np.random.default_rng(5).normal(size=(WIDTH, WIDTH))
    wanted = root.T @ root + 0.01 * np.eye(WIDTH)
    begun = probe_module.Descent("invertible", 1, 1e-12, 1.0).solved(x, x @ wanted)
    np.testing.assert_allclose(begun.a, np.eye(WIDTH), rtol=0, atol=1e-9)
    solved = probe_module.Descent("invertible", 600, 0.02, 1.0).solved(x, x @ wanted)
    np.testing.assert_allclose(solved.a, wanted, rtol=0, atol=1e-3)


def test_one_step_of_descent_by_hand() -> None:
    """Adam's first step is the learning rate against the sign of the gradient."""
    x, y = np.array([[1.0, 0.0]]), np.array([[3.0, 0.0]])
    made = probe_module.Descent("affine", 1, 0.1, 1.0).solved(x, y)
    np.testing.assert_allclose(made.a, [[1.1, 0], [0, 1]], rtol=0, atol=1e-6)
    np.testing.assert_allclose(made.c, [0.1, 0], rtol=0, atol=1e-6)


def test_a_row_far_off_pulls_at_less_of_absolute_differences() -> None:
    """By hand: of (1, 1, 1) that are (0, 0, 3) the squared distance is least at the mean, 1.

    The sum of absolute differences is least at the median, 0.
    """
    x, y = np.ones((3, 1)), np.array([[0.0], [0.0], [3.0]])
    for distance, expected in (("squared", 1.0), ("l1", 0.0)):
        solved = probe_module.Descent("scaling", 600, 1e-2, 1.0, distance).solved(x, y)
        np.testing.assert_allclose(solved.a, [[expected]], rtol=0, atol=2e-2)


@pytest.mark.parametrize("transform", ["affine", "linear"])
def test_descent_comes_to_the_least_absolute_differences(transform: str) -> None:
    """Against the linear program that each column is: least sum of what is above and below."""
    from scipy.optimize import linprog

    x, y = pair(40)
    inputs = np.column_stack([x, np.ones(len(x))]) if transform == "affine" else x
    rows, width = inputs.shape
    costs = np.concatenate([np.zeros(width), np.ones(2 * rows)])
    matrix = np.hstack([inputs, np.eye(rows), -np.eye(rows)])
    bounds = [(None, None)] * width + [(0, None)] * (2 * rows)
    least = sum(linprog(costs, A_eq=matrix, b_eq=column, bounds=bounds).fun for column in y.T)
    found = []
    for steps, rate in ((600, 0.05), (6000, 1e-3)):
        made = probe_module.Descent(transform, steps, rate, 1.0, "l1").solved(x, y)
        found.append(np.abs(x @ made.a + made.c - y).sum())
    assert least <= found[1] < 1.002 * least
    assert found[1] < found[0]
    squared = CLOSED[transform](x, y)
    assert np.abs(x @ squared.a + squared.c - y).sum() > 1.02 * least


# The protocols on features ------------------------------------------------------------------


def encoded_of(kind: str = "classification", teachers: int = 1, width: int = WIDTH) -> Encoded:
    """Features of a model, and of experts whose features are other turns of them with noise."""
    random = np.random.default_rng(9)
    outputs = {"regression": 1}.get(kind, 3)
    x, pool = (random.normal(size=(n, width)).astype(np.float32) for n in (50, 36))
    if kind == "regression":
        held = (2 * pool[:, 0] + pool[:, 1] + 1).astype(float)
    elif kind == "multilabel":
        held = (pool[:, :3] + random.normal(size=(36, 3)) > 0).astype(float)
    else:
        held = np.arange(36) % 3.0
    experts = []
    for seed in range(teachers):
        turn = ortho_group.rvs(width, random_state=seed)
        seen = pool @ turn + 0.1 * random.normal(size=pool.shape) + 0.3
        weight = random.normal(size=(outputs, width)).astype(np.float32)
        bias = random.normal(size=outputs).astype(np.float32)
        experts.append(Teacher(seen.astype(np.float32), Head(weight, bias)))
    return Encoded(
        task="toy/turns",
        kind=KINDS[kind],
        classes=outputs,
        test=Features(x, np.zeros((50, outputs), dtype=np.float32), np.zeros(50)),
        head=None,
        pool=Features(pool, np.zeros((36, outputs), dtype=np.float32), held),
        draws=tuple(drawn(kind, held, shots, seed) for shots in (3, 9) for seed in (0, 1)),
        teacher=None,
        teachers=tuple(experts),
    )


def drawn(kind: str, labels: Array64, shots: int, seed: int) -> Draw:
    random = np.random.default_rng([shots, seed])
    if kind == "regression":
        groups = np.array_split(labels.argsort(), 5)
    elif kind == "multilabel":
        groups = [np.flatnonzero(labels[:, c] == has) for c in range(3) for has in (1, 0)]
    else:
        groups = [np.flatnonzero(labels == c) for c in range(3)]
    rows = [tuple(random.permutation(group)[:shots].tolist()) for group in groups]
    return Draw(shots, seed, tuple(rows))


ROWS_OF_SENTENCES = ((0, 1, 2), (7,), (3, 4, 5, 6, 12, 13, 14))


def plain_probe(encoded: Encoded, draw: Draw, transform: str) -> Array64:
    """The mean over experts of the outputs of their heads on mapped features."""
    assert encoded.pool is not None
    units = sorted({unit for part in (draw.examples or draw.rows) for unit in part})
    outputs = []
    for teacher in encoded.teachers:
        fitted = PLAIN[transform](
            encoded.pool.x[units].astype(float), teacher.x[units].astype(float)
        )
        features = np.stack([fitted.a.T @ row + fitted.c for row in encoded.test.x.astype(float)])
        weight, bias = teacher.head.weight.astype(float), teacher.head.bias.astype(float)
        outputs.append(features @ weight.T + bias)
    return np.asarray(np.mean(outputs, axis=0))


@pytest.mark.parametrize("kind", ["classification", "regression", "multilabel", "tagging"])
@pytest.mark.parametrize("transform", ["euclidean", "affine"])
@pytest.mark.parametrize("teachers", [1, 2])
def test_probe_agrees_with_a_plain_version(kind: str, transform: str, teachers: int) -> None:
    encoded = encoded_of(kind, teachers)
    if kind == "tagging":
        draws = [replace(one, examples=ROWS_OF_SENTENCES) for one in encoded.draws]
        encoded = replace(encoded, draws=tuple(draws))
    for one, draw in zip(probe(encoded, transform=transform), encoded.draws, strict=True):
        expected = encoded.kind.predicted(plain_probe(encoded, draw, transform))
        np.testing.assert_allclose(one.values, expected, rtol=0, atol=1e-8)
        assert one.draw == draw


def test_probe_reads_no_labels() -> None:
    encoded = encoded_of()
    assert encoded.pool is not None
    other = replace(encoded, pool=replace(encoded.pool, labels=np.full(36, np.nan)))
    pairs = zip(probe(encoded), probe(other), strict=True)
    assert all(np.array_equal(one.values, two.values) for one, two in pairs)


def test_facts_are_means_over_experts() -> None:
    both = encoded_of(teachers=2)
    alone = [replace(both, teachers=(one,)) for one in both.teachers]
    apart = [[one.facts for one in probe(each)] for each in alone]
    for place, one in enumerate(probe(both)):
        for name, value in one.facts.items():
            assert value == pytest.approx(np.mean([told[place][name] for told in apart]))
    assert [one.facts["rows_per_dimension"] for one in probe(both)] == [1.5, 1.5, 4.5, 4.5]


def test_a_draw_of_nothing_is_an_error() -> None:
    encoded = replace(encoded_of(), draws=(Draw(1, 0, ((),)),))
    for protocol in (probe, surgery):
        with mistake(BadData, "toy/turns"):
            protocol(encoded)


def test_only_some_maps_take_features_of_another_width() -> None:
    encoded = encoded_of()
    (one,) = encoded.teachers
    wide = Teacher(
        np.column_stack([one.x, one.x]), Head(np.tile(one.head.weight, (1, 2)), one.head.bias)
    )
    encoded = replace(encoded, teachers=(wide,))
    for read in (probe, surgery):
        with mistake(IncompatibleWeights, "6 12"):
            read(encoded)
    with mistake(IncompatibleWeights, "transform=scaling linear affine"):
        probe(encoded, transform="scaling")
    for transform in ("linear", "affine"):
        for fit in ("closed", "gradient"):
            assert len(probe(encoded, transform=transform, fit=fit, steps=2)) == 4


# Surgery -----------------------------------------------------------------------------------


def plain_surgery(
    encoded: Encoded, draw: Draw, place: int, rank: int, steps: int, rate: float
) -> Pair:
    """D and U by gradients written out and Adam, a lesson at a time."""
    assert encoded.pool is not None
    units = np.array(list(dict.fromkeys(unit for rows in draw.rows for unit in rows)))
    x = encoded.pool.x.astype(float)
    y = encoded.teachers[place].x.astype(float)
    width = len(x.T)
    first = rng(draw.seed, "surgery_start", encoded.task, place)
    down = first.uniform(-1, 1, size=(rank, width)) / np.sqrt(width)
    up = np.zeros((width, rank))
    queue: list[int] = []
    passes = 0
    moments = [[np.zeros_like(one), np.zeros_like(one)] for one in (down, up)]
    for step in range(1, steps + 1):
        while len(queue) < 16:
            order = rng(draw.seed, "surgery", encoded.task, passes).permutation(len(units))
            queue += units[order].tolist()
            passes += 1
        batch, queue = queue[:16], queue[16:]
        by_down, by_up = np.zeros_like(down), np.zeros_like(up)
        for unit in batch:
            hidden = np.maximum(down @ x[unit], 0)
            sign = np.sign(x[unit] - up @ hidden - y[unit]) / (16 * width)
            by_up -= np.outer(sign, hidden)
            by_down -= np.outer((up.T @ sign) * (hidden > 0), x[unit])
        for matrix, gradient, (m, v) in zip((down, up), (by_down, by_up), moments, strict=True):
            m[:] = 0.9 * m + 0.1 * gradient
            v[:] = 0.999 * v + 0.001 * gradient**2
            matrix -= rate * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
    return down, up


@pytest.mark.parametrize("kind", ["classification", "regression", "multilabel"])
def test_surgery_agrees_with_plain_loops(kind: str) -> None:
    encoded, settings = encoded_of(kind, teachers=2), {"rank": 3, "steps": 40}
    test = encoded.test.x.astype(float)
    for one, draw in zip(
        surgery(encoded, learning_rate=0.02, **settings), encoded.draws, strict=True
    ):
        outputs, errors = [], []
        for place, teacher in enumerate(encoded.teachers):
            down, up = plain_surgery(encoded, draw, place, rate=0.02, **settings)
            moved = [row - up @ np.maximum(down @ row, 0) for row in test]
            outputs.append(moved @ teacher.head.weight.T.astype(float) + teacher.head.bias)
            units = list(draw.units)
            assert encoded.pool is not None
            rows = encoded.pool.x[units].astype(float)
            rest = [row - up @ np.maximum(down @ row, 0) for row in rows] - teacher.x[units]
            errors.append(np.abs(rest).mean())
        expected = encoded.kind.predicted(np.mean(outputs, axis=0))
        np.testing.assert_allclose(one.values, expected, rtol=0, atol=1e-7)
        assert one.facts["fit_error"] == pytest.approx(np.mean(errors), abs=1e-7)
        assert one.facts["rows_per_dimension"] == len(draw.units) / WIDTH


def test_surgery_by_hand() -> None:
    x, up = np.array([[3.0, 4.0]]), np.array([[0.0], [1.0]])
    assert corrected(x, np.array([[1.0, 0.0]]), up).tolist() == [[3, 1]]
    assert corrected(x, np.array([[-1.0, 0.0]]), up).tolist() == [[3, 4]]
    features = [torch.tensor([[row]]).double() for row in ((3, 4), (3, 3), (1, 0), (0, 1))]
    by_down, by_up = gradients(*features)
    assert by_down.tolist() == [[[1.5, 2]]]
    assert by_up.tolist() == [[[0, 1.5]]]


def test_gradients_of_surgery_are_those_of_automatic_differentiation() -> None:
    numbers = torch.Generator().manual_seed(0)
    sizes = (5, 16, WIDTH), (5, 16, WIDTH), (5, 3, WIDTH), (5, 3, WIDTH)
    x, y, down, up = (torch.randn(size, generator=numbers).double() for size in sizes)
    leaves = [one.clone().requires_grad_() for one in (down, up)]
    hidden = (x @ leaves[0].mT).relu()
    (x - hidden @ leaves[1] - y).abs().mean(dim=(1, 2)).sum().backward()
    for made, leaf in zip(gradients(x, y, down, up), leaves, strict=True):
        torch.testing.assert_close(made, leaf.grad, rtol=0, atol=1e-15)


def test_surgery_of_an_expert_by_itself_corrects_nothing() -> None:
    encoded = encoded_of()
    assert encoded.pool is not None
    (one,) = encoded.teachers
    encoded = replace(encoded, teachers=(Teacher(encoded.pool.x, one.head),))
    expected = encoded.test.x.astype(float) @ one.head.weight.T + one.head.bias
    for made in surgery(encoded, steps=20):
        assert made.values.tolist() == expected.argmax(axis=1).tolist()
        assert made.facts["fit_error"] == 0


def test_more_steps_of_surgery_fit_better() -> None:
    encoded = encoded_of()
    errors = [
        [one.facts["fit_error"] for one in surgery(encoded, steps=steps, learning_rate=0.01)]
        for steps in (1, 300)
    ]
    assert all(late < 0.8 * early for early, late in zip(*errors, strict=True))


# The linear probe ---------------------------------------------------------------------------


def plain_logistic(x: Array64, owner: Any, classes: int, penalty: float) -> Callable[[Any], Any]:
    """Logistic regression as an objective that scipy minimises, the intercept free."""
    width = len(x.T)
    rows = 1 if classes == 2 else classes

    def outputs(flat: Array64, given: Array64) -> Array64:
        weight, bias = flat[: rows * width].reshape(rows, width), flat[rows * width :]
        logits = given @ weight.T + bias
        return np.column_stack([0 * logits, logits]) if classes == 2 else np.asarray(logits)

    def objective(flat: Array64) -> float:
        logits = outputs(flat, x)
        losses = logsumexp(logits, axis=1) - logits[np.arange(len(x)), owner]
        return float(losses.sum() + penalty / 2 * (flat[: rows * width] ** 2).sum())

    best = minimize(objective, np.zeros(rows * width + rows), tol=1e-8)
    return lambda given: outputs(best.x, given).argmax(axis=1)


def plain_ridge(x: Array64, y: Array64, penalty: float) -> Callable[[Any], Any]:
    centred = x - x.mean(0)
    weight = np.linalg.solve(centred.T @ centred + penalty * np.eye(len(x.T)), centred.T @ y)
    return lambda given: (given - x.mean(0)) @ weight + y.mean()


def plain_linear_probe(encoded: Encoded, draw: Draw, penalty: float) -> Array64:
    assert encoded.pool is not None
    x, test = encoded.pool.x.astype(float), encoded.test.x.astype(float)

    def named(groups: Sequence[Sequence[int]]) -> Any:
        units = [unit for group in groups for unit in group]
        owner = np.array([index for index, group in enumerate(groups) for _ in group])
        return plain_logistic(x[units], owner, len(groups), penalty)(test)

    if encoded.kind.name == "regression":
        units = [unit for group in draw.rows for unit in group]
        return np.asarray(plain_ridge(x[units], encoded.pool.labels[units], penalty)(test))
    if encoded.kind.name == "multilabel":
        pairs = zip(draw.rows[::2], draw.rows[1::2], strict=True)
        return np.stack([1 - named(both) for both in pairs], axis=1)
    return np.asarray(named(draw.rows))


@pytest.mark.parametrize("kind", ["classification", "regression", "multilabel", "tagging"])
@pytest.mark.parametrize("penalty", [1.0, 0.1])
def test_the_linear_probe_agrees_with_plain_objectives(kind: str, penalty: float) -> None:
    encoded = encoded_of(kind)
    encoded = replace(encoded, draws=encoded.draws[1:3])
    found = linear_probe(encoded, penalty=penalty)
    for one, draw in zip(found, encoded.draws, strict=True):
        expected = plain_linear_probe(encoded, draw, penalty)
        if kind == "regression":
            np.testing.assert_allclose(one.values, expected, rtol=0, atol=1e-8)
        else:
            assert (
                one.values == expected
            ).mean() >= 0.98  # but a tie within the solver's tolerance
        assert one.draw == draw


def test_classes_without_rows_are_never_predicted() -> None:
    encoded = encoded_of()
    one = encoded.draws[2].rows
    draws = (Draw(9, 0, ((), one[1], one[2])), Draw(9, 0, ((), one[1], ())), Draw(9, 0, ((), ())))
    two, alone, none = linear_probe(replace(encoded, draws=draws))
    assert set(two.values) == {1.0, 2.0}
    assert set(alone.values) == {1.0}
    assert set(none.values) == {0.0}


def test_one_shot_of_each_of_many_classes_is_no_warning() -> None:
    encoded = encoded_of()
    assert encoded.pool is not None
    draw = Draw(1, 0, tuple((unit,) for unit in range(len(encoded.pool.x))))
    assert len(draw.rows) > 20  # scikit-learn warns of no fewer
    (found,) = linear_probe(replace(encoded, draws=(draw,)))
    assert {*found.values} <= {*range(len(draw.rows))}


# The fresh head -----------------------------------------------------------------------------


def labelled(kind: str, rows: int = 600) -> Encoded:
    """Features in float64 of many rows, of unlike size, whose labels they say in part."""
    random = np.random.default_rng(12)
    x = random.normal(size=(2 * rows, WIDTH)) * np.exp(0.5 * random.normal(size=WIDTH)) + 1
    outputs = x @ random.normal(size=(WIDTH, 3)) + 2 * random.normal(size=(2 * rows, 3))
    labels = {
        "regression": outputs[:, 0],
        "multilabel": (outputs > outputs.mean(0)).astype(float),
    }.get(kind, outputs.argmax(axis=1).astype(float))
    sides = [Features(x[i::2], np.zeros((rows, 3), np.float32), labels[i::2]) for i in (0, 1)]
    whole = drawn(kind, sides[1].labels, rows, 0)
    return Encoded(
        f"toy/{kind}", KINDS[kind], len(outputs.T), sides[0], None, sides[1], (whole,), None
    )


def mapped(encoded: Encoded, matrix: Array64, shift: float = 0.0) -> Encoded:
    assert encoded.pool is not None
    test, pool = (replace(one, x=one.x @ matrix + shift) for one in (encoded.test, encoded.pool))
    return replace(encoded, test=test, pool=pool)


KINDS_OF_LABEL = ["classification", "regression", "multilabel", "tagging"]


@pytest.mark.parametrize("kind", KINDS_OF_LABEL)
@pytest.mark.parametrize("penalty", [1.0, 30.0])
def test_the_fresh_head_agrees_with_scikit_learn(kind: str, penalty: float) -> None:
    """On features about their mean and of size 1, by another solver."""
    from sklearn.linear_model import LogisticRegression, Ridge

    encoded = labelled(kind)
    assert encoded.pool is not None
    x, labels = encoded.pool.x, encoded.pool.labels
    size = ((x - x.mean(0)) ** 2).mean() ** 0.5
    ours, test = (x - x.mean(0)) / size, (encoded.test.x - x.mean(0)) / size
    (found,) = fresh_head(encoded, penalty=penalty)
    if kind == "regression":
        expected = Ridge(alpha=penalty, solver="svd").fit(ours, labels).predict(test)
        np.testing.assert_allclose(found.values, expected, rtol=0, atol=1e-9)
        return
    fits = [
        LogisticRegression(C=1 / penalty, tol=1e-9, max_iter=10000).fit(ours, one).predict(test)
        for one in (labels.T if kind == "multilabel" else [labels])
    ]
    expected = np.stack(fits, axis=1) if kind == "multilabel" else fits[0]
    assert len(np.unique(found.values)) > 1
    assert (found.values == expected).mean() > 0.998  # but for a tie within the solver's tolerance


@pytest.mark.parametrize("kind", KINDS_OF_LABEL)
def test_no_turn_shift_or_size_of_features_moves_a_fresh_head(kind: str) -> None:
    """It moves a linear probe, whose penalty is of the features as they are."""
    encoded = labelled(kind)
    turn = ortho_group.rvs(WIDTH, random_state=5)
    for size in (0.01, 100.0):
        (one,), (other,) = fresh_head(encoded), fresh_head(mapped(encoded, size * turn, 3.0))
        np.testing.assert_allclose(other.values, one.values, rtol=0, atol=1e-6)
    (one,), (other,) = linear_probe(encoded), linear_probe(mapped(encoded, 0.01 * turn, 3.0))
    assert not np.allclose(other.values, one.values, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS_OF_LABEL)
def test_an_invertible_matrix_hardly_moves_a_fresh_head(kind: str) -> None:
    """By its penalty alone, which of many rows is small beside their losses."""
    encoded = labelled(kind)
    left, right = (ortho_group.rvs(WIDTH, random_state=seed) for seed in (6, 7))
    matrix = left @ np.diag(np.linspace(0.5, 2, WIDTH)) @ right

    def moved(penalty: float) -> float:
        (one,), (other,) = (
            fresh_head(each, penalty=penalty) for each in (encoded, mapped(encoded, matrix))
        )
        return float(np.abs(one.values - other.values).mean() / one.values.std())

    assert moved(1e-6) < 1e-5
    assert moved(1.0) < 0.03 < moved(1e3)


def test_a_fresh_head_ends_where_it_is_asked_to() -> None:
    (early,), (near,) = (fresh_head(labelled("classification"), tolerance=t) for t in (0.1, 1e-10))
    assert (early.values != near.values).any()


def test_a_fresh_head_by_hand() -> None:
    """Of -3 at -1 and 3 at 1 a slope w costs 2 (w - 3)^2 + w^2: 2, not 3. At -10 and 10 as well.

    Of classes there, the boundary is in the middle.
    """
    for size in (1.0, 10.0):
        x, none = size * np.array([[-1.0], [1.0]]), np.zeros((2, 1), np.float32)
        values = Encoded(
            "toy/values", KINDS["regression"], 1, Features(x, none, np.zeros(2)), None,
            Features(x, none, np.array([-3.0, 3.0])), (Draw("all", 0, ((0,), (1,))),), None,
        )  # fmt: skip
        (found,) = fresh_head(values)
        np.testing.assert_allclose(found.values, [-2, 2], rtol=0, atol=1e-12)
        near = np.array([[-0.01], [0.01]])
        classes = replace(values, kind=KINDS["classification"], test=Features(near, none, none))
        (found,) = fresh_head(classes)
        assert found.values.tolist() == [0, 1]


def test_a_fresh_head_of_features_that_are_all_the_same() -> None:
    encoded = labelled("regression")
    (found,) = fresh_head(mapped(encoded, np.zeros((WIDTH, WIDTH)), 2.0))
    assert encoded.pool is not None
    np.testing.assert_allclose(found.values, encoded.pool.labels.mean(), rtol=0, atol=1e-9)


# Planted faults ----------------------------------------------------------------------------


def of_closed(transform: str, wrong: Callable[..., ProbeMap]) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        right = CLOSED[transform]
        patch.setitem(CLOSED, transform, lambda x, y: wrong(right, x, y))  # type: ignore[arg-type]

    return plant


FAULTS: dict[str, tuple[Plant, Callable[[], None]]] = {
    "a turn is the one back": (
        of_closed("orthogonal", lambda right, x, y: right(y, x)),
        lambda: test_closed_forms_agree_with_scipy("orthogonal"),
    ),
    "a shift is forgotten": (
        of_closed("euclidean", lambda right, x, y: replace(right(x, y), c=np.zeros(WIDTH))),
        lambda: test_closed_forms_agree_with_scipy("euclidean"),
    ),
    "means are not taken off": (
        of_closed("euclidean", lambda right, x, y: CLOSED["orthogonal"](x, y)),
        lambda: test_closed_forms_agree_with_scipy("euclidean"),
    ),
    "features are not mapped": (
        around(
            ProbeMap,
            "outputs",
            lambda right, own, *given: right(ProbeMap(np.eye(WIDTH), own.c), *given),
        ),
        lambda: test_probe_agrees_with_a_plain_version("classification", "affine", 1),
    ),
    "the first expert alone is heard": (
        around(
            sys.modules[__name__],
            "probe",
            lambda right, given, **asked: right(
                replace(given, teachers=given.teachers[:1]), **asked
            ),
        ),
        lambda: test_probe_agrees_with_a_plain_version("regression", "affine", 2),
    ),
    "surgery adds what it should take off": (
        around(surgery_module, "corrected", lambda right, x, d, u: 2 * x - right(x, d, u)),
        lambda: test_surgery_agrees_with_plain_loops("classification"),
    ),
    "surgery leaves U as it begins": (
        around(
            surgery_module,
            "gradients",
            lambda right, *given: (right(*given)[0], 0 * right(*given)[1]),
        ),
        lambda: test_surgery_agrees_with_plain_loops("regression"),
    ),
    "the penalty is C": (
        around(
            linear_probe_module, "Linear", lambda right, *given: right(*given[:2], 1 / given[2])
        ),
        lambda: test_the_linear_probe_agrees_with_plain_objectives("regression", 0.1),
    ),
    "a fresh head is a linear probe": (
        around(
            sys.modules[__name__], "fresh_head", lambda right, given, **asked: linear_probe(given)
        ),
        lambda: test_no_turn_shift_or_size_of_features_moves_a_fresh_head("classification"),
    ),
    "a fresh head sees half of the rows": (
        around(
            sys.modules[__name__],
            "fresh_head",
            lambda right, given, **asked: right(
                replace(given, draws=(drawn("classification", given.pool.labels, 100, 0),)), **asked
            ),
        ),
        lambda: test_the_fresh_head_agrees_with_scikit_learn("classification", 1.0),
    ),
}


@pytest.mark.fault
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_noticed(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, notice = FAULTS[fault]
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        notice()
