"""Time and memory of merging BERT-base-sized checkpoints: ours, mergekit, plain read and write.

python benchmarks/merge.py [--models 5] [--repeats 3] [--growth] [--small] [--work DIR]

Every measurement is a process of its own; one run interleaves all of them, so that a busy machine
slows all alike. Time and memory are measured from the call that merges to its end, after all
imports: opening files, planning, arithmetic, writing; for ours also checks and hashes. Memory is
the peak of anonymous memory over its value before the call (files mapped by safetensors do not
count). mergekit runs in its own environment, which `make install-mergekit` makes, with its default
settings for a CPU, without a model card and a copy of the tokenizer. `--growth` measures ours for
2, 5, 10 and 20 models instead. `--small` takes models of 1 % of the size, to try the script.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
KIT = ROOT / ".venv-mergekit"

PLAIN = "read+write"
DENSITY, WEIGHT = 0.2, 0.3

#: name -> merger, pre-merging methods
OURS: dict[str, tuple[str, tuple[str, ...]]] = {
    "average": ("average", ()),
    "task_arithmetic": (f"task_arithmetic:scale={WEIGHT}", ()),
    "ties": (f"ties:density={DENSITY}", ()),
    "ties, trim=tensor": (f"ties:density={DENSITY},trim=tensor", ()),
    "dare[task_arithmetic]": (
        f"task_arithmetic:scale={WEIGHT}",
        (f"dare:drop_rate={1 - DENSITY}",),
    ),
}
#: name -> method of mergekit and its parameters
THEIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "mergekit linear": ("linear", {"weight": 1}),
    "mergekit task_arithmetic": ("task_arithmetic", {"weight": WEIGHT}),
    "mergekit ties": ("ties", {"weight": 1, "density": DENSITY}),
    "mergekit dare_linear": ("dare_linear", {"weight": WEIGHT, "density": DENSITY}),
}
#: ours -> the job of mergekit that does the same
PAIRS = {
    "average": "mergekit linear",
    "task_arithmetic": "mergekit task_arithmetic",
    "ties": "mergekit ties",
    "ties, trim=tensor": "mergekit ties",
    "dare[task_arithmetic]": "mergekit dare_linear",
}
GROWTH, COUNTS = ("average", "ties"), (2, 5, 10, 20)


class Cost(NamedTuple):
    """Seconds, and bytes of anonymous memory at the peak."""

    seconds: float
    peak: int


# One measurement ---------------------------------------------------------------------------


def anonymous() -> int:
    """Bytes of anonymous memory that this process holds now."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024


def watched(job: Callable[[], object]) -> Cost:
    """Time and memory of a job; memory is the growth over the value before."""
    before, peak, done = anonymous(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.005):
            peak[0] = max(peak[0], anonymous() - before)

    thread = threading.Thread(target=watch)
    thread.start()
    start = time.perf_counter()
    try:
        job()
        seconds = time.perf_counter() - start
    finally:  # else an error would leave the thread running
        done.set()
        thread.join()
    return Cost(seconds, peak[0])


def measure(job: str, work: Path, models: int) -> Cost:
    """Run one job in this process."""
    experts = [str(work / f"expert-{index}") for index in range(models)]
    out = work / "out" / "model"
    shutil.rmtree(out.parent, ignore_errors=True)
    os.sync()  # pending writes of the previous job must not slow this one down
    if job == PLAIN:
        return watched(reading_and_writing(experts, out))
    if job in THEIRS:
        return watched(merging_with_mergekit(*THEIRS[job], experts, str(work / "base"), out))
    return watched(merging(*OURS[job], experts, str(work / "base"), out))


def reading_and_writing(experts: list[str], out: Path) -> Callable[[], object]:
    from safetensors import safe_open
    from safetensors.torch import save_file

    def job() -> None:
        for expert in experts:
            with safe_open(f"{expert}/model.safetensors", framework="pt") as file:
                names = file.keys()
                tensors = {name: file.get_tensor(name).clone() for name in names}
        out.mkdir(parents=True)
        save_file(tensors, out / "model.safetensors")

    return job


def merging(
    merger: str, premerge: tuple[str, ...], experts: list[str], base: str, out: Path
) -> Callable[[], object]:
    from harness import Recipe, merge
    from harness.registry import MERGERS

    recipe = Recipe(experts=tuple(experts), base=base, merger=merger, premerge=premerge)
    _ = MERGERS[recipe.merger.name]  # imports every method
    return lambda: merge(recipe, out=out)


def merging_with_mergekit(
    method: str, parameters: Mapping[str, Any], experts: list[str], base: str, out: Path
) -> Callable[[], object]:
    from mergekit.config import MergeConfiguration
    from mergekit.merge import run_merge
    from mergekit.options import MergeOptions

    models = [{"model": expert} for expert in experts]
    config: dict[str, Any] = {"merge_method": method, "models": models, "parameters": parameters}
    if method != "linear":
        config["base_model"] = base
    options = MergeOptions(quiet=True, copy_tokenizer=False, write_model_card=False)
    return lambda: run_merge(MergeConfiguration.model_validate(config), str(out), options)


