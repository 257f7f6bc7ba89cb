"""What is remembered of a file's weights: every change shows, and nothing is hashed twice.

Between two openings of a file a process keeps nothing but the memory in the cache folder, so a
second evaluation stands for one in another process.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import harness
from harness import Recipe, Record, Run, StateDict, weights
from harness.checkpoints import hashed
from harness.checkpoints.open import open_checkpoint
from harness.errors import BrokenCheckpoint, BrokenRecord
from harness.evaluation import evaluate as evaluation
from harness.files import cache_dir
from harness.passes import features
from tests.mistakes import mistake
from tests.toys import THREE, TOY, known

WEIGHTS = "model.safetensors"
toys = known(TOY, THREE)


@pytest.fixture
def room(minis: Callable[[str], dict[str, Path]], tmp_path: Path) -> Path:
    """A base, two experts of two tasks and their merge, with heads kept, to be changed."""
    root = tmp_path / "room"
    for name in ("base", "a", "c"):
        shutil.copytree(minis("bert")[name], root / name)
    tasks = ("toy/pairs", "toy/three")
    experts = (str(root / "a"), str(root / "c"))
    recipe = Recipe(
        experts=experts, base=str(root / "base"), merger=harness.Choice("average"), tasks=tasks
    )
    harness.merge(recipe, out=root / "merged")
    return root


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are remembered however new they are."""
    monkeypatch.setattr(hashed, "MIN_AGE_NS", 0)


@pytest.fixture
def hashings(monkeypatch: pytest.MonkeyPatch) -> Counter[tuple[str, str]]:
    """How often each tensor of each folder was read to be hashed."""
    found: Counter[tuple[str, str]] = Counter()
    made = hashed.Hashed.__init__

    def spied(self: Any, path: Path, identity: Any, read: Callable[[str], torch.Tensor]) -> None:
        def counted(name: str) -> torch.Tensor:
            found[path.parent.name, name] += 1
            return read(name)

        made(self, path, identity, counted)

    monkeypatch.setattr(hashed.Hashed, "__init__", spied)
    return found


def read(folder: Path, **values: Any) -> list[Record]:
    known = {"output": str(folder.parent / "records"), "shots": (1,), "draws": 2}
    return harness.evaluate(Run(model=str(folder), **{**known, **values}))


def content(folder: Path) -> str:
    return weights.digest(open_checkpoint(folder).weights)


def plain(state: StateDict) -> str:
    """The digest of tensors that nothing is known of."""
    return weights.digest(dict(state.items()))


def memory() -> list[Path]:
    return sorted(cache_dir("digests").glob("*.json"))


