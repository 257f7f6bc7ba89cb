"""What DARE and DELLA draw, drop and rescale; what both promise is in test_conformance.py."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import harness
from harness import Choice, StateDict, weights
from harness.errors import BadOption
from harness.options import resolve
from harness.premergers import dare, della
from harness.premergers.dare import random_keep
from tests.mistakes import mistake
from tests.states import EXPERTS, SHAPES, close, few, model, models

Premerge: TypeAlias = Callable[[Sequence[StateDict], StateDict], Sequence[StateDict]]


def premerge(name: str, **options: Any) -> Premerge:
    return partial(harness.PREMERGE[name].function, **options)


def bits(states: Iterable[StateDict]) -> list[dict[str, bytes]]:
    return [{name: state[name].numpy().tobytes() for name in sorted(state)} for state in states]


# Random masks ------------------------------------------------------------------------------


def reference_draw(
    shape: tuple[int, ...], method: str, seed: int, index: int, name: str
) -> np.ndarray:
    word = hashlib.sha256(f"{seed}|{method}|{index}|{name}".encode()).digest()[:8]
    numbers = np.random.Generator(np.random.PCG64(sum(b << 8 * i for i, b in enumerate(word))))
    return numbers.random(int(np.prod(shape))).reshape(shape)


def reference_dropped(
    shape: tuple[int, ...], drop_rate: float, seed: int, index: int, name: str
) -> np.ndarray:
    return reference_draw(shape, "dare", seed, index, name) < drop_rate


def reference_probabilities(vector: np.ndarray, drop_rate: float, epsilon: float) -> np.ndarray:
    """Drop probabilities by rank, row by row."""
    count = len(vector) if vector.ndim > 1 else 1
    rows = vector.reshape(count, vector.size // max(1, count))
    found = np.full(rows.shape, drop_rate)
    for row, magnitudes in zip(found, np.abs(rows), strict=True):
        if row.size > 1:
            ranked = sorted(range(row.size), key=lambda i, m=magnitudes: (m[i], i))
            ends = drop_rate + epsilon / 2, drop_rate - epsilon / 2
            row[ranked] = np.linspace(*ends, row.size)
    return found.reshape(vector.shape)


@few
@given(
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    st.one_of(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1)),
    st.integers(0, 2**63),
    st.integers(0, 20),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
)
def test_masks_agree_with_numpy(
    shape: tuple[int, ...], drop_rate: float, seed: int, index: int, name: str
) -> None:
    keep = random_keep(shape, drop_rate, seed, index, name).numpy()
    np.testing.assert_array_equal(
        keep, ~reference_dropped(shape, drop_rate, seed, index, name), strict=True
    )


@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize("on", ["task_vector", "weights"])
@pytest.mark.parametrize("drop_rate", [0.1, 0.5, 0.9, 1.0])
def test_dare_agrees_with_numpy(drop_rate: float, on: str, rescale: bool) -> None:
    experts, base = models()
    after = premerge("dare", drop_rate=drop_rate, on=on, rescale=rescale, seed=3)(experts, base)
    for index, (state, expert) in enumerate(zip(after, experts, strict=True)):
        for name, shape in SHAPES.items():
            origin = base[name].double().numpy() if on == "task_vector" else 0.0
            vector = expert[name].double().numpy() - origin
            dropped = reference_dropped(shape, drop_rate, 3, index, name)
            kept = np.where(dropped, 0, vector)
            if rescale and drop_rate < 1:
                kept = kept / (1 - drop_rate)
            np.testing.assert_allclose(state[name].numpy(), kept + origin, rtol=1e-6, atol=1e-6)


WINDOWS = [(0.5, 0.14), (0.3, 0.0), (0.5, 1.0), (0.9, 0.2), (0.1, 0.2), (0.0, 0.0), (1.0, 0.0)]


@few
@given(
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    st.sampled_from([1, 3, 1000]),
    st.integers(0, 10**6),
    st.sampled_from(WINDOWS),
    st.booleans(),
)
def test_della_agrees_with_numpy(
    shape: tuple[int, ...], levels: int, seed: int, window: tuple[float, float], rescale: bool
) -> None:
    numbers = np.random.default_rng(seed)
    # a coarse grid: exact in float32, with many ties
    vectors = [np.asarray(numbers.integers(-levels, levels + 1, shape) / 16.0) for _ in range(2)]
    origin = np.asarray(numbers.integers(-9, 9, shape), dtype=np.float32)
    della = premerge("della", drop_rate=window[0], epsilon=window[1], rescale=rescale, seed=seed)
    experts = [{"a.b": torch.from_numpy(np.asarray(origin + v, np.float32))} for v in vectors]
    after = della(experts, {"a.b": torch.from_numpy(origin)})
    for index, (state, vector) in enumerate(zip(after, vectors, strict=True)):
        p = reference_probabilities(vector, *window)
        stays = reference_draw(shape, "della", seed, index, "a.b") >= p
        divisor = np.where(stays, 1 - p, 1) if rescale else 1.0
        expected = origin + np.where(stays, vector / divisor, 0)
        np.testing.assert_allclose(state["a.b"].numpy(), expected, rtol=1e-6, atol=1e-6)


def test_a_mask_once_drawn_stays_the_same() -> None:
    """Literal values: a change of the stream would change merges that somebody has published."""
    drawn = random_keep((2, 4), 0.5, 0, 0, "encoder.layer.0.attention.self.query.weight")
    assert drawn.int().tolist() == [[1, 1, 1, 0], [1, 1, 0, 1]]


def test_masks_follow_the_entries_whatever_the_memory_layout() -> None:
    expert = model(1)
    turned = {n: t.mT.contiguous().mT if t.ndim > 1 else t for n, t in expert.items()}
    assert not turned["weight"].is_contiguous()
    for method in (
        premerge("dare", strategy="random"),
        premerge("dare", strategy="magnitude"),
        premerge("della"),
    ):
        assert bits(method([turned], model(0))) == bits(method([expert], model(0)))


def test_rows_do_not_depend_on_how_many_are_worked_on_at_a_time() -> None:
    experts, base = models()
    expected = bits(premerge("della")(experts, base))
    for size in (1, 4, 7):
        with weights.pieces_of(size):
            assert bits(premerge("della")(experts, base)) == expected


@pytest.mark.parametrize("name", ["dare", "della"])
def test_another_seed_gives_other_masks(name: str) -> None:
    experts, base = models()
    first, second = (premerge(name, seed=seed)(experts, base)[0] for seed in (0, 1))
    assert bits([first]) != bits([second])


SIZE = 40_000


@pytest.mark.parametrize("drop_rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(
    ("one", "other"), [((0, "a"), (1, "a")), ((0, "a"), (0, "b")), ((1, "a"), (11, "a"))]
)
def test_masks_of_experts_and_tensors_are_independent(
    one: tuple[int, str], other: tuple[int, str], drop_rate: float
) -> None:
    """They agree as often as two draws do: p^2 + (1 - p)^2, within four standard deviations."""
    first, second = (random_keep((SIZE,), drop_rate, 0, *which) for which in (one, other))
    expected = drop_rate**2 + (1 - drop_rate) ** 2
    found = (first == second).double().mean().item()
    assert found == pytest.approx(expected, abs=4 * (expected * (1 - expected) / SIZE) ** 0.5)


@pytest.mark.parametrize("drop_rate", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("on", ["task_vector", "weights"])
def test_rescaling_keeps_the_expectation(drop_rate: float, on: str) -> None:
    base = {"w": torch.full((SIZE,), 5.0 if on == "task_vector" else 0.0)}
    expert = {"w": base["w"] + 1}
    (after,) = premerge("dare", drop_rate=drop_rate, on=on)([expert], base)
    deviation = (drop_rate / (1 - drop_rate) / SIZE) ** 0.5
    assert (after["w"] - base["w"]).mean().item() == pytest.approx(1, abs=4 * deviation)
    (after,) = premerge("dare", drop_rate=drop_rate, on=on, rescale=False)([expert], base)
    deviation *= 1 - drop_rate
    assert (after["w"] - base["w"]).mean().item() == pytest.approx(1 - drop_rate, abs=4 * deviation)


@pytest.mark.parametrize(("name", "variance"), [("dare", 1.0), ("della", 0.6 / 0.4)])
def test_the_mean_over_seeds_is_the_task_vector(name: str, variance: float) -> None:
    """An entry v that falls with probability p varies by v^2 p / (1 - p)."""
    expert, base = model(1), model(0)
    seeds = range(300)
    options = {"epsilon": 0.2} if name == "della" else {}
    runs = [premerge(name, seed=seed, **options)([expert], base)[0]["weight"] for seed in seeds]
    vector = expert["weight"] - base["weight"]
    error = torch.stack(runs).mean(0) - expert["weight"]
    assert (error.abs() <= 4 * vector.abs() * (variance / len(seeds)) ** 0.5).all()


@pytest.mark.parametrize(("drop_rate", "epsilon"), [(0.5, 0.14), (0.5, 0.8), (0.9, 0.2)])
def test_the_larger_an_entry_the_less_often_it_falls(drop_rate: float, epsilon: float) -> None:
    """Of every quarter of the ranks, the share that falls is p in the middle of the quarter."""
    row = torch.randperm(SIZE, generator=torch.Generator().manual_seed(0)) + 1.0
    options = {"drop_rate": drop_rate, "epsilon": epsilon, "rescale": False}
    (after,) = premerge("della", **options)([{"w": row}], {"w": torch.zeros(SIZE)})
    fell = (after["w"] == 0)[row.argsort()].double().view(4, -1).mean(dim=1)
    expected = torch.tensor([drop_rate + epsilon * c / 8 for c in (3, 1, -1, -3)])
    assert fell.tolist() == pytest.approx(expected.tolist(), abs=4 * 0.5 / (SIZE / 4) ** 0.5)


# By hand -----------------------------------------------------------------------------------


def dare_list(weight: Sequence[float], base: Sequence[float], **options: Any) -> list[float]:
    (after,) = premerge("dare", **options)(
        [{"w": torch.tensor(weight, dtype=torch.float32)}],
        {"w": torch.tensor(base, dtype=torch.float32)},
    )
    return after["w"].tolist()


@pytest.mark.parametrize(
    ("vector", "drop_rate", "rescale", "expected"),
    [
        ((1, -2, 3, -4), 0.5, True, [0, 0, 6, -8]),
        ((1, -2, 3, -4), 0.5, False, [0, 0, 3, -4]),
        ((-4, 3, -2, 1), 0.75, True, [-16, 0, 0, 0]),
        # what ties with the largest of the dropped falls too
        ((1, 2, -2, 3), 0.5, True, [0, 0, 0, 6]),
        ((2, 2, 2, 2), 0.5, True, [0, 0, 0, 0]),
        # int(3 * 0.5) is 1, and int(1 * 0.5) is 0: nothing falls, and all is rescaled
        ((1, 2, 3), 0.5, True, [0, 4, 6]),
        ((5,), 0.5, True, [10]),
        ((0, 0, 1, 0), 0.25, False, [0, 0, 1, 0]),
        ((1, 2), 0.0, True, [1, 2]),
        ((1, 2), 1.0, True, [0, 0]),
    ],
)
def test_magnitude_by_hand(
    vector: tuple[float, ...], drop_rate: float, rescale: bool, expected: list[float]
) -> None:
    options = {"strategy": "magnitude", "drop_rate": drop_rate, "rescale": rescale}
    base = [100.0] * len(vector)
    moved = [value + 100 for value in vector]
    assert dare_list(moved, base, **options) == [value + 100 for value in expected]
    assert dare_list(vector, base, on="weights", **options) == expected


def test_magnitude_is_by_tensor() -> None:
    expert = {"large": torch.tensor([8.0, 7.0]), "small": torch.tensor([2.0, 1.0])}
    base = {name: torch.zeros(2) for name in expert}
    (after,) = premerge("dare", strategy="magnitude", rescale=False)([expert], base)
    assert {name: after[name].tolist() for name in after} == {"large": [8, 0], "small": [2, 0]}


@pytest.mark.parametrize("rescale", [True, False])
def test_random_by_hand(rescale: bool) -> None:
    """Of weights 3 over a base of 1, what stays is 1 + 2 / (1 - 0.75) and what falls is 1."""
    kept = random_keep((40,), 0.75, 0, 0, "w").tolist()
    options = {"drop_rate": 0.75, "rescale": rescale}
    vector, whole = (8, 12) if rescale else (2, 3)
    assert dare_list([3] * 40, [1] * 40, **options) == [1 + vector * stays for stays in kept]
    assert dare_list([3] * 40, [1] * 40, on="weights", **options) == [whole * k for k in kept]


@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize(
    ("vector", "window", "probabilities"),
    [
        ([3, -1, 2], (0.5, 0.2), [0.4, 0.6, 0.5]),
        ([[3, -1, 2], [0, 7, 0]], (0.5, 0.2), [[0.4, 0.6, 0.5], [0.6, 0.4, 0.5]]),
        ([[[1, 2], [3, 4]]], (0.3, 0.6), [[[0.6, 0.4], [0.2, 0.0]]]),
        ([[5], [1]], (0.5, 0.2), [[0.5], [0.5]]),
        (5, (0.5, 1.0), 0.5),
        ([1, 2], (0.5, 1.0), [1.0, 0.0]),
    ],
)
def test_della_by_hand(
    vector: Any, window: tuple[float, float], probabilities: Any, rescale: bool
) -> None:
    """Each entry of a row, or of a tensor without rows, falls or is divided by its own 1 - p."""
    tensor, p = (torch.tensor(values, dtype=torch.float32) for values in (vector, probabilities))
    base = {"w": torch.full_like(tensor, 2.0)}
    seen = set()
    for seed in range(30):
        options = {"drop_rate": window[0], "epsilon": window[1], "rescale": rescale, "seed": seed}
        (after,) = premerge("della", **options)([{"w": tensor + 2}], base)
        moved = after["w"] - 2
        stays = torch.from_numpy(reference_draw(tuple(p.shape), "della", seed, 0, "w")) >= p
        whole = tensor / (1 - p) if rescale else tensor
        torch.testing.assert_close(moved, torch.where(stays, whole, 0.0))
        seen.add(str(stays.tolist()))
    assert len(seen) > 1 or window[1] == 1


# Draws that are given ----------------------------------------------------------------------


def test_a_given_mask_by_hand() -> None:
    """Of the task vector (4, 6) the mask (0, 1), one for dropped, leaves (8, 0) at rate 1/2."""
    given = [torch.tensor([5.0, 7.0])], torch.ones(2), [torch.tensor([0.0, 1.0])]
    experts, base, masks = [{"w": t} for t in given[0]], {"w": given[1]}, [{"w": given[2][0]}]
    assert dare.with_masks(experts, base, masks, drop_rate=0.5)[0]["w"].tolist() == [9, 1]
    options = {"drop_rate": 0.5, "rescale": False}
    assert dare.with_masks(experts, base, masks, **options)[0]["w"].tolist() == [5, 1]
    options = {"drop_rate": 0.5, "on": "weights"}
    assert dare.with_masks(experts, base, masks, **options)[0]["w"].tolist() == [10, 0]


def published(expert: torch.Tensor, base: torch.Tensor, p: float) -> tuple[torch.Tensor, ...]:
    """MergeLM's masks come from torch's global generator; the mask, and what it leaves."""
    mask = torch.bernoulli(torch.full_like(expert, p))
    return mask, base + (expert - base) * (1 - mask) / (1 - p)


def test_a_published_draw_is_reproduced() -> None:
    experts, base = models()
    with torch.random.fork_rng([]):
        torch.manual_seed(3)
        drawn = [{n: published(e[n], base[n], 0.9) for n in base} for e in experts]
    masks = [{name: pair[0] for name, pair in one.items()} for one in drawn]
    found = dare.with_masks(experts, base, masks, drop_rate=0.9)
    for state, expected in zip(found, drawn, strict=True):
        close(state, {name: pair[1] for name, pair in expected.items()})


@pytest.mark.parametrize("name", ["dare", "della"])
def test_our_own_draw_given_back_gives_the_same_bytes(name: str) -> None:
    """And in the same memory: in pieces of any size."""
    experts, base = models()
    masks: list[dict[str, torch.Tensor]] = [{} for _ in experts]
    for index, expert in enumerate(experts):
        for key, tensor in expert.items():
            drawn = reference_draw(tuple(tensor.shape), name, 0, index, key)
            vector = (tensor - base[key]).numpy()
            p = 0.5 if name == "dare" else reference_probabilities(vector, 0.5, 0.14)
            masks[index][key] = torch.from_numpy(np.asarray(drawn < p))
    window = {} if name == "dare" else {"epsilon": 0.14}
    method = {"dare": dare, "della": della}[name]
    found = method.with_masks(experts, base, masks, drop_rate=0.5, **window)
    assert bits(found) == bits(premerge(name)(experts, base))


@pytest.mark.parametrize("method", [dare, della], ids=["dare", "della"])
def test_masks_that_do_not_fit(method: Any) -> None:
    experts, base = models()
    options = {"drop_rate": 0.5} | ({"epsilon": 0.1} if method is della else {})
    masks = [{n: torch.zeros_like(t) for n, t in expert.items()} for expert in experts]
    with mistake(BadOption, "2 3"):
        method.with_masks(experts, base, masks[:2], **options)
    masks[1]["weight"] = torch.zeros(3, 4)
    said = "mask weight expert 2 (3, 4), (4, 3)"
    with mistake(BadOption, said):
        method.with_masks(experts, base, masks, **options)
    del masks[1]["weight"]
    with mistake(BadOption, "weight 2"):
        method.with_masks(experts, base, masks, **options)


# Edges -------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["random", "magnitude"])
@pytest.mark.parametrize("rescale", [True, False])
def test_nothing_dropped_and_all_dropped(strategy: str, rescale: bool) -> None:
    experts, base = models()
    options = {"strategy": strategy, "rescale": rescale}
    for state, expert in zip(
        premerge("dare", drop_rate=0.0, **options)(experts, base), experts, strict=True
    ):
        close(state, expert)
    for state in premerge("dare", drop_rate=1.0, **options)(experts, base):
        assert bits([state]) == bits([base])
    for state in premerge("dare", drop_rate=1.0, on="weights", **options)(experts, base):
        assert not any(tensor.any() for tensor in state.values())


@pytest.mark.parametrize("rescale", [True, False])
def test_della_drops_nothing_or_all(rescale: bool) -> None:
    experts, base = models()
    options = {"epsilon": 0.0, "rescale": rescale}
    for state, expert in zip(
        premerge("della", drop_rate=0.0, **options)(experts, base), experts, strict=True
    ):
        close(state, expert)
    for state in premerge("della", drop_rate=1.0, **options)(experts, base):
        assert bits([state]) == bits([base])


@pytest.mark.parametrize("name", [n for n, entry in harness.MERGERS.items() if not entry.needs])
@pytest.mark.parametrize("before", ["dare", "della"])
def test_nothing_dropped_before_a_merger_changes_nothing(name: str, before: str) -> None:
    experts, base = models()
    experts = experts[: 2 if name == "slerp" else EXPERTS]
    merge = harness.MERGERS[name].function
    options = {"epsilon": 0.0} if before == "della" else {}
    after = premerge(before, drop_rate=0.0, **options)(experts, base)
    close(merge(after, base), merge(experts, base))


@pytest.mark.parametrize(
    ("drop_rate", "epsilon", "window"),
    [(0.95, 0.2, "0.85 1.05"), (0.0, 0.14, "-0.07 0.07"), (0.5, -0.2, "0.6 0.4")],
)
def test_the_window_of_della_lies_within_shares(
    drop_rate: float, epsilon: float, window: str
) -> None:
    found = f"drop_rate {drop_rate:g} and epsilon {epsilon:g} of della drop with probabilities"
    with mistake(BadOption, found, window):
        premerge("della", drop_rate=drop_rate, epsilon=epsilon)([{}], {})


@pytest.mark.parametrize("options", [{"drop_rate": math.nan}, {"epsilon": math.nan}])
def test_the_window_of_della_is_a_number(options: dict[str, float]) -> None:
    with mistake(BadOption, "nan to nan [0, 1]"):
        premerge("della", **options)([{}], {})


@pytest.mark.parametrize("percent", range(0, 101, 5))
def test_a_window_may_touch_its_ends(percent: int) -> None:
    """0.95 + 0.1 / 2 is 1 to who wrote it, whatever it is in binary."""
    drop_rate = percent / 100
    epsilon = 2 * min(drop_rate, 1 - drop_rate)
    experts, base = models()
    for state in premerge("della", drop_rate=drop_rate, epsilon=epsilon)(experts, base):
        assert all(torch.isfinite(tensor).all() for tensor in state.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "largest"}, "random magnitude"),
        ({"on": "head"}, "task_vector weights"),
        ({"seed": 0.5}, "expected a whole number"),
        ({"rescale": "perhaps"}, "true false"),
        ({"drop_rate": "half"}, "expected a number"),
        ({"droprate": 0.5}, "drop_rate"),
    ],
)
def test_options_of_another_kind(options: dict[str, Any], message: str) -> None:
    with mistake(BadOption, message):
        resolve("pre-merging method", Choice("dare", options), harness.PREMERGE["dare"].function)
