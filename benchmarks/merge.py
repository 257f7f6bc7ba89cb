"""Time and memory of merging five BERT-base-sized checkpoints, beside plain reading and writing.

python benchmarks/merge.py [--models 5] [--repeats 3] [--work DIR]

Every measurement is a process of its own; one run interleaves all of them, so that a busy machine
slows all alike. Memory is the peak of anonymous memory (files mapped by safetensors do not count).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

LARGEST = 30522 * 768 * 4
JOBS = {
    "read+write": None,
    "average": "average",
    "task_arithmetic": "task_arithmetic",
    "ties": "ties",
    "ties, trim=tensor": "ties:trim=tensor",
    "dare[task_arithmetic]": "task_arithmetic",
}


def anonymous() -> int:
    """Bytes of anonymous memory that this process holds now."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def watched(job: Callable[[], None]) -> tuple[float, int]:
    """Seconds, and the growth of anonymous memory over its value before the job, at the peak."""
    before, peak, done = anonymous(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], anonymous() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    start = time.perf_counter()
    job()
    seconds = time.perf_counter() - start
    done.set()
    thread.join()
    return seconds, peak[0]


def make(work: Path, models: int) -> None:
    """A base and experts of BERT-base's size: random weights, and the base plus a little noise."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    base = BertForSequenceClassification(BertConfig(num_labels=2))
    base.save_pretrained(work / "base")
    for index in range(models):
        torch.manual_seed(index + 1)
        with torch.no_grad():
            for parameter in base.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=1e-3)
        base.save_pretrained(work / f"expert-{index}")


def measure(job: str, work: Path, models: int) -> tuple[float, int]:
    """Run one job in this process."""
    import torch  # noqa: F401  (its own memory is not the merge's)
    from safetensors import safe_open
    from safetensors.torch import save_file

    from harness import Recipe, merge, parse_choice

    experts = tuple(str(work / f"expert-{index}") for index in range(models))
    out = work / "out"
    if JOBS[job] is None:

        def read_and_write() -> None:
            for expert in experts:
                with safe_open(f"{expert}/model.safetensors", framework="pt") as file:
                    tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
            out.mkdir(exist_ok=True)
            save_file(tensors, out / "plain.safetensors")

        return watched(read_and_write)
    before = (parse_choice("dare"),) if job.startswith("dare") else ()
    recipe = Recipe(
        experts=experts, base=str(work / "base"), merger=parse_choice(JOBS[job]), premerge=before
    )
    return watched(lambda: merge(recipe, out=work / "merged" / "model"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", type=Path)
    parser.add_argument("--job", choices=JOBS)
    given = parser.parse_args()
    if given.job:
        print(json.dumps(measure(given.job, given.work, given.models)))
        return
    with tempfile.TemporaryDirectory(dir=given.work) as folder:
        work = Path(folder)
        make(work, given.models)
        found: dict[str, list[tuple[float, int]]] = {job: [] for job in JOBS}
        for _ in range(given.repeats):
            for job in JOBS:
                command = [sys.executable, __file__, "--job", job, "--work", str(work)]
                command += ["--models", str(given.models)]
                printed = subprocess.run(command, check=True, capture_output=True, text=True)
                found[job].append(tuple(json.loads(printed.stdout.splitlines()[-1])))
        output = (work / "expert-0" / "model.safetensors").stat().st_size
        bound = output + given.models * LARGEST
        plain = statistics.median(seconds for seconds, _ in found["read+write"])
        print(f"{given.models} models of {output / 1e6:.0f} MB, median of {given.repeats}")
        print(f"bound on memory: output + {given.models} tensors = {bound / 1e6:.0f} MB\n")
        print("| job | seconds | x read+write | peak MB | share of the bound |")
        print("|---|---:|---:|---:|---:|")
        for job, runs in found.items():
            seconds = statistics.median(s for s, _ in runs)
            peak = max(p for _, p in runs)
            print(
                f"| {job} | {seconds:.2f} | {seconds / plain:.2f} | {peak / 1e6:.0f} "
                f"| {peak / bound:.2f} |"
            )


if __name__ == "__main__":
    main()
