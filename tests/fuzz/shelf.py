"""A small valid set-up of every kind of file that the harness reads; mutants are copies of it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import yaml
from safetensors.torch import load_file, save_file

from harness.cli import main
from tests.conftest import TAGS, model
from tests.test_adapters import adapter

LABELS = {
    "glue/rte": ["entailment", "not_entailment"],
    "glue/mrpc": ["not_equivalent", "equivalent"],
}
EXPERTS = {"a": "glue/rte", "b": "glue/rte", "c": "glue/mrpc"}
BASELINE = Path(__file__).resolve().parents[1] / "baselines" / "average.json"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def stock(root: Path) -> None:
    """Fill an empty folder, from inside of it: records name what they were made of by its path."""
    os.chdir(root)
    base = model(Path("base"))
    for seed, (name, task) in enumerate(EXPERTS.items(), start=1):
        _expert(Path(name), task, seed, base)
    _with_vocabulary(Path("words"), base)
    shutil.copytree("words", "same-words")
    _sharded(Path("sharded"))
    shutil.copyfile("a/config.json", adapter(Path("lora"), base) / "config.json")  # its labels
    _data()
    _own_tasks(base)
    run("merge", "a", "b", "--out", "merged")
    run("merge", "a", "c", "--heads", "keep", "--out", "kept")
    _several(Path("several"))
    _mergekit(Path("kit"))
    for name in ("a", "b"):
        asked = ["--task", "glue/rte", "--merger", "regmean:examples=8", "--data-dir", "data"]
        run("statistics", name, *asked, "--out", f"{name}.stats.safetensors")
    shots = ["--protocols", "current,knn", "--shots", "1", "--draws", "1"]
    run("evaluate", "--model", "merged", "--data-dir", "data", *shots, "--output-path", "records")
    _recipes()
    Path("baselines").mkdir()
    shutil.copyfile(BASELINE, Path("baselines", BASELINE.name))


def run(*argv: str) -> None:
    """A command that must succeed."""
    assert main(argv) == 0, argv


def _expert(folder: Path, task: str, seed: int, base: Path) -> None:
    model(folder, LABELS[task], seed=seed, near=base)
    _write(folder / "expert.json", {"base": "base", "tasks": [task], "seed": seed})


def _with_vocabulary(folder: Path, base: Path) -> None:
    """An expert with the tokenizer files of old: vocab.txt, and no tokenizer.json."""
    _expert(folder, "glue/rte", 4, base)
    vocab = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in vocab))
    (folder / "tokenizer.json").unlink()
    _write(folder / "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep")}
    _write(folder / "special_tokens_map.json", special)
    _write(folder / "added_tokens.json", {"word99": 44})


def _sharded(folder: Path) -> None:
    shutil.copytree("a", folder)
    state = load_file(folder / SINGLE)
    placed = {name: f"model-{1 + i % 2:05}-of-00002.safetensors" for i, name in enumerate(state)}
    for shard in sorted(set(placed.values())):
        part = {name: state[name] for name in state if placed[name] == shard}
        save_file(part, folder / shard, metadata={"format": "pt"})
    (folder / SINGLE).unlink()
    _write(folder / INDEX, {"metadata": {"total_size": 1}, "weight_map": placed})


def _mergekit(folder: Path) -> None:
    """A folder as mergekit leaves it."""
    shutil.copytree("merged", folder)
    (folder / "merge.json").unlink()
    each = [{"model": name, "parameters": {"weight": 0.5}} for name in ("a", "b")]
    config = {"merge_method": "linear", "models": each, "dtype": "float32"}
    (folder / "mergekit_config.yml").write_text(yaml.safe_dump(config))


def _data() -> None:
    for task in LABELS:
        for split, rows in (("train", 40), ("validation", 12)):
            table = pairs(rows)
            for kind in ("data", "data-jsonl", "data-csv"):
                Path(kind, task).mkdir(parents=True, exist_ok=True)
            pq.write_table(table, f"data/{task}/{split}.parquet")
            pyarrow.csv.write_csv(table, f"data-csv/{task}/{split}.csv")
            lines = "".join(json.dumps(row) + "\n" for row in table.to_pylist())
            Path(f"data-jsonl/{task}/{split}.jsonl").write_text(lines)


def _own_tasks(base: Path) -> None:
    """Tasks described in YAML, by name: of rows in lines of JSON, and of words in lines of text."""
    Path("own").mkdir()
    pair = {"text": ["sentence1", "sentence2"], "label": "label", "labels": LABELS["glue/rte"]}
    own = {
        "pairs": {**pair, "files": "{split}.jsonl", "splits": ["test"]},
        "tags": {"kind": "tagging", "text": "words", "label": "tags", "files": "{split}.conll"},
    }
    for name, said in own.items():
        Path("own", f"{name}.yaml").write_text(yaml.safe_dump(said, sort_keys=False))
    for split, rows in (("train", 40), ("test", 12)):
        table = [
            {**row, "label": LABELS["glue/rte"][row["label"]]} for row in pairs(rows).to_pylist()
        ]
        lines = "".join(json.dumps(row) + "\n" for row in table)
        Path("own", f"{split}.jsonl").write_text(lines)
        words = (f"word{row} _ {TAGS[row % 5]}\n\nword{row % 9} _ O\n" for row in range(rows))
        Path("own", f"{split}.conll").write_text("# of words\n" + "".join(words))
    model(Path("tagger"), TAGS, seed=5, near=base, unit="word")


def _several(folder: Path) -> None:
    """A model of several tasks, which lists no files: of one that does, none may be changed."""
    shutil.copytree("kept", folder)
    (folder / "merge.json").unlink()
    _write(folder / "expert.json", {"tasks": ["glue/rte", "glue/mrpc"]})


def pairs(rows: int) -> pa.Table:
    """Rows of a task of sentence pairs, as the Hub has them."""
    texts = {name: [f"word{i % 9}" for i in range(rows)] for name in ("sentence1", "sentence2")}
    return pa.table({**texts, "label": [i % 2 for i in range(rows)], "idx": list(range(rows))})


def _recipes() -> None:
    recipe = {
        "experts": ["a", "b"],
        "base": "base",
        "merger": {"name": "ties", "density": 0.5},
        "premerge": [{"name": "dare", "drop_rate": 0.5}],
        "heads": "average",
        "tasks": ["glue/rte"],
        "seed": 1,
    }
    kit = {
        "merge_method": "ties",
        "base_model": "base",
        "models": [{"model": "a", "parameters": {"weight": 0.5, "density": 0.5}}, {"model": "b"}],
        "parameters": {"weight": 0.3, "density": 0.9, "lambda": 1.0, "normalize": True},
        "dtype": "float32",
        "tokenizer_source": "base",
    }
    Path("recipe.yaml").write_text(yaml.safe_dump(recipe))
    trained = {"epochs": 1, "limit": 12, "batch_size": 4}
    study = {
        "study": "rte",
        "base": "base",
        "experts": {"tasks": "glue/rte", "seeds": [0, 1], "finetune": trained},
        "sets": {"by": "task"},
        "mergers": ["average", "ties", "regmean:examples=8"],
        "exclude": [{"merger": "ties"}],
        "protocols": ["current", "knn:shots=[1]"],
        "evaluate": {"draws": 1},
    }
    Path("study.yaml").write_text(yaml.safe_dump(study))
    # a base without a head has no place in a merge of heads: an expert stands in for it
    Path("kit.yaml").write_text(yaml.safe_dump({**kit, "base_model": "sharded"}))


def _write(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
