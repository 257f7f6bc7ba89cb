"""The script that makes the committed boards anew, and those that it calls.

What the studies themselves make is tried whole, on made-up rows, by `make test-studies`.
"""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.evaluation.packs import unpack

ROOT = Path(__file__).parents[1]
BOARDS = ROOT / "leaderboards"
SCRIPT = BOARDS / "reproduce.sh"
STUB = """#!/usr/bin/env bash
# says what it was asked for, and leaves what marks a folder as made
echo "$(basename "$0") $*" >> "$ASKED"
[ -z "$FAILS" ] || [[ "$*" != *"$FAILS"* ]] || exit "$STATUS"
case $1 in finetune) made=expert.json ;; merge) made=merge.json ;; *) exit 0 ;; esac
while [ "$1" != --out ]; do shift; done
mkdir -p "$2" && touch "$2/$made"
"""
EXPERTS = 10 + 5 + 33 + 9 + 4 + 7
"""Of same-task, of all studies of textcls, of premerge, ner, emotion and vision."""
EVALUATED = 22 + 10 + 18 + 9 + 30 + 20 + 43
"""The same, but that premerge.py does its own; of different-tasks, protocols and shots."""
MERGED = EVALUATED - (5 + 9 + 10)
"""Less what was merged for another study: by protocols, by shots, and by emotion out of domain."""

if not SCRIPT.is_file():
    pytest.skip("boards are no part of the source distribution", allow_module_level=True)

Script = Callable[..., tuple[subprocess.CompletedProcess[str], list[str]]]


@pytest.fixture
def reproduce(tmp_path: Path) -> Script:
    """The script with the given arguments, where `harness` and `python` do nothing."""
    commands = tmp_path / "commands"
    commands.mkdir()
    for name in ("harness", "python"):
        (commands / name).write_text(STUB)
        (commands / name).chmod(0o755)
    (tmp_path / "out" / "experts" / "all-MiniLM-L6-v2").mkdir(parents=True)

    def run(
        *given: str, fails: str = "", status: int = 2
    ) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        asked = tmp_path / "asked"
        asked.write_text("")
        done = subprocess.run(
            [SCRIPT, "--out", tmp_path / "out", *given],
            env={
                **os.environ,
                "PATH": f"{commands}:{os.environ['PATH']}",
                "HARNESS_DATA_DIR": str(tmp_path),
                "ASKED": str(asked),
                "FAILS": fails,
                "STATUS": str(status),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        return done, asked.read_text().splitlines()

    return run


def test_all_studies_are_made_in_a_folder_of_their_own(reproduce: Script, tmp_path: Path) -> None:
    done, asked = reproduce()
    assert (done.returncode, done.stderr) == (0, "")
    count = [line.split()[1] for line in asked].count
    assert [count(one) for one in ("finetune", "merge", "evaluate")] == [EXPERTS, MERGED, EVALUATED]
    assert sum("premerge.py" in line for line in asked) == 11
    boards = sorted(path.parent.name for path in BOARDS.glob("*/board.csv"))
    lines = [line for line in asked if line.startswith("harness leader")]
    made = [line.rpartition("/")[2] for line in lines]
    assert sorted(made[:-1]) == boards
    assert "--each" in lines[-1]
    for line in asked:
        program, _, words = line.partition(" ")
        if program == "python":
            words = words.partition(" ")[2]  # but for the script
        for place in ("leaderboards", "docs", "experts", "merged", "records"):
            assert not any(word.startswith(f"{place}/") for word in words.split()), line
        assert str(tmp_path / "out") in words, line


def test_what_was_made_is_kept(reproduce: Script) -> None:
    reproduce("same-task")
    _, asked = reproduce("same-task")
    assert {line.split()[1] for line in asked} == {"evaluate", "records", "leaderboard"}


def test_a_study_that_fails_does_not_stop_the_next(reproduce: Script) -> None:
    done, asked = reproduce("ner", "emotion", fails="merged/conll2003-ties")
    assert done.returncode == 3
    assert "failed: ner; what was made is kept in" in done.stderr
    boards = [line for line in asked if line.startswith("harness leaderboard")]
    assert [line.rpartition("/")[2] for line in boards] == ["emotion", "emotion-ood"]


def test_ctrl_c_stops_all(reproduce: Script) -> None:
    done, asked = reproduce("ner", "emotion", fails="merged/conll2003-ties", status=130)
    assert done.returncode == 130
    assert not any("emotion" in line for line in asked)


@pytest.mark.parametrize("given", [["nre"], ["--toy", "ner"]])
def test_what_it_does_not_know_is_said_before_work(reproduce: Script, given: list[str]) -> None:
    done, asked = reproduce(*given)
    assert (done.returncode, asked) == (2, [])
    assert len(done.stderr.splitlines()) == 1


# The scripts beside it ---------------------------------------------------------------------


Runner = Callable[..., tuple[int, str]]


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Runner:
    """A script beside it, with arguments: its exit status, and all that it said."""
    monkeypatch.syspath_prepend(BOARDS)

    def run(name: str, *given: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", [name, *map(str, given)])
        status: object = 0
        try:
            runpy.run_path(str(BOARDS / name), run_name="__main__")
        except SystemExit as ended:
            status = ended.code
        said = "".join(capsys.readouterr())
        return (status, said) if isinstance(status, int) else (1, f"{said}{status}\n")

    return run


@pytest.mark.parametrize(
    ("name", "lacks"),
    [
        ("gains.py", "records/premerge"),
        ("differences.py", "records/shots"),
        ("tables.py", "protocols/board.csv is missing"),
    ],
)
def test_what_is_missing_is_one_line(ran: Runner, name: str, lacks: str, tmp_path: Path) -> None:
    status, said = ran(name, tmp_path)
    assert status
    assert lacks in said
    assert len(said.splitlines()) == 1
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "study", "models"),
    [
        ("gains.csv", "premerge", ["mrpc-average", "mrpc-dare-average"]),
        ("gains.csv", "premerge", ["mrpc-dare-average"]),
        ("differences.csv", "shots", ["textcls-average", "ag_news"]),
    ],
)
def test_without_resamples_a_file_keeps_what_it_says(
    ran: Runner, name: str, study: str, models: list[str], tmp_path: Path
) -> None:
    unpack(BOARDS / "records" / f"{study}.parquet", tmp_path / "whole")
    for model in models:
        shutil.copytree(tmp_path / "whole" / model, tmp_path / "records" / study / model)
    (tmp_path / "records" / "protocols").mkdir()
    (tmp_path / name).write_text("as it was\n")
    status, said = ran(name.replace(".csv", ".py"), tmp_path)
    assert status == 2
    assert len(said.splitlines()) == 1
    assert "resampl" in said or "no record" in said
    assert (tmp_path / name).read_text() == "as it was\n"


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """A folder as a reproduction leaves it, of what is committed."""
    csvs = [*BOARDS.glob("*.csv"), *BOARDS.glob("*/board.*"), *BOARDS.glob("*/index.html")]
    pictures = [*ROOT.glob("docs/**/*.svg"), *ROOT.glob("docs/**/*.png")]
    pages = [ROOT / "README.md", ROOT / "docs" / "what-we-found.md"]
    for top, paths in ((BOARDS, csvs), (ROOT, [*pictures, *pages])):
        for path in paths:
            place = tmp_path / path.relative_to(top)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, place)
    return tmp_path


