"""TSV-Merge, Iso-C and Iso-CTS, WUDI and PCB: agreement, by hand, edges, and sweeps over scale."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from scipy.linalg import polar as scipy_polar
from torch.testing import assert_close

import harness
from harness import Recipe, StateDict, merge, weights
from harness.cli import main
from harness.errors import BadOption, BadRecipe
from harness.merging.tune import values_of
from harness.merging.validation import ValidationScorer
from harness.weights import Lazy, ScaledMerge, compact_svd, digest, isometry, specs
from tests.mistakes import mistake
from tests.states import close, model, models
from tests.test_mergers import Arrays, merger
from tests.toys import TOY, known

Minis = Callable[[str], dict[str, Path]]

# Independent implementations ---------------------------------------------------------------

Matrices = Literal["all", "linear"]
Others = Literal["mean", "zero"]


def by_matrix(
    experts: list[Arrays],
    base: Arrays,
    scale: float,
    direction: Callable[[list[np.ndarray]], np.ndarray],
    matrices: Matrices,
    others: Others,
) -> Arrays:
    merged = {}
    for name, origin in base.items():
        vectors = [expert[name] - origin for expert in experts]
        if origin.ndim == 2 and origin.size and not (matrices == "linear" and "embed" in name):
            step = direction(vectors)
        else:
            step = sum(vectors) / len(vectors) if others == "mean" else 0 * origin
        merged[name] = origin + scale * step
    return merged


def nearest_isometry(matrix: np.ndarray) -> np.ndarray:
    """By scipy, of a matrix of full rank."""
    return np.asarray(scipy_polar(matrix)[0])


def reference_tsv(
    experts: list[Arrays],
    base: Arrays,
    scale: float = 1.0,
    keep: float | None = None,
    at_least: int = 0,
    matrices: Matrices = "all",
    others: Others = "mean",
) -> Arrays:
    def direction(vectors: list[np.ndarray]) -> np.ndarray:
        rank = min(vectors[0].shape)
        kept = max(at_least, rank // len(vectors) if keep is None else int(rank * keep + 1e-9))
        lefts, values, rights = [], [], []
        for vector in vectors:
            left, sizes, right = np.linalg.svd(vector)
            for place in range(min(kept, rank)):
                lefts.append(left[:, place])
                values.append(sizes[place])
                rights.append(right[place])
        if not lefts:
            return np.zeros_like(vectors[0])
        left = nearest_isometry(np.stack(lefts, axis=1))
        right = nearest_isometry(np.stack(rights, axis=0))
        terms = zip(values, left.T, right, strict=True)
        return np.asarray(sum(value * np.outer(u, v) for value, u, v in terms))

    return by_matrix(experts, base, scale, direction, matrices, others)


def reference_iso(
    experts: list[Arrays],
    base: Arrays,
    scale: float = 1.0,
    variant: str = "common",
    common: float = 0.8,
    combine: Literal["sum", "mean"] = "sum",
    matrices: Matrices = "all",
    others: Others = "mean",
) -> Arrays:
    def direction(vectors: list[np.ndarray]) -> np.ndarray:
        summed = sum(vectors) / (len(vectors) if combine == "mean" else 1)
        left, values, right = np.linalg.svd(summed, full_matrices=False)
        if variant == "common":
            return np.asarray(values.mean() * nearest_isometry(summed))
        rank, count = len(values), len(vectors)
        own = round((rank - int(rank * common + 1e-9)) / count)
        shared = rank - own * count
        us, vs, sizes = [left[:, :shared]], [right[:shared]], [values[:shared]]
        inside = left[:, :shared] @ left[:, :shared].T
        for vector in vectors:
            u, s, v = np.linalg.svd(vector - inside @ vector, full_matrices=False)
            us.append(u[:, :own])
            vs.append(v[:own])
            sizes.append(s[:own])
        level = np.concatenate(sizes).mean()
        both = nearest_isometry(np.hstack(us)) @ nearest_isometry(np.vstack(vs))
        return np.asarray(level * both)

    return by_matrix(experts, base, scale, direction, matrices, others)


def least_interference(vectors: list[np.ndarray], ridge: float = 0.0) -> np.ndarray:
    """By least squares of all equations at once, the difference from the sum as short as can be."""
    start = sum(vectors)
    rows, missed = [], []
    for vector in vectors:
        if norm := np.linalg.norm(vector):
            rows.append(vector / norm)
            missed.append((vector - start) @ vector.T / norm)
            rows.append(np.eye(vector.shape[1]) * ridge**0.5 / norm)
            missed.append((vector - start) * ridge**0.5 / norm)
    if not rows:
        return np.asarray(start)
    step = np.linalg.lstsq(np.vstack(rows), np.hstack(missed).T, rcond=1e-9)[0]
    return np.asarray(start + step.T)


def by_adam(vectors: list[np.ndarray], steps: int, rate: float) -> np.ndarray:
    """Kingma and Ba 2015, algorithm 1, on the slope of each expert's interference."""
    found = sum(vectors)
    first, second = np.zeros_like(found), np.zeros_like(found)
    for step in range(1, steps + 1):
        slope = np.zeros_like(found)
        for vector in vectors:
            slope += 2 * ((found - vector) @ vector.T) @ vector / np.sum(vector**2)
        first = 0.9 * first + 0.1 * slope
        second = 0.999 * second + 0.001 * slope**2
        size = np.sqrt(second / (1 - 0.999**step)) + 1e-8
        found = found - rate * first / (1 - 0.9**step) / size
    return np.asarray(found)


