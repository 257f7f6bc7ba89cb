"""What is written is whole or not there, and nothing that somebody has is taken for ours."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import harness
from harness.cli import main
from harness.errors import BrokenCheckpoint, CannotWrite, OutputExists
from harness.files import replacing, write_files
from harness.folders import Layout, new_folder
from harness.training.resumed import UNFINISHED
from harness.unfinished import is_unfinished, make_folder, new
from tests.conftest import no_file_above
from tests.mistakes import mistake, refused

MINIATURES = Path(harness.__file__).parent / "checking" / "miniatures"
Minis = Callable[[str], dict[str, Path]]


@pytest.fixture
def room(minis: Minis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two experts of one task, and somebody's files."""
    for name in ("a", "b"):
        shutil.copytree(minis("bert")[name], tmp_path / name)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years of work")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def merged(*more: str) -> int:
    return main(["merge", "a", "b", "--merger", "average", "--out", "one", *more])


def is_safe(room: Path) -> bool:
    return (room / "precious" / "thesis.txt").read_text() == "years of work"


# Names of what is not whole ----------------------------------------------------------------


@pytest.mark.parametrize("name", [".one.partial", ".one.old", ".one.lock", "one.unfinished"])
def test_a_link_beside_an_output_is_nobodys_and_stays(room: Path, name: str) -> None:
    (room / name).symlink_to("precious")
    assert merged() == 0
    assert is_safe(room)
    assert (room / name).is_symlink()


@pytest.mark.parametrize("name", [".one.partial", ".one.0123456789abcdef.partial"])
def test_a_folder_beside_an_output_is_nobodys_and_stays(room: Path, name: str) -> None:
    shutil.copytree("precious", name)
    assert merged() == 0
    assert (room / name / "thesis.txt").is_file()


def test_a_link_where_a_killed_run_was_is_not_followed(room: Path) -> None:
    with new_folder(room / "one", Layout("a merge", "merge.json")) as left:
        pass
    shutil.rmtree("one")
    left.symlink_to("precious")
    assert merged() == 0
    assert is_safe(room)


def test_several_files_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("a.csv", "b.md", "new/c.bin"))
    first.write_text("old")
    with no_file_above(4096), mistake(CannotWrite, "/new/c"):
        write_files({first: "new", second: "new", third: b"x" * 5000}.items())
    assert [path.name for path in tmp_path.rglob("*")] == ["a.csv"]
    assert first.read_text() == "old"
    write_files({first: "é", second: "new", third: b"x"}.items())
    assert [path.read_bytes() for path in (first, second, third)] == ["é".encode(), b"new", b"x"]
    assert len(list(tmp_path.rglob("*"))) == 4


def test_a_folder_in_the_place_of_one_file_leaves_all_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "b.md").mkdir()
    with mistake(CannotWrite, "/b"):
        write_files({tmp_path / "a.csv": "new", tmp_path / "b.md": "new"}.items())
    assert [path.name for path in tmp_path.rglob("*")] == ["b.md"]


def test_what_a_killed_run_left_of_a_file_goes_with_the_next(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    with replacing(path) as file:
        left = Path(file.name)
        write_files({path: "{}"}.items())
        assert left.exists()  # in use
    left.write_text("half")
    (tmp_path / ".record.json.partial").write_text("somebody's")
    write_files({path: "[]"}.items())
    assert sorted(one.name for one in tmp_path.iterdir()) == [".record.json.partial", "record.json"]
    assert is_unfinished(left, path)


# What is ours in a folder ------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["README.md", "merge.json", "config.json", "model.safetensors", "heads/mine/model.safetensors",
     "notes.txt", "vocab.txt", "model-00001-of-00002.safetensors"],
)  # fmt: skip
def test_force_replaces_what_merge_json_lists_and_nothing_else(room: Path, name: str) -> None:
    assert merged() == 0
    path = room / "one" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if name == "merge.json":
        path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    else:
        with path.open("ab") as file:
            file.write(b"mine")
    before = contents(room / "one")
    line = refused(lambda: merged("--force"), OutputExists)
    assert name in line
    assert contents(room / "one") == before


