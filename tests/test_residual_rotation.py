"""Rotation of the residual stream: norms absorbed, and turns that fix the vector of ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import harness
from harness import weights
from harness.checkpoints.families.generic import family_of
from harness.checkpoints.families.symmetry import axes_of, readers_of
from harness.checkpoints.open import open_checkpoint
from harness.errors import BadOption, IncompatibleWeights
from harness.merging.merge import merge
from harness.merging.recipes import Recipe
from harness.premergers.rotation import fixing_ones
from harness.types import Choice
from harness.weights import Symmetry, Turned
from tests.conftest import model
from tests.images import FILE, vit
from tests.mistakes import mistake
from tests.symmetries import (
    HEADS,
    MOVES,
    Tensors,
    apart,
    config,
    far,
    logits,
    loud,
    moved,
    permutation,
    tensors,
)
from tests.t5 import t5

VARIANTS = ("vit",)
every_variant = pytest.mark.parametrize("variant", VARIANTS)


def symmetry_of(variant: str, state: Tensors) -> Symmetry:
    family = family_of(config(variant))
    axes = axes_of(family, state)
    return Symmetry(axes, HEADS, readers=readers_of(family, axes))


def network(variant: str, seed: int = 0) -> tuple[torch.nn.Module, Tensors, Symmetry]:
    made = loud(variant, "row", seed)
    state = tensors(made)
    return made, state, symmetry_of(variant, state)


def norms(symmetry: Symmetry) -> list[str]:
    return [f"{norm}.{kind}" for norm in symmetry.readers for kind in ("weight", "bias")]


def orthogonal(size: int, *, ones: bool, seed: int = 3) -> torch.Tensor:
    """A random turn, of all or of what is at right angles to the vector of ones."""
    random = np.random.default_rng(seed).normal(size=(size, size))
    if ones:
        return fixing_ones(torch.from_numpy(random))
    return torch.from_numpy(np.linalg.qr(random)[0])


def spun(state: Tensors, symmetry: Symmetry, turn: torch.Tensor) -> Tensors:
    """The state with its stream turned, norms and all."""
    axes = {n: axes for n, axes in symmetry.axes.items() if n not in norms(symmetry)}
    maps = {"width": Turned(turn[None])}
    return dict(weights.moved(state, Symmetry(axes, HEADS), maps.get))


def rotation(experts: Sequence[Tensors], symmetry: Symmetry, **options: Any) -> list[Any]:
    function = harness.PREMERGE["rotation"].function
    return list(function(experts, {}, symmetry=symmetry, residual=True, **options))


# Laws --------------------------------------------------------------------------------------


@every_variant
def test_norms_are_absorbed_exactly(variant: str) -> None:
    made, state, symmetry = network(variant)
    free = dict(weights.absorbed(state, symmetry.readers))
    assert len(symmetry.readers) == 5
    assert all(bool((free[name] == name.endswith("weight")).all()) for name in norms(symmetry))
    assert far(state, free) > 0.1
    torch.testing.assert_close(logits(made, free), logits(made, state), rtol=0, atol=1e-11)


@pytest.mark.fault
@every_variant
def test_a_norm_with_a_reader_that_is_left_out_is_caught(variant: str) -> None:
    made, state, symmetry = network(variant)
    for norm, each in symmetry.readers.items():
        for reader in each:
            wrong = {**symmetry.readers, norm: tuple(one for one in each if one != reader)}
            free = dict(weights.absorbed(state, wrong))
            assert far({"": logits(made, free)}, {"": logits(made, state)}) > 1e-3, reader


@every_variant
def test_only_turns_that_fix_ones_keep_the_outputs_and_only_of_absorbed_norms(
    variant: str,
) -> None:
    made, state, symmetry = network(variant)
    free = dict(weights.absorbed(state, symmetry.readers))
    size = len(state["vit.layernorm.weight"])
    within, whole = (orthogonal(size, ones=ones) for ones in (True, False))
    torch.testing.assert_close(within.sum(1), torch.ones(size, dtype=torch.float64))
    before = logits(made, state)
    turned = logits(made, spun(free, symmetry, within))
    torch.testing.assert_close(turned, before, rtol=0, atol=1e-11)
    for wrong in (spun(free, symmetry, whole), spun(state, symmetry, within)):
        assert far({"": logits(made, wrong)}, {"": before}) > 1e-2


@pytest.mark.parametrize("parts", ["both", "attention", "ffn"])
@pytest.mark.parametrize("proper", [False, True])
@every_variant
def test_outputs_stay_as_they_are(variant: str, proper: bool, parts: str) -> None:
    made, state, symmetry = network(variant)
    _, anchor, _ = network(variant, seed=1)
    found, home = rotation([state, anchor], symmetry, anchor=2, proper=proper, parts=parts)
    for before, after in ((state, found), (anchor, home)):
        torch.testing.assert_close(
            logits(made, dict(after)), logits(made, before), rtol=0, atol=1e-10
        )
    assert far(home, dict(weights.absorbed(anchor, symmetry.readers))) == 0
    report = found.report
    assert report["absorbed"] == 5
    assert report["iterations"]["residual"][0] >= 1
    assert report["after"]["width"][0] < report["before"]["width"][0]
    assert report["after"]["width"][1] == 0


@every_variant
def test_a_moved_copy_comes_home(variant: str) -> None:
    """With its stream, its heads and its units turned, and other gains in its norms."""
    made, state, symmetry = network(variant)
    free = dict(weights.absorbed(state, symmetry.readers))
    copy = spun(free, symmetry, orthogonal(16, ones=True))
    copy = moved(copy, symmetry.axes, {**MOVES["within heads"], **MOVES["units"]})
    for norm, each in symmetry.readers.items():
        gain = torch.rand(16, dtype=torch.float64) + 0.5
        copy[f"{norm}.weight"] = gain
        for reader in each:
            copy[f"{reader}.weight"] = copy[f"{reader}.weight"] / gain
    torch.testing.assert_close(logits(made, copy), logits(made, state), rtol=0, atol=1e-10)
    assert apart(state, copy) > 10
    same, home = rotation([state, copy], symmetry, anchor=1)
    assert far(same, dict(home)) < 1e-7


@every_variant
def test_two_models_come_nearer_than_by_heads_and_units_alone(variant: str) -> None:
    _, state, symmetry = network(variant)
    _, anchor, _ = network(variant, seed=1)
    free = [dict(weights.absorbed(one, symmetry.readers)) for one in (state, anchor)]
    function = harness.PREMERGE["rotation"].function
    heads = list(function(free, {}, symmetry=symmetry, anchor=2))
    both = rotation([state, anchor], symmetry, anchor=2)
    assert apart(dict(both[0]), free[1]) < apart(dict(heads[0]), free[1]) < apart(*free)


def test_the_best_turn_that_fixes_ones_by_hand() -> None:
    """In the plane only the identity and the exchange of the axes do."""
    exchange = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    products = torch.tensor([[1.0, 3.0], [2.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(fixing_ones(products), exchange)
    torch.testing.assert_close(fixing_ones(products, proper=True), exchange @ exchange)


def test_a_permutation_is_found_among_turns() -> None:
    order = permutation(6, 4)
    stream = torch.randn(6, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = fixing_ones(stream @ (order.mT @ stream).mT)
    torch.testing.assert_close(found, order)


# Through the doors -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base and two experts in float64, with gains and biases that count."""
    root = tmp_path_factory.mktemp("residual")
    base = vit(root / "base", None)
    for seed, name in enumerate("ab", start=1):
        state = load_file(vit(root / name, seed=seed) / FILE)
        wide = {key: tensor.double() for key, tensor in state.items()}
        save_file(wide, root / name / FILE, metadata={"format": "pt"})
    return base.parent


