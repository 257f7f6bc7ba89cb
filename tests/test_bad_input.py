"""Every mistake is one line that names the thing, found before work starts, and leaves nothing."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.cli import main
from harness.errors import (
    BadData,
    BadOption,
    BadRecipe,
    BrokenCheckpoint,
    IncompatibleWeights,
    LabelMismatch,
    MissingHead,
    MissingTeacher,
    OutputExists,
    UnknownName,
)
from harness.passes import features as encode
from tests.conftest import model
from tests.mistakes import refused

Tensors = dict[str, torch.Tensor]
ENTAILMENT = ["entailment", "not_entailment"]
WEIGHTS = "model.safetensors"
WORDS = "bert.embeddings.word_embeddings.weight"
PANIC = {"type": "Precompiled", "precompiled_charsmap": "x"}
DENSE = "bert.encoder.layer.1.intermediate.dense.weight"
BIAS = "bert.encoder.layer.1.intermediate.dense.bias"


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

    def settings(self, name: str, **changes: Any) -> str:
        return self.wrote(name, "tokenizer_config.json", json.dumps(changes))

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


Command = Callable[[Place], list[str]]
Case = tuple[str, Command]


def told(things: str, command: Command) -> Case:
    """A command that ends with an error whose line names the things, in this order."""
    return things, command


MISTAKES: dict[type, dict[str, Case]] = {
    str: {
        "command": told("mrege", lambda p: ["mrege"]),
        "flag": told("--densty", lambda p: [*p.merge(), "--densty=1"]),
        "list": told("merger", lambda p: ["list", "merger"]),
        "labels": told("by-luck by-index", lambda p: p.evaluate(labels="by-luck")),
        "no number": told("--batch-size", lambda p: p.finetune(batch_size="many")),
    },
    UnknownName: {
        "merger": told("merger avrage average", lambda p: p.merge(merger="avrage")),
        "premerge": told(
            "pre-merging dara dare", lambda p: p.merge(base=p["base"], premerge="dara")
        ),
        "protocol": told("protocol kn knn", lambda p: p.evaluate(protocols="current,kn")),
        "task": told("glue/rt glue/rte", lambda p: p.evaluate(p["a"], tasks="glue/rt")),
        "task of an expert": told("glu/rte glue/rte", lambda p: p.merge(tasks="glu/rte")),
        "task to train": told("glue/mrpc", lambda p: p.finetune(task="glue/mrcp")),
        "task to prepare": told(
            "glue/rte",
            lambda p: ["prepare", "--tasks", "glue/rt", "--data-dir", str(p.root / "out")],
        ),
        "module": told("merger nowhere:nothing", lambda p: p.merge(merger="nowhere:nothing")),
        "no option": told("0.5", lambda p: p.merge(merger="average:0.5")),
        "base of no kind": told(
            "copies/base perceptron bert roberta",
            lambda p: p.finetune(base=p.config("base", model_type="perceptron")),
        ),
        "unknown model type": told(
            "copies/a toaster bert roberta",
            lambda p: p.evaluate(p.config("a", model_type="toaster")),
        ),
        "an architecture without a family": told(
            "copies/b qwen2_moe mixture of experts",
            lambda p: p.merge(p["a"], p.config("b", model_type="qwen2_moe")),
        ),
        "rotary positions": told(
            "symmetries roformer", lambda p: p.merge(p["rotary"], p["rotary"], premerge="rotation")
        ),
    },
    BadOption: {
        "unknown": told(
            "merger ties densty density", lambda p: p.merge(base=p["base"], merger="ties:densty=1")
        ),
        "a variant that is none": told(
            "variant published clean paper",
            lambda p: p.evaluate(protocols="ft-classifier:variant=published"),
        ),
        "too few weights": told("weights 1 2", lambda p: p.merge(merger="average:weights=1")),
        "too many weights": told(
            "weights 3 2", lambda p: p.merge(base=p["base"], merger="task_arithmetic:weights=1:1:1")
        ),
        "protocol": told(
            "ft-classifier epoch epochs", lambda p: p.evaluate(protocols="ft-classifier:epoch=1")
        ),
        "protocol without": told(
            "knn k rule, neighbours", lambda p: p.evaluate(protocols="knn:k=3")
        ),
        "shots": told("--shots one", lambda p: p.evaluate(shots="one")),
        "device": told("device toaster", lambda p: p.evaluate(device="toaster")),
        "learning rate": told("learning_rate -1", lambda p: p.finetune(learning_rate="-1")),
        "epochs": told("epochs 0", lambda p: p.finetune(epochs="0")),
        "no learning rate": told("learning_rate nan", lambda p: p.finetune(learning_rate="nan")),
        "endless epochs": told("epochs inf", lambda p: p.finetune(epochs="inf")),
        "warmup in steps": told("warmup 100", lambda p: p.finetune(warmup="100")),
        "seed": told("seed -1 0", lambda p: p.finetune(seed="-1")),
        "head seed": told("head_seed 4294967296", lambda p: p.finetune(head_seed=f"{2**32}")),
        "bad option": told(
            "density ties number",
            lambda p: p.merge(
                p.recipe("experts: [a, b]\nbase: c\nmerger: {name: ties, density: [x]}\n")
            ),
        ),
        "a layer in other digits": told(
            "layers ²", lambda p: p.merge(premerge="procrustes:layers=²")
        ),
        "a share of what is not taken apart": told(
            "common 0.5 variant common variant=common_and_task",
            lambda p: p.merge(merger="iso:common=0.5", base=p["base"]),
        ),
        "scaled heads where none is turned": told(
            "scaling parts ffn parts=both parts=attention",
            lambda p: p.merge(premerge="rotation:parts=ffn,scaling=true"),
        ),
        "proper turns where none is made": told(
            "proper parts ffn", lambda p: p.merge(premerge="rotation:parts=ffn,proper=true")
        ),
        "layers where the width alone is permuted": told(
            "layers 1 ffn=true heads=true",
            lambda p: p.merge(premerge="permutation:ffn=false,residual=true,layers=1"),
        ),
        "passes to a fixed reference": told(
            "max_iter variant fixed_reference variant=algorithm1",
            lambda p: p.merge(premerge="procrustes:variant=fixed_reference,max_iter=5"),
        ),
        "a tolerance of a fixed reference": told(
            "tol variant fixed_reference",
            lambda p: p.merge(premerge="procrustes:variant=fixed_reference,tol=0"),
        ),
        "a list of layers": told(
            "layers rotation [0, 1] text first:2",
            lambda p: p.merge(
                p.recipe(
                    f"experts: [{p['a']}, {p['b']}]\n"
                    "premerge: [{name: rotation, layers: [0, 1]}]\n"
                )
            ),
        ),
        "a layer that there is not": told(
            "layers 2 0 1", lambda p: p.merge(premerge="rotation:layers=2")
        ),
        "more layers than there are": told(
            "layers last:3 1 2", lambda p: p.merge(premerge="procrustes:layers=last:3")
        ),
        "layers of activations": told(
            "layers 2 first:N last:N",
            lambda p: p.merge(premerge="activation_matching:layers=2", tasks="glue/rte"),
        ),
        "an anchor of activations": told(
            "anchor base central first",
            lambda p: p.merge(premerge="activation_matching:anchor=base", tasks="glue/rte"),
        ),
        "nothing to permute": told(
            "permutation ffn heads", lambda p: p.merge(premerge="permutation:ffn=false")
        ),
        "a rotation of no heads": told(
            "rotated heads=true", lambda p: p.merge(premerge="permutation:rotated=true")
        ),
        "a rotation and the width": told(
            "rotated residual",
            lambda p: p.merge(premerge="permutation:heads=true,rotated=true,residual=true"),
        ),
        "a cycle and the width": told(
            "residual cycle_consistent",
            lambda p: p.merge(premerge="permutation:residual=true,cycle_consistent=true"),
        ),
        "a cycle and a rotation": told(
            "rotated cycle_consistent",
            lambda p: p.merge(premerge="permutation:heads=true,rotated=true,cycle_consistent=true"),
        ),
        "layers of a permutation": told(
            "layers last:9 first:N last:N", lambda p: p.merge(premerge="permutation:layers=last:9")
        ),
        "an anchor of a permutation": told(
            "anchor 7 1 2", lambda p: p.merge(premerge="permutation:anchor=7")
        ),
        "layers of a rotation": told(
            "layers first:3", lambda p: p.merge(premerge="rotation:layers=first:3")
        ),
        "an anchor of a rotation": told(
            "anchor 3 1 2", lambda p: p.merge(premerge="rotation:anchor=3")
        ),
        "an anchor that is none": told(
            "anchor rotation 0", lambda p: p.merge(premerge="rotation:anchor=0")
        ),
        "an anchor by no name": told(
            "last central first base", lambda p: p.merge(premerge="rotation:anchor=last")
        ),
        "parts that are none": told(
            "heads both attention ffn", lambda p: p.merge(premerge="rotation:parts=heads")
        ),
        "an anchor that there is not": told(
            "anchor 3 1 2",
            lambda p: p.merge(premerge="activation_matching:anchor=3", tasks="glue/rte"),
        ),
    },
    BadRecipe: {
        "a preset that trains nothing": told(
            "regmean fine-tuning --preset", lambda p: p.finetune(preset="regmean")
        ),
        "a preset of one task at a time": told(
            "--task 2", lambda p: p.finetune_both(preset="ft-classifier")
        ),
        "no shots": told("shots 0", lambda p: p.evaluate(shots="0")),
        "no draws": told("0 draws", lambda p: p.evaluate(draws="0")),
        "batch size": told("batch_size 0", lambda p: p.evaluate(batch_size="0")),
        "limit": told("limit 0", lambda p: p.evaluate(limit="0")),
        "max length": told("max_length 0", lambda p: p.evaluate(max_length="-1")),
        "task beside tasks": told(
            "--task glue/rte --tasks glue/rte,glue/mrpc --task",
            lambda p: p.finetune(tasks="glue/rte,glue/mrpc"),
        ),
        "best of one": told("--best-single", lambda p: [*p.evaluate(p["a"]), "--best-single"]),
        "a split to train on": told(
            "glue/rte@train90 @validation", lambda p: p.finetune(task="glue/rte@validation")
        ),
        "kept without tasks": told("heads --tasks", lambda p: p.merge(heads="keep")),
        "kept twice": told("experts glue/rte", lambda p: p.merge(heads="keep", tasks="glue/rte")),
        "unknown field": told(
            "recipe.yaml mergr merger",
            lambda p: p.merge(p.recipe("experts: [a, b]\nmergr: ties\n")),
        ),
        "broken": told(
            "recipe.yaml YAML", lambda p: p.merge(p.recipe("experts: [a, b\nmerger: {"))
        ),
        "a number too long to be shown": told(
            "recipe.yaml 36000",
            lambda p: p.merge(p.recipe(f"experts: [a, b]\nseed: 0x{'f' * 9000}\n")),
        ),
        "a tag of nothing": told(
            "recipe.yaml YAML", lambda p: p.merge(p.recipe("experts: [a, b]\nseed: !!int ''\n"))
        ),
        "missing": told("nothing.yaml", lambda p: p.merge(str(p.root / "nothing.yaml"))),
        "list": told("recipe.yaml list", lambda p: p.merge(p.recipe("- a\n- b\n"))),
        "empty": told("recipe.yaml", lambda p: p.merge(p.recipe(""))),
        "no experts": told("recipe.yaml experts", lambda p: p.merge(p.recipe("merger: ties\n"))),
        "zero experts": told("experts", lambda p: p.merge(p.recipe("experts: []\n"))),
        "a weight of mergekit's without end": told(
            "recipe.yaml 1329",
            lambda p: p.merge(
                p.recipe(
                    f"merge_method: linear\nparameters: {{weight: 1{'0' * 400}}}\n"
                    f"models: [{{model: {p['a']}}}, {{model: {p['b']}}}]\n"
                )
            ),
        ),
        "a model of mergekit's without end": told(
            "adapter",
            lambda p: p.merge(
                p.recipe(
                    f"merge_method: linear\nmodels: [{{model: {'x' * 5000}+y}}, {{model: a}}]\n"
                )
            ),
        ),
        "wrong type": told(
            "recipe.yaml seed", lambda p: p.merge(p.recipe("experts: [a, b]\nseed: many\n"))
        ),
        "unknown policy": told(
            "recipe.yaml heads keep", lambda p: p.merge(p.recipe("experts: [a, b]\nheads: drop\n"))
        ),
        "method without a name": told(
            "recipe.yaml merger {name: NAME",
            lambda p: p.merge(p.recipe("experts: [a, b]\nmerger: {density: 0.2}\n")),
        ),
        "flags too": told(
            "--merger recipe.yaml", lambda p: p.merge(p.recipe("experts: [a, b]\n"), merger="ties")
        ),
        "no base": told("ties --base", lambda p: p.merge(merger="ties")),
        "no base for dare": told("dare --base", lambda p: p.merge(premerge="dare")),
        "too many tasks": told(
            "3 tasks 2 experts", lambda p: p.merge(tasks="glue/rte,glue/mnli,glue/qnli")
        ),
        "no task": told(
            "tasks --tasks",
            lambda p: ["evaluate", "--model", p["a"], f"--output-path={p.root / 'out'}"],
        ),
        "other experts than were merged": told(
            "merged 2 experts 1 --experts", lambda p: p.evaluate(experts=p["a"])
        ),
        "no tasks to prepare": told(
            "tasks", lambda p: ["prepare", "--tasks", "", "--data-dir", str(p.root / "out")]
        ),
        "one model alone": told("1", lambda p: p.inspect(p["a"])),
        "one model and its base": told("1", lambda p: p.inspect(p["a"], base=p["base"])),
    },
    BrokenCheckpoint: {
        "fewer positions than a preset reads": told(
            "40 256 mean_all --preset",
            lambda p: [*p.data("validation", pairs(130)), "--preset", "ft-classifier"],
        ),
        "a base of fewer positions than a preset reads": told(
            "base 40 256", lambda p: p.finetune(preset="ft-classifier")
        ),
        "features that are none": told(
            "expert.json cls last_linear mean_all",
            lambda p: p.evaluate(p.wrote("a", "expert.json", '{"readout": "cls"}')),
        ),
        "no folder": told("/no/such/folder", lambda p: p.merge(p["a"], "/no/such/folder")),
        "no hub": told("nobody/nothing Hub", lambda p: p.merge(p["a"], "nobody/nothing")),
        "no weights": told(
            f"copies/b weights {WEIGHTS}", lambda p: p.merge(p["a"], p.without("b", WEIGHTS))
        ),
        "truncated": told(
            f"copies/b/{WEIGHTS} expected whole copy", lambda p: p.merge(p["a"], p.truncated("b"))
        ),
        "garbage": told(
            f"copies/b/{WEIGHTS}",
            lambda p: p.merge(p["a"], p.wrote("b", WEIGHTS, b"not a tensor in sight")),
        ),
        "empty": told(f"copies/b/{WEIGHTS}", lambda p: p.merge(p["a"], p.wrote("b", WEIGHTS, b""))),
        "truncated model": told(f"copies/a/{WEIGHTS}", lambda p: p.evaluate(p.truncated("a"))),
        "truncated base": told(
            f"copies/base/{WEIGHTS}", lambda p: p.finetune(base=p.truncated("base"))
        ),
        "base without a layer": told(
            f"copies/base {DENSE}",
            lambda p: p.finetune(base=p.tensors("base", drop(DENSE.removeprefix("bert.")))),
        ),
        "base without a layer, several tasks": told(
            f"copies/base {DENSE}",
            lambda p: p.finetune_both(base=p.tensors("base", drop(DENSE.removeprefix("bert.")))),
        ),
        "base with a layer too few": told(
            "copies/base bert.encoder.layer.2",
            lambda p: p.finetune(base=p.config("base", num_hidden_layers=3)),
        ),
        "base of another width": told(
            "copies/base bert.encoder.layer.0.intermediate.dense.weight (24, 16) (32, 16)",
            lambda p: p.finetune(base=p.config("base", intermediate_size=32)),
        ),
        "base of integers": told(
            f"{DENSE.removeprefix('bert.')} copies/base int8 quantized",
            lambda p: p.finetune(base=p.tensors("base", to_integers(DENSE.removeprefix("bert.")))),
        ),
        "base with NaN": told(
            f"{DENSE} copies/base NaN",
            lambda p: p.finetune(base=p.filled("base", DENSE.removeprefix("bert."), math.nan)),
        ),
        "base with NaN, several tasks": told(
            f"{DENSE} copies/base infinite",
            lambda p: p.finetune_both(base=p.filled("base", DENSE.removeprefix("bert."), math.inf)),
        ),
        "base without a tokenizer": told(
            "copies/base tokenizer", lambda p: p.finetune(base=p.without("base", "tokenizer.json"))
        ),
        "base with a broken tokenizer": told(
            "copies/base tokenizer",
            lambda p: p.finetune(base=p.wrote("base", "tokenizer.json", '{"model": 3}')),
        ),
        "base with a broken tokenizer, several tasks": told(
            "copies/base tokenizer",
            lambda p: p.finetune_both(base=p.wrote("base", "tokenizer.json", '{"model": 3}')),
        ),
        "pickle": told(
            "copies/b pickle pytorch_model.bin --allow-pickle",
            lambda p: p.merge(p["a"], p.pickled("b")),
        ),
        "pickled model": told("pickle --allow-pickle", lambda p: p.evaluate(p.pickled("a"))),
        "pickle with code": told(
            "pytorch_model.bin weights",
            lambda p: [
                *p.merge(
                    p["a"], p.wrote(Path(p.pickled("b")).name, "pytorch_model.bin", b"cos\nabort\n")
                ),
                "--allow-pickle",
            ],
        ),
        "pickle of something else": told(
            "pytorch_model.bin",
            lambda p: [*p.merge(p["a"], p.pickled("b", [1, 2])), "--allow-pickle"],
        ),
        "no configuration": told(
            "copies/b/config.json", lambda p: p.merge(p["a"], p.without("b", "config.json"))
        ),
        "broken configuration": told(
            "copies/b/config.json", lambda p: p.merge(p["a"], p.wrote("b", "config.json", "{"))
        ),
        "configuration that is a list": told(
            "copies/a/config.json list", lambda p: p.evaluate(p.wrote("a", "config.json", "[]"))
        ),
        "no model type": told(
            "copies/a model_type config.json", lambda p: p.evaluate(p.config("a", model_type=...))
        ),
        "layers without number": told(
            "copies/b/config.json num_hidden_layers 1000000000 41",
            lambda p: p.merge(p["a"], p.config("b", num_hidden_layers=10**9)),
        ),
        "tokens without number": told(
            "copies/b/config.json vocab_size 1000000000000 1048576",
            lambda p: p.merge(p["a"], p.config("b", vocab_size=10**12)),
        ),
        "places without number": told(
            "copies/a/config.json max_position_embeddings 300000000 1048576",
            lambda p: p.evaluate(p.config("a", max_position_embeddings=3 * 10**8)),
        ),
        "no heads to train": told(
            "copies/base config.json 0 at least 1",
            lambda p: p.finetune(base=p.config("base", num_attention_heads=0)),
        ),
        "labels without number": told(
            "copies/a/config.json num_labels 1e+308",
            lambda p: p.evaluate(p.config("a", num_labels=1e308)),
        ),
        "a pipe for a configuration": told(
            "copies/b/config.json file", lambda p: p.merge(p["a"], p.pipe("b", "config.json"))
        ),
        "a pipe for statistics": told(
            "fifo file", lambda p: p.merge(merger="regmean", statistics=f"{p.fifo()},{p.fifo()}")
        ),
        "a base that needs another library": told(
            "copies/base/config.json quantization_config weights",
            lambda p: p.finetune(base=p.config("base", quantization_config={"load_in_8bit": True})),
        ),
        "a task that leads out of the output": told(
            "copies/b/expert.json ../../../elsewhere",
            lambda p: p.merge(
                p["a"],
                p.wrote("b", "expert.json", '{"tasks": ["../../../elsewhere"]}'),
                heads="keep",
            ),
        ),
        "a task that no folder can be called": told(
            "copies/b/expert.json",
            lambda p: p.merge(p["a"], p.wrote("b", "expert.json", '{"tasks": ["a\\u0000b"]}')),
        ),
        "a pipe for weights": told(
            f"copies/b/{WEIGHTS} file file",
            lambda p: p.merge(
                p["a"],
                p["b"],
                merger="regmean",
                statistics=f"{p.pipe('b', WEIGHTS)}/{WEIGHTS},{p['a']}/{WEIGHTS}",
            ),
        ),
        "labels of a head without number": told(
            "heads/glue/rte/config.json num_labels 1000000000",
            lambda p: p.evaluate(p.head(num_labels=10**9)),
        ),
        "model type of a head that is no name": told(
            "copies/a/heads/glue/rte model_type config.json",
            lambda p: p.evaluate(p.head(model_type=None), base=p["base"]),
        ),
        "a folder for a tokenizer": told(
            "copies/a/tokenizer.json file", lambda p: p.evaluate(p.folder("a", "tokenizer.json"))
        ),
        "a tokenizer of another day": told(
            "copies/a tokenizer version", lambda p: p.evaluate(p.tokenizer("a", version="9.0"))
        ),
        "a tokenizer whose code panics": told(
            "copies/a tokenizer Precompiled",
            lambda p: p.evaluate(p.tokenizer("a", normalizer=PANIC)),
        ),
        "a special token that is a number": told(
            "copies/a tokenizer cls_token",
            lambda p: p.evaluate(p.wrote("a", "tokenizer_config.json", '{"cls_token": 7}')),
        ),
        "a tokenizer in a file of another name": told(
            "copies/b/tokenizer_config.json fast_tokenizer_files ../x.json remove",
            lambda p: p.merge(p["a"], p.settings("b", fast_tokenizer_files=["../x.json"])),
        ),
        "a vocabulary elsewhere": told(
            "copies/b/tokenizer_config.json vocab /etc/passwd remove",
            lambda p: p.merge(p["a"], p.settings("b", vocab="/etc/passwd")),
        ),
        "a token without a number": told(
            "copies/b tokenizer read files",
            lambda p: p.merge(p["a"], p.tokenizer("b", model={"vocab": {"x": 1e999}})),
        ),
        "a token beyond all": told(
            "copies/a tokenizer 2147483648",
            lambda p: p.evaluate(
                p.tokenizer(
                    "a", model={"type": "WordLevel", "vocab": {"x": 2**31}, "unk_token": "x"}
                )
            ),
        ),
        "an added token beyond all": told(
            "copies/a tokenizer 2147483648",
            lambda p: p.evaluate(
                p.tokenizer("a", added_tokens=[{"id": 2**31, "content": "x", "special": False}])
            ),
        ),
        "tokens that are none": told(
            "copies/b tokenizer read files",
            lambda p: p.merge(p["a"], p.tokenizer("b", model={"vocab": 7})),
        ),
        "a vocabulary that is no text": told(
            "copies/b tokenizer read files",
            lambda p: p.merge(
                p["a"], p.wrote(Path(p.without("b", "tokenizer.json")).name, "vocab.txt", b"\xff")
            ),
        ),
        "a name of no file": told("Hub", lambda p: p.merge(p["a"], "x" * 5000)),
        "labels that are no labels": told(
            "copies/a id2label", lambda p: p.evaluate(p.config("a", id2label={"first": "x"}))
        ),
        "two labels of one number": told(
            "copies/a id2label 00",
            lambda p: p.evaluate(p.config("a", id2label={"0": "x", "00": "y"})),
        ),
        "two labels of one name": told(
            "copies/a id2label two alike",
            lambda p: p.merge(p.config("a", id2label={"0": "x", "1": "x"}), p["b"]),
        ),
        "labels in two orders": told(
            "copies/a label2id no id2label",
            lambda p: p.evaluate(
                p.config("a", id2label={"0": "no", "1": "yes"}, label2id={"no": 1})
            ),
        ),
        "missing shard": told(
            "copies/b/model-2.safetensors",
            lambda p: p.merge(
                p["a"], p.sharded("b", {"weight_map": {WORDS: "model-2.safetensors"}})
            ),
        ),
        "missing tensor in a shard": told(
            "model-1.safetensors ghost",
            lambda p: p.merge(
                p["a"], p.sharded("b", {"weight_map": {"ghost": "model-1.safetensors"}})
            ),
        ),
        "shard elsewhere": told(
            "copies/b ../a/model.safetensors",
            lambda p: p.merge(
                p["a"], p.sharded("b", {"weight_map": {WORDS: "../a/model.safetensors"}})
            ),
        ),
        "no weight map": told("weight_map", lambda p: p.merge(p["a"], p.sharded("b", {}))),
        "broken index": told(
            f"{WEIGHTS}.index.json", lambda p: p.merge(p["a"], p.sharded("b", "{"))
        ),
        "broken merge.json": told(
            "copies/merged/merge.json", lambda p: p.evaluate(p.wrote("merged", "merge.json", "{"))
        ),
        "merge.json of another kind": told(
            "copies/merged/merge.json tasks 5",
            lambda p: p.evaluate(p.wrote("merged", "merge.json", '{"tasks": 5}')),
        ),
        "merge.json without experts": told(
            "copies/merged/merge.json experts.0 3",
            lambda p: p.evaluate(p.wrote("merged", "merge.json", '{"experts": [3]}')),
        ),
        "broken expert.json": told(
            "copies/b/expert.json",
            lambda p: p.merge(p["a"], p.wrote("b", "expert.json", '{"tasks": 5}')),
        ),
        "broken mergekit": told(
            "mergekit_config.yml merge_method",
            lambda p: p.evaluate(p.wrote("a", "mergekit_config.yml", "models: []")),
        ),
        "no tokenizer": told(
            "copies/a tokenizer",
            lambda p: p.evaluate(p.without("a", "tokenizer.json", "tokenizer_config.json")),
        ),
        "a negative number of heads": told(
            "copies/b num_attention_heads -2 config.json",
            lambda p: p.merge(p["a"], p.config("b", num_attention_heads=-2), premerge="rotation"),
        ),
        "no heads": told(
            "copies/a num_attention_heads 0 config.json",
            lambda p: p.merge(p.config("a", num_attention_heads=0), p["b"]),
        ),
        "a second expert whose heads do not divide the width": told(
            "copies/b 3 heads", lambda p: p.merge(p["a"], p.config("b", num_attention_heads=3))
        ),
        "nan in an expert": told(
            f"{DENSE} copies/b NaN", lambda p: p.merge(p["a"], p.filled("b", DENSE, math.nan))
        ),
        "inf in an expert": told(
            f"{DENSE} copies/a infinite", lambda p: p.merge(p.filled("a", DENSE, math.inf), p["b"])
        ),
        "nan in a head": told(
            "classifier.weight copies/b NaN",
            lambda p: p.merge(p["a"], p.filled("b", "classifier.weight", math.nan)),
        ),
        "nan in the base": told(
            "word_embeddings.weight copies/base NaN",
            lambda p: p.merge(
                base=p.filled("base", WORDS.removeprefix("bert."), math.nan), merger="ties"
            ),
        ),
        "nan in the model": told(
            f"{DENSE} copies/a NaN", lambda p: p.evaluate(p.filled("a", DENSE, math.nan))
        ),
        "inf in a reference": told(
            f"{DENSE} copies/b infinite",
            lambda p: p.evaluate(p["a"], experts=p.filled("b", DENSE, -math.inf)),
        ),
        "a tensor less in the model": told(
            f"copies/a {DENSE}", lambda p: p.evaluate(p.tensors("a", drop(DENSE)))
        ),
        "a tensor more in the model": told(
            "copies/a bert.extra", lambda p: p.evaluate(p.tensors("a", add("bert.extra")))
        ),
        "a shape in the model": told(
            "copies/a (24, (32,", lambda p: p.evaluate(p.config("a", intermediate_size=32))
        ),
        "missing": told("nowhere", lambda p: p.inspect(p["a"], "./nowhere")),
        "nan": told(
            f"{DENSE} copies/b NaN", lambda p: p.inspect(p["a"], p.filled("b", DENSE, math.nan))
        ),
        "pickle, inspected": told(
            "pickle --allow-pickle", lambda p: p.inspect(p["a"], p.pickled("b"))
        ),
        "heads that do not divide the width": told(
            "copies/a 3 heads .query.",
            lambda p: p.merge(
                p.config("a", num_attention_heads=3),
                p.config("b", num_attention_heads=3),
                premerge="rotation",
            ),
        ),
        "a tensor of the table that no expert has": told(
            f"copies/a {BIAS}",
            lambda p: p.merge(
                p.tensors("a", drop(BIAS)), p.tensors("b", drop(BIAS)), premerge="permutation"
            ),
        ),
    },
    IncompatibleWeights: {
        "architecture": told("roberta roberta bert", lambda p: p.merge(p["a"], p["roberta"])),
        "architecture of the base": told(
            "base bert roberta", lambda p: p.merge(p["roberta"], base=p["base"])
        ),
        "number of heads": told(
            "copies/b num_attention_heads 4 num_attention_heads 2 /a",
            lambda p: p.merge(p["a"], p.config("b", num_attention_heads=4), premerge="rotation"),
        ),
        "number of heads of the base": told(
            "copies/base num_attention_heads 4 num_attention_heads 2",
            lambda p: p.merge(p["a"], p["b"], base=p.config("base", num_attention_heads=4)),
        ),
        "activation": told(
            "copies/b hidden_act relu hidden_act gelu",
            lambda p: p.merge(p["a"], p.config("b", hidden_act="relu")),
        ),
        "a default that one has not": told(
            "copies/b num_attention_heads 12 config.json",
            lambda p: p.merge(p["a"], p.config("b", num_attention_heads=...)),
        ),
        "a tensor that the base lacks": told(
            "base output.dense.bias",
            lambda p: p.evaluate(base=p.tensors("base", drop("encoder.layer.0.output.dense.bias"))),
        ),
        "vocabulary": told(
            "tokenizer copies/b model.vocab.W None one tokenizer",
            lambda p: p.merge(
                p["a"],
                p.wrote(
                    "b",
                    "tokenizer.json",
                    Path(p["b"], "tokenizer.json").read_text().replace("word7", "W"),
                ),
            ),
        ),
        "shape": told(
            "bert.encoder.layer.0.intermediate.dense.bias (32,) wide (24,)",
            lambda p: p.merge(p["a"], p["wide"]),
        ),
        "shape of the base": told(
            "(32,) base (24,)", lambda p: p.merge(base=p["wide-base"], merger="ties")
        ),
        "more layers": told("deep bert.encoder.layer.2", lambda p: p.merge(p["a"], p["deep"])),
        "fewer layers": told("bert.encoder.layer.2", lambda p: p.merge(p["deep"], p["a"])),
        "fewer layers in the base": told(
            "base bert.encoder.layer.2", lambda p: p.merge(p["deep"], base=p["base"], merger="ties")
        ),
        "more layers in the base": told(
            "base deep encoder.layer.2", lambda p: p.merge(base=p["deep"], merger="ties")
        ),
        "a tensor less": told(
            f"copies/b {DENSE}", lambda p: p.merge(p["a"], p.tensors("b", drop(DENSE)))
        ),
        "a tensor more": told(
            "copies/b bert.extra", lambda p: p.merge(p["a"], p.tensors("b", add("bert.extra")))
        ),
        "a head tensor less": told(
            "copies/b classifier.bias",
            lambda p: p.merge(p["a"], p.tensors("b", drop("classifier.bias"))),
        ),
        "number of heads, inspected": told(
            "copies/b num_attention_heads 4 num_attention_heads 2",
            lambda p: p.inspect(p["a"], p.config("b", num_attention_heads=4)),
        ),
        "architecture, inspected": told(
            "roberta roberta bert", lambda p: p.inspect(p["a"], p["roberta"])
        ),
        "depth": told("a bert.encoder.layer.2 deep", lambda p: p.inspect(p["deep"], p["a"])),
        "width": told("(32,) wide (24,)", lambda p: p.inspect(p["a"], p["b"], p["wide"])),
        "width of the base": told(
            "(32,) base wide-base (24,)", lambda p: p.inspect(p["a"], p["b"], base=p["wide-base"])
        ),
        "depth of the base": told(
            "base bert.encoder.layer.2", lambda p: p.inspect(p["deep"], p["deep"], base=p["base"])
        ),
        "a deeper base": told(
            "base deep encoder.layer.2", lambda p: p.inspect(p["a"], p["b"], base=p["deep"])
        ),
        "more layers, brought together": told(
            "deep bert.encoder.layer.2",
            lambda p: p.merge(p["a"], p["deep"], premerge="permutation"),
        ),
        "fewer layers in the base, brought together": told(
            "base bert.encoder.layer.2",
            lambda p: p.merge(
                p["deep"], p["deep"], premerge="rotation:anchor=base", base=p["base"]
            ),
        ),
        "more layers in the base, brought together": told(
            "base deep encoder.layer.2",
            lambda p: p.merge(p["a"], p["b"], premerge="rotation", base=p["deep"]),
        ),
        "attention with a tensor that the table has not": told(
            "self.distance_embedding.weight bert",
            lambda p: p.merge(
                p.tensors(
                    "a", add("bert.encoder.layer.0.attention.self.distance_embedding.weight")
                ),
                p.tensors(
                    "b", add("bert.encoder.layer.0.attention.self.distance_embedding.weight")
                ),
                premerge="rotation",
            ),
        ),
    },
    LabelMismatch: {
        "labels of the model": told(
            "noyes no, yes glue/rte entailment, not_entailment id2label config.json",
            lambda p: p.evaluate(p["noyes"]),
        ),
        "labels of an expert": told(
            "noyes no, yes glue/rte", lambda p: p.evaluate(p["a"], experts=p["noyes"])
        ),
        "generic labels": told(
            "nameless LABEL_0, LABEL_1 --labels by-index", lambda p: p.evaluate(p["nameless"])
        ),
        "generic labels in a merge": told(
            "nameless LABEL_0, LABEL_1 entailment, not_entailment id2label config.json",
            lambda p: p.merge(p["a"], p["nameless"]),
        ),
        "a wrong name is no generic one": told(
            "noyes no, yes", lambda p: p.evaluate(p["noyes"], labels="by-index")
        ),
        "labels of another task": told(
            "entailment, not_entailment glue/mrpc not_equivalent",
            lambda p: p.evaluate(p["a"], tasks="glue/mrpc"),
        ),
        "labels for a number": told(
            "entailment glue/stsb regression", lambda p: p.evaluate(p["a"], tasks="glue/stsb")
        ),
        "labels of experts": told(
            "noyes no, yes entailment, not_entailment --tasks",
            lambda p: p.merge(p["a"], p["noyes"]),
        ),
    },
    MissingHead: {
        "no head": told("base head glue/rte", lambda p: p.evaluate(p["base"])),
        "no head in an expert": told("base head", lambda p: p.merge(p["a"], p["base"])),
        "merged without one in the base": told(
            "base classifier. --heads average",
            lambda p: p.merge(base=p["base"], merger="ties", heads="merge"),
        ),
    },
    MissingTeacher: {
        "no teacher": told(
            "ft-classifier --experts", lambda p: p.evaluate(p["a"], protocols="ft-classifier")
        ),
    },
    BadData: {
        "split": told(
            "glue/rte test validation heldout10", lambda p: p.evaluate(tasks="glue/rte@test")
        ),
        "less than a batch under a preset": told(
            "glue/rte@validation 12 128", lambda p: p.evaluate(preset="ft-classifier")
        ),
        "no folder": told(
            "glue/rte nowhere/glue/rte validation.parquet",
            lambda p: p.evaluate(data_dir=str(p.root / "nowhere")),
        ),
        "no file": told("glue/rte train.parquet", lambda p: p.data("train", None)),
        "rows without number": told(
            "validation.parquet 10000001 rows 10000000",
            lambda p: p.data("validation", pa.table({"label": pa.nulls(10**7 + 1)})),
        ),
        "broken file": told("validation.parquet", lambda p: p.data("validation", b"PAR1 no")),
        "no rows": told("glue/rte@validation", lambda p: p.data("validation", pairs(0))),
        "no rows to draw from": told("glue/rte@train90", lambda p: p.data("train", pairs(1))),
        "no column": told(
            "sentence2 sentence1, label",
            lambda p: p.data("validation", pairs(12).drop_columns("sentence2")),
        ),
        "no label": told(
            "column label", lambda p: p.data("validation", pairs(12).drop_columns("label"))
        ),
        "unlabelled": told(
            "-1 entailment, not_entailment",
            lambda p: p.data("validation", pairs(12, label=[-1] * 12)),
        ),
        "label by a name of another task": told(
            "yes entailment, not_entailment",
            lambda p: p.data("validation", pairs(2, label=["yes", "no"])),
        ),
        "no label in a row": told(
            "None entailment, not_entailment",
            lambda p: p.data("validation", pairs(2, label=[0, None])),
        ),
        "words about columns that are no JSON": told(
            "validation.parquet", lambda p: p.data("validation", described('{"info":'))
        ),
        "words about columns without end": told(
            "validation.parquet", lambda p: p.data("validation", described("[" * 100_000))
        ),
        "classes with numbers for names": told(
            "validation.parquet [0, 1]", lambda p: p.data("validation", classes([0, 1]))
        ),
        "column twice": told(
            "column label twice",
            lambda p: p.data("validation", pairs(12).append_column("label", pairs(12)["label"])),
        ),
        "numbers for texts": told(
            "int64 column sentence1 text",
            lambda p: p.data("validation", pairs(12, sentence1=list(range(12)))),
        ),
        "bytes that are no text": told(
            "validation.parquet", lambda p: p.data("validation", broken_text(12))
        ),
        "nothing on the hub": told(
            "textcls/amazon_review_full --data-dir",
            lambda p: [
                "prepare",
                "--tasks=textcls/amazon_review_full",
                f"--data-dir={p.root / 'out'}",
            ],
        ),
        "nothing to train on": told(
            "glue/rte", lambda p: p.finetune(data_dir=str(p.root / "nowhere"))
        ),
    },
    OutputExists: {
        "merge over a thesis": told("thesis merge.json", lambda p: p.merge(out=p.foreign())),
        "dry run over a thesis": told("thesis", lambda p: [*p.merge(out=p.foreign()), "--dry-run"]),
        "merge over a file": told(
            "chapter.tex file folder", lambda p: p.merge(out=f"{p.foreign()}/chapter.tex")
        ),
        "merge below a file": told(
            "chapter.tex", lambda p: p.merge(out=f"{p.foreign()}/chapter.tex/merged")
        ),
        "merge into a link to itself": told("loop folder", lambda p: p.merge(out=p.loop())),
        "expert over a thesis": told("thesis expert.json", lambda p: p.finetune(out=p.foreign())),
        "expert over its base": told(
            "copies/base base --out",
            lambda p: p.finetune(base=str(p.copy("base")), out=str(p.copy("base"))),
        ),
        "expert over a merge": told("merged expert.json", lambda p: p.finetune(out=p["merged"])),
        "records over a file": told(
            "chapter.tex", lambda p: p.evaluate(output_path=f"{p.foreign()}/chapter.tex")
        ),
        "board over a file": told(
            "thesis", lambda p: ["leaderboard", p.foreign(), f"--out={p.foreign()}/chapter.tex"]
        ),
        "over a thesis": told(
            "thesis inspect.json", lambda p: p.inspect(p["a"], p["b"], out=p.foreign())
        ),
        "over a model": told(
            "copies/a", lambda p: [*p.inspect(p["a"], p["b"], out=str(p.copy("a"))), "--force"]
        ),
    },
}

CASES = {
    f"{kind.__name__}: {name}": (kind, *case)
    for kind, cases in MISTAKES.items()
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
    kind, things, command = CASES[name]
    arguments = command(place)
    before = place.left()
    capfd.readouterr()
    refused(arguments, kind, things)
    assert capfd.readouterr() == ("", "")  # of libraries
    assert place.left() == before


#: the whole line of a mistake of each type
LINES = {
    "UnknownName: merger": "no merger is called 'avrage'; did you mean 'average'?",
    "BadOption: unknown": "merger 'ties' has no option 'densty'; did you mean 'density'?",
    "BadOption: seed": "seed is -1, expected a whole number from 0 to 4294967295",
    "BrokenCheckpoint: no weights": (
        "PLACE/copies/b holds no weights; expected model.safetensors or "
        "model.safetensors.index.json"
    ),
    "IncompatibleWeights: shape of the base": (
        "'bert.encoder.layer.0.intermediate.dense.bias' is (32,) in the base SHELF/wide-base, "
        "expected (24,) as in SHELF/a"
    ),
    "BrokenCheckpoint: nan in an expert": (
        f"'{DENSE}' of PLACE/copies/b has NaN entries, expected finite numbers"
    ),
    "LabelMismatch: generic labels": (
        "SHELF/nameless has the labels LABEL_0, LABEL_1; glue/rte expects entailment, "
        'not_entailment; if its outputs are in that order, write "id2label": {"0": "entailment", '
        '"1": "not_entailment"} into its config.json, or say so to evaluate with --labels by-index'
    ),
    "MissingHead: no head": ("SHELF/base has no head for glue/rte; give an expert with --experts"),
    "MissingTeacher: no teacher": (
        "the protocol 'ft-classifier' needs an expert of 'glue/rte', found none; give --experts"
    ),
    "BadRecipe: flags too": (
        "--merger is given, and PLACE/recipe.yaml sets it too; leave out one of them"
    ),
    "BadData: no column": (
        "glue/rte@validation has no column 'sentence2'; found sentence1, label; expected "
        "sentence1, sentence2, label"
    ),
    "OutputExists: merge over a thesis": (
        "PLACE/thesis exists and has no merge.json of this program; expected a new or empty "
        "folder: choose another --out"
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_the_line_of_a_mistake(name: str, shelf: Path, tmp_path: Path) -> None:
    kind, _, command = CASES[name]
    line = refused(command(Place(shelf, tmp_path)), kind)
    line = line.replace(str(tmp_path), "PLACE").replace(str(shelf), "SHELF")
    assert line == f"harness: {LINES[name]}"


def test_a_pickle_is_read_as_weights_only_when_told(shelf: Path, tmp_path: Path) -> None:
    place = Place(shelf, tmp_path)
    folder = place.pickled("b")
    out = tmp_path / "out"
    assert main([*place.merge(place["a"], folder, out=str(out)), "--allow-pickle"]) == 0
    assert main(place.merge(out=str(tmp_path / "safe"))) == 0
    assert (out / WEIGHTS).read_bytes() == (tmp_path / "safe" / WEIGHTS).read_bytes()
    for either in (folder, str(out)):
        assert main([*place.evaluate(either, protocols="current"), "--allow-pickle"]) == 0


def test_a_row_that_is_too_long_for_the_model_is_one_line_before_work(
    shelf: Path, tmp_path: Path
) -> None:
    """With the length that the model has positions for."""
    place = Place(shelf, tmp_path)
    arguments = place.data("validation", pairs(12, sentence1=["word1 " * 60] * 12))
    refused(
        [*arguments, "--protocols", "current"],
        BrokenCheckpoint,
        "positions 40 --max-length 40 auto",
    )


def test_no_command_at_all_is_a_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert "merge" in out
    assert err == ""
