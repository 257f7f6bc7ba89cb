"""Rotation: heads turned and units reordered to an anchor; by other formulas and by networks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.linalg import orthogonal_procrustes
from scipy.optimize import linear_sum_assignment, minimize_scalar

import harness
from harness import weights
from harness.checkpoints.families.family import Unit
from harness.checkpoints.open import open_checkpoint
from harness.errors import BadOption
from harness.premergers.rotation import nearest_scale, rotations
from harness.weights import Symmetry, Turned
from tests import symmetries
from tests.symmetries import (
    HEADS,
    SIZE,
    SIZES,
    Tensors,
    apart,
    check_exact,
    every_unit,
    every_variant,
    far,
    logits,
    moved,
    network,
    permutation,
    symmetry_of,
)

Array = npt.NDArray[np.float64]

OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "scaling": {"scaling": True},
    "proper": {"proper": True},
    "proper and scaling": {"proper": True, "scaling": True},
    "attention": {"parts": "attention"},
    "ffn": {"parts": "ffn"},
    "one layer": {"layers": "1"},
    "last": {"layers": "last:1", "scaling": True},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def rotation(
    experts: Sequence[Mapping[str, torch.Tensor]], symmetry: Symmetry, **options: Any
) -> list[Any]:
    """The method, with the base that it reads only if it is the anchor."""
    base = options.pop("base", experts[0])
    return list(harness.PREMERGE["rotation"].function(experts, base, symmetry=symmetry, **options))


def turned(state: Tensors, symmetry: Symmetry, seed: int = 5) -> Tensors:
    """The state with heads turned and units in another order, as no expert ever is."""
    moves = {
        group: permutation(SIZES["ffn"], seed, at)
        if group.startswith("ffn")
        else symmetries.rotations(seed, at)
        for at, group in enumerate(symmetry.within("all", "qk", "vo", "ffn"))
    }
    return moved(state, symmetry.axes, moves)


def scaled(state: Tensors, symmetry: Symmetry) -> Tensors:
    """Queries and values of every head by a number, which is undone in its keys and outputs."""
    factors = torch.tensor([0.5, -3.0], dtype=torch.float64).repeat_interleave(SIZE)
    groups = symmetry.within("all", "qk", "vo")
    return moved(state, symmetry.axes, {group: torch.diag(factors) for group in groups})


# Properties --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"scaling": True, "proper": True}], ids=str)
@every_unit
@every_variant
def test_outputs_stay_as_they_are(variant: str, unit: Unit, options: dict[str, Any]) -> None:
    check_exact(rotation, variant, unit, options)


@every_option
def test_outputs_stay_with_every_option(options: dict[str, Any]) -> None:
    check_exact(rotation, "roberta", "row", options)


@pytest.mark.parametrize("scaling", [False, True])
@every_unit
@every_variant
def test_a_moved_copy_comes_home(variant: str, unit: Unit, scaling: bool) -> None:
    made, state = network(variant, unit)
    symmetry = symmetry_of(variant, unit, state)
    copy = turned(scaled(state, symmetry) if scaling else state, symmetry)
    torch.testing.assert_close(logits(made, copy), logits(made, state), rtol=0, atol=1e-10)
    assert apart(state, copy) > 10
    same, home = rotation([state, copy], symmetry, scaling=scaling)
    assert far(state, home) < 1e-8
    assert same.report["anchor"] == 1
    assert max(of_all[1] for of_all in home.report["after"].values()) < 1e-5


def test_a_copy_in_float32_comes_home() -> None:
    _, state = network("roberta")
    symmetry = symmetry_of("roberta", "row", state)
    copy = turned(scaled(state, symmetry), symmetry)
    halves = [{n: t.float() for n, t in one.items()} for one in (state, copy)]
    _, home = rotation(halves, symmetry, scaling=True)
    assert apart(halves[0], home) < 1e-5 * apart(halves[0], {n: 0 * t for n, t in state.items()})
    assert far(halves[0], home) < 1e-5


def test_what_is_not_scaled_back_stays_apart() -> None:
    _, state = network("bert")
    symmetry = symmetry_of("bert", "row", state)
    _, home = rotation([state, scaled(state, symmetry)], symmetry)
    assert far(state, home) > 0.1


@every_option
def test_a_model_is_at_home_with_itself(options: dict[str, Any]) -> None:
    _, state = network("deberta-v2")
    symmetry = symmetry_of("deberta-v2", "row", state)
    for found in rotation([state, dict(state), dict(state)], symmetry, **options):
        assert far(state, found) < 1e-12


@every_option
@pytest.mark.parametrize("anchor", ["central", "base", 2])
def test_no_group_is_further_from_the_anchor(options: dict[str, Any], anchor: Any) -> None:
    """And the report has the distances, before and after, of a group in all its tensors."""
    states = [network("deberta, apart", seed=seed)[1] for seed in range(4)]
    experts, base = states[:3], states[3]
    symmetry = symmetry_of("deberta, apart", "row", base)
    found = rotation(experts, symmetry, base=base, anchor=anchor, **options)
    for state in found:
        dict(state)
    report = found[0].report
    home = base if anchor == "base" else experts[report["anchor"] - 1]
    assert report["anchor"] == ("base" if anchor == "base" else 2 if anchor == 2 else mid(experts))
    assert {*report["before"]} == {*report["after"]}
    for group in report["before"]:
        names = {one.name for one in symmetry.members(group)}
        for place, (old, new) in enumerate(zip(experts, found, strict=True)):
            for what, state in (("before", old), ("after", new)):
                expected = apart({n: state[n] for n in names}, home)
                assert report[what][group][place] == pytest.approx(expected, abs=1e-5)
            assert report["after"][group][place] <= report["before"][group][place]


def mid(experts: Sequence[Tensors]) -> int:
    mean = {n: sum(e[n] for e in experts) / 3 for n in experts[0]}
    far = [sum(float((e[n] - mean[n]).norm()) for n in mean) for e in experts]
    return 1 + int(np.argmin(far))


def test_the_order_of_experts_matters_through_the_anchor_alone() -> None:
    experts = [network("electra", seed=seed)[1] for seed in range(3)]
    symmetry = symmetry_of("electra", "row", experts[0])
    first = rotation(experts, symmetry)
    turned_about = rotation(experts[::-1], symmetry)[::-1]
    assert all(far(*pair) < 1e-12 for pair in zip(first, turned_about, strict=True))
    for anchor in (1, 2, 3):
        again = rotation(experts[::-1], symmetry, anchor=4 - anchor)[::-1]
        assert all(
            far(*pair) < 1e-12
            for pair in zip(rotation(experts, symmetry, anchor=anchor), again, strict=True)
        )


def test_nothing_but_the_layers_and_parts_that_are_named_is_moved() -> None:
    experts = [network("bert", seed=seed)[1] for seed in range(2)]
    symmetry = symmetry_of("bert", "row", experts[0])
    for options, marks in {
        ("first:1", "attention"): [".layer.0.attention."],
        ("1", "ffn"): [".layer.1.intermediate.", ".layer.1.output.dense.weight"],
    }.items():
        _, found = rotation(experts, symmetry, layers=options[0], parts=options[1])
        changed = {n for n in found if not torch.equal(found[n], experts[1][n])}
        assert changed
        assert all(any(mark in name for mark in marks) for name in changed)
        assert not any("LayerNorm" in n or n.endswith("output.dense.bias") for n in changed)


# Agreement ---------------------------------------------------------------------------------


def reference(
    local: Tensors, anchor: Tensors, layer: int, options: dict[str, Any]
) -> dict[str, Array]:
    """Rotation of one layer of BERT, by explicit slices in numpy, from docs/methods.md#rotation."""
    at = f"bert.encoder.layer.{layer}."
    mine, theirs = ({n: t.numpy().copy() for n, t in s.items() if at in n} for s in (local, anchor))
    names = {k: f"{at}attention.self.{k}" for k in ("query", "key", "value")}
    output = f"{at}attention.output.dense.weight"
    for head in range(HEADS):
        rows = slice(head * SIZE, (head + 1) * SIZE)

        def part(state: dict[str, Array], name: str, rows: slice = rows) -> Array:
            return np.column_stack([state[f"{name}.weight"][rows], state[f"{name}.bias"][rows]])

        def put(name: str, value: Array, rows: slice = rows) -> None:
            mine[f"{name}.weight"][rows], mine[f"{name}.bias"][rows] = value[:, :-1], value[:, -1]

        both = [(part(s, names["query"]), part(s, names["key"])) for s in (mine, theirs)]
        q, k = nearest(*both[0], *both[1], options)
        put(names["query"], q)
        put(names["key"], k)
        both = [(part(s, names["value"]), s[output][:, rows].T) for s in (mine, theirs)]
        v, o = nearest(*both[0], *both[1], options)
        put(names["value"], v)
        mine[output][:, rows] = o.T
    up, down = f"{at}intermediate.dense", f"{at}output.dense.weight"
    gain = np.zeros((SIZES["ffn"], SIZES["ffn"]))
    for i in range(SIZES["ffn"]):
        for j in range(SIZES["ffn"]):
            gain[i, j] = (
                mine[f"{up}.weight"][i] @ theirs[f"{up}.weight"][j]
                + mine[f"{up}.bias"][i] * theirs[f"{up}.bias"][j]
                + mine[down][:, i] @ theirs[down][:, j]
            )
    place = linear_sum_assignment(gain, maximize=True)[1]
    old = {name: mine[name].copy() for name in (f"{up}.weight", f"{up}.bias", down)}
    for i, to in enumerate(place):
        mine[f"{up}.weight"][to] = old[f"{up}.weight"][i]
        mine[f"{up}.bias"][to] = old[f"{up}.bias"][i]
        mine[down][:, to] = old[down][:, i]
    return mine


