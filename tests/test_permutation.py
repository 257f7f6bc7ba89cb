"""Permutation: units in an anchor's order, by formulas of its own and by networks."""

from __future__ import annotations

import itertools
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
from scipy.optimize import linear_sum_assignment

import harness
from harness import weights
from harness.checkpoints.build import build_model
from harness.checkpoints.families.family import Unit
from harness.checkpoints.open import open_checkpoint
from harness.checkpoints.weight_files import open_weights
from harness.errors import BadOption, UnknownName
from harness.weights import Symmetry, alignment, assignment, matched_units, objective, universe
from harness.weights.matching import gainful, surely_unmoved
from tests import symmetries
from tests.conftest import model
from tests.mistakes import refused
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
from tests.toys import THREE, TOY, registered

Array = npt.NDArray[np.float64]
Weights = Mapping[str, torch.Tensor]
ALL = {"heads": True, "residual": True}

OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "heads": {"heads": True},
    "heads alone, rotated": {"heads": True, "ffn": False, "rotated": True},
    "residual": {"residual": True},
    "all": ALL,
    "at once": {"heads": True, "cycle_consistent": True},
}
every_option = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


def permuted(experts: Sequence[Weights], symmetry: Symmetry, **options: Any) -> list[Any]:
    """The method, with the base that it reads only if it is the anchor."""
    base = options.pop("base", experts[0])
    method = harness.PREMERGE["permutation"].function
    return list(method(experts, base, symmetry=symmetry, **options))


def shuffled(state: Tensors, symmetry: Symmetry, seed: int = 3, *, kinds: str = "all") -> Tensors:
    """The state with units in another order: of feed-forward layers, `heads`, or `all`."""
    units = symmetry.within("all", "ffn")
    moves = {group: permutation(SIZES["ffn"], seed, at) for at, group in enumerate(units)}
    if kinds != "ffn":
        for at, (name, alike) in enumerate(symmetry.head_orders("all").items()):
            moves |= dict.fromkeys(alike, symmetries.heads(seed, at))
            moves |= {name: permutation(HEADS, seed, at)} if name in alike else {}
    if kinds == "all":
        groups = {"width", "embedding", "pooled"} & symmetry.groups
        moves |= {group: permutation(SIZES[group], seed) for group in groups}
    return moved(state, symmetry.axes, moves)


# Properties --------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"heads": True}, ALL], ids=["in layers", "everywhere"])
@every_unit
@every_variant
def test_outputs_stay_as_they_are(variant: str, unit: Unit, options: dict[str, Any]) -> None:
    check_exact(permuted, variant, unit, options)


@every_option
def test_outputs_stay_with_every_option(options: dict[str, Any]) -> None:
    check_exact(permuted, "roberta", "row", options)


@every_unit
@every_variant
def test_a_copy_in_another_order_comes_home(variant: str, unit: Unit) -> None:
    made, state = network(variant, unit)
    symmetry = symmetry_of(variant, unit, state)
    copy = shuffled(state, symmetry)
    torch.testing.assert_close(logits(made, copy), logits(made, state), rtol=0, atol=1e-10)
    assert apart(state, copy) > 10
    same, home = permuted([state, copy], symmetry, **ALL)
    assert far(state, same) == 0
    assert far(state, home) == 0
    assert max(of_all[1] for of_all in home.report["after"].values()) == 0
    assert home.report["iterations"]["residual"][1] >= 2


@pytest.mark.parametrize("kinds", ["ffn", "heads"])
@pytest.mark.parametrize("at_once", [False, True])
def test_a_copy_in_another_order_comes_home_in_layers(kinds: str, at_once: bool) -> None:
    _, state = network("deberta, apart")
    symmetry = symmetry_of("deberta, apart", "row", state)
    copies = [shuffled(state, symmetry, seed, kinds=kinds) for seed in (3, 4)]
    options = {"heads": kinds == "heads", "cycle_consistent": at_once}
    for home in permuted([state, *copies], symmetry, anchor=1, **options):
        assert far(state, home) == 0


