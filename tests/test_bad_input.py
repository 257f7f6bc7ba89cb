"""Every mistake is one line that names the thing, found before work starts, and leaves nothing."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.cli import main
from harness.passes import features as encode
from tests.conftest import model

Tensors = dict[str, torch.Tensor]
ENTAILMENT = ["entailment", "not_entailment"]
WEIGHTS = "model.safetensors"
WORDS = "bert.embeddings.word_embeddings.weight"
PANIC = {"type": "Precompiled", "precompiled_charsmap": "x"}
DENSE = "bert.encoder.layer.1.intermediate.dense.weight"


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base, two experts of one task, some that do not fit them, and a merge; never changed."""
    root = tmp_path_factory.mktemp("shelf")
    base = model(root / "base")
    model(root / "a", ENTAILMENT, seed=1, near=base)
    model(root / "b", ENTAILMENT, seed=2, near=base)
    model(root / "noyes", ["no", "yes"], seed=3, near=base)
    model(root / "nameless", ["LABEL_0", "LABEL_1"], seed=4, near=base)
    model(root / "roberta", ENTAILMENT, family="roberta")
    model(root / "rotary", ENTAILMENT, family="roformer")
    model(root / "deep", ENTAILMENT, num_hidden_layers=3)
    model(root / "wide", ENTAILMENT, intermediate_size=32)
    model(root / "wide-base", intermediate_size=32)
    data = root / "data" / "glue" / "rte"
    data.mkdir(parents=True)
    for split, rows in (("train", 40), ("validation", 12)):
        pq.write_table(pairs(rows), data / f"{split}.parquet")
    for name, columns in (("mrpc", {}), ("stsb", {"label": [0.1 * i for i in range(80)]})):
        shutil.copytree(data, data.parent / name)
        for split, rows in (("train", 80), ("validation", 79)):
            made = pairs(80, **columns).slice(0, rows)
            pq.write_table(made, data.parent / name / f"{split}.parquet")
    merged = ["--tasks", "glue/rte", "--out", str(root / "merged")]
    assert main(["merge", str(root / "a"), str(root / "b"), *merged]) == 0
    return root


def pairs(rows: int, **columns: list[Any]) -> pa.Table:
    texts = {name: [f"word{i % 9}" for i in range(rows)] for name in ("sentence1", "sentence2")}
    return pa.table({**texts, "label": [i % 2 for i in range(rows)], **columns})


def described(text: str) -> pa.Table:
    """Rows with what the datasets library says of their columns."""
    return pairs(12).replace_schema_metadata({"huggingface": text})


def classes(names: list[Any]) -> pa.Table:
    label = {"names": names, "_type": "ClassLabel"}
    return described(json.dumps({"info": {"features": {"label": label}}}))


def broken_text(rows: int) -> pa.Table:
    """Rows with bytes in a column of text that are no UTF-8."""
    buffers = pa.array([b"\xff\xfe"] * rows).buffers()
    return pairs(rows).set_column(0, "sentence1", pa.StringArray.from_buffers(rows, *buffers[1:]))