def nearest(
    q: Array, k: Array, q2: Array, k2: Array, options: dict[str, Any]
) -> tuple[Array, Array]:
    """Two parts of a head, [size, features] each, turned and scaled towards two others."""
    product = np.zeros((SIZE, SIZE))
    for mine, theirs in ((q, q2), (k, k2)):
        for a, b in zip(mine.T, theirs.T, strict=True):
            product += np.outer(a, b)
    left, _, right = np.linalg.svd(product)
    if options.get("proper") and np.linalg.det(left @ right) < 0:
        left[:, -1] *= -1
    turn = left @ right
    q, k = turn.T @ q, turn.T @ k
    scale = best_scale(q, q2, k, k2) if options.get("scaling") else 1.0
    return q * scale, k / scale


def best_scale(q: Array, q2: Array, k: Array, k2: Array) -> float:
    """By a search of each sign, and not by roots."""

    def left(log: float, sign: float) -> float:
        a = sign * np.exp(log)
        return float(((a * q - q2) ** 2).sum() + ((k / a - k2) ** 2).sum())

    found = []
    for sign in (1.0, -1.0):
        start = min(np.linspace(-6, 6, 241), key=lambda log: left(log, sign))
        best = minimize_scalar(
            left, bracket=(start - 0.05, start, start + 0.05), args=(sign,), tol=1e-15
        )
        found.append((best.fun, sign * np.exp(best.x)))
    return float(min(found)[1])