def test_heads_that_are_turned_come_home_by_the_norms_of_their_products() -> None:
    """As they are, turned heads have nothing in common that tells which is which."""
    _, state = network("bert")
    symmetry = symmetry_of("bert", "row", state)
    copy = shuffled(state, symmetry, kinds="heads")
    groups = {f"{kind}.{layer}" for kind in ("qk", "vo") for layer in (0, 1)}
    copy = moved(copy, symmetry.axes, {group: symmetries.rotations(7) for group in groups})
    matched = permuted([state, copy], symmetry, heads=True, rotated=True)
    _, home = harness.PREMERGE["rotation"].function(matched, state, symmetry=symmetry)
    assert far(state, home) < 1e-8


@every_option
def test_a_model_is_at_home_with_itself(options: dict[str, Any]) -> None:
    _, state = network("deberta-v2")
    symmetry = symmetry_of("deberta-v2", "row", state)
    for found in permuted([state, dict(state), dict(state)], symmetry, **options):
        assert far(state, found) == 0


@pytest.mark.parametrize("options", [{}, {"heads": True}, {"residual": True}, ALL], ids=str)
@pytest.mark.parametrize("anchor", ["central", "base", 2])
def test_no_group_is_further_from_the_anchor(options: dict[str, Any], anchor: Any) -> None:
    states = [network("deberta, apart", seed=seed)[1] for seed in range(4)]
    experts, base = states[:3], states[3]
    symmetry = symmetry_of("deberta, apart", "row", base)
    found = permuted(experts, symmetry, base=base, anchor=anchor, **options)
    for old, new in zip(experts, found, strict=True):
        dict(new)
        home = base if anchor == "base" else experts[found[0].report["anchor"] - 1]
        assert apart(new, home) <= apart(old, home)
    report = found[0].report
    for group, before in report["before"].items():
        names = {one.name for one in symmetry.members(group)}
        for place, (old, new) in enumerate(zip(experts, found, strict=True)):
            for what, state in ((before, old), (report["after"][group], new)):
                expected = apart({n: state[n] for n in names}, home)
                assert what[place] == pytest.approx(expected, abs=1e-5)
    if "residual" not in options:  # where groups share tensors, one may give way to another
        together = [("qk.0", "vo.0"), ("qk.1", "vo.1")] if options else [("ffn.0",), ("ffn.1",)]
        for groups in together:
            left = [
                [sum(of_all[g][place] ** 2 for g in groups) for place in range(3)]
                for of_all in (report["before"], report["after"])
            ]
            assert all(after <= before for before, after in zip(*left, strict=True))


@every_option
def test_the_order_of_experts_matters_through_the_anchor_alone(options: dict[str, Any]) -> None:
    experts = [network("electra", seed=seed)[1] for seed in range(3)]
    symmetry = symmetry_of("electra", "row", experts[0])
    for one, other in (("central", "central"), (1, 3)):
        first = permuted(experts, symmetry, anchor=one, **options)
        again = permuted(experts[::-1], symmetry, anchor=other, **options)[::-1]
        assert all(far(*pair) == 0 for pair in zip(first, again, strict=True))


# Agreement ---------------------------------------------------------------------------------


