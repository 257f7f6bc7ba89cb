"""Time and memory of aligning BERT-base-sized experts: ours, and the same with full matrices.

python benchmarks/premerge.py [--models 5] [--layers 12] [--repeats 2] [--delta 5e-4] [--work DIR]
python benchmarks/premerge.py --growth      # Procrustes for more models, and wider ones
python benchmarks/premerge.py --polar       # the nearest orthogonal matrix, four ways
python benchmarks/premerge.py --models 2 --layers 1 --width 256 --repeats 1   # to try the script

Every measurement is a process of its own; one run interleaves all of them, so that a busy machine
slows all alike. The clock and the memory run over computing every tensor of every expert that a
method changes, out of files, once; nothing is written. Memory is the peak of anonymous memory over
its value before.

Weights are a base of random matrices whose singular values fall as a power of their rank, plus a
little noise for each expert, four times as much for the last: how often an analysis passes depends
on how far apart experts are, where the base has little to say.

The plain version of Procrustes multiplies explicit matrices T of full width that come of a full
singular value decomposition, through as many passes as ours. It runs on one matrix of each shape,
beside ours on the same one; of the 3072-wide matrices on one turn of one expert, as a
decomposition takes about a minute. That of rotation is the whole: it turns heads by block-diagonal
matrices as wide as the model, and units by permutation matrices.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from merge import watched

HEAD_SIZE, VOCABULARY, LABELS = 64, 30522, 2
PARTS = {
    "query, key, value": (".query.weight", ".key.weight", ".value.weight"),
    "feed-forward, first": (".intermediate.dense.weight",),
    "feed-forward, second": (".output.dense.weight",),
    "embeddings of tokens": (".word_embeddings.weight",),
    "head": ("classifier.",),
}
"""Kinds of matrices that Procrustes turns, by how their names end or begin."""
SHAPES = {
    "query, key, value": "bert.encoder.layer.0.attention.self.query.weight",
    "feed-forward, first": "bert.encoder.layer.0.intermediate.dense.weight",
    "feed-forward, second": "bert.encoder.layer.0.output.dense.weight",
    "embeddings of tokens": "bert.embeddings.word_embeddings.weight",
    "head": "classifier.weight",
}
"""One matrix of each kind."""
JOBS = ("procrustes", "procrustes, full", "rotation", "rotation, full")
FAMILY = {"procrustes": "bert", "rotation": "roberta"}
GROWTH = {"models": (2, 5, 10), "width": (256, 512, 768, 1024)}
ACCURACY = 1e-10

Tensors = dict[str, torch.Tensor]


# Models ------------------------------------------------------------------------------------


def make(work: Path, family: str, given: argparse.Namespace) -> None:
    """A base and experts of it."""
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
        far = given.delta * (4 if index == given.models else 1) * bool(index)
        numbers = torch.Generator().manual_seed(index)
        model.load_state_dict({n: moved(t, far, numbers) for n, t in base.items()})
        model.save_pretrained(work / (f"expert-{index}" if index else "base"))


def like_trained(tensor: torch.Tensor, numbers: torch.Generator) -> torch.Tensor:
    """A matrix of entries of 0.04 whose singular values fall from 1 to about 1 / 30."""
    if tensor.ndim != 2 or not tensor.is_floating_point():
        return tensor
    columns = tensor.shape[1]
    fall = torch.arange(1, columns + 1) ** -0.5
    basis = torch.linalg.qr(torch.randn(columns, columns, generator=numbers)).Q
    drawn = torch.randn(tensor.shape, generator=numbers) * fall @ basis
    return 0.04 * drawn / drawn.std()


def moved(tensor: torch.Tensor, far: float, numbers: torch.Generator) -> torch.Tensor:
    if not tensor.is_floating_point():
        return tensor
    return tensor + far * torch.randn(tensor.shape, generator=numbers)


def opened(work: Path, models: int) -> tuple[list[Any], Any]:
    """The experts and their base, opened and not read."""
    from harness.checkpoints.align import aligned_base
    from harness.checkpoints.open import open_checkpoint

    experts = [open_checkpoint(work / f"expert-{index + 1}") for index in range(models)]
    return experts, aligned_base(open_checkpoint(work / "base"), experts[0])


# Jobs --------------------------------------------------------------------------------------


def ours(method: str, work: Path, models: int) -> dict[str, Any]:
    """Every tensor that a registered method changes, of every expert: seconds by kind, passes."""
    from harness.registry import NEEDS, PREMERGE

    experts, base = opened(work, models)
    given = {name: NEEDS[name].function(experts) for name in PREMERGE[method].needs}
    states = PREMERGE[method].function([one.weights for one in experts], base.weights, **given)
    changed = [name for name in states[0] if not name.endswith("position_ids")]
    by_kind: defaultdict[str, float] = defaultdict(float)
    for name in changed:
        start = time.perf_counter()
        for state in states:
            state[name]
        by_kind[kind_of(name)] += time.perf_counter() - start
    report = states[0].report
    passes = list(report.get("iterations", {}).values())
    return {"by": by_kind, "passes": passes}


def kind_of(name: str) -> str:
    if ".attention.output." in name:
        return "all else"
    found = (kind for kind, ends in PARTS.items() if name.endswith(ends) or name.startswith(ends))
    return next(found, "all else")


def full_procrustes(work: Path, models: int) -> dict[str, Any]:
    """Ours and the plain version of one matrix of each kind: seconds, passes, difference."""
    from harness.premergers.procrustes import with_references

    experts, base = opened(work, models)
    found = {}
    for kind, name in SHAPES.items():
        given = [expert.weights[name].double() for expert in experts]
        if len(given[0]) < given[0].shape[1] and len(given[0]) > LABELS:
            found[kind] = one_turn(given[0], given[1])
            continue
        start = time.perf_counter()
        states = with_references([one.weights for one in experts], base.weights, {name: 0})
        mine = [state[name] for state in states]
        middle = time.perf_counter()
        passes = states[0].report["iterations"][name]
        full = full_analysis(given, passes)
        found[kind] = compared(start, middle, time.perf_counter(), mine, full) | {"passes": passes}
    return {"shapes": found}


def one_turn(first: torch.Tensor, second: torch.Tensor) -> dict[str, float]:
    """The same of a single turn of one matrix to another."""
    from harness.weights import turns_to

    start = time.perf_counter()
    mine = [turn(second) for turn in turns_to(first, [second])]
    middle = time.perf_counter()
    full = second @ nearest(second.mT @ first)
    return compared(start, middle, time.perf_counter(), mine, [full])


def compared(
    start: float, middle: float, end: float, mine: Sequence[torch.Tensor], full: Any
) -> dict[str, float]:
    apart = max(float((a - b).abs().max()) for a, b in zip(mine, full, strict=True))
    return {"ours": middle - start, "full": end - middle, "apart": apart}


def layer_of(name: str) -> int | None:
    return next((int(part) for part in name.split(".") if part.isdigit()), None)


def full_analysis(matrices: Sequence[torch.Tensor], passes: int) -> list[torch.Tensor]:
    """Algorithm 1 as it is written."""
    first = matrices[0]
    turned = [first, *(one @ nearest(one.mT @ first) for one in matrices[1:])]
    for _ in range(passes):
        reference = torch.stack(turned).mean(0)
        turned = [one @ nearest(one.mT @ reference) for one in turned]
    return [one.float() for one in turned]


def nearest(matrix: torch.Tensor) -> torch.Tensor:
    left, _, right = torch.linalg.svd(matrix)
    return left @ right


def full_rotation(work: Path, models: int) -> dict[str, Any]:
    """All others turned to the first, by matrices as wide as what they act on."""
    experts, _ = opened(work, models)
    anchor, *others = [one.weights for one in experts]
    layers = sorted({layer for name in anchor if (layer := layer_of(name)) is not None})
    for expert in others:
        for layer in layers:
            turned_fully(expert, anchor, f"roberta.encoder.layer.{layer}.")
    return {"by": {}}


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
    _ = import_all(FAMILY[method])
    found: dict[str, Any] = {}

    def job() -> None:
        if not full:
            found.update(ours(method, given.work, given.models))
        elif method == "rotation":
            found.update(full_rotation(given.work, given.models))
        else:
            found.update(full_procrustes(given.work, given.models))

    cost = watched(job)
    return {"seconds": cost.seconds, "peak": cost.peak, **found}


def import_all(family: str) -> Any:
    """What is imported must not count, a model's network among it."""
    import scipy.linalg.lapack
    import scipy.optimize
    from transformers import AutoConfig, AutoModelForSequenceClassification

    from harness.registry import NEEDS, PREMERGE

    with torch.device("meta"):
        config = AutoConfig.for_model(family, num_hidden_layers=0)
        AutoModelForSequenceClassification.from_config(config)
    return len(NEEDS), len(PREMERGE), scipy


