"""OT fusion and CCA merging: plain loops in float64, by hand, permuted copies, the public door."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.linalg import sqrtm
from scipy.optimize import linear_sum_assignment

import harness
from harness import Choice, Recipe, StateDict, merge, weights
from harness.checking import toys
from harness.checking.battery import battery
from harness.checking.properties import PROPERTIES
from harness.checkpoints.families.family import Unit
from harness.checkpoints.open import open_checkpoint
from harness.entries import Premerge
from harness.errors import BadOption
from harness.premergers.cca import covariance, mapped
from harness.premergers.ot_fusion import transport
from harness.types import Products
from harness.weights import Permuted, Symmetry
from tests.conftest import FAMILIES
from tests.mistakes import mistake
from tests.symmetries import VARIANTS, far, logits, symmetry_of, tensors
from tests.symmetries import loud as network_of
from tests.toys import TOY, registered

Minis = Callable[[str], dict[str, Path]]
Array = np.ndarray[Any, Any]
Tensors = dict[str, torch.Tensor]
OT = harness.PREMERGE["ot_fusion"].function
CCA = harness.PREMERGE["cca"].function
LAYER = "bert.encoder.layer.{}."
UP, DOWN = "intermediate.dense", "output.dense"


def symmetry() -> Symmetry:
    found = harness.NEEDS["symmetry"].toy([toys.model(1, toys.NETWORK)])  # type: ignore[misc]
    assert isinstance(found, Symmetry)
    return found


def shuffled(state: StateDict, table: Symmetry, seed: int = 0) -> Tensors:
    """The state with its feed-forward units in another order: the same function."""
    numbers = torch.Generator().manual_seed(seed)
    sizes = {
        group: state[member.name].shape[member.axis]
        for group in table.groups
        if group.startswith("ffn.")
        for member in table.members(group, state)
    }
    orders = {group: Permuted(torch.randperm(n, generator=numbers)) for group, n in sizes.items()}
    return dict(weights.moved(state, table, orders.get))


# OT fusion ---------------------------------------------------------------------------------


def plain_order(rows: Array, goals: Array) -> Array:
    """For each place of the anchor the row that goes there (docs/methods.md#ot_fusion)."""
    cost = np.zeros((len(rows), len(goals)))
    for i, row in enumerate(rows):
        for j, goal in enumerate(goals):
            here, there = (one / (np.linalg.norm(one) + 1e-9) for one in (row, goal))
            cost[i, j] = np.linalg.norm(here - there)
    units, places = linear_sum_assignment(cost)
    order = np.zeros(len(rows), int)
    order[places] = units
    return order


def plain(state: StateDict, anchor: StateDict, *, quirks: bool) -> dict[str, Array]:
    found = {name: state[name].double().numpy() for name in state}
    goals = {name: anchor[name].double().numpy() for name in anchor}
    for layer in (0, 1):
        up, down = (LAYER.format(layer) + part for part in (UP, DOWN))
        order = plain_order(found[f"{up}.weight"], goals[f"{up}.weight"])
        found[f"{up}.weight"] = found[f"{up}.weight"][order]
        found[f"{down}.weight"] = found[f"{down}.weight"][:, order]
        if quirks:
            again = plain_order(found[f"{down}.weight"], goals[f"{down}.weight"])
            found[f"{down}.weight"] = found[f"{down}.weight"][again]
        else:
            found[f"{up}.bias"] = found[f"{up}.bias"][order]
    return found


@pytest.mark.parametrize("quirks", [False, True])
def test_ot_fusion_is_that_of_plain_loops(quirks: bool) -> None:
    first, second = (toys.model(seed, toys.NETWORK) for seed in (1, 2))
    turned = {n: t.flip(0) if n.endswith(f"{DOWN}.weight") else t for n, t in second.items()}
    loud = torch.linspace(0.2, 5, toys.INNER)[:, None]  # of rows, not their length is compared
    turned = {n: t * loud if n.endswith(f"{UP}.weight") else t for n, t in turned.items()}
    moved = shuffled(turned, symmetry())
    found = OT([first, moved], {}, symmetry=symmetry(), reference_quirks=quirks, anchor=1)
    expected = plain(moved, first, quirks=quirks)
    for name in first:
        assert torch.equal(found[0][name], first[name])
        np.testing.assert_array_equal(found[1][name].double().numpy(), expected[name])
    changed = {name for name in moved if not torch.equal(found[1][name], moved[name])}
    assert len(changed) == (4 if quirks else 6)
    assert {*found[1].report["after"]} == {
        f"{kind}.{layer}" for kind in ("ffn", "out")[: 1 + quirks] for layer in (0, 1)
    }


def test_the_distance_that_is_told_is_that_of_the_tensors() -> None:
    first, second = (toys.model(seed, toys.NETWORK) for seed in (1, 2))
    moved = shuffled(second, symmetry())
    found = OT([first, moved], {}, symmetry=symmetry(), anchor=1)
    names = [LAYER.format(1) + part for part in (f"{UP}.weight", f"{UP}.bias", f"{DOWN}.weight")]
    after = sum(float((found[1][n].double() - first[n]).square().sum()) for n in names) ** 0.5
    assert all(torch.equal(found[0][name], first[name]) for name in names)
    before = sum(float((moved[n].double() - first[n]).square().sum()) for n in names) ** 0.5
    assert found[1].report["before"]["ffn.1"] == [0, pytest.approx(before)]
    assert found[1].report["after"]["ffn.1"] == [0, pytest.approx(after)]
    assert after < before


def test_rows_by_hand() -> None:
    rows = torch.tensor([[5.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    goals = torch.tensor([[0.0, 2.0], [3.0, 0.0]], dtype=torch.float64)
    assert transport(rows, goals).tolist() == [1, 0]
    assert transport(rows, rows).tolist() == [0, 1]
    # a chord of 1.31 costs less than two of 0.70, though their squares sum to less than its own
    near, far = [math.cos(0.715), math.sin(0.715)], [math.cos(0.715), -math.sin(0.715)]
    ahead, apart = (torch.tensor([[1, 0], one], dtype=torch.float64) for one in (near, far))
    assert transport(apart, ahead).tolist() == [0, 1]
    assert transport(torch.zeros(3, 2).double(), torch.zeros(3, 2).double()).tolist() == [0, 1, 2]


def test_parallel_rows_stay_where_they_are() -> None:
    """Their distance is 0, and products of 32 numbers round it to some 1e-8."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(10):
        rows = torch.randn(64, 32, generator=generator, dtype=torch.float64)
        rows[5], rows[20], rows[21] = 3 * rows[9], rows[30] / 2, 1.7 * rows[30]
        assert transport(rows, rows.clone()).tolist() == [*range(64)]


@pytest.mark.parametrize("unit", ["row", "word"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_permuted_copies_come_home_and_no_output_moves(variant: str, unit: Unit) -> None:
    made = network_of(variant, unit)
    first, other = tensors(made), tensors(network_of(variant, unit, seed=1))
    table = symmetry_of(variant, unit, first)
    copy = shuffled(first, table)
    assert far(copy, first) > 0.1
    home, mine, away = OT([first, copy, other], {}, symmetry=table, anchor=1)
    assert far(home, first) == far(mine, first) == 0
    assert far(away, other) > 0.1
    expected = logits(network_of(variant, unit, seed=1), other)
    torch.testing.assert_close(logits(made, dict(away)), expected, rtol=1e-10, atol=1e-10)


def test_quirks_move_outputs_of_a_permuted_model() -> None:
    made = network_of("bert", "row")
    first = tensors(made)
    table = symmetry_of("bert", "row", first)
    copy = shuffled(first, table)
    away = OT([first, copy], {}, symmetry=table, anchor=1, reference_quirks=True)[1]
    assert float((logits(made, dict(away)) - logits(made, first)).abs().max()) > 1e-2
    same = OT([first, dict(first)], {}, symmetry=table, anchor=1, reference_quirks=True)[1]
    assert far(same, first) == 0


def test_quirks_are_for_two() -> None:
    states = [toys.model(seed, toys.NETWORK) for seed in (1, 2, 3)]
    with mistake(BadOption, "reference_quirks ot_fusion 2 3"):
        OT(states, {}, symmetry=symmetry(), reference_quirks=True)


def forgetful(
    experts: Sequence[StateDict], base: StateDict, *, forget: bool = False
) -> list[StateDict]:
    """Exact, but with an option."""
    return [weights.each(lambda t: t * (1 + forget), expert) for expert in experts]


def test_an_option_may_cost_exactness_where_its_name_is_given() -> None:
    told = {"forget": ("exact", "family")}
    for breaks_with, forget, verdict in (
        (told, True, "breaks by design"),
        ({}, True, "breaks"),
        (told, False, "holds"),
    ):
        name = f"{__name__}:forgetful"
        entry = Premerge(name, forgetful, exact=True, breaks_with=breaks_with)
        found = battery("premerge", Choice(name, {"forget": forget}), entry)
        finding = found.find(PROPERTIES["exact"])
        assert finding.verdict == verdict, finding


@pytest.mark.parametrize("family", FAMILIES)
def test_a_permuted_copy_comes_home_through_merge(
    family: str, minis: Minis, tmp_path: Path
) -> None:
    found = minis(family)
    copy = permuted(found["a"], tmp_path / "copy")
    apart = {}
    for premerge in ((), ("ot_fusion",), ("ot_fusion:reference_quirks=true,anchor=1",)):
        out = tmp_path / f"out{len(apart)}"
        recipe = Recipe(
            experts=(str(found["a"]), str(copy)),
            base=str(found["base"]),
            merger="average",
            premerge=premerge,
        )
        merge(recipe, out=out)
        apart["".join(premerge)] = far(
            load_file(out / "model.safetensors"), load_file(found["a"] / "model.safetensors")
        )
    none, exact, quirky = apart.values()
    assert exact < 1e-6
    # its biases are of other units; the plain average has weights of others as well
    assert quirky > 1e-3
    assert none > 1e-2


def permuted(folder: Path, out: Path) -> Path:
    """A copy of a folder with its feed-forward units in another order."""
    table = harness.NEEDS["symmetry"].function([open_checkpoint(folder)])
    shutil.copytree(folder, out)
    state = shuffled(load_file(out / "model.safetensors"), table)
    save_file(state, out / "model.safetensors", metadata={"format": "pt"})
    return out


# CCA ---------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Given:
    """Activations as they are told, [tokens, units] by layer."""

    units: list[torch.Tensor]

    def products(self, other: Any, group: str) -> Products:
        layer = int(group.partition(".")[2])
        z, o = self.units[layer], other.units[layer]
        squares = (z.square().sum(0), o.square().sum(0))
        return Products(z.T @ o, (z.sum(0), o.sum(0)), squares, len(z))


def given(seed: int) -> Given:
    numbers = np.random.default_rng(seed)
    common = np.random.default_rng(0).normal(size=(2, 30, toys.INNER))
    drawn = common + numbers.normal(size=common.shape) + 2
    return Given([torch.from_numpy(one) for one in drawn])


def plain_map(x: Array, y: Array, gamma: float) -> Array:
    """A of docs/methods.md#cca, y to y A."""
    x, y = x - x.mean(0), y - y.mean(0)
    within = [one.T @ one / len(one) + gamma * np.eye(one.shape[1]) for one in (x, y)]
    roots = [np.real(sqrtm(one)) for one in within]
    back = [np.linalg.inv(root) for root in roots]
    u, _, vt = np.linalg.svd(back[0] @ (x.T @ y / len(x)) @ back[1])
    return np.asarray(back[1] @ vt.T @ u.T @ roots[0])


PLACES = {"first": 0, 1: 0, 2: 1, "central": 1}
"""Of anchors, among three experts of which the second is the mean."""
CCA_OPTIONS: list[dict[str, Any]] = [
    {},
    {"gamma": 2.0},
    {"layers": "first:1"},
    {"anchor": 2},
    {"anchor": "first"},
    {"anchor": "central"},
]


@pytest.mark.parametrize("options", CCA_OPTIONS, ids=str)
def test_cca_is_that_of_plain_loops(options: dict[str, Any]) -> None:
    first, third = (toys.model(seed, toys.NETWORK) for seed in (1, 3))
    experts = [first, {name: (first[name] + third[name]) / 2 for name in first}, third]
    seen = [given(seed) for seed in (1, 2, 3)]
    found = CCA(experts, {}, activations=seen, symmetry=symmetry(), **options)
    home = PLACES[options.get("anchor", 1)]
    for index, (state, expert) in enumerate(zip(found, experts, strict=True)):
        expected = {name: expert[name].double().numpy() for name in expert}
        for layer in (0, 1)[: 1 if "layers" in options else 2]:
            if index == home:
                continue
            x, y = (seen[place].units[layer].numpy() for place in (home, index))
            a = plain_map(x, y, options.get("gamma", 0.1))
            up, down = (LAYER.format(layer) + part for part in (UP, DOWN))
            expected[f"{up}.weight"] = a.T @ expected[f"{up}.weight"]
            expected[f"{up}.bias"] = expected[f"{up}.bias"] @ a
            expected[f"{down}.weight"] = expected[f"{down}.weight"] @ np.linalg.inv(a).T
        for name in expert:
            np.testing.assert_allclose(state[name].numpy(), expected[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", [*permutations(range(3))], ids=str)
def test_the_order_of_experts_matters_to_cca_through_the_anchor_alone(
    order: tuple[int, ...],
) -> None:
    experts = [toys.model(seed, toys.NETWORK) for seed in (1, 2, 3)]
    seen = [given(seed) for seed in (1, 2, 3)]

    def mapped_in(places: Sequence[int], anchor: int | str) -> dict[int, StateDict]:
        found = CCA(
            [experts[place] for place in places],
            {},
            activations=[seen[place] for place in places],
            symmetry=symmetry(),
            anchor=anchor,
        )
        return dict(zip(places, found, strict=True))

    for home in (0, 1, 2, "central"):
        anchors = [home if isinstance(home, str) else p.index(home) + 1 for p in ((0, 1, 2), order)]
        first, again = mapped_in((0, 1, 2), anchors[0]), mapped_in(order, anchors[1])
        assert all(far(first[place], again[place]) < 1e-6 for place in range(3))
    others = mapped_in((0, 1, 2), 1), mapped_in((0, 1, 2), 2)
    assert far(others[0][2], others[1][2]) > 1e-2


def test_cca_tells_how_far_experts_are_from_the_anchor() -> None:
    experts = [toys.model(seed, toys.NETWORK) for seed in (1, 2, 3)]
    seen = [given(seed) for seed in (1, 2, 3)]
    found = CCA(experts, {}, activations=seen, symmetry=symmetry(), anchor=2)
    after = [dict(state.items()) for state in found]
    assert isinstance(found[0], weights.Lazy)
    report = found[0].report
    assert report["anchor"] == 2
    names = [m.name for m in symmetry().members("ffn.1", experts[0])]
    for when, states in (("before", experts), ("after", after)):
        flat = [torch.cat([state[name].double().flatten() for name in names]) for state in states]
        expected = [float((one - flat[1]).norm()) for one in flat]
        assert report[when]["ffn.1"] == pytest.approx(expected, rel=1e-5, abs=0)
        assert report[when]["ffn.1"][1] == 0


def test_a_map_by_hand() -> None:
    four, two, one = (torch.tensor([[value]], dtype=torch.float64) for value in (4.0, 2.0, 1.0))
    found = mapped(four, two, one, 1e-12)
    assert found.blocks.item() == pytest.approx(2)
    assert found.inverse is not None
    assert found.inverse.item() == pytest.approx(0.5)


def test_covariances_agree_with_numpy() -> None:
    first, second = given(1), given(2)
    found = covariance(first.products(second, "ffn.0")).numpy()
    both = np.cov(first.units[0].numpy(), second.units[0].numpy(), rowvar=False, bias=True)
    np.testing.assert_allclose(found, both[: toys.INNER, toys.INNER :], atol=1e-12)


def test_units_that_say_nothing_do_no_harm() -> None:
    """Dead units, on few rows: no covariance is invertible, and a copy is mapped by nothing."""
    seen = given(1)
    for units in seen.units:
        units[:, :5] = 0
    seen = Given([units[:4] for units in seen.units])
    expert = toys.model(1, toys.NETWORK)
    found = CCA([expert, dict(expert)], {}, activations=[seen, seen], symmetry=symmetry())
    for name in expert:
        torch.testing.assert_close(found[1][name], expert[name], rtol=1e-5, atol=1e-5)


def test_what_cca_makes_of_a_permuted_copy_through_merge(
    loud: Callable[..., Path], minis: Minis, tmp_path: Path
) -> None:
    """Its units correlate fully with those of the model that it is a copy of, and go there."""
    original, base = loud("bert"), minis("bert")["base"]
    copy = permuted(original, tmp_path / "copy")
    with registered(TOY):
        recipe = Recipe(
            experts=(str(original), str(copy)),
            base=str(base),
            merger="average",
            premerge=("cca:examples=10,gamma=0.1",),
            tasks=("toy/pairs",),
        )
        merge(recipe, out=tmp_path / "out")
    state = load_file(tmp_path / "out" / "model.safetensors")
    own = load_file(original / "model.safetensors")
    first_layer = LAYER.format(0)
    for name in own:
        if first_layer in name:
            torch.testing.assert_close(state[name], own[name], rtol=0, atol=2e-2)
    record = json.loads((tmp_path / "out" / "merge.json").read_text())
    assert record["premerge"][0]["options"]["gamma"] == 0.1
