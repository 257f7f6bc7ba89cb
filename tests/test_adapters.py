"""LoRA adapters as peft lays them out: what is computed, where the base comes from, refusals.

peft itself is not installed: the layout is written by hand, and what a model with an adapter
computes by adding the two small products to what every adapted layer gives.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

import harness
from harness import TASKS, Recipe, Rows, merge
from harness.checkpoints.open import open_checkpoint
from harness.cli import main
from harness.errors import BrokenCheckpoint, OutputExists
from harness.passes.features import forward
from tests.conftest import model
from tests.mistakes import mistake, refused
from tests.test_embeddings import as_embedding

PREFIX = "base_model.model."
QUERY = "bert.encoder.layer.{}.attention.self.query"
UP = "bert.encoder.layer.1.intermediate.dense"
MODULES = (QUERY.format(0), QUERY.format(1), UP)
TEXTS = (("word1 word2 word3", "word4 word5"), ("word6", "word7 word8 word9 word10"))
Change = Callable[[dict[str, torch.Tensor]], Any]
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model(tmp_path_factory.mktemp("adapters") / "base")


def adapter(folder: Path, base: Path, seed: int = 0, **said: Any) -> Path:
    """An adapter of rank 3 of three matrices of the base, with a head of two labels."""
    torch.manual_seed(seed)
    known = {
        name.removeprefix("bert."): one
        for name, one in load_file(base / "model.safetensors").items()
    }
    tensors = {
        f"{PREFIX}classifier.weight": torch.randn(2, 16),
        f"{PREFIX}classifier.bias": torch.randn(2),
    }
    for module in MODULES:
        out, width = known[f"{module.removeprefix('bert.')}.weight"].shape
        tensors[f"{PREFIX}{module}.lora_A.weight"] = torch.randn(3, width)
        tensors[f"{PREFIX}{module}.lora_B.weight"] = torch.randn(out, 3)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    known_of_peft = {
        "peft_type": "LORA",
        "task_type": "SEQ_CLS",
        "base_model_name_or_path": str(base),
        "r": 3,
        "lora_alpha": 6,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "modules_to_save": ["classifier", "score"],
        "target_modules": ["query", "layer.1.intermediate.dense"],
        "rank_pattern": {},
        "alpha_pattern": {},
        "use_dora": False,
        "use_rslora": False,
    }
    (folder / "adapter_config.json").write_text(json.dumps({**known_of_peft, **said}))
    return folder


def rows() -> Rows:
    return Rows(TASKS["glue/rte"], "test", TEXTS, np.zeros(len(TEXTS)), "")


def ours(folder: Path, **given: Any) -> np.ndarray[Any, Any]:
    return forward(open_checkpoint(folder, **given), rows(), max_length=40)[1]


def by_hooks(folder: Path, base: Path, scale: float) -> np.ndarray[Any, Any]:
    """The outputs of the base under the head, with what A and then B make of inputs added."""
    tensors = load_file(folder / "adapter_model.safetensors")
    network: Any = AutoModelForSequenceClassification.from_pretrained(base, num_labels=2)
    head = {name: tensors[f"{PREFIX}classifier.{name}"] for name in ("weight", "bias")}
    network.classifier.load_state_dict(head)

    def added(first: torch.Tensor, second: torch.Tensor) -> Callable[..., torch.Tensor]:
        return lambda _, inputs, output: output + scale * (inputs[0] @ first.T) @ second.T

    for module in MODULES:
        pair = (tensors[f"{PREFIX}{module}.lora_{one}.weight"] for one in "AB")
        network.get_submodule(module).register_forward_hook(added(*pair))
    words = open_words(base)
    with torch.no_grad():
        outputs = [network.eval()(**words(*pair, return_tensors="pt")).logits[0] for pair in TEXTS]
    return torch.stack(outputs).numpy()


def open_words(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


@pytest.mark.parametrize(
    ("said", "scale"),
    [({}, 2.0), ({"lora_alpha": 1.5}, 0.5), ({"use_rslora": True}, 6 / math.sqrt(3))],
    ids=["alpha / r", "another alpha", "rank-stabilised"],
)
def test_an_adapter_computes_what_its_base_with_the_added_products_does(
    said: dict[str, Any], scale: float, base: Path, tmp_path: Path
) -> None:
    folder = adapter(tmp_path / "adapter", base, **said)
    np.testing.assert_allclose(ours(folder), by_hooks(folder, base, scale), rtol=0, atol=2e-5)
    assert np.abs(ours(folder) - by_hooks(folder, base, 0.9 * scale)).max() > 1e-3


def test_a_product_by_hand(base: Path, tmp_path: Path) -> None:
    folder = adapter(tmp_path / "adapter", base, r=1, lora_alpha=2, target_modules=[UP])
    name = f"{PREFIX}{UP}"
    first, second = torch.zeros(1, 16), torch.zeros(24, 1)
    first[0, :2], second[0, 0] = torch.tensor([1.0, 2.0]), 3.0
    tensors = {f"{name}.lora_A.weight": first, f"{name}.lora_B.weight": second}
    save_file(tensors, folder / "adapter_model.safetensors")
    before = load_file(base / "model.safetensors")[f"{UP.removeprefix('bert.')}.weight"]
    moved = open_checkpoint(folder).weights[f"{UP}.weight"] - before
    expected = torch.zeros(24, 16)
    expected[0, :2] = torch.tensor([6.0, 12.0])
    torch.testing.assert_close(moved, expected.double(), rtol=0, atol=1e-5)


def test_no_matrix_is_computed_before_it_is_asked_for(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = adapter(tmp_path / "adapter", base)
    products: list[tuple[int, ...]] = []
    plain = torch.Tensor.__matmul__

    def counted(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        products.append((*self.shape, *other.shape))
        return plain(self, other)

    monkeypatch.setattr(torch.Tensor, "__matmul__", counted)
    checkpoint = open_checkpoint(folder)
    assert checkpoint.labels == ("LABEL_0", "LABEL_1")
    assert not products
    _ = checkpoint.weights[f"{UP}.weight"]
    assert products == [(24, 3, 3, 16)]


def test_a_merge_never_takes_the_place_of_the_base_of_an_adapter(
    base: Path, tmp_path: Path
) -> None:
    """Which may be a merge: without it the adapter is nothing."""
    out = tmp_path / "merged"

    def recipe(under: Path) -> Recipe:
        places = (tmp_path / f"{number} of {under.name}" for number in (1, 2))
        folders = (adapter(place, under, seed) for seed, place in enumerate(places))
        return Recipe(experts=tuple(map(str, folders)), tasks=("glue/rte",))

    merge(recipe(base), out=out)
    before = (out / "merge.json").read_bytes()
    with mistake(OutputExists, out, "would replace", out, tmp_path / "1 of merged", "--out"):
        merge(recipe(out), out=out, force=True)
    assert (out / "merge.json").read_bytes() == before


def test_adapters_are_merged_and_read_like_models(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mean of two adapters is that of the models that they make, and its record finds them."""
    one, two = (adapter(tmp_path / f"lora-{seed}", base, seed) for seed in (1, 2))
    command = ["merge", str(one), str(two), "--merger", "average", "--tasks", "glue/rte"]
    assert main([*command, "--base", str(base), "--out", str(tmp_path / "merged")]) == 0
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    wholes = [open_checkpoint(folder).weights for folder in (one, two)]
    assert {*merged} == {*wholes[0]}
    for name, tensor in merged.items():
        mean = (wholes[0][name] + wholes[1][name]) / 2
        assert tensor.dtype == torch.float32
        torch.testing.assert_close(tensor, mean.float(), rtol=0, atol=1e-6)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "merged")
    assert loaded.config.num_labels == 2
    assert loaded.config.architectures == ["BertForSequenceClassification"]
    assert all((tmp_path / "merged" / name).is_file() for name in TOKENIZER)
    data = tmp_path / "data" / "glue" / "rte"
    data.mkdir(parents=True)
    lines = [
        {"sentence1": "word1 word2", "sentence2": f"word{i}", "label": i % 2} for i in range(8)
    ]
    (data / "validation.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    capsys.readouterr()
    command = ["evaluate", "--model", str(tmp_path / "merged"), "--protocols", "current", "--json"]
    places = ["--data-dir", str(tmp_path / "data"), "--output-path", str(tmp_path / "records")]
    assert main([*command, *places, "--labels", "by-index"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [r["model"] for r in records if r["role"] == "expert"] == ["lora-1", "lora-2"]


def matrices(folder: Path, scale: float) -> dict[str, torch.Tensor]:
    """What an adapter adds to each matrix, in float64."""
    tensors = load_file(folder / "adapter_model.safetensors")
    found = {}
    for module in MODULES:
        first, second = (
            tensors[f"{PREFIX}{module}.lora_{one}.weight"].double() for one in ("A", "B")
        )
        found[f"{module}.weight"] = scale * second @ first
    return found


def compact(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The singular values above a share of 1e-9 of the largest, and their vectors."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    real = values > 1e-9 * values[0]
    return left[:, real], values[real], right[real]


def alike(vectors: list[torch.Tensor]) -> torch.Tensor:
    """Iso-C: of the sum, every singular value is their mean."""
    left, values, right = compact(vectors[0] + vectors[1])
    return left @ right * values.sum() / min(vectors[0].shape)


def decorrelated(vectors: list[torch.Tensor]) -> torch.Tensor:
    """TSV-Merge, with half of the values of each."""
    count = min(vectors[0].shape) // 2
    lefts, values, rights = zip(*map(compact, vectors), strict=True)
    sides = (
        torch.cat([one[:, :count] for one in lefts], 1),
        torch.cat([one[:count] for one in rights]),
    )
    both = [left @ right for left, _, right in map(compact, sides)]
    return (both[0] * torch.cat([one[:count] for one in values])) @ both[1]


@pytest.mark.parametrize(("method", "formula"), [("iso", alike), ("tsv", decorrelated)])
def test_the_task_vector_of_an_adapter_has_its_rank(
    method: str,
    formula: Callable[[list[torch.Tensor]], torch.Tensor],
    base: Path,
    tmp_path: Path,
) -> None:
    """Rounded to float32 W + B A is of full rank, and a spectral merger makes much of what is not
    there."""
    folders = [adapter(tmp_path / name, base, seed) for seed, name in enumerate("ab")]
    added = [matrices(folder, 2.0) for folder in folders]
    origin = load_file(base / "model.safetensors")
    recipe = Recipe(experts=tuple(map(str, folders)), base=str(base), merger=method)
    harness.merge(recipe, out=tmp_path / "merged")
    merged = load_file(tmp_path / "merged" / "model.safetensors")
    for name in added[0]:
        assert merged[name].dtype == torch.float32
        expected = formula([one[name] for one in added])
        found = merged[name].double() - origin[name.removeprefix("bert.")].double()
        assert float((found - expected).norm() / expected.norm()) < 1e-6


def test_labels_come_from_a_configuration_beside_it(base: Path, tmp_path: Path) -> None:
    folder = adapter(tmp_path / "adapter", base)
    config = json.loads((base / "config.json").read_text())
    names = {"0": "no", "1": "yes"}
    for beside in ({**config, "id2label": names}, {"id2label": names}):
        (folder / "config.json").write_text(json.dumps(beside))
        one = open_checkpoint(folder)
        assert one.labels == ("no", "yes")
        assert one.config["hidden_size"] == config["hidden_size"]


@pytest.mark.parametrize(("names", "said"), [("abc", "3 labels"), ("a", "1 label")])
def test_a_head_of_other_outputs_than_labels_beside_it_is_one_line(
    names: str, said: str, base: Path, tmp_path: Path
) -> None:
    folder = adapter(tmp_path / "one", base)
    (folder / "config.json").write_text(json.dumps({"id2label": dict(enumerate(names))}))
    with mistake(BrokenCheckpoint, folder, said, "2 outputs"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ({"id2label": {"0": "a", "1": "a"}}, "config.json id2label"),
        ({"id2label": {"0": "a", "x": "b"}}, "config.json id2label"),
        ({"num_labels": 5000}, "config.json num_labels 5000"),
        ({"hidden_act": "none", "num_labels": 2}, ": config.json none"),
    ],
    ids=["twice one name", "no number", "too many labels", "no function"],
)
def test_a_fault_of_a_configuration_beside_it_is_told_of_that_file(
    said: dict[str, Any], found: str, base: Path, tmp_path: Path
) -> None:
    folder = adapter(tmp_path / "adapter", base)
    config = json.loads((base / "config.json").read_text())
    for beside in (said, {**config, **said}):
        (folder / "config.json").write_text(json.dumps(beside))
        slash = "" if found.startswith(":") else "/"
        with mistake(BrokenCheckpoint, f"{folder}{slash}{found}"):
            open_checkpoint(folder)


def test_the_base_is_the_one_given_else_beside_the_adapter_else_as_it_is_named(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = model(tmp_path / "other", seed=9)
    folder = adapter(tmp_path / "adapter", base, base_model_name_or_path="my-base")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(other, tmp_path / "my-base")
    named = ours(folder)
    np.testing.assert_allclose(named, by_hooks(folder, other, 2.0), rtol=0, atol=2e-5)
    shutil.copytree(base, folder / "my-base")
    beside = ours(folder)
    np.testing.assert_allclose(beside, by_hooks(folder, base, 2.0), rtol=0, atol=2e-5)
    assert np.abs(named - beside).max() > 1e-3
    assert np.array_equal(ours(folder, base=other), named)
    with mistake(BrokenCheckpoint, "nowhere --base"):
        open_checkpoint(adapter(tmp_path / "lost", base, base_model_name_or_path="./nowhere"))
    recipe = Recipe(experts=(str(tmp_path / "lost"), str(folder)), base=str(base))
    assert len(merge(recipe, out=tmp_path / "merged").state) > 10


def test_an_adapter_with_a_model_beside_it_is_that_model(base: Path, tmp_path: Path) -> None:
    folder = adapter(tmp_path / "adapter", base)
    for path in base.iterdir():
        shutil.copy(path, folder)
    assert open_checkpoint(folder).labels is None


def dropped(tensors: dict[str, torch.Tensor]) -> None:
    tensors.pop(f"{PREFIX}{UP}.lora_B.weight")


def one_layer(tensors: dict[str, torch.Tensor]) -> None:
    for factor in "AB":
        tensors.pop(f"{PREFIX}{QUERY.format(1)}.lora_{factor}.weight")


def no_factors(tensors: dict[str, torch.Tensor]) -> None:
    for name in [name for name in tensors if ".lora_" in name]:
        tensors.pop(name)


def halved(tensors: dict[str, torch.Tensor]) -> None:
    tensors.pop(f"{PREFIX}{UP}.lora_A.weight")


def flat(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{PREFIX}{UP}.lora_A.weight"] = torch.ones(48)


def stranger(tensors: dict[str, torch.Tensor]) -> None:
    for factor, shape in (("A", (3, 24)), ("B", (16, 3))):
        tensors[f"{PREFIX}bert.encoder.layer.7.output.dense.lora_{factor}.weight"] = torch.ones(
            shape
        )


def wide(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{PREFIX}{UP}.lora_A.weight"] = torch.ones(3, 17)


def embedding(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{PREFIX}bert.embeddings.word_embeddings.lora_embedding_A"] = torch.ones(3, 45)


def magnitude(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{PREFIX}classifier.lora_magnitude_vector"] = torch.ones(2)


def both_names(tensors: dict[str, torch.Tensor]) -> None:
    tensors[f"{UP}.lora_A.weight"] = torch.ones(3, 16)


def both_heads(tensors: dict[str, torch.Tensor]) -> None:
    tensors["classifier.weight"] = torch.ones(2, 16)


def both_bare(tensors: dict[str, torch.Tensor]) -> None:
    for factor, shape in (("A", (3, 16)), ("B", (24, 3))):
        name = f"{PREFIX}{UP.removeprefix('bert.')}.lora_{factor}.weight"
        tensors[name] = torch.ones(shape)


def whole_numbers(tensors: dict[str, torch.Tensor]) -> None:
    name = f"{PREFIX}{UP}.lora_A.weight"
    tensors[name] = tensors[name].to(torch.int64)


def table(tensors: dict[str, torch.Tensor]) -> None:
    for factor, shape in (("A", (3, 16)), ("B", (45, 3))):
        tensors[f"{PREFIX}bert.embeddings.word_embeddings.lora_{factor}.weight"] = torch.ones(shape)


REFUSED: dict[str, tuple[dict[str, Any], Change | None, str]] = {
    "another method": ({"peft_type": "IA3"}, None, "peft_type IA3 merge_and_unload"),
    "no method": ({"peft_type": None}, None, "peft_type None"),
    "turned": ({"fan_in_fan_out": "yes"}, None, "fan_in_fan_out 'yes'"),
    "ranks": ({"rank_pattern": {"query": 2}}, None, "rank_pattern"),
    "alphas": ({"alpha_pattern": {"query": 2}}, None, "alpha_pattern"),
    "DoRA": ({"use_dora": True}, None, "use_dora True"),
    "biases": ({"bias": "all"}, None, "bias all"),
    "a changed base": ({"init_lora_weights": "pissa"}, None, "init_lora_weights pissa"),
    "rank of nothing": ({"r": 0}, None, "r 0 0"),
    "alpha of text": ({"lora_alpha": "6"}, None, "lora_alpha 6"),
    "another rank": ({"r": 4}, None, "factors product rank 4"),
    "no base": ({"base_model_name_or_path": None}, None, "names base --base"),
    "the other half": ({}, halved, "base_model lora_A"),
    "a vector": ({}, flat, "product rank 3"),
    "a layer that lacks": ({}, one_layer, f"{QUERY.format(1)}.weight 3 2"),
    "no factors at all": ({}, no_factors, "no LoRA factors"),
    "half a pair": ({}, dropped, "base_model lora_B"),
    "another base": ({}, stranger, "base layer.7"),
    "another width": ({}, wide, "(24, 16) base's"),
    "embeddings": ({}, embedding, "lora_embedding_A"),
    "a table by factors": ({"target_modules": "all-linear"}, table, "word_embeddings.weight"),
    "text for false": ({"use_rslora": "false"}, None, "use_rslora false bool"),
    "one for true": ({"use_rslora": 1}, None, "use_rslora 1 bool"),
    "nought for false": ({"use_dora": 0}, None, "use_dora 0"),
    "true for a rank": ({"r": True}, None, "r True int"),
    "half a rank": ({"r": 3.0}, None, "r 3.0 int"),
    "no alpha": ({"lora_alpha": None}, None, "lora_alpha None 0"),
    "a list for a base": ({"base_model_name_or_path": ["x"]}, None, "str"),
    "a number for a task": ({"task_type": 3}, None, "task_type 3 str"),
    "a text of modules": ({"modules_to_save": "classifier"}, None, "classifier list"),
    "a key of tomorrow": ({"squared": True}, None, "squared True W"),
    "another pattern": ({"alpha_pattern": {"value": 2}}, None, "alpha_pattern"),
    "a layer of its own": ({"layer_replication": [[0, 2]]}, None, "layer_replication"),
    "tokens": ({"trainable_token_indices": [1]}, None, "trainable_token_indices"),
    "a pooler that is lost": ({"modules_to_save": ["pooler"]}, None, "pooler modules_to_"),
    "a module not meant": ({"target_modules": ["query"]}, None, "bert. adapter_config.json"),
    "a module left out": ({"exclude_modules": ["query"]}, None, "adapter_config.json"),
    "another layer": ({"layers_to_transform": [0]}, None, "adapter_config.json"),
    "two names of a factor": ({}, both_names, "names tensor"),
    "two names of a head": ({}, both_heads, "names tensor"),
    "two names in the base": ({}, both_bare, "names tensor"),
    "whole numbers": ({}, whole_numbers, "product rank 3"),
    "a magnitude": ({}, magnitude, "lora_magnitude_vector"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_plain_is_one_line(what: str, base: Path, tmp_path: Path) -> None:
    said, change, expected = REFUSED[what]
    folder = adapter(tmp_path / "adapter", base, **said)
    if change is not None:
        tensors = load_file(folder / "adapter_model.safetensors")
        change(tensors)
        save_file(tensors, folder / "adapter_model.safetensors")
    with mistake(BrokenCheckpoint, expected):
        open_checkpoint(folder)
    refused(
        ["merge", str(folder), str(folder), "--out", str(tmp_path / "merged")], BrokenCheckpoint
    )
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize("dry", [(), ("--dry-run",)])
def test_a_pooler_that_neither_adapter_nor_base_has_is_no_merge(
    dry: tuple[str, ...], base: Path, tmp_path: Path
) -> None:
    """Sentence encoders have none, and transformers would draw one at random for their merge."""
    bare, pooler = without_pooler(base, tmp_path), "bert.pooler.dense.{}".format
    one, two = (adapter(tmp_path / f"lora-{seed}", bare, seed) for seed in (1, 2))
    out = tmp_path / "merged"
    command = ["merge", one, two, "--base", bare, "--out", out, *dry]
    lacks = (one, pooler("weight"), pooler("bias"), "modules_to_save", "pooler", "classifier")
    refused(command, BrokenCheckpoint, *lacks)
    assert not out.exists()
    for folder in (one, two):
        with_own_pooler(folder)
    assert main([*map(str, command)]) == 0
    if not dry:
        both = [load_file(folder / "adapter_model.safetensors") for folder in (one, two)]
        for name in (pooler("weight"), pooler("bias"), "classifier.weight"):
            mean = (both[0][PREFIX + name] + both[1][PREFIX + name]) / 2
            found = load_file(out / "model.safetensors")[name]
            torch.testing.assert_close(found, mean, rtol=0, atol=1e-6)


def without_pooler(base: Path, place: Path) -> Path:
    shutil.copytree(base, place / "bare")
    tensors = load_file(base / "model.safetensors")
    kept = {name: one for name, one in tensors.items() if "pooler" not in name}
    save_file(kept, place / "bare" / "model.safetensors", {"format": "pt"})
    return place / "bare"


def with_own_pooler(folder: Path) -> None:
    """As peft saves it for modules_to_save=["pooler", "classifier"], of one draw for all."""
    torch.manual_seed(0)
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    own = {"weight": torch.randn(16, 16), "bias": torch.randn(16)}
    save_file({**tensors, **{f"{PREFIX}bert.pooler.dense.{n}": t for n, t in own.items()}}, file)
    said = json.loads((folder / "adapter_config.json").read_text())
    said["modules_to_save"] = ["pooler", "classifier"]
    (folder / "adapter_config.json").write_text(json.dumps(said))


def test_an_adapter_of_an_embedding_model_has_its_pooling(base: Path, tmp_path: Path) -> None:
    """It has no config.json of its own."""
    folder = adapter(tmp_path / "lora", base, task_type="FEATURE_EXTRACTION", modules_to_save=None)
    kept = load_file(folder / "adapter_model.safetensors")
    kept = {name: tensor for name, tensor in kept.items() if "lora" in name}
    save_file(kept, folder / "adapter_model.safetensors")
    pooling = open_checkpoint(as_embedding(folder)).pooling
    assert str(pooling) == "mean, normalized"


def test_a_base_that_is_an_adapter_or_a_pickle_is_one_line(base: Path, tmp_path: Path) -> None:
    first = adapter(tmp_path / "first", base)
    with mistake(BrokenCheckpoint, first, tmp_path / "second" / "adapter_config.json", "PeftModel"):
        open_checkpoint(adapter(tmp_path / "second", base, base_model_name_or_path=str(first)))
    (first / "adapter_model.safetensors").rename(first / "adapter_model.bin")
    with mistake(BrokenCheckpoint, "safe_serialization=True"):
        open_checkpoint(first)


def test_a_checkpoint_is_shown_in_a_line(base: Path, tmp_path: Path) -> None:
    shown = repr(open_checkpoint(adapter(tmp_path / "adapter", base)))
    assert shown == f"Checkpoint('{tmp_path / 'adapter'}', 41 tensors, labels LABEL_0, LABEL_1)"
    assert harness.Checkpoint.__repr__(open_checkpoint(base)).endswith("no head)")