def reference_wudi(
    experts: list[Arrays],
    base: Arrays,
    scale: float = 1.0,
    solver: str = "exact",
    steps: int = 300,
    learning_rate: float = 1e-5,
    ridge: float = 0.0,
    matrices: Matrices = "linear",
    others: Others = "zero",
) -> Arrays:
    def direction(vectors: list[np.ndarray]) -> np.ndarray:
        if solver == "adam":
            return by_adam(vectors, steps, learning_rate)
        return least_interference(vectors, ridge)

    return by_matrix(experts, base, scale, direction, matrices, others)


def reference_actmat(
    experts: list[Arrays], base: Arrays, scale: float = 1.0, matrices: Matrices = "linear"
) -> Arrays:
    def direction(vectors: list[np.ndarray]) -> np.ndarray:
        grams = [vector.T @ vector for vector in vectors]
        right = sum(vector @ gram for vector, gram in zip(vectors, grams, strict=True))
        return np.asarray(right @ np.linalg.pinv(sum(grams), rcond=1e-11))

    return by_matrix(experts, base, scale, direction, matrices, "mean")


def reference_pcb(
    experts: list[Arrays],
    base: Arrays,
    scale: float = 1.2,
    density: float = 0.05,
    clamp: float = 0.0001,
    inter: str = "plain",
) -> Arrays:
    vectors = [np.concatenate([(e[n] - base[n]).ravel() for n in base]) for e in experts]
    count, length = len(vectors), len(vectors[0])

    def moved(values: np.ndarray, low: float, high: float) -> np.ndarray:
        return (np.clip(values, low, high) - low) / (high - low)

    held, units = [], []
    for vector in vectors:
        ranked = np.sort(np.abs(vector))
        low, high = ranked[int(length * clamp)], ranked[int(length * (1 - clamp) - 1)]
        held.append(np.sign(vector) * np.clip(np.abs(vector), low, high))
        units.append(moved(np.abs(vector), low, high))
    signed = [np.sign(v) * u for v, u in zip(vectors, units, strict=True)]
    above, below = np.zeros(length), np.zeros(length)
    for place in range(count):
        met = {
            "plain": np.tanh(vectors[place] * sum(vectors)),
            "normalized": np.tanh(vectors[place] * sum(signed)),
            "pairwise": sum(np.tanh(signed[place] * other) for other in signed),
        }[inter]
        balance = np.exp(count * units[place] ** 2) * met
        share = moved(balance, np.sort(balance)[int(length * (1 - density))], balance.max())
        above += held[place] * share
        below += share
    merged = above / np.maximum(below, 1e-12)
    ends = np.cumsum([base[name].size for name in base])
    pieces = zip(base, np.split(merged, ends[:-1]), strict=True)
    return {n: base[n] + scale * piece.reshape(base[n].shape) for n, piece in pieces}


