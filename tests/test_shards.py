"""Which of the tensors in a folder is read: the one that transformers reads, or none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

import harness
from harness import Recipe
from harness.cli import main
from harness.errors import BrokenCheckpoint
from tests.mistakes import refused

ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
QUERY = "bert.encoder.layer.0.attention.self.query.weight"
Tensors = dict[str, torch.Tensor]
Folder = tuple[dict[str, Tensors], dict[str, str]]
Minis = Callable[[str], dict[str, Path]]


def halves(folder: Path) -> Folder:
    """The tensors of a model in two shards, and which shard each of them is in."""
    state = load_file(folder / SINGLE)
    placed = {name: (ONE, TWO)[i % 2] for i, name in enumerate(sorted(state))}
    placed[QUERY] = TWO
    parts: dict[str, Tensors] = {ONE: {}, TWO: {}}
    for name, shard in placed.items():
        parts[shard][name] = state[name]
    return parts, placed


def written(
    source: Path, out: Path, change: Callable[[dict[str, Tensors], dict[str, str]], Any]
) -> Path:
    """A model in shards, changed before it is written."""
    parts, placed = halves(source)
    change(parts, placed)
    shutil.copytree(source, out, ignore=shutil.ignore_patterns(SINGLE))
    for shard, tensors in parts.items():
        save_file(tensors, out / shard, metadata={"format": "pt"})
    (out / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return out


def merged(expert: Path, tmp_path: Path) -> Tensors:
    """What a merge makes of an expert and itself."""
    recipe = Recipe(experts=(str(expert), str(expert)), merger="average")
    harness.merge(recipe, out=tmp_path / "merged")
    return load_file(tmp_path / "merged" / SINGLE)


def nothing(parts: dict[str, Tensors], placed: dict[str, str]) -> None:
    pass


def in_the_first_too(parts: dict[str, Tensors], placed: dict[str, str]) -> None:
    parts[ONE][QUERY] = parts[TWO][QUERY] + 5


def old_names(parts: dict[str, Tensors], placed: dict[str, str]) -> None:
    for name in [name for name in placed if "LayerNorm" in name]:
        old = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        old = old.replace("LayerNorm.bias", "LayerNorm.beta")
        shard = placed[old] = placed.pop(name)
        parts[shard][old] = parts[shard].pop(name)


def not_listed(parts: dict[str, Tensors], placed: dict[str, str]) -> None:
    placed.pop(QUERY)


@pytest.mark.parametrize("change", [nothing, in_the_first_too, old_names, not_listed])
def test_tensors_in_shards_are_those_that_transformers_reads(
    change: Callable[..., Any], minis: Minis, tmp_path: Path
) -> None:
    folder = written(minis("bert")["a"], tmp_path / "a", change)
    theirs = AutoModelForSequenceClassification.from_pretrained(folder).state_dict()
    ours = merged(folder, tmp_path)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_one_file_goes_before_shards_as_in_transformers(minis: Minis, tmp_path: Path) -> None:
    folder = written(minis("bert")["b"], tmp_path / "a", nothing)
    shutil.copy(minis("bert")["a"] / SINGLE, folder)
    theirs = AutoModelForSequenceClassification.from_pretrained(folder).state_dict()
    assert all(torch.equal(one, theirs[name]) for name, one in merged(folder, tmp_path).items())


def elsewhere(parts: dict[str, Tensors], placed: dict[str, str]) -> None:
    placed[QUERY] = ONE


def listed_in_the_first(parts: dict[str, Tensors], placed: dict[str, str]) -> None:
    in_the_first_too(parts, placed)
    placed[QUERY] = ONE


def twice_and_not_listed(parts: dict[str, Tensors], placed: dict[str, str]) -> None:
    in_the_first_too(parts, placed)
    placed.pop(QUERY)


def gone(parts: dict[str, Tensors], placed: dict[str, str]) -> None:
    parts[TWO].pop(QUERY)


def no_name(parts: dict[str, Tensors], placed: dict[str, Any]) -> None:
    placed[QUERY] = 2


def old_and_new(parts: dict[str, Tensors], placed: dict[str, str]) -> None:
    name = "bert.embeddings.LayerNorm.weight"
    parts[ONE][name.replace("weight", "gamma")] = parts[placed[name]][name] + 1


def without_prefix(parts: dict[str, Tensors], placed: dict[str, str]) -> None:
    parts[ONE][QUERY.removeprefix("bert.")] = parts[TWO][QUERY] + 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (elsewhere, f"{ONE} has no tensor '{QUERY}', which {INDEX} lists"),
        (listed_in_the_first, f"'{QUERY}' is in {ONE} and in {TWO} of "),
        (twice_and_not_listed, f"{INDEX} lists neither; expected each tensor in one shard"),
        (gone, f"{TWO} has no tensor '{QUERY}'"),
        (no_name, f"{INDEX} names the shard 2, expected a file beside it"),
        (old_and_new, "LayerNorm.weight names tensor"),
        (without_prefix, f"has '{QUERY}' and '{QUERY.removeprefix('bert.')}', two names of one"),
    ],
)
@pytest.mark.parametrize("role", ["expert", "base"])
def test_a_tensor_that_is_not_where_it_should_be_is_one_line(
    change: Callable[..., Any],
    said: str,
    role: str,
    minis: Minis,
    tmp_path: Path,
) -> None:
    known = minis("bert")
    broken = str(written(known["a"], tmp_path / "broken", change))
    experts = [broken if role == "expert" else str(known["a"]), str(known["b"])]
    base = broken if role == "base" else str(known["base"])
    out = tmp_path / "out"
    refused(
        ["merge", *experts, "--base", base, "--merger", "ties", "--out", str(out)],
        BrokenCheckpoint,
        said,
    )
    assert not out.exists()


@pytest.mark.parametrize("key", ["transformers_weights", "quantization_config"])
def test_weights_that_a_configuration_names_are_not_followed(
    key: str, minis: Minis, tmp_path: Path
) -> None:
    """Transformers reads another file then, or makes floats of whole numbers."""
    folder = Path(shutil.copytree(minis("bert")["a"], tmp_path / "a"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, key: "other.safetensors"}))
    refused(
        ["merge", str(folder), str(minis("bert")["b"]), "--out", str(tmp_path / "m")],
        BrokenCheckpoint,
        "config.json",
        key,
    )


def test_a_kept_head_holds_no_tensor_of_the_encoder(minis: Minis, tmp_path: Path) -> None:
    """Of one in both, the encoder's was read."""
    known = minis("bert")
    command = ["merge", str(known["a"]), str(known["c"]), "--merger", "average", "--heads", "keep"]
    tasks = ["--tasks", "glue/rte,glue/mnli"]
    assert main([*command, *tasks, "--out", str(tmp_path / "m")]) == 0
    (tmp_path / "m" / "merge.json").unlink()
    head = tmp_path / "m" / "heads" / "glue" / "rte" / SINGLE
    save_file({**load_file(head), QUERY: torch.ones(16, 16)}, head, metadata={"format": "pt"})
    refused(
        ["evaluate", "--model", str(tmp_path / "m"), "--tasks", "glue/rte"],
        BrokenCheckpoint,
        "heads/glue/rte",
        QUERY,
    )