@pytest.mark.parametrize(
    "options", [{}, {"proper": True}, {"scaling": True}, {"proper": True, "scaling": True}], ids=str
)
def test_it_agrees_with_plain_loops(options: dict[str, Any]) -> None:
    (_, anchor), (_, local) = network("bert"), network("bert", seed=1)
    _, found = rotation([anchor, local], symmetry_of("bert", "row", local), **options)
    for layer in (0, 1):
        for name, expected in reference(local, anchor, layer, options).items():
            # a search for the least value finds its place to half of the digits
            tolerance = 1e-6 if options.get("scaling") else 1e-10
            np.testing.assert_allclose(found[name], expected, atol=tolerance, err_msg=name)


ONE = Symmetry({"q": ("qk.0", None), "k": ("qk.0*", None)}, heads=1)


def test_by_hand() -> None:
    """The case of the docstring, and what scipy says of it."""
    anchor = {"q": torch.tensor([[0.0, -2], [1, 0]]), "k": torch.zeros(2, 2)}
    local = {"q": torch.tensor([[1.0, 0], [0, 2]]), "k": torch.zeros(2, 2)}
    _, found = rotation([anchor, local], ONE)
    turn = orthogonal_procrustes(local["q"].T.numpy(), anchor["q"].T.numpy())[0]
    assert turn.tolist() == [[0, 1], [-1, 0]]
    assert found["q"].tolist() == anchor["q"].tolist()


def test_a_head_agrees_with_scipy() -> None:
    random = np.random.default_rng(0)
    states = [{n: torch.from_numpy(random.normal(size=(4, 7))) for n in "qk"} for _ in range(2)]
    _, found = rotation(states, ONE)
    stacked = [np.concatenate([s["q"].T.numpy(), s["k"].T.numpy()]) for s in states]
    turn, _ = orthogonal_procrustes(stacked[1], stacked[0])
    for name in "qk":
        np.testing.assert_allclose(found[name].T, states[1][name].T.numpy() @ turn, atol=1e-12)


