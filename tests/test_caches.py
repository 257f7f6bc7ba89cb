"""`harness cache`: only what the program keeps is counted, and only that is taken away."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from harness import METRICS, catalogue
from harness.caches import DAY, KINDS, cleared, entries, make_room
from harness.checkpoints import hashed
from harness.cli import main
from harness.entries import Metric
from harness.files import cache_dir, replacing
from harness.passes import cache as module
from harness.passes.cache import keep, recall
from tests.mistakes import refused

NAME = "0123456789abcdef" * 2


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with two entries of features, three days and no days old, and one digest."""
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    with_free(9 * 10**8, monkeypatch)
    for name in (NAME, NAME[::-1]):
        keep(cache_dir("features") / f"{name}.safetensors", {"x": torch.zeros(25)}, {})
    aged(cache_dir("features") / f"{NAME}.safetensors", 3)
    file = tmp_path / "file"
    file.write_text("content")
    identity = hashed.identity_of(file)
    assert identity is not None
    hashed.cache_digests(identity, {})
    return tmp_path / "cache"


def with_free(free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of 1 GB: the machine's own may be nearly full."""
    usage = type(shutil.disk_usage("."))(10**9, 10**9 - free, free)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)


def aged(path: Path, days: float) -> None:
    then = time.time() - days * DAY
    os.utime(path, (then, then))


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_what_is_kept_is_told_by_kind(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "info", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    size = sum(path.stat().st_size for path in (cache / "features").iterdir())
    assert told["folder"] == str(cache)
    assert told["kinds"]["features"] == {"entries": 2, "bytes": size}
    assert told["kinds"]["digests"]["entries"] == 1
    assert told["kinds"]["statistics"] == {"entries": 0, "bytes": 0}
    assert main(["cache", "info"]) == 0
    out = capsys.readouterr().out
    assert "in all 3 entries, 0.0 MB" in out
    assert [line.split()[3] for line in out.splitlines() if line.startswith("features")] == ["3"]


def test_old_entries_are_taken_away(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "clear", "--older-than", "2.5"]) == 0
    assert capsys.readouterr().out.startswith("cleared 1 entry, ")
    assert names(cache / "features") == [f"{NAME[::-1]}.safetensors"]
    assert len(names(cache)) == 2


def of_features(name: str, days: float) -> Path:
    """An entry of 4 MB that was used so many days ago."""
    path = cache_dir("features") / f"{name * 32}.safetensors"
    assert keep(path, {"x": torch.zeros(10**6)}, {})
    aged(path, days)
    return path


