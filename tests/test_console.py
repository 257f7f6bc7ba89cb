"""What a terminal is shown beside results: one bar, lines that end between words, first flags."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import harness
from harness.cli import console, main, program
from harness.errors import BadOption
from harness.text import counted, shortened, wrapped
from tests.mistakes import mistake, refused


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_long_name_loses_its_middle() -> None:
    assert shortened("sentiment/reviews-of-books", 15) == "sentim...-books"
    assert shortened("fits", 4) == "fits"
    assert [counted(n, "row") for n in (0, 1, 2, "all")] == [
        "0 rows",
        "1 row",
        "2 rows",
        "all rows",
    ]
    assert [len(shortened("x" * 40, room)) for room in (5, 16, 17, 39)] == [5, 16, 17, 39]


def test_lines_end_between_words() -> None:
    text = "the FT-Classifier explains a-very-long-name-of-a-folder"
    assert wrapped(text, 12) == "the\nFT-Classifier\nexplains\na-very-long-name-of-a-folder"
    assert wrapped(text, None) == text


@pytest.mark.parametrize(
    ("where", "terminal", "columns", "count"),
    [
        *(("stdout", True, "30", 2), ("stdout", False, "30", 2), ("stdout", False, "", 1)),
        *(("stderr", True, "30", 2), ("stderr", False, "30", 1)),
    ],
)
def test_a_sentence_is_wrapped_where_the_width_is_known(
    where: str, terminal: bool, columns: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an error that goes to a file it is not, whatever COLUMNS says."""
    monkeypatch.setenv("COLUMNS", columns)
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, where, stream)
    console.say("a sentence of more than thirty columns", stream)
    lines = stream.getvalue().splitlines()
    assert len(lines) == count
    assert " ".join(lines) == "a sentence of more than thirty columns"


def shown(
    steps: Callable[[harness.types.Progress], None], capsys: pytest.CaptureFixture[str]
) -> str:
    """What is left of the bar on stderr."""
    with console.bars() as advance:
        steps(advance)
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)


def test_there_is_one_bar_for_all_that_is_counted_alike(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    def steps(advance: harness.types.Progress) -> None:
        advance("first · a/task@test", 10, 40)
        advance("an-expert-with-a-long-name · sentiment/reviews@test", 25, 40)

    lines = shown(steps, capsys).strip().splitlines()
    assert len(lines) == 1
    assert "35/40" in lines[0]
    assert lines[0].startswith("an-expert-with-a-...ent/reviews@test ")
    assert lines[0].count("━") >= 15


def test_a_bar_that_is_not_full_grows_with_its_work(capsys: pytest.CaptureFixture[str]) -> None:
    def steps(advance: harness.types.Progress) -> None:
        advance("merging tensors", 1, 10)
        advance("scoring candidates", 5, 30)
        advance("merging tensors", 2, 30)

    assert re.findall(r"(\w+) ━.* (\d+/\d+)", shown(steps, capsys)) == [("tensors", "8/30")]


@pytest.mark.parametrize("total", [10, 3], ids=["as many", "others"])
def test_what_is_counted_otherwise_takes_the_place_of_a_bar(
    total: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def steps(advance: harness.types.Progress) -> None:
        advance("gram of a", 10, 10)
        advance("merging tensors", 1, total)
        advance("merging tensors", 1, total)

    left = re.findall(r"(\w+) ━.* (\d+/\d+)", shown(steps, capsys))
    assert left == [("tensors", f"2/{total}")]


def test_no_bar_is_left_of_what_failed(capsys: pytest.CaptureFixture[str]) -> None:
    def steps(advance: harness.types.Progress) -> None:
        advance("reading", 1, 3)
        raise harness.HarnessError("no room")

    with mistake(harness.HarnessError, "no room"):
        shown(steps, capsys)
    assert "━" not in capsys.readouterr().err


@pytest.mark.filterwarnings("default:.* cut off")
def test_a_warning_is_told_once_in_a_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Though it comes with every evaluation, and libraries make Python forget it."""

    def warned(_: object) -> int:
        for said in ("a row is cut off", "a row is cut off"):
            with warnings.catch_warnings():
                warnings.warn(said, stacklevel=1)
        return 0

    monkeypatch.setattr(program, "_run", warned)
    assert main(["list"]) == main(["list"]) == 0
    assert capsys.readouterr().err.count("a row is cut off") == 2


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"harness {harness.__version__}\n"


@pytest.mark.parametrize("command", [[], ["merge"], ["list"]])
def test_h_is_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "-h"]) == 0
    short = capsys.readouterr().out
    assert main([*command, "--help"]) == 0
    assert capsys.readouterr().out == short
    assert "Usage: harness" in short


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("harness ev", ["evaluate"]),
        ("harness plot tr", ["transforms"]),
        ("harness merge --merger task", ["task_arithmetic"]),
        ("harness merge --premerge procr", ["procrustes"]),
        ("harness merge --postmerge sv", ["svc"]),
        ("harness evaluate --protocols knn,ft", ["knn,ft-classifier"]),
        ("harness finetune --task glue/s", ["glue/sst2", "glue/stsb"]),
        ("harness merge --merger nosuch", []),
    ],
)
def test_a_shell_is_told_the_commands_and_names(
    words: str,
    told: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("_HARNESS_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 0
    assert capsys.readouterr().out.split() == told


def test_names_are_completed_without_torch(tmp_path: Path) -> None:
    """From what `harness list` kept: a Tab key that waits for seconds is not pressed."""
    words = {"_HARNESS_COMPLETE": "complete_bash", "COMP_WORDS": "harness merge --merger ti"}
    said = "import sys\nfrom harness.cli import main\ntry: main([])\nexcept SystemExit: pass\n"
    said += "print('torch' in sys.modules)"
    env = {**os.environ, **words, "COMP_CWORD": "3", "HARNESS_CACHE_DIR": str(tmp_path)}
    first, second = (
        subprocess.run(
            [sys.executable, "-c", said], env=env, capture_output=True, text=True, check=True
        ).stdout.split()
        for _ in range(2)
    )
    assert first[0] == second[0] == "ties"
    assert second[1] == "False"


@pytest.mark.parametrize("flag", ["--install-completion", "--show-completion"])
def test_a_shell_is_not_named(
    flag: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    refused([flag, "nope"], BadOption, flag, "nope")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("given", "taken"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "5"}, "5"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_threads_of_torch_share_a_core_with_other_programs(
    given: dict[str, str], taken: str | None, tmp_path: Path
) -> None:
    """They read the variable when torch is imported: it is set before."""
    code = (
        "import sys, os, harness.cli; assert 'torch' not in sys.modules; "
        "harness.cli.main(['cache', 'info']); print(os.environ.get('GOMP_SPINCOUNT'))"
    )
    env = {
        key: value for key, value in os.environ.items() if "GOMP" not in key and "OMP_W" not in key
    }
    env |= {**given, "HARNESS_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, text=True, env=env
    )
    assert done.stdout.splitlines()[-1] == str(taken)
