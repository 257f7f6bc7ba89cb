"""A few of the two hundred kills of `make fuzz`, the same ones every time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_killed_run_can_be_repeated_and_runs_at_once_do_no_harm() -> None:
    """In a process of its own: forks are safe only of one that has no threads."""
    command = [sys.executable, "-m", "tests.crash", "--kills", "16", "--rounds", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "24 runs disturbed" in done.stdout