def test_the_same_lines_are_not_apart(ran: Runner, copied: Path) -> None:
    status, said = ran("compare.py", copied)
    assert status == 0
    *table, last = said.splitlines()
    assert last == "nothing is missing"
    assert all(line.split()[2:] == ["0", "0", "0.00"] for line in table[1:])


def test_an_option_that_came_later_makes_no_other_line(ran: Runner, copied: Path) -> None:
    board = copied / "ner" / "board.csv"
    old, new = '1.0, ""variant""', '1.0, ""rows"": ""shots"", ""variant""'
    assert old in board.read_text()
    board.write_text(board.read_text().replace(old, new))
    assert ran("compare.py", copied)[0] == 0


def test_how_far_numbers_are_apart(ran: Runner, copied: Path) -> None:
    board = copied / "ner" / "board.csv"
    text = board.read_text()
    value = next(one for one in text.splitlines()[1].split(",") if one.count(".") == 1)
    board.write_text(text.replace(f",{value},", f",{float(value) + 2.5:.6f},", 1))
    status, said = ran("compare.py", copied)
    assert status == 0
    (line,) = (one for one in said.splitlines() if one.startswith("ner/"))
    assert line.split()[-1] == "2.50"


@pytest.mark.parametrize("spoilt", ["a line", "a board", "a picture", "a line too many"])
def test_what_a_reproduction_skipped_is_named(ran: Runner, copied: Path, spoilt: str) -> None:
    board = copied / "premerge" / "board.csv"
    lines = board.read_text().splitlines(keepends=True)
    if spoilt == "a board":
        shutil.rmtree(board.parent)
    elif spoilt == "a picture":
        (copied / "docs" / "moved.svg").write_text("")
    else:
        more = lines[-1].replace("glue/", "blue/").replace("ner/", "nor/")
        board.write_text("".join(lines[:-1] if spoilt == "a line" else [*lines, more]))
    status, said = ran("compare.py", copied)
    assert status == 1
    expected = {
        "a line": "missing in premerge/board.csv: ",
        "a board": "missing: premerge/board.md",
        "a picture": "missing: docs/moved.svg",
        "a line too many": "new in premerge/board.csv: ",
    }
    assert expected[spoilt] in said
