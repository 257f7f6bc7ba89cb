"""A user's own folder of tasks, protocols and methods; and what stands in a working directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import harness
from harness import cli, plugins
from harness.errors import BrokenPlugin
from tests.mistakes import mistake, refused

METHODS = '''\
"""Methods of mine."""
from harness import merger, protocol
from .shared import half


@merger("halves", paper="mine")
def halves(experts, base):
    """Half of the first expert."""
    return half(experts[0])
'''
SHARED = '''\
from harness import Predictions, protocol
from harness.weights import each


def half(state):
    return each(lambda tensor: tensor / 2, state)


@protocol("first-label", adapts="nothing")
def first_label(encoded):
    """The first label for every row."""
    return [Predictions(encoded.test.labels * 0)]
'''


pytestmark = pytest.mark.usefixtures("as_found")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a method and a protocol of a user, in files that know one another."""
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "methods.py").write_text(METHODS)
    (mine / "shared.py").write_text(SHARED)
    return mine


def test_what_a_folder_registers_is_known(folder: Path) -> None:
    harness.load_plugins(folder)
    assert harness.MERGERS["halves"].paper == "mine"
    assert harness.PROTOCOLS["first-label"].adapts == "nothing"
    harness.load_plugins(folder)  # once more does no harm


def test_the_command_line_takes_a_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "mergers", "--plugins", str(folder)]) == 0
    assert "halves" in capsys.readouterr().out
    assert cli.main(["check", "merger", "halves", "--plugins", str(folder)]) == 1
    assert "shapes" in capsys.readouterr().out


@pytest.mark.parametrize("by", ["flag", "environment"])
def test_a_folder_that_fails_is_one_line_and_leaves_nothing(
    by: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:

    (folder / "zzz.py").write_text("import xyzzy\n")
    command = ["list", "mergers"]
    if by == "flag":
        command += ["--plugins", str(folder)]
    else:
        monkeypatch.setenv(plugins.FOLDERS, str(folder))
        plugins.load_all.cache_clear()
        monkeypatch.setattr(harness.MERGERS, "_scanned", False)
    refused(command, BrokenPlugin, "zzz.py ModuleNotFoundError: xyzzy")
    plugins.load_all.cache_clear()
    monkeypatch.delenv(plugins.FOLDERS, raising=False)
    assert "halves" not in harness.MERGERS


def test_a_folder_that_is_none_is_named(tmp_path: Path) -> None:
    with mistake(BrokenPlugin, "nowhere --plugins"):
        harness.load_plugins(tmp_path / "nowhere")


def test_a_name_taken_twice_names_both_files(folder: Path) -> None:
    (folder / "again.py").write_text(METHODS.replace('"halves"', '"ties"'))
    with mistake(BrokenPlugin, "ties ties again"):
        harness.load_plugins(folder)


def in_a_new_process(code: str, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_the_environment_names_folders(folder: Path) -> None:
    code = "import harness; print('halves' in harness.MERGERS, 'first-label' in harness.PROTOCOLS)"
    assert in_a_new_process(code, folder, HARNESS_PLUGINS=str(folder)).split() == ["True", "True"]