def test_what_was_used_longest_ago_goes_where_there_is_too_much(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 16 MB under a limit of 13, so that 11.7 stay: what was read today is not old."""
    a, b, c, d = (of_features(name, days) for name, days in zip("abcd", (9, 8, 7, 6), strict=True))
    assert recall(a)
    make_room()
    assert all(path.exists() for path in (a, b, c, d)), "16 MB are not 20 GB"
    monkeypatch.setenv("HARNESS_CACHE_GB", "0.013")
    make_room()
    assert [path.exists() for path in (a, b, c, d)] == [True, False, False, True]
    assert len(names(cache / "digests")) == 1


def test_a_disk_that_is_nearly_full_is_left_free(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = of_features("a", 2), of_features("b", 1)
    with_free(47 * 10**6, monkeypatch)
    make_room()
    assert [old.exists(), new.exists()] == [False, True]


def test_a_process_looks_at_the_cache_before_it_keeps_much(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = of_features("a", 2)
    monkeypatch.setenv("HARNESS_CACHE_GB", "0.001")
    monkeypatch.setattr(module, "_written", module.BYTES_BETWEEN_CHECKS)
    new = of_features("b", 1)
    assert old.exists(), "it has not written more since"
    last = of_features("c", 0)
    assert [old.exists(), new.exists(), last.exists()] == [False, False, True]


@pytest.mark.parametrize("given", ["twenty", "nan", "-1"])
@pytest.mark.filterwarnings("default:HARNESS_CACHE_GB")
def test_a_limit_that_is_no_number_is_told(
    given: str, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HARNESS_CACHE_GB", given)
    assert main(["cache", "info"]) == 0
    said = capsys.readouterr()
    assert f"HARNESS_CACHE_GB is '{given}', expected a number" in said.err
    assert "at most 20 GB" in said.out


def test_what_is_not_of_the_program_stays(cache: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / f"{NAME}.safetensors"
    elsewhere.write_text("somebody's")
    foreign = ["features/notes.txt", "features/model.safetensors", f"thesis/{NAME}.json"]
    for name in foreign:
        (cache / name).parent.mkdir(exist_ok=True)
        (cache / name).write_text("mine")
    (cache / "statistics").mkdir()
    (cache / "statistics" / elsewhere.name).symlink_to(elsewhere)
    assert main(["cache", "clear", "--all"]) == 0
    assert names(cache) == sorted([*foreign, f"statistics/{elsewhere.name}"])
    assert elsewhere.read_text() == "somebody's"
    assert not [*entries()]


def test_what_a_run_is_writing_stays_and_what_one_left_goes(cache: Path) -> None:
    left = []
    for name, days in (("a" * 32, 0.5), ("b" * 32, 2)):
        with replacing(cache / "features" / f"{name}.safetensors") as file:
            left.append(Path(file.name))
        left[-1].write_text("half")
        aged(left[-1], days)
    cleared()
    assert names(cache / "features") == [left[0].name]


def test_no_cache_is_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "none"))
    assert main(["cache", "info", "--json"]) == 0
    kinds = json.loads(capsys.readouterr().out)["kinds"]
    assert kinds == {kind: {"entries": 0, "bytes": 0} for kind in KINDS}
    assert main(["cache", "clear", "--all"]) == 0
    assert capsys.readouterr().out == "cleared 0 entries, 0.0 MB\n"
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--all", "--older-than", "3"],
        ["--older-than", "-1"],
        ["--older-than", "x"],
        ["--older-than", "nan"],
    ],
)
def test_it_has_to_be_said_what_is_cleared(flags: list[str], cache: Path) -> None:
    before = names(cache)
    refused(["cache", "clear", *flags], object)
    assert names(cache) == before


def test_every_kind_of_entry_is_known(cache: Path) -> None:
    """A folder that somebody adds to the cache is one that `clear` clears."""
    root = Path(__file__).parents[1] / "harness"
    texts = [path.read_text() for path in root.rglob("*.py")]
    asked = {part.partition('"')[0] for text in texts for part in text.split('cache_dir("')[1:]}
    assert asked - {""} == {*KINDS}


def test_a_list_is_made_once_and_anew_when_something_changes(
    cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed() -> str:
        assert main(["list", "metrics"]) == 0
        return capsys.readouterr().out

    made: list[str] = []
    plain = catalogue.catalogue
    monkeypatch.setattr(catalogue, "catalogue", lambda what: made.append(what) or plain(what))
    first = listed()
    assert "accuracy" in first
    assert listed() == first
    assert made == ["metrics"]
    ours = catalogue.files_of_ours()
    assert {path.name for path in ours} >= {"ties.py", "glue.py", "knn.py", "catalogue.py"}
    monkeypatch.setattr(catalogue, "files_of_ours", lambda: ours[1:])
    assert listed() == first
    (entry, _) = sorted((cache / "lists").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    monkeypatch.setattr(catalogue, "files_of_ours", lambda: ours)
    entry.write_text("{")
    assert listed() == first
    assert made == ["metrics"] * 3


def test_what_others_register_is_in_no_kept_list(
    cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["list", "metrics"]) == 0
    kept_lists = names(cache / "lists")
    for table in ("_values", "_origins"):
        monkeypatch.setattr(METRICS, table, dict(getattr(METRICS, table)))
    assert not METRICS.has_others
    METRICS.add(Metric("of-others", lambda predicted, labels: 0.0), "somebody.else")
    assert main(["list", "metrics"]) == 0
    assert "of-others" in capsys.readouterr().out
    monkeypatch.undo()
    monkeypatch.setenv("HARNESS_PLUGINS", str(tmp_path))
    assert METRICS.has_others
    assert names(cache / "lists") == kept_lists


def test_a_list_that_was_made_before_does_not_wait_for_torch(cache: Path) -> None:
    assert main(["list", "mergers"]) == 0
    code = (
        "import sys; from harness.cli import main; main(['list', 'mergers']); "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "task_arithmetic" in done.stdout
