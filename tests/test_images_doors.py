"""Images through the public doors: fine-tuning, merging, evaluation, statistics, inspection."""

from __future__ import annotations

import copy
import csv
import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from safetensors.torch import load_file, save_file

import harness
from harness import weights
from harness.checkpoints.open import open_checkpoint
from harness.cli import main
from harness.data.rows import load_rows, take
from harness.errors import (
    BadData,
    BadRecipe,
    BrokenCheckpoint,
    CellsFailed,
    IncompatibleWeights,
)
from harness.passes.features import forward
from harness.passes.placement import CPU
from harness.training.single import dataset
from tests.conftest import model, registries_kept, resumes
from tests.images import (
    FILE,
    NEWER,
    PROCESSING,
    colours,
    encoded,
    folders,
    pictures,
    png,
    respelled,
    vit,
)
from tests.mistakes import names, refused
from tests.resampled import read_records

pytest.importorskip("PIL.Image")
pytestmark = [
    pytest.mark.usefixtures("as_found"),
    pytest.mark.filterwarnings("ignore:.* was fitted to fewer rows"),
    pytest.mark.filterwarnings("ignore:.* fewer than examples"),
    pytest.mark.filterwarnings("ignore:.* drove the experts apart"),
]
QUERY = "vit.encoder.layer.1.attention.attention.query.weight"
TRAINING = ["--learning-rate", "0.02", "--epochs", "3", "--batch-size", "8"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, a user's task, and two experts of it that `harness finetune` has made."""
    root = tmp_path_factory.mktemp("trained")
    task, base = colours(root), vit(root / "base", None, near=None)
    with pytest.MonkeyPatch.context() as patch, registries_kept():
        patch.chdir(root)
        for seed in (1, 2):
            command = ["finetune", "--base", base, "--task", task, "--out", root / f"e{seed}"]
            assert main([*map(str, command), "--seed", str(seed), *TRAINING]) == 0
    return root


def run(*words: object) -> None:
    assert main([str(word) for word in words]) == 0


def test_an_expert_learns_and_says_where_it_came_from(trained: Path) -> None:
    said = json.loads((trained / "e1" / "expert.json").read_text())
    checkpoint = open_checkpoint(trained / "e1")
    assert said["digest"] == weights.digest(checkpoint.weights)
    assert checkpoint.labels == ("blue", "green", "red")
    assert json.loads((trained / "e1" / "preprocessor_config.json").read_text()) == PROCESSING
    assert "vit.encoder.layer.0.attention.attention.query.weight" in load_file(
        trained / "e1" / FILE
    )
    (score,) = said["scores"].values()
    assert score["value"] > 0.8
    assert said["hyperparameters"]["max_length"] == 1


def test_images_are_neither_copied_nor_hashed_for_the_trainer(trained: Path) -> None:
    rows = load_rows(harness.TASKS[str(trained / "colours.yaml")], "test")
    data = dataset(rows, open_checkpoint(trained / "base"), 1)
    transform = data.format["format_kwargs"]["transform"]
    assert copy.deepcopy(transform) is transform
    assert len(pickle.dumps(transform)) < 200
    assert data.remove_columns("length")[2]["pixel_values"].shape == (3, 8, 8)


def test_training_again_is_the_same(trained: Path, tmp_path: Path) -> None:
    base, task = trained / "base", trained / "colours.yaml"
    run(
        "finetune", "--base", base, "--task", task, "--out", tmp_path / "e1", "--seed", 1, *TRAINING
    )
    first, again = (weights.digest(open_checkpoint(p / "e1").weights) for p in (trained, tmp_path))
    assert first == again


def test_an_interrupted_run_resumes(trained: Path, tmp_path: Path) -> None:
    """transformers writes a ViT under other names than its module has."""
    task, few = str(trained / "colours.yaml"), {"epochs": 2, "limit": 16, "progress": False}
    resumes(lambda out: harness.finetune(trained / "base", task, out=out, **few), tmp_path)


def test_a_base_in_the_other_spelling_makes_the_same_expert(trained: Path, tmp_path: Path) -> None:
    import shutil

    base = Path(shutil.copytree(trained / "base", tmp_path / "base"))
    respelled(base, NEWER)
    task = trained / "colours.yaml"
    run(
        "finetune", "--base", base, "--task", task, "--out", tmp_path / "e1", "--seed", 1, *TRAINING
    )
    first, again = (weights.digest(open_checkpoint(p / "e1").weights) for p in (trained, tmp_path))
    assert first == again


MERGERS = [
    "average",
    "ties",
    "fisher",
    "regmean",
    "regmean_plus_plus",
    "adamerging:steps=2",
]


@pytest.mark.parametrize("merger", MERGERS)
def test_a_merge_is_evaluated_under_every_protocol(
    trained: Path, merger: str, tmp_path: Path
) -> None:
    task, out = trained / "colours.yaml", tmp_path / "merged"
    run("merge", trained / "e1", trained / "e2", "--base", trained / "base", "--merger", merger,
        "--tasks", task, "--out", out)  # fmt: skip
    assert json.loads((out / "preprocessor_config.json").read_text()) == PROCESSING
    names = ["current", "knn"]
    if merger == "average":
        names = [name for name in harness.PROTOCOLS if name != "cosine"]  # of two texts
    run("evaluate", "--model", out, "--protocols", ",".join(names), "--shots", "1,2", "--draws", 2,
        "--output-path", tmp_path / "records")  # fmt: skip
    found = read_records([tmp_path / "records"])
    assert {record.protocol for record in found} == {*names}
    roles = {(one.protocol, one.role): one.scores[0].value for one in found}
    assert roles["current", "merged"] > 0.6
    assert roles["current", "expert"] > 0.8


@pytest.mark.parametrize(
    "premerge",
    [
        *("rotation", "rotation:residual=true", "permutation:heads=true"),
        *("procrustes", "activation_matching", "ot_fusion"),
    ],
)
def test_experts_are_aligned_before_they_are_merged(
    trained: Path, premerge: str, tmp_path: Path
) -> None:
    task = trained / "colours.yaml"
    run("merge", trained / "e1", trained / "e2", "--base", trained / "base", "--merger", "average",
        "--premerge", premerge, "--tasks", task, "--out", tmp_path / "out")  # fmt: skip
    rows = load_rows(harness.TASKS[str(task)], "test")
    logits = forward(open_checkpoint(tmp_path / "out"), rows, max_length=1, placement=CPU)[1]
    assert np.mean(logits.argmax(1) == rows.labels) > 0.5


def test_features_of_images_are_drawn(trained: Path, tmp_path: Path) -> None:
    merged, task = tmp_path / "m", trained / "colours.yaml"
    run("merge", trained / "e1", trained / "e2", "--base", trained / "base", "--merger", "average",
        "--tasks", task, "--out", merged)  # fmt: skip
    run("plot", "tsne", "--model", merged, "--rows", 12, "--out", tmp_path / "plane")
    assert (tmp_path / "plane.png").read_bytes().startswith(b"\x89PNG")
    drawn = (tmp_path / "plane.svg").read_text()
    assert all(word in drawn for word in ("colours", "blue", "green", "red"))


def test_the_line_between_models_of_images_is_walked(trained: Path, tmp_path: Path) -> None:
    """Of an expert with its units in another order: matched, they are in the first one's again."""
    moved, out = tmp_path / "moved", tmp_path / "line"
    moved.mkdir()
    for file in (FILE, "config.json", "preprocessor_config.json"):
        (moved / file).write_bytes((trained / "e1" / file).read_bytes())
    state = load_file(moved / FILE)
    for layer in (0, 1):
        at = f"vit.encoder.layer.{layer}."
        order = torch.randperm(24, generator=torch.manual_seed(layer))
        for name, axis in (
            ("intermediate.dense.weight", 0),
            ("intermediate.dense.bias", 0),
            ("output.dense.weight", 1),
        ):
            state[at + name] = state[at + name].index_select(axis, order)
    save_file(state, moved / FILE, {"format": "pt"})
    run("barrier", trained / "e1", moved, "--tasks", trained / "colours.yaml", "--points", 3,
        "--premerge", "permutation", "--output-path", out)  # fmt: skip
    with (out / "barrier.csv").open() as file:
        rows = [*csv.DictReader(file)]
    loss = {(row["alignment"], float(row["x"])): float(row["loss"]) for row in rows}
    ends = [loss["as they are", x] for x in (0, 1)]
    assert ends == [loss["permutation", x] for x in (0, 1)]
    assert ends[0] == pytest.approx(ends[1], abs=1e-5)
    assert loss["permutation", 0.5] == pytest.approx(ends[0], abs=1e-5)
    assert loss["as they are", 0.5] > ends[0] + 1e-3


def test_cards_say_that_rows_are_images(trained: Path, tmp_path: Path) -> None:
    from huggingface_hub import ModelCard

    out = tmp_path / "merged"
    run("merge", trained / "e1", trained / "e2", "--merger", "average", "--out", out)
    assert ModelCard.load(out / "README.md").data.pipeline_tag == "image-classification"
    run("evaluate", "--model", out, "--protocols", "current", "--output-path", tmp_path / "records")
    (first, *_) = read_records([tmp_path / "records"])
    assert first.versions["pillow"]
    run("export", tmp_path / "records", "--format", "model-index", "--out", tmp_path / "cards")
    cards = [*(tmp_path / "cards").rglob("README.md")]
    assert cards
    for card in cards:
        results = ModelCard.load(card).data.eval_results
        assert results is not None
        assert {one.task_type for one in results} == {"image-classification"}


@pytest.mark.parametrize("need", ["gram", "fisher"])
def test_statistics_are_those_of_the_rows(trained: Path, need: str, tmp_path: Path) -> None:
    """Inner products of inputs, and squared gradients, computed here by hand."""
    from transformers import AutoModelForImageClassification

    from harness.passes.prepared import prepare
    from harness.passes.statistic_file import read_statistic

    task = trained / "colours.yaml"
    run("statistics", trained / "e1", "--task", task, "--need", f"{need}:examples=12",
        "--out", tmp_path / "file.safetensors")  # fmt: skip
    found = read_statistic(tmp_path / "file.safetensors").stored
    checkpoint = open_checkpoint(trained / "e1")
    assert {*found} <= {*checkpoint.weights}
    plain = AutoModelForImageClassification.from_pretrained(trained / "e1").double().eval()
    head = "classifier.weight"
    if need == "gram":
        # as many rows and columns as the layer has inputs, of no convolution
        assert found[head].shape == (16, 16)
        assert not any("patch_embeddings" in name for name in found)
        assert found["vit.encoder.layer.1.output.dense.weight"].shape == (24, 24)
    else:
        assert {*found} == {*checkpoint.weights}
        assert all(float(one.sum()) > 0 for name, one in found.items() if "key.bias" not in name)
    rows = load_rows(harness.TASKS[str(task)], "train90")
    prepared = prepare(checkpoint, rows, 1)
    values = prepared.make(range(len(rows)))["pixel_values"].double()
    with torch.no_grad():
        states = plain.vit(values).last_hidden_state[:, 0]
    products = torch.stack([torch.outer(one, one) for one in states])
    if need == "gram":
        assert products.amin(0).le(found[head] + 1e-6).all()
        assert products.amax(0).ge(found[head] - 1e-6).all()


def test_the_fisher_information_is_the_mean_of_squared_gradients(trained: Path) -> None:
    """One image at a time, through transformers' own model."""
    from transformers import AutoModelForImageClassification

    from harness.checkpoints.named import parameters_of
    from harness.kinds import kind_of
    from harness.passes.fisher import fisher
    from harness.passes.reading import Reading

    rows = take(load_rows(harness.TASKS[str(trained / "colours.yaml")], "test"), [0, 4, 11])
    reading = Reading(open_checkpoint(trained / "e1"), rows, 1, CPU, None)
    batches = reading.batches(1, as_drawn=True)
    found = fisher(reading.model(), batches, kind_of(rows.task), estimator="empirical")
    plain = AutoModelForImageClassification.from_pretrained(trained / "e1").eval()
    own = parameters_of(plain)
    expected = {name: torch.zeros_like(tensor) for name, tensor in own.items()}
    for inputs, labels in reading.batches(1, as_drawn=True):
        plain.zero_grad()
        torch.nn.functional.cross_entropy(plain(**inputs).logits, labels).backward()
        for name, tensor in own.items():
            assert tensor.grad is not None
            expected[name] += tensor.grad.square() / len(rows)
    assert found.keys() == expected.keys() == {*reading.checkpoint.weights}
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-3, atol=1e-7)
    assert float(found["vit.embeddings.patch_embeddings.projection.weight"].sum()) > 0


