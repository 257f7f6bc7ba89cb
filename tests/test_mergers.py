"""What every merger promises, what each one computes, and the edges."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
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
from tests.states import EXPERTS, SHAPES, close, few, model, models

Merge: TypeAlias = Callable[[Sequence[StateDict], StateDict], StateDict]
Arrays: TypeAlias = "dict[str, np.ndarray]"

#: name -> (options, laws that this method rightly breaks)
CASES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "average": ({}, set()),
    "task_arithmetic": ({"scale": 0.3}, {"idempotent"}),
    "ties": ({"density": 0.5}, {"idempotent"}),
}

#: further options of the same methods
VARIANTS: list[tuple[str, dict[str, Any], set[str]]] = [
    ("average", {"weights": [0.5, 0.375, 0.125]}, {"order of experts"}),
    ("task_arithmetic", {"scale": 1 / 3}, set()),
    ("task_arithmetic", {"weights": [0.5, -1.0, 0.25]}, {"order of experts", "idempotent"}),
    ("ties", {"density": 1.0}, set()),
    ("ties", {"density": 0.3, "convention": "original"}, {"idempotent"}),
    ("ties", {"density": 0.4, "trim": "tensor"}, {"idempotent"}),
    ("ties", {"density": 1.0, "trim": "tensor", "combine": "max"}, set()),
    ("ties", {"density": 1.0, "combine": "sum"}, {"idempotent"}),
    ("ties", {"density": 1.0, "combine": "sum", "scale": 1 / 3}, set()),
]
TABLE = [
    pytest.param(name, options, broken, id=str(Choice(name, options)))
    for name, options, broken in [*((name, *case) for name, case in CASES.items()), *VARIANTS]
]


def merger(name: str, **options: Any) -> Merge:
    return partial(harness.MERGERS[name].function, **options)


def bits(state: StateDict, names: Iterable[str] | None = None) -> dict[str, bytes]:
    return {name: state[name].numpy().tobytes() for name in names or state}


# Laws --------------------------------------------------------------------------------------

LAWS: dict[str, Callable[[Merge], None]] = {}


def law(name: str) -> Callable[[Callable[[Merge], None]], Callable[[Merge], None]]:
    return lambda check: LAWS.setdefault(name, check)


@law("names and shapes")
def _(merge: Merge) -> None:
    experts, base = models()
    merged = merge(experts, base)
    assert sorted(merged) == sorted(base)
    assert {n: t.shape for n, t in merged.items()} == {n: t.shape for n, t in base.items()}
    assert {n: spec.shape for n, spec in weights.specs(merged).items()} == SHAPES


@law("float32")
def _(merge: Merge) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        experts, base = models(dtype)
        merged = merge(experts, base)
        assert {tensor.dtype for tensor in merged.values()} == {torch.float32}
        assert {spec.dtype for spec in weights.specs(merged).values()} == {torch.float32}
        wide = merge([weights.each(torch.clone, e) for e in experts], base)
        assert bits(merged) == bits(wide)


@law("inputs untouched")
def _(merge: Merge) -> None:
    experts, base = models()
    dict(merge(experts, base))
    assert [bits(m) for m in (*experts, base)] == [bits(m) for m in (*models()[0], models()[1])]


@law("not aliased")
def _(merge: Merge) -> None:
    experts, base = models()
    for tensor in merge(experts, base).values():
        tensor.fill_(7)
    assert [bits(m) for m in (*experts, base)] == [bits(m) for m in (*models()[0], models()[1])]


@law("order of experts")
def _(merge: Merge) -> None:
    experts, base = models()
    expected = merge(experts, base)
    close(merge(experts[::-1], base), expected)
    close(merge([*experts[1:], experts[0]], base), expected)


@law("idempotent")
def _(merge: Merge) -> None:
    experts, base = models()
    close(merge([experts[0]] * EXPERTS, base), experts[0])


@law("zero task vectors")
def _(merge: Merge) -> None:
    _, base = models()
    close(merge([base] * EXPERTS, base), base)


@law("order of tensors")
def _(merge: Merge) -> None:
    experts, base = models()
    expected = bits(merge(experts, base))
    shuffled = [
        dict(random.Random(i).sample(list(e.items()), len(e))) for i, e in enumerate(experts)
    ]
    backwards = dict(reversed(list(base.items())))
    assert bits(merge(shuffled, backwards)) == expected


@law("same bytes")
def _(merge: Merge) -> None:
    experts, base = models()
    merged = merge(experts, base)
    first = bits(merged)
    assert bits(merged, reversed(list(merged))) == first
    assert bits(merge(experts, base)) == first


@law("lazy")
def _(merge: Merge) -> None:
    experts, base = models()
    read: list[str] = []

    def watched(state: StateDict) -> StateDict:
        return weights.Lazy(weights.specs(state), lambda name: read.append(name) or state[name])

    weights.specs(merge([watched(e) for e in experts], watched(base)))
    assert not read


def test_every_merger_has_a_line() -> None:
    assert set(CASES) == set(harness.MERGERS)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("name", "options", "broken"), TABLE)
def test_law(name: str, options: dict[str, Any], broken: set[str], law: str) -> None:
    with pytest.raises(AssertionError) if law in broken else nullcontext():
        LAWS[law](merger(name, **options))


# Planted faults: a law that catches nothing promises nothing -------------------------------


def right(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return weights.each(lambda *t: torch.stack(t).mean(0), *experts)


def dropped_name(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    merged = right(experts, base)
    return weights.select(merged, [name for name in merged if name != "bias"])


def flattened(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return {name: tensor.flatten() for name, tensor in right(experts, base).items()}


def float64_leak(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return weights.each(lambda *t: torch.stack(t).double().mean(0), *experts)


def half_sums(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return {n: torch.stack([e[n] for e in experts]).mean(0).float() for n in base}


def in_place(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    def add(*tensors: torch.Tensor) -> torch.Tensor:
        for tensor in tensors[1:]:
            tensors[0].add_(tensor)
        return tensors[0] / len(tensors)

    return weights.each(add, *experts)


def writes_base(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return weights.each(lambda b, *t: b.copy_(torch.stack(t).mean(0)).clone(), base, *experts)


def first_expert(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return weights.each(torch.clone, experts[0])


def alias(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return weights.each(lambda tensor: tensor, experts[0])


def base_alias(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return weights.each(lambda tensor: tensor.view_as(tensor), base)


def running_mean(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    merged = experts[0]
    for expert in experts[1:]:
        merged = weights.mean([merged, expert])
    return weights.each(torch.clone, merged)


def summed(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return weights.each(
        lambda b, *t: b + weights.total(t), base, *weights.task_vectors(experts, base)
    )


def forgotten_base(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return weights.mean(weights.task_vectors(experts, base))


def base_twice(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return weights.each(torch.add, right(experts, base), base)


def by_position(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    vectors = [torch.cat([tensor.flatten() for tensor in e.values()]) for e in experts]
    pieces = torch.stack(vectors).mean(0).split([tensor.numel() for tensor in base.values()])
    return {n: piece.view(SHAPES[n]).clone() for n, piece in zip(base, pieces, strict=True)}


def noisy(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return weights.each(
        lambda tensor: tensor + torch.rand_like(tensor) * 1e-7, right(experts, base)
    )


def counts_reads(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    reads: list[int] = []
    return weights.each(lambda t: reads.append(0) or t * len(reads), right(experts, base))


def eager(experts: Sequence[StateDict], base: StateDict) -> StateDict:
    return dict(right(experts, base))


#: a wrong merger -> the law that must catch it
FAULTS: dict[Merge, str] = {
    dropped_name: "names and shapes",
    flattened: "names and shapes",
    float64_leak: "float32",
    half_sums: "float32",
    in_place: "inputs untouched",
    writes_base: "inputs untouched",
    alias: "not aliased",
    base_alias: "not aliased",
    first_expert: "order of experts",
    running_mean: "order of experts",
    summed: "idempotent",
    forgotten_base: "zero task vectors",
    base_twice: "zero task vectors",
    by_position: "order of tensors",
    noisy: "same bytes",
    counts_reads: "same bytes",
    eager: "lazy",
}


@pytest.mark.parametrize(("fault", "law"), FAULTS.items(), ids=lambda v: getattr(v, "__name__", v))
def test_law_catches_a_planted_fault(fault: Merge, law: str) -> None:
    with pytest.raises(AssertionError):
        LAWS[law](fault)


@pytest.mark.parametrize("law", LAWS)
def test_law_passes_what_is_right_and_catches_something(law: str) -> None:
    LAWS[law](right)
    assert law in FAULTS.values()


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


@pytest.mark.parametrize("name", ["average", "task_arithmetic"])
@pytest.mark.parametrize("given", [[], [1.0], [0.5, 0.25, 0.25]])
def test_one_weight_for_each_expert(name: str, given: list[float]) -> None:
    with pytest.raises(BadOption, match=rf"{name} got {len(given)} weights for 2 experts"):
        merge_lists(name, [(1,), (2,)], weights=given)


@pytest.mark.parametrize("density", [0, -0.1, 1.01, 20, float("nan")])
def test_density_is_a_share(density: float) -> None:
    with pytest.raises(BadOption, match=f"density of ties is {density:g}, expected a share"):
        merge_lists("ties", [(1,), (2,)], density=density)


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


@pytest.mark.parametrize("name", CASES)
def test_only_empty_tensors(name: str) -> None:
    empty = {"none": torch.zeros(0)}
    assert merger(name)([empty, empty], empty)["none"].shape == (0,)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("average", {}),
        ("task_arithmetic", {"scale": 1.0}),
        *(("ties", {"density": 1.0, "trim": trim}) for trim in ("global", "tensor")),
        *(("ties", {"density": 1.0, "combine": how}) for how in ("sum", "max")),
        ("ties", {"density": 1.0, "convention": "original"}),
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


def test_average_does_not_read_the_base() -> None:
    experts, _ = models()
    assert not harness.MERGERS["average"].task_vectors
    close(merger("average")(experts, {}), merger("average")(experts, model(0)))