def common(local: Tensors, anchor: Tensors, layer: int) -> dict[str, Array]:
    """Inner products of all units and of all heads of a layer of BERT, one by one."""
    at = f"bert.encoder.layer.{layer}."
    x, y = (
        {n.removeprefix(at): t.numpy() for n, t in s.items() if at in n} for s in (local, anchor)
    )
    up, down = "intermediate.dense", "output.dense.weight"
    units, heads = np.zeros((SIZES["ffn"], SIZES["ffn"])), np.zeros((HEADS, HEADS))
    for i, j in itertools.product(range(SIZES["ffn"]), repeat=2):
        units[i, j] += x[f"{up}.weight"][i] @ y[f"{up}.weight"][j]
        units[i, j] += x[f"{up}.bias"][i] * y[f"{up}.bias"][j] + x[down][:, i] @ y[down][:, j]
    nuclear = np.zeros((HEADS, HEADS))
    for i, j in itertools.product(range(HEADS), repeat=2):
        mine, theirs = (slice(h * SIZE, (h + 1) * SIZE) for h in (i, j))
        for parts in (("query", "key"), ("value", None)):
            product = np.zeros((SIZE, SIZE))
            for part in parts:
                if part is None:
                    name = "attention.output.dense.weight"
                    product += x[name][:, mine].T @ y[name][:, theirs]
                else:
                    name = f"attention.self.{part}"
                    product += x[f"{name}.weight"][mine] @ y[f"{name}.weight"][theirs].T
                    product += np.outer(x[f"{name}.bias"][mine], y[f"{name}.bias"][theirs])
            heads[i, j] += np.trace(product)
            nuclear[i, j] += np.linalg.svd(product)[1].sum()
    return {"units": units, "heads": heads, "nuclear": nuclear}


@pytest.mark.parametrize("rotated", [False, True])
def test_it_agrees_with_plain_loops(rotated: bool) -> None:
    """Of these two the heads are in another order by the one cost than by the other."""
    (_, anchor), (_, local) = network("bert"), network("bert", seed=7)
    symmetry = symmetry_of("bert", "row", local)
    _, found = permuted([anchor, local], symmetry, heads=True, rotated=rotated)
    for layer in (0, 1):
        at = f"bert.encoder.layer.{layer}."
        gains = common(local, anchor, layer)
        place = linear_sum_assignment(gains["units"], maximize=True)[1]
        up, down = f"{at}intermediate.dense.weight", f"{at}output.dense.weight"
        for i, to in enumerate(place):
            assert torch.equal(found[up][to], local[up][i])
            assert torch.equal(found[down][:, to], local[down][:, i])
        kind = "nuclear" if rotated else "heads"
        place = linear_sum_assignment(gains[kind], maximize=True)[1]
        key, out = f"{at}attention.self.key.bias", f"{at}attention.output.dense.weight"
        for i, to in enumerate(place):
            new, old = (slice(h * SIZE, (h + 1) * SIZE) for h in (to, i))
            assert torch.equal(found[key][new], local[key][old])
            assert torch.equal(found[out][:, new], local[out][:, old])


def test_no_group_by_itself_can_bring_a_whole_model_nearer() -> None:
    """What descent ends at: no other order of one group, by scipy, is any better."""
    (_, anchor), (_, local) = network("electra, narrow"), network("electra, narrow", seed=2)
    symmetry = symmetry_of("electra, narrow", "row", local)
    _, found = permuted([anchor, local], symmetry, residual=True)
    for group in ("width", "embedding", "pooled", "ffn.0", "ffn.1"):
        products: Any = 0
        for name, axis, _ in symmetry.members(group):
            mine, theirs = (
                np.moveaxis(state[name].numpy(), axis, 0).reshape(SIZES[group.split(".")[0]], -1)
                for state in (found, anchor)
            )
            products = products + mine @ theirs.T
        best = linear_sum_assignment(products, maximize=True)
        assert products[best].sum() == pytest.approx(np.trace(products), rel=1e-9)


def test_by_hand() -> None:
    symmetry = Symmetry({"rows": ("ffn.0", None)}, heads=1)
    anchor = {"rows": torch.tensor([[0.0, 2], [3, 0]])}
    local = {"rows": torch.tensor([[1.0, 0], [0, 1]])}
    same, found = permuted([anchor, local], symmetry)
    assert same["rows"].tolist() == anchor["rows"].tolist()
    assert found["rows"].tolist() == [[0, 1], [1, 0]]
    report = found.report
    assert report["before"] == {"ffn.0": [0, pytest.approx(15**0.5)]}
    assert report["after"] == {"ffn.0": [0, pytest.approx(5**0.5)]}


