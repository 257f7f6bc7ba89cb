"""Which records are meant: the flags that boards, pictures, comparisons and exports share."""

from __future__ import annotations

import csv
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli import main
from harness.errors import BadOption, BrokenRecord, MissingScores
from harness.hashes import joined
from tests.mistakes import refused
from tests.test_compare import read_once

LIMIT = {"settings": {"limit": 50}, "rows": 50}


def source(digest: str) -> dict[str, str]:
    return {"source": f"runs/{digest[1:]}", "digest": digest}


def study(folder: Path, run: str = "1", *, names: Callable[[str], str] = str) -> Path:
    """Two merges that kept the heads of two experts, and these, under one protocol."""
    for seed, task in enumerate(("toy/a", "toy/b")):
        expert = {"role": "expert", "method": "expert", "digest": f"{run}expert of {task}"}
        read_once(folder, names(task[-1]), task, 0.1, seed=seed, **expert)
        base = {"role": "base", "method": "base", "digest": f"{run}base under {task}"}
        read_once(folder, "base", task, 0.4, seed=seed, **base)
        experts = [source(f"{run}expert of toy/{name}") for name in "ab"]
        for merge, wrong in (("ties", 0.2), ("average", 0.25)):
            about: dict[str, Any] = {"method": merge, "digest": f"{run}{merge} under {task}"}
            about |= {"experts": experts, "base": source("base"), "head": "kept"}
            read_once(folder, names(merge), task, wrong, seed=seed, **about)
    return folder


def trial(folder: Path) -> Path:
    """A study, and one merge that somebody tried on fifty rows."""
    study(folder)
    read_once(folder, "ties", "toy/a", 0.2, method="ties", **LIMIT)
    return folder


def board(records: Path, *flags: str, status: int = 0) -> dict[str, list[str]]:
    """By row, the tasks of a board's cells."""
    out = records.parent / "board"
    assert main(["leaderboard", str(records), f"--out={out}", *flags]) == status
    rows: dict[str, list[str]] = {}
    with (out / "board.csv").open() as file:
        for line in csv.DictReader(file):
            rows.setdefault(line["row"], []).append(f"{line['task']}@{line['split']}")
    return rows


def doors(records: Path, out: Path) -> list[list[str]]:
    place = str(records)
    return [
        ["leaderboard", place, f"--out={out}/board"],
        ["plot", "protocols", place, f"--out={out}/protocols"],
        ["plot", "ranks", place, f"--out={out}/ranks"],
        ["compare", "ties", "average", f"--records={place}"],
    ]


# Flags ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("door", range(4))
def test_one_trial_run_blocks_nothing(door: int, tmp_path: Path) -> None:
    """The refusal names the flag that helps."""
    records = trial(tmp_path / "records")
    command = doors(records, tmp_path)[door]
    refused(command, BrokenRecord, "--limit 50 --limit all")
    assert main([*command, "--limit", "all", *(["--protocols", "current"])]) in (0, 2)
    refused([*command, "--limit", "7"], MissingScores, "limit 7 50")
    refused([*command, "--limit", "x"], BadOption, "--limit x")


def test_a_board_of_what_was_chosen(tmp_path: Path) -> None:
    records = trial(tmp_path / "records")
    whole = board(records, "--limit=all")
    both = ["toy/a@test", "toy/b@test"]
    assert whole == dict.fromkeys(("expert of the task", "base", "average", "ties"), both)
    assert board(records, "--limit=50") == {"ties": ["toy/a@test"]}
    (shown,) = {*map(tuple, board(records, "--limit=all", "--tasks=b").values())}
    assert shown == ("toy/b@test",)
    some = board(records, "--limit=all", "--models=ties")
    assert {*some} == {"expert of the task", "base", "ties"}
    command = ["leaderboard", str(records), f"--out={tmp_path}/none"]
    for flag, known in (("tasks", "toy/a@test"), ("protocols", "current"), ("models", "base")):
        refused([*command, f"--{flag}=odd"], MissingScores, flag[:-1], "odd", known)
    refused([*command, "--limit=50", "--tasks=toy/b"], MissingScores, "task limit")
    assert not (tmp_path / "none").exists()


def test_all_commands_mean_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = trial(tmp_path / "records")
    flags = ["--tasks=toy/a", "--protocols=current", "--limit=all"]
    compare = ["compare", "--models=ties,average", f"--records={records}", "--json", *flags]
    capsys.readouterr()
    assert main(compare) == 0
    made = json.loads(capsys.readouterr().out)
    assert [(one["task"], one["rows"]) for one in made["tasks"]] == [("toy/a@test", 200)]
    export = ["export", str(records), "--format=csv", f"--out={tmp_path}", *flags]
    assert main([*export, "--models=ties"]) == 0
    with (tmp_path / "records.csv").open() as file:
        read = [(one["model"], one["task"], one["rows"]) for one in csv.DictReader(file)]
    assert read == [(name, "toy/a", "200") for name in ("a", "base", "ties")]
    plot = ["plot", "protocols", str(records), f"--out={tmp_path}/fig", "--limit=50"]
    refused(plot, MissingScores, "current and another")


# Two sets of experts --------------------------------------------------------------------------


def test_a_study_made_twice_is_no_board(tmp_path: Path) -> None:
    records = study(study(tmp_path / "records", "1"), "2")
    for command in doors(records, tmp_path)[:2]:
        said = refused(command, BrokenRecord, "two sets of experts a toy/a@test folder")
        assert "--models" not in said