Case = tuple[str, Callable[..., Arrays], dict[str, Any]]
#: a merger, the same in float64, and options that both have by the same names
REFERENCES: list[Case] = [
    ("tsv", reference_tsv, {}),
    ("tsv", reference_tsv, {"keep": 0.5, "scale": 0.4}),
    ("tsv", reference_tsv, {"keep": 1.0}),
    ("tsv", reference_tsv, {"at_least": 2}),
    ("tsv", reference_tsv, {"matrices": "linear", "others": "zero"}),
    ("iso", reference_iso, {"scale": 0.7}),
    ("iso", reference_iso, {"combine": "mean"}),
    ("iso", reference_iso, {"variant": "common_and_task"}),
    ("iso", reference_iso, {"variant": "common_and_task", "common": 0.3, "others": "zero"}),
    ("wudi", reference_wudi, {}),
    ("wudi", reference_wudi, {"matrices": "all", "others": "mean", "scale": 0.6}),
    ("wudi", reference_wudi, {"ridge": 0.5}),
    ("wudi", reference_wudi, {"solver": "adam", "steps": 30, "learning_rate": 1e-2}),
    ("wudi", reference_wudi, {"solver": "adam", "matrices": "all", "others": "mean"}),
    ("actmat", reference_actmat, {}),
    ("actmat", reference_actmat, {"matrices": "all", "scale": 0.6}),
    ("pcb", reference_pcb, {}),
    ("pcb", reference_pcb, {"density": 0.3, "clamp": 0.02, "scale": 0.5}),
    ("pcb", reference_pcb, {"density": 0.4, "clamp": 0.01, "inter": "normalized"}),
    ("pcb", reference_pcb, {"density": 0.9, "clamp": 0.05, "inter": "pairwise"}),
]

SHAPES = {
    "scale": (),
    "bias": (5,),
    "none": (0, 3),
    "patch": (2, 2, 2),
    "embeddings.word.weight": (40, 9),
    "embeddings.type.weight": (2, 9),
    "square.weight": (12, 12),
    "up.weight": (17, 9),
    "down.weight": (5, 23),
}
"""`down` has fewer rows than three or four experts need to span its columns; `type` too few for a
singular vector each."""


def random(seed: int) -> dict[str, torch.Tensor]:
    numbers = torch.Generator().manual_seed(seed)
    drawn = {n: torch.randn(s, generator=numbers, dtype=torch.float64) for n, s in SHAPES.items()}
    # multiples of 2^-12: exact in float32, with differences that are exact as well
    return {name: (tensor * 4096).round() / 4096 for name, tensor in drawn.items()}


def ids(case: Any) -> str:
    if isinstance(case, dict):
        return ",".join(f"{option}={value}" for option, value in case.items())
    return "" if callable(case) else str(case)


@pytest.mark.parametrize("experts", [1, 2, 4])
@pytest.mark.parametrize(("name", "reference", "options"), REFERENCES, ids=ids)
def test_agrees_with_float64(
    name: str, reference: Callable[..., Arrays], options: dict[str, Any], experts: int
) -> None:
    base, *tuned = (random(seed) for seed in range(experts + 1))
    arrays = [{n: t.numpy() for n, t in state.items()} for state in (base, *tuned)]
    expected = reference(arrays[1:], arrays[0], **options)
    single = [{n: t.float() for n, t in state.items()} for state in (base, *tuned)]
    for tolerance, states in ((2e-5 if name == "pcb" else 1e-10, (base, *tuned)), (2e-5, single)):
        found = merger(name, **options)(states[1:], states[0])
        for tensor, array in expected.items():
            have = found[tensor].double()
            assert_close(
                have,
                torch.from_numpy(np.asarray(array)),
                rtol=tolerance,
                atol=tolerance,
                msg=lambda text, of=tensor: f"{of}: {text}",
            )


# By hand: the cases of the docstrings ------------------------------------------------------


def of_vectors(name: str, *vectors: list[Any], **options: Any) -> torch.Tensor:
    """What a merger makes of one tensor, from a base that is not zero."""
    moved = [torch.tensor(vector, dtype=torch.float64) for vector in vectors]
    base = torch.full_like(moved[0], 10.0)
    experts = [{"weight": base + vector} for vector in moved]
    return merger(name, **options)(experts, {"weight": base})["weight"] - base


