"""Time and memory of aligning BERT-base-sized experts: ours, and a plain version.

python benchmarks/premerge.py [--models 5] [--layers 12] [--repeats 1] [--work DIR]
python benchmarks/premerge.py --growth      # Procrustes for more models, and wider ones
python benchmarks/premerge.py --experts BASE EXPERT...    # how many passes real experts take
python benchmarks/premerge.py --models 2 --layers 1 --width 256   # to try the script

Every measurement is a process of its own; one run interleaves all of them, so that a busy machine
slows all alike. What is measured is computing once, from files, every tensor of every expert that a
method changes; nothing is written. Memory is the peak of anonymous memory over its value before.
Time is wall-clock time, and processor time of all cores together.

Weights are matrices in random directions whose singular values fall like those of MiniLM, plus
noise for each expert, as large as the difference of MiniLM's experts from it: the number of passes
of an analysis depends on both. `--experts` prints the number for real experts, to compare.

The plain version of Procrustes turns by explicit matrices T of full width, from a full singular
value decomposition. It would take hours, so one turn is timed on one matrix of each shape, and
multiplied by the number of turns in our passes. Its results are compared with ours: after all
passes, or after one turn where a turn takes minutes. The plain version of rotation is run as a
whole: it turns heads by block-diagonal matrices as wide as the model, and units by permutation
matrices.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from merge import watched

HEAD_SIZE, VOCABULARY, LABELS = 64, 30522, 2
PLACES = (0, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 1)
"""Relative ranks at which singular values are given, relative to the largest."""
SQUARE = (1, 0.61, 0.48, 0.35, 0.19, 0.075, 2e-4)
"""Singular values at `PLACES`: medians over the queries, keys and values of MiniLM."""
LONG = (1, 0.41, 0.35, 0.28, 0.21, 0.15, 0.045)
"""Singular values at `PLACES`: medians over the feed-forward layers of MiniLM."""
MOVED = 0.022
"""The norm of a matrix's task vector relative to that of the base. For experts of MiniLM tuned at
1e-4 it is 0.017 for square matrices and 0.026 for long ones; `--experts` prints all three."""


class Kind(NamedTuple):
    """Matrices of one shape: endings of their names, one of them, and their row in the table.

    `tried` is the most experts with which the plain version runs all passes on that matrix; 0 where
    a single turn takes long enough.
    """

    ends: tuple[str, ...]
    one: str
    row: str
    tried: int


LAYER = "bert.encoder.layer.0"
KINDS = {
    "query, key, value": Kind(
        (".query.weight", ".key.weight", ".value.weight"),
        f"{LAYER}.attention.self.query.weight",
        "queries, keys, values",
        5,
    ),
    "feed-forward, first": Kind(
        (".intermediate.dense.weight",),
        f"{LAYER}.intermediate.dense.weight",
        "feed-forward",
        5,
    ),
    "feed-forward, second": Kind(
        (".output.dense.weight",), f"{LAYER}.output.dense.weight", "feed-forward", 0
    ),
    "embeddings of tokens": Kind(
        (".word_embeddings.weight",),
        "bert.embeddings.word_embeddings.weight",
        "embeddings of tokens",
        2,
    ),
    "head": Kind(("classifier.weight",), "classifier.weight", "head", 5),
}
ROWS = tuple(dict.fromkeys(kind.row for kind in KINDS.values()))
JOBS = ("procrustes", "procrustes, full", "rotation", "rotation, full")
FIXED = "procrustes:variant=fixed_reference"
"""The variant of the author's fork of a package: every matrix is turned to the first mean
(docs/methods.md#procrustes)."""
FAMILY = {"procrustes": "bert", "rotation": "roberta"}
GROWTH = {"models": (2, 5, 10), "width": (256, 512, 768, 1024)}

Tensors = dict[str, torch.Tensor]


# Models ------------------------------------------------------------------------------------


def make(work: Path, family: str, given: argparse.Namespace) -> None:
    """Write a base and its experts."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    heads = {"num_attention_heads": given.width // HEAD_SIZE, "num_labels": LABELS}
    sizes = {"hidden_size": given.width, "intermediate_size": 4 * given.width}
    config = AutoConfig.for_model(
        family, **sizes, **heads, num_hidden_layers=given.layers, vocab_size=VOCABULARY
    )
    model = AutoModelForSequenceClassification.from_config(config)
    numbers = torch.Generator().manual_seed(0)
    base = {n: like_trained(t, numbers) for n, t in model.state_dict().items()}
    for index in range(given.models + 1):
        numbers = torch.Generator().manual_seed(index)
        state = {n: moved(t, numbers) for n, t in base.items()} if index else base
        model.load_state_dict(state)
        model.save_pretrained(work / (f"expert-{index}" if index else "base"))


def like_trained(tensor: torch.Tensor, numbers: torch.Generator) -> torch.Tensor:
    """A random matrix with the singular values of a trained one, scaled to a deviation of 0.04."""
    if tensor.ndim != 2 or not tensor.is_floating_point():
        return tensor
    rows, columns = tensor.shape
    if rows < columns:
        return like_trained(tensor.mT, numbers).mT.contiguous()
    known = SQUARE if rows == columns else LONG
    values = torch.from_numpy(np.interp(np.linspace(0, 1, columns), PLACES, known)).float()
    # columns stay orthonormal in any order of rows: each matrix gets its own directions
    left = directions(rows, columns)[torch.randperm(rows, generator=numbers)]
    made = left * values @ directions(columns, columns).mT
    return 0.04 * made / made.std()


def moved(tensor: torch.Tensor, numbers: torch.Generator) -> torch.Tensor:
    """An expert's tensor: the base's plus noise of relative norm `MOVED`."""
    if not tensor.is_floating_point():
        return tensor
    step = torch.randn(tensor.shape, generator=numbers)
    return tensor + step * (MOVED * tensor.norm() / step.norm())


@cache
def directions(rows: int, columns: int) -> torch.Tensor:
    """A random matrix with orthonormal columns."""
    numbers = torch.Generator().manual_seed(rows + columns)
    return torch.linalg.qr(torch.randn(rows, columns, generator=numbers)).Q


def folders(work: Path, models: int) -> list[Path]:
    """The folders of the base and of the experts."""
    return [work / "base", *(work / f"expert-{index + 1}" for index in range(models))]


def opened(places: Sequence[Path]) -> tuple[list[Any], Any]:
    """The experts and the base, opened but not read; the first folder is the base's."""
    from harness.checkpoints.align import aligned_base
    from harness.checkpoints.open import open_checkpoint

    base, *experts = map(open_checkpoint, places)
    return experts, aligned_base(base, experts[0])


# Jobs --------------------------------------------------------------------------------------


def ours(method: str, places: Sequence[Path]) -> dict[str, Any]:
    """Compute every tensor that a registered method changes; seconds and passes by name."""
    from harness import parse_choice
    from harness.registry import NEEDS, PREMERGE

    experts, base = opened(places)
    choice = parse_choice(method)
    entry = PREMERGE[choice.name]
    given = {name: NEEDS[name].function(experts) for name in entry.needs}
    weights = [one.weights for one in experts]
    states = entry.function(weights, base.weights, **given, **choice.options)
    seconds = {}
    for name in states[0]:
        if name.endswith("position_ids"):
            continue
        start = time.perf_counter()
        for state in states:
            state[name]
        seconds[name] = time.perf_counter() - start
    return {"by": seconds, "passes": states[0].report.get("iterations", {})}


def kind_of(name: str) -> str:
    """The kind of a matrix that Procrustes turns, by its name."""
    return next(called for called, kind in KINDS.items() if name.endswith(kind.ends))


def full_procrustes(work: Path, models: int) -> dict[str, Any]:
    """The plain version on one matrix of each kind: seconds per turn, and difference from ours."""
    experts, _ = opened(folders(work, models))
    found = {}
    for called, kind in KINDS.items():
        given = [expert.weights[kind.one].double() for expert in experts[: kind.tried or 2]]
        mine, passes = aligned(given) if kind.tried else (one_turn(given), 0)
        start = time.perf_counter()
        full = full_analysis(given, passes) if kind.tried else [turned(given[1], given[0])]
        seconds = time.perf_counter() - start
        turns = turns_of(passes, len(given)) if kind.tried else 1
        difference = max(float((a - b).abs().max()) for a, b in zip(mine, full, strict=True))
        found[called] = {"turn": seconds / turns, "turns": turns, "apart": difference}
    return {"full": found}


def aligned(matrices: Sequence[torch.Tensor]) -> tuple[Sequence[torch.Tensor], int]:
    """The matrices as aligned by our code, and the number of passes."""
    from harness.weights import Rules, generalized

    analysis = generalized(matrices, (0,), Rules())
    pairs = zip(analysis.turns, matrices, strict=True)
    return analysis.turned or [turn(one) for turn, one in pairs], analysis.iterations


def one_turn(matrices: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The second matrix turned to the first by our code, in a list."""
    from harness.weights import turns_to

    first, second = matrices[:2]
    return [turn(second) for turn in turns_to(first, [second])]


def turns_of(passes: int, models: int) -> int:
    """The turns of Algorithm 1: all others to the first matrix, then every matrix in each pass."""
    return models - 1 + models * passes


def full_analysis(matrices: Sequence[torch.Tensor], passes: int) -> list[torch.Tensor]:
    """Algorithm 1 as written in the paper."""
    first = matrices[0]
    now = [first, *(turned(one, first) for one in matrices[1:])]
    for _ in range(passes):
        reference = torch.stack(now).mean(0)
        now = [turned(one, reference) for one in now]
    return now


def turned(matrix: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    return matrix @ nearest(matrix.mT @ reference)


def nearest(matrix: torch.Tensor) -> torch.Tensor:
    left, _, right = torch.linalg.svd(matrix)
    return left @ right


def layer_of(name: str) -> int | None:
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


def full_rotation(work: Path, models: int) -> dict[str, Any]:
    """Turn all other experts to the first, by matrices as wide as what they act on."""
    experts, _ = opened(folders(work, models))
    anchor, *others = [one.weights for one in experts]
    layers = sorted({layer for name in anchor if (layer := layer_of(name)) is not None})
    for expert in others:
        for layer in layers:
            turned_fully(expert, anchor, f"roberta.encoder.layer.{layer}.")
    return {}


def turned_fully(expert: Mapping[str, torch.Tensor], anchor: Any, at: str) -> Tensors:
    from scipy.optimize import linear_sum_assignment

    def pair(part: str) -> tuple[torch.Tensor, torch.Tensor]:
        return expert[at + part].double(), anchor[at + part].double()

    found: Tensors = {}
    groups = (("query", "key"), ("value",))
    for group in groups:
        parts = [f"attention.self.{name}" for name in group]
        products = sum(a @ b.mT for part in parts for a, b in [pair(f"{part}.weight")])
        products = products + sum(
            torch.outer(a, b) for part in parts for a, b in [pair(f"{part}.bias")]
        )
        if group == ("value",):
            out, other = pair("attention.output.dense.weight")
            products = products + out.mT @ other
        size = len(products)
        blocks = torch.block_diag(*[torch.ones(HEAD_SIZE, HEAD_SIZE)] * (size // HEAD_SIZE))
        turn = nearest(products * blocks)
        for part in parts:
            found[f"{part}.weight"] = turn.mT @ pair(f"{part}.weight")[0]
            found[f"{part}.bias"] = pair(f"{part}.bias")[0] @ turn
        if group == ("value",):
            found["out"] = out @ turn
    (up, up2), (bias, bias2) = pair("intermediate.dense.weight"), pair("intermediate.dense.bias")
    down, down2 = pair("output.dense.weight")
    products = up @ up2.mT + torch.outer(bias, bias2) + down.mT @ down2
    places = linear_sum_assignment(products.numpy(), maximize=True)[1]
    order = torch.zeros_like(products)
    order[torch.arange(len(order)), torch.from_numpy(places)] = 1
    return {**found, "up": order.mT @ up, "bias": bias @ order, "down": down @ order}


def measure(given: argparse.Namespace) -> dict[str, Any]:
    """Run one job in this process."""
    method, _, full = given.job.partition(", ")
    import_all(FAMILY[method.partition(":")[0]])
    found: dict[str, Any] = {}

    def job() -> None:
        if not full:
            found.update(ours(method, folders(given.work, given.models)))
        elif method == "rotation":
            found.update(full_rotation(given.work, given.models))
        else:
            found.update(full_procrustes(given.work, given.models))

    before = time.process_time()
    cost = watched(job)
    cores = time.process_time() - before
    return {"seconds": cost.seconds, "cores": cores, "peak": cost.peak, **found}


def import_all(family: str) -> None:
    """Import everything, the network of a model too, before the clock starts."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from harness.registry import NEEDS, PREMERGE

    for module in ("scipy.linalg.lapack", "scipy.optimize"):  # methods import these when called
        import_module(module)
    with torch.device("meta"):
        config = AutoConfig.for_model(family, num_hidden_layers=0)
        AutoModelForSequenceClassification.from_config(config)
    for registry in (NEEDS, PREMERGE):
        len(registry)  # imports all its entries


def apart(job: str, work: Path, models: int) -> dict[str, Any]:
    """The costs of a job in a process of its own."""
    command = [sys.executable, __file__, "--job", job, "--work", str(work)]
    command += ["--models", str(models)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(f"{job} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# A run of many -----------------------------------------------------------------------------


def compare(given: argparse.Namespace) -> None:
    """Run ours and the plain versions, and print both; the plain versions run once."""
    counts = {"procrustes": given.models, "rotation": 2}
    runs = defaultdict[str, list[dict[str, Any]]](list)
    with tempfile.TemporaryDirectory(dir=given.work) as folder:
        work = Path(folder)
        for method, family in FAMILY.items():
            (work / method).mkdir()
            sized = argparse.Namespace(**{**vars(given), "models": counts[method]})
            make(work / method, family, sized)
        for turn in range(given.repeats):
            for job in (*JOBS, FIXED) if turn == 0 else (*JOBS[::2], FIXED):
                method = job.partition(",")[0].partition(":")[0]
                runs[job].append(apart(job, work / method, counts[method]))
                print(f"{turn + 1}/{given.repeats} {job}", file=sys.stderr)
    table(given, runs)
    plain_table(runs["procrustes, full"][0]["full"])
    costs(runs)


Runs = Mapping[str, Sequence[Mapping[str, Any]]]


def table(given: argparse.Namespace, runs: Runs) -> None:
    """Print seconds of both methods, and of their plain versions."""
    mine, full = runs["procrustes"], runs["procrustes, full"][0]["full"]
    passes = mine[0]["passes"]
    print(f"{given.models} models, {given.layers} layers of {given.width}, median of {len(mine)}")
    print(
        "\n| job | matrices | passes | ours, s | full, s | faster |\n|---|---:|---:|---:|---:|---:|"
    )
    total = 0.0
    for row in ROWS:
        names = [name for name in passes if KINDS[kind_of(name)].row == row]
        turns = {name: turns_of(passes[name], given.models) for name in names}
        plain = sum(turns[name] * full[kind_of(name)]["turn"] for name in names)
        total += plain
        seconds = statistics.median(sum(run["by"][name] for name in names) for run in mine)
        print(line(row, len(names), spanned([passes[name] for name in names]), seconds, plain))
    seconds = median(mine, "seconds")
    print(line("all of Procrustes", len(passes), spanned(list(passes.values())), seconds, total))
    passes = runs[FIXED][0]["passes"]
    called = f"all by `{FIXED.partition(':')[2]}`"
    seconds = median(runs[FIXED], "seconds")
    print(f"| {called} | {len(passes)} | {spanned(list(passes.values()))} | {seconds:.2f} |  |  |")
    seconds, plain = (median(runs[job], "seconds") for job in JOBS[2:])
    print(line("rotation of 2 RoBERTa", "", "", seconds, plain))


def line(what: str, count: object, passes: str, mine: float, full: float) -> str:
    ratio = f"{full / mine:.1f} x"
    return f"| {what} | {count} | {passes} | {mine:.2f} | {full:.2f} | {ratio} |"


def spanned(passes: Sequence[int]) -> str:
    low, high = min(passes), max(passes)
    return str(low) if low == high else f"{low} to {high}"


def median(runs: Sequence[Mapping[str, Any]], what: str) -> float:
    return statistics.median(one[what] for one in runs)


def plain_table(full: Mapping[str, Mapping[str, float]]) -> None:
    """Print the seconds of a turn of the plain version, and its difference from ours."""
    print("\n| one matrix | turns | full, s a turn | largest difference |\n|---|---:|---:|---:|")
    for kind, one in full.items():
        print(f"| {kind} | {one['turns']} | {one['turn']:.3f} | {one['apart']:.0e} |")


def costs(runs: Runs) -> None:
    """Print time and memory of the jobs themselves."""
    print("\n| job | seconds | of all cores | peak MB |\n|---|---:|---:|---:|")
    for job in JOBS[:1] + JOBS[2:]:
        seconds, cores = (median(runs[job], what) for what in ("seconds", "cores"))
        peak = max(one["peak"] for one in runs[job]) / 1e6
        print(f"| {job} | {seconds:.2f} | {cores:.2f} | {peak:.0f} |")


def grow(given: argparse.Namespace) -> None:
    """Print time and memory of Procrustes for more models, and for wider ones."""
    print("| models | width | layers | seconds | peak MB |\n|---:|---:|---:|---:|---:|")
    cases = [(count, given.width) for count in GROWTH["models"]]
    cases += [(given.models, width) for width in GROWTH["width"]]
    for models, width in cases:
        with tempfile.TemporaryDirectory(dir=given.work) as folder:
            sizes = {"models": models, "width": width}
            make(Path(folder), "bert", argparse.Namespace(**{**vars(given), **sizes}))
            runs = [apart("procrustes", Path(folder), models) for _ in range(given.repeats)]
        seconds = statistics.median(one["seconds"] for one in runs)
        peak = max(one["peak"] for one in runs) / 1e6
        print(f"| {models} | {width} | {given.layers} | {seconds:.2f} | {peak:.0f} |", flush=True)


def passes_of(places: Sequence[Path]) -> None:
    """Print the passes of real experts and what they depend on: medians by kind of matrix."""
    experts, base = opened(places)
    passes, far, falls = (defaultdict[str, list[Any]](list) for _ in range(3))
    for name, count in ours("procrustes", places)["passes"].items():
        passes[kind := kind_of(name)].append(count)
        if name not in base.weights:  # a head
            continue
        start = base.weights[name].double()
        steps = (one.weights[name].double() - start for one in experts)
        far[kind] += [float(step.norm() / start.norm()) for step in steps]
        values = torch.linalg.svdvals(start)
        falls[kind].append(values[[int(p * (len(values) - 1)) for p in PLACES]] / values[0])
    print("| matrices | count | passes | mean | moved | singular values |")
    print("|---|---:|---:|---:|---:|---|")
    for kind, each in passes.items():
        line = f"| {kind} | {len(each)} | {spanned(each)} | {statistics.mean(each):.1f} |"
        middle = torch.stack(falls[kind]).median(0).values.tolist() if falls[kind] else []
        moved = f"{statistics.median(far[kind]):.3f}" if far[kind] else ""
        print(line, moved, "|", ", ".join(f"{value:.2g}" for value in middle), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768, help=f"a multiple of {HEAD_SIZE}")
    parser.add_argument("--repeats", type=int, default=1, help="of ours; the plain ones run once")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--job", choices=(*JOBS, FIXED), help=argparse.SUPPRESS)
    parser.add_argument("--experts", type=Path, nargs="+", metavar="FOLDER", help="base first")
    given = parser.parse_args()
    if given.experts:
        passes_of(given.experts)
    elif given.job:
        print(json.dumps(measure(given)))
    else:
        (grow if given.growth else compare)(given)


if __name__ == "__main__":
    main()