def test_merges_of_one_set_are_chosen_by_name(tmp_path: Path) -> None:
    """And their experts with them."""
    records = study(tmp_path / "records", "1")
    again = study(tmp_path / "again", "2", names=lambda name: name + "2" * (len(name) > 1))
    command = ["leaderboard", str(records), str(again), f"--out={tmp_path}/board"]
    refused(command, BrokenRecord, "--models average,ties --models average2,ties2")
    assert main([*command, "--models", "average,ties"]) == 0
    with (tmp_path / "board" / "board.csv").open() as file:
        rows = [line for line in csv.DictReader(file) if line["role"] == "expert"]
    assert [line["record"].partition("/records/")[1] for line in rows] == ["/records/"] * 2


def test_what_others_are_measured_by_goes_with_them(tmp_path: Path) -> None:
    """An ensemble of other experts, and what stands on tasks that no chosen model has."""
    records = study(tmp_path / "records")
    experts = [f"2expert of toy/a {number}" for number in (1, 2)]
    about: dict[str, Any] = {"method": "ties", "digest": "2", "base": source("base")}
    about |= {"experts": [source(one) for one in experts]}
    read_once(records, "alike", "toy/a", 0.2, **about)
    for one in experts:
        read_once(records, one[-1], "toy/a", 0.1, role="expert", method="expert", digest=one)
    read_once(
        records,
        "ensemble",
        "toy/a",
        0.1,
        role="ensemble",
        method="ensemble",
        digest=joined(experts),
    )
    read_once(records, "plain", "toy/b", 0.3, method="given", digest="3")
    assert "logit ensemble" in board(records, "--models=alike")
    assert {*board(records, "--models=ties")} == {"expert of the task", "base", "ties"}
    (shown,) = {*map(tuple, board(records, "--models=plain").values())}
    assert shown == ("toy/b@test",)


def test_merges_of_other_experts_are_whole_rows(tmp_path: Path) -> None:
    """Heads that were kept give each task its own weights: the experts are one set for all."""
    records = study(tmp_path / "records", "1")
    study(records, "2", names=lambda name: f"{name}2" if len(name) == 1 else name)
    rows = board(records)
    both = ["toy/a@test", "toy/b@test"]
    merges = {row: tasks for row, tasks in rows.items() if row.startswith(("ties", "average"))}
    assert len(merges) == 4
    assert all(" (experts " in row and tasks == both for row, tasks in merges.items())


# What is no record ----------------------------------------------------------------------------


def test_what_is_no_record_is_left_out_and_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = study(tmp_path / "records")
    expected = board(records)
    (records / "README.md").write_text("records of mine")
    (records / "picture.png").write_bytes(b"\x89PNG\r\n\xff\xfe")
    (records / "results.json").write_text(json.dumps({"results": {}, "versions": {}}))
    (records / "list.json").write_text("[1, 2]")
    (records / "binary.json").write_bytes(bytes(range(256)))
    (records / "folder.json").mkdir()
    (records / "empty.json").touch()
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert main(["leaderboard", str(records), f"--out={records}"]) == 0, "a board among them"
        assert board(records) == expected
        said = " ".join(capsys.readouterr().err.split())
        assert all(f"{name}.json" in said for name in ("binary", "empty", "list"))
        places = [str(path) for path in sorted(records.iterdir())]
        assert main(["leaderboard", *places, f"--out={tmp_path}/each"]) == 0
    assert (tmp_path / "each" / "board.csv").read_text().count("\n") == 9
    alone = ["leaderboard", str(records / "binary.json"), f"--out={tmp_path}/none"]
    said = refused(alone, BrokenRecord, "binary.json")
    assert "utf-8" not in said


def test_a_part_of_a_record_is_no_other_file(tmp_path: Path) -> None:
    """Nothing is lost without a word: whatever it is called, it is refused."""
    records = study(tmp_path / "records")
    path = next(records.rglob("*.json"))
    whole = path.read_bytes()
    for part, name in ((whole[:300], "mine.json"), (whole[:-9], "mine.json"), (b"", path.name)):
        path.unlink()
        path = path.with_name(name)
        path.write_bytes(part)
        refused(["leaderboard", records, f"--out={tmp_path}/board"], BrokenRecord, path)


def test_another_program_may_speak_of_protocols(tmp_path: Path) -> None:
    """One word is no mark of a record: settings of a server have it, too."""
    records = study(tmp_path / "records")
    expected = board(records)
    (records / "server.json").write_text(json.dumps({"protocol": "http", "port": 80}))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert board(records) == expected


def test_a_task_is_named_with_its_split_and_without_its_suite(tmp_path: Path) -> None:
    records = study(tmp_path / "records")
    rows = board(records, "--tasks", "a@test")
    assert {task for tasks in rows.values() for task in tasks} == {"toy/a@test"}


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b'{"adaptation": null, "ba', "JSON line 1 column"),
        (b"", "JSON Expecting value"),
        (b"\x80\x81", "utf-8 0x80"),
    ],
)
def test_what_spoils_a_record_is_said_in_plain_words(
    content: bytes, fault: str, tmp_path: Path
) -> None:
    path = next(study(tmp_path / "records").rglob("*.json"))
    path.write_bytes(content)
    command = ["leaderboard", path.parent, f"--out={tmp_path}/board"]
    refused(command, BrokenRecord, path, fault)