def test_tsv_by_hand() -> None:
    found = of_vectors("tsv", [[3.0, 0], [0, 1]], [[0, 0], [2.0, 0]])
    assert_close(found, torch.tensor([[3.0, 0], [2, 0]], dtype=torch.float64) / 2**0.5)


def test_iso_by_hand() -> None:
    found = of_vectors("iso", [[2.0, 0], [0, 0]], [[1.0, 0], [0, 1]])
    assert_close(found, 2 * torch.eye(2, dtype=torch.float64))
    found = of_vectors("iso", [[2.0, 0], [0, 0]], [[1.0, 0], [0, 1]], combine="mean", scale=3.0)
    assert_close(found, 3 * torch.eye(2, dtype=torch.float64))


@pytest.mark.parametrize("variant", ["common", "common_and_task"])
def test_the_mean_of_iso_is_over_all_singular_values(variant: str) -> None:
    """Of tables of which few rows moved most are zero, which the authors' code counts."""
    numbers = np.random.default_rng(3)
    vectors = [np.vstack([numbers.normal(size=(2, 5)), np.zeros((6, 5))]) for _ in range(2)]
    summed, whole = sum(vectors), np.zeros(5)
    whole[:2] = np.linalg.svd(summed)[1][:2]
    # the common share, 4 of 5, has all that moved; nothing is left outside of it
    expected = whole.mean() * np.vstack([nearest_isometry(summed[:2]), np.zeros((6, 5))])
    found = of_vectors("iso", *(v.tolist() for v in vectors), variant=variant)
    assert_close(found, torch.from_numpy(expected), rtol=1e-8, atol=1e-8)


def test_wudi_by_hand() -> None:
    found = of_vectors("wudi", [[1.0, 0]], [[1.0, 1]])
    assert_close(found, torch.tensor([[1.0, 1]], dtype=torch.float64))


def test_pcb_by_hand() -> None:
    found = of_vectors("pcb", [4.0, 0], [2.0, 2], density=1.0, clamp=0.0, scale=1.0)
    assert_close(found, torch.tensor([3.0, 0], dtype=torch.float64))


def test_isometry_by_hand() -> None:
    assert_close(
        isometry(torch.tensor([[3.0, 0], [0, 0]])), torch.diag(torch.tensor([1.0, 0])).double()
    )
    left, values, right = compact_svd(torch.zeros(3, 2))
    assert (left.shape, values.shape, right.shape) == ((3, 0), (0,), (0, 2))
    assert torch.equal(isometry(torch.zeros(3, 2)), torch.zeros(3, 2, dtype=torch.float64))


# Directions that nobody has ----------------------------------------------------------------


def test_the_long_side_is_not_decomposed() -> None:
    """A whole U of these rows would take 7 GB."""
    left, values, right = compact_svd(torch.randn(30522, 4))
    assert (left.shape, values.shape, right.shape) == ((30522, 4), (4,), (4, 4))


def test_what_no_expert_moved_stays_where_it_is() -> None:
    """Rows of positions that no text reached, and a layer that was frozen."""
    experts, base = [random(1), random(2)], random(0)
    for expert in experts:
        expert["embeddings.word.weight"][9:] = base["embeddings.word.weight"][9:]
        expert["embeddings.word.weight"][:, 4] = base["embeddings.word.weight"][:, 4]
        expert["square.weight"] = base["square.weight"].clone()
    for variant in ("common", "common_and_task"):
        merged = merger("iso", variant=variant)(experts, base)
        tables = merged["embeddings.word.weight"] - base["embeddings.word.weight"]
        assert_close(tables[9:], torch.zeros_like(tables[9:]), rtol=0, atol=1e-12)
        assert_close(tables[:, 4], torch.zeros_like(tables[:, 4]), rtol=0, atol=1e-12)
        assert torch.equal(merged["square.weight"], base["square.weight"])


def test_an_expert_that_is_the_base_disturbs_nobody_in_tsv() -> None:
    """Its singular vectors are whatever LAPACK returns; those of the other are kept as they are."""
    expert, base = random(1), random(0)
    merged = merger("tsv")([expert, {n: t.clone() for n, t in base.items()}], base)
    left, values, right = np.linalg.svd((expert["up.weight"] - base["up.weight"]).numpy())
    cut = left[:, :4] * values[:4] @ right[:4]
    assert_close(merged["up.weight"] - base["up.weight"], torch.from_numpy(cut))


