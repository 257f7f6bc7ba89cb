"""The speed-up of exact Fisher information when examples of one length share their passes.

python benchmarks/fisher.py [--expert FOLDER --task NAME] [--examples 256] [--repeats 3]

One process, one thread: examples one by one, and as `fisher` groups them, interleaved. Without an
expert, it takes three of those with which `harness check` measures quality.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from pathlib import Path

import torch

from harness.checking.quality import MINIATURES
from harness.checkpoints.open import open_checkpoint
from harness.data.splits import parse_task
from harness.kinds import kind_of
from harness.passes import fisher as module
from harness.passes.placement import CPU
from harness.passes.reading import Reading
from harness.passes.statistics import draw_rows

ALONE = 1
"""A value of `fisher.MAX_ENTRIES` that keeps examples separate."""
NOISE = 1e-8
"""Tensors below this share of the largest entry are rounding, as where a softmax cancels shifts."""


def compared(folder: Path, name: str, examples: int, repeats: int) -> str:
    """A row of the table: seconds of both ways, their ratio, and the difference of the results."""
    task, _ = parse_task(name)
    rows = draw_rows(task, examples, 0, None)
    reading = Reading(open_checkpoint(folder), rows, task.finetune.max_length, CPU, None)
    model, kind = reading.model(), kind_of(task)
    read = list(reading.batches(1, as_drawn=True))
    seconds: dict[int, list[float]] = {ALONE: [], module.MAX_ENTRIES: []}
    made = {}
    for _ in range(repeats):
        for bound, times in seconds.items():
            module.MAX_ENTRIES = bound
            start = time.process_time()
            made[bound] = module.fisher(model, iter(read), kind)
            times.append(time.process_time() - start)
    (alone, shared), (first, second) = map(statistics.median, seconds.values()), made.values()
    largest = max(float(tensor.max()) for tensor in first.values())
    apart = max(
        float((first[n] - second[n]).abs().max() / max(float(first[n].max()), NOISE * largest))
        for n in first
    )
    size = sum(p.numel() for p in model.parameters())
    return (
        f"| {name} | {size:,} | {alone:.2f} | {shared:.2f} | {alone / shared:.2f} | {apart:.0e} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--expert", type=Path)
    parser.add_argument("--task")
    parser.add_argument("--examples", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    pairs = [(MINIATURES / name, f"embedded/{name}") for name in ("topic", "comparison", "outcome")]
    if given.expert:
        pairs = [(given.expert, given.task)]
    print("| task | parameters | one by one, s | shared, s | ratio | apart |")
    print("|---|---:|---:|---:|---:|---:|")
    for folder, name in pairs:
        print(compared(folder, name, given.examples, given.repeats))
    print(f"\npeak {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024} MB of the process")


if __name__ == "__main__":
    main()
