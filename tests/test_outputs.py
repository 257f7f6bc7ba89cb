"""What is written is whole or not there, and nothing that somebody has is taken for ours."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import harness
from harness.cli import main
from harness.errors import CannotWrite
from harness.files import is_unfinished, new_folder, replacing, write_files
from tests.conftest import no_file_above

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
    with new_folder(room / "one", harness.files.Layout("a merge", "merge.json", ())) as left:
        pass
    shutil.rmtree("one")
    left.symlink_to("precious")
    assert merged() == 0
    assert is_safe(room)


def test_several_files_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    first, second, third = (tmp_path / name for name in ("a.csv", "b.md", "new/c.bin"))
    first.write_text("old")
    with no_file_above(4096), pytest.raises(CannotWrite, match="new/c.bin"):
        write_files({first: "new", second: "new", third: b"x" * 5000})
    assert [path.name for path in tmp_path.rglob("*")] == ["a.csv"]
    assert first.read_text() == "old"
    write_files({first: "é", second: "new", third: b"x"})
    assert [path.read_bytes() for path in (first, second, third)] == ["é".encode(), b"new", b"x"]
    assert len(list(tmp_path.rglob("*"))) == 4


def test_a_folder_in_the_place_of_one_file_leaves_all_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "b.md").mkdir()
    with pytest.raises(CannotWrite, match="b.md"):
        write_files({tmp_path / "a.csv": "new", tmp_path / "b.md": "new"})
    assert [path.name for path in tmp_path.rglob("*")] == ["b.md"]


def test_what_a_killed_run_left_of_a_file_goes_with_the_next(tmp_path: Path) -> None:
    path = tmp_path / "record.json"
    with replacing(path) as file:
        left = Path(file.name)
        write_files({path: "{}"})
        assert left.exists()  # in use
    left.write_text("half")
    (tmp_path / ".record.json.partial").write_text("somebody's")
    write_files({path: "[]"})
    assert sorted(one.name for one in tmp_path.iterdir()) == [".record.json.partial", "record.json"]
    assert is_unfinished(left, path)