def test_copies_are_cut_to_what_is_kept_of_each() -> None:
    expert, base = random(1), random(0)
    for keep, rank in ((None, 4), (1.0, 12)):
        merged = merger("tsv", keep=keep)([expert, dict(expert), dict(expert)], base)
        left, values, right = np.linalg.svd(
            (expert["square.weight"] - base["square.weight"]).numpy()
        )
        cut = torch.from_numpy(left[:, :rank] * values[:rank] @ right[:rank])
        assert_close(merged["square.weight"] - base["square.weight"], cut)


def test_a_matrix_too_narrow_for_all_experts_is_named() -> None:
    experts, base = [random(seed) for seed in (1, 2, 3)], random(0)
    merged = merger("tsv")(experts, base)
    assert isinstance(merged, Lazy)
    assert merged.report == {"too narrow for a singular vector each": ["embeddings.type.weight"]}
    assert torch.equal(merged["embeddings.type.weight"], base["embeddings.type.weight"])
    widened = merger("tsv", at_least=1)(experts, base)
    assert isinstance(widened, Lazy)
    assert widened.report == {}
    assert not torch.equal(widened["embeddings.type.weight"], base["embeddings.type.weight"])


@pytest.mark.parametrize("common", [0.0, 0.1, 0.2, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("experts", [1, 2, 3, 5])
def test_iso_takes_as_many_singular_vectors_as_there_are(common: float, experts: int) -> None:
    """Rounding to whole vectors for each expert never asks for more than all."""
    states, base = [random(seed) for seed in range(1, experts + 1)], random(0)
    merged = merger("iso", variant="common_and_task", common=common)(states, base)
    for name in ("square.weight", "up.weight", "down.weight", "embeddings.type.weight"):
        values = torch.linalg.svdvals(merged[name] - base[name])
        assert_close(values, values.mean().expand(len(values)))


# WUDI --------------------------------------------------------------------------------------


def test_wudi_is_where_gradient_descent_from_the_sum_ends() -> None:
    numbers = np.random.default_rng(0)
    vectors = [numbers.normal(size=(2, 7)) for _ in range(2)]
    found = sum(vectors)
    for _ in range(4000):
        slope = sum((found - v) @ v.T @ v / np.sum(v**2) for v in vectors)
        found = found - 0.5 * slope
    base = {"weight": torch.zeros(2, 7, dtype=torch.float64)}
    merged = merger("wudi")([{"weight": torch.from_numpy(v)} for v in vectors], base)
    assert_close(merged["weight"], torch.from_numpy(np.asarray(found)), rtol=1e-8, atol=1e-8)
    assert isinstance(merged, Lazy)
    assert merged.report["directions that no task vector has"] == {"weight": 3}


def test_a_step_of_adam_by_hand() -> None:
    """The slope at (2, 1) is 2 ((1, 0) + (1, 1) / 2), and the first step as long as the rate."""
    options = {"solver": "adam", "steps": 1, "learning_rate": 0.1}
    found = of_vectors("wudi", [[1.0, 0]], [[1.0, 1]], **options)
    assert_close(found, torch.tensor([[1.9, 0.9]], dtype=torch.float64))


def test_adam_leaves_what_does_not_interfere() -> None:
    """One expert alone, task vectors on inputs of their own, and one that is the base."""
    alone = [[1.0, 2], [0, 1]]
    found = of_vectors("wudi", alone, [[0.0, 0], [0, 0]], solver="adam")
    assert_close(found, torch.tensor(alone, dtype=torch.float64))
    found = of_vectors("wudi", [[1.0, 2, 0, 0]], [[0, 0, 3.0, 4]], solver="adam")
    assert_close(found, torch.tensor([[1.0, 2, 3, 4]], dtype=torch.float64))


def test_how_alike_the_solvers_are_is_as_the_docstring_says() -> None:
    """300 steps of 1e-5 reach the solution for short task vectors alone."""
    numbers = torch.Generator().manual_seed(0)
    drawn = torch.randn(4, 64, 64, generator=numbers, dtype=torch.float64)

    def cosine(first: torch.Tensor, second: torch.Tensor) -> float:
        return float(torch.cosine_similarity(first.flatten(), second.flatten(), dim=0))

    zero = {"weight": torch.zeros(64, 64, dtype=torch.float64)}
    for size, alike in ((5e-4, 0.998), (1e-3, 0.97), (2e-3, 0.92), (1e-2, 0.87)):
        experts = [{"weight": size * one} for one in drawn]
        exact, adam = (
            merger("wudi", solver=solver)(experts, zero)["weight"] for solver in ("exact", "adam")
        )
        assert cosine(exact, adam) == pytest.approx(alike, abs=0.01)
        assert cosine(exact, size * drawn.sum(0)) == pytest.approx(0.85, abs=0.01)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"solver": "adam", "ridge": 0.1}, "ridge wudi solver=adam"),
        ({"steps": 10}, "steps wudi solver=exact"),
        ({"learning_rate": 1e-3}, "learning_rate wudi solver=exact"),
    ],
)
def test_a_solver_takes_no_options_of_the_other(options: dict[str, Any], said: str) -> None:
    experts, base = models()
    with mistake(BadOption, said):
        merger("wudi", **options)(experts, base)


