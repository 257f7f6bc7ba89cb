"""What each merger computes, and the edges. What every one promises is in test_conformance.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import harness
from harness import StateDict, weights
from harness.errors import BadOption
from tests.mistakes import mistake
from tests.states import close, few, model, models

Merge: TypeAlias = Callable[[Sequence[StateDict], StateDict], StateDict]
Arrays: TypeAlias = "dict[str, np.ndarray]"

#: those that need nothing but weights; the others are in test_fisher_regmean.py and test_soups.py
NAMES = [name for name, entry in harness.MERGERS.items() if not entry.needs]


def merger(name: str, **options: Any) -> Merge:
    return partial(harness.MERGERS[name].function, **options)


def bits(state: StateDict, names: Iterable[str] | None = None) -> dict[str, bytes]:
    return {name: state[name].numpy().tobytes() for name in names or state}


# Agreement with a second implementation ----------------------------------------------------


def reference_average(experts: list[Arrays], base: Arrays, shares: Sequence[float] = ()) -> Arrays:
    shares = shares or [1 / len(experts)] * len(experts)
    return {n: sum(s * e[n] for s, e in zip(shares, experts, strict=True)) for n in base}


def reference_arithmetic(experts: list[Arrays], base: Arrays, scales: Sequence[float]) -> Arrays:
    return {
        n: base[n] + sum(s * (e[n] - base[n]) for s, e in zip(scales, experts, strict=True))
        for n in base
    }


def reference_ties(
    experts: list[Arrays],
    base: Arrays,
    percent: int,
    scale: float = 1.0,
    trim: str = "global",
    convention: str = "mergelm",
    combine: str = "mean",
) -> Arrays:
    """`percent` of the entries is kept; the rate of those masked is the decimal, not 1 - kept."""
    names = list(base)
    trimmed = []
    for expert in experts:
        parts = [(expert[n] - base[n]).ravel() for n in names]
        if trim == "global":
            vector = np.concatenate(parts)
            masked = int(len(vector) * ((100 - percent) / 100))
            if convention == "original":
                masked = len(vector) - int(len(vector) * (percent / 100))
            threshold = np.sort(np.abs(vector))[masked - 1] if masked else 0.0
            trimmed.append(np.where(np.abs(vector) >= threshold, vector, 0))
            continue
        for part in filter(len, parts):
            ranked = np.argsort(-np.abs(part), kind="stable")
            part[ranked[max(1, int(percent / 100 * len(part))) :]] = 0
        trimmed.append(np.concatenate(parts))
    entries = np.stack(trimmed, axis=1)
    elected = [float(np.sign(entry.sum())) for entry in entries]
    majority = float(np.sign(sum(elected)))
    merged = np.zeros(len(entries))
    for position, entry in enumerate(entries):
        sign = elected[position] or majority
        members = [value for value in entry if value * sign > 0]
        if members:
            merged[position] = {
                "mean": sum(members) / len(members),
                "sum": sum(members),
                "max": sign * max(map(abs, members)),
            }[combine]
    ends = np.cumsum([base[n].size for n in names])
    pieces = np.split(merged, ends[:-1])
    return {
        n: base[n] + scale * piece.reshape(base[n].shape)
        for n, piece in zip(names, pieces, strict=True)
    }


def reference_linear(experts: list[Arrays], shares: Sequence[float], normalize: bool) -> Arrays:
    whole = sum(shares) if normalize else 1
    return {
        n: sum(s * e[n] for s, e in zip(shares, experts, strict=True)) / whole for n in experts[0]
    }


def reference_slerp(first: Arrays, second: Arrays, t: float) -> Arrays:
    merged = {}
    for name, a in first.items():
        b = second[name]
        long = np.linalg.norm(a) * np.linalg.norm(b)
        cosine = np.sum(a * b) / long if long else 1.0
        if abs(cosine) > 0.9995:
            merged[name] = a + t * (b - a)
            continue
        angle = np.arccos(cosine)
        merged[name] = (np.sin(angle - t * angle) * a + np.sin(t * angle) * b) / np.sin(angle)
    return merged


def reference_breadcrumbs(
    experts: list[Arrays], base: Arrays, density: float, gamma: float, scale: float
) -> Arrays:
    def thin(vector: np.ndarray) -> np.ndarray:
        ranked = np.argsort(np.abs(vector).ravel(), kind="stable")
        rest = ranked[: vector.size - int(gamma * vector.size)]
        kept = np.zeros(vector.size)
        stay = rest[len(rest) - int(density * vector.size) :]
        kept[stay] = vector.ravel()[stay]
        return kept.reshape(vector.shape)

    return {n: base[n] + scale * sum(thin(e[n] - base[n]) for e in experts) for n in base}


def reference_breadcrumbs_of_rows(
    experts: list[Arrays], base: Arrays, density: float, gamma: float, scale: float
) -> Arrays:
    """Each row as a tensor of its own; what has no rows stays whole."""

    def thin(vector: np.ndarray) -> np.ndarray:
        if not vector.ndim or not vector.size:
            return vector
        rows = {str(i): row for i, row in enumerate(vector.reshape(-1, vector.shape[-1]))}
        zero = {name: 0 * row for name, row in rows.items()}
        kept = reference_breadcrumbs([rows], zero, density, gamma, 1.0)
        return np.stack(list(kept.values())).reshape(vector.shape)

    return {n: base[n] + scale * sum(thin(e[n] - base[n]) for e in experts) for n in base}


def reference_consensus(
    experts: list[Arrays], base: Arrays, threshold: float, agree: int, scale: float
) -> Arrays:
    merged = {}
    for name, origin in base.items():
        multi = sum(e[name] for e in experts) - len(experts) * origin
        votes = sum(
            abs(e[name] - origin) >= threshold * abs(origin + multi - e[name]) for e in experts
        )
        merged[name] = origin + scale * np.where(votes >= agree, multi, 0)
    return merged


def reference_model_stock(experts: list[Arrays], base: Arrays) -> Arrays:
    merged = {}
    for name, origin in base.items():
        vectors = [(e[name] - origin).ravel() for e in experts]
        cosines = [
            v @ w / (np.linalg.norm(v) * np.linalg.norm(w)) if v.any() and w.any() else 0.0
            for v, w in combinations(vectors, 2)
        ]
        cosine = max(0.0, np.mean(cosines)) if cosines else 1.0
        t = len(experts) * cosine / (1 + (len(experts) - 1) * cosine)
        merged[name] = t * np.mean([e[name] for e in experts], axis=0) + (1 - t) * origin
    return merged


def tensors(arrays: Arrays) -> StateDict:
    return {name: torch.from_numpy(np.array(a, dtype=np.float32)) for name, a in arrays.items()}


def agree(merged: StateDict, expected: Arrays) -> None:
    assert list(merged) == list(expected)
    for name, array in expected.items():
        found = merged[name].double().numpy()
        assert found.shape == array.shape
        np.testing.assert_allclose(found, array, rtol=1e-6, atol=1e-6, err_msg=name)


@st.composite
def families(draw: st.DrawFn) -> tuple[list[Arrays], Arrays]:
    """Experts and a base on a coarse grid: exact in float32, with many ties and zero sums."""
    shapes = draw(
        st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=4)
    )
    levels = draw(st.sampled_from([1, 3, 100]))
    numbers = np.random.default_rng(draw(st.integers(0, 10**6)))

    def one() -> Arrays:
        return {
            f"t{i}": np.asarray(numbers.integers(-levels, levels + 1, shape) / 16.0)
            for i, shape in enumerate(shapes)
        }

    return [one() for _ in range(draw(st.integers(1, 5)))], one()


@few
@given(families(), st.booleans())
def test_average_agrees_with_numpy(family: tuple[list[Arrays], Arrays], given_shares: bool) -> None:
    experts, base = family
    shares = [2.0 ** -(i + 1) for i in range(len(experts))]
    shares[-1] *= 2
    options = {"weights": shares} if given_shares else {}
    merged = merger("average", **options)([tensors(e) for e in experts], tensors(base))
    agree(merged, reference_average(experts, base, shares if given_shares else ()))


@few
@given(families(), st.sampled_from([0.0, 0.3, 1.0, -0.5]), st.booleans())
def test_task_arithmetic_agrees_with_numpy(
    family: tuple[list[Arrays], Arrays], scale: float, each: bool
) -> None:
    experts, base = family
    scales = [scale * (i + 1 if each else 1) for i in range(len(experts))]
    options = {"weights": scales} if each else {"scale": scale}
    merged = merger("task_arithmetic", **options)([tensors(e) for e in experts], tensors(base))
    agree(merged, reference_arithmetic(experts, base, scales))


@few
@given(families(), st.booleans(), st.sampled_from([[1, 1, 1, 1, 1], [3, -1, 2, 0, 4]]))
def test_linear_agrees_with_numpy(
    family: tuple[list[Arrays], Arrays], normalize: bool, shares: list[float]
) -> None:
    experts, base = family
    shares = shares[: len(experts)]
    merge = merger("linear", weights=shares, normalize=normalize)
    merged = merge([tensors(e) for e in experts], tensors(base))
    agree(merged, reference_linear(experts, shares, normalize))


@few
@given(families(), st.sampled_from([0.0, 0.25, 0.5, 0.9, 1.0]))
def test_slerp_agrees_with_numpy(family: tuple[list[Arrays], Arrays], t: float) -> None:
    experts, base = family
    first, second = experts[0], experts[-1]
    merged = merger("slerp", t=t)([tensors(first), tensors(second)], tensors(base))
    agree(merged, reference_slerp(first, second, t))


@few
@given(
    families(),
    st.sampled_from([(1.0, 0.0), (0.5, 0.5), (0.5, 0.25), (0.3, 0.1), (0.05, 0.9), (0.143, 0.007)]),
    st.sampled_from([1.0, 0.3]),
    st.sampled_from(["tensor", "row"]),
)
def test_breadcrumbs_agrees_with_numpy(
    family: tuple[list[Arrays], Arrays], shares: tuple[float, float], scale: float, per: str
) -> None:
    experts, base = family
    merge = merger("breadcrumbs", density=shares[0], gamma=shares[1], scale=scale, per=per)
    merged = merge([tensors(e) for e in experts], tensors(base))
    reference = reference_breadcrumbs if per == "tensor" else reference_breadcrumbs_of_rows
    agree(merged, reference(experts, base, *shares, scale))


@few
@given(
    families(),
    st.sampled_from([0.0, 0.25, 0.5, 1.0, 3.0]),
    st.integers(1, 5),
    st.sampled_from([1.0, 0.3]),
)
def test_consensus_agrees_with_numpy(
    family: tuple[list[Arrays], Arrays], threshold: float, least: int, scale: float
) -> None:
    experts, base = family
    least = min(least, len(experts))
    merge = merger("consensus", threshold=threshold, agree=least, scale=scale)
    merged = merge([tensors(e) for e in experts], tensors(base))
    agree(merged, reference_consensus(experts, base, threshold, least, scale))


@few
@given(families())
def test_model_stock_agrees_with_numpy(family: tuple[list[Arrays], Arrays]) -> None:
    experts, base = family
    merged = merger("model_stock")([tensors(e) for e in experts], tensors(base))
    agree(merged, reference_model_stock(experts, base))


TIES = [("global", "mergelm"), ("global", "original"), ("tensor", "mergelm")]


@few
@given(
    families(),
    st.integers(1, 100),
    st.sampled_from([1.0, 0.3]),
    st.sampled_from(TIES),
    st.sampled_from(["mean", "sum", "max"]),
)
def test_ties_agrees_with_numpy(
    family: tuple[list[Arrays], Arrays],
    percent: int,
    scale: float,
    scope: tuple[str, str],
    combine: str,
) -> None:
    experts, base = family
    options = {"scale": scale, "trim": scope[0], "convention": scope[1], "combine": combine}
    merge = merger("ties", density=percent / 100, **options)
    agree(
        merge([tensors(e) for e in experts], tensors(base)),
        reference_ties(experts, base, percent, **options),
    )


@pytest.mark.parametrize("combine", ["mean", "sum", "max"])
@pytest.mark.parametrize(("trim", "convention"), TIES)
def test_ties_agrees_with_numpy_on_weights_of_a_model(
    trim: str, convention: str, combine: str
) -> None:
    numbers = np.random.default_rng(5)
    shapes = {"embedding": (31, 16), "query": (16, 16), "bias": (16,)}

    def one(spread: float) -> Arrays:
        # float32 subtraction must not round, or the order of two entries could differ
        return {
            n: np.round(numbers.normal(0, spread, s) * 2**16) / 2**16 for n, s in shapes.items()
        }

    base = one(0.1)
    experts = [{n: base[n] + d for n, d in one(0.01).items()} for _ in range(5)]
    options = {"trim": trim, "convention": convention, "combine": combine}
    merged = merger("ties", **options)([tensors(e) for e in experts], tensors(base))
    agree(merged, reference_ties(experts, base, 20, **options))


# By hand -----------------------------------------------------------------------------------


def merge_lists(
    name: str, experts: Sequence[Sequence[float]], base: Sequence[float] = (), **options: Any
) -> list[float]:
    """The merge of one-tensor models; the base is zero unless given."""
    base = base or [0.0] * len(experts[0])
    merged = merger(name, **options)(
        [{"w": torch.tensor(values, dtype=torch.float32)} for values in experts],
        {"w": torch.tensor(base, dtype=torch.float32)},
    )
    return merged["w"].tolist()


def test_average_by_hand() -> None:
    assert merge_lists("average", [(1, 2), (3, 6)], (9, 9)) == [2, 4]
    assert merge_lists("average", [(1, 2), (3, 6)], weights=[0.25, 0.75]) == [2.5, 5]


def test_average_uses_weights_as_given_and_warns() -> None:
    with pytest.warns(UserWarning, match="sum to 2, not 1"):
        assert merge_lists("average", [(1, 2), (3, 6)], weights=[1, 1]) == [4, 8]


def test_task_arithmetic_by_hand() -> None:
    experts, base = [(2, 1), (1, 3)], (1, 1)
    assert merge_lists("task_arithmetic", experts, base, scale=0.5) == [1.5, 2]
    assert merge_lists("task_arithmetic", experts, base, scale=1) == [2, 3]
    assert merge_lists("task_arithmetic", experts, base, weights=[1, -1]) == [2, -1]
    assert merge_lists("task_arithmetic", [(2,), (4,)], (1,)) == pytest.approx([1 + 0.3 * 4])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [2, 4]),
        ({"weights": [3, 1]}, [1.5, 3]),
        ({"weights": [3, 1], "normalize": False}, [6, 12]),
        ({"weights": [-1, 2]}, [5, 10]),
        ({"normalize": False}, [4, 8]),
        ({"weights": [1, -1], "normalize": False}, [-2, -4]),
    ],
)
def test_linear_by_hand(options: dict[str, Any], expected: list[float]) -> None:
    assert merge_lists("linear", [(1, 2), (3, 6)], (9, 9), **options) == expected


@pytest.mark.parametrize("given", [[1, -1], [0, 0], [0.1 + 0.2, -0.3]])
def test_linear_does_not_divide_by_nothing(given: list[float]) -> None:
    with mistake(BadOption, "weights linear 0"):
        merge_lists("linear", [(1,), (2,)], weights=given)


@pytest.mark.parametrize("merger", ["linear", "average", "ties", "task_arithmetic"])
def test_a_weight_that_no_arithmetic_is_left_of_is_refused(merger: str) -> None:
    with mistake(BadOption, merger, "1e+308", "expected 1e+18 at most"):
        merge_lists(merger, [(1, 2), (3, 6)], (9, 9), weights=[1e308, 1e308])


ROOT = 2**0.5


@pytest.mark.parametrize(
    ("first", "second", "t", "expected"),
    [
        ((2, 0), (0, 4), 0.5, [ROOT, 2 * ROOT]),
        ((1, 0), (0, 1), 1 / 3, [3**0.5 / 2, 0.5]),
        ((1, 0), (0, 1), 0.0, [1, 0]),
        ((1, 0), (0, 1), 1.0, [0, 1]),
        ((1, 0), (-0.5, 3**0.5 / 2), 0.5, [0.5, 3**0.5 / 2]),
        # parallel, antiparallel and without an angle: the chord
        ((1, 2), (3, 6), 0.25, [1.5, 3]),
        ((1, 2), (-1, -2), 0.25, [0.5, 1]),
        ((0, 0), (2, 4), 0.25, [0.5, 1]),
        ((0, 0), (0, 0), 0.5, [0, 0]),
        # cosines 0.99950 and 0.99949
        ((1, 0), (0.9995003, 0.0316088), 0.5, [0.99975015, 0.0158044]),
        ((1, 0), (0.9994900, 0.0319331), 0.5, [0.9998725, 0.0159686]),
    ],
)
def test_slerp_by_hand(
    first: tuple[float, ...], second: tuple[float, ...], t: float, expected: list[float]
) -> None:
    assert merge_lists("slerp", [first, second], t=t) == pytest.approx(expected, abs=1e-6)


def test_slerp_takes_an_angle_for_each_tensor() -> None:
    first = {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([1.0, 0.0])}
    second = {"a": torch.tensor([0.0, 1.0]), "b": torch.tensor([1.0, 0.0])}
    merged = merger("slerp")([first, second], {})
    assert merged["a"].tolist() == pytest.approx([ROOT / 2, ROOT / 2])
    assert merged["b"].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("vector", "density", "gamma", "expected"),
    [
        ((-9, 1, 4, 2), 0.5, 0.25, [0, 0, 4, 2]),
        ((-9, 1, 4, 2), 0.25, 0.5, [0, 0, 0, 2]),
        ((-9, 1, 4, 2), 0.75, 0.25, [0, 1, 4, 2]),
        ((-9, 1, 4, 2), 0.5, 0.0, [-9, 0, 4, 0]),
        ((-9, 1, 4, 2), 1.0, 0.0, [-9, 1, 4, 2]),
        # of those that tie, the first in order are the smallest
        ((3, -3, 3, -3), 0.5, 0.25, [0, -3, 3, 0]),
        ((1, 2, -1, 2, 1, 2), 0.5, 0.2, [0, 2, 0, 2, 1, 0]),
        ((0, 0, 5, 0), 0.5, 0.25, [0, 0, 0, 0]),
        # int(0.2 * 4) and int(0.9) are 0: nothing stays
        ((-9, 1, 4, 2), 0.2, 0.0, [0, 0, 0, 0]),
        ((7,), 0.9, 0.0, [0]),
    ],
)
def test_breadcrumbs_by_hand(
    vector: tuple[float, ...], density: float, gamma: float, expected: list[float]
) -> None:
    options = {"density": density, "gamma": gamma}
    assert merge_lists("breadcrumbs", [vector], scale=1.0, **options) == expected
    base = [10.0] * len(vector)
    moved = [[value + 10 for value in vector]] * 2
    merged = merge_lists("breadcrumbs", moved, base, scale=0.5, **options)
    assert merged == [value + 10 for value in expected]


@pytest.mark.parametrize(
    ("per", "expected"), [("tensor", [[-9, 6], [0, 0]]), ("row", [[-9, 0], [4, 0]])]
)
def test_breadcrumbs_of_rows_by_hand(per: str, expected: list[list[float]]) -> None:
    base = {"matrix": torch.full((2, 2), 10.0), "scalar": torch.tensor(10.0)}
    vector = {"matrix": torch.tensor([[-9.0, 6], [4, 2]]), "scalar": torch.tensor(5.0)}
    expert = {name: base[name] + vector[name] for name in base}
    merge = merger("breadcrumbs", density=0.5, gamma=0.0, scale=1.0, per=per)
    merged = merge([expert], base)
    assert (merged["matrix"] - base["matrix"]).tolist() == expected
    assert float(merged["scalar"]) == (15 if per == "row" else 10)


def test_breadcrumbs_of_a_table_is_that_of_its_rows() -> None:
    """Whatever the pieces that it is worked on in."""
    table = torch.randn(300, 1000, generator=torch.Generator().manual_seed(0))
    rows = {str(place): row for place, row in enumerate(table)}
    whole = merger("breadcrumbs", per="row")([{"w": table}], {"w": torch.zeros_like(table)})["w"]
    alone = merger("breadcrumbs")([rows], {name: torch.zeros(1000) for name in rows})
    assert torch.equal(whole, torch.stack([alone[name] for name in rows]))


def test_breadcrumbs_ranks_in_each_tensor() -> None:
    expert = {"large": torch.tensor([8.0, 7.0]), "small": torch.tensor([2.0, 1.0])}
    base = {name: torch.zeros(2) for name in expert}
    merged = merger("breadcrumbs", density=0.5, gamma=0.5, scale=1.0)([expert], base)
    assert {n: t.tolist() for n, t in merged.items()} == {"large": [0, 7], "small": [0, 1]}


@pytest.mark.parametrize(
    ("experts", "options", "expected"),
    [
        ([(4, 1), (3, -4)], {}, [7, 0]),
        ([(4, 1), (3, -4)], {"agree": 1}, [7, -3]),
        ([(4, 1), (3, -4)], {"agree": 1, "scale": 0.5}, [3.5, -1.5]),
        # equality is enough: 2 = 1/2 * 4, 1 = 1/2 * 2
        ([(2, 1), (4, 2)], {}, [6, 3]),
        ([(2, 1), (4, 2)], {"threshold": 0.75}, [0, 0]),
        ([(1, 1), (1, 1), (1, 9)], {"agree": 3}, [3, 0]),
        ([(1, 1), (1, 1), (-1, 9)], {"agree": 2, "threshold": 1.0}, [1, 0]),
    ],
)
def test_consensus_by_hand(
    experts: list[tuple[float, ...]], options: dict[str, Any], expected: list[float]
) -> None:
    options = {"threshold": 0.5, "scale": 1.0, **options}
    assert merge_lists("consensus", experts, **options) == expected
    moved = [[value + 10 for value in expert] for expert in experts]
    merged = merge_lists("consensus", moved, [10.0, 10.0], **options)
    assert merged == [value + 10 for value in expected]


@pytest.mark.parametrize("least", [1, 2, 3])
def test_consensus_without_a_threshold_is_task_arithmetic(least: int) -> None:
    experts, base = models()
    merged = merger("consensus", threshold=0, agree=least, scale=0.3)(experts, base)
    close(merged, merger("task_arithmetic", scale=0.3)(experts, base))


def test_consensus_keeps_less_the_more_must_agree() -> None:
    experts, base = models()
    merged = [merger("consensus", agree=least)(experts, base)["weight"] for least in (1, 2, 3)]
    kept = [int((tensor != base["weight"]).sum()) for tensor in merged]
    assert kept[0] > kept[1] > kept[2]


@pytest.mark.parametrize(
    ("vectors", "expected"),
    [
        # cos 1/sqrt(2): t = sqrt(2) / (1 + 1/sqrt(2))
        ([(1, 0), (3, 3)], [2 * ROOT / (1 + ROOT / 2), 1.5 * ROOT / (1 + ROOT / 2)]),
        # parallel of any length: t = 1; orthogonal or opposed: t = 0
        ([(1, 2), (2, 4)], [1.5, 3]),
        ([(1, 0), (0, 5)], [0, 0]),
        ([(1, 2), (-1, -2)], [0, 0]),
        ([(1, 0), (-1, 0.1)], [0, 0]),
        # cosines 1, 0 and 0 in the mean 1/3: t = 3 * 1/3 / (1 + 2 * 1/3) = 0.6
        ([(1, 0), (2, 0), (0, 3)], [0.6, 0.6]),
        # a zero vector has cosine 0: cosines 1, 0 and 0 again
        ([(1, 2), (5, 10), (0, 0)], [1.2, 2.4]),
        ([(1, 2), (0, 0)], [0, 0]),
        ([(0, 0), (0, 0)], [0, 0]),
        ([(3, -1)], [3, -1]),
    ],
)
def test_model_stock_by_hand(vectors: list[tuple[float, ...]], expected: list[float]) -> None:
    assert merge_lists("model_stock", vectors) == pytest.approx(expected, abs=1e-6)
    moved = [[value + 10 for value in vector] for vector in vectors]
    merged = merge_lists("model_stock", moved, (10, 10))
    assert merged == pytest.approx([value + 10 for value in expected])


def test_model_stock_of_tiny_task_vectors_has_their_angle() -> None:
    """mergekit raises a product of lengths to 1e-6 at least, so that these would have none."""
    vectors = [(1e-5, 0), (3e-5, 3e-5)]
    expected = [1e-5 * 2 * ROOT / (1 + ROOT / 2), 1e-5 * 1.5 * ROOT / (1 + ROOT / 2)]
    assert merge_lists("model_stock", vectors) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["slerp", "model_stock"])
def test_sums_over_a_tensor_do_not_depend_on_its_pieces(name: str) -> None:
    experts, base = models()
    experts = experts[:2]
    expected = dict(merger(name)(experts, base))
    for size in (1, 5, 7):
        with weights.pieces_of(size):
            close(merger(name)(experts, base), expected)


@pytest.mark.parametrize("name", ["average", "linear", "task_arithmetic"])
@pytest.mark.parametrize("given", [[], [1.0], [0.5, 0.25, 0.25]])
def test_one_weight_for_each_expert(name: str, given: list[float]) -> None:
    with mistake(BadOption, "number of weights of", name, len(given), "2"):
        merge_lists(name, [(1,), (2,)], weights=given)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("breadcrumbs", {"density": 0.9, "gamma": 0.2}, "add 1.1 1"),
        ("consensus", {"agree": 3}, "agree consensus 3 2 experts"),
    ],
)
def test_what_no_range_of_an_option_can_say(
    name: str, options: dict[str, Any], message: str
) -> None:
    """Found when the method is called: no tensor has been computed."""
    empty: StateDict = {}
    with mistake(BadOption, message):
        merger(name, **options)([empty, empty], empty)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_slerp_is_of_two(count: int) -> None:
    empty: StateDict = {}
    with mistake(BadOption, count, "2"):
        merger("slerp")([empty] * count, empty)


@pytest.mark.parametrize("gamma", [0.1, 0.3, 0.7, 0.9])
def test_breadcrumbs_may_keep_all_that_is_not_largest(gamma: float) -> None:
    """1 - 0.9 and 0.9 do not always add up to 1 in binary."""
    expert = [range(1, 11)]
    merged = merge_lists("breadcrumbs", expert, density=1 - gamma, gamma=gamma, scale=1.0)
    assert np.count_nonzero(merged) == int(10 * (1 - gamma))


TWO = [(4, 1), (-1, 3)]
THREE = [(3, -2, 1), (-1, -4, -1), (-1, 3, 0)]


@pytest.mark.parametrize(
    ("experts", "options", "expected"),
    [
        # a threshold stays: of two entries none falls, and both agree on the second
        (TWO, {"density": 0.5}, [4, 2]),
        (TWO, {"density": 0.5, "trim": "tensor"}, [4, 3]),
        (TWO, {"density": 1.0, "combine": "sum"}, [4, 4]),
        (TWO, {"density": 1.0, "combine": "max"}, [4, 3]),
        (TWO, {"density": 1.0, "scale": 0.5}, [2, 1]),
        # sums 1, -3 and 0: the signs cancel, so the last entry has none and merges to 0
        (THREE, {"density": 1.0}, [3, -3, 0]),
        (THREE, {"density": 1.0, "combine": "sum"}, [3, -6, 0]),
        (THREE, {"density": 1.0, "combine": "max"}, [3, -4, 0]),
        # int(3 * 0.8) = 2 fall up to the threshold itself; 3 - int(3 * 0.2) = 3
        ([(1, -2, 3)], {"density": 0.2}, [0, -2, 3]),
        ([(1, -2, 3)], {"density": 0.2, "convention": "original"}, [0, 0, 3]),
        ([(1, -2, 3)], {"density": 0.2, "trim": "tensor"}, [0, 0, 3]),
    ],
)
def test_ties_by_hand(
    experts: list[tuple[float, ...]], options: dict[str, Any], expected: list[float]
) -> None:
    assert merge_lists("ties", experts, **options) == expected
    base = [10.0] * len(expected)
    moved = [[value + 10 for value in expert] for expert in experts]
    assert merge_lists("ties", moved, base, **options) == [value + 10 for value in expected]


# Edges -------------------------------------------------------------------------------------


def test_ties_trims_over_all_tensors_or_in_each() -> None:
    expert = {"large": torch.tensor([8.0, 7.0]), "small": torch.tensor([2.0, 1.0])}
    base = {name: torch.zeros(2) for name in expert}
    over_all = merger("ties", density=0.5, convention="original")([expert], base)
    in_each = merger("ties", density=0.5, trim="tensor")([expert], base)
    assert {n: t.tolist() for n, t in over_all.items()} == {"large": [8, 7], "small": [2, 0]}
    assert {n: t.tolist() for n, t in in_each.items()} == {"large": [8, 0], "small": [2, 0]}


@pytest.mark.parametrize("convention", ["mergelm", "original"])
def test_ties_trims_nothing_when_nothing_falls(convention: str) -> None:
    assert merge_lists("ties", [(1, 2, 3, 4)], density=0.9, convention=convention) == [1, 2, 3, 4]
    assert merge_lists("ties", [(1, 2)], density=1.0, convention=convention) == [1, 2]


@pytest.mark.parametrize("trim", ["global", "tensor"])
def test_ties_with_a_zero_task_vector(trim: str) -> None:
    """All entries tie at the threshold 0 and stay; they are no members of any entry."""
    base = (5, 5, 5)
    assert merge_lists("ties", [base, (6, 5, 2)], base, density=0.7, trim=trim) == [6, 5, 2]
    assert merge_lists("ties", [base, base], base, trim=trim) == [5, 5, 5]


@pytest.mark.parametrize("convention", ["mergelm", "original"])
def test_ties_keeps_all_that_tie_at_a_global_threshold(convention: str) -> None:
    vector = (1, -1, 0.5, 1, 2)
    options = {"density": 0.4, "convention": convention}
    assert merge_lists("ties", [vector], **options) == [1, -1, 0, 1, 2]


def test_ties_is_the_same_under_another_default_of_torch() -> None:
    """A tenth is another number in 32 bits than in 64: entries that tie with it stay."""
    vector = (0.1, -0.1, 0.05, 0.1, 2)
    options = {"density": 0.4, "convention": "original"}
    expected = merge_lists("ties", [vector], **options)
    assert np.count_nonzero(expected) == 4
    torch.set_default_dtype(torch.float64)
    try:
        assert merge_lists("ties", [vector], **options) == expected
    finally:
        torch.set_default_dtype(torch.float32)


def test_ties_keeps_the_first_that_tie_in_a_tensor() -> None:
    vector = (1, -1, 0.5, 1, 2)
    assert merge_lists("ties", [vector], density=0.6, trim="tensor") == [1, -1, 0, 0, 2]


@pytest.mark.parametrize("majority", [1, -1])
def test_an_entry_that_sums_to_zero_takes_the_majority_sign(majority: int) -> None:
    first, second = (1, 2, 3), (-1, 2, -3)
    experts = [[majority * value for value in vector] for vector in (first, second)]
    assert merge_lists("ties", experts, density=1.0) == [majority * v for v in (1, 2, 3)]


def test_the_majority_is_counted_over_all_tensors_by_entries() -> None:
    """Two small negative entries of another tensor outvote one large positive one."""
    experts = [
        {"a": torch.tensor([1.0, 9.0]), "b": torch.tensor([-0.1, -0.1])},
        {"a": torch.tensor([-2.0, 9.0]), "b": torch.tensor([-0.1, -0.1])},
        {"a": torch.tensor([1.0, 0.0]), "b": torch.tensor([0.0, 0.0])},
    ]
    base = {"a": torch.zeros(2), "b": torch.zeros(2)}
    assert merger("ties", density=1.0)(experts, base)["a"].tolist() == [-2, 9]


#: entries, density, how many stay by `mergelm` and by `original`
SURVIVORS = [
    (10, 0.2, 3, 3),  # 0.8 d is whole: the threshold itself stays in both
    (11, 0.2, 4, 3),
    (12, 0.2, 4, 3),
    (13, 0.2, 4, 3),
    (14, 0.2, 4, 3),
    (15, 0.2, 4, 4),
    (10, 0.8, 9, 9),  # 10 * (1 - 0.8) is 1.9999999999999996 in binary
    (10, 0.7, 8, 8),
    (1, 0.2, 1, 1),
    (4, 0.01, 2, 1),
]


@pytest.mark.parametrize(("size", "density", "mergelm", "original"), SURVIVORS)
def test_count_of_what_stays(size: int, density: float, mergelm: int, original: int) -> None:
    expert = [range(1, size + 1)]
    for convention, stay in (("mergelm", mergelm), ("original", original)):
        merged = merge_lists("ties", expert, density=density, convention=convention)
        assert merged == [0] * (size - stay) + list(range(size - stay + 1, size + 1)), convention
    merged = merge_lists("ties", expert, density=density, trim="tensor")
    assert np.count_nonzero(merged) == max(1, int(density * size))


@pytest.mark.parametrize("convention", ["mergelm", "original"])
def test_a_threshold_stays_in_float64_too(convention: str) -> None:
    """0.1 rounds up to float32, so a rounded threshold must not be compared with exact weights."""
    expert = {"w": torch.tensor([0.1, 0.3], dtype=torch.float64)}
    base = {"w": torch.zeros(2, dtype=torch.float64)}
    merged = merger("ties", density=0.5, convention=convention)([expert], base)
    assert merged["w"].tolist() == [0.1, 0.3]


@pytest.mark.parametrize("trim", ["global", "tensor"])
def test_ties_with_scalars_and_empty_tensors(trim: str) -> None:
    expert = {"scale": torch.tensor(-3.0), "none": torch.zeros(0, 2), "w": torch.tensor([1.0])}
    base = {name: torch.zeros_like(tensor) for name, tensor in expert.items()}
    merged = merger("ties", density=1.0, trim=trim)([expert, expert], base)
    assert merged["scale"].shape == ()
    assert merged["scale"].item() == -3
    assert merged["none"].shape == (0, 2)


@pytest.mark.parametrize("name", NAMES)
def test_scalars_stay_scalars_and_float64_stays_wide(name: str) -> None:
    experts = [
        {"scale": torch.tensor(value, dtype=torch.float64), "none": torch.zeros(0, 2)}
        for value in (3.0, 5.0)
    ]
    base = {"scale": torch.tensor(1.0, dtype=torch.float64), "none": torch.zeros(0, 2)}
    merged = merger(name)(experts, base)
    assert merged["scale"].shape == ()
    assert merged["scale"].dtype == torch.float64
    assert merged["none"].shape == (0, 2)


@pytest.mark.parametrize(
    ("name", "expected"), [("linear", 4), ("model_stock", 4), ("slerp", 4), ("breadcrumbs", 1)]
)
def test_a_scalar_is_a_vector_of_one_entry(name: str, expected: float) -> None:
    """Two of one sign are parallel; no whole entry is the 14.3 % that breadcrumbs keeps."""
    experts = [{"scale": torch.tensor(value)} for value in (3.0, 5.0)]
    merged = merger(name)(experts, {"scale": torch.tensor(1.0)})
    assert merged["scale"].item() == expected


def test_breadcrumbs_ranks_float64_as_float32() -> None:
    """0.1 rounds up to float32; what is kept must be counted with the rounded magnitudes."""
    expert = {"w": torch.tensor([0.1, 0.3, 0.2], dtype=torch.float64)}
    base = {"w": torch.zeros(3, dtype=torch.float64)}
    merge = merger("breadcrumbs", density=0.67, gamma=0.0, scale=1.0)
    assert merge([expert], base)["w"].tolist() == [0, 0.3, 0.2]


@pytest.mark.parametrize("name", NAMES)
def test_only_empty_tensors(name: str) -> None:
    empty = {"none": torch.zeros(0)}
    assert merger(name)([empty, empty], empty)["none"].shape == (0,)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("average", {}),
        ("breadcrumbs", {"density": 1.0, "gamma": 0.0, "scale": 1.0}),
        ("consensus", {"agree": 1, "scale": 1.0}),
        ("linear", {}),
        ("linear", {"weights": [3.0]}),
        ("model_stock", {}),
        ("task_arithmetic", {"scale": 1.0}),
        *(("ties", {"density": 1.0, "trim": trim}) for trim in ("global", "tensor")),
        *(("ties", {"density": 1.0, "combine": how}) for how in ("sum", "max")),
        ("ties", {"density": 1.0, "convention": "original"}),
        ("tsv", {}),
        ("actmat", {}),
        ("wudi", {"matrices": "all", "others": "mean"}),
    ],
    ids=str,
)
def test_one_model_is_itself_and_a_copy(name: str, options: dict[str, Any]) -> None:
    (expert, *_), base = models()
    merged = merger(name, **options)([expert], base)
    close(merged, expert)
    for tensor in merged.values():
        tensor.fill_(7)
    assert bits(expert) == bits(model(1))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_task_arithmetic_by_one_over_n_is_the_average(count: int) -> None:
    experts, base = models()
    experts = experts[:count]
    merged = merger("task_arithmetic", scale=1 / count)(experts, base)
    close(merged, merger("average")(experts, base))


@pytest.mark.parametrize("name", ["average", "linear", "slerp"])
def test_the_base_is_not_read(name: str) -> None:
    experts = models()[0][:2]
    assert not harness.MERGERS[name].task_vectors
    close(merger(name)(experts, {}), merger(name)(experts, model(0)))


def test_linear_of_equal_weights_is_the_average() -> None:
    experts, base = models()
    expected = bits(merger("average")(experts, base))
    assert bits(merger("linear", weights=[7, 7, 7])(experts, base)) == expected