def test_assignment_by_hand() -> None:
    assert assignment(torch.tensor([[1.0, 5], [4, 2]])).tolist() == [1, 0]
    # both units are best at the first place: the sum decides, 2 + 7 and not 8 + 0
    assert assignment(torch.tensor([[8.0, 2], [7, 0]])).tolist() == [1, 0]
    # either order has the sum 3, and where nothing is gained units stay
    even = torch.tensor([[1.0, 1], [2, 2]])
    assert assignment(even).tolist() == [1, 0]
    assert gainful(even, 1.0).tolist() == [0, 1]


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.1, 0.5, 3.0])
def test_units_that_are_told_to_stay_are_those_of_scipy(noise: float) -> None:
    """Whether they are told by the triangle inequality or by all products."""
    symmetry = Symmetry({"up": ("ffn.0", None), "bias": ("ffn.0",), "down": (None, "ffn.0*")}, 1)
    numbers = torch.Generator().manual_seed(1)
    shapes = {"up": (30, 90), "bias": (30,), "down": (80, 30)}
    anchor = {n: torch.randn(s, generator=numbers) for n, s in shapes.items()}
    local = {n: t + noise * torch.randn(t.shape, generator=numbers) for n, t in anchor.items()}
    members = symmetry.members("ffn.0")
    found = matched_units(local, anchor, members)
    rows = [
        np.concatenate([s["up"].T, s["bias"][None], s["down"]]).T.astype(np.float64)
        for s in (local, anchor)
    ]
    old, place = linear_sum_assignment(rows[0] @ rows[1].T, maximize=True)
    assert found.order[place].tolist() == old.tolist()
    what = alignment([anchor, local], {}, symmetry, 1)
    what.tell_moved(1, {"ffn.0": found})
    before, after = (what.report[fact]["ffn.0"][1] for fact in ("before", "after"))
    assert before == pytest.approx(np.linalg.norm(rows[0] - rows[1]), abs=1e-6)
    assert after == pytest.approx(np.linalg.norm(rows[0] - rows[1][place]), abs=1e-6)
    assert surely_unmoved(local, anchor, members) == (noise <= 0.1)


def test_units_that_are_alike_are_not_told_to_stay() -> None:
    """Two places at no distance are told apart by nothing; and what gains nothing is not moved."""
    symmetry = Symmetry({"up": ("ffn.0", None)}, 1)
    anchor = {"up": torch.tensor([[1.0, 0], [1, 0], [0, 1]])}
    local = {"up": torch.tensor([[1.1, 0], [1, 0], [0, 1]])}
    assert not surely_unmoved(local, anchor, symmetry.members("ffn.0"))
    _, found = permuted([anchor, local], symmetry)
    assert torch.equal(found["up"], local["up"])


# All at once -------------------------------------------------------------------------------


def units_of(seed: int, models: int = 3, size: int = 4, features: int = 3) -> list[torch.Tensor]:
    random = np.random.default_rng(seed)
    return [torch.from_numpy(random.normal(size=(size, features))) for _ in range(models)]