def test_actmat_by_hand() -> None:
    """An expert that moved twice as far counts four times as much; others do not interfere."""
    assert of_vectors("actmat", [[2.0, 0]], [[1.0, 0]]).tolist() == [[pytest.approx(1.8), 0]]
    found = of_vectors("actmat", [[2.0, 0]], [[0, 1.0]])
    np.testing.assert_allclose(found, [[2, 1]], rtol=1e-6)


def test_actmat_is_regmean_on_the_task_vectors_as_inputs() -> None:
    """The two are written apart: one in the task vectors, the other in the weights."""
    experts, base = ([random(seed) for seed in (1, 2, 3)], random(0))
    names = ["square.weight", "up.weight"]
    moved = [{n: expert[n] - base[n] for n in names} for expert in experts]
    gram = [{n: one[n].T @ one[n] for n in names} for one in moved]
    expected = harness.MERGERS["regmean"].function(experts, base, gram=gram, off_diagonal=1.0)
    found = merger("actmat")(experts, base)
    for name in names:
        assert_close(found[name], expected[name], rtol=1e-6, atol=1e-6)


def test_actmat_says_how_well_posed_it_was() -> None:
    vectors = [torch.tensor([[1.0, 2, 0, 0, 0]]), torch.tensor([[0, 0, 3.0, 4, 0]])]
    base = {"weight": torch.zeros(1, 5)}
    merged = merger("actmat")([{"weight": vector} for vector in vectors], base)
    assert_close(merged["weight"], sum(vectors), rtol=1e-6, atol=1e-6)
    assert merged.report["directions that no task vector has"] == {"weight": 3}
    assert merged.report["condition"]["weight"] == pytest.approx(5, rel=1e-2)
    none = merger("actmat")([base, base], base)
    assert not none["weight"].any()


def test_wudi_keeps_what_does_not_interfere() -> None:
    """Task vectors on inputs of their own are summed, and each is met exactly."""
    found = of_vectors("wudi", [[1.0, 2, 0, 0]], [[0, 0, 3.0, 4]])
    assert_close(found, torch.tensor([[1.0, 2, 3, 4]], dtype=torch.float64))


@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (1, 9)])
def test_wudi_of_copies_is_the_model(shape: tuple[int, int]) -> None:
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = of_vectors("wudi", *[weight.tolist()] * 3)
    assert_close(found, weight, rtol=1e-9, atol=1e-9)


def test_wudi_leaves_an_expert_that_is_the_base_no_say() -> None:
    alone, beside = (
        of_vectors("wudi", [[1.0, 2], [0, 1]], [[2.0, 1], [1, 1]], *more)
        for more in ([], [[[0.0, 0], [0, 0]]])
    )
    assert_close(alone, beside)
    assert not of_vectors("wudi", [[0.0, 0]], [[0.0, 0]]).any()


def test_a_large_ridge_is_the_mean_by_size() -> None:
    vectors = np.array([[[1.0, 0]], [[1.0, 1]]])
    shares = 1 / (vectors**2).sum((1, 2))
    expected = np.tensordot(shares / shares.sum(), vectors, 1)
    found = of_vectors("wudi", *vectors.tolist(), ridge=1e9)
    assert_close(found, torch.from_numpy(expected), rtol=1e-6, atol=1e-6)


