"""A merged folder is an ordinary one: plain transformers loads it and computes what we compute."""

from __future__ import annotations

import json
import math
import shutil
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from harness import TASKS, Recipe, Rows, merge
from harness.checkpoints.open import open_checkpoint
from harness.cli import main
from harness.errors import (
    BadOption,
    BadRecipe,
    BrokenCheckpoint,
    MissingHead,
    OutputExists,
    UnknownName,
)
from harness.merging import write as folders
from harness.merging.recipes import recipe_and_fields
from harness.merging.summary import WHOSE
from harness.passes.features import forward
from harness.registry import STAGES
from harness.types import Whose
from harness.weights import digest
from tests.conftest import FAMILIES, model
from tests.mistakes import mistake, names, refused

Minis = Callable[[str], dict[str, Path]]

PAIRS = (
    ("word1 word2 word3", "word4 word5"),
    ("word6", "word7 word8 word9 word10 word11"),
    ("word30 word31", "word32 word1 word2"),
)
"""Of unlike length, so that padding matters."""

METHODS: dict[str, dict[str, Any]] = {
    "average": {"merger": "average"},
    "ties": {"merger": "ties:density=0.4"},
    "dare[task_arithmetic]": {"merger": "task_arithmetic", "premerge": ("dare",), "seed": 7},
}
EXTRA = "bert.embeddings.position_ids"


