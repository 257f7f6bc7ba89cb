"""Links that lead out of a model: what of a folder may be one, and where it may lead."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from harness.cli import main
from harness.errors import BrokenCheckpoint
from tests.conftest import model
from tests.mistakes import refused
from tests.test_adapters import adapter

Minis = Callable[[str], dict[str, Path]]
WEIGHTS = "model.safetensors"
TOLD = ("tokenizer.json", "tokenizer_config.json", "config.json")


def moved(path: Path, elsewhere: Path) -> None:
    """What stands at a path, with a link to it there."""
    elsewhere.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(path, elsewhere)
    path.symlink_to(elsewhere)


def merged(out: Path, *experts: Path) -> int:
    command = ["merge", *map(str, experts), "--merger", "average", "--tasks", "glue/rte"]
    return main([*command, "--out", str(out)])


@pytest.mark.parametrize("name", TOLD)
@pytest.mark.parametrize("above", ["plain", "snapshots", "models--me--a/snapshots"])
def test_what_a_folder_says_is_no_link_to_elsewhere(
    above: str, name: str, minis: Minis, tmp_path: Path
) -> None:
    """Below a folder called `snapshots`, a link out of the model was followed and copied."""
    folder = Path(shutil.copytree(minis("bert")["a"], tmp_path / above / "a"))
    moved(folder / name, tmp_path / above.partition("/")[0] / "secret")
    other = minis("bert")["b"]
    secret = tmp_path / above.partition("/")[0] / "secret"
    refused(lambda: merged(tmp_path / "m", folder, other), BrokenCheckpoint, folder / name, secret)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    "place", ["blobs/../secret", "refs/main", "snapshots/other/x", "blobs/deep/x"]
)
def test_a_snapshot_leads_to_its_blobs_alone(place: str, minis: Minis, tmp_path: Path) -> None:
    store = tmp_path / "models--me--a"
    folder = Path(shutil.copytree(minis("bert")["a"], store / "snapshots" / "abc"))
    (store / "blobs").mkdir()
    target = store / place
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(folder / "tokenizer.json", target)
    (folder / "tokenizer.json").symlink_to(Path("../..") / place)
    link, other = folder / "tokenizer.json", minis("bert")["b"]
    refused(lambda: merged(tmp_path / "m", folder, other), BrokenCheckpoint, link, target.resolve())


@pytest.mark.parametrize("whole", ["blobs", "a blob"])
def test_blobs_that_are_links_themselves_lead_nowhere(
    whole: str, minis: Minis, tmp_path: Path
) -> None:
    store = tmp_path / "models--me--a"
    folder = Path(shutil.copytree(minis("bert")["a"], store / "snapshots" / "abc"))
    (tmp_path / "home").mkdir()
    shutil.move(folder / "tokenizer.json", tmp_path / "home" / "f00")
    if whole == "blobs":
        (store / "blobs").symlink_to(tmp_path / "home")
    else:
        (store / "blobs").mkdir()
        (store / "blobs" / "f00").symlink_to(tmp_path / "home" / "f00")
    (folder / "tokenizer.json").symlink_to("../../blobs/f00")
    other = minis("bert")["b"]
    refused(lambda: merged(tmp_path / "m", folder, other), BrokenCheckpoint, "home/f00")


def test_the_cache_of_the_hub_is_read_and_so_are_links_to_weights(
    minis: Minis, tmp_path: Path
) -> None:
    store = tmp_path / "models--me--a"
    folder = Path(shutil.copytree(minis("bert")["a"], store / "snapshots" / "abc"))
    (store / "blobs").mkdir()
    for number, name in enumerate((*TOLD, WEIGHTS)):
        shutil.move(folder / name, store / "blobs" / f"f{number}")
        (folder / name).symlink_to(f"../../blobs/f{number}")
    other = Path(shutil.copytree(minis("bert")["b"], tmp_path / "b"))
    moved(other / WEIGHTS, tmp_path / "disk" / "weights")
    moved(other / "tokenizer.json", other / "words.json")
    assert merged(tmp_path / "m", folder, other) == 0
    assert not any(path.is_symlink() for path in (tmp_path / "m").iterdir())
    first, second = (load_file(one / WEIGHTS) for one in (folder, other))
    name = "classifier.bias"
    mean = (first[name] + second[name]) / 2
    assert load_file(tmp_path / "m" / WEIGHTS)[name].allclose(mean)


@pytest.mark.parametrize("part", ["heads", "heads/glue/rte", "heads/glue/rte/config.json"])
def test_kept_heads_are_in_the_merge(part: str, minis: Minis, tmp_path: Path) -> None:
    known = minis("bert")
    command = ["merge", str(known["a"]), str(known["c"]), "--merger", "average", "--heads", "keep"]
    assert main([*command, "--tasks", "glue/rte,glue/mnli", "--out", str(tmp_path / "m")]) == 0
    moved(tmp_path / "m" / part, tmp_path / "elsewhere" / "it")
    link, there = tmp_path / "m" / part, tmp_path / "elsewhere" / "it"
    refused(["evaluate", "--model", tmp_path / "m"], BrokenCheckpoint, link, there)


@pytest.mark.parametrize("name", ["merge.json", "adapter_config.json"])
def test_records_and_adapters_are_no_links_to_elsewhere(name: str, tmp_path: Path) -> None:
    base = model(tmp_path / "base")
    folder = adapter(tmp_path / "a", base)
    if name == "merge.json":
        folder = model(tmp_path / "m", ["no", "yes"])
        (folder / name).write_text(json.dumps({"method": "average"}))
    moved(folder / name, tmp_path / "elsewhere" / name)
    command = ["evaluate", "--model", folder, "--tasks", "glue/rte"]
    refused(command, BrokenCheckpoint, folder / name, tmp_path / "elsewhere" / name)
