"""Encoding and the arithmetic of merging on a GPU, compared with the processor.

python benchmarks/gpu.py [--out gpu.json] [--repeats 2] [--small]
python benchmarks/gpu.py --stacked [--repeats 9]    # four models in one pass, of MiniLM's size

One process and one run of a few minutes, on random weights of the sizes of BERT-base and ViT-B/16.
Prints tables, and all figures as JSON:

- *rows a second*: tokens without padding of random rows of 12 to 110 words, and images that are
  already pixels, in each type and by batch size; `of the peak` is the share of the GPU's own matmul
  peak in that type that useful products reach;
- *agreement*: how far features in each type are from float32 on the processor;
- *stacked*: features of four models in turn, and of their stacked weights in one pass
  (`torch.func.vmap`), by type and batch size;
- *merging*: methods of the harness on the processor and on the device, with copies there and back:
  average, TIES, RegMean, TSV, polar factors, Procrustes, exact Fisher.

Without a GPU it runs small models on the processor, which only shows that the script works.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import tempfile
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from rerun import make_tokenizer
from tabulate import tabulate

from harness import Rows, Task, weights
from harness.checkpoints.build import build_model
from harness.checkpoints.open import open_checkpoint
from harness.kinds import kind_of
from harness.mergers.regmean import regmean
from harness.mergers.ties import ties
from harness.mergers.tsv import tsv
from harness.merging.device import DeviceTransfer
from harness.passes.features import _Ready
from harness.passes.fisher import fisher
from harness.passes.placement import DType, Placement, full_float32
from harness.readout import LAST_LINEAR
from harness.rng import rng

LABELS = 5
TYPES: tuple[DType, ...] = ("float32", "bfloat16", "float16")


class Size(NamedTuple):
    """Sizes of both models, the rows, the batches to try, and the matrices to measure the peak."""

    width: int
    layers: int
    heads: int
    words: int
    rows: int
    images: int
    side: int
    budgets: tuple[int, ...]
    counts: tuple[int, ...]
    peak: int
    examples: int


BASE = Size(768, 12, 12, 30000, 12000, 4096, 224, (2**13, 2**15, 2**17), (32, 128, 512), 8192, 64)
SMALL = Size(32, 2, 2, 50, 24, 6, 32, (128, 512), (2, 4), 128, 4)
MINILM = SMALL._replace(width=384, layers=3, heads=12, words=30522, budgets=(512, 1024, 2048))


def timed(job: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Median seconds of a job, after one warm-up run."""
    job()
    seconds = []
    for _ in range(repeats):
        _finish(device)
        start = time.perf_counter()
        job()
        _finish(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak(size: int, dtype: DType, device: torch.device, repeats: int) -> float:
    """Floating-point operations per second of a square matrix product."""
    kind: torch.dtype = getattr(torch, dtype)
    one, other = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
    with full_float32():
        return 2 * size**3 / timed(lambda: one @ other, device, 5 * repeats)


# Models and rows ---------------------------------------------------------------------------


def bert(folder: Path, size: Size) -> None:
    """Write a classifier of rows with random weights, and a word-level tokenizer."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=size.words + 4, hidden_size=size.width, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, intermediate_size=4 * size.width, num_labels=LABELS,
    )  # fmt: skip
    BertForSequenceClassification(config).save_pretrained(folder)
    make_tokenizer(folder, size.words)


def texts(size: Size) -> Rows:
    """Rows of random words with random labels, as long as reviews."""
    task = Task(
        name="benchmark/rows", kind="classification", text=("text",), label="label",
        labels=tuple(f"class {n}" for n in range(LABELS)), metrics=("accuracy",),
        splits={"test": "test"}, reported="test",
    )  # fmt: skip
    random = rng(0, "gpu")
    made = [
        (" ".join(f"w{n}" for n in random.integers(size.words, size=length)),)
        for length in random.integers(12, 110, size=size.rows)
    ]
    labels = random.integers(LABELS, size=size.rows).astype(float)
    return Rows(task, "test", tuple(made), labels, "gpu")


def vit(size: Size) -> Any:
    """A classifier of images with random weights and patches of 16 x 16 pixels."""
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    config = ViTConfig(
        hidden_size=size.width, num_hidden_layers=size.layers, num_attention_heads=size.heads,
        intermediate_size=4 * size.width, image_size=size.side, num_labels=LABELS,
    )  # fmt: skip
    return ViTForImageClassification(config).eval()


def products(size: Size, lengths: Sequence[int]) -> float:
    """Operations for rows of these lengths: linear layers, and the two products of attention."""
    linear = 2 * 12 * size.width**2 * sum(lengths)
    attention = 4 * size.width * sum(length**2 for length in lengths)
    return size.layers * float(linear + attention)


# Encoding ----------------------------------------------------------------------------------


def encoding(size: Size, device: str, repeats: int, peaks: Mapping[str, float]) -> Iterator[Any]:
    """Tokens per second, without padding, of the same rows of text, by type and batching."""
    with tempfile.TemporaryDirectory() as name:
        bert(Path(name), size)
        checkpoint, rows = open_checkpoint(name), texts(size)
        expected: np.ndarray[Any, Any] | None = None
        for dtype in TYPES:
            placed = Placement(device=device, dtype=dtype)
            ready = _Ready(checkpoint, rows, 128, [LAST_LINEAR], placed)
            costs = ready.rows.costs
            few = ready.rows.by_cost()[:: max(1, len(costs) // 32)]
            if expected is None:
                here = _Ready(checkpoint, rows, 128, [LAST_LINEAR], Placement(device="cpu"))
                expected = _features(here, few)
            far = float(np.abs(_features(ready, few) - expected).max() / np.abs(expected).max())
            drawn = [[*range(s, min(s + 32, len(costs)))] for s in range(0, len(costs), 32)]
            plans = {"32 rows as drawn": drawn}
            plans |= {f"{most} tokens": [*ready.rows.batches(most)] for most in size.budgets}
            for batching, batches in plans.items():
                seconds = timed(
                    lambda ready=ready, batches=batches: deque(ready.each(batches), maxlen=0),
                    placed.where,
                    repeats,
                )
                padded = sum(len(one) * max(costs[row] for row in one) for one in batches)
                yield {
                    "model": "text", "dtype": dtype, "batch": batching, "far": far,
                    "padding": 1 - sum(costs) / padded,
                    "tokens a second": sum(costs) / seconds,
                    "of the peak": products(size, costs) / seconds / peaks[dtype],
                }  # fmt: skip


def _features(ready: _Ready, rows: Sequence[int]) -> np.ndarray[Any, Any]:
    """Features of one batch of rows at the only readout."""
    ((_, _, (x, _)),) = ready.each([rows])
    return x


def images(size: Size, device: str, repeats: int, peaks: Mapping[str, float]) -> Iterator[Any]:
    """Images per second, given their pixels, by type and batch size."""
    made = vit(size)
    pixels = torch.randn(size.images, 3, size.side, size.side)
    tokens = 1 + (size.side // 16) ** 2
    expected: torch.Tensor | None = None
    for dtype in TYPES:
        placed, model = Placement(device=device, dtype=dtype), copy.deepcopy(made)
        if expected is None:
            with torch.inference_mode(), full_float32():
                expected = model(pixel_values=pixels[:8]).logits
        model = placed.put(model, model.classifier)

        def read(
            pixels: torch.Tensor, count: int, model: Any = model, placed: Placement = placed
        ) -> torch.Tensor:
            with torch.inference_mode(), full_float32():
                parts = (placed.put_inputs({"pixel_values": one}) for one in pixels.split(count))
                return torch.cat([model(**one).logits.float() for one in parts]).cpu()

        far = float((read(pixels[:8], 8) - expected).abs().max() / expected.abs().max())
        for count in size.counts:
            seconds = timed(
                lambda count=count, read=read: read(pixels, count), placed.where, repeats
            )
            yield {
                "model": "images", "dtype": dtype, "batch": f"{count} images", "far": far,
                "images a second": size.images / seconds,
                "of the peak": products(size, [tokens] * size.images) / seconds / peaks[dtype],
            }  # fmt: skip


def stacked(size: Size, device: str, repeats: int, types: Sequence[DType] = TYPES) -> Iterator[Any]:
    """Seconds that four models take for a batch of rows of 128 tokens, in turn and in one pass."""
    from torch.func import functional_call, stack_module_state, vmap
    from transformers import BertConfig, BertModel

    where = torch.device(device)
    config = BertConfig(
        vocab_size=size.words, hidden_size=size.width, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, intermediate_size=4 * size.width,
    )  # fmt: skip
    made = [BertModel(config, add_pooling_layer=False).eval() for _ in range(4)]
    shape = copy.deepcopy(made[0]).to("meta")
    for dtype in types:
        models = [copy.deepcopy(one).to(where, getattr(torch, dtype)) for one in made]
        states = stack_module_state(models)
        for most in size.budgets:
            ids = torch.randint(size.words, (max(1, most // 128), 128)).to(where)

            def one_pass(*state: Any, ids: torch.Tensor = ids) -> torch.Tensor:
                return functional_call(shape, state, (ids,)).last_hidden_state

            def in_turn(models: Sequence[Any] = models, ids: torch.Tensor = ids) -> torch.Tensor:
                return torch.stack([model(ids).last_hidden_state for model in models])

            def together(
                states: Any = states, one_pass: Callable[..., torch.Tensor] = one_pass
            ) -> torch.Tensor:
                return vmap(one_pass)(*states)

            with torch.inference_mode(), full_float32(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # on a processor attention is a loop over models
                apart = (in_turn() - together()).abs().max() / in_turn().abs().max()
                turns, one = (timed(job, where, repeats) for job in (in_turn, together))
            yield {
                "dtype": dtype, "tokens": ids.numel(), "in turn, s": turns, "stacked, s": one,
                "faster": turns / one, "far": float(apart),
            }  # fmt: skip


# Merging -----------------------------------------------------------------------------------


def merging(size: Size, device: torch.device, repeats: int) -> Iterator[Any]:
    """Methods of the harness on five experts of random weights, with --merge-device."""
    width, matrices = size.width, 6 * size.layers
    torch.manual_seed(0)
    base = {f"{n}.weight": torch.randn(width, 2 * width) for n in range(matrices)}
    experts = [{n: t + 0.02 * torch.randn_like(t) for n, t in base.items()} for _ in range(5)]
    rows = [torch.randn(4 * width, 2 * width, dtype=torch.float64) for _ in experts]
    gram = [dict.fromkeys(base, one.T @ one / len(one)) for one in rows]
    squares = [[t[:, :width].double() for t in one.values()][: size.layers] for one in experts]

    few = [*base][: size.layers]  # TSV decomposes these for each expert

    def whole(merged: Any, names: Sequence[str] = tuple(base)) -> torch.Tensor:
        return torch.cat([merged[name].cpu().flatten() for name in names])

    def of(where: torch.device) -> Mapping[str, Callable[[], torch.Tensor]]:
        crossing = DeviceTransfer(where)
        tuned, start, grams = map(crossing.to_device, (experts, base, gram))
        part = [weights.select(one, few) for one in tuned]

        def polar(square: torch.Tensor) -> torch.Tensor:
            return weights.polar(square.to(where)).cpu()

        def turned(each: Sequence[torch.Tensor]) -> torch.Tensor:
            placed = [one.to(where) for one in each]
            found = weights.generalized(placed, (0,), weights.Rules(), turns=False)
            assert found.turned is not None
            return found.turned[1].cpu().flatten()

        return {
            "average": lambda: whole(weights.mean(tuned)),
            "TIES": lambda: whole(ties(tuned, start)),
            "RegMean": lambda: whole(regmean(tuned, start, gram=grams)),
            "TSV": lambda: whole(tsv(part, weights.select(start, few)), few),
            "polar factors": lambda: torch.stack(weights.spread(polar, squares[0])),
            "Procrustes": lambda: torch.cat(weights.spread(turned, [*zip(*squares, strict=True)])),
        }

    here, there = of(torch.device("cpu")), of(device)
    for name in here:
        yield _compared(name, here[name], there[name], device, repeats)
    yield from _fisher(size, device, repeats)


def _fisher(size: Size, device: torch.device, repeats: int) -> Iterator[Any]:
    """Exact Fisher information of examples of one length, by the same code on both devices."""
    kind = kind_of(texts(SMALL).task)
    ids = torch.randint(4, size.words, (size.examples, 1, 64), generator=torch.manual_seed(0))

    def of(where: torch.device) -> Callable[[], torch.Tensor]:
        model = build_model(checkpoint.config, checkpoint.weights, "BERT").to(where)
        inputs = [{"input_ids": one.to(where)} for one in ids]
        labels = torch.zeros(1, dtype=torch.long, device=where)

        def information() -> torch.Tensor:
            found = fisher(model, ((one, labels) for one in inputs), kind)
            return torch.cat([tensor.flatten() for tensor in found.values()])

        return information

    with tempfile.TemporaryDirectory() as name:
        bert(Path(name), size)
        checkpoint = open_checkpoint(name)
        yield _compared("Fisher", of(torch.device("cpu")), of(device), device, repeats)


def _compared(
    name: str,
    here: Callable[[], torch.Tensor],
    there: Callable[[], torch.Tensor],
    device: torch.device,
    repeats: int,
) -> dict[str, Any]:
    """Seconds on the processor and on the device, and how far apart the results are."""
    with full_float32():
        begun = time.perf_counter()
        one = here()
        on_processor = time.perf_counter() - begun
        on_device = timed(there, device, repeats)
        far = float((one - there().cpu()).abs().max() / one.abs().max())
    return {
        "arithmetic": name, "processor, s": on_processor, "device, s": on_device,
        "faster": on_processor / on_device, "far": far,
    }  # fmt: skip


def measured(device: str, size: Size, repeats: int) -> dict[str, Any]:
    """All figures of one run."""
    where = Placement(device=device).where
    peaks = {dtype: peak(size.peak, dtype, where, repeats) for dtype in TYPES}
    found: dict[str, Any] = {
        "device": torch.cuda.get_device_name(where) if where.type == "cuda" else "processor",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "peak, TFLOP/s": {dtype: value / 1e12 for dtype, value in peaks.items()},
    }
    parts: Mapping[str, Iterator[Any]] = {
        "encoding": encoding(size, device, repeats, peaks),
        "images": images(size, device, repeats, peaks),
        "stacked": stacked(size, device, repeats),
        "merging": merging(size, where, repeats),
    }
    for name, rows in parts.items():
        found[name] = []
        for row in rows:
            found[name].append(row)
            print(f"{name}: {json.dumps(row)}", flush=True)
    for name in parts:
        print(f"\n{_table(found[name])}")
    return found


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    return str(tabulate(rows, headers="keys", tablefmt="github", floatfmt=".3g"))


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--stacked", action="store_true")
    asked = parser.parse_args(given)
    there = torch.cuda.is_available()
    device, types = ("cuda", TYPES) if there else ("cpu", TYPES[:1])
    if asked.stacked:
        return print(_table([*stacked(MINILM, device, asked.repeats, types)]))
    if not there:
        print("There is no GPU: small, and on the processor. These are no figures of a GPU.")
    found = measured(device, BASE if there and not asked.small else SMALL, asked.repeats)
    told = json.dumps(found, indent=1)
    if asked.out:
        asked.out.write_text(f"{told}\n")
    print(f"\n{told}")


if __name__ == "__main__":
    main()
