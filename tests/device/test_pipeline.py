"""Whole commands on a device: what they leave is what they leave on the processor."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import harness
from harness import Checkpoint, Recipe, Rows
from harness.checkpoints.build import build_model
from harness.checkpoints.open import open_checkpoint
from harness.cli import main
from harness.data.rows import load_rows
from harness.data.splits import parse_task
from harness.errors import BadOption
from harness.merging.merge import merge
from harness.passes.features import forward
from harness.passes.placement import Placement
from harness.passes.statistic_file import read_statistic
from tests.device.standin import DEVICE, NAME, counted
from tests.images import colours, vit
from tests.mistakes import mistake
from tests.t5 import t5
from tests.toys import TOY, registered

pytestmark = [pytest.mark.device, pytest.mark.usefixtures("toys_known")]
FAMILIES = ["bert", "roberta", "distilbert", "deberta-v2", "electra", "modernbert", "mpnet"]
OTHERS: dict[str, Callable[[Path], Path]] = {
    "t5": lambda folder: t5(folder, ["no", "yes"], near=t5(folder.parent / "base"), seed=1),
    "vit": lambda folder: vit(folder, seed=1),
}
Loud = Callable[..., Path]


@pytest.fixture
def toys_known() -> Iterator[None]:
    with registered(TOY):
        yield


@pytest.fixture(autouse=True)
def _without_inference_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of whose tensors torch makes no wrappers."""
    monkeypatch.setattr(torch, "inference_mode", torch.no_grad)


# Models ------------------------------------------------------------------------------------


def assert_near(checkpoint: Checkpoint, rows: Rows, dtype: Any) -> None:
    """Features and outputs on the device are those of the processor."""
    here = forward(checkpoint, rows, max_length=40, placement=Placement(device="cpu", dtype=dtype))
    with counted() as done:
        placed = Placement(device=NAME, dtype=dtype)
        there = forward(checkpoint, rows, max_length=40, placement=placed)
    assert done.total() > 50
    for one, other in zip(here[:2], there[:2], strict=True):
        bound = 1e-5 if dtype == "float32" else 2**-4
        np.testing.assert_allclose(one, other, rtol=0, atol=bound * np.abs(one).max())


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_features_are_those_of_the_processor(family: str, dtype: Any, loud: Loud) -> None:
    assert_near(open_checkpoint(loud(family)), load_rows(TOY, "test"), dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", OTHERS)
def test_features_of_images_and_of_two_stacks_are(family: str, dtype: Any, tmp_path: Path) -> None:
    made = OTHERS[family](tmp_path / family)
    task = parse_task(colours(tmp_path))[0] if family == "vit" else TOY
    assert_near(open_checkpoint(made), load_rows(task, "test"), dtype)


def test_weights_are_put_where_the_model_is_made(loud: Loud) -> None:
    checkpoint = open_checkpoint(loud("bert"))
    made = build_model(checkpoint.config, checkpoint.weights, "it", device=DEVICE)
    parts = [*made.parameters(), *made.buffers()]
    assert {one.device for one in parts} == {DEVICE}
    state = checkpoint.weights
    for name, tensor in made.state_dict().items():
        assert torch.equal(tensor.cpu(), state[name]), name


@pytest.mark.parametrize("need", ["gram:examples=8", "fisher:examples=4"])
def test_statistics_are_those_of_the_processor(
    need: str, loud: Loud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for device in ("cpu", NAME):
        monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / f"{device}-cache"))
        out = tmp_path / f"{device}.safetensors"
        with counted() as done:
            harness.statistic(loud("bert"), task=TOY.name, need=need, out=out, device=device)
        assert (done.total() > 100) == (device == NAME)
        made.append(read_statistic(out).tensors)
    for name in made[0]:
        torch.testing.assert_close(made[1][name], made[0][name], rtol=1e-4, atol=1e-5)


# Merges ------------------------------------------------------------------------------------

RECIPES: dict[str, dict[str, Any]] = {
    "average": {"merger": "average"},
    "regmean": {"merger": "regmean:examples=8"},
    "regmean_plus_plus": {"merger": "regmean_plus_plus:examples=8"},
    "fisher": {"merger": "fisher:examples=4"},
    "soup": {"merger": "soup", "tune_on": (f"{TOY.name}@heldout10",)},
    "adamerging": {"merger": "adamerging:by=task,steps=2,examples=8,batch_size=4"},
    "procrustes, lines": {"merger": "ties", "premerge": ("procrustes",), "postmerge": ("lines",)},
    "permutation, dare": {"merger": "average", "premerge": ("permutation", "dare")},
    "matching": {"merger": "average", "premerge": ("cca:examples=8",)},
}


@pytest.mark.filterwarnings("ignore:.* drove the experts apart:UserWarning")
@pytest.mark.parametrize("called", RECIPES)
def test_a_merge_is_that_of_the_processor(
    called: str, loud: Loud, minis: Any, tmp_path: Path
) -> None:
    experts = [str(loud("bert", which)) for which in ("a", "b")]
    states, records = [], []
    for device in ("cpu", NAME):
        recipe = Recipe(
            experts=tuple(experts), base=str(minis("bert")["base"]), tasks=(TOY.name,),
            heads="average", merge_device=device, device=device, **RECIPES[called],
        )  # fmt: skip
        with counted() as done:
            merge(recipe, out=tmp_path / device)
        assert (done.total() > 100) == (device == NAME)
        states.append(load_file(tmp_path / device / "model.safetensors"))
        records.append(json.loads((tmp_path / device / "merge.json").read_text()))
    assert [one.get("merge_device") for one in records] == [None, NAME]
    assert states[0].keys() == states[1].keys()
    for name, tensor in states[0].items():
        torch.testing.assert_close(states[1][name], tensor, rtol=1e-4, atol=1e-5)


def test_a_scale_is_tuned_along_a_direction_of_the_device(
    loud: Loud, minis: Any, tmp_path: Path
) -> None:
    """The flag, and candidates that are scored where models run: the processor here."""
    chosen = []
    for device in ("cpu", NAME):
        out = tmp_path / device
        given = [str(loud("bert", "a")), str(loud("bert", "b")), "--out", str(out)]
        asked = ["--base", str(minis("bert")["base"]), "--merger", "tsv", "--tasks", TOY.name]
        tuned = ["--tune", "scale=0.5:1.5:0.5", "--heads", "average", "--device", "cpu"]
        assert main(["merge", *given, *asked, *tuned, "--merge-device", device]) == 0
        chosen.append(json.loads((out / "merge.json").read_text())["tuned"])
    assert chosen[0] == chosen[1]


def test_a_device_that_is_not_there_is_refused(minis: Any, tmp_path: Path) -> None:
    recipe = Recipe(experts=(str(minis("bert")["a"]),), merge_device="cuda:7")
    with mistake(BadOption, "merge_device", "cuda:7"):
        merge(recipe, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


# Evaluation -------------------------------------------------------------------------------


def test_records_are_those_of_the_processor(
    minis: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = []
    for device in ("cpu", NAME):
        out = tmp_path / device
        monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / f"{device}-cache"))
        asked = ["--model", str(minis("bert")["a"]), "--tasks", TOY.name, "--protocols", "current"]
        with counted() as done:
            assert main(["evaluate", *asked, "--device", device, "--output-path", str(out)]) == 0
        assert (done.total() > 50) == (device == NAME)
        (record,) = (json.loads(one.read_text()) for one in out.rglob("*.json"))
        values.append(record["scores"])
    assert values[0] == values[1]
