"""A few of the ten thousand mutants and two hundred kills of `make fuzz`, always the same ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_what_is_spoilt_or_killed_ends_in_one_line_or_whole_and_does_no_harm() -> None:
    """In a process of its own: forks are safe only of one that has no threads."""
    command = [sys.executable, "-m", "tests.crash.sample"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "252 mutants" in done.stdout
    assert "25 runs disturbed" in done.stdout