def test_activations_are_those_of_every_token(trained: Path) -> None:
    """What goes into the second feed-forward layers of transformers' own models."""
    from transformers import AutoModelForImageClassification

    from harness.needs.activations import activations
    from harness.passes.prepared import prepare
    from harness.passes.reading import Readings

    rows = load_rows(harness.TASKS[str(trained / "colours.yaml")], "test")
    both = [trained / "e1", trained / "e2"]
    experts = tuple(map(open_checkpoint, both))
    first, second = activations(Readings(experts, lambda _: rows, CPU), batch_size=5)
    found = first.products(second, "ffn.1")
    values = prepare(experts[0], rows, 1).make(range(len(rows)))["pixel_values"]
    seen = []
    for folder in both:
        plain = AutoModelForImageClassification.from_pretrained(folder).eval()
        layers = [m for m in plain.modules() if getattr(m, "in_features", 0) == 24]
        layers[-1].register_forward_pre_hook(lambda _, args: seen.append(args[0].double()))
        with torch.no_grad():
            plain(values)
    here, there = (one.flatten(0, 1) for one in seen)
    assert found.count == len(here) == len(rows) * 5
    torch.testing.assert_close(found.inner, here.T @ there, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(found.sums[1], there.sum(0), rtol=1e-5, atol=1e-4)


def test_models_of_images_are_inspected(trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run("inspect", trained / "e1", trained / "e2", "--base", trained / "base", "--out", out)
    said = (out / "inspect.json").read_text()
    for role in ("embeddings", "convolution", "query", "attention output", "up", "down", "norm"):
        assert role in said


def test_several_sets_of_images_share_an_encoder(trained: Path, tmp_path: Path) -> None:
    folders(tmp_path / "data", "train", 40, seed=5)
    folders(tmp_path / "data", "test", 12, seed=6)
    second = tmp_path / "second.yaml"
    second.write_text("image: picture\nfiles: data\n")
    tasks = f"{trained / 'colours.yaml'},{second}"
    run(
        "finetune",
        "--base",
        trained / "base",
        "--tasks",
        tasks,
        "--out",
        tmp_path / "both",
        *TRAINING,
    )
    run("evaluate", "--model", tmp_path / "both", "--protocols", "current",
        "--output-path", tmp_path / "records")  # fmt: skip
    scores = {one.task: one.scores[0].value for one in read_records([tmp_path / "records"])}
    assert len(scores) == 2
    assert min(scores.values()) > 0.8


# What is refused -----------------------------------------------------------------------------


def test_models_and_tasks_of_other_modalities_are_one_line(trained: Path, tmp_path: Path) -> None:
    task, base = str(trained / "colours.yaml"), trained / "base"
    bert = model(tmp_path / "bert", ["blue", "green", "red"])
    records, out = tmp_path / "records", tmp_path / "out"
    refused(["evaluate", "--model", bert, "--tasks", task, "--output-path", records],
            BadRecipe, bert, "text", "images")  # fmt: skip
    refused(["finetune", "--base", bert, "--task", task, "--out", tmp_path / "out"],
            BadRecipe, bert, "text", "images")  # fmt: skip
    refused(["finetune", "--base", base, "--task", "embedded/topic", "--out", out],
            BadRecipe, base, "images", "text")  # fmt: skip
    refused(["statistics", bert, "--task", task, "--out", tmp_path / "x.safetensors"],
            BadRecipe, bert, "text", "images")  # fmt: skip
    refused(["merge", bert, trained / "e1", "--merger", "average", "--tasks", task, "--out", out],
            IncompatibleWeights, trained / "e1", "vit", "bert")  # fmt: skip
    assert not records.exists()
    assert not (tmp_path / "out").exists()


def test_readouts_of_text_are_refused_on_images(trained: Path, tmp_path: Path) -> None:
    one = trained / "e1"
    command = ["evaluate", "--model", one, "--output-path", tmp_path, "--protocols"]
    refused([*command, "knn:features=mean_padded"], BrokenCheckpoint, one, "images")


@pytest.mark.parametrize("broken", ["ends", "is none", "is a bomb"])
def test_a_broken_image_is_one_line_with_its_row(
    trained: Path, broken: str, tmp_path: Path
) -> None:
    folders(tmp_path / "data", "train", 30, seed=5)
    folders(tmp_path / "data", "test", 6, seed=6)
    whole = encoded(pictures(1, side=64)[0][0])
    content = {
        "ends": whole[: len(whole) // 2],
        "is none": b"<html>not found</html>",
        "is a bomb": png(60_000, 60_000, [0]),
    }
    (tmp_path / "data" / "train" / "green" / "001.png").write_bytes(content[broken])
    task = tmp_path / "mine.yaml"
    task.write_text("image: picture\nfiles: data\n")
    out = tmp_path / "out"
    command = ["finetune", "--base", trained / "base", "--task", task, "--out", out, *TRAINING]
    line = refused(command, BadData, "row", "mine@")
    assert "image" in line
    assert not (tmp_path / "out").exists()


def test_a_broken_image_that_is_scored_is_told_once(trained: Path, tmp_path: Path) -> None:
    """And not for every model and protocol."""
    folders(tmp_path / "data", "train", 30, seed=5)
    folders(tmp_path / "data", "test", 6, seed=6)
    (tmp_path / "data" / "test" / "green" / "001.png").write_bytes(b"none")
    (tmp_path / "mine.yaml").write_text("image: picture\nfiles: data\n")
    asked: dict[str, Any] = {
        "tasks": str(tmp_path / "mine.yaml"),
        "protocols": ["current", "knn"],
        "shots": (1,),
    }
    with pytest.raises(CellsFailed) as caught:
        harness.evaluate(
            harness.Run(model=str(trained / "e1"), output=str(tmp_path / "records"), **asked)
        )
    (line,) = caught.value.failures
    names(line, "e1 mine@test current e1 mine@test knn row mine@test green/001.png")


def test_a_length_means_nothing(trained: Path, tmp_path: Path) -> None:
    given: list[list[Any]] = [[], ["--max-length", 7], ["--max-length", "auto"]]
    for options in given:
        run("evaluate", "--model", trained / "e1", "--protocols", "current", *options,
            "--output-path", tmp_path / "records")  # fmt: skip
    (record,) = read_records([tmp_path / "records"])
    assert record.settings["max_length"] == 1


@pytest.mark.parametrize("kind", ["multilabel", "regression"])
def test_images_have_labels_of_other_kinds(trained: Path, kind: str, tmp_path: Path) -> None:
    """Several colours of one image, or how red it is."""
    random = np.random.default_rng(0)
    (tmp_path / "data").mkdir()
    for split, count in {"train": 60, "test": 24}.items():
        shares = random.integers(0, 2, (count, 2))
        pixels = random.integers(0, 100, (count, 10, 10, 3))
        pixels[..., :2] += 120 * shares[:, None, None, :]
        table = pyarrow.table(
            {
                "picture": [encoded(one.astype(np.uint8)) for one in pixels],
                "colours": [[n for n, on in zip("rg", one, strict=True) if on] for one in shares],
                "red": shares[:, 0].astype(float),
            }
        )
        pyarrow.parquet.write_table(table, tmp_path / "data" / f"{split}.parquet")
    label = {"multilabel": "colours\nlabels: [r, g]", "regression": "red"}[kind]
    task = tmp_path / "own.yaml"
    task.write_text(f"kind: {kind}\nimage: picture\nlabel: {label}\nfiles: data\n")
    out = tmp_path / "out"
    run("finetune", "--base", trained / "base", "--task", task, "--out", out, *TRAINING)
    run("evaluate", "--model", out, "--protocols", "current", "--output-path", tmp_path / "records")
    (record,) = read_records([tmp_path / "records"])
    assert record.scores[0].value > 0.7


def test_images_of_train_are_not_scored_and_are_called_images(tmp_path: Path) -> None:
    folders(tmp_path / "data", "train", 30, seed=5)
    shutil.copytree(tmp_path / "data/train", tmp_path / "data/test")
    (tmp_path / "mine.yaml").write_text("image: picture\nfiles: data\n")
    refused(["show", str(tmp_path / "mine.yaml")], BadData, "30 images of test are among the 30")
