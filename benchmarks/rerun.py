"""The cost of an evaluation whose records all exist already, on a board of five tasks.

python benchmarks/rerun.py [--against TREE] [--repeats 5] [--layers 12] [--folder DIR]

Five experts of BERT-base's size with random weights are merged three ways with their heads kept;
every merge is evaluated on the five tasks, with base, experts and the other merges. Then it is
evaluated again, each time in a new process that has imported harness, torch and transformers before
the clock starts. `--against` is another checkout, whose re-runs alternate with ours on the same
records.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
COLUMNS = {
    "glue/cola": ("sentence",),
    "glue/sst2": ("sentence",),
    "glue/mrpc": ("sentence1", "sentence2"),
    "glue/rte": ("sentence1", "sentence2"),
    "glue/qnli": ("question", "sentence"),
}
MERGERS = ("average", "task_arithmetic", "ties")
SIZES = {"train": 2000, "validation": 100}
WORDS = 30_000
"""About as many as BERT has."""


def make_data(folder: Path) -> None:
    """Write rows of random words for every task, as in a local data folder."""
    import numpy as np

    random = np.random.default_rng(0)
    for task, columns in COLUMNS.items():
        (folder / task).mkdir(parents=True, exist_ok=True)
        for split, size in SIZES.items():
            rows = [
                {
                    **{
                        c: " ".join(f"w{n}" for n in random.integers(2000, size=9)) for c in columns
                    },
                    "label": index % 2,
                }
                for index in range(size)
            ]
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / task / f"{split}.jsonl").write_text(lines)


def make_tokenizer(folder: Path, words: int) -> None:
    """Write a word-level tokenizer of four special tokens and the words w0, w1, ..."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocab = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}
    vocab |= {f"w{n}": n + 4 for n in range(words)}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )  # fmt: skip
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]",
    ).save_pretrained(folder)  # fmt: skip


def make_models(folder: Path, layers: int) -> None:
    """Write a base, and for each task an expert: the base plus noise."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertModel

    from harness import TASKS

    torch.manual_seed(0)
    base = BertModel(BertConfig(num_hidden_layers=layers))
    base.save_pretrained(folder / "base")
    make_tokenizer(folder / "base", WORDS)
    for task in COLUMNS:
        labels = dict(enumerate(TASKS[task].labels))
        config = BertConfig(
            num_hidden_layers=layers, id2label=labels, label2id={v: k for k, v in labels.items()}
        )
        expert = BertForSequenceClassification(config)
        expert.bert.load_state_dict(base.state_dict())
        with torch.no_grad():
            for parameter in expert.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.005)
        expert.save_pretrained(folder / task.replace("/", "-"))
        make_tokenizer(folder / task.replace("/", "-"), WORDS)


def make(folder: Path, layers: int) -> None:
    """Write data, models and merges."""
    import harness

    make_data(folder / "data")
    make_models(folder, layers)
    experts = tuple(str(folder / task.replace("/", "-")) for task in COLUMNS)
    for name in MERGERS:
        recipe = harness.Recipe(
            experts=experts, base=str(folder / "base"), merger=harness.Choice(name),
            heads="keep", tasks=tuple(COLUMNS),
        )  # fmt: skip
        harness.merge(recipe, out=folder / name)


def evaluate(folder: Path) -> dict[str, Any]:
    """Evaluate every merge; the seconds it took and the number of records."""
    import harness

    for heavy in ("torch", "transformers"):
        importlib.import_module(heavy)  # imported before the clock starts

    run, call = harness.Run, harness.evaluate  # imported before the clock starts
    start = time.perf_counter()
    count = 0
    for name in MERGERS:
        others = tuple(str(folder / other) for other in MERGERS if other != name)
        asked = run(
            model=str(folder / name), references=others, shots=(1, 5), draws=2,
            data_dir=str(folder / "data"), output=str(folder / "records"),
        )  # fmt: skip
        count += len(call(asked))
    return {"seconds": time.perf_counter() - start, "records": count, "tree": harness.__file__}


def in_new_process(tree: Path, step: str, folder: Path, layers: int) -> dict[str, Any]:
    """The result that a step prints, run with the package of a checkout."""
    command = [sys.executable, __file__, "--step", step, "--folder", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONWARNINGS": "ignore"}
    environment["HARNESS_CACHE_DIR"] = str(folder / "cache")
    done = subprocess.run(
        [*command, "--layers", str(layers)], env=environment, stdout=subprocess.PIPE, text=True,
        check=True,
    )  # fmt: skip
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--folder", type=Path, help="where models and records are kept")
    parser.add_argument("--step", choices=["make", "evaluate"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step == "make":
        make(given.folder, given.layers)
        print(json.dumps({}))
        return
    if given.step == "evaluate":
        print(json.dumps(evaluate(given.folder)))
        return
    with tempfile.TemporaryDirectory() as room:
        compare(given.folder or Path(room), given)


def compare(folder: Path, given: argparse.Namespace) -> None:
    """Evaluate once, then repeat it with each checkout in turn, and print the medians."""
    trees = [ROOT, *([given.against.resolve()] if given.against else [])]
    if not (folder / MERGERS[-1]).is_dir():
        in_new_process(ROOT, "make", folder, given.layers)
    first = in_new_process(ROOT, "evaluate", folder, given.layers)
    print(f"{first['records']} records, {first['seconds']:.1f} s the first time\n")
    times: dict[Path, list[float]] = {}
    for _ in range(given.repeats):
        for tree in trees:
            again = in_new_process(tree, "evaluate", folder, given.layers)
            times.setdefault(tree, []).append(again["seconds"])
    print("| checkout | seconds beyond imports | least | most |\n|---|---:|---:|---:|")
    for tree, found in times.items():
        called = "this" if tree == ROOT else "the other"
        print(
            f"| {called} | {statistics.median(found):.2f} | {min(found):.2f} | {max(found):.2f} |"
        )


if __name__ == "__main__":
    main()