class Place:
    """A scratch folder with copies of what is on the shelf, to be broken."""

    def __init__(self, shelf: Path, root: Path) -> None:
        self._shelf, self.root = shelf, root

    def __getitem__(self, name: str) -> str:
        """The path of something on the shelf."""
        return str(self._shelf / name)

    def copy(self, name: str) -> Path:
        target = self.root / "copies" / name
        return target if target.exists() else Path(shutil.copytree(self._shelf / name, target))

    def without(self, name: str, *files: str) -> str:
        folder = self.copy(name)
        for file in files:
            (folder / file).unlink()
        return str(folder)

    def wrote(self, name: str, file: str, content: str | bytes) -> str:
        path = self.copy(name) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return str(self.copy(name))

    def tensors(self, name: str, change: Callable[[Tensors], Any]) -> str:
        path = self.copy(name) / WEIGHTS
        found = load_file(path)
        change(found)
        save_file(found, path, metadata={"format": "pt"})
        return str(path.parent)

    def filled(self, name: str, tensor: str, value: float) -> str:
        def change(found: Tensors) -> None:
            found[tensor].view(-1)[3] = value

        return self.tensors(name, change)

    def truncated(self, name: str) -> str:
        return self.wrote(name, WEIGHTS, (self._shelf / name / WEIGHTS).read_bytes()[:-50])

    def config(self, name: str, **changes: Any) -> str:
        found = json.loads((self._shelf / name / "config.json").read_text())
        kept = {k: v for k, v in {**found, **changes}.items() if v is not ...}
        return self.wrote(name, "config.json", json.dumps(kept))

    def tokenizer(self, name: str, **changes: Any) -> str:
        found = json.loads((self._shelf / name / "tokenizer.json").read_text())
        return self.wrote(name, "tokenizer.json", json.dumps({**found, **changes}))

    def head(self, **changes: Any) -> str:
        """An encoder with a head for RTE beside it."""
        folder = Path(self.wrote("a", "heads/glue/rte/config.json", "{}"))
        shutil.copyfile(folder / WEIGHTS, folder / "heads/glue/rte" / WEIGHTS)
        found = json.loads((folder / "config.json").read_text())
        return self.wrote("a", "heads/glue/rte/config.json", json.dumps({**found, **changes}))

    def pipe(self, name: str, file: str) -> str:
        """With a pipe, which nobody writes to, in the place of a file."""
        folder = self.without(name, file)
        os.mkfifo(Path(folder) / file)
        return folder

    def fifo(self) -> str:
        """A pipe, which nobody writes to."""
        path = self.root / "fifo"
        if not path.exists():
            os.mkfifo(path)
        return str(path)

    def folder(self, name: str, file: str) -> str:
        folder = self.without(name, file)
        (Path(folder) / file).mkdir()
        return folder

    def pickled(self, name: str, content: object = None) -> str:
        folder = self.copy(name)
        torch.save(content or load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
        return self.without(name, WEIGHTS)

    def sharded(self, name: str, index: object) -> str:
        text = index if isinstance(index, str) else json.dumps(index)
        self.wrote(name, f"{WEIGHTS}.index.json", text)
        (self.copy(name) / WEIGHTS).rename(self.copy(name) / "model-1.safetensors")
        return str(self.copy(name))

    def recipe(self, text: str) -> str:
        (self.root / "recipe.yaml").write_text(text)
        return str(self.root / "recipe.yaml")

    def merge(self, *experts: str, **flags: str) -> list[str]:
        """`harness merge` of a and b, or of these, by average."""
        flags = {"out": str(self.root / "out" / "merged"), **flags}
        return ["merge", *(experts or (self["a"], self["b"])), *words(flags)]

    def evaluate(self, folder: str | None = None, **flags: str) -> list[str]:
        """`harness evaluate` of the merge on the shelf, or of a folder as a model of RTE."""
        known = {"model": folder or self["merged"], "data_dir": self["data"]}
        known["output_path"] = str(self.root / "out" / "records")
        if folder is not None:
            known["tasks"] = "glue/rte"
        return ["evaluate", *words({**known, **flags})]

    def inspect(self, *models: str, **flags: str) -> list[str]:
        """`harness inspect` of these, with somewhere to write."""
        return ["inspect", *models, *words({"out": str(self.root / "out" / "seen"), **flags})]

    def data(self, split: str, content: pa.Table | bytes | None) -> list[str]:
        """`harness evaluate` with another file for a split, or none."""
        path = self.copy("data") / "glue" / "rte" / f"{split}.parquet"
        if isinstance(content, pa.Table):
            pq.write_table(content, path)
        elif content is not None:
            path.write_bytes(content)
        else:
            path.unlink()
        return self.evaluate(data_dir=str(self.root / "copies" / "data"))

    def finetune(self, **flags: str) -> list[str]:
        known = {"base": self["base"], "task": "glue/rte", "data_dir": self["data"]}
        return ["finetune", *words({**known, "out": str(self.root / "out" / "expert"), **flags})]

    def finetune_both(self, **flags: str) -> list[str]:
        """`harness finetune` on two tasks together."""
        known = {"base": self["base"], "tasks": "glue/rte,glue/mrpc", "data_dir": self["data"]}
        return ["finetune", *words({**known, "out": str(self.root / "out" / "expert"), **flags})]

    def foreign(self) -> str:
        """A folder with somebody's work, where output would go."""
        folder = self.root / "thesis"
        folder.mkdir(exist_ok=True)
        (folder / "chapter.tex").write_text("hello")
        return str(folder)

    def loop(self) -> str:
        """A link to itself, where output would go."""
        (self.root / "loop").symlink_to("loop")
        return str(self.root / "loop")

    def left(self) -> list[str]:
        """What stands where output would go."""
        places = (self.root / "out", self.root / "thesis")
        return sorted(path.name for place in places for path in place.rglob("*"))


def words(flags: dict[str, str]) -> list[str]:
    return [f"--{name.replace('_', '-')}={value}" for name, value in flags.items()]


def drop(name: str) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.pop(name)


def to_integers(name: str) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.update({name: tensors[name].to(torch.int8)})


def add(name: str) -> Callable[[Tensors], Any]:
    return lambda tensors: tensors.update({name: torch.zeros(3)})


Case = tuple[Callable[[Place], list[str]], Sequence[str]]

NAMES: dict[str, Case] = {
    "merger": (lambda p: p.merge(merger="avrage"), ["merger", "avrage", "did you mean 'average'"]),
    "premerge": (
        lambda p: p.merge(base=p["base"], premerge="dara"),
        ["pre-merging method", "dara", "did you mean 'dare'"],
    ),
    "protocol": (
        lambda p: p.evaluate(protocols="current,kn"),
        ["protocol", "'kn'", "did you mean 'knn'"],
    ),
    "task": (lambda p: p.evaluate(p["a"], tasks="glue/rt"), ["glue/rt", "did you mean 'glue/rte'"]),
    "task of an expert": (lambda p: p.merge(tasks="glu/rte"), ["glu/rte", "'glue/rte'"]),
    "split": (
        lambda p: p.evaluate(tasks="glue/rte@test"),
        ["'glue/rte' has no split 'test'", "validation", "heldout10"],
    ),
    "task to train": (lambda p: p.finetune(task="glue/mrcp"), ["did you mean 'glue/mrpc'"]),
    "task to prepare": (
        lambda p: ["prepare", "--tasks", "glue/rt", "--data-dir", str(p.root / "out")],
        ["did you mean 'glue/rte'"],
    ),
    "module": (lambda p: p.merge(merger="nowhere:nothing"), ["nowhere:nothing", "No module"]),
    "command": (lambda p: ["mrege"], ["mrege"]),
    "flag": (lambda p: [*p.merge(), "--densty=1"], ["--densty"]),
    "list": (lambda p: ["list", "merger"], ["merger"]),
}

OPTIONS: dict[str, Case] = {
    "unknown": (
        lambda p: p.merge(base=p["base"], merger="ties:densty=1"),
        ["merger 'ties' has no option 'densty'", "did you mean 'density'"],
    ),
    "less than a batch under a preset": (
        lambda p: p.evaluate(preset="ft-classifier"),
        ["glue/rte@validation has 12 rows", "whole batches of 128", "expected 128 rows or more"],
    ),
    "fewer positions than a preset reads": (
        lambda p: [*p.data("validation", pairs(130)), "--preset", "ft-classifier"],
        ["has 40 positions, expected 256 or more", "'mean_all'", "leave out --preset"],
    ),
    "a base of fewer positions than a preset reads": (
        lambda p: p.finetune(preset="ft-classifier"),
        ["base has 40 positions, expected 256 or more"],
    ),
    "a preset that trains nothing": (
        lambda p: p.finetune(preset="regmean"),
        ["the preset 'regmean' says nothing of fine-tuning", "leave out --preset"],
    ),
    "a preset of one task at a time": (
        lambda p: p.finetune_both(preset="ft-classifier"),
        ["an expert is of one task, found 2", "expected one with --task"],
    ),
    "a variant that is none": (
        lambda p: p.evaluate(protocols="ft-classifier:variant=published"),
        ["'variant'", "'published'", "expected 'clean' or 'paper'"],
    ),
    "features that are none": (
        lambda p: p.evaluate(p.wrote("a", "expert.json", '{"readout": "cls"}')),
        ["expert.json has readout 'cls'", "'last_linear' or 'mean_all'"],
    ),
    "no option": (lambda p: p.merge(merger="average:0.5"), ["0.5"]),
    "too few weights": (lambda p: p.merge(merger="average:weights=1"), ["1 weights for 2 experts"]),
    "too many weights": (
        lambda p: p.merge(base=p["base"], merger="task_arithmetic:weights=1:1:1"),
        ["3 weights for 2 experts"],
    ),
    "protocol": (
        lambda p: p.evaluate(protocols="ft-classifier:epoch=1"),
        ["protocol 'ft-classifier' has no option 'epoch'", "did you mean 'epochs'"],
    ),
    "protocol without": (
        lambda p: p.evaluate(protocols="knn:k=3"),
        ["'k'", "known: rule, neighbours"],
    ),
    "shots": (lambda p: p.evaluate(shots="one"), ["--shots", "'one'", "whole numbers"]),
    "no shots": (lambda p: p.evaluate(shots="0"), ["shots 0", "at least one"]),
    "no draws": (lambda p: p.evaluate(draws="0"), ["0 draws", "at least one"]),
    "batch size": (lambda p: p.evaluate(batch_size="0"), ["batch_size", "greater"]),
    "limit": (lambda p: p.evaluate(limit="0"), ["limit", "greater"]),
    "max length": (lambda p: p.evaluate(max_length="-1"), ["max_length", "greater"]),
    "device": (lambda p: p.evaluate(device="toaster"), ["device", "toaster"]),
    "labels": (lambda p: p.evaluate(labels="by-luck"), ["by-luck", "by-index"]),
    "learning rate": (
        lambda p: p.finetune(learning_rate="-1"),
        ["learning_rate is -1", "positive"],
    ),
    "epochs": (lambda p: p.finetune(epochs="0"), ["epochs is 0", "positive"]),
    "no learning rate": (
        lambda p: p.finetune(learning_rate="nan"),
        ["learning_rate is nan", "finite positive number"],
    ),
    "endless epochs": (lambda p: p.finetune(epochs="inf"), ["epochs is inf", "finite"]),
    "warmup in steps": (lambda p: p.finetune(warmup="100"), ["warmup is 100", "share"]),
    "seed": (lambda p: p.finetune(seed="-1"), ["seed is -1", "from 0 to"]),
    "head seed": (lambda p: p.finetune(head_seed=f"{2**32}"), ["head_seed is 4294967296"]),
    "task beside tasks": (
        lambda p: p.finetune(tasks="glue/rte,glue/mrpc"),
        ["--task glue/rte and --tasks glue/rte,glue/mrpc", "expected one with --task"],
    ),
    "best of one": (
        lambda p: [*p.evaluate(p["a"]), "--best-single"],
        ["several of one task", "--best-single"],
    ),
    "no number": (lambda p: p.finetune(batch_size="many"), ["--batch-size", "valid integer"]),
    "a split to train on": (
        lambda p: p.finetune(task="glue/rte@validation"),
        ["glue/rte@train90", "'@validation'"],
    ),
}

FILES: dict[str, Case] = {
    "no folder": (lambda p: p.merge(p["a"], "/no/such/folder"), ["/no/such/folder does not exist"]),
    "no hub": (lambda p: p.merge(p["a"], "nobody/nothing"), ["'nobody/nothing'", "Hub"]),
    "no weights": (
        lambda p: p.merge(p["a"], p.without("b", WEIGHTS)),
        ["copies/b holds no weights", WEIGHTS],
    ),
    "truncated": (
        lambda p: p.merge(p["a"], p.truncated("b")),
        [f"copies/b/{WEIGHTS} cannot be read as safetensors"],
    ),
    "garbage": (
        lambda p: p.merge(p["a"], p.wrote("b", WEIGHTS, b"not a tensor in sight")),
        [f"copies/b/{WEIGHTS} cannot be read as safetensors"],
    ),
    "empty": (lambda p: p.merge(p["a"], p.wrote("b", WEIGHTS, b"")), ["cannot be read as safe"]),
    "truncated model": (
        lambda p: p.evaluate(p.truncated("a")),
        [f"copies/a/{WEIGHTS} cannot be read as safetensors"],
    ),
    "truncated base": (
        lambda p: p.finetune(base=p.truncated("base")),
        [f"copies/base/{WEIGHTS} cannot be read as safetensors"],
    ),
    "base without a layer": (
        lambda p: p.finetune(base=p.tensors("base", drop(DENSE.removeprefix("bert.")))),
        [f"copies/base has no tensor '{DENSE}'", "whole encoder"],
    ),
    "base without a layer, several tasks": (
        lambda p: p.finetune_both(base=p.tensors("base", drop(DENSE.removeprefix("bert.")))),
        [f"copies/base has no tensor '{DENSE}'", "whole encoder"],
    ),
    "base with a layer too few": (
        lambda p: p.finetune(base=p.config("base", num_hidden_layers=3)),
        ["copies/base has no tensor 'bert.encoder.layer.2."],
    ),
    "base of another width": (
        lambda p: p.finetune(base=p.config("base", intermediate_size=32)),
        ["copies/base: 'bert.encoder.layer.0.intermediate.dense.weight' is (24, 16)", "(32, 16)"],
    ),
    "base of integers": (
        lambda p: p.finetune(base=p.tensors("base", to_integers(DENSE.removeprefix("bert.")))),
        [f"copies/base: '{DENSE}' is (24, 16) of torch.int8", "torch.float32"],
    ),
    "base with NaN": (
        lambda p: p.finetune(base=p.filled("base", DENSE.removeprefix("bert."), math.nan)),
        [f"'{DENSE}' of ", "copies/base has NaN entries"],
    ),
    "base with NaN, several tasks": (
        lambda p: p.finetune_both(base=p.filled("base", DENSE.removeprefix("bert."), math.inf)),
        [f"'{DENSE}' of ", "copies/base has infinite entries"],
    ),
    "base of no kind": (
        lambda p: p.finetune(base=p.config("base", model_type="perceptron")),
        ["copies/base is of the architecture 'perceptron', expected one of bert, roberta, "],
    ),
    "base without a tokenizer": (
        lambda p: p.finetune(base=p.without("base", "tokenizer.json")),
        ["copies/base has no tokenizer"],
    ),
    "base with a broken tokenizer": (
        lambda p: p.finetune(base=p.wrote("base", "tokenizer.json", '{"model": 3}')),
        ["copies/base has no tokenizer that can be read"],
    ),
    "base with a broken tokenizer, several tasks": (
        lambda p: p.finetune_both(base=p.wrote("base", "tokenizer.json", '{"model": 3}')),
        ["copies/base has no tokenizer that can be read"],
    ),
    "pickle": (
        lambda p: p.merge(p["a"], p.pickled("b")),
        ["copies/b holds a pickle (pytorch_model.bin)", "--allow-pickle"],
    ),
    "pickled model": (lambda p: p.evaluate(p.pickled("a")), ["pickle", "--allow-pickle"]),
    "pickle with code": (
        lambda p: [
            *p.merge(
                p["a"], p.wrote(Path(p.pickled("b")).name, "pytorch_model.bin", b"cos\nabort\n")
            ),
            "--allow-pickle",
        ],
        ["pytorch_model.bin cannot be read as weights only"],
    ),
    "pickle of something else": (
        lambda p: [*p.merge(p["a"], p.pickled("b", [1, 2])), "--allow-pickle"],
        ["pytorch_model.bin holds no tensors by name"],
    ),
    "no configuration": (
        lambda p: p.merge(p["a"], p.without("b", "config.json")),
        ["copies/b/config.json is missing", "a configuration"],
    ),
    "broken configuration": (
        lambda p: p.merge(p["a"], p.wrote("b", "config.json", "{")),
        ["copies/b/config.json cannot be read as a configuration"],
    ),
    "configuration that is a list": (
        lambda p: p.evaluate(p.wrote("a", "config.json", "[]")),
        ["copies/a/config.json holds a list"],
    ),
    "no model type": (
        lambda p: p.evaluate(p.config("a", model_type=...)),
        ["copies/a has no model_type in its config.json"],
    ),
    "unknown model type": (
        lambda p: p.evaluate(p.config("a", model_type="toaster")),
        ["copies/a is of the architecture 'toaster', expected one of bert, roberta, "],
    ),
    "layers without number": (
        lambda p: p.merge(p["a"], p.config("b", num_hidden_layers=10**9)),
        ["copies/b/config.json has the num_hidden_layers 1000000000", "41 tensors"],
    ),
    "labels without number": (
        lambda p: p.evaluate(p.config("a", num_labels=1e308)),
        ["copies/a/config.json has the num_labels 1e+308"],
    ),
    "a pipe for a configuration": (
        lambda p: p.merge(p["a"], p.pipe("b", "config.json")),
        ["copies/b/config.json is no file, expected a configuration"],
    ),
    "a pipe for statistics": (
        lambda p: p.merge(merger="regmean", statistics=f"{p.fifo()},{p.fifo()}"),
        ["fifo is no file"],
    ),
    "a base that needs another library": (
        lambda p: p.finetune(base=p.config("base", quantization_config={"load_in_8bit": True})),
        ["copies/base/config.json has quantization_config", "expected plain weights"],
    ),
    "a task that leads out of the output": (
        lambda p: p.merge(
            p["a"], p.wrote("b", "expert.json", '{"tasks": ["../../../elsewhere"]}'), heads="keep"
        ),
        ["copies/b/expert.json names the task '../../../elsewhere'", "letters, digits"],
    ),
    "a task that no folder can be called": (
        lambda p: p.merge(p["a"], p.wrote("b", "expert.json", '{"tasks": ["a\\u0000b"]}')),
        ["copies/b/expert.json names the task", "letters, digits"],
    ),
    "a pipe for weights": (
        lambda p: p.merge(
            p["a"],
            p["b"],
            merger="regmean",
            statistics=f"{p.pipe('b', WEIGHTS)}/{WEIGHTS},{p['a']}/{WEIGHTS}",
        ),
        [f"copies/b/{WEIGHTS} is no file, expected a safetensors file"],
    ),
    "labels of a head without number": (
        lambda p: p.evaluate(p.head(num_labels=10**9)),
        ["heads/glue/rte/config.json has the num_labels 1000000000"],
    ),
    "model type of a head that is no name": (
        lambda p: p.evaluate(p.head(model_type=None), base=p["base"]),
        ["copies/a/heads/glue/rte has no model_type in its config.json"],
    ),
    "an architecture without a family": (
        lambda p: p.merge(p["a"], p.config("b", model_type="gpt2")),
        ["copies/b is of the architecture 'gpt2', which generates text; expected an encoder"],
    ),
    "a folder for a tokenizer": (
        lambda p: p.evaluate(p.folder("a", "tokenizer.json")),
        ["copies/a/tokenizer.json is no file"],
    ),
    "a tokenizer of another day": (
        lambda p: p.evaluate(p.tokenizer("a", version="9.0")),
        ["copies/a has no tokenizer that can be read", "version"],
    ),
    "a tokenizer whose code panics": (
        lambda p: p.evaluate(p.tokenizer("a", normalizer=PANIC)),
        ["copies/a has no tokenizer that can be read", "Precompiled"],
    ),
    "a special token that is a number": (
        lambda p: p.evaluate(p.wrote("a", "tokenizer_config.json", '{"cls_token": 7}')),
        ["copies/a has no tokenizer that can be read", "cls_token"],
    ),
    "a token without a number": (
        lambda p: p.merge(p["a"], p.tokenizer("b", model={"vocab": {"x": 1e999}})),
        ["copies/b has the token 'x' with inf for a number"],
    ),
    "a token beyond all": (
        lambda p: p.evaluate(
            p.tokenizer("a", model={"type": "WordLevel", "vocab": {"x": 2**31}, "unk_token": "x"})
        ),
        ["copies/a has a tokenizer with the token 2147483648"],
    ),
    "tokens that are none": (
        lambda p: p.merge(p["a"], p.tokenizer("b", model={"vocab": 7})),
        ["copies/b has the vocabulary 7"],
    ),
    "a vocabulary that is no text": (
        lambda p: p.merge(
            p["a"], p.wrote(Path(p.without("b", "tokenizer.json")).name, "vocab.txt", b"\xff")
        ),
        ["copies/b/vocab.txt cannot be read as a vocabulary"],
    ),
    "a name of no file": (
        lambda p: p.merge(p["a"], "x" * 5000),
        ["no local folder", "Hub"],
    ),
    "labels that are no labels": (
        lambda p: p.evaluate(p.config("a", id2label={"first": "x"})),
        ["copies/a", "id2label"],
    ),
    "missing shard": (
        lambda p: p.merge(p["a"], p.sharded("b", {"weight_map": {WORDS: "model-2.safetensors"}})),
        ["copies/b/model-2.safetensors is missing"],
    ),
    "missing tensor in a shard": (
        lambda p: p.merge(p["a"], p.sharded("b", {"weight_map": {"ghost": "model-1.safetensors"}})),
        ["model-1.safetensors has no tensor 'ghost'"],
    ),
    "shard elsewhere": (
        lambda p: p.merge(
            p["a"], p.sharded("b", {"weight_map": {WORDS: "../a/model.safetensors"}})
        ),
        ["copies/b", "../a/model.safetensors"],
    ),
    "no weight map": (lambda p: p.merge(p["a"], p.sharded("b", {})), ["has no weight_map"]),
    "broken index": (
        lambda p: p.merge(p["a"], p.sharded("b", "{")),
        [f"{WEIGHTS}.index.json cannot be read as a shard index"],
    ),
    "broken merge.json": (
        lambda p: p.evaluate(p.wrote("merged", "merge.json", "{")),
        ["copies/merged/merge.json cannot be read"],
    ),
    "merge.json of another kind": (
        lambda p: p.evaluate(p.wrote("merged", "merge.json", '{"tasks": 5}')),
        ["copies/merged/merge.json has tasks 5"],
    ),
    "merge.json without experts": (
        lambda p: p.evaluate(p.wrote("merged", "merge.json", '{"experts": [3]}')),
        ["copies/merged/merge.json has experts.0 3", "not as `harness` writes it"],
    ),
    "broken expert.json": (
        lambda p: p.merge(p["a"], p.wrote("b", "expert.json", '{"tasks": 5}')),
        ["copies/b/expert.json"],
    ),
    "broken mergekit": (
        lambda p: p.evaluate(p.wrote("a", "mergekit_config.yml", "models: []")),
        ["mergekit_config.yml names no merge_method"],
    ),
    "no tokenizer": (
        lambda p: p.evaluate(p.without("a", "tokenizer.json", "tokenizer_config.json")),
        ["copies/a has no tokenizer"],
    ),
}

WEIGHTS_THAT_DIFFER: dict[str, Case] = {
    "architecture": (
        lambda p: p.merge(p["a"], p["roberta"]),
        ["roberta is a roberta model, expected bert"],
    ),
    "architecture of the base": (
        lambda p: p.merge(p["roberta"], base=p["base"]),
        ["base is a bert model, expected roberta"],
    ),
    "number of heads": (
        lambda p: p.merge(p["a"], p.config("b", num_attention_heads=4), premerge="rotation"),
        ["copies/b has num_attention_heads 4, expected num_attention_heads 2 as", "/a: weights"],
    ),
    "number of heads of the base": (
        lambda p: p.merge(p["a"], p["b"], base=p.config("base", num_attention_heads=4)),
        ["copies/base has num_attention_heads 4, expected num_attention_heads 2 as"],
    ),
    "activation": (
        lambda p: p.merge(p["a"], p.config("b", hidden_act="relu")),
        ["copies/b has hidden_act 'relu', expected hidden_act 'gelu' as"],
    ),
    "a default that one has not": (
        lambda p: p.merge(p["a"], p.config("b", num_attention_heads=...)),
        ["copies/b has num_attention_heads 12 (not in its config.json), expected"],
    ),
    "a negative number of heads": (
        lambda p: p.merge(p["a"], p.config("b", num_attention_heads=-2), premerge="rotation"),
        ["copies/b has num_attention_heads -2 in its config.json, expected a whole number"],
    ),
    "no heads": (
        lambda p: p.merge(p.config("a", num_attention_heads=0), p["b"]),
        ["copies/a has num_attention_heads 0 in its config.json, expected a whole number"],
    ),
    "a second expert whose heads do not divide the width": (
        lambda p: p.merge(p["a"], p.config("b", num_attention_heads=3)),
        ["copies/b has 3 attention heads", "divides its rows"],
    ),
    "a tensor that the base lacks": (
        lambda p: p.evaluate(base=p.tensors("base", drop("encoder.layer.0.output.dense.bias"))),
        ["base has no tensor", "output.dense.bias", "fine-tuned from"],
    ),
    "vocabulary": (
        lambda p: p.merge(
            p["a"],
            p.wrote(
                "b",
                "tokenizer.json",
                Path(p["b"], "tokenizer.json").read_text().replace("word7", "W"),
            ),
        ),
        ["the vocabulary of", "copies/b", "expected the same tokenizer"],
    ),
    "shape": (
        lambda p: p.merge(p["a"], p["wide"]),
        ["is (32) in", "wide", "expected (24)", "bert.encoder.layer.0.intermediate.dense.bias"],
    ),
    "shape of the base": (
        lambda p: p.merge(base=p["wide-base"], merger="ties"),
        ["is (32) in the base", "expected (24)"],
    ),
    "more layers": (
        lambda p: p.merge(p["a"], p["deep"]),
        ["deep has a tensor 'bert.encoder.layer.2.", "has not"],
    ),
    "fewer layers": (
        lambda p: p.merge(p["deep"], p["a"]),
        ["has no tensor 'bert.encoder.layer.2."],
    ),
    "fewer layers in the base": (
        lambda p: p.merge(p["deep"], base=p["base"], merger="ties"),
        ["the base", "has no tensor 'bert.encoder.layer.2."],
    ),
    "more layers in the base": (
        lambda p: p.merge(base=p["deep"], merger="ties"),
        ["the base", "deep has a layer with 'encoder.layer.2.", "as deep as they are"],
    ),
    "a tensor less": (
        lambda p: p.merge(p["a"], p.tensors("b", drop(DENSE))),
        [f"copies/b has no tensor '{DENSE}'"],
    ),
    "a tensor more": (
        lambda p: p.merge(p["a"], p.tensors("b", add("bert.extra"))),
        ["copies/b has a tensor 'bert.extra'"],
    ),
    "a head tensor less": (
        lambda p: p.merge(p["a"], p.tensors("b", drop("classifier.bias"))),
        ["copies/b has no tensor 'classifier.bias'"],
    ),
    "nan in an expert": (
        lambda p: p.merge(p["a"], p.filled("b", DENSE, math.nan)),
        [f"'{DENSE}' of", "copies/b has NaN entries", "finite"],
    ),
    "inf in an expert": (
        lambda p: p.merge(p.filled("a", DENSE, math.inf), p["b"]),
        [f"'{DENSE}' of", "copies/a has infinite entries"],
    ),
    "nan in a head": (
        lambda p: p.merge(p["a"], p.filled("b", "classifier.weight", math.nan)),
        ["'classifier.weight' of", "copies/b has NaN"],
    ),
    "nan in the base": (
        lambda p: p.merge(
            base=p.filled("base", WORDS.removeprefix("bert."), math.nan), merger="ties"
        ),
        ["word_embeddings.weight' of", "copies/base has NaN"],
    ),
    "nan in the model": (
        lambda p: p.evaluate(p.filled("a", DENSE, math.nan)),
        [f"'{DENSE}' of", "copies/a has NaN entries"],
    ),
    "inf in a reference": (
        lambda p: p.evaluate(p["a"], experts=p.filled("b", DENSE, -math.inf)),
        [f"'{DENSE}' of", "copies/b has infinite entries"],
    ),
    "a tensor less in the model": (
        lambda p: p.evaluate(p.tensors("a", drop(DENSE))),
        ["copies/a", f"'{DENSE}'"],
    ),
    "a tensor more in the model": (
        lambda p: p.evaluate(p.tensors("a", add("bert.extra"))),
        ["copies/a", "'bert.extra'"],
    ),
    "a shape in the model": (
        lambda p: p.evaluate(p.config("a", intermediate_size=32)),
        ["copies/a", "(24,", "expected (32,"],
    ),
}

HEADS: dict[str, Case] = {
    "labels of the model": (
        lambda p: p.evaluate(p["noyes"]),
        ["noyes has the labels no, yes", "glue/rte expects entailment, not_entailment"],
    ),
    "labels of an expert": (
        lambda p: p.evaluate(p["a"], experts=p["noyes"]),
        ["noyes has the labels no, yes", "glue/rte expects"],
    ),
    "generic labels": (
        lambda p: p.evaluate(p["nameless"]),
        ["nameless has the labels LABEL_0, LABEL_1", "--labels by-index"],
    ),
    "a wrong name is no generic one": (
        lambda p: p.evaluate(p["noyes"], labels="by-index"),
        ["noyes has the labels no, yes"],
    ),
    "labels of another task": (
        lambda p: p.evaluate(p["a"], tasks="glue/mrpc"),
        ["has the labels entailment, not_entailment", "glue/mrpc expects not_equivalent"],
    ),
    "labels for a number": (
        lambda p: p.evaluate(p["a"], tasks="glue/stsb"),
        ["has the labels entailment", "glue/stsb expects none (regression)"],
    ),
    "no head": (
        lambda p: p.evaluate(p["base"]),
        ["base has no head for glue/rte", "newly initialised"],
    ),
    "no head in an expert": (
        lambda p: p.merge(p["a"], p["base"]),
        ["base has no classification head"],
    ),
    "labels of experts": (
        lambda p: p.merge(p["a"], p["noyes"]),
        ["noyes has the labels no, yes", "expected entailment, not_entailment", "--tasks"],
    ),
    "kept without tasks": (lambda p: p.merge(heads="keep"), ["kept heads", "--tasks"]),
    "kept twice": (
        lambda p: p.merge(heads="keep", tasks="glue/rte"),
        ["two experts of task glue/rte"],
    ),
    "merged without one in the base": (
        lambda p: p.merge(base=p["base"], merger="ties", heads="merge"),
        ["base", "has no tensor 'classifier.", "--heads average"],
    ),
    "no teacher": (
        lambda p: p.evaluate(p["a"], protocols="ft-classifier"),
        ["protocol 'ft-classifier' needs an expert", "--experts"],
    ),
}

RECIPES: dict[str, Case] = {
    "unknown field": (
        lambda p: p.merge(p.recipe("experts: [a, b]\nmergr: ties\n")),
        ["recipe.yaml: mergr", "known: experts, base, merger"],
    ),
    "broken": (
        lambda p: p.merge(p.recipe("experts: [a, b\nmerger: {")),
        ["recipe.yaml cannot be read as YAML"],
    ),
    "a number too long to be shown": (
        lambda p: p.merge(p.recipe(f"experts: [a, b]\nseed: 0x{'f' * 9000}\n")),
        ["recipe.yaml has a whole number of 36000 bits"],
    ),
    "a tag of nothing": (
        lambda p: p.merge(p.recipe("experts: [a, b]\nseed: !!int ''\n")),
        ["recipe.yaml cannot be read as YAML"],
    ),
    "missing": (
        lambda p: p.merge(str(p.root / "nothing.yaml")),
        ["nothing.yaml is missing", "a recipe"],
    ),
    "list": (lambda p: p.merge(p.recipe("- a\n- b\n")), ["recipe.yaml holds a list"]),
    "empty": (lambda p: p.merge(p.recipe("")), ["recipe.yaml holds"]),
    "no experts": (lambda p: p.merge(p.recipe("merger: ties\n")), ["recipe.yaml: experts"]),
    "zero experts": (lambda p: p.merge(p.recipe("experts: []\n")), ["no experts to merge"]),
    "a weight of mergekit's without end": (
        lambda p: p.merge(
            p.recipe(
                f"merge_method: linear\nparameters: {{weight: 1{'0' * 400}}}\n"
                f"models: [{{model: {p['a']}}}, {{model: {p['b']}}}]\n"
            )
        ),
        ["recipe.yaml has a whole number of 1329 bits"],
    ),
    "a model of mergekit's without end": (
        lambda p: p.merge(
            p.recipe(f"merge_method: linear\nmodels: [{{model: {'x' * 5000}+y}}, {{model: a}}]\n")
        ),
        ["names an adapter"],
    ),
    "wrong type": (
        lambda p: p.merge(p.recipe("experts: [a, b]\nseed: many\n")),
        ["recipe.yaml: seed", "integer"],
    ),
    "unknown policy": (
        lambda p: p.merge(p.recipe("experts: [a, b]\nheads: drop\n")),
        ["recipe.yaml: heads", "'keep'"],
    ),
    "method without a name": (
        lambda p: p.merge(p.recipe("experts: [a, b]\nmerger: {density: 0.2}\n")),
        ["recipe.yaml: merger", "{name: NAME"],
    ),
    "bad option": (
        lambda p: p.merge(
            p.recipe("experts: [a, b]\nbase: c\nmerger: {name: ties, density: [x]}\n")
        ),
        ["option 'density' of merger 'ties'", "a number"],
    ),
    "flags too": (
        lambda p: p.merge(p.recipe("experts: [a, b]\n"), merger="ties"),
        ["--merger and the recipe", "both say"],
    ),
    "no base": (lambda p: p.merge(merger="ties"), ["ties is given the base", "--base"]),
    "no base for dare": (lambda p: p.merge(premerge="dare"), ["dare is given the base", "--base"]),
    "too many tasks": (
        lambda p: p.merge(tasks="glue/rte,glue/mnli,glue/qnli"),
        ["3 tasks for 2 experts"],
    ),
    "no task": (
        lambda p: ["evaluate", "--model", p["a"], f"--output-path={p.root / 'out'}"],
        ["does not say its tasks", "--tasks"],
    ),
    "other experts than were merged": (
        lambda p: p.evaluate(experts=p["a"]),
        ["merged from 2 experts, found 1", "--experts"],
    ),
    "no tasks to prepare": (
        lambda p: ["prepare", "--tasks", "", "--data-dir", str(p.root / "out")],
        ["no tasks to prepare"],
    ),
}

DATA: dict[str, Case] = {
    "no folder": (
        lambda p: p.evaluate(data_dir=str(p.root / "nowhere")),
        ["no data for glue/rte at", "nowhere/glue/rte", "validation.parquet"],
    ),
    "no file": (lambda p: p.data("train", None), ["no data for glue/rte", "train.parquet"]),
    "broken file": (
        lambda p: p.data("validation", b"PAR1 no"),
        ["validation.parquet cannot be read as parquet"],
    ),
    "no rows": (lambda p: p.data("validation", pairs(0)), ["glue/rte@validation has no rows"]),
    "no rows to draw from": (lambda p: p.data("train", pairs(1)), ["glue/rte@train90 has no rows"]),
    "no column": (
        lambda p: p.data("validation", pairs(12).drop_columns("sentence2")),
        ["no column 'sentence2'", "found sentence1, label"],
    ),
    "no label": (
        lambda p: p.data("validation", pairs(12).drop_columns("label")),
        ["no column 'label'"],
    ),
    "unlabelled": (
        lambda p: p.data("validation", pairs(12, label=[-1] * 12)),
        ["has the label -1", "entailment, not_entailment"],
    ),
    "label by a name of another task": (
        lambda p: p.data("validation", pairs(2, label=["yes", "no"])),
        ["has the label 'yes'", "entailment, not_entailment"],
    ),
    "no label in a row": (
        lambda p: p.data("validation", pairs(2, label=[0, None])),
        ["has the label None"],
    ),
    "words about columns that are no JSON": (
        lambda p: p.data("validation", described('{"info":')),
        ["the metadata of", "validation.parquet cannot be read", "datasets library"],
    ),
    "words about columns without end": (
        lambda p: p.data("validation", described("[" * 100_000)),
        ["the metadata of", "validation.parquet cannot be read"],
    ),
    "classes with numbers for names": (
        lambda p: p.data("validation", classes([0, 1])),
        ["validation.parquet says that its classes are called [0, 1]", "a list of names"],
    ),
    "column twice": (
        lambda p: p.data("validation", pairs(12).append_column("label", pairs(12)["label"])),
        ["has the column 'label' twice"],
    ),
    "numbers for texts": (
        lambda p: p.data("validation", pairs(12, sentence1=list(range(12)))),
        ["has int64 in the column 'sentence1', expected text"],
    ),
    "bytes that are no text": (
        lambda p: p.data("validation", broken_text(12)),
        ["validation.parquet cannot be read as parquet"],
    ),
    "nothing on the hub": (
        lambda p: ["prepare", "--tasks=textcls/amazon_review_full", f"--data-dir={p.root / 'out'}"],
        ["textcls/amazon_review_full is not on the Hub", "--data-dir"],
    ),
    "nothing to train on": (
        lambda p: p.finetune(data_dir=str(p.root / "nowhere")),
        ["no data for glue/rte"],
    ),
}

OUTPUT: dict[str, Case] = {
    "merge over a thesis": (
        lambda p: p.merge(out=p.foreign()),
        ["thesis exists and was not written by this program", "merge.json"],
    ),
    "dry run over a thesis": (
        lambda p: [*p.merge(out=p.foreign()), "--dry-run"],
        ["thesis exists and was not written by this program"],
    ),
    "merge over a file": (
        lambda p: p.merge(out=f"{p.foreign()}/chapter.tex"),
        ["chapter.tex is a file, expected a folder"],
    ),
    "merge below a file": (
        lambda p: p.merge(out=f"{p.foreign()}/chapter.tex/merged"),
        ["chapter.tex"],
    ),
    "merge into a link to itself": (
        lambda p: p.merge(out=p.loop()),
        ["loop", "expected a folder"],
    ),
    "expert over a thesis": (
        lambda p: p.finetune(out=p.foreign()),
        ["thesis exists and was not written by this program", "expert.json"],
    ),
    "expert over its base": (
        lambda p: p.finetune(base=str(p.copy("base")), out=str(p.copy("base"))),
        ["copies/base would replace the base", "choose another --out"],
    ),
    "expert over a merge": (
        lambda p: p.finetune(out=p["merged"]),
        ["merged exists", "expert.json"],
    ),
    "records over a file": (
        lambda p: p.evaluate(output_path=f"{p.foreign()}/chapter.tex"),
        ["chapter.tex"],
    ),
    "board over a file": (
        lambda p: ["leaderboard", p.foreign(), f"--out={p.foreign()}/chapter.tex"],
        ["thesis"],
    ),
}

INSPECTED: dict[str, Case] = {
    "number of heads": (
        lambda p: p.inspect(p["a"], p.config("b", num_attention_heads=4)),
        ["copies/b has num_attention_heads 4, expected num_attention_heads 2 as"],
    ),
    "one model alone": (
        lambda p: p.inspect(p["a"]),
        ["compares models with one another, found 1", "expected two or more"],
    ),
    "one model and its base": (lambda p: p.inspect(p["a"], base=p["base"]), ["found 1"]),
    "missing": (lambda p: p.inspect(p["a"], "./nowhere"), ["nowhere does not exist"]),
    "architecture": (
        lambda p: p.inspect(p["a"], p["roberta"]),
        ["roberta is a roberta model, expected bert"],
    ),
    "depth": (
        lambda p: p.inspect(p["deep"], p["a"]),
        ["a has no tensor 'bert.encoder.layer.2.", "deep has"],
    ),
    "width": (
        lambda p: p.inspect(p["a"], p["b"], p["wide"]),
        ["is (32) in", "wide, expected (24) as in"],
    ),
    "width of the base": (
        lambda p: p.inspect(p["a"], p["b"], base=p["wide-base"]),
        ["is (32) in the base", "wide-base, expected (24) as in"],
    ),
    "depth of the base": (
        lambda p: p.inspect(p["deep"], p["deep"], base=p["base"]),
        ["the base", "has no tensor 'bert.encoder.layer.2."],
    ),
    "a deeper base": (
        lambda p: p.inspect(p["a"], p["b"], base=p["deep"]),
        ["the base", "deep has a layer with 'encoder.layer.2."],
    ),
    "nan": (
        lambda p: p.inspect(p["a"], p.filled("b", DENSE, math.nan)),
        [f"'{DENSE}' of", "copies/b has NaN entries"],
    ),
    "pickle": (lambda p: p.inspect(p["a"], p.pickled("b")), ["holds a pickle", "--allow-pickle"]),
    "over a thesis": (
        lambda p: p.inspect(p["a"], p["b"], out=p.foreign()),
        ["thesis exists and was not written by this program", "inspect.json"],
    ),
    "over a model": (
        lambda p: [*p.inspect(p["a"], p["b"], out=str(p.copy("a"))), "--force"],
        ["copies/a exists and was not written by this program"],
    ),
}

BIAS = "bert.encoder.layer.1.intermediate.dense.bias"

BROUGHT_TOGETHER: dict[str, Case] = {
    "more layers": (
        lambda p: p.merge(p["a"], p["deep"], premerge="permutation"),
        ["deep has a tensor 'bert.encoder.layer.2."],
    ),
    "fewer layers in the base": (
        lambda p: p.merge(p["deep"], p["deep"], premerge="rotation:anchor=base", base=p["base"]),
        ["the base", "has no tensor 'bert.encoder.layer.2."],
    ),
    "more layers in the base": (
        lambda p: p.merge(p["a"], p["b"], premerge="rotation", base=p["deep"]),
        ["the base", "deep has a layer with 'encoder.layer.2."],
    ),
    "heads that do not divide the width": (
        lambda p: p.merge(
            p.config("a", num_attention_heads=3),
            p.config("b", num_attention_heads=3),
            premerge="rotation",
        ),
        ["copies/a has 3 attention heads", ".query.", "divides its rows"],
    ),
    "a tensor of the table that no expert has": (
        lambda p: p.merge(
            p.tensors("a", drop(BIAS)), p.tensors("b", drop(BIAS)), premerge="permutation"
        ),
        [f"copies/a has no tensor '{BIAS}'", "expected those of Bert"],
    ),
    "attention with a tensor that the table has not": (
        lambda p: p.merge(
            p.tensors("a", add("bert.encoder.layer.0.attention.self.distance_embedding.weight")),
            p.tensors("b", add("bert.encoder.layer.0.attention.self.distance_embedding.weight")),
            premerge="rotation",
        ),
        ["self.distance_embedding.weight' is not in the table of bert"],
    ),
    "rotary positions": (
        lambda p: p.merge(p["rotary"], p["rotary"], premerge="rotation"),
        ["the symmetries of roformer are not known"],
    ),
    "a layer in other digits": (
        lambda p: p.merge(premerge="procrustes:layers=²"),
        ["layers is '²', expected all, first:N or last:N"],
    ),
    "a share of what is not taken apart": (
        lambda p: p.merge(merger="iso:common=0.5", base=p["base"]),
        ["common is 0.5 with variant 'common'", "expected variant=common_and_task, or leave"],
    ),
    "scaled heads where none is turned": (
        lambda p: p.merge(premerge="rotation:parts=ffn,scaling=true"),
        ["scaling is true with parts 'ffn'", "expected parts=both or parts=attention"],
    ),
    "proper turns where none is made": (
        lambda p: p.merge(premerge="rotation:parts=ffn,proper=true"),
        ["proper is true with parts 'ffn'", "or leave it out"],
    ),
    "layers where the width alone is permuted": (
        lambda p: p.merge(premerge="permutation:ffn=false,residual=true,layers=1"),
        ["layers is '1', and only the width is permuted", "expected ffn=true or heads=true"],
    ),
    "passes to a fixed reference": (
        lambda p: p.merge(premerge="procrustes:variant=fixed_reference,max_iter=5"),
        ["max_iter is given with variant 'fixed_reference'", "expected variant=algorithm1"],
    ),
    "a tolerance of a fixed reference": (
        lambda p: p.merge(premerge="procrustes:variant=fixed_reference,tol=0"),
        ["tol is given with variant 'fixed_reference'", "or leave it out"],
    ),
    "a list of layers": (
        lambda p: p.merge(
            p.recipe(
                f"experts: [{p['a']}, {p['b']}]\npremerge: [{{name: rotation, layers: [0, 1]}}]\n"
            )
        ),
        ["option 'layers' of pre-merging method 'rotation' is [0, 1]", "text as all, first:2"],
    ),
    "a layer that there is not": (
        lambda p: p.merge(premerge="rotation:layers=2"),
        ["layers is '2', expected all", "from 0 to 1"],
    ),
    "more layers than there are": (
        lambda p: p.merge(premerge="procrustes:layers=last:3"),
        ["layers is 'last:3'", "N from 1 to 2"],
    ),
    "an anchor that there is not": (
        lambda p: p.merge(premerge="activation_matching:anchor=3", tasks="glue/rte"),
        ["anchor is 3, expected an expert from 1 to 2"],
    ),
}

CASES = {
    f"{group}: {name}": case
    for group, cases in (
        ("name", NAMES),
        ("option", OPTIONS),
        ("file", FILES),
        ("weights", WEIGHTS_THAT_DIFFER),
        ("brought together", BROUGHT_TOGETHER),
        ("head", HEADS),
        ("recipe", RECIPES),
        ("data", DATA),
        ("output", OUTPUT),
        ("inspect", INSPECTED),
    )
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_one_line_and_leaves_nothing(
    name: str,
    shelf: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def work(*_: object, **__: object) -> None:
        raise AssertionError("work was done")

    monkeypatch.setattr(encode, "one_pass", work)
    monkeypatch.chdir(tmp_path)
    place = Place(shelf, tmp_path)
    command, expected = CASES[name]
    arguments = command(place)
    before = place.left()
    capfd.readouterr()
    assert main(arguments) == 2
    out, err = capfd.readouterr()
    assert err.startswith("harness: "), err
    assert err.count("\n") == 1, err
    assert out == ""
    for part in expected:
        assert part in err
    assert place.left() == before


def test_a_pickle_is_read_as_weights_only_when_told(shelf: Path, tmp_path: Path) -> None:
    place = Place(shelf, tmp_path)
    folder = place.pickled("b")
    out = tmp_path / "out"
    assert main([*place.merge(place["a"], folder, out=str(out)), "--allow-pickle"]) == 0
    assert main(place.merge(out=str(tmp_path / "safe"))) == 0
    assert (out / WEIGHTS).read_bytes() == (tmp_path / "safe" / WEIGHTS).read_bytes()
    for either in (folder, str(out)):
        assert main([*place.evaluate(either, protocols="current"), "--allow-pickle"]) == 0


def test_a_row_that_is_too_long_for_the_model_is_a_failed_cell(
    shelf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the forward pass shows it; the cells of other models and tasks are saved."""
    place = Place(shelf, tmp_path)
    arguments = place.data("validation", pairs(12, sentence1=["word1 " * 60] * 12))
    assert main([*arguments, "--protocols", "current"]) == 3
    err = capsys.readouterr().err
    lines = [line for line in err.splitlines() if line.startswith("harness: ")]
    assert len(lines) == 1
    assert "merged cannot be run" in lines[0]
    assert "see --max-length" in lines[0]


def test_no_command_at_all_is_a_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert "merge" in out
    assert err == ""
