"""Models beside one another: distances, task vectors, feed-forward units, and pictures of them."""

from __future__ import annotations

import dataclasses
import json
import shutil
import weakref
from collections.abc import Callable, Iterator
from itertools import combinations, product
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import harness
from harness import weights
from harness.checkpoints.families.generic import family_of
from harness.checkpoints.families.symmetry import ROLES, TensorPlace, axes_of, place_in
from harness.checkpoints.named import parameters_of
from harness.cli import main
from harness.errors import BadOption, BrokenCheckpoint, NotFinite, OutputExists
from harness.inspecting import folder
from harness.inspecting.comparison import WeightComparison, weight_comparison
from harness.inspecting.inspect import ComparisonInputs, places_of
from harness.inspecting.inspection import UnitsInPlace, remarks
from harness.inspecting.units import in_squares, unit_cosines, units_kept
from harness.reporting.figures import HeatMap
from harness.weights import Lazy, Permuted, Spec, Symmetry
from tests.conftest import FAMILIES, NEWER, is_head, model
from tests.mistakes import mistake, names
from tests.test_families import VARIANTS, config, planned

Minis = Callable[[str], dict[str, Path]]
Tensors = dict[str, torch.Tensor]
FILE = "model.safetensors"
UNITS = 24
every_family = pytest.mark.parametrize("family", FAMILIES)


