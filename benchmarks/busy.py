"""The time of a command next to a program that keeps a core busy.

python benchmarks/busy.py [--steps 300] [--repeats 3]

Fine-tunes a miniature, alone and with a busy core: with the spinning of waiting threads that the
command line sets, with OpenMP's default, and with a single thread.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from itertools import product
from pathlib import Path

sys.path.remove(str(Path(__file__).resolve().parent))  # it has an evaluate.py

from tabulate import tabulate

from harness.cli.program import SPINS
from harness.training.miniature import make_base

WAYS = {
    "the command line": {"GOMP_SPINCOUNT": SPINS},
    "OpenMP by itself": {"GOMP_SPINCOUNT": "300000"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
BUSY = [sys.executable, "-c", "while True: pass"]


def seconds(base: Path, out: Path, steps: int, env: dict[str, str]) -> float:
    """Seconds of the second training in a process, after all imports."""
    code = (
        "import sys, time, harness.cli\n"
        "for _ in range(2):\n"
        "    begun = time.perf_counter()\n"
        "    assert harness.cli.main(sys.argv[1:]) == 0\n"
        "print('took', time.perf_counter() - begun)"
    )
    words = ["finetune", "--base", str(base), "--out", str(out), "--task", "embedded/topic"]
    words += ["--limit", "160", "--batch-size", "16", "--epochs", str(steps / 10), "--force"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words],
        env={**os.environ, **env},
        capture_output=True,
        check=True,
        text=True,
    )
    return float(done.stdout.rpartition("took")[2])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    took: dict[tuple[bool, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        os.environ["HARNESS_CACHE_DIR"] = str(Path(place) / "cache")
        base = make_base(Path(place) / "base")
        for busy in (False, True):
            if busy:
                stack.callback(subprocess.Popen(BUSY).kill)
            for _, way in product(range(given.repeats), WAYS):
                one = seconds(base, Path(place) / "expert", given.steps, WAYS[way])
                took.setdefault((busy, way), []).append(one)
    middle = {key: statistics.median(values) for key, values in took.items()}
    rows = [[way, middle[False, way], middle[True, way]] for way in WAYS]
    head = ["threads wait as with", "alone, s", "beside a busy core, s"]
    print(tabulate(rows, head, tablefmt="github", floatfmt=".1f"))