def to_the_first(units: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [assignment(one @ units[0].T) for one in units]


def frank_wolfe(units: Sequence[Array], start: Sequence[Sequence[int]]) -> tuple[list[Any], int]:
    """By matrices and pairs of models, and the step by three values of the objective."""
    matrices = [np.eye(len(one))[list(order)] for one, order in zip(units, start, strict=True)]

    def value(matrices: Sequence[Array]) -> float:
        return float(
            sum(
                np.trace(matrices[p] @ units[p] @ units[q].T @ matrices[q].T)
                for p, q in itertools.combinations(range(len(units)), 2)
            )
        )

    scale = sum(float((one**2).sum()) for one in units)
    steps = 0
    while steps < 400:
        gradients = [
            sum(matrices[q] @ units[q] @ units[p].T for q in range(len(units)) if q != p)
            for p in range(len(units))
        ]
        best = [np.eye(len(g))[linear_sum_assignment(g, maximize=True)[1]] for g in gradients]
        slope = sum(
            float((g * (b - m)).sum()) for g, b, m in zip(gradients, best, matrices, strict=True)
        )
        if slope <= 1e-9 * scale:
            break

        along = [
            value([(1 - t) * m + t * b for m, b in zip(matrices, best, strict=True)])
            for t in (0, 0.5, 1)
        ]
        square, line, _ = np.polyfit([0, 0.5, 1], along, 2)
        size = 1.0 if square >= 0 else min(1.0, -line / (2 * square))
        matrices = [(1 - size) * m + size * b for m, b in zip(matrices, best, strict=True)]
        steps += 1
    orders = [linear_sum_assignment(m, maximize=True)[1].tolist() for m in matrices]
    return orders, steps


@pytest.mark.parametrize("seed", range(12))
def test_the_universe_agrees_with_matrices_and_is_bounded_by_all_orders(seed: int) -> None:
    units = units_of(seed)
    start = to_the_first(units)
    found = universe(units, start)
    orders, steps = frank_wolfe([one.numpy() for one in units], [one.tolist() for one in start])
    reference = objective(units, [torch.tensor(one) for one in orders])
    assert found.objective == pytest.approx(max(reference, objective(units, start)))
    assert abs(found.iterations - steps) <= 1
    same = torch.arange(4)
    best = max(
        objective(units, [same, torch.tensor(p), torch.tensor(q)])
        for p in itertools.permutations(range(4))
        for q in itertools.permutations(range(4))
    )
    assert objective(units, start) <= found.objective + 1e-9 <= best + 1e-6


def test_the_universe_is_above_matching_to_one() -> None:
    """On most draws it finds orders in which three models have more in common."""
    gains = []
    for seed in range(20):
        units = units_of(seed, models=4, size=6)
        start = to_the_first(units)
        gains.append(universe(units, start).objective - objective(units, start))
    assert min(gains) >= 0
    assert sum(gain > 1e-6 for gain in gains) > 10


def test_the_universe_is_never_below_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever rounding makes of it."""
    units = units_of(0)
    start = to_the_first(units)
    backwards = [torch.tensor([3, 2, 1, 0]), *start[1:]]
    assert objective(units, backwards) < objective(units, start)
    orders = iter(backwards)
    monkeypatch.setattr("harness.weights.frank_wolfe.Mixture.rounded", lambda _: next(orders))
    assert universe(units, start).objective == objective(units, start)


def test_the_universe_by_hand() -> None:
    units = [torch.tensor([[1.0, 0], [0, 1]]).double(), torch.tensor([[0.0, 2], [2, 0]]).double()]
    same = [torch.arange(2)] * 2
    assert objective(units, same) == 0
    found = universe(units, to_the_first(units))
    assert found.objective == 4
    assert found.orders[0].tolist() != found.orders[1].tolist()
    assert found.iterations == 0
    assert universe(units, same).objective >= 0


def test_all_at_once_tells_what_is_gained() -> None:
    """The report has the objective, computed here from the states that come out."""
    experts = [network("distilbert", seed=seed)[1] for seed in range(3)]
    symmetry = symmetry_of("distilbert", "row", experts[0])
    at_once = permuted(experts, symmetry, heads=True, cycle_consistent=True, anchor=2)
    pairwise = permuted(experts, symmetry, heads=True, anchor=2)
    for state in (*at_once, *pairwise):
        dict(state)
    assert far(at_once[1], experts[1]) == 0
    told = at_once[0].report
    assert {*told["objective"]} == {"ffn.0", "ffn.1", "heads.0", "heads.1"}
    for label, value in told["objective"].items():
        kind, layer = label.split(".")
        groups = [f"ffn.{layer}"] if kind == "ffn" else [f"qk.{layer}", f"vo.{layer}"]
        names = {one.name for group in groups for one in symmetry.members(group)}
        expected = {
            what: sum(
                float((a[n] * b[n]).sum())
                for a, b in itertools.combinations(states, 2)
                for n in names
            )
            for what, states in (
                ("before", experts), ("pairwise", pairwise), ("cycle_consistent", at_once),
            )
        }  # fmt: skip
        assert value == pytest.approx(expected)
        assert value["before"] <= value["pairwise"] <= value["cycle_consistent"]
    assert any(v["cycle_consistent"] > v["pairwise"] + 1 for v in told["objective"].values())


def test_the_base_is_one_of_all_where_it_is_the_anchor() -> None:
    experts = [network("bert", seed=seed)[1] for seed in range(2)]
    symmetry = symmetry_of("bert", "row", experts[0])
    base = shuffled(experts[0], symmetry, kinds="ffn")
    options = {"base": base, "anchor": "base", "cycle_consistent": True}
    found, _ = permuted(experts, symmetry, **options)
    assert far(found, base) == 0
    assert found.report["anchor"] == "base"


# Planted faults ----------------------------------------------------------------------------


def drift(symmetry: Symmetry, variant: str, **options: Any) -> float:
    (made, state), (_, anchor) = network(variant), network(variant, seed=1)
    _, found = permuted([anchor, state], symmetry, **options)
    return float((logits(made, dict(found)) - logits(made, state)).abs().max())


FAULTS = {
    "a bias of units": ("bert", "layer.0.intermediate.dense.bias", {}),
    "columns that read units": ("roberta", "layer.1.output.dense.weight", {}),
    "a bias of values": ("bert", "value.bias", {"heads": True}),
    "a normalisation": ("distilbert", "layer.1.output_layer_norm.weight", {"residual": True}),
    "the pooler": ("electra", "classifier.dense.weight", {"residual": True}),
    "the head": ("bert", "classifier.weight", {"residual": True}),
    "relative positions": ("deberta-v2", "rel_embeddings.weight", {"residual": True}),
    "a projection": ("electra, narrow", "embeddings_project.weight", {"residual": True}),
}


@pytest.mark.fault
@pytest.mark.parametrize("fault", FAULTS)
def test_a_tensor_that_is_forgotten_moves_the_outputs(fault: str) -> None:
    variant, mark, options = FAULTS[fault]
    symmetry = symmetry_of(variant, "row", network(variant)[1])
    axes = {n: (None,) * len(a) if n.endswith(mark) else a for n, a in symmetry.axes.items()}
    assert axes != symmetry.axes
    assert drift(symmetry, variant, **options) < 1e-10
    assert drift(Symmetry(axes, HEADS), variant, **options) > 1e-6


def test_heads_of_another_number_move_the_outputs() -> None:
    symmetry = symmetry_of("bert", "row", network("bert")[1])
    assert drift(symmetry, "bert", ffn=False, heads=True) < 1e-10
    assert drift(Symmetry(symmetry.axes, 4), "bert", ffn=False, heads=True) > 1e-3


# Through the public door -------------------------------------------------------------------

Minis = Callable[[str], dict[str, Path]]


def copy_of(folder: Path, out: Path, variant: str) -> Path:
    """A folder of the same model with all that can be in another order in another order."""
    state = {n: t.double() for n, t in load_file(folder / "model.safetensors").items()}
    copy = shuffled(state, symmetry_of(variant, "row", state))
    shutil.copytree(folder, out)
    narrow = {name: tensor.float().contiguous() for name, tensor in copy.items()}
    save_file(narrow, out / "model.safetensors", metadata={"format": "pt"})
    return out


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "deberta-v2", "electra"])
def test_a_merge_with_a_copy_in_another_order_is_the_model(
    family: str, loud: Callable[..., Path], minis: Minis, tmp_path: Path
) -> None:
    """Which the average of the two is far from; head and all."""
    folder = loud(family)
    copy = copy_of(folder, tmp_path / "copy", family)
    asked: dict[str, Any] = {
        "experts": (str(folder), str(copy)),
        "base": str(minis(family)["base"]),
        "merger": "average",
    }
    expected = open_checkpoint(folder).weights
    distances = {}
    whole = ["permutation:heads=true,residual=true"]
    for name, premerge in (("collapsed", []), ("home", whole)):
        recipe = harness.Recipe.model_validate({**asked, "premerge": premerge})
        harness.merge(recipe, out=tmp_path / name)
        distances[name] = far(expected, open_checkpoint(tmp_path / name).weights)
    assert distances["collapsed"] > 0.1
    assert distances["home"] < 1e-6
    stage = json.loads((tmp_path / "home" / "merge.json").read_text())["premerge"][0]
    assert stage["report"]["anchor"] == 1
    assert stage["report"]["after"]["width"] == [0, 0]


@pytest.mark.parametrize("family", ["bert", "roberta", "deberta-v2"])
def test_kept_heads_move_with_the_width(
    family: str, loud: Callable[..., Path], minis: Minis, tmp_path: Path
) -> None:
    """The expert that is given all the weight says what it said, in the order of the other."""
    copy = copy_of(loud(family, "c"), tmp_path / "copy", family)
    recipe = harness.Recipe.model_validate(
        {
            "experts": [str(loud(family, "a")), str(copy)],
            "base": str(minis(family)["base"]),
            "tasks": ["glue/rte", "glue/mnli"],
            "heads": "keep",
            "merger": "average:weights=0:1",
            "premerge": ["permutation:residual=true,anchor=1"],
        }
    )
    harness.merge(recipe, out=tmp_path / "out")
    old = open_checkpoint(copy)
    head = open_weights(tmp_path / "out" / "heads" / "glue/mnli")
    new = dict(weights.union(open_checkpoint(tmp_path / "out").weights, head))
    assert far({n: t for n, t in old.weights.items() if n in head}, new) > 0.01
    said = [
        build_model(old.config, state, "here")(input_ids=symmetries.IDS).logits
        for state in (old.weights, new)
    ]
    assert said[0].abs().max() > 0.1
    torch.testing.assert_close(*said, rtol=0, atol=1e-5)


def test_a_candidate_is_scored_with_heads_that_moved_as_it_did(
    loud: Callable[..., Path], minis: Minis, tmp_path: Path
) -> None:
    """The model that is given all the weight scores alike in the order of either, tried second."""
    copy = copy_of(loud("bert", "c"), tmp_path / "copy", "bert")
    recipe = harness.Recipe.model_validate(
        {
            "experts": [str(loud("bert", "a")), str(copy)],
            "base": str(minis("bert")["base"]),
            "tasks": ["toy/pairs", "toy/three"],
            "heads": "keep",
            "merger": "average:weights=0:1",
            "premerge": ["permutation:anchor=1"],
            "tune": "permutation.residual=[false,true]",
            "tune_on": ["toy/three@train90"],
        }
    )
    with registered(TOY, THREE):
        harness.merge(recipe, out=tmp_path / "out")
    trials = json.loads((tmp_path / "out" / "merge.json").read_text())["tuned"]["trials"]
    assert trials[0]["score"] == trials[1]["score"] != 0


@pytest.mark.parametrize("family", ["convbert", "deberta"])
@pytest.mark.parametrize("method", ["permutation", "rotation"])
def test_an_architecture_without_a_table_is_refused_by_name(
    method: str, family: str, tmp_path: Path
) -> None:
    base = model(tmp_path / "base", family=family)
    experts = [
        str(model(tmp_path / one, ["no", "yes"], family=family, seed=seed, near=base))
        for seed, one in enumerate("ab", start=1)
    ]
    command = ["merge", *experts, "--base", base, "--premerge", method, "--tasks", "glue/rte"]
    refused([*command, "--merger", "average", "--out", tmp_path / "out"], UnknownName, family)


def test_options_are_checked_without_a_tensor_read() -> None:
    def read(name: str) -> torch.Tensor:
        raise AssertionError(name)

    _, state = network("bert")
    symmetry = symmetry_of("bert", "row", state)
    lazy = [weights.Lazy(weights.specs(state), read)] * 2
    for wrong in ({"anchor": 3}, {"layers": "9"}, {"ffn": False}, {"rotated": True}):
        with pytest.raises(BadOption):
            permuted(lazy, symmetry, **wrong)