def apart(job: str, work: Path, models: int) -> dict[str, Any]:
    """What a job costs in a process of its own."""
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
    """Print ours and full matrices, side by side."""
    with tempfile.TemporaryDirectory(dir=given.work) as folder:
        work, runs = Path(folder), defaultdict[str, list[dict[str, Any]]](list)
        for method, family in FAMILY.items():
            (work / method).mkdir()
            sizes = {"models": given.models if method == "procrustes" else 2}
            make(work / method, family, argparse.Namespace(**{**vars(given), **sizes}))
        for turn in range(given.repeats):
            for job in JOBS:
                if "full" in job and turn >= given.full_repeats:
                    continue
                method = job.partition(",")[0]
                models = given.models if method == "procrustes" else 2
                runs[job].append(apart(job, work / method, models))
                print(f"{turn + 1}/{given.repeats} {job}", file=sys.stderr)
    table(given, runs)


def table(given: argparse.Namespace, runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    mine, full = runs["procrustes"], runs["procrustes, full"]
    counts = mine[0]["passes"]
    print(f"{given.models} models, {given.layers} layers of {given.width}, median of {len(mine)};")
    print(f"{min(counts)} to {max(counts)} passes, median {statistics.median(counts):g}\n")
    print("| all matrices | seconds |\n|---|---:|")
    for kind in PARTS:
        print(f"| {kind} | {middle(mine, kind):.2f} |")
    print(f"| all | {statistics.median(one['seconds'] for one in mine):.2f} |")
    print("\n| one matrix | passes | ours, s | full, s | faster | largest difference |")
    print("|---|---:|---:|---:|---:|---:|")
    for kind, one in full[0]["shapes"].items():
        passes = one.get("passes", "one turn")
        print(f"| {kind} | {passes} {row(one['ours'], one['full'])} {one['apart']:.0e} |")
    print("\n| job | ours, s | full, s | faster |\n|---|---:|---:|---:|")
    seconds = [statistics.median(one["seconds"] for one in runs[job]) for job in JOBS[2:]]
    print(f"| rotation of 2 RoBERTa {row(*seconds)}")
    print("\n| job | peak MB |\n|---|---:|")
    for job in JOBS:
        print(f"| {job} | {max(one['peak'] for one in runs[job]) / 1e6:.0f} |")


def middle(runs: Sequence[Mapping[str, Any]], kind: str) -> float:
    return statistics.median(one["by"].get(kind, 0.0) for one in runs)


def row(mine: float, full: float) -> str:
    return f"| {mine:.2f} | {full:.2f} | {full / max(mine, 1e-9):.1f} x |"


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


# The nearest orthogonal matrix -------------------------------------------------------------


def by_svd(matrix: torch.Tensor) -> tuple[torch.Tensor, int]:
    """gesdd of the QR factor, as the project has it."""
    from harness.weights.polar import polar

    return polar(matrix), 1


def iterated(
    step: Callable[[torch.Tensor], Iterator[torch.Tensor]],
) -> Callable[[torch.Tensor], tuple[torch.Tensor, int]]:
    """Of a square matrix, the QR factor of a long one: until a step changes nothing to speak of."""

    def found(matrix: torch.Tensor) -> tuple[torch.Tensor, int]:
        basis, core = torch.linalg.qr(matrix) if len(matrix) > matrix.shape[1] else (None, matrix)
        last, count = core, 0
        for now in step(core):
            count += 1
            gone = float((now - last).norm() / now.norm())
            last = now
            if gone < ACCURACY**0.6 or count == 100:
                break
        return (last if basis is None else basis @ last), count

    return found


def newton_schulz(matrix: torch.Tensor) -> Iterator[torch.Tensor]:
    """Products alone: x (3 - x^T x) / 2."""
    now = matrix / torch.linalg.matrix_norm(matrix, 2)
    while True:
        now = 1.5 * now - 0.5 * now @ (now.mT @ now)
        yield now


def newton(matrix: torch.Tensor) -> Iterator[torch.Tensor]:
    """Inverses, scaled by norms (Higham 1986): (s x + x^-T / s) / 2."""
    now = matrix
    while True:
        back = torch.linalg.inv(now)
        norms = [
            torch.linalg.matrix_norm(one, 1) * torch.linalg.matrix_norm(one, torch.inf)
            for one in (back, now)
        ]
        scale = float(norms[0] / norms[1]) ** 0.25
        now = (scale * now + back.mT / scale) / 2
        yield now


def halley(matrix: torch.Tensor) -> Iterator[torch.Tensor]:
    """Halley's, weighted dynamically (QDWH, Nakatsukasa et al. 2010): QR, later Cholesky."""
    size = len(matrix)
    one = torch.eye(size, dtype=matrix.dtype)
    now = matrix / torch.linalg.matrix_norm(matrix, "fro")
    low = float(1 / torch.linalg.matrix_norm(torch.linalg.inv(now), 1) / size**0.5)
    while True:
        d = (4 * (1 - low**2) / low**4) ** (1 / 3) if low < 1 else 0.0
        a = (1 + d) ** 0.5
        a += (8 - 4 * d + 8 * (2 - low**2) / (low**2 * (1 + d) ** 0.5)) ** 0.5 / 2
        b, c = (a - 1) ** 2 / 4, a + (a - 1) ** 2 / 4 - 1
        if c > 100:
            factor = torch.linalg.qr(torch.cat([c**0.5 * now, one])).Q
            now = b / c * now + (a - b / c) / c**0.5 * factor[:size] @ factor[size:].mT
        else:
            root = torch.linalg.cholesky(one + c * now.mT @ now)
            now = b / c * now + (a - b / c) * torch.cholesky_solve(now.mT, root).mT
        low = min(1.0, low * (a + b * low**2) / (1 + c * low**2))
        yield now


WAYS = {
    "gesdd": by_svd,
    "Newton-Schulz": iterated(newton_schulz),
    "Newton, scaled": iterated(newton),
    "Halley (QDWH)": iterated(halley),
}


def polars(given: argparse.Namespace) -> None:
    """Print what the nearest orthogonal matrix takes, each way, of what Procrustes decomposes."""
    numbers = torch.Generator().manual_seed(0)
    print("| shape | way | seconds | iterations | largest error |\n|---|---|---:|---:|---:|")
    for shape in ((given.width, given.width), (4 * given.width, given.width)):
        base = like_trained(torch.empty(shape), numbers).double()
        matrices = [moved(base, given.delta, numbers) for _ in range(2)]
        # products of two experts, and the matrix itself where it is long
        matrix = matrices[0].mT @ matrices[1] if shape[0] == shape[1] else base
        expected, _ = by_svd(matrix)
        for way, find in WAYS.items():
            runs = []
            for _ in range(given.repeats):
                start = time.perf_counter()
                found, count = find(matrix)
                runs.append(time.perf_counter() - start)
            error = float((found - expected).abs().max())
            seconds = f"{statistics.median(runs):.3f}"
            print(f"| {shape[0]} x {shape[1]} | {way} | {seconds} | {count} | {error:.0e} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768, help=f"a multiple of {HEAD_SIZE}")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--full-repeats", type=int, default=1)
    parser.add_argument("--delta", type=float, default=5e-4, help="standard deviation of noise")
    parser.add_argument("--growth", action="store_true")
    parser.add_argument("--polar", action="store_true")
    parser.add_argument("--work", type=Path)
    parser.add_argument("--job", choices=JOBS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.job:
        print(json.dumps(measure(given)))
    elif given.polar:
        polars(given)
    else:
        (grow if given.growth else compare)(given)


if __name__ == "__main__":
    main()