def test_force_removes_no_link_of_somebody(room: Path) -> None:
    assert merged() == 0
    (room / "one" / "heads").symlink_to(room / "precious")
    (room / "one" / "README.md").rename(room / "card")
    (room / "one" / "README.md").symlink_to(room / "card")
    assert merged("--force") == 2
    (room / "one" / "heads").unlink()
    assert merged("--force") == 2
    (room / "one" / "README.md").unlink()  # what is not there is no loss
    assert merged("--force") == 0
    assert is_safe(room)


def test_an_older_folder_that_lists_nothing_stays(room: Path) -> None:
    assert merged() == 0
    edited(room / "one" / "merge.json", lambda said: said.pop("files"))
    refused(lambda: merged("--force"), OutputExists)


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "added_tokens.json", "heads/glue/rte/config.json",
             "heads/glue/rte/model.safetensors", "heads/glue/wnli/config.json"]
)  # fmt: skip
def test_a_merge_that_was_edited_is_not_read(
    room: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["merge", "a", "b", "--merger", "average", "--tasks", "glue/rte,glue/qnli"]
    assert main([*asked, "--out", "one"]) == 0
    path = room / "one" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".safetensors":
        state = {name: tensor + 1 for name, tensor in load_file(path).items()}
        save_file(state, path, metadata={"format": "pt"})
    else:
        path.write_bytes((path.read_bytes() if path.is_file() else b"{}") + b" ")
    capsys.readouterr()
    commands = [["evaluate", "--model", "one"], ["merge", "one", "a", "--out", "two"]]
    for command in commands[: 1 if name.endswith(".safetensors") else 2]:  # no head is merged
        refused(command, BrokenCheckpoint, name, "merge.json merge.json")
    (room / "one" / "merge.json").unlink()
    assert main(["inspect", "one", "a"]) == 0 or "merge.json" not in capsys.readouterr().err


@pytest.mark.parametrize("key", ["digest", "files"])
def test_a_merge_that_does_not_say_what_it_holds_is_not_complete(room: Path, key: str) -> None:
    assert merged() == 0
    edited(room / "one" / "merge.json", lambda said: said.pop(key))
    refused(
        ["evaluate", "--model", "one", "--tasks", "glue/rte"], BrokenCheckpoint, "merge.json", key
    )


def edited(path: Path, change: Callable[[Any], object]) -> None:
    said = json.loads(path.read_text())
    change(said)
    path.write_text(json.dumps(said))


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Records and trainings ---------------------------------------------------------------------


def test_a_linked_folder_in_an_output_is_not_written_to(room: Path) -> None:
    (room / "records").mkdir()
    (room / "records" / "comparison").symlink_to(room / "precious")
    command = ["evaluate", "--model", str(MINIATURES / "comparison"), "--limit", "8"]
    command += ["--protocols", "current", "--output-path", "records"]
    refused(command, OutputExists, "records/comparison", room / "precious")
    assert [path.name for path in (room / "precious").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("way", ["link", "foreign request", "linked checkpoint", "own checkpoint"])
def test_a_training_goes_on_in_a_folder_of_its_own_alone(
    room: Path, minis: Minis, way: str
) -> None:
    place = room / "one.unfinished"
    if way == "link":
        place.symlink_to("precious")
    else:
        place.mkdir()
        (place / "request.json").write_text("{}")
    if way == "linked checkpoint":
        UNFINISHED.write(place, {"base": "base"})
        (place / "checkpoint-7").symlink_to(room / "precious")
    elif way == "own checkpoint":
        UNFINISHED.write(place, {"base": "base"})
        shutil.copytree("precious", place / "checkpoint-7")
    before = contents(room)
    base = str(minis("bert")["base"])
    command = ["finetune", "--base", base, "--task", "embedded/comparison", "--limit", "16"]
    refused([*command, "--epochs", "1", "--out", "one"], OutputExists, "one.unfinished")
    assert contents(room) == before


def test_a_place_where_nothing_can_be_made_is_an_error_and_no_loop(tmp_path: Path) -> None:
    """As below /proc, where a folder is not found that nobody made."""

    def make(path: Path) -> int:
        raise FileNotFoundError(path)

    with pytest.raises(FileNotFoundError):
        new(tmp_path / "out", make)
    made, number = new(tmp_path / "out", make_folder)
    assert made.is_dir()
    os.close(number)