def flip(path: Path) -> None:
    """Change the last byte of a file in its place, and set its time back."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


# Nothing twice --------------------------------------------------------------------------------


def test_every_file_is_hashed_once_and_by_the_next_process_not_at_all(
    room: Path, at_once: None, hashings: Counter[tuple[str, str]]
) -> None:
    first = read(room / "merged")
    assert {folder for folder, _ in hashings} == {"base", "a", "c", "merged", "pairs", "three"}
    # those of the base have two names: its own in merge.json, and those of its classifier
    assert {count for (folder, _), count in hashings.items() if folder != "base"} == {1}
    assert {count for (folder, _), count in hashings.items() if folder == "base"} == {2}
    hashings.clear()
    assert read(room / "merged") == first
    assert not hashings


def test_where_nothing_can_be_kept_each_file_is_hashed_once_a_run(
    room: Path, at_once: None, hashings: Counter[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = read(room / "merged", protocols=("current",))
    (room / "file").write_text("")
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(room / "file"))
    hashings.clear()
    assert read(room / "merged", protocols=("current",)) == usual
    assert {count for (folder, _), count in hashings.items() if folder != "base"} == {1}


def test_a_model_is_known_by_any_part_of_it_under_any_name(room: Path, at_once: None) -> None:
    state = open_checkpoint(room / "a").weights
    names = list(state)[3:]
    for found in (
        state,
        weights.select(state, names),
        weights.renamed(state, {f"model.{name}": name for name in names}),
        weights.union(weights.select(state, names), open_checkpoint(room / "base").weights, state),
        weights.union({"x": torch.ones(2)}, state),
    ):
        for _ in range(2):
            assert weights.digest(found) == plain(found)
            assert weights.Observed(found, "it").digest() == plain(found)


# Changes --------------------------------------------------------------------------------------


def test_a_changed_byte_shows_in_a_file_of_the_same_size_and_time(
    room: Path, at_once: None
) -> None:
    read(room / "merged", protocols=("current",))
    flip(room / "merged" / WEIGHTS)
    with mistake(BrokenCheckpoint, room / "merged", "merge.json"):
        read(room / "merged", protocols=("current",))


def test_a_changed_byte_shows_in_a_file_that_is_open(room: Path, at_once: None) -> None:
    opened = open_checkpoint(room / "a").weights
    before = weights.digest(opened)
    flip(room / "a" / WEIGHTS)
    assert weights.digest(opened) == content(room / "a") != before


def test_another_file_in_the_place_of_one_is_hashed(room: Path, at_once: None) -> None:
    before = content(room / "a")
    state = load_file(room / "a" / WEIGHTS)
    state["classifier.bias"] += 1
    save_file(state, room / "new", metadata={"format": "pt"})
    shutil.copystat(room / "a" / WEIGHTS, room / "new")
    (room / "new").replace(room / "a" / WEIGHTS)
    assert content(room / "a") == plain(state) != before


def test_a_copy_is_hashed_anew(
    room: Path, at_once: None, hashings: Counter[tuple[str, str]]
) -> None:
    before = content(room / "a")
    shutil.copytree(room / "a", room / "copy")
    assert content(room / "copy") == before
    assert {folder for folder, _ in hashings} == {"a", "copy"}


def test_nothing_is_remembered_of_a_file_that_was_just_written(room: Path) -> None:
    """A second write in the same tick of the clock would leave no trace."""
    (room / "a" / WEIGHTS).touch()
    content(room / "a")
    assert not memory()


def test_weights_that_are_not_finite_are_not_known_to_be(room: Path, at_once: None) -> None:
    state = load_file(room / "a" / WEIGHTS)
    state["classifier.bias"][0] = torch.nan
    save_file(state, room / "a" / WEIGHTS, metadata={"format": "pt"})
    assert content(room / "a") == content(room / "a") == plain(state)
    for _ in range(2):
        with mistake(BrokenCheckpoint, "classifier.bias /a NaN"):
            read(room / "a", tasks=("toy/pairs",))


def swapped(said: dict[str, Any]) -> None:
    """Another tensor's digest."""
    first, second, *_ = said["tensors"]
    said["tensors"][first] = {first: said["tensors"][second][second]}


DAMAGE: dict[str, Callable[[str], str]] = {
    "cut off": lambda text: text[:-9],
    "empty": lambda text: "",
    "another object": lambda text: "{}",
    "no digests": lambda text: json.dumps({**json.loads(text), "tensors": None}),
    "a changed digest": lambda text: (swapped(said := json.loads(text)), json.dumps(said))[1],
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_damaged_memory_is_none(how: str, room: Path, at_once: None) -> None:
    before = content(room / "a")
    (path,) = memory()
    whole = path.read_text()
    path.write_text(DAMAGE[how](whole))
    assert content(room / "a") == before
    assert path.read_text() == whole


def test_a_memory_of_another_file_is_none(room: Path, at_once: None) -> None:
    content(room / "a")
    (first,) = memory()
    text = first.read_text()
    other = content(room / "c")
    (second,) = {*memory()} - {first}
    second.write_text(text)
    assert content(room / "c") == other


# What is there is not made again --------------------------------------------------------------


def test_models_are_checked_where_something_is_to_be_computed(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = read(room / "merged", protocols=("current", "ft-classifier"))
    checked: list[str] = []
    check = evaluation.check_ready

    def spied(checkpoint: Any, **values: Any) -> None:
        checked.append(checkpoint.source)
        check(checkpoint, **values)

    monkeypatch.setattr(evaluation, "check_ready", spied)
    assert read(room / "merged", protocols=("current", "ft-classifier")) == usual
    assert not checked
    for path in (room / "records" / "merged" / "toy").glob("pairs@test/ft-classifier*"):
        path.unlink()
    assert read(room / "merged", protocols=("current", "ft-classifier")) == usual
    assert checked == [str(room / "merged"), str(room / "a")]  # who is read, and who teaches


def test_a_record_that_is_none_is_found_before_anything_is_read(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read(room / "merged", tasks=("toy/three",), protocols=("current",))
    path = next((room / "records" / "c").rglob("current-*.json"))
    path.write_text("{}")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a forward pass")

    monkeypatch.setattr(features, "one_pass", refuse)
    with mistake(BrokenRecord, "c/toy/three"):
        read(room / "merged", protocols=("current",))
