"""Procrustes: against plain loops that turn every matrix by an explicit T of its full width."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Callable, Sequence
from functools import cache, partial
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.linalg import orthogonal_procrustes

import harness
from harness import Checkpoint, Recipe, StateDict, merge, weights
from harness.checking import toys
from harness.checkpoints.open import open_checkpoint
from harness.cli import main
from harness.errors import BadOption
from harness.premergers.procrustes import with_references
from harness.rng import rng
from harness.weights import Rules, Symmetry, generalized, turns_to
from tests.conftest import FAMILIES, TAGS, is_head, model, threads
from tests.mistakes import mistake

Minis = Callable[[str], dict[str, Path]]
Array = np.ndarray[Any, Any]
EPS = float(np.finfo(float).eps)

# Plain loops -------------------------------------------------------------------------------


def plain_turn(matrix: Array, reference: Array) -> Array:
    """T of docs/methods.md#procrustes, of full width; what is left open is nearest to 1."""
    left, values, right = np.linalg.svd(matrix.T @ reference)
    told = values > len(values) * EPS * values[0]
    turn = left[:, told] @ right[told]
    if not told.all():
        source, target = left[:, ~told], right[~told].T
        first, _, second = np.linalg.svd(source.T @ target)
        turn = turn + source @ first @ second @ target.T
    return np.asarray(turn)


def plain(
    matrices: Sequence[Array],
    starts: Sequence[Array],
    variant: str = "algorithm1",
    max_iter: int = 200,
    tol: float = 1e-7,
) -> tuple[list[Array], int]:
    """Every T and the passes (docs/methods.md#procrustes), of references that are given."""
    width, count = matrices[0].shape[1], len(matrices)
    begun = [
        [np.eye(width) if m is start else plain_turn(m, start) for m in matrices]
        for start in starts
    ]
    reference = np.mean(
        [sum(m @ t for m, t in zip(matrices, turns, strict=True)) / count for turns in begun], 0
    )
    turns, last, done = begun[0], None, 0
    while done < max_iter:
        done += 1
        if variant == "algorithm1":
            now = [m @ t for m, t in zip(matrices, turns, strict=True)]
            turns = [t @ plain_turn(p, reference) for t, p in zip(turns, now, strict=True)]
        else:
            turns = [plain_turn(m, reference) for m in matrices]
        mean = sum(m @ t for m, t in zip(matrices, turns, strict=True)) / count
        distance = float(np.linalg.norm(reference - mean))
        distance = distance if variant == "algorithm1" else distance**2
        if last is not None and abs(last - distance) < tol:
            break
        if variant == "algorithm1":
            reference = mean
        last = distance
    return turns, done


def spread(matrices: Sequence[Array]) -> float:
    return float(sum(np.sum((m - np.mean(matrices, 0)) ** 2) for m in matrices))


SHAPES = [(4, 4), (9, 4), (40, 4), (3, 7), (1, 6), (2, 9), (5, 6), (6, 5), (1, 1)]
"""Square ones, long and very long ones, wide ones, heads of one output."""


def drawn(shape: tuple[int, int], count: int, kind: str) -> list[Array]:
    """Matrices near to one, or of nothing in common, or of less than full rank."""
    numbers = np.random.default_rng([*shape, count, len(kind)])
    common = numbers.normal(size=shape)
    found = []
    for index in range(count):
        matrix = common + 0.3 * numbers.normal(size=shape)
        if kind == "unlike":
            matrix = numbers.normal(size=shape)
        if kind == "a row is zero" and index % 2 == 0:
            matrix[-1] = 0
        if kind == "columns are zero":
            matrix[:, max(1, min(shape) - 1) :] = 0
        if kind == "same":
            matrix = common.copy()
        found.append(matrix)
    return found


