"""Vision transformers: one model under the names of every release of transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness import weights
from harness.checkpoints.bases import encoder_digests
from harness.checkpoints.build import build_model, check_ready, check_whole, encoder_of
from harness.checkpoints.named import parameters_of
from harness.checkpoints.open import open_checkpoint
from harness.errors import BrokenCheckpoint, IncompatibleWeights
from harness.merging.merge import merge
from harness.merging.recipes import Recipe
from harness.types import Choice
from tests.images import COLOURS, FILE, NEWER, PROCESSING, SIZE, respelled, vit
from tests.mistakes import mistake

QUERY = "vit.encoder.layer.1.attention.attention.query.weight"


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base and two experts under the names that transformers writes by default."""
    root = tmp_path_factory.mktemp("older")
    base = vit(root / "base", None)
    for seed, name in enumerate("ab", start=1):
        vit(root / name, seed=seed, near=base)
    return root


@pytest.fixture(scope="module")
def newer(older: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same under the names that its newer releases have in memory."""
    root = Path(shutil.copytree(older, tmp_path_factory.mktemp("newer") / "all"))
    for name in ("base", "a", "b"):
        respelled(root / name, NEWER)
    assert "vit.layers.1.attention.q_proj.weight" in load_file(root / "a" / FILE)
    return root


@pytest.mark.parametrize("which", ["base", "a"])
def test_a_model_in_both_spellings_is_one(older: Path, newer: Path, which: str) -> None:
    first, second = (open_checkpoint(root / which) for root in (older, newer))
    assert {*first.weights} == {*second.weights}
    assert weights.digest(first.weights) == weights.digest(second.weights)
    assert encoder_digests(first) == encoder_digests(second)
    assert not first.stored_names
    assert second.stored_names.keys() < {*second.weights}


def test_transformers_writes_the_names_of_the_table(older: Path) -> None:
    assert QUERY in open_checkpoint(older / "a").weights
    assert {*load_file(older / "a" / FILE)} == {*open_checkpoint(older / "a").weights}


@pytest.mark.parametrize("root", ["older", "newer"])
def test_a_model_is_built_of_exactly_its_tensors(
    root: str, older: Path, request: pytest.FixtureRequest
) -> None:
    """And says what transformers' own says, of which every release knows the older names."""
    from transformers import AutoModelForImageClassification

    folder = request.getfixturevalue(root) / "a"
    checkpoint = open_checkpoint(folder)
    made = build_model(checkpoint.config, checkpoint.weights, checkpoint.source)
    own = parameters_of(made)
    assert own.keys() == {*checkpoint.weights}
    assert all(torch.equal(own[name], checkpoint.weights[name]) for name in own)
    images = torch.randn(3, 3, 8, 8)
    plain = AutoModelForImageClassification.from_pretrained(older / "a").eval()
    with torch.no_grad():
        torch.testing.assert_close(made(images).logits, plain(images).logits, rtol=0, atol=0)


def test_a_base_is_found_under_the_names_of_a_classifier(older: Path, newer: Path) -> None:
    for root in (older, newer):
        encoder = encoder_of(open_checkpoint(root / "base"))
        tensors = load_file(older / "base" / FILE)
        assert torch.equal(encoder.weights[QUERY], tensors[QUERY.removeprefix("vit.")])
        assert not any("pooler" in name for name in encoder.weights)


def test_a_tensor_under_both_names_is_refused(older: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(older / "a", tmp_path / "both"))
    state = load_file(folder / FILE)
    save_file(
        {**state, "vit.layers.1.attention.q_proj.weight": state[QUERY].clone()}, folder / FILE
    )
    with mistake(BrokenCheckpoint, QUERY, "vit.layers.1.attention.q_proj.weight"):
        open_checkpoint(folder)


def test_a_tensor_that_is_missing_is_named_as_files_name_it(older: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(older / "a", tmp_path / "lacks"))
    state = load_file(folder / FILE)
    state.pop(QUERY)
    save_file(state, folder / FILE)
    with mistake(BrokenCheckpoint, QUERY):
        checkpoint = open_checkpoint(folder)
        build_model(checkpoint.config, checkpoint.weights, checkpoint.source)


@pytest.mark.parametrize("roots", ["older older", "newer newer", "older newer", "newer older"])
def test_a_merge_is_written_as_its_base_is(
    roots: str, older: Path, newer: Path, tmp_path: Path
) -> None:
    base, experts = (older if one == "older" else newer for one in roots.split())
    sources = tuple(str(experts / name) for name in "ab")
    recipe = Recipe(merger=Choice("ties"), experts=sources, base=str(base / "base"))
    merge(recipe, out=tmp_path / "out")
    tensors = load_file(tmp_path / "out" / FILE)
    assert {*tensors} == {*load_file(base / "a" / FILE)}
    merged = open_checkpoint(tmp_path / "out")
    said = json.loads((tmp_path / "out" / "merge.json").read_text())
    assert said["digest"] == weights.digest(merged.weights)
    merge(recipe.model_copy(update={"base": str(older / "base")}), out=tmp_path / "old")
    assert weights.digest(open_checkpoint(tmp_path / "old").weights) == said["digest"]


def test_shards_of_a_merge_are_written_as_its_base_is(
    older: Path, newer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.merging.write.SHARD_BYTES", 5000)
    sources = tuple(str(newer / name) for name in "ab")
    merge(Recipe(merger=Choice("average"), experts=sources), out=tmp_path / "out")
    placed = json.loads((tmp_path / "out" / f"{FILE}.index.json").read_text())["weight_map"]
    assert {*placed} == {*load_file(newer / "a" / FILE)}
    check_whole(open_checkpoint(tmp_path / "out"))


def test_models_of_other_patches_do_not_go_together(older: Path, tmp_path: Path) -> None:
    other = vit(tmp_path / "other", patch_size=2)
    recipe = Recipe(merger=Choice("average"), experts=(str(older / "a"), str(other)))
    with mistake(IncompatibleWeights, "patch_size"):
        merge(recipe, out=tmp_path / "out")


@pytest.mark.parametrize("root", ["older", "newer"])
def test_an_adapter_of_either_spelling_is_the_same_model(
    root: str, older: Path, tmp_path: Path
) -> None:
    numbers = torch.Generator().manual_seed(0)
    first, second = (torch.randn(shape, generator=numbers) for shape in ((2, 16), (16, 2)))
    module = QUERY.removesuffix(".weight")
    if root == "newer":
        module = "vit.layers.1.attention.q_proj"
    called = f"base_model.model.{module}"
    factors = {f"{called}.lora_A.weight": first, f"{called}.lora_B.weight": second}
    folder = tmp_path / "adapter"
    folder.mkdir()
    save_file(factors, folder / "adapter_model.safetensors")
    said = {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 2,
        "target_modules": [module],
        "base_model_name_or_path": str(older / "base"),
    }
    (folder / "adapter_config.json").write_text(json.dumps(said))
    made, base = open_checkpoint(folder), encoder_of(open_checkpoint(older / "base"))
    expected = base.weights[QUERY].double() + second.double() @ first.double()
    torch.testing.assert_close(made.weights[QUERY], expected, rtol=0, atol=1e-6)
    assert made.processor == older / "base"


# Published layouts -------------------------------------------------------------------------


def test_dino_is_a_base(tmp_path: Path) -> None:
    """As transformers' conversion of facebook/dino-* writes it: a bare encoder without pooler."""
    from transformers import ViTConfig, ViTModel

    ViTModel(ViTConfig(**SIZE), add_pooling_layer=False).save_pretrained(tmp_path)
    stored = load_file(tmp_path / FILE)
    assert "embeddings.cls_token" in stored
    assert not any("pooler" in name or name.startswith("vit.") for name in stored)
    base = open_checkpoint(tmp_path)
    assert (base.family.name, base.labels) == ("vit", None)
    assert {*encoder_of(base).weights} == {f"vit.{name}" for name in stored}


@pytest.mark.parametrize("named", ["image_processor_type", "feature_extractor_type"])
def test_deit_without_distillation_is_a_classifier(named: str, tmp_path: Path) -> None:
    """As the conversion of facebook/deit-* writes it: a ViT, with DeiT's processor."""
    pytest.importorskip("PIL.Image")
    vit(tmp_path)
    kind = named.replace("_type", "").title().replace("_", "")
    said = {name: one for name, one in PROCESSING.items() if name != "image_processor_type"}
    said |= {"size": {"height": 10, "width": 10}, "crop_size": {"height": 8, "width": 8}}
    said |= {"do_center_crop": True, named: f"DeiT{kind}"}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(said))
    model = open_checkpoint(tmp_path)
    check_ready(model)
    assert (model.family.name, model.labels) == ("vit", COLOURS)
