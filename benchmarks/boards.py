"""Seconds and memory of `harness leaderboard` on many records.

python benchmarks/boards.py [--records 100000] [--folder DIR] [--packed]

Writes synthetic records like those of a study (20 tasks of several groups; Current Eval, and KNN
and FT-Classifier Eval with 5 draws of 1, 5 and 10 shots, with the numbers of drawn rows), then
renders all boards in a process of its own, with --packed from one pack of the records. If --folder
exists, its records are used.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from harness.evaluation.records import identity, pack

GROUPS = ("glue", "textcls", "ner", "emotion")
TASKS = 20
SHOTS = (1, 5, 10)
DRAWS = 5
CLASSES = 4
PROTOCOLS: dict[str, dict[str, Any]] = {
    "current": {},
    "knn": {"k": 5, "rule": "mean"},
    "ft-classifier": {"epochs": 5, "learning_rate": 5e-4, "variant": "clean"},
}


def record(method: int, task: int, protocol: str, draw: np.random.Generator) -> dict[str, Any]:
    """A record of a merge on a task."""
    adapts = protocol != "current"
    keys = [(shots, seed) for shots in SHOTS for seed in range(DRAWS)] if adapts else [(None, None)]
    level = 0.4 + 0.01 * task + 0.1 * adapts
    values = level + 0.05 * draw.standard_normal(len(keys))
    means = values.reshape(-1, DRAWS if adapts else 1).mean(axis=1).tolist()
    scores = [
        {"value": value, "parts": {"accuracy": value}, "shots": shots, "seed": seed}
        for (shots, seed), value in zip(keys, values.tolist(), strict=True)
    ]
    drawn = draw.integers(0, 100_000, (DRAWS, CLASSES, max(SHOTS))).tolist()
    merger = ("ties", "task_arithmetic", "average")[method % 3]
    premerge = ("", "dare:rate=0.{n}", "procrustes+dare:rate=0.{n}")[method // 3 % 3]
    called = f"{merger}:scale={method // 9}" if method >= 9 else merger
    return {
        "schema_version": 3,
        "model": f"merge-{method}",
        "role": "merged",
        "method": f"{premerge.format(n=method // 9)}[{called}]" if premerge else called,
        "digest": f"{method:032x}",
        "content": f"{method * TASKS + task:032x}",
        "task": f"{GROUPS[task % len(GROUPS)]}/task-{task}@test",
        "protocol": protocol,
        "options": PROTOCOLS[protocol],
        "settings": {"max_length": 128, "limit": None, "draws": DRAWS, "seed": 0},
        "metrics": ["accuracy"],
        "rows": 2_000,
        "scores": scores,
        "intervals": [
            {"low": mean - 0.02, "high": mean + 0.02, "shots": shots, "method": "bootstrap"}
            for shots, mean in zip(SHOTS if adapts else (None,), means, strict=True)
        ],
        "adaptation": {
            "split": "x@train90",
            "rows": DRAWS * CLASSES * max(SHOTS),
            "drawn": dict(zip(map(str, range(DRAWS)), drawn, strict=True)),
            "labels": "chose the rows",
        }
        if adapts
        else None,
        "dataset": {"digest": f"{task:032x}", "revision": None, "source": "local folder"},
        "head": "kept",
        "labels": "by-name",
        "preset": None,
        "base": {"source": "base", "digest": "b" * 32},
        "experts": [{"source": f"experts/{n}", "digest": f"{n:032x}"} for n in range(5)],
        "teachers": [f"{task:032x}"],
        "versions": {"merging-harness": "0.1.0"},
    }


def records(count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Pairs of a path and a record, ordered by method, task and protocol."""
    draw = np.random.default_rng(0)
    for number in range(count):
        method, rest = divmod(number, TASKS * len(PROTOCOLS))
        task, protocol = divmod(rest, len(PROTOCOLS))
        name = [*PROTOCOLS][protocol]
        made = record(method, task, name, draw)
        yield f"{made['model']}/{made['task']}/{name}-{identity(made)[:12]}.json", made


def write(folder: Path, count: int) -> None:
    for name, made in records(count):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(made, indent=1, sort_keys=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--packed", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as spare:
        folder = asked.folder or Path(spare) / "records"
        if not folder.exists():
            write(folder, asked.records)
        out = Path(spare) / "board"
        if asked.packed:
            pack([folder], Path(spare) / "pack.parquet")
            folder = Path(spare) / "pack.parquet"
        start = time.perf_counter()
        command = ["-m", "harness", "leaderboard", str(folder), "--out", str(out)]
        subprocess.run([sys.executable, *command], check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - start
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        computed = used.ru_utime + used.ru_stime
        print(
            f"{asked.records:,} records: {seconds:.1f} s ({computed:.1f} s of a processor), "
            f"peak {used.ru_maxrss / 2**10:.0f} MiB"
        )
        for path in sorted(out.iterdir()):
            print(f"  {path.name:14} {path.stat().st_size / 2**20:7.1f} MiB")


if __name__ == "__main__":
    main()