# PCB ---------------------------------------------------------------------------------------


def test_pcb_of_vectors_of_one_size_is_the_base() -> None:
    """Where no entry is larger than another there is no competition, and no 0 / 0."""
    assert not of_vectors("pcb", [1.0, 1, 1], [1.0, 1, 1]).any()
    assert not of_vectors("pcb", [0.0, 0], [0.0, 0]).any()


def test_pcb_ranks_over_the_whole_model() -> None:
    base = {"small": torch.zeros(50), "large": torch.zeros(50)}
    steps = torch.linspace(1, 2, 50)
    experts = [{"small": steps * 1e-3, "large": steps}, {"small": steps * 2e-3, "large": steps * 2}]
    merged = merger("pcb", density=0.25)(experts, base)
    assert not merged["small"].any()
    assert int((merged["large"] != 0).sum()) == 24  # the 25th is the threshold itself


@pytest.mark.parametrize("density", [0.05, 0.5, 0.95, 1.0])
def test_pcb_drops_by_rank_also_where_most_balances_are_negative(density: float) -> None:
    """Opposed task vectors balance below 0 in all entries but few."""
    numbers = np.random.default_rng(1)
    first = numbers.normal(size=200)
    vectors = [first, -1.5 * first + 0.1 * numbers.normal(size=200)]
    base = {"weight": torch.zeros(200, dtype=torch.float64)}
    found = merger("pcb", density=density, clamp=0.01)(
        [{"weight": torch.from_numpy(v)} for v in vectors], base
    )
    expected = reference_pcb(
        [{"weight": v} for v in vectors], {"weight": np.zeros(200)}, density=density, clamp=0.01
    )
    assert_close(found["weight"], torch.from_numpy(expected["weight"]), rtol=2e-5, atol=2e-5)


# Lines, and a sweep along one --------------------------------------------------------------


@pytest.mark.parametrize("name", ["tsv", "iso", "wudi", "actmat", "pcb"])
def test_a_merge_is_a_line(name: str) -> None:
    experts, base = models()
    for scale in (0.0, 0.3, -2.0):
        found = merger(name, scale=scale)(experts, base)
        assert isinstance(found, ScaledMerge)
        close(found, {n: base[n] + scale * found.direction[n] for n in base})
    assert specs(found) == specs(model(0))


_toys = known(TOY)
Sweep = Callable[..., dict[str, Any]]


@pytest.fixture
def swept(minis: Minis, tmp_path: Path) -> Sweep:
    """The record of a merge into a folder of this name, by keywords of a recipe."""

    def of(out: str = "out", **asked: Any) -> dict[str, Any]:
        folders = minis("bert")
        both = {"experts": (str(folders["a"]), str(folders["b"])), "base": str(folders["base"])}
        recipe = Recipe(**{**both, "tasks": ("toy/pairs",), "device": "cpu", **asked})
        merge(recipe, out=tmp_path / out)
        found: dict[str, Any] = json.loads((tmp_path / out / "merge.json").read_text())
        return found

    return of


def counted(monkeypatch: pytest.MonkeyPatch, place: Any, name: str) -> list[str]:
    """A mark for every call of a function that is there, from now on."""
    calls, real = [], getattr(place, name)

    def counting(*args: Any, **options: Any) -> Any:
        calls.append(name)
        return real(*args, **options)

    monkeypatch.setattr(place, name, counting)
    return calls


WORK = {
    "tsv": (torch.linalg, "svd"),
    "iso:variant=common_and_task": (torch.linalg, "svd"),
    "wudi:matrices=all": (weights, "least_solution"),
    "pcb": (weights, "smallest_magnitude"),
}
"""What takes the time of a merger."""


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("text", WORK)
def test_a_sweep_over_scale_does_the_work_once(
    text: str, named: bool, swept: Sweep, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = counted(monkeypatch, *WORK[text])
    swept("plain", merger=text)
    once = len(calls)
    assert once > 5
    calls.clear()
    of = f"{text.partition(':')[0]}." if named else ""
    record = swept(merger=text, tune=f"{of}scale=-40:40:20")
    assert len(calls) == once
    assert len(record["tuned"]["trials"]) == 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "plain"]


