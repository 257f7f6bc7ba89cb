"""A few of the ten thousand mutants and four hundred kills of `make fuzz`, always the same ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SLOW = """
import time
from pathlib import Path
from tests.fuzz import forks

forks.PROCESSOR = 1

def wait():
    time.sleep(1.5)
    return 0

def spin():
    while True:
        pass

for work in (wait, spin):
    ended = forks.once(lambda: forks.limit() or work(), Path("log"))
    print(ended.status, ended.late, work.__name__ in ended.stderr)
"""


def test_who_waits_for_a_busy_machine_is_not_taken_for_one_who_hangs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SLOW]
    known = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=known, capture_output=True, text=True, check=False
    )
    assert done.stdout.split("\n")[:2] == ["0 False False", f"{-signal.SIGXCPU} False True"], done


def test_what_is_spoilt_or_killed_ends_in_one_line_or_whole_and_does_no_harm() -> None:
    """In a process of its own: forks are safe only of one that has no threads."""
    command = [sys.executable, "-m", "tests.crash.sample"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "252 mutants" in done.stdout
    assert "29 runs disturbed" in done.stdout
