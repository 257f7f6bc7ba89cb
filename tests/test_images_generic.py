"""Models of images whose architecture has no file: merged and evaluated where rules tell enough."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import harness
from harness.checkpoints.families.generic import family_of
from harness.checkpoints.open import open_checkpoint
from harness.cli import main
from harness.data.images import decoded
from harness.data.rows import load_rows
from harness.errors import UnknownName
from harness.passes.features import forward
from harness.passes.placement import CPU
from harness.passes.statistic_file import read_statistic
from tests.conftest import resumes
from tests.images import FILE, OTHERS, colours, vit
from tests.mistakes import refused
from tests.resampled import read_records

pytest.importorskip("PIL.Image")
pytestmark = [
    pytest.mark.usefixtures("as_found"),
    pytest.mark.filterwarnings("ignore:.* fewer than examples"),
    # of torch, for the windows of swin
    pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning"),
]
#: a linear layer of each, as files call its weight
LAYER = {
    "swin": "swin.encoder.layers.0.blocks.0.attention.self.query.weight",
    "dinov2": "dinov2.encoder.layer.0.attention.attention.query.weight",
    "beit": "beit.encoder.layer.0.attention.attention.query.weight",
    "convnext": "convnext.encoder.stages.0.layers.0.pwconv1.weight",
}


@pytest.fixture(scope="module", params=OTHERS)
def room(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A task of images, and a base with two experts, in a folder of the name of the family."""
    root = tmp_path_factory.mktemp("images") / request.param
    colours(root)
    base = vit(root / "base", None, family=root.name)
    for seed, name in enumerate("ab", start=1):
        vit(root / name, seed=seed, near=base, family=root.name)
    return root


def merged(room: Path, merger: str, out: Path) -> Path:
    command = ["merge", room / "a", room / "b", "--base", room / "base", "--merger", merger]
    assert main([*map(str, command), "--tasks", str(room / "colours.yaml"), "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize("merger", ["average", "task_arithmetic", "ties", "fisher", "regmean"])
def test_it_is_merged_and_evaluated(room: Path, merger: str, tmp_path: Path) -> None:
    options = ":examples=8" if merger in ("fisher", "regmean") else ""
    out = merged(room, merger + options, tmp_path / "m")
    assert json.loads((out / "merge.json").read_text())["family"] == "generic"
    command = ["evaluate", "--model", out, "--protocols", "current,knn", "--shots", 1]
    command += ["--draws", 1, "--output-path", tmp_path / "r"]
    assert main([*map(str, command)]) == 0
    found = read_records([tmp_path / "r"])
    assert {one.role for one in found} == {"merged", "base", "expert", "ensemble"}
    assert {one.family for one in found} == {"generic"}


def test_a_merge_is_the_mean_of_files_and_is_read_as_transformers_reads_it(
    room: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForImageClassification
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    out = merged(room, "average", tmp_path / "m")
    made, first, second = (load_file(one / FILE) for one in (out, room / "a", room / "b"))
    assert made.keys() == first.keys()
    assert LAYER[room.name] in made
    for name, tensor in made.items():
        mean = (first[name] + second[name]) / 2  # some releases write indices, too
        torch.testing.assert_close(tensor, mean.to(first[name].dtype))
    rows = load_rows(harness.TASKS[str(room / "colours.yaml")], "test")
    logits = forward(open_checkpoint(out), rows, max_length=1, placement=CPU)[1]
    assert rows.images is not None
    images = [decoded(rows.images(place)) for place in range(len(rows))]
    seen = AutoImageProcessor.from_pretrained(out, backend="pil")(images, return_tensors="pt")
    model = AutoModelForImageClassification.from_pretrained(out).eval()
    with torch.no_grad():
        expected = model(**seen).logits.numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-5)


def test_statistics_are_of_its_linear_layers(room: Path, tmp_path: Path) -> None:
    """By the names of files, and the inner products of what the layer is given."""
    from transformers import AutoModelForImageClassification
    from transformers.models.auto.image_processing_auto import AutoImageProcessor

    out, task = tmp_path / "gram.safetensors", str(room / "colours.yaml")
    command = ["statistics", str(room / "a"), "--task", task, "--merger", "regmean:examples=54"]
    assert main([*command, "--out", str(out)]) == 0
    found = read_statistic(out).tensors[LAYER[room.name]]
    rows = load_rows(harness.TASKS[task], "train90")
    assert rows.images is not None
    images = [decoded(rows.images(place)) for place in range(len(rows))]
    seen = AutoImageProcessor.from_pretrained(room / "a", backend="pil")(
        images, return_tensors="pt"
    )
    model = AutoModelForImageClassification.from_pretrained(room / "a").eval()
    stored = load_file(room / "a" / FILE)[LAYER[room.name]]
    given: list[torch.Tensor] = []
    for one in model.modules():
        if isinstance(one, torch.nn.Linear) and torch.equal(one.weight, stored):
            one.register_forward_pre_hook(lambda _, args: given.append(args[0].detach()))
    with torch.no_grad():
        model(**seen)
    (read,) = given
    flat = read.reshape(-1, read.shape[-1]).double()
    torch.testing.assert_close(found, flat.T @ flat / len(flat), rtol=1e-4, atol=1e-6)


def test_it_is_fine_tuned(room: Path, tmp_path: Path) -> None:
    command = ["finetune", "--base", str(room / "base"), "--task", str(room / "colours.yaml")]
    assert main([*command, "--epochs", "1", "--limit", "16", "--out", str(tmp_path / "e")]) == 0
    assert open_checkpoint(tmp_path / "e").weights.keys() == {*load_file(room / "a" / FILE)}


def test_an_interrupted_run_resumes(room: Path, tmp_path: Path) -> None:
    task, few = str(room / "colours.yaml"), {"epochs": 2, "limit": 16, "progress": False}
    resumes(lambda out: harness.finetune(room / "base", task, out=out, **few), tmp_path)


def test_images_of_another_size_than_a_configuration_says_are_read(tmp_path: Path) -> None:
    """As published folders of dinov2 have it, whose positions are interpolated."""
    task, folder = colours(tmp_path), vit(tmp_path / "m", family="dinov2", image_size=12)
    command = ["evaluate", "--model", folder, "--tasks", task, "--protocols", "current"]
    assert main([*map(str, command), "--output-path", str(tmp_path / "r")]) == 0


def test_what_moves_units_is_refused_by_name(room: Path, tmp_path: Path) -> None:
    command = ["merge", room / "a", room / "b", "--base", room / "base", "--merger", "average"]
    command += ["--premerge", "permutation", "--out", tmp_path / "m"]
    refused(command, UnknownName, room.name)


#: architectures of images that rules refuse, and what is wrong with them
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "resnet": ({"depths": [1], "hidden_sizes": [8], "embedding_size": 8}, "batch"),
    "mobilenet_v2": ({"depth_multiplier": 0.2}, "batch"),
    "imagegpt": ({"n_embd": 16, "n_layer": 1, "n_head": 2}, "tokens"),
    "poolformer": ({}, "expected"),
    "deit": ({}, "expected"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_rules_do_not_fit_is_refused_by_name(kind: str) -> None:
    config, said = REFUSED[kind]
    with pytest.raises(UnknownName, match=f"^here has the architecture '{kind}', .*{said}"):
        family_of({"model_type": kind, **config}, "here")