@pytest.mark.parametrize("text", WORK)
def test_what_a_sweep_scores_and_writes_are_merges_at_that_scale(
    text: str, swept: Sweep, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """To the bit, every candidate; the one in the middle is made to win."""
    scored: list[str] = []

    def score(_: ValidationScorer, candidate: StateDict) -> float:
        scored.append(digest(candidate))
        return len(scored) % 3

    monkeypatch.setattr(ValidationScorer, "__call__", score)
    record = swept(merger=text, tune="scale=-0.7:0.7:0.35")
    values = [trial["value"] for trial in record["tuned"]["trials"]]
    assert record["tuned"]["chosen"] == values[1] == -0.35
    scores = [trial["score"] for trial in record["tuned"]["trials"]]
    assert scores == [1, 2, 0, 1, 2]
    alone = [
        swept(f"{value}", merger=f"{text}{',' if ':' in text else ':'}scale={value}")
        for value in values
    ]
    assert scored == [one["digest"] for one in alone]
    assert len({*scored}) == len(values)
    assert weights_of(tmp_path / "-0.35") == weights_of(tmp_path / "out")
    assert alone[1].get("report") == record.get("report")
    assert alone[1]["merger"] == record["merger"]


@pytest.mark.parametrize("values", ["0:1:inf", "0:inf:1", "0:10:1e-999999", "0:1:nan", "1:0:1"])
def test_steps_that_are_no_numbers_are_one_line(values: str) -> None:
    with mistake(BadOption, "--tune", f"scale={values}", "FIRST:LAST:STEP"):
        values_of(f"scale={values}")


def weights_of(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def test_another_option_is_tuned_by_merging_anew(
    swept: Sweep, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The last value is made to win: the first one's direction would show."""
    scores = itertools.count()
    monkeypatch.setattr(ValidationScorer, "__call__", lambda *_: next(scores))
    record = swept(merger="iso:variant=common_and_task", tune="common=0.2:0.8:0.6")
    assert record["tuned"]["chosen"] == 0.8
    swept("alone", merger="iso:variant=common_and_task,common=0.8")
    assert weights_of(tmp_path / "out") == weights_of(tmp_path / "alone")


def test_rows_that_are_not_there_are_said_before_the_work(
    swept: Sweep, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    calls = counted(monkeypatch, torch.linalg, "svd")
    with mistake(BadRecipe, "--tune-on"):
        swept(merger="tsv", tasks=(), tune="scale=0:1:1")
    assert not calls
    assert not list(tmp_path.iterdir())


def test_an_error_in_a_sweep_leaves_nothing(
    swept: Sweep, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[str] = []

    def fails(*_: Any, **__: Any) -> Any:
        seen.extend(path.name for path in tmp_path.rglob("*"))
        raise RuntimeError("no forward pass")

    monkeypatch.setattr("harness.merging.validation.forward", fails)
    with pytest.raises(RuntimeError, match="no forward pass"):
        swept(merger="tsv", tune="scale=0:1:1")
    assert not seen, "what is kept has no name"
    assert not list(tmp_path.iterdir())


def test_from_the_command_line(
    minis: Minis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = minis("bert")
    out = tmp_path / "out"
    arguments = ["merge", str(folders["a"]), str(folders["b"]), "--base", str(folders["base"])]
    arguments += ["--tasks", "toy/pairs", "--merger", "tsv:at_least=1", "--tune", "scale=0:1:0.5"]
    assert main([*arguments, "--out", str(out)]) == 0, capsys.readouterr().err
    record = json.loads((out / "merge.json").read_text())
    assert record["merger"]["name"] == "tsv"
    assert record["merger"]["options"]["keep"] is None
    assert record["heads"] == "average"


def test_the_spectral_mergers_are_listed_with_their_papers() -> None:
    papers = {name: harness.MERGERS[name].paper for name in ("tsv", "iso", "wudi", "actmat", "pcb")}
    assert papers == {
        "tsv": "arXiv:2412.00081",
        "iso": "arXiv:2502.04959",
        "wudi": "arXiv:2503.08099",
        "actmat": "arXiv:2604.01329",
        "pcb": "arXiv:2410.02396",
    }