def test_rotations_by_hand() -> None:
    """Of ((3, 0), (0, -1)) the polar factor reflects; the direction of size 1 gives way."""
    products = torch.tensor([[[3.0, 0], [0, -1]], [[0, -1], [3, 0]]]).double()
    factors = weights.polar(products)
    assert torch.linalg.det(factors).tolist() == [-1, 1]
    proper = rotations(factors, products)
    torch.testing.assert_close(proper[0], torch.eye(2).double(), rtol=0, atol=1e-14)
    assert torch.equal(proper[1], factors[1])


def test_no_rotation_is_better_than_the_proper_one() -> None:
    numbers = torch.Generator().manual_seed(0)
    products = torch.randn(6, 3, 3, generator=numbers, dtype=torch.float64)
    proper = rotations(weights.polar(products), products)
    eye = torch.eye(3, dtype=torch.float64).expand_as(proper)
    torch.testing.assert_close(proper @ proper.mT, eye, rtol=0, atol=1e-12)
    torch.testing.assert_close(torch.linalg.det(proper), torch.ones(6).double())
    best = (proper * products).sum((1, 2))
    for _ in range(300):
        other = torch.linalg.qr(torch.randn(6, 3, 3, generator=numbers, dtype=torch.float64)).Q
        other = other * torch.linalg.det(other)[:, None, None]
        assert ((other * products).sum((1, 2)) <= best + 1e-9).all()


@pytest.mark.parametrize(
    ("q", "q2", "k", "k2", "expected"),
    [
        (1, 2, 2, 1, 2.0),  # the case of the docstring
        (1, -2, 2, -1, -2.0),  # a negative root
        (1, 5, 1, 5, 5.0),  # two unlike scales, of which the larger product wins
        (3, 3, 2, 2, 1.0),
        (0, 1, 1, 1, 1.0),  # no queries
        (1, 1, 0, 1, 1.0),  # no keys
    ],
)
def test_scales_by_hand(q: float, q2: float, k: float, k2: float, expected: float) -> None:
    found = nearest_scale(q * q, q * q2, k * k, k * k2)

    def left(a: float) -> float:
        return (a * q - q2) ** 2 + (k / a - k2) ** 2

    assert left(found) <= left(expected) + 1e-12
    if q and k:
        assert all(left(found) <= left(a) + 1e-12 for a in np.linspace(-8, 8, 1601) if a)
    if (q, k) != (1, 1) or q2 != k2:
        assert found == pytest.approx(expected)


def test_heads_of_one_unit_and_units_of_one_head() -> None:
    """R is then 1 or -1; and what has no bias has none in the sum."""
    symmetry = Symmetry({"q": ("qk.0", None), "k": ("qk.0*", None)}, heads=2)
    anchor = {"q": torch.tensor([[1.0], [2]]), "k": torch.tensor([[1.0], [1]])}
    local = {"q": torch.tensor([[-1.0], [2]]), "k": torch.tensor([[-1.0], [1]])}
    _, found = rotation([anchor, local], symmetry)
    assert {n: t.tolist() for n, t in found.items()} == {n: t.tolist() for n, t in anchor.items()}
    _, found = rotation([anchor, local], symmetry, proper=True)
    assert {n: t.tolist() for n, t in found.items()} == {n: t.tolist() for n, t in local.items()}


# Planted faults ----------------------------------------------------------------------------


def _without(mark: str) -> Callable[[Symmetry], Symmetry]:
    """The table without the biases of some layers."""
    return lambda symmetry: Symmetry(
        {n: (None,) * len(a) if n.endswith(mark) else a for n, a in symmetry.axes.items()},
        symmetry.heads,
    )


def _other_axis(symmetry: Symmetry) -> Symmetry:
    mark = "attention.output.dense.weight"
    axes = {n: a[::-1] if n.endswith(mark) else a for n, a in symmetry.axes.items()}
    return Symmetry(axes, symmetry.heads)