def asked(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, Any]:
    """What `harness inspect --json` says of these."""
    capsys.readouterr()
    assert main(["inspect", *map(str, arguments), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def changed(target: Path, source: Path, change: Callable[[Tensors], Any]) -> Path:
    """A copy of a model with other weights."""
    shutil.copytree(source, target)
    state = load_file(source / FILE)
    change(state)
    save_file(state, target / FILE, metadata={"format": "pt"})
    return target


# Two tensors -------------------------------------------------------------------------------


def test_a_comparison_by_hand() -> None:
    first, second, origin = torch.tensor([3.0, 0]), torch.tensor([0.0, 4]), torch.ones(2)
    found = weight_comparison(first, second, origin)
    assert found.entries == 2
    assert found.distance == 5
    assert found.relative == pytest.approx(5 / sqrt((9 + 16) / 2))
    assert found.task_vector_norms == pytest.approx((sqrt(5), sqrt(10)))
    assert found.ratio == pytest.approx(sqrt(2))
    assert found.cosine == pytest.approx(-5 / sqrt(50))
    assert (found.moved_by_both, found.same, found.agreement) == (2, 0, 0)


def test_entries_that_one_task_vector_leaves_alone_have_no_sign_to_share() -> None:
    origin = torch.zeros(5)
    first, second = torch.tensor([1.0, -1, 0, 2, 0]), torch.tensor([2.0, 3, 4, 0, 0])
    found = weight_comparison(first, second, origin)
    assert (found.moved_by_both, found.same, found.agreement) == (2, 1, 0.5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_a_comparison_is_that_of_plain_loops(dtype: torch.dtype) -> None:
    numbers = torch.Generator().manual_seed(0)
    first, second, origin = (torch.randn(50, generator=numbers).to(dtype) for _ in range(3))
    second[7:20], first[10:12] = origin[7:20], origin[10:12]
    a, b, o = ([float(x) for x in tensor.double()] for tensor in (first, second, origin))
    apart = sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))
    lengths = [sqrt(sum((x - y) ** 2 for x, y in zip(one, o, strict=True))) for one in (a, b)]
    product_ = sum((x - z) * (y - z) for x, y, z in zip(a, b, o, strict=True))
    signs = [(x - z) * (y - z) for x, y, z in zip(a, b, o, strict=True) if x != z and y != z]
    found = weight_comparison(first, second, origin)
    assert found.distance == pytest.approx(apart, rel=1e-12)
    norms = sum(x * x for x in a) + sum(y * y for y in b)
    assert found.relative == pytest.approx(apart / sqrt(norms / 2), rel=1e-12)
    assert found.task_vector_norms == pytest.approx(lengths, rel=1e-12)
    assert found.ratio == pytest.approx(max(lengths) / min(lengths), rel=1e-12)
    assert found.cosine == pytest.approx(product_ / lengths[0] / lengths[1], rel=1e-12)
    assert found.moved_by_both == len(signs) == 37
    assert found.agreement == sum(one > 0 for one in signs) / len(signs)
    parts = [slice(0, 13), slice(13, 13), slice(13, 50)]
    summed = sum(
        (weight_comparison(first[p], second[p], origin[p]) for p in parts), WeightComparison()
    )
    assert dataclasses.astuple(summed)[0] == 50
    assert summed.cosine == pytest.approx(found.cosine, rel=1e-12)
    assert summed.agreement == found.agreement


def test_what_is_not_defined_is_none() -> None:
    nothing = weight_comparison(torch.zeros(0), torch.zeros(0), torch.zeros(0))
    assert nothing == WeightComparison()
    for found in (nothing, weight_comparison(torch.zeros(2), torch.zeros(2), torch.zeros(2))):
        assert found.distance == 0
        assert (found.relative, found.ratio, found.cosine, found.agreement) == (None,) * 4
    still = weight_comparison(torch.ones(2), torch.zeros(2), torch.zeros(2))
    assert (still.ratio, still.cosine, still.agreement) == (None, None, None)
    assert still.relative == pytest.approx(sqrt(2))


# Places ------------------------------------------------------------------------------------

AT = "encoder.layer.1."
T5_ATTENTION = "transformer.encoder.block.0.layer.0.SelfAttention"
EXPECTED: dict[str, dict[str, TensorPlace]] = {
    "bert": {
        "bert.embeddings.position_embeddings.weight": TensorPlace(None, "embeddings"),
        "bert.embeddings.LayerNorm.bias": TensorPlace(None, "norm"),
        f"bert.{AT}attention.self.query.weight": TensorPlace(1, "query"),
        f"bert.{AT}attention.self.key.bias": TensorPlace(1, "key"),
        f"bert.{AT}attention.self.value.bias": TensorPlace(1, "value"),
        f"bert.{AT}attention.output.dense.bias": TensorPlace(1, "attention output"),
        f"bert.{AT}attention.output.LayerNorm.weight": TensorPlace(1, "norm"),
        f"bert.{AT}intermediate.dense.weight": TensorPlace(1, "up"),
        f"bert.{AT}output.dense.bias": TensorPlace(1, "down"),
        "bert.pooler.dense.weight": TensorPlace(None, "pooler"),
        "classifier.bias": TensorPlace(None, "head"),
    },
    "deberta, apart": {
        f"deberta.{AT}attention.self.pos_query_proj.weight": TensorPlace(1, "query"),
        f"deberta.{AT}attention.self.pos_key_proj.bias": TensorPlace(1, "key"),
        "deberta.embeddings.embed_proj.weight": TensorPlace(None, "embeddings"),
        "deberta.embeddings.LayerNorm.weight": TensorPlace(None, "norm"),
        "deberta.encoder.rel_embeddings.weight": TensorPlace(None, "embeddings"),
        "deberta.encoder.conv.conv.bias": TensorPlace(None, "convolution"),
        "deberta.encoder.conv.LayerNorm.bias": TensorPlace(None, "norm"),
        "pooler.dense.bias": TensorPlace(None, "pooler"),
    },
    "electra, narrow": {
        "electra.embeddings.word_embeddings.weight": TensorPlace(None, "embeddings"),
        "electra.embeddings.LayerNorm.weight": TensorPlace(None, "norm"),
        "electra.embeddings_project.bias": TensorPlace(None, "embeddings"),
        "classifier.dense.weight": TensorPlace(None, "head"),
    },
    "distilbert": {
        "distilbert.transformer.layer.0.attention.out_lin.bias": TensorPlace(0, "attention output"),
        "distilbert.transformer.layer.0.sa_layer_norm.bias": TensorPlace(0, "norm"),
        "distilbert.transformer.layer.1.ffn.lin2.bias": TensorPlace(1, "down"),
        "pre_classifier.bias": TensorPlace(None, "head"),
    },
    "t5, gated": {
        "transformer.shared.weight": TensorPlace(None, "embeddings"),
        f"{T5_ATTENTION}.relative_attention_bias.weight": TensorPlace("encoder.0", "embeddings"),
        "transformer.encoder.block.1.layer.1.DenseReluDense.wi_1.weight": TensorPlace(
            "encoder.1", "up"
        ),
        "transformer.encoder.block.1.layer.1.DenseReluDense.wo.weight": TensorPlace(
            "encoder.1", "down"
        ),
        "transformer.decoder.block.1.layer.1.EncDecAttention.k.weight": TensorPlace(
            "decoder.1", "key"
        ),
        "transformer.decoder.block.0.layer.2.layer_norm.weight": TensorPlace("decoder.0", "norm"),
        "transformer.decoder.final_layer_norm.weight": TensorPlace(None, "norm"),
        "classification_head.dense.bias": TensorPlace(None, "head"),
    },
    "vit": {
        "vit.embeddings.cls_token": TensorPlace(None, "embeddings"),
        "vit.embeddings.position_embeddings": TensorPlace(None, "embeddings"),
        "vit.embeddings.patch_embeddings.projection.weight": TensorPlace(None, "convolution"),
        "vit.embeddings.patch_embeddings.projection.bias": TensorPlace(None, "convolution"),
        "vit.encoder.layer.1.attention.attention.query.weight": TensorPlace(1, "query"),
        "vit.encoder.layer.1.attention.output.dense.bias": TensorPlace(1, "attention output"),
        "vit.encoder.layer.0.layernorm_before.bias": TensorPlace(0, "norm"),
        "vit.encoder.layer.0.output.dense.bias": TensorPlace(0, "down"),
        "vit.layernorm.weight": TensorPlace(None, "norm"),
        "classifier.bias": TensorPlace(None, "head"),
    },
}


@pytest.mark.parametrize(
    "variant",
    [one for one in VARIANTS if one.split(",")[0] not in NEWER if not family_of(config(one)).parts],
)
def test_every_tensor_of_a_family_with_a_table_has_a_role(variant: str) -> None:
    family = family_of(config(variant))
    for unit in ("row", "word") if family.word else ("row",):
        state = {
            name: Spec(tuple(one.shape), one.dtype)
            for name, one in parameters_of(planned(variant, unit)).items()
        }
        places = {name: place_in(family, name, spec) for name, spec in state.items()}
        assert {place.role for place in places.values()} <= {*ROLES} - {"matrix", "vector"}
        for role in ("query", "key", "value", "attention output", "up", "down"):
            layers = {place.layer for place in places.values() if place.role == role}
            stacks = family.stacks[: 1 if unit == "word" else 2]
            assert layers == ({f"{s}.{i}" for s in stacks for i in (0, 1)} or {0, 1}), role
        wanted = EXPECTED.get(variant, {})
        assert {n: places[n] for n in wanted if n in places} == {
            n: place for n, place in wanted.items() if n in places
        }
        if unit == "row":
            assert wanted.keys() <= places.keys()


def test_a_matrix_of_several_roles_is_a_matrix() -> None:
    family, at = family_of(config("modernbert")), "model.layers.3."
    spec = Spec((8, 8), torch.float32)
    roles = {"attn.Wqkv": "matrix", "attn.Wo": "attention output", "mlp.Wi": "up", "mlp.Wo": "down"}
    for name, role in roles.items():
        assert place_in(family, f"{at}{name}.weight", spec) == TensorPlace(3, role)


def test_an_architecture_without_a_table_has_matrices_and_vectors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = model(tmp_path / "base", family="deberta")
    pair = [model(tmp_path / n, ["no", "yes"], family="deberta", seed=7, near=base) for n in "ab"]
    found = asked(capsys, *pair, "--base", base)["pairs"][0]
    assert {place["role"] for place in found["places"]} == {"matrix", "vector", "pooler", "head"}
    assert found["units"] == []


# Models ------------------------------------------------------------------------------------


@every_family
def test_a_model_is_like_itself(
    minis: Minis, family: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expert, base = minis(family)["a"], minis(family)["base"]
    found = asked(capsys, expert, expert, "--base", base)
    assert [one["name"] for one in found["models"]] == [f"{expert} (1)", f"{expert} (2)"]
    (pair,) = found["pairs"]
    for place in [pair["whole"], *pair["places"]]:
        assert (place["distance"], place["relative"]) == (0, 0)
        new = place.get("role") == "head" or (family, place.get("role")) == ("deberta-v2", "pooler")
        same = (None, None, None) if new else (1, 1, 1)
        assert (place["ratio"], place["cosine"], place["agreement"]) == same
    assert pair["units"] == [
        {"layer": layer, "units": UNITS, "kept": UNITS, "share": 1} for layer in (0, 1)
    ]
    assert pair["left_out"] == found["remarks"] == []


@every_family
def test_of_a_copy_with_other_units_first_those_that_stayed_are_counted(
    minis: Minis, family: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expert = minis(family)["a"]
    order = torch.arange(UNITS)
    order[:9] = order[:9].roll(1)  # 15 of 24 stay

    def permute(state: Tensors) -> None:
        settings = json.loads((expert / "config.json").read_text())
        symmetry = Symmetry(axes_of(family_of(settings), state), heads=2)
        maps = {"ffn.1": Permuted(order)}
        moved = dict(weights.moved(state, symmetry, maps.get))
        assert any(not torch.equal(moved[name], state[name]) for name in state)
        state.update(moved)

    copy = changed(tmp_path / "copy", expert, permute)
    (pair,) = asked(capsys, expert, copy)["pairs"]
    assert [(one["kept"], one["share"]) for one in pair["units"]] == [(24, 1), (15, 15 / 24)]
    apart = {(one["layer"], one["role"]) for one in pair["places"] if one["distance"] > 0}
    assert apart == {(1, "up"), (1, "down")}


def test_a_model_whose_units_stand_elsewhere_is_called_out(
    minis: Minis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With or without a base, and not as an expert whose task vector is long."""
    expert, base = minis("bert")["a"], minis("bert")["base"]

    def permute(state: Tensors) -> None:
        settings = json.loads((expert / "config.json").read_text())
        symmetry = Symmetry(axes_of(family_of(settings), state), heads=2)
        order = torch.arange(UNITS).roll(1)
        maps = {f"ffn.{layer}": Permuted(order) for layer in (0, 1)}
        state.update(weights.moved(state, symmetry, maps.get))

    copy = changed(tmp_path / "copy", expert, permute)
    for more in ([], ["--base", base]):
        (remark,) = asked(capsys, expert, copy, *more)["remarks"]
        names(remark, "100% copy a --premerge permutation")


def test_units_by_hand() -> None:
    first = {"up": torch.tensor([[1.0, 0], [0, 1], [0, 1]])}
    second = {"up": torch.tensor([[0.0, 2], [2, 0], [0, 2]])}
    members = Symmetry({"up": ("ffn.0", "width")}, heads=1).members("ffn.0")
    assert units_kept(first, second, members) == UnitsInPlace(3, 1)


def test_of_equally_good_assignments_the_one_that_moves_fewest_units_counts() -> None:
    """Of dead units every one is."""
    members = Symmetry({"up": ("ffn.0", "width")}, heads=1).members("ffn.0")
    for state in (torch.zeros(6, 3), torch.ones(6, 3), torch.eye(6)[:, :3]):
        assert units_kept({"up": state}, {"up": state}, members) == UnitsInPlace(6, 6)
    # 0 1 2 3 -> 1 3 2 0 is as good as 0 2 1 3, and moves one more
    first = torch.tensor([[1.0, -1], [1, 1], [1, -1], [1, 1]])
    second = torch.tensor([[-1.0, 0], [0, -1], [0, 0], [1, 1]])
    assert units_kept({"up": first}, {"up": second}, members) == UnitsInPlace(4, 2)


def test_numbers_are_those_of_plain_numpy(minis: Minis, capsys: pytest.CaptureFixture[str]) -> None:
    """Over all tensors of a place together; the base is stored without the prefix."""
    sources = [minis("bert")[name] for name in ("a", "b", "c")]
    found = asked(capsys, *sources, "--base", minis("bert")["base"])
    states = [
        {name: one.double().numpy() for name, one in load_file(source / FILE).items()}
        for source in (*sources, minis("bert")["base"])
    ]
    assert [one["source"] for one in found["models"]] == [*map(str, sources)]
    assert [pair["models"] for pair in found["pairs"]] == [["a", "b"], ["a", "c"], ["b", "c"]]
    for pair, (i, j) in zip(found["pairs"], combinations(range(3), 2), strict=True):
        first, second, base = states[i], states[j], states[3]
        for place in pair["places"]:
            names = [n for n in first if place_of(n) == (place["layer"], place["role"])]
            a, b = (np.concatenate([s[n].ravel() for n in names]) for s in (first, second))
            assert place["entries"] == len(a)
            assert place["distance"] == pytest.approx(np.linalg.norm(a - b), rel=1e-12)
            if place["role"] == "head":
                assert place["cosine"] is None
                continue
            o = np.concatenate([base[n.removeprefix("bert.")].ravel() for n in names])
            u, v = a - o, b - o
            expected = u @ v / np.linalg.norm(u) / np.linalg.norm(v)
            assert place["cosine"] == pytest.approx(expected, rel=1e-9)
            agree = np.mean(np.sign(u)[(u != 0) & (v != 0)] == np.sign(v)[(u != 0) & (v != 0)])
            assert place["agreement"] == pytest.approx(agree, rel=1e-12)
        whole = [n for n in first if not is_head(n)]
        apart = sqrt(sum(float(np.sum((first[n] - second[n]) ** 2)) for n in whole))
        assert pair["whole"]["distance"] == pytest.approx(apart, rel=1e-12)
        places = {(place["layer"], place["role"]) for place in pair["places"]}
        heads = {(None, "head")} if (i, j) == (0, 1) else set()
        assert places == {place_of(name) for name in whole} | heads


def place_of(name: str) -> tuple[int | None, str]:
    """The place of a tensor of BERT, told by its name here."""
    parts = name.split(".")
    layer = int(parts[3]) if "layer" in parts else None
    known = {"query": "query", "key": "key", "value": "value", "intermediate": "up"}
    for part, role in known.items():
        if part in parts:
            return layer, role
    if "LayerNorm" in parts:
        return layer, "norm"
    if layer is not None:
        return layer, "attention output" if "attention" in parts else "down"
    return None, {"classifier": "head"}.get(parts[0], parts[1])


def test_heads_of_other_tasks_and_poolers_are_left_out_by_name(
    minis: Minis, taggers: Minis, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, words = minis("bert"), taggers("bert")
    found = asked(capsys, rows["a"], rows["c"], words["a"])["pairs"]
    out = [{name.partition(" ")[0]: name for name in pair["left_out"]} for pair in found]
    a, other = rows["a"], words["a"]  # of one name, so called by their places
    assert out[0]["classifier.weight"] == f"classifier.weight ([2, 16] in {a}, [3, 16] in c)"
    assert {*out[0]} == {"classifier.weight", "classifier.bias"}
    pooler = {"bert.pooler.dense.weight", "bert.pooler.dense.bias"}
    assert {*out[1]} == {*out[0]} | pooler
    assert f"none in {other}" in out[1]["bert.pooler.dense.bias"]
    assert main(["inspect", *map(str, [rows["a"], rows["c"], words["a"]])]) == 0
    lines = " ".join(capsys.readouterr().out.split())
    assert "Left out of 1 and 2, as shapes differ or one lacks them: classifier.bias" in lines
    assert "Left out of 1 and 3; 2 and 3, as" in lines


def test_an_encoder_by_itself_is_a_model_like_others(
    minis: Minis, capsys: pytest.CaptureFixture[str]
) -> None:
    """The base is stored without prefix; its own task vector has no direction."""
    base, expert = minis("bert")["base"], minis("bert")["a"]
    found = asked(capsys, base, expert, "--base", base)
    (pair,) = found["pairs"]
    assert pair["whole"]["task_vector_norms"] == [0, pair["whole"]["distance"]]
    assert pair["whole"]["cosine"] is None
    assert found["remarks"] == ["base is the base base, but for its head: a merge is a, scaled."]
    order = asked(capsys, expert, base)["pairs"][0]
    assert order["whole"]["distance"] == pair["whole"]["distance"]


def test_a_head_has_no_task_vector_even_if_the_base_has_one(
    minis: Minis, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is another task's, or noise."""
    a, b = minis("bert")["a"], minis("bert")["b"]
    (pair,) = asked(capsys, a, a, "--base", b)["pairs"]
    (head,) = [place for place in pair["places"] if place["role"] == "head"]
    assert (head["entries"], head["cosine"]) == (34, None)
    assert pair["whole"]["cosine"] == 1


@pytest.mark.parametrize(("scale", "said"), [(3.2, True), (2.8, False)])
def test_task_vectors_of_very_different_lengths_are_called_out(
    minis: Minis,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    scale: float,
    said: bool,
) -> None:
    base = {f"bert.{k}": v for k, v in load_file(minis("bert")["base"] / FILE).items()}

    def scaled(state: Tensors) -> None:
        state.update({n: base[n] + scale * (state[n] - base[n]) for n in state if n in base})

    far = changed(tmp_path / "far", minis("bert")["a"], scaled)
    arguments = [minis("bert")["a"], far, "--base", minis("bert")["base"]]
    (pair,) = (found := asked(capsys, *arguments))["pairs"]
    assert pair["whole"]["ratio"] == pytest.approx(scale, rel=1e-5)
    assert pair["whole"]["cosine"] == pytest.approx(1, abs=1e-6)
    assert len(found["remarks"]) == said
    assert main(["inspect", *map(str, arguments)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    for remark in found["remarks"]:
        names(remark, "far 3.2 a far")
        assert remark in text
    without = asked(capsys, *arguments[:2])
    assert without["remarks"] == []
    assert "ratio" not in without["pairs"][0]["whole"]


def test_buffers_and_empty_tensors_take_no_part(
    minis: Minis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def added(state: Tensors) -> None:
        state["bert.embeddings.position_ids"] = torch.arange(40)[None]
        state["bert.nothing"] = torch.zeros(0, 3)

    models = minis("bert")
    pair = [changed(tmp_path / f"{n}2", models[n], added) for n in "ab"]
    (plain,) = asked(capsys, models["a"], models["b"])["pairs"]
    (more,) = asked(capsys, *pair)["pairs"]
    assert more["whole"] == plain["whole"]
    (empty,) = [place for place in more["places"] if place["role"] == "matrix"]
    assert empty == {
        "layer": None, "role": "matrix", "entries": 0, "distance": 0, "relative": None
    }  # fmt: skip


def test_numbers_do_not_depend_on_the_size_of_pieces(
    minis: Minis, capsys: pytest.CaptureFixture[str]
) -> None:
    """Heads of several sizes, too, which go by one name."""
    models = [minis("bert")[name] for name in "abc"]
    arguments = [*models, models[2], "--base", minis("bert")["base"]]
    whole = asked(capsys, *arguments)
    with weights.pieces_of(5):
        pieces = asked(capsys, *arguments)
    for one, other in zip(whole["pairs"], pieces["pairs"], strict=True):
        assert [p["role"] for p in one["places"]] == [p["role"] for p in other["places"]]
        for mine, theirs in zip(one["places"], other["places"], strict=True):
            for key in ("entries", "distance", "cosine", "agreement"):
                close = None if theirs[key] is None else pytest.approx(theirs[key], rel=1e-9)
                assert mine[key] == close, key


def test_one_tensor_of_each_model_is_in_memory_at_a_time() -> None:
    alive, most, reads = 0, 0, 0

    def gone() -> None:
        nonlocal alive
        alive -= 1

    def read(name: str) -> torch.Tensor:
        nonlocal alive, most, reads
        made = torch.randn(100)
        weakref.finalize(made, gone)
        alive, reads = alive + 1, reads + 1
        most = max(most, alive)
        return made

    names = [f"bert.encoder.layer.{n}.output.dense.weight" for n in range(4)]
    states = [Lazy({n: Spec((100,), torch.float32) for n in names}, read) for _ in range(4)]
    work = ComparisonInputs(family_of(config("bert")), tuple(states[:3]), states[3])
    assert len(places_of(work, lambda *_: None)) == 3
    assert (most, reads) == (4, 16)


def test_inspect_is_a_function_that_gives_a_frozen_value(minis: Minis) -> None:
    told: list[tuple[str, int, int]] = []
    found = harness.inspect(
        [minis("bert")["a"], str(minis("bert")["b"])],
        base=minis("bert")["base"],
        progress=lambda *step: told.append(step),
    )
    assert isinstance(found, harness.Inspection)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.pairs = ()  # type: ignore[misc]
    (pair,) = found.pairs
    assert pair.whole.entries == sum(
        one.numel() for name, one in load_file(minis("bert")["a"] / FILE).items()
        if not is_head(name)
    )  # fmt: skip
    assert 0 < (pair.whole.relative or 0) < 1
    assert remarks(found) == []
    (total,) = {total for _, _, total in told}
    assert sum(done for _, done, _ in told) == total
    assert [*dict.fromkeys(what for what, _, _ in told)] == [
        "comparing tensors",
        "matching feed-forward units",
    ]


def test_weights_whose_norm_is_infinite_are_refused(minis: Minis, tmp_path: Path) -> None:
    name = "bert.pooler.dense.weight"

    def large(state: Tensors) -> None:
        state[name] = torch.full(state[name].shape, 1e200, dtype=torch.float64)

    far = changed(tmp_path / "far", minis("bert")["a"], large)
    with mistake(NotFinite, name):
        harness.inspect([minis("bert")["a"], far])
    nan = changed(tmp_path / "nan", minis("bert")["a"], lambda s: s[name].fill_(torch.nan))
    with mistake(BrokenCheckpoint, "NaN"):
        harness.inspect([nan, minis("bert")["b"]])


# Output ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(minis: Minis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two experts of one task with their base, and without it one of another task."""
    out = tmp_path_factory.mktemp("inspected") / "out"
    models = [str(minis("bert")[name]) for name in "ab"]
    base = str(minis("bert")["base"])
    assert main(["inspect", *models, "--base", base, "--out", str(out)]) == 0
    return out


def test_a_folder_of_json_and_pictures(
    written: Path, minis: Minis, capsys: pytest.CaptureFixture[str]
) -> None:
    measures, pairs = ("distance", "relative", "cosine", "agreement", "units"), ("1-2",)
    pictures = {
        f"{measure}-{pair}.{form}"
        for measure, pair, form in product(measures, pairs, ("png", "svg"))
    }
    assert {path.name for path in written.iterdir()} == {"inspect.json", *pictures}
    models = [minis("bert")[name] for name in "ab"]
    found = asked(capsys, *models, "--base", minis("bert")["base"])
    recorded = json.loads((written / "inspect.json").read_text())
    assert {*recorded.pop("files")} == {"inspect.json", *pictures}
    assert recorded == found
    assert (written / "cosine-1-2.png").read_bytes().startswith(b"\x89PNG")
    svg = (written / "relative-1-2.svg").read_text()
    (place,) = [
        one for one in found["pairs"][0]["places"] if (one["layer"], one["role"]) == (1, "up")
    ]
    for text in (">query<", ">embeddings<", f">{place['relative']:.3g}<", "of a and b", ">head<"):
        assert text in svg
    assert "<image" not in svg
    assert ">head<" not in (written / "cosine-1-2.svg").read_text()  # it has no task vector


def test_an_inspection_has_the_same_bytes_every_time_and_replaces_one_with_force_alone(
    written: Path, minis: Minis, tmp_path: Path
) -> None:
    models, base = [minis("bert")[name] for name in "ab"], minis("bert")["base"]
    out = tmp_path / "out"
    for name in (*(path.name for path in written.iterdir()), "cosine-2-3.png"):
        out.mkdir(exist_ok=True)
        (out / name).write_text("older")
    folder.INSPECTION.write(out, {})
    with mistake(OutputExists, "--force"):
        harness.inspect(models, base=base, out=out)
    harness.inspect(models, base=base, out=out, force=True)
    assert {path.name for path in out.iterdir()} == {path.name for path in written.iterdir()}
    for path in out.iterdir():
        assert path.read_bytes() == (written / path.name).read_bytes(), path.name
    (out / "thesis.tex").write_text("hello")
    with mistake(OutputExists, "thesis.tex"):
        harness.inspect(models, out=out, force=True)


def test_pictures_of_three_models_are_numbered(
    minis: Minis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, HeatMap] = {}
    monkeypatch.setattr(folder, "heat_map", lambda values: values)
    monkeypatch.setattr(folder, "save", lambda values, stem: drawn.update({stem.name: values}))
    found = harness.inspect([minis("bert")[name] for name in "abc"], out=tmp_path / "out")
    pairs = ("1-2", "1-3", "2-3")
    assert {*drawn} == {f"{name}-{p}" for name in ("distance", "relative", "units") for p in pairs}
    units = found.pairs[2].units
    (shares,) = drawn["units-2-3"].panels
    assert shares.iloc[:, 0].tolist() == [one.share for one in units.values()]
    assert [*shares.index] == ["0", "1"]
    last = drawn["distance-2-3"]
    assert last.title == "Distance between the weights of b and c"
    layers, outside = last.panels
    assert layers.columns[3] == "attention\noutput"
    assert layers.iloc[1, 3] == found.pairs[2].places[TensorPlace(1, "attention output")].distance
    assert outside.columns[0] == "embeddings"
    there = {place.role: one for place, one in found.pairs[2].places.items() if place.layer is None}
    assert outside.iloc[0, 0] == there["embeddings"].distance
    assert (last.low, last.high) == (0, layers.max(axis=None))
    assert "head" in drawn["distance-1-2"].panels[1].columns
    assert "head" not in outside.columns


def test_a_picture_of_what_is_defined_nowhere_is_not_drawn(minis: Minis, tmp_path: Path) -> None:
    base = minis("bert")["base"]
    harness.inspect([base, base], base=base, out=tmp_path / "out")
    names = {path.name.partition("-")[0] for path in (tmp_path / "out").glob("*.png")}
    assert names == {"distance", "relative", "units"}


def test_the_table_of_two_models_fits_a_terminal(
    minis: Minis, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [str(minis("deberta-v2")[name]) for name in "ab"]
    assert main(["inspect", *models, "--base", str(minis("deberta-v2")["base"])]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert text.count("layer  ") == 3
    assert "Feed-forward units matched to themselves: all, in every layer." in text
    for title in ("Distance between the weights of a and b", "Cosine of the", "Signs that the"):
        assert title in text


@pytest.fixture(autouse=True)
def _no_pictures_open() -> Iterator[None]:
    """Nothing is drawn in a window, and settings of matplotlib are left as they were."""
    import matplotlib

    before = dict(matplotlib.rcParams)
    yield
    assert dict(matplotlib.rcParams) == before


# Unit by unit ------------------------------------------------------------------------------


def test_cosines_of_units_by_hand() -> None:
    members = Symmetry({"up": ("ffn.0", "width")}, heads=1).members("ffn.0")
    first = {"up": torch.tensor([[1.0, 0], [0, 2], [0, 0]])}
    second = {"up": torch.tensor([[3.0, 0], [1, 1], [0, 0]])}
    half = 2**-0.5
    expected = torch.tensor([[1, half, 0], [0, half, 0], [0, 0, 0.0]])
    torch.testing.assert_close(unit_cosines(first, second, members), expected.double())


def test_squares_keep_a_diagonal_of_many_units() -> None:
    few = torch.rand(256, 256)
    assert in_squares(few)[1] == 1
    assert torch.equal(in_squares(few)[0], few)
    made, side = in_squares(torch.eye(600).double())
    assert (side, made.shape) == (3, (200, 200))
    assert torch.equal(made, torch.eye(200).double())
    odd, side = in_squares(-torch.ones(257, 257))
    assert (side, odd.shape) == (2, (129, 129))
    assert torch.equal(odd, -torch.ones(129, 129)), "what fills the last squares is not seen"


def test_units_of_a_layer_are_compared_as_in_plain_numpy(minis: Minis, tmp_path: Path) -> None:
    """Of a model and itself with units in another order, ones are where the units went."""
    source = minis("bert")["a"]
    name, order = "bert.encoder.layer.1.intermediate.dense", torch.randperm(UNITS)

    def move(state: Tensors) -> None:
        state[f"{name}.weight"] = state[f"{name}.weight"][order].contiguous()
        state[f"{name}.bias"] = state[f"{name}.bias"][order].contiguous()
        after = "bert.encoder.layer.1.output.dense.weight"
        state[after] = state[after][:, order].contiguous()

    moved = changed(tmp_path / "moved", source, move)
    out = tmp_path / "out"
    found = harness.inspect([source, moved, minis("bert")["b"]], units=["1"], out=out)
    itself, other, _ = found.pairs
    assert [*itself.alike] == [1]
    assert torch.equal(itself.alike[1].argmax(0), order)
    torch.testing.assert_close(itself.alike[1].amax(0), torch.ones(UNITS).double())
    states = [load_file(one / FILE) for one in (source, minis("bert")["b"])]
    tall = [
        np.concatenate(
            [
                state[f"{name}.weight"].double().numpy(),
                state[f"{name}.bias"].double().numpy()[:, None],
                state["bert.encoder.layer.1.output.dense.weight"].double().numpy().T,
            ],
            axis=1,
        )
        for state in states
    ]
    one, two = (t / np.linalg.norm(t, axis=1, keepdims=True) for t in tall)
    np.testing.assert_allclose(other.alike[1], one @ two.T, atol=1e-12)
    pictures = {path.name for path in out.glob("units-*-layer-1.*")}
    pairs = ("1-2", "1-3", "2-3")
    assert pictures == {f"units-{p}-layer-1.{form}" for p in pairs for form in ("png", "svg")}
    assert "alike" not in (out / "inspect.json").read_text()


def test_units_that_cannot_be_drawn_are_a_line(minis: Minis, tmp_path: Path) -> None:
    models = [minis("bert")[name] for name in "ab"]
    with mistake(BadOption, "--units is 7, expected a layer", "0, 1"):
        harness.inspect(models, units=["7"], out=tmp_path / "out")
    with mistake(BadOption, "there is no --out"):
        harness.inspect(models, units=["0"])
    assert not (tmp_path / "out").exists()