# A run of many -----------------------------------------------------------------------------


def make(work: Path, models: int, small: bool) -> None:
    """Write a base of BERT-base's size with random weights, and experts: the base plus noise."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    size = {"hidden_size": 128, "num_hidden_layers": 4, "intermediate_size": 512} if small else {}
    heads = {"num_attention_heads": 2, "vocab_size": 4000} if small else {}
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig(num_labels=2, **size, **heads))
    model.save_pretrained(work / "base")
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for index in range(models):
        torch.manual_seed(index + 1)
        model.load_state_dict(start)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=1e-3)
        model.save_pretrained(work / f"expert-{index}")


def apart(job: str, work: Path, models: int) -> Cost:
    """The cost of a job in a process of its own, in the environment that it needs."""
    python = KIT / "bin" / "python" if job in THEIRS else sys.executable
    command = [str(python), __file__, "--job", job, "--work", str(work), "--models", str(models)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"{job} failed:\n{done.stderr[-2000:]}")
    return Cost(*json.loads(done.stdout.splitlines()[-1]))


def medians(jobs: list[tuple[str, int]], work: Path, repeats: int) -> dict[tuple[str, int], Cost]:
    """The median time and the highest peak of every job and number of models."""
    found: dict[tuple[str, int], list[Cost]] = {key: [] for key in jobs}
    for turn in range(repeats):
        for job, models in jobs:
            found[job, models].append(apart(job, work, models))
            print(f"{turn + 1}/{repeats} {job}, {models} models", file=sys.stderr)
    return {
        key: Cost(statistics.median(run.seconds for run in runs), max(run.peak for run in runs))
        for key, runs in found.items()
    }


def sizes(work: Path) -> tuple[int, int]:
    """The bytes of a model, and of its largest tensor."""
    from safetensors import safe_open

    file = work / "base" / "model.safetensors"
    with safe_open(file, framework="pt") as opened:
        names = opened.keys()
        shapes = [opened.get_slice(name).get_shape() for name in names]
    return file.stat().st_size, 4 * max(map(math.prod, shapes))


def compare(work: Path, models: int, repeats: int, with_mergekit: bool) -> None:
    """Print ours, mergekit's and plain reading and writing, side by side."""
    jobs = [PLAIN, *OURS, *(THEIRS if with_mergekit else ())]
    found = medians([(job, models) for job in jobs], work, repeats)
    output, largest = sizes(work)
    bound = output + models * largest
    print(f"{models} models of {output / 1e6:.0f} MB, median of {repeats}")
    print(f"bound on memory: output + {models} tensors = {bound / 1e6:.0f} MB\n")
    print(
        "| job | seconds | x read+write | peak MB | share of the bound | faster than mergekit |",
        end="",
    )
    print(" share of mergekit's peak |\n|---|---:|---:|---:|---:|---:|---:|")
    for job in jobs:
        seconds, peak = found[job, models]
        line = [f"{seconds:.2f}", f"{seconds / found[PLAIN, models].seconds:.2f}"]
        line += [f"{peak / 1e6:.0f}", f"{peak / bound:.2f}"]
        other = found.get((PAIRS.get(job, ""), models))
        line += (
            [f"{other.seconds / seconds:.1f} x", f"{peak / other.peak:.2f}"] if other else ["", ""]
        )
        print(f"| {' | '.join([job, *line])} |")


def grow(work: Path, counts: tuple[int, ...], repeats: int) -> None:
    """Print time and memory of ours by number of models."""
    found = medians([(job, count) for count in counts for job in GROWTH], work, repeats)
    output, largest = sizes(work)
    print(f"models of {output / 1e6:.0f} MB, the largest tensor {largest / 1e6:.0f} MB; ", end="")
    print(f"median of {repeats}\n")
    print("| job | models | seconds | seconds a model | peak MB | MB a model more |")
    print("|---|---:|---:|---:|---:|---:|")
    for job in GROWTH:
        first = found[job, counts[0]].peak
        for count in counts:
            seconds, peak = found[job, count]
            more = (peak - first) / (count - counts[0]) / 1e6 if count > counts[0] else 0
            line = [f"{seconds:.2f}", f"{seconds / count:.2f}", f"{peak / 1e6:.0f}", f"{more:.1f}"]
            print(f"| {job} | {count} | {' | '.join(line)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--without-mergekit", action="store_true")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--job", choices=[PLAIN, *OURS, *THEIRS])
    given = parser.parse_args()
    if given.job:
        print(json.dumps(measure(given.job, given.work, given.models)))
        return
    if not given.growth and not given.without_mergekit:
        subprocess.run(["make", "--quiet", "install-mergekit"], cwd=ROOT, check=True)
    with tempfile.TemporaryDirectory(dir=given.work) as folder:
        work = Path(folder)
        make(work, max(COUNTS) if given.growth else given.models, given.small)
        if given.growth:
            grow(work, COUNTS, given.repeats)
        else:
            compare(work, given.models, given.repeats, not given.without_mergekit)


if __name__ == "__main__":
    main()