def outputs(folder: Path) -> torch.Tensor:
    from transformers import AutoModelForImageClassification

    made = AutoModelForImageClassification.from_pretrained(folder, dtype=torch.float64).eval()
    images = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found: torch.Tensor = made(images.double()).logits
    return found


def merged(folders: Path, out: Path, place: int, anchor: int) -> Path:
    alone = [float(place == one) for one in range(2)]
    recipe = Recipe(
        experts=(str(folders / "a"), str(folders / "b")),
        base=str(folders / "base"),
        premerge=(Choice("rotation", {"residual": True, "anchor": anchor}),),
        merger=Choice("average", {"weights": alone}),
        heads="merge",
    )
    merge(recipe, out=out)
    return out


@pytest.mark.parametrize("anchor", [1, 2])
def test_every_expert_of_a_merge_keeps_its_function(
    anchor: int, folders: Path, tmp_path: Path
) -> None:
    """The anchor's norms are only absorbed, the other is turned as well."""
    for place, name in enumerate("ab"):
        out = merged(folders, tmp_path / name, place, anchor)
        torch.testing.assert_close(outputs(out), outputs(folders / name), rtol=0, atol=1e-9)
        state = open_checkpoint(out).weights
        for norm in (n for n in state if "layernorm" in n):
            assert bool((state[norm] == norm.endswith("weight")).all())
        assert {*load_file(out / FILE)} == {*load_file(folders / name / FILE)}
    said = json.loads((out / "merge.json").read_text())
    assert "residual" in json.dumps(said)
    assert "distance" not in said["premerge"][0], "of other entries before and after"
    assert '"absorbed": 5' in json.dumps(said)


def test_task_vectors_from_a_base_with_its_own_norms_are_called_out(
    folders: Path, tmp_path: Path
) -> None:
    recipe = Recipe(
        experts=(str(folders / "a"), str(folders / "b")),
        base=str(folders / "base"),
        premerge=(Choice("rotation", {"residual": True}),),
        merger=Choice("ties"),
    )
    with pytest.warns(UserWarning, match="ties subtracted the base") as told:
        merge(recipe, out=tmp_path / "out")
    assert sum("absorbed" in str(one.message) for one in told) == 1
    assert "5 norms absorbed" in (tmp_path / "out" / "README.md").read_text()


def test_a_model_whose_norms_do_not_all_come_before_layers_is_refused(tmp_path: Path) -> None:
    made: dict[str, Callable[..., Path]] = {"bert": model, "t5": t5}
    for name, make in made.items():
        experts = tuple(str(make(tmp_path / name / str(n), ["x", "y"], seed=n)) for n in (1, 2))
        recipe = Recipe(
            experts=experts,
            premerge=(Choice("rotation", {"residual": True}),),
            merger=Choice("average"),
        )
        with mistake(BadOption, f"rotation:residual=True vit norms before layers absorb {name}"):
            merge(recipe, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_reader_without_a_bias_is_refused(folders: Path, tmp_path: Path) -> None:
    experts = tuple(str(vit(tmp_path / name, qkv_bias=False)) for name in "ab")
    recipe = Recipe(
        experts=experts,
        premerge=(Choice("rotation", {"residual": True}),),
        merger=Choice("average"),
    )
    with mistake(IncompatibleWeights, "attention.query.bias missing layernorm_before"):
        merge(recipe, out=tmp_path / "out")
