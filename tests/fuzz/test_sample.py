"""A few of the ten thousand mutants of `make fuzz`, the same ones every time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_spoilt_files_end_in_one_line_or_in_whole_output() -> None:
    """In a process of its own: forks are safe only of one that has no threads."""
    command = [sys.executable, "-m", "tests.fuzz", "--count", "252"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "252 mutants" in done.stdout