KINDS = ["near", "unlike", "a row is zero", "columns are zero", "same"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_generalized_analysis_is_that_of_plain_loops(shape: tuple[int, int], kind: str) -> None:
    """Any shape, rank, number, reference, variant; and so are rows that are turned along."""
    for count in (2, 5):
        *matrices, fixed = drawn(shape, count + 1, kind)
        row = np.random.default_rng(0).normal(size=(1, shape[1]))
        for starts in ((0,), (count,), (0, count - 1)):
            for variant in ("algorithm1", "fixed_reference"):
                for passes in (1, 30):
                    all_of_them = [*matrices, fixed]
                    given = [all_of_them[place] for place in starts]
                    expected, done = plain(matrices, given, variant, passes)
                    found = generalized(
                        [torch.from_numpy(m) for m in matrices],
                        starts,
                        Rules(variant, passes),  # type: ignore[arg-type]
                        torch.from_numpy(fixed) if count in starts else None,
                    )
                    assert found.iterations == done
                    moved = []
                    for matrix, turn, wanted in zip(matrices, found.turns, expected, strict=True):
                        moved.append(matrix @ wanted)
                        for some, within in ((matrix, 1e-9), (row, 1e-7)):
                            out = turn(torch.from_numpy(some)).numpy()
                            np.testing.assert_allclose(out, some @ wanted, rtol=0, atol=within)
                    assert found.before == pytest.approx(spread(matrices), abs=1e-9)
                    assert found.after == pytest.approx(spread(moved), abs=1e-9)


@pytest.mark.parametrize("variant", ["algorithm1", "fixed_reference"])
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_long_matrices_of_few_ranks_are_turned_without_their_turns(rank: int, variant: Any) -> None:
    """More rows than columns, of less than full rank together: zeros, and products of few."""
    numbers = np.random.default_rng(rank)
    common = numbers.normal(size=(100, rank))
    matrices = [common @ numbers.normal(size=(rank, 8)) for _ in range(3)]
    given = [torch.from_numpy(one) for one in matrices]
    expected, _ = plain(matrices, [matrices[0]], variant, 30)
    found = generalized(given, (0,), Rules(variant, 30), turns=False)
    turned = found.turned
    if turned is None:
        turned = [turn(one) for turn, one in zip(found.turns, given, strict=True)]
    for got, one, wanted in zip(turned, matrices, expected, strict=True):
        np.testing.assert_allclose(got.numpy(), one @ wanted, atol=1e-9)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_turn_is_that_of_scipy(shape: tuple[int, int]) -> None:
    """W T, as T itself is not unique for fewer rows than columns."""
    first, second = drawn(shape, 2, "unlike")
    (turn,) = turns_to(torch.from_numpy(second), [torch.from_numpy(first)])
    expected = first @ orthogonal_procrustes(first, second)[0]
    np.testing.assert_allclose(turn(torch.from_numpy(first)).numpy(), expected, atol=1e-12)
    whole = turn(torch.eye(shape[1], dtype=torch.float64)).numpy()
    np.testing.assert_allclose(whole.T @ whole, np.eye(shape[1]), atol=1e-12)
    assert np.linalg.norm(expected - second) <= np.linalg.norm(first - second)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_pass_never_moves_matrices_apart(shape: tuple[int, int], kind: str) -> None:
    matrices = [torch.from_numpy(m) for m in drawn(shape, 5, kind)]
    left = [generalized(matrices, (0,), Rules(max_iter=n, tol=0)).after for n in range(1, 8)]
    for before, after in pairwise(left):
        assert after <= before + 1e-12


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_turned_copies_come_home(shape: tuple[int, int]) -> None:
    (common,) = drawn(shape, 1, "near")
    numbers = np.random.default_rng(0)
    turns = [np.linalg.qr(numbers.normal(size=(shape[1],) * 2))[0] for _ in range(3)]
    matrices = [torch.from_numpy(m) for m in [common, *(common @ turn for turn in turns)]]
    found = generalized(matrices, (0,), Rules())
    assert found.after < 1e-20 * max(1, found.before)
    for matrix, turn in zip(matrices, found.turns, strict=True):
        np.testing.assert_allclose(turn(matrix).numpy(), common, atol=1e-11)


def test_nothing_is_decomposed_that_is_wider_than_the_narrower_side(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[int] = []
    for name in ("svd", "eigh"):
        whole = getattr(torch.linalg, name)

        def watched(matrix: torch.Tensor, *rest: Any, whole: Any = whole, **more: Any) -> Any:
            seen.append(max(matrix.shape))
            return whole(matrix, *rest, **more)

        monkeypatch.setattr(torch.linalg, name, watched)
    for shape in ((6, 24), (24, 6), (600, 6)):
        matrices = [torch.from_numpy(m) for m in drawn(shape, 5, "near")]
        for starts in ((0,), (0, 4)):
            found = generalized(matrices, starts, Rules())
            for matrix, turn in zip(matrices, found.turns, strict=True):
                turn(matrix)
    assert max(seen) == 6


def test_two_matrices_are_decomposed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has been turned to the other is turned no further."""
    calls: list[int] = []
    whole = torch.linalg.svd

    def watched(matrix: torch.Tensor, **more: Any) -> Any:
        calls.append(1)
        return whole(matrix, **more)

    monkeypatch.setattr(torch.linalg, "svd", watched)
    matrices = [torch.from_numpy(m) for m in drawn((9, 6), 2, "near")]
    assert generalized(matrices, (0,), Rules()).iterations == 2
    assert len(calls) == 1


@pytest.mark.parametrize("orientation", ["in", "out"])
def test_blocks_of_rows_do_not_matter(orientation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    base, *experts = (toys.model(seed, toys.NETWORK) for seed in range(4))
    expected = [dict(state) for state in run(experts, base, orientation=orientation)]
    for module in ("harness.weights.procrustes", "harness.premergers.procrustes"):
        monkeypatch.setattr(f"{module}.BLOCK", 3)
    found = run(experts, base, orientation=orientation)
    for state, wanted in zip(found, expected, strict=True):
        for name in wanted:
            torch.testing.assert_close(state[name], wanted[name], rtol=1e-5, atol=1e-5)


def test_matrices_of_a_group_are_analysed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are cores to share, and to the same end; an analysis is made once."""
    base, *experts = (toys.model(seed, toys.NETWORK) for seed in range(4))
    shapes: list[tuple[int, ...]] = []
    whole = weights.generalized

    def watched(matrices: Sequence[torch.Tensor], *rest: Any, **more: Any) -> Any:
        shapes.append(tuple(matrices[0].shape))
        return whole(matrices, *rest, **more)

    monkeypatch.setattr(weights, "generalized", watched)
    at = "bert.encoder.layer.0"
    names = [f"{at}.{part}.dense.weight" for part in ("intermediate", "output")]
    found = {}
    for cores in (1, 2, 3):
        with threads(cores):
            states = run(experts, base)
            shapes.clear()
            found[cores] = [state[names[0]] for state in states]
            assert len(shapes) == (1 if cores == 1 else 2)
            found[cores] += [state[names[1]] for state in states]
            assert len(shapes) == 2
    for one, *others in zip(*found.values(), strict=True):
        assert all(torch.equal(one, other) for other in others)


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize("shape", [(64, 512), (200, 150), (900, 64)], ids=str)
def test_how_many_cores_there_are_does_not_show(shape: tuple[int, int], turns: bool) -> None:
    """The same bytes, of matrices large enough for torch to share out among threads."""
    matrices = [torch.from_numpy(m) for m in drawn(shape, 3, "near")]
    found = []
    for cores in (1, 2):
        with threads(cores):
            analysis = generalized(matrices, (0,), Rules(max_iter=3), turns=turns)
        sums = torch.tensor([analysis.before, analysis.after], dtype=torch.float64)
        found.append([*(analysis.turned or ()), sums])
    assert all(map(torch.equal, *found))


def test_nor_does_it_in_embeddings() -> None:
    """Whose rows are turned on all cores, block by block, beside the analysis."""
    states = [{"w": torch.from_numpy(m)} for m in drawn((5000, 32), 2, "near")]
    found = []
    for cores in (1, 2):
        with threads(cores):
            found.append([one["w"] for one in with_references(states, {}, {"w": 0})])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("shape", [(9, 4), (40, 4), (3, 7)], ids=str)
def test_what_has_been_turned_is_let_go(
    shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One turn after the other: the matrices as they are now, and the one that is being turned."""
    from harness.weights import procrustes as inside

    seen, most = list[weakref.ref[torch.Tensor]](), 0
    first, whole = inside.turns_to, inside._nearer

    def watched_first(
        reference: torch.Tensor, matrices: Sequence[torch.Tensor], *factor: Any
    ) -> Any:
        seen.extend(map(weakref.ref, matrices))
        return first(reference, matrices, *factor)

    def watched(reference: torch.Tensor, given: torch.Tensor, frame: Any) -> Any:
        nonlocal most
        turned, frame = whole(reference, given, frame)
        seen.extend(map(weakref.ref, (given, turned)))
        most = max(most, len({id(rows) for ref in seen if (rows := ref()) is not None}))
        return turned, frame

    monkeypatch.setattr(inside, "turns_to", watched_first)
    monkeypatch.setattr(inside, "_nearer", watched)
    matrices = [torch.from_numpy(m).float() for m in drawn(shape, 4, "near")]
    with threads(1):
        generalized(matrices, (0,), Rules(), turns=False)
    assert most == len(matrices) + 1


# By hand -----------------------------------------------------------------------------------


def rows(*values: Sequence[float]) -> list[torch.Tensor]:
    return [torch.tensor([row], dtype=torch.float64) for row in values]


def test_turns_by_hand() -> None:
    (turn,) = turns_to(rows((0, 3))[0], rows((2, 0)))
    torch.testing.assert_close(turn(rows((2, 0))[0]), rows((0, 2))[0])
    found = generalized(rows((2, 0), (0, 4)), (0,), Rules())
    assert (found.iterations, found.before) == (2, pytest.approx(10))
    assert found.after == pytest.approx(2)


def test_a_head_by_hand() -> None:
    """With one output the row is its own length in the direction of the reference's."""
    states = [{"classifier.weight": torch.tensor([row])} for row in ((3.0, 0.0), (0.0, 5.0))]
    known = Symmetry({"classifier.weight": (None, "width")}, 1, (), ("classifier.weight",))
    found = harness.PREMERGE["procrustes"].function(states, {}, symmetry=known)
    assert [one["classifier.weight"].tolist() for one in found] == [[[3, 0]], [[5, 0]]]
    assert found[0].report == {
        "after": {"classifier.weight": pytest.approx(2)},
        "before": {"classifier.weight": pytest.approx(17)},
        "iterations": {"classifier.weight": 2},
        "reference": {"classifier.weight": 1},
    }


# Options -----------------------------------------------------------------------------------

BIASED = "bert.encoder.layer.0.intermediate.dense"
PAPER = (
    "bert.embeddings.word_embeddings.weight",
    *(
        f"bert.encoder.layer.{layer}.{part}.weight"
        for layer in (0, 1)
        for part in (
            *(f"attention.self.{name}" for name in ("query", "key", "value")),
            "intermediate.dense",
            "output.dense",
        )
    ),
    "classifier.weight",
)
REST = (
    *(f"bert.encoder.layer.{layer}.attention.output.dense.weight" for layer in (0, 1)),
    "bert.pooler.dense.weight",
    "bert.embeddings.position_embeddings.weight",
    "bert.embeddings.token_type_embeddings.weight",
)


def symmetry() -> Symmetry:
    found = harness.NEEDS["symmetry"].toy([toys.model(1, toys.NETWORK)])  # type: ignore[misc]
    assert isinstance(found, Symmetry)
    return found


def run(experts: Sequence[StateDict], base: StateDict, **options: Any) -> list[Any]:
    known = options.pop("symmetry", None) or symmetry()
    function = harness.PREMERGE["procrustes"].function
    return list(function(experts, base, symmetry=known, **options))


def starts_of(reference: str, name: str, count: int, seed: int) -> tuple[int, ...]:
    """The places of the references; -1 for the base."""
    if reference == "random_per_matrix":
        return (int(rng(seed, "procrustes", name).integers(count)),)
    if reference == "random_shared":
        return (int(rng(seed, "procrustes").integers(count)),)
    return {"first": (0,), "base": (-1,), "both_ends": (0, count - 1)}[reference]


OPTIONS: list[dict[str, Any]] = [
    {},
    {"matrix_set": "all_2d"},
    {"orientation": "out"},
    {"orientation": "out", "rotate_bias": True, "matrix_set": "all_2d"},
    {"orientation": "out", "rotate_bias": True, "reference": "both_ends"},
    {"reference": "random_per_matrix", "seed": 3},
    {"reference": "random_shared", "seed": 3},
    {"reference": "base"},
    {"reference": "both_ends"},
    {"variant": "fixed_reference"},
    {"variant": "fixed_reference", "reference": "base", "orientation": "out"},
    {"max_iter": 1},
    {"max_iter": 4, "tol": 0.0},
    {"tol": 0.05},
]


@pytest.mark.parametrize("count", [2, 5])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_option_is_that_of_plain_loops(options: dict[str, Any], count: int) -> None:
    base, *experts = (toys.model(seed, toys.NETWORK) for seed in range(count + 1))
    found = run(experts, base, **options)
    known = {"reference": "first", "orientation": "in", "seed": 0, **options}
    turn = np.transpose if known["orientation"] == "out" else np.asarray
    rules = {key: known[key] for key in ("variant", "max_iter", "tol") if key in known}
    names = (*PAPER, *REST) if options.get("matrix_set") else PAPER
    seen = set()
    for name in names:
        matrices = [turn(expert[name].double().numpy()) for expert in experts]
        starts = starts_of(known["reference"], name, count, known["seed"])
        given = [
            turn(base[name].double().numpy()) if place < 0 else matrices[place] for place in starts
        ]
        turns, done = plain(matrices, given, **rules)
        bias = name.replace(".weight", ".bias")
        for state, expert, matrix, t in zip(found, experts, matrices, turns, strict=True):
            np.testing.assert_allclose(state[name].numpy(), turn(matrix @ t), atol=2e-6)
            if known.get("rotate_bias") and bias in expert:
                expected = expert[bias].double().numpy() @ t
                np.testing.assert_allclose(state[bias].numpy(), expected, atol=2e-6)
                seen.add(bias)
        assert found[0].report["iterations"][name] == done
        told = ["base" if place < 0 else place + 1 for place in starts]
        assert found[0].report["reference"][name] == (told[0] if len(told) == 1 else told)
        seen.add(name)
    assert bool(known.get("rotate_bias")) == (f"{BIASED}.bias" in seen)
    for state, expert in zip(found, experts, strict=True):
        assert all(torch.equal(state[name], expert[name]) for name in {*expert} - seen)
    assert {*found[0].report["after"]} == {*names}


ORDERS = [*permutations(range(3))]


def same_experts(found: Sequence[StateDict], order: Sequence[int], again: Sequence[Any]) -> None:
    """Hold what was made of the experts in another order to what was made of them."""
    for place, state in zip(order, again, strict=True):
        for name in state:
            torch.testing.assert_close(state[name], found[place][name], rtol=0, atol=2e-6)


@cache
def in_order(order: tuple[int, ...], expert: int | None = None, **options: Any) -> list[StateDict]:
    """Three experts in an order, turned to one of them or as options say."""
    base, *experts = (toys.model(seed, toys.NETWORK) for seed in range(4))
    states = [experts[place] for place in order]
    if expert is None:
        return [dict(state) for state in run(states, base, **options)]
    moved = with_references(states, base, dict.fromkeys(PAPER, order.index(expert)))
    return [dict(state) for state in moved]


@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_the_order_of_experts_matters_through_the_reference_alone(order: tuple[int, ...]) -> None:
    def check(*expert: int, **options: Any) -> None:
        first, again = (in_order(one, *expert, **options) for one in (ORDERS[0], order))
        same_experts(first, order, again)

    for expert in range(3):
        check(expert)
    check(reference="base")
    if {order[0], order[-1]} == {0, 2}:  # the mean of both, whichever is the first
        check(reference="both_ends")
    if order[0]:  # by default another expert is the first
        with pytest.raises(AssertionError):
            check()


def test_references_that_are_given_repeat_a_draw() -> None:
    base, *experts = (toys.model(seed, toys.NETWORK) for seed in range(4))
    drawn_here = run(experts, base, reference="random_per_matrix", seed=5)
    places = {name: starts_of("random_per_matrix", name, 3, 5)[0] for name in PAPER}
    assert len(set(places.values())) > 1
    for state, expected in zip(with_references(experts, base, places), drawn_here, strict=True):
        assert all(torch.equal(state[name], expected[name]) for name in state)


@pytest.mark.parametrize(
    ("layers", "matrix_set", "expected"),
    [
        ("all", "paper", PAPER),
        ("first:1", "paper", [name for name in PAPER if "layer.0" in name]),
        ("1", "paper", [name for name in PAPER if "layer.1" in name]),
        ("last:1", "all_2d", [name for name in (*PAPER, *REST) if "layer.1" in name]),
        ("all", "all_2d", (*PAPER, *REST)),
    ],
)
def test_which_matrices_are_turned(layers: str, matrix_set: str, expected: Sequence[str]) -> None:
    base, *experts = (toys.model(seed, toys.NETWORK) for seed in range(3))
    last = run(experts, base, layers=layers, matrix_set=matrix_set)[-1]
    moved = {name for name in last if not torch.equal(last[name], experts[-1][name])}
    assert moved == {*expected}
    assert {*last.report["iterations"]} == {*expected}


PARTS = ("query", "key", "value", "q_lin", "k_lin", "v_lin", "lin1", "lin2", "intermediate.dense")


@pytest.mark.parametrize("unit", ["row", "word"])
@pytest.mark.parametrize("family", [*FAMILIES, "electra, narrow", "deberta, apart"])
def test_the_matrices_of_the_paper_in_every_family(family: str, unit: str, tmp_path: Path) -> None:
    """By names, which the method does not look at."""
    more: dict[str, Any] = {}
    if family == "electra, narrow":
        more = {"embedding_size": 8}
    if family == "deberta, apart":
        more = {"share_att_key": False, "embedding_size": 8}
    name = {"electra, narrow": "electra", "deberta, apart": "deberta-v2"}.get(family, family)
    labels = TAGS if unit == "word" else ["no", "yes"]
    folder = model(tmp_path / "a", labels, family=name, unit=unit, **more)  # type: ignore[arg-type]
    opened = open_checkpoint(folder)
    known = harness.NEEDS["symmetry"].function([opened])
    state = {key: tensor.clone() for key, tensor in opened.weights.items()}
    other = {key: tensor + torch.randn(tensor.shape) for key, tensor in state.items()}
    after = run([state, other], {}, symmetry=known)[1]
    expected = {
        key
        for key, tensor in state.items()
        if tensor.ndim == 2
        and (
            key.endswith("word_embeddings.weight")
            or is_head(key)
            or any(f"{part}.weight" in key or f"{part}_proj.weight" in key for part in PARTS)
            or (key.endswith(".output.dense.weight") and "attention" not in key)
        )
    }
    assert {key for key in after if not torch.equal(after[key], other[key])} == expected
    assert {*after.report["iterations"]} == expected
    assert len(expected) == 10 + 1 + sum(is_head(n) for n in expected) + 4 * (
        family[-5:] == "apart"
    )


def test_heads_of_another_shape_or_task_stay() -> None:
    base, *experts = (toys.model(seed, toys.NETWORK) for seed in range(3))
    wider = {**experts[1], "classifier.weight": torch.randn(3, toys.WIDTH)}
    after = run([experts[0], wider], base)
    assert torch.equal(after[1]["classifier.weight"], wider["classifier.weight"])
    whole = symmetry()
    other = Symmetry(whole.axes, whole.heads, whole.words, whole.head, one_task=False)
    for matrix_set in ("paper", "all_2d"):
        after = run(experts, base, symmetry=other, matrix_set=matrix_set)
        assert torch.equal(after[1]["classifier.weight"], experts[1]["classifier.weight"])
        assert not torch.equal(after[1][PAPER[0]], experts[1][PAPER[0]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rotate_bias": True}, "rotate_bias true orientation in bias"),
        ({"layers": "first:3"}, "layers first:3 first:N last:N N"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    def never(name: str) -> torch.Tensor:
        raise AssertionError(name)

    state = weights.Lazy(weights.specs(toys.model(0, toys.NETWORK)), never)
    with mistake(BadOption, message):
        run([state, state], state, **options)


# Whose head --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "tasks", "expected"),
    [
        ([["no", "yes"]] * 2, ["glue/rte"] * 2, True),
        ([["no", "yes"]] * 2, ["", ""], True),
        ([["no", "yes"]] * 2, ["glue/rte", "glue/qnli"], False),
        ([["no", "yes"], ["yes", "no"]], ["", ""], False),
        ([TAGS] * 2, ["ner/conll2003", "ner/tweetner7"], True),
    ],
)
def test_whether_heads_mean_the_same(
    labels: list[list[str]], tasks: list[str], expected: bool, minis: Minis
) -> None:
    opened = open_checkpoint(minis("bert")["a"])
    experts = [
        Checkpoint(
            opened.source,
            opened.path,
            opened.config,
            opened.family,
            opened.weights,
            tuple(names),
            (task,) if task else (),
        )
        for names, task in zip(labels, tasks, strict=True)
    ]
    assert harness.NEEDS["symmetry"].function(experts).one_task is expected


# Through the front door --------------------------------------------------------------------


def turned_copy(source: Path, target: Path, names: Sequence[str]) -> Path:
    """A folder with its matrices of these names each turned by a T of its own."""
    shutil.copytree(source, target)
    state = load_file(target / "model.safetensors")
    numbers = np.random.default_rng(0)
    for name in names:
        turn = np.linalg.qr(numbers.normal(size=(state[name].shape[1],) * 2))[0]
        state[name] = (state[name].double() @ torch.from_numpy(turn)).float().contiguous()
    save_file(state, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_turned_copies_of_a_model_come_home_through_merge(minis: Minis, tmp_path: Path) -> None:
    found, expected = minis("bert"), load_file(minis("bert")["a"] / "model.safetensors")
    copy = turned_copy(found["a"], tmp_path / "copy", PAPER)
    experts = (str(found["a"]), str(copy))
    for premerge, names in (((), PAPER), (("procrustes",), ())):
        out = tmp_path / f"out{len(premerge)}"
        recipe = Recipe(
            experts=experts, base=str(found["base"]), merger="average", premerge=premerge
        )
        merge(recipe, out=out)
        state = load_file(out / "model.safetensors")
        far = {n for n in state if not torch.allclose(state[n], expected[n], atol=1e-6)}
        assert far == {*names}


def test_the_record_says_how_it_went(minis: Minis, tmp_path: Path) -> None:
    found, out = minis("bert"), tmp_path / "out"
    command = ["merge", str(found["a"]), str(found["b"]), "--base", str(found["base"])]
    flags = ["--premerge", "procrustes", "--premerge", "dare", "--merger", "ties"]
    assert main([*command, *flags, "--out", str(out)]) == 0
    record = json.loads((out / "merge.json").read_text())
    assert record["method"] == "procrustes+dare[ties]"
    stage = record["premerge"][0]
    assert stage["options"]["reference"] == "first"
    report = stage["report"]
    assert {*report["iterations"]} == {*PAPER}
    assert {*report["reference"].values()} == {1}
    assert all(report["after"][name] <= report["before"][name] for name in PAPER)


def test_dare_after_procrustes_drops_from_what_it_made(minis: Minis, tmp_path: Path) -> None:
    found = minis("bert")
    experts = [load_file(found[which] / "model.safetensors") for which in ("a", "b")]
    opened = [open_checkpoint(found[which]) for which in ("base", "a", "b")]
    base = {f"bert.{name}": opened[0].weights[name].clone() for name in opened[0].weights}
    known = harness.NEEDS["symmetry"].function(opened[1:])
    turned = run(experts, base, symmetry=known)
    dropped = harness.PREMERGE["dare"].function(turned, base, drop_rate=0.5)
    out = tmp_path / "out"
    recipe = Recipe(
        experts=(str(found["a"]), str(found["b"])),
        base=str(found["base"]),
        merger="average",
        premerge=("procrustes", "dare"),
    )
    merge(recipe, out=out)
    for name, tensor in load_file(out / "model.safetensors").items():
        mean = (dropped[0][name] + dropped[1][name]) / 2
        torch.testing.assert_close(tensor, mean, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("which", "tasks"), [("b", "qnli"), ("c", "mnli")])
def test_kept_heads_are_the_experts_own(
    which: str, tasks: str, minis: Minis, tmp_path: Path
) -> None:
    """Of two labels like the other's, and of three."""
    found, out = minis("bert"), tmp_path / "out"
    recipe = Recipe(
        experts=(str(found["a"]), str(found[which])),
        base=str(found["base"]),
        merger="average",
        premerge=("procrustes",),
        tasks=("glue/rte", f"glue/{tasks}"),
        heads="keep",
    )
    merge(recipe, out=out)
    mine = load_file(found[which] / "model.safetensors")
    head = load_file(out / "heads" / "glue" / tasks / "model.safetensors")
    assert all(torch.equal(head[name], mine[name]) for name in head)
    plain_mean = load_file(out / "model.safetensors")
    first = load_file(found["a"] / "model.safetensors")
    words = PAPER[0]
    assert not torch.allclose(plain_mean[words], (first[words] + mine[words]) / 2, atol=1e-6)


@pytest.mark.parametrize("count", [1, 3])
def test_a_model_is_turned_to_itself_by_nothing(count: int) -> None:
    base, expert = (toys.model(seed, toys.NETWORK) for seed in range(2))
    for state in run([dict(expert) for _ in range(count)], base):
        for name in state:
            torch.testing.assert_close(state[name], expert[name], atol=1e-6, rtol=1e-6)


def test_a_matrix_is_analysed_once_for_all_experts(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    whole = weights.generalized
    watched = partial(lambda *given, **more: (calls.append(1), whole(*given, **more))[1])
    monkeypatch.setattr(weights, "generalized", watched)
    base, *experts = (toys.model(seed, toys.NETWORK) for seed in range(4))
    found = run(experts, base)
    for name in found[0]:
        for state in found:
            state[name]
    assert len(calls) == len(PAPER)
