"""The tests of another device, in a process of its own, which a stand-in is registered in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "device"


def test_all_that_runs_on_a_device() -> None:
    asked = ["-m", "device", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(FOLDER)]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *asked],
        capture_output=True, text=True, cwd=FOLDER.parent.parent,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