FAULTS: dict[str, Callable[[Symmetry], Symmetry]] = {
    "a bias of queries forgotten": _without("query.bias"),
    "a bias of values forgotten": _without("value.bias"),
    "a bias of units forgotten": _without("intermediate.dense.bias"),
    "the wrong axis": _other_axis,
    "heads mixed": lambda symmetry: Symmetry(symmetry.axes, 1),
    "the heads of another model": lambda symmetry: Symmetry(symmetry.axes, 4),
    "values turned as queries": lambda symmetry: Symmetry(
        {n: tuple(g and g.replace("vo.1", "qk.1") if "value" in n else g for g in a)
         for n, a in symmetry.axes.items()},
        symmetry.heads,
    ),
}  # fmt: skip


def drift(symmetry: Symmetry, variant: str = "bert", **options: Any) -> float:
    (made, state), (_, anchor) = network(variant), network(variant, seed=1)
    _, found = rotation([anchor, state], symmetry, **options)
    return float((logits(made, dict(found)) - logits(made, state)).abs().max())


@pytest.mark.fault
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_table_moves_the_outputs(fault: str) -> None:
    symmetry = symmetry_of("bert", "row", network("bert")[1])
    assert drift(symmetry) < 1e-10
    wrong = FAULTS[fault](symmetry)
    if fault == "the heads of another model":  # blocks of half a head are blocks within heads
        assert drift(wrong) < 1e-10
    else:
        assert drift(wrong) > 1e-3


def test_a_family_whose_table_forgets_a_projection_moves_the_outputs() -> None:
    """DeBERTa's own projections of positions are turned as queries and keys are."""
    symmetry = symmetry_of("deberta, apart", "row", network("deberta, apart")[1])
    assert drift(symmetry, "deberta, apart") < 1e-10
    for name in ("pos_query_proj.weight", "pos_key_proj.weight"):
        assert drift(_without(name)(symmetry), "deberta, apart") > 1e-3


def test_a_scale_that_is_not_undone_moves_the_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    symmetry = symmetry_of("bert", "row", network("bert")[1])
    assert drift(symmetry, scaling=True) < 1e-10
    monkeypatch.setattr(weights, "Turned", lambda blocks, inverse: Turned(blocks))
    assert drift(symmetry, scaling=True) > 1e-3


# Through the public door -------------------------------------------------------------------

Minis = Callable[[str], dict[str, Path]]


def copy_of(folder: Path, out: Path, variant: str) -> Path:
    """A folder of the same model with its heads turned and scaled and its units reordered."""
    state = load_file(folder / "model.safetensors")
    wide = {name: tensor.double() for name, tensor in state.items()}
    symmetry = symmetry_of(variant, "row", wide)
    shutil.copytree(folder, out)
    elsewhere = {
        n: t.float().contiguous() for n, t in turned(scaled(wide, symmetry), symmetry).items()
    }
    save_file(elsewhere, out / "model.safetensors", metadata={"format": "pt"})
    return out


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "deberta-v2", "electra"])
def test_a_merge_with_a_moved_copy_is_the_model(
    family: str, loud: Callable[..., Path], minis: Minis, tmp_path: Path
) -> None:
    """Which the average of the two is far from."""
    model = loud(family)
    copy = copy_of(model, tmp_path / "copy", family)
    asked: dict[str, Any] = {
        "experts": (str(model), str(copy)),
        "base": str(minis(family)["base"]),
        "merger": "average",
    }
    expected = open_checkpoint(model).weights
    distances = {}
    for name, premerge in (("collapsed", []), ("home", ["rotation:scaling=true"])):
        recipe = harness.Recipe.model_validate({**asked, "premerge": premerge})
        harness.merge(recipe, out=tmp_path / name)
        distances[name] = far(expected, open_checkpoint(tmp_path / name).weights)
    assert distances["collapsed"] > 0.1
    assert distances["home"] < 1e-5
    stage = json.loads((tmp_path / "home" / "merge.json").read_text())["premerge"][0]
    assert stage["report"]["anchor"] == 1
    assert stage["report"]["before"]["qk.1"][1] > 1
    assert stage["report"]["after"]["qk.1"][1] < 1e-3


def test_options_are_checked_without_a_tensor_read() -> None:
    def read(name: str) -> torch.Tensor:
        raise AssertionError(name)

    _, state = network("bert")
    symmetry = symmetry_of("bert", "row", state)
    lazy = [weights.Lazy(weights.specs(state), read)] * 2
    for wrong in ({"anchor": 3}, {"layers": "9"}):
        with pytest.raises(BadOption):
            rotation(lazy, symmetry, **wrong)