def plain_logits(folder: Path) -> np.ndarray[Any, Any]:
    """What transformers alone computes, row by row; fails if it had to make up a tensor."""
    found, info = AutoModelForSequenceClassification.from_pretrained(
        folder, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    words = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        rows = [found.eval()(**words(*pair, return_tensors="pt")).logits[0] for pair in PAIRS]
    return torch.stack(rows).numpy()


def our_logits(folder: Path) -> np.ndarray[Any, Any]:
    rows = Rows(TASKS["glue/rte"], "test", PAIRS, np.zeros(len(PAIRS)), "")
    return forward(open_checkpoint(folder), rows, max_length=40)[1]


def content(folder: Path) -> str:
    return digest(open_checkpoint(folder).weights)


def recorded(folder: Path) -> Any:
    return json.loads((folder / "merge.json").read_text())


def copied(source: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> Path:
    """A copy of a folder with its tensors changed."""
    shutil.copytree(source, target)
    tensors = load_file(target / "model.safetensors")
    change(tensors)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def same_task(found: dict[str, Path], **values: Any) -> Recipe:
    return Recipe(experts=(str(found["a"]), str(found["b"])), base=str(found["base"]), **values)


# What transformers makes of it ----------------------------------------------------------------


@pytest.mark.parametrize("method", sorted(METHODS))
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_same_task_merge_is_an_ordinary_classifier(
    family: str, method: str, minis: Minis, tmp_path: Path
) -> None:
    merge(same_task(minis(family), **METHODS[method]), out=tmp_path / "merged")
    np.testing.assert_allclose(
        plain_logits(tmp_path / "merged"), our_logits(tmp_path / "merged"), rtol=0, atol=1e-5
    )
    expected = {*load_file(minis(family)["a"] / "model.safetensors")}
    assert {*load_file(tmp_path / "merged" / "model.safetensors")} == expected


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_merge_of_different_tasks_keeps_the_heads_beside_an_ordinary_encoder(
    family: str, minis: Minis, tmp_path: Path
) -> None:
    found, out = minis(family), tmp_path / "merged"
    recipe = Recipe(
        experts=(str(found["a"]), str(found["c"])),
        base=str(found["base"]),
        merger="task_arithmetic",
        tasks=("glue/rte", "glue/mnli"),
    )
    merge(recipe, out=out)
    _, info = AutoModel.from_pretrained(out, output_loading_info=True)
    # RoBERTa's classifier reads no pooler, so its experts have none to merge
    assert not {name for name in info["missing_keys"] if not name.startswith("pooler.")}
    assert family == "roberta" or not info["missing_keys"]
    encoder = {*load_file(out / "model.safetensors")}
    for expert, task in (("a", "glue/rte"), ("c", "glue/mnli")):
        mine = load_file(found[expert] / "model.safetensors")
        head = load_file(out / "heads" / task / "model.safetensors")
        assert encoder | {*head} == {*mine}
        assert not encoder & {*head}
        assert all(torch.equal(head[name], mine[name]) for name in head)
        kept = json.loads((out / "heads" / task / "config.json").read_text())
        assert (
            kept["id2label"] == json.loads((found[expert] / "config.json").read_text())["id2label"]
        )
    assert "id2label" not in json.loads((out / "config.json").read_text())
    assert recorded(out)["heads"] == "keep"
    assert recorded(out)["tasks"] == ["glue/rte", "glue/mnli"]


# How checkpoints are stored -------------------------------------------------------------------


def pretraining(tensors: dict[str, torch.Tensor]) -> None:
    """The names of an original BERT release: prefix, language-model head, gamma and beta."""
    for name in list(tensors):
        tensor = tensors.pop(name)
        bare = name.removeprefix("bert.")
        old = bare.replace("LayerNorm.weight", "LayerNorm.gamma")
        tensors["bert." + old.replace("LayerNorm.bias", "LayerNorm.beta")] = tensor
    tensors["cls.predictions.bias"] = torch.zeros(45)
    tensors["cls.seq_relationship.weight"] = torch.zeros(2, 16)


@pytest.mark.parametrize("merger", ["task_arithmetic", "ties"])
def test_a_base_is_found_under_other_names(merger: str, minis: Minis, tmp_path: Path) -> None:
    found = minis("bert")
    old = copied(found["base"], tmp_path / "old", pretraining)
    merge(same_task(found, merger=merger), out=tmp_path / "new")
    merge(same_task({**found, "base": old}, merger=merger), out=tmp_path / "merged")
    assert content(tmp_path / "merged") == content(tmp_path / "new")


def test_experts_with_gamma_and_beta_are_written_with_modern_names(
    minis: Minis, tmp_path: Path
) -> None:
    found = minis("bert")

    def age(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if "LayerNorm" in name]:
            old = name.replace("weight", "gamma").replace("bias", "beta")
            tensors[old] = tensors.pop(name)

    old = {name: copied(found[name], tmp_path / name, age) for name in "ab"}
    merge(same_task(found), out=tmp_path / "new")
    merge(same_task({**found, **old}), out=tmp_path / "merged")
    assert content(tmp_path / "merged") == content(tmp_path / "new")
    plain_logits(tmp_path / "merged")


def test_shards_hold_the_same_content_as_one_file(minis: Minis, tmp_path: Path) -> None:
    found = minis("bert")
    parts = {}
    for name in ("base", "a", "b"):
        kind = AutoModel if name == "base" else AutoModelForSequenceClassification
        kind.from_pretrained(found[name]).save_pretrained(tmp_path / name, max_shard_size="20KB")
        assert (tmp_path / name / "model.safetensors.index.json").is_file()
        assert content(tmp_path / name) == content(found[name])
        parts[name] = tmp_path / name
    merge(same_task(found, merger="ties"), out=tmp_path / "whole")
    merge(same_task(parts, merger="ties"), out=tmp_path / "merged")
    assert content(tmp_path / "merged") == content(tmp_path / "whole")


def test_a_large_merge_is_written_in_shards(
    minis: Minis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    merge(same_task(minis("bert")), out=tmp_path / "whole")
    monkeypatch.setattr(folders, "SHARD_BYTES", 20_000)
    merge(same_task(minis("bert")), out=tmp_path / "merged")
    assert len(list((tmp_path / "merged").glob("model-*.safetensors"))) > 1
    assert content(tmp_path / "merged") == content(tmp_path / "whole")
    np.testing.assert_array_equal(
        plain_logits(tmp_path / "merged"), plain_logits(tmp_path / "whole")
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("merger", ["average", "task_arithmetic", "ties"])
def test_half_precision_is_rounded_once(
    merger: str, dtype: torch.dtype, minis: Minis, tmp_path: Path
) -> None:
    def cast(target: torch.dtype) -> Callable[[dict[str, torch.Tensor]], None]:
        return lambda tensors: tensors.update({k: v.to(target) for k, v in tensors.items()})

    found = minis("bert")
    half = {n: copied(found[n], tmp_path / f"half-{n}", cast(dtype)) for n in ("base", "a", "b")}
    wide = {n: copied(half[n], tmp_path / f"wide-{n}", cast(torch.float32)) for n in half}
    merge(same_task(half, merger=merger), out=tmp_path / "half")
    merge(same_task(wide, merger=merger), out=tmp_path / "wide")
    exact = load_file(tmp_path / "wide" / "model.safetensors")
    for name, tensor in load_file(tmp_path / "half" / "model.safetensors").items():
        assert tensor.dtype == dtype
        assert torch.equal(tensor, exact[name].to(dtype)), name


def test_a_merge_is_as_precise_as_its_widest_expert_in_any_order(
    minis: Minis, tmp_path: Path
) -> None:
    found = minis("bert")
    halved = copied(
        found["a"], tmp_path / "a", lambda s: s.update({k: v.half() for k, v in s.items()})
    )
    made = []
    config = json.loads((halved / "config.json").read_text())
    (halved / "config.json").write_text(json.dumps({**config, "dtype": "float16"}))
    for number, experts in enumerate(((halved, found["b"]), (found["b"], halved))):
        out = tmp_path / str(number)
        merge(same_task({**found, **dict(zip("ab", experts, strict=True))}), out=out)
        made.append(load_file(out / "model.safetensors"))
        loaded = AutoModelForSequenceClassification.from_pretrained(out).state_dict()
        for name, tensor in made[-1].items():
            assert loaded[name].dtype == tensor.dtype == torch.float32
            assert torch.equal(loaded[name], tensor), f"{name} is rounded when it is loaded"
    for name, tensor in made[0].items():
        assert torch.equal(tensor, made[1][name]), name


@pytest.mark.parametrize("merger", ["average", "task_arithmetic", "ties"])
def test_integer_buffers_are_those_of_the_base(merger: str, minis: Minis, tmp_path: Path) -> None:
    def buffer(start: int, name: str) -> Callable[[dict[str, torch.Tensor]], None]:
        return lambda tensors: tensors.update({name: torch.arange(start, start + 40)[None]})

    found = minis("bert")
    bare = EXTRA.removeprefix("bert.")
    mine = {
        "base": copied(found["base"], tmp_path / "base", buffer(0, bare)),
        "a": copied(found["a"], tmp_path / "a", buffer(100, EXTRA)),
        "b": copied(found["b"], tmp_path / "b", buffer(200, EXTRA)),
    }
    merge(same_task(mine, merger=merger), out=tmp_path / "merged")
    merge(same_task(found, merger=merger), out=tmp_path / "without")
    tensors = load_file(tmp_path / "merged" / "model.safetensors")
    assert torch.equal(tensors.pop(EXTRA), torch.arange(40)[None])
    assert digest(tensors) == content(tmp_path / "without")


def test_without_a_base_integer_buffers_are_those_of_the_first_expert(
    minis: Minis, tmp_path: Path
) -> None:
    found = minis("bert")
    mine = [
        copied(found[n], tmp_path / n, lambda t: t.update({EXTRA: torch.arange(40)[None]}))
        for n in "ab"
    ]
    merge(Recipe(experts=tuple(map(str, mine))), out=tmp_path / "merged")
    tensors = load_file(tmp_path / "merged" / "model.safetensors")
    assert torch.equal(tensors[EXTRA], torch.arange(40)[None])


# Heads ----------------------------------------------------------------------------------------


def test_what_becomes_of_the_head(minis: Minis, tmp_path: Path) -> None:
    found = minis("bert")
    name = "classifier.weight"
    a, b = (load_file(found[x] / "model.safetensors")[name] for x in "ab")

    def head(out: str, **values: Any) -> torch.Tensor:
        merge(same_task(found, **values), out=tmp_path / out)
        return load_file(tmp_path / out / "model.safetensors")[name]

    def policy(out: str) -> str:
        return str(recorded(tmp_path / out)["heads"])

    torch.testing.assert_close(head("ta", merger="task_arithmetic"), (a + b) / 2)
    torch.testing.assert_close(head("avg"), (a + b) / 2)
    uneven = {"merger": "average:weights=0.9:0.1"}
    torch.testing.assert_close(head("weighted", **uneven), 0.9 * a + 0.1 * b)
    torch.testing.assert_close(head("plain", **uneven, heads="average"), (a + b) / 2)
    assert [policy(x) for x in ("ta", "avg", "weighted", "plain")] == [
        "average",
        "merge",
        "merge",
        "average",
    ]


def test_a_task_vector_of_the_head_needs_one_in_the_base(minis: Minis, tmp_path: Path) -> None:
    found = minis("bert")
    with mistake(MissingHead, "classifier. --heads average"):
        merge(same_task(found, merger="ties", heads="merge"), out=tmp_path / "merged")
    start = model(tmp_path / "start", ["no", "yes"], seed=9)
    other = {"merger": "task_arithmetic:scale=1.0", "other_base": True}
    merge(same_task({**found, "base": start}, heads="merge", **other), out=tmp_path / "merged")
    a, b, s, m = (
        load_file(folder / "model.safetensors")["classifier.weight"]
        for folder in (found["a"], found["b"], start, tmp_path / "merged")
    )
    torch.testing.assert_close(m, a + b - s)


def test_same_labels_of_different_tasks_keep_their_heads(minis: Minis, tmp_path: Path) -> None:
    recipe = same_task(minis("bert"), merger="average", tasks=("glue/rte", "glue/qnli"))
    assert merge(recipe, out=tmp_path / "merged").recipe.heads == "keep"
    assert (tmp_path / "merged" / "heads" / "glue" / "qnli" / "config.json").is_file()


# The record -----------------------------------------------------------------------------------


def test_merge_json_records_everything_that_went_in(minis: Minis, tmp_path: Path) -> None:
    found, out = minis("bert"), tmp_path / "merged"
    merge(
        same_task(found, merger="ties:density=0.4", premerge=("dare:drop_rate=0.3",), seed=5),
        out=out,
    )
    record = recorded(out)
    assert record["base"]["source"] == str(found["base"])
    assert record["base"]["digest"] == content(found["base"])
    assert [expert["source"] for expert in record["experts"]] == [str(found["a"]), str(found["b"])]
    assert [expert["digest"] for expert in record["experts"]] == [
        content(found["a"]),
        content(found["b"]),
    ]
    assert (out / record["experts"][0]["relative"]).resolve() == found["a"].resolve()
    assert record["digest"] == content(out)
    assert record["merger"] == {
        "name": "ties",
        "options": {
            "density": 0.4,
            "scale": 1.0,
            "weights": None,
            "trim": "global",
            "convention": "mergelm",
            "undecided": "majority",
            "combine": "mean",
        },
    }
    (stage,) = record["premerge"]
    assert stage.keys() == {"name", "options", "distance", "seconds"}
    assert stage["name"] == "dare"
    assert stage["options"] == {
        "drop_rate": 0.3,
        "rescale": True,
        "strategy": "random",
        "on": "task_vector",
        "seed": 5,
    }
    assert record["method"] == "dare:drop_rate=0.3[ties:density=0.4]"
    assert (record["seed"], record["heads"]) == (5, "average")


def test_the_model_card_says_that_it_is_a_merge(minis: Minis, tmp_path: Path) -> None:
    found = minis("bert")
    merge(same_task(found), out=tmp_path / "merged")
    _, front, text = (tmp_path / "merged" / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(front) == {
        "base_model": [str(found["base"])],
        "base_model_relation": "merge",
        "library_name": "transformers",
        "tags": ["merge"],
    }
    assert all(str(found[name]) in text for name in "ab")


def test_the_seed_decides_the_draw(minis: Minis, tmp_path: Path) -> None:
    def drawn(out: str, seed: int) -> bytes:
        recipe = same_task(minis("bert"), **{**METHODS["dare[task_arithmetic]"], "seed": seed})
        merge(recipe, out=tmp_path / out)
        return (tmp_path / out / "model.safetensors").read_bytes()

    first = drawn("one", 1)
    assert drawn("again", 1) == first
    assert drawn("two", 2) != first


def test_two_stages_of_one_method_draw_different_numbers(minis: Minis, tmp_path: Path) -> None:
    """Or the second drops what is dropped already, and what is left is twice as large."""
    for given, seeds in ((["dare"] * 3, [4, 5, 6]), (["dare:seed=5", "dare", "dare"], [5, 4, 6])):
        asked = {**METHODS["dare[task_arithmetic]"], "premerge": given, "seed": 4}
        plan = merge(same_task(minis("bert"), **asked), out=tmp_path / "out", dry_run=True)
        assert [one.options["seed"] for one in plan.recipe.premerge] == seeds


# The command line -----------------------------------------------------------------------------


def test_a_recipe_gives_the_bytes_of_the_flags(minis: Minis, tmp_path: Path) -> None:
    found = minis("bert")
    experts = [str(found["a"]), str(found["b"])]
    flags = ["--merger", "ties:density=0.3", "--premerge", "dare:drop_rate=0.2", "--seed", "3"]
    asked = ["--base", str(found["base"]), "--heads", "average", "--tasks", "glue/rte"]
    assert main(["merge", *experts, *asked, *flags, "--out", str(tmp_path / "flags")]) == 0
    (tmp_path / "merge-recipe.yaml").write_text(
        yaml.safe_dump(
            {
                "experts": experts,
                "base": str(found["base"]),
                "merger": {"name": "ties", "density": 0.3},
                "premerge": ["dare:drop_rate=0.2"],
                "heads": "average",
                "tasks": ["glue/rte"],
                "seed": 3,
            }
        )
    )
    recipe = str(tmp_path / "merge-recipe.yaml")
    assert main(["merge", recipe, "--out", str(tmp_path / "recipe")]) == 0
    for name in ("model.safetensors", "config.json", "README.md", "tokenizer.json"):
        assert (tmp_path / "recipe" / name).read_bytes() == (tmp_path / "flags" / name).read_bytes()
    both = [recorded(tmp_path / name) for name in ("recipe", "flags")]
    for record in both:
        record["premerge"][0].pop("seconds")
        record["files"].pop("merge.json")
    assert both[0] == both[1]


def test_a_dry_run_reads_headers_alone_and_writes_nothing(
    minis: Minis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = minis("bert")
    key = "bert.embeddings.word_embeddings.weight"
    broken = copied(found["a"], tmp_path / "broken", lambda tensors: tensors[key].fill_(math.nan))
    command = ["merge", str(broken), str(found["b"]), "--base", str(found["base"])]
    command += ["--merger", "ties", "--out", str(tmp_path / "out" / "merged")]
    assert main([*command, "--dry-run"]) == 0
    printed = capsys.readouterr()
    assert "ties" in printed.out
    assert str(broken) in printed.out
    assert printed.err == ""
    lines = printed.out.splitlines()
    assert "heads    average: averaged, whatever the method" in lines
    names(lines[-2], "1 ties, density=0.2, scale=1.0,")
    files = "model.safetensors, config.json, tokenizer.json, tokenizer_config.json, merge.json"
    assert lines[-1] == (
        f"would write {tmp_path / 'out' / 'merged'}: {files}, README.md; only headers were read"
    )
    assert not (tmp_path / "out").exists()
    refused(command, BrokenCheckpoint, key, broken, "NaN")
    assert not (tmp_path / "out").exists()


def test_a_dry_run_says_what_each_stage_asks_for_and_what_is_replaced(
    minis: Minis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, out = minis("bert"), tmp_path / "merged"
    experts = [str(found["a"]), str(found["c"]), "--tasks", "glue/rte,glue/mnli"]
    command = ["merge", *experts, "--base", str(found["base"]), "--out", str(out)]
    assert main([*command, "--merger", "ties"]) == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    refused([*command, "--dry-run"], OutputExists)
    staged = ["--premerge", "dare", "--merger", "fisher", "--dry-run", "--force"]
    assert main([*command, *staged]) == 0
    lines = capsys.readouterr().out.splitlines()
    names(lines[-4], "stage 1 dare, a pre-merging method: drop_rate=")
    assert lines[-3].startswith("stage 2  fisher, a merger: normalize=")
    assert "shown    each expert's own training rows, for fisher" in lines
    assert "heads/glue/rte/, heads/glue/mnli/, merge.json" in lines[-2]
    assert lines[-1] == "would replace the merge that is there (ties)"
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert main([*command, "--merger", "average", "--force"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"wrote {out}, which replaces the merge that was there"


def test_a_merge_says_whose_rows_every_kind_of_need_reads(
    minis: Minis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of one task alone, where experts are of two, are not what one would expect."""
    assert WHOSE.keys() == {*typing.get_args(Whose)} - {"none"}
    found, asked = minis("bert"), ["--tasks", "glue/rte,glue/mnli", "--dry-run"]
    experts = ["merge", str(found["a"]), str(found["c"]), "--base", str(found["base"]), *asked]
    for stage, told in (
        ("activation_matching", ["training rows of the first expert's task, for activations"]),
        ("permutation", []),
    ):
        assert main([*experts, "--premerge", stage, "--out", str(tmp_path / stage)]) == 0
        lines = capsys.readouterr().out.splitlines()
        shown = [line for line in lines if line.startswith("shown")]
        assert shown == [f"shown    {one}" for one in told]


def test_a_dry_run_of_a_merger_that_is_trained(
    minis: Minis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = minis("bert")
    command = ["merge", str(found["a"]), str(found["c"]), "--base", str(found["base"])]
    command += ["--merger", "adamerging", "--tasks", "glue/rte,glue/mnli"]
    assert main([*command, "--out", str(tmp_path / "merged"), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("stage 1  adamerging, a merger: by=layer")
    assert "shown    rows of each expert's own task, for unlabeled" in lines


@pytest.mark.filterwarnings("default:there is one expert")
def test_one_expert_is_no_merge_and_is_told_so(
    minis: Minis, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = minis("bert")
    command = ["merge", str(found["a"]), "--out", str(tmp_path / "merged")]
    assert main(command) == 0
    (line,) = (one for one in capsys.readouterr().err.splitlines() if "warning" in one)
    names(line, found["a"])
    assert content(tmp_path / "merged") == content(found["a"])


def test_an_expert_that_is_merged_with_itself_is_told(minis: Minis, tmp_path: Path) -> None:
    expert = minis("bert")["a"]
    with pytest.warns(UserWarning, match=f"^{expert} is merged 2 times$"):
        merge(Recipe(experts=(str(expert), f"{expert}/.")), out=tmp_path / "merged", dry_run=True)
    other = minis("bert")["b"]
    both = f"^{expert} is merged 2 times, {other} is merged 3 times$"
    experts = tuple(map(str, (expert, other, expert, other, other)))
    with pytest.warns(UserWarning, match=both):
        merge(Recipe(experts=experts), out=tmp_path / "merged", dry_run=True)


def test_a_copy_of_an_expert_is_told(minis: Minis, tmp_path: Path) -> None:
    """Once: what a link leads to is no copy."""
    found = minis("bert")
    copy, link = shutil.copytree(found["a"], tmp_path / "copy"), tmp_path / "link"
    link.symlink_to(copy)
    with pytest.warns(UserWarning, match=f"^{copy} is merged 2 times$") as told:
        merge(Recipe(experts=tuple(map(str, (copy, found["b"], link)))), out=tmp_path / "linked")
    assert len(told) == 1
    experts = tuple(map(str, (found["a"], found["b"], copy)))
    both = f"^{experts[0]}, .*/copy have the same weights: one model is merged 2 times$"
    with pytest.warns(UserWarning, match=both):
        merge(Recipe(experts=experts), out=tmp_path / "copied")


def test_a_key_that_is_there_twice_is_refused(minis: Minis, tmp_path: Path) -> None:
    """YAML takes the last one without a word."""
    (tmp_path / "twice.yaml").write_text("merger: {name: ties, density: 0.1, density: 0.9}\n")
    with mistake(BadRecipe, tmp_path / "twice.yaml", "'density' twice"):
        recipe_and_fields(tmp_path / "twice.yaml")


@pytest.mark.parametrize("key", ["1", "0", "false", "~", "0.0"])
def test_a_key_that_is_no_text_is_refused(key: str, tmp_path: Path) -> None:
    (tmp_path / "odd.yaml").write_text(f"merger: {{name: ties, {key}: 0.1}}\n")
    with mistake(BadRecipe, tmp_path / "odd.yaml", "key", "text"):
        recipe_and_fields(tmp_path / "odd.yaml")


@pytest.mark.parametrize("merger", ["average:", "linear:normalize=false,"])
def test_a_merge_of_nothing_is_refused(merger: str, minis: Minis, tmp_path: Path) -> None:
    with mistake(BadOption, "0.0:0.0 not all 0"):
        merge(same_task(minis("bert"), merger=f"{merger}weights=0:0"), out=tmp_path / "merged")


@pytest.mark.parametrize(("stage", "name", "meant"), [
    ("merger", "dare", "--premerge dare"), ("premerge", "ties", "--merger ties")
])  # fmt: skip
def test_a_method_of_another_stage_is_told_so(stage: str, name: str, meant: str) -> None:
    with mistake(UnknownName, f"'{name}' {meant}"):
        STAGES[stage][name]


def test_a_plan_is_shown_in_a_line(minis: Minis, tmp_path: Path) -> None:
    shown = repr(merge(same_task(minis("bert"), merger="ties"), out=tmp_path / "merged"))
    assert shown == "MergePlan('ties' of 2 experts, heads: average, 41 tensors, 0.0 MB)"


# Recipes start from where they are ------------------------------------------------------------


@pytest.fixture
def kitchen(minis: Minis, tmp_path: Path) -> Path:
    """A recipe beside its experts and base, as a folder to hand over."""
    folder = tmp_path / "kitchen"
    for name in ("a", "b", "base"):
        shutil.copytree(minis("bert")[name], folder / "models" / name)
    recipe = {"experts": ["models/a", "./models/b"], "base": "models/base", "merger": "ties"}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    return folder


def test_a_recipe_finds_what_is_beside_it_from_anywhere(
    kitchen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(kitchen)
    assert main(["merge", "recipe.yaml", "--out", "merged"]) == 0
    assert [one["source"] for one in recorded(kitchen / "merged")["experts"]] == [
        "models/a",
        "models/b",
    ]
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "base"):  # what is called so from here is not meant
        (tmp_path / "models" / name).mkdir(parents=True)
    assert main(["merge", "kitchen/recipe.yaml", "--out", "merged"]) == 0
    record = recorded(tmp_path / "merged")
    assert [one["source"] for one in record["experts"]] == ["kitchen/models/a", "kitchen/models/b"]
    assert record["base"]["relative"] == "../kitchen/models/base"
    assert content(tmp_path / "merged") == content(kitchen / "merged")


def test_a_recipe_says_the_way_from_itself(
    kitchen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(kitchen)
    (tmp_path / "recipes").mkdir()
    moved = (kitchen / "recipe.yaml").rename(tmp_path / "recipes" / "recipe.yaml")
    with mistake(BadRecipe, "models/a ../kitchen/models/a"):
        recipe_and_fields(moved)[0]
    moved.write_text("experts: [user/one, ./two]\nstatistics: [f.safetensors]\ndata_dir: data\n")
    recipe = recipe_and_fields(moved)[0]
    beside = tmp_path / "recipes"
    assert recipe.experts == ("user/one", f"{beside}/./two")
    assert (recipe.statistics, recipe.data_dir) == ((f"{beside}/f.safetensors",), f"{beside}/data")
    moved.write_text("experts: [x, y]\ntasks: [reviews.yaml, glue/rte]\ntune_on: [a.yml@dev]\n")
    assert recipe_and_fields(moved)[0].tasks == (f"{beside}/reviews.yaml", "glue/rte")
    assert recipe_and_fields(moved)[0].tune_on == (f"{beside}/a.yml@dev",)


# Where it goes --------------------------------------------------------------------------------


def test_a_merge_takes_the_place_of_an_earlier_one(minis: Minis, tmp_path: Path) -> None:
    out = tmp_path / "merged"
    merge(same_task(minis("bert"), tasks=("glue/rte", "glue/qnli")), out=out)
    with mistake(OutputExists, "--force"):
        merge(same_task(minis("bert")), out=out)
    assert (out / "heads").exists()
    merge(same_task(minis("bert")), out=out, force=True)
    assert not (out / "heads").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]


def test_a_folder_of_somebody_else_is_left_alone(minis: Minis, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("hello")
    with mistake(OutputExists, "thesis merge.json"):
        merge(same_task(minis("bert")), out=tmp_path / "thesis")
    assert [path.name for path in (tmp_path / "thesis").iterdir()] == ["chapter.tex"]


def test_a_failed_merge_leaves_the_earlier_one_in_place(minis: Minis, tmp_path: Path) -> None:
    found, out = minis("bert"), tmp_path / "out" / "merged"
    merge(same_task(found), out=out)
    before = content(out)
    broken = copied(
        found["b"], tmp_path / "b", lambda tensors: tensors["classifier.bias"].fill_(math.inf)
    )
    with mistake(BrokenCheckpoint, "classifier.bias"):
        merge(same_task({**found, "b": broken}), out=out, force=True)
    assert content(out) == before
    assert [path.name for path in out.parent.iterdir()] == ["merged"]


@pytest.mark.parametrize("linked", [False, True], ids=["itself", "its weights"])
def test_a_merge_never_takes_the_place_of_what_it_is_made_of(
    minis: Minis, tmp_path: Path, linked: bool
) -> None:
    found, out = minis("bert"), tmp_path / "merged"
    merge(same_task(found), out=out)
    before, expert = content(out), out
    if linked:
        expert = Path(shutil.copytree(found["a"], tmp_path / "linked"))
        (expert / "model.safetensors").unlink()
        (expert / "model.safetensors").symlink_to(out / "model.safetensors")
    with mistake(OutputExists, out, "would replace", out, expert, "--out"):
        merge(same_task({**found, "a": expert}), out=out, force=True)
    assert content(out) == before
