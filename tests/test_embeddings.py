"""Embedding models: folders of sentence-transformers open, merge and are read as such."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from scipy.stats import pearsonr, spearmanr

import harness
from harness import Choice, Record, Run, weights
from harness.checkpoints.bases import encoder_digests
from harness.checkpoints.build import classifier_of
from harness.checkpoints.open import open_checkpoint
from harness.checkpoints.provenance import check_weights_unchanged
from harness.cli import main
from harness.data.rows import load_rows
from harness.errors import (
    BadOption,
    BadRecipe,
    BrokenCheckpoint,
    IncompatibleWeights,
    MissingHead,
    MissingTeacher,
)
from harness.merging.merge import merge
from harness.merging.recipes import Recipe
from harness.needs.symmetry import symmetry
from harness.passes.features import forward
from harness.passes.placement import CPU
from harness.passes.prepared import prepare
from harness.passes.statistics import draw_rows
from harness.readout import POOLINGS
from tests.conftest import FAMILIES, model
from tests.mistakes import mistake, refused
from tests.t5 import t5
from tests.toys import TAGS, TOY, VALUE, known, pairs

FILE, LEN = "model.safetensors", 26
ALIKE = replace(
    TOY,
    name="toy/alike",
    kind="regression",
    label="score",
    labels=(),
    metrics=("pearson", "spearman"),
)


def _twins(split: str) -> list[Any]:
    """Every other row has the same text twice."""
    first, second = TOY.text
    return [
        {**row, second: row[first]} if place % 2 else row for place, row in enumerate(pairs(split))
    ]


TWINS = replace(ALIKE, name="toy/twins", generate=_twins)
MANY = replace(TOY, name="toy/many", generate=lambda split: [*pairs(split)] * 12)
_known = known(TOY, VALUE, TAGS, ALIKE, TWINS, MANY, scope="module")


def said(mode: str, *, newer: bool) -> dict[str, Any]:
    """A pooling as releases of sentence-transformers write it."""
    if newer:
        return {"embedding_dimension": 16, "pooling_mode": mode, "include_prompt": True}
    tokens = {"cls": "cls_token", "mean": "mean_tokens", "max": "max_tokens"}
    tokens["weightedmean"] = "weightedmean_tokens"
    names = [*tokens.values(), "mean_sqrt_len_tokens", "lasttoken", "made_up"]
    own = tokens.get(mode, mode)
    return {"word_embedding_dimension": 16, **{f"pooling_mode_{n}": n == own for n in names}}


def as_embedding(
    folder: Path, mode: str = "mean", *, normalized: bool = True, newer: bool = False
) -> Path:
    """A folder of an encoder with the files of an embedding model."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if normalized else [])]
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{kind}" if index else "",
            "type": f"sentence_transformers.{'base.modules.any' if newer else 'models'}.{kind}",
        }
        for index, kind in enumerate(kinds)
    ]
    put(folder / "modules.json", modules)
    put(folder / "1_Pooling" / "config.json", said(mode, newer=newer))
    put(folder / "sentence_bert_config.json", {"max_seq_length": LEN, "do_lower_case": False})
    prompts = {"prompts": {"query": "", "document": ""}, "default_prompt_name": None}
    put(folder / "config_sentence_transformers.json", prompts)
    return folder


def put(path: Path, value: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))


def noisy(base: Path, folder: Path, seed: int, size: float = 0.1) -> Path:
    """A base with noise on every tensor, as after a fine-tuning."""
    shutil.copytree(base, folder)
    numbers = torch.Generator().manual_seed(seed)
    state = load_file(folder / FILE)
    moved = {n: t + size * torch.randn(t.shape, generator=numbers) for n, t in state.items()}
    save_file(moved, folder / FILE, metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base and two embedding models made of it; `c` is a classifier of it."""
    root = tmp_path_factory.mktemp("embeddings")
    base = model(root / "plain", initializer_range=0.5)
    as_embedding(Path(shutil.copytree(base, root / "base")))
    for seed, name in enumerate("ab", start=1):
        noisy(root / "base", root / name, seed)
    model(root / "c", ["no", "yes"], seed=3, near=base)
    return root


@pytest.fixture
def one(room: Path, tmp_path: Path) -> Path:
    """A copy of an embedding model that a test may change."""
    return Path(shutil.copytree(room / "a", tmp_path / "one"))


def plain(folder: Path, texts: list[str], mode: str, normalized: bool) -> torch.Tensor:
    """Embeddings by transformers alone, one text at a time, in float64: [texts, width]."""
    from transformers import AutoModel, AutoTokenizer

    encoder = AutoModel.from_pretrained(folder).double().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    made = []
    for text in texts:
        with torch.no_grad():
            given = tokenizer(text, truncation=True, max_length=LEN, return_tensors="pt")
            if "distil" in type(encoder).__name__.lower():
                given.pop("token_type_ids", None)
            state = encoder(**given).last_hidden_state[0]
        by = {"cls": state[0], "max": state.max(dim=0).values, "mean": state.mean(dim=0)}
        by["lasttoken"] = state[-1]
        places = torch.arange(1, len(state) + 1, dtype=torch.float64)
        by["weightedmean"] = places @ state / places.sum()
        by["mean_sqrt_len_tokens"] = state.sum(dim=0) / len(state) ** 0.5
        made.append(by[mode] / by[mode].norm() if normalized else by[mode])
    return torch.stack(made)


# The folder --------------------------------------------------------------------------------


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("mode", POOLINGS)
def test_a_folder_remembers_its_pooling(
    mode: str, normalized: bool, newer: bool, one: Path, room: Path
) -> None:
    shutil.rmtree(one / "1_Pooling")
    (one / "modules.json").unlink()
    opened = open_checkpoint(as_embedding(one, mode, normalized=normalized, newer=newer))
    pooling = opened.pooling
    assert opened.labels is None
    assert pooling is not None
    assert (pooling.mode, pooling.normalized, pooling.max_length) == (mode, normalized, LEN)
    assert open_checkpoint(room / "plain").pooling is None


def test_what_a_folder_says_is_read_once(one: Path) -> None:
    opened = open_checkpoint(one)
    found = opened.pooling
    (one / "modules.json").write_text("broken")
    assert opened.pooling is found is not None
    with mistake(BrokenCheckpoint, f"{one / 'modules.json'}"):
        _ = open_checkpoint(one).pooling


def test_prompts_that_somebody_has_to_ask_for_are_left_alone(one: Path, tmp_path: Path) -> None:
    """Those of a search engine, say: a row is read as `encode` reads it, and the merge has them."""
    said = {"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": None}
    put(one / "config_sentence_transformers.json", said)
    assert open_checkpoint(one).pooling is not None
    merge(Recipe(experts=(str(one), str(one)), merger=Choice("average")), out=tmp_path / "out")
    merged = tmp_path / "out" / "config_sentence_transformers.json"
    assert json.loads(merged.read_text()) == said


def test_newer_folders_leave_the_length_to_the_tokenizer(one: Path) -> None:
    put(one / "sentence_bert_config.json", {"transformer_task": "feature-extraction"})
    found = open_checkpoint(one).pooling
    assert found is not None
    assert found.max_length == 40


def test_embeddings_of_two_stacks_are_refused_before_they_are_merged(tmp_path: Path) -> None:
    folders = [str(as_embedding(t5(tmp_path / name))) for name in ("one", "two")]
    with mistake(BrokenCheckpoint, folders[0], "'t5'", "without a decoder"):
        harness.merge(Recipe(experts=tuple(folders)), out=tmp_path / "out")


def test_as_a_base_it_is_the_encoder_that_it_was(room: Path, one: Path) -> None:
    """Whatever its pooling: nobody reads that of a base."""
    put(one / "1_Pooling" / "config.json", said("made_up", newer=True))
    assert encoder_digests(open_checkpoint(room / "base")) == encoder_digests(
        open_checkpoint(room / "plain")
    )
    assert encoder_digests(open_checkpoint(one)) == encoder_digests(open_checkpoint(room / "a"))


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("1_Pooling/config.json", said("made_up", newer=True), "pooling made_up mean"),
        ("1_Pooling/config.json", said("made_up", newer=False), "made_up mean"),
        (
            "1_Pooling/config.json",
            {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True},
            "pooling mean cls expected one of",
        ),
        ("1_Pooling/config.json", {"pooling_mode": ["mean", "cls"]}, "pooling mean cls"),
        ("1_Pooling/config.json", {"pooling_mode": {"mean": 1}}, "pooling mean expected"),
        (
            "1_Pooling/config.json",
            {"pooling_mode": "cls", "pooling_mode_mean_tokens": True},
            "pooling cls mean one way",
        ),
        (
            "1_Pooling/config.json",
            {"pooling_mode_mean_tokens": "false"},
            "pooling_mode_mean_tokens 'false' expected true or false",
        ),
        ("sentence_bert_config.json", {"max_seq_length": "26"}, "length '26' positive"),
        ("sentence_bert_config.json", {"max_seq_length": True}, "length True positive"),
        ("sentence_bert_config.json", {"do_lower_case": True}, "do_lower_case True"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "length 0 positive"),
        *(
            ("sentence_bert_config.json", {key: {"truncation_side": "left"}}, f"{key} left none")
            for key in ("tokenizer_args", "processor_kwargs")
        ),
        ("sentence_bert_config.json", {"config_args": {"num_hidden_layers": 1}}, "config_args 1"),
        ("sentence_bert_config.json", {"config_kwargs": {"is_decoder": True}}, "config_kwargs"),
        (
            "sentence_bert_config.json",
            {"processing_kwargs": {"text": {"add_special_tokens": False}}},
            "processing_kwargs add_special_tokens none write",
        ),
        (
            "config_sentence_transformers.json",
            {"prompts": {"query": "query: "}, "default_prompt_name": "query"},
            "prompts query none by default",
        ),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "prompts query"),
        ("config_sentence_transformers.json", {"default_prompt_name": ["a"]}, "prompts a none"),
        ("config_sentence_transformers.json", {"prompts": "query: "}, "prompts none"),
        ("config_sentence_transformers.json", {"truncate_dim": 8}, "truncate_dim 8 none"),
        ("modules.json", 5, "list of modules"),
        ("modules.json", {}, "list of modules"),
        ("modules.json", ["x"], "list of modules"),
        ("modules.json", [], "modules expected Transformer, Pooling"),
    ],
)
def test_what_is_not_supported_is_one_line(
    name: str, value: object, named: str, one: Path, tmp_path: Path
) -> None:
    put(one / name, value)
    with mistake(BrokenCheckpoint, f"{one / name}", named):
        _ = open_checkpoint(one).pooling
    line = refused(
        ["merge", one, one, "--merger", "average", "--out", tmp_path / "out"],
        BrokenCheckpoint,
        name,
    )
    assert "Traceback" not in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("index", "change", "named"),
    [
        (1, {"path": "../../elsewhere"}, "path ../../elsewhere"),
        (1, {"path": "/etc"}, "path /etc"),
        (0, {"path": "0_Transformer"}, "path 0_Transformer"),
        (2, {"type": "sentence_transformers.models.Dense"}, "modules Dense Normalize"),
        (1, {"type": "my_code.Pooling"}, "modules my_code.Pooling"),
        (2, {"type": "os.system"}, "modules os.system"),
    ],
)
def test_modules_are_data(index: int, change: dict[str, str], named: str, one: Path) -> None:
    """No path leaves the folder, and no type that is named is imported."""
    modules = json.loads((one / "modules.json").read_text())
    modules[index] |= change
    put(one / "modules.json", modules)
    with mistake(BrokenCheckpoint, named):
        _ = open_checkpoint(one).pooling


def test_a_pooling_that_is_not_there_is_one_line(one: Path) -> None:
    (one / "1_Pooling" / "config.json").unlink()
    with mistake(BrokenCheckpoint, one / "1_Pooling" / "config.json", "missing"):
        _ = open_checkpoint(one).pooling


@pytest.mark.parametrize("name", ["1_Pooling", "1_Pooling/config.json", "modules.json"])
def test_links_out_of_the_folder_are_not_followed(name: str, one: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    shutil.move(one / name, elsewhere)
    (one / name).symlink_to(elsewhere)
    with mistake(BrokenCheckpoint, "is a link to", elsewhere):
        _ = open_checkpoint(one).pooling


# Embeddings --------------------------------------------------------------------------------


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("mode", POOLINGS)
@pytest.mark.parametrize("family", [*FAMILIES, "llama"])
def test_embeddings_are_those_of_transformers_encoder(
    family: str, mode: str, normalized: bool, tmp_path: Path
) -> None:
    """In float64, in a batch of rows of unlike length as one by one."""
    folder = model(tmp_path / family, family=family, initializer_range=0.5)
    checkpoint = open_checkpoint(as_embedding(folder, mode, normalized=normalized))
    pooling = checkpoint.pooling
    assert pooling is not None
    rows = load_rows(VALUE, "test")
    batch = prepare(checkpoint, rows, LEN, pooling.readout).batch(range(len(rows)), CPU)
    assert len({*batch["attention_mask"].sum(dim=1).tolist()}) > 3
    with torch.no_grad():
        made = pooling.readout.run(classifier_of(checkpoint).double(), None, batch)
    expected = plain(folder, [texts[0] for texts in rows.texts], mode, normalized)
    torch.testing.assert_close(pooling.readout.features(made), expected, rtol=0, atol=1e-12)
    x, logits, _ = forward(checkpoint, rows, max_length=LEN, readout=pooling.readout)
    np.testing.assert_allclose(x, expected, rtol=0, atol=2e-5)
    assert logits.shape == (len(rows), 0)


# Merging -----------------------------------------------------------------------------------


def recipe(room: Path, *experts: str, **more: Any) -> Recipe:
    return Recipe(experts=tuple(str(room / name) for name in experts), **more)


@pytest.mark.parametrize("base", [None, "base", "plain", "c"])
def test_a_merge_is_written_as_an_embedding_model(
    base: str | None, room: Path, tmp_path: Path
) -> None:
    """That transformers and sentence-transformers load, whatever form its base has."""
    merger = Choice("ties" if base else "average")
    asked = recipe(room, "a", "b", merger=merger, base=base and str(room / base))
    merge(asked, out=tmp_path / "out")
    files = {p.relative_to(room / "a") for p in (room / "a").rglob("*") if p.is_file()}
    written = {p.relative_to(tmp_path / "out") for p in (tmp_path / "out").rglob("*.*")}
    assert {str(name) for name in written - files} == {"merge.json", "README.md"}
    assert files <= written
    for name in files - {Path(FILE), Path("config.json")}:
        assert (tmp_path / "out" / name).read_bytes() == (room / "a" / name).read_bytes()
    first, second, made = (load_file(room / "a" / FILE) for _ in range(3))
    second, made = load_file(room / "b" / FILE), load_file(tmp_path / "out" / FILE)
    assert {*made} == {*first}
    if base is None:
        for name, tensor in made.items():
            torch.testing.assert_close(tensor, (first[name] + second[name]) / 2)
    merged = open_checkpoint(tmp_path / "out")
    check_weights_unchanged(merged)
    record = json.loads((tmp_path / "out" / "merge.json").read_text())
    assert record["digest"] == weights.digest(merged.weights)
    assert (record["heads"], record["tasks"]) == ("none", [])
    assert str(merged.pooling) == "mean, normalized"
    assert "library_name: sentence-transformers" in (tmp_path / "out" / "README.md").read_text()
    before = merged.path.joinpath(FILE).read_bytes()
    merge(asked, out=tmp_path / "out", force=True)  # it lists its files, those of modules too
    assert merged.path.joinpath(FILE).read_bytes() == before


def test_models_in_both_spellings_are_merged_as_one(room: Path, tmp_path: Path) -> None:
    other = Path(shutil.copytree(room / "b", tmp_path / "prefixed"))
    state = {f"bert.{name}": tensor for name, tensor in load_file(other / FILE).items()}
    save_file(state, other / FILE, metadata={"format": "pt"})
    digests = set()
    for place, names in enumerate([("a", "b"), ("a", other), (other, "a")]):
        experts = tuple(str(room / name) for name in names)
        merge(Recipe(experts=experts, merger=Choice("average")), out=tmp_path / str(place))
        digests.add(weights.digest(open_checkpoint(tmp_path / str(place)).weights))
    assert len(digests) == 1


def shuffled_units(folder: Path) -> None:
    """Another order of the units between the feed-forward layers: the same function."""
    state = load_file(folder / FILE)
    for layer in range(2):
        order = torch.randperm(24, generator=torch.Generator().manual_seed(layer))
        at = f"encoder.layer.{layer}"
        for name, axis in (("intermediate.dense.weight", 0), ("intermediate.dense.bias", 0)):
            state[f"{at}.{name}"] = state[f"{at}.{name}"].index_select(axis, order)
        name = f"{at}.output.dense.weight"
        state[name] = state[name].index_select(1, order).contiguous()
    save_file(state, folder / FILE, metadata={"format": "pt"})


def grams_by_hand(folder: Path, texts: Any, length: int) -> dict[str, torch.Tensor]:
    """What every linear layer of an encoder reads, row by row, in float64: inner products."""
    from transformers import AutoModel, AutoTokenizer

    encoder = AutoModel.from_pretrained(folder).double().eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    seen: dict[str, list[torch.Tensor]] = {}
    for name, module in encoder.named_modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(
                lambda _, given, name=name: seen.setdefault(name, []).append(
                    given[0].reshape(-1, given[0].shape[-1])
                )
            )
    for row in texts:
        with torch.no_grad():
            encoder(**tokenizer(*row, truncation=True, max_length=length, return_tensors="pt"))
    inputs = {name: torch.cat(parts) for name, parts in seen.items()}
    return {f"{name}.weight": rows.T @ rows / len(rows) for name, rows in inputs.items()}


def solved(places: list[Path], tasks: list[harness.Task], length: int) -> dict[str, torch.Tensor]:
    """RegMean of two models by hand, in float64, each on all rows of a task."""
    states, grams, made = [load_file(place / FILE) for place in places], [], {}
    for place, task in zip(places, tasks, strict=True):
        grams.append(grams_by_hand(place, draw_rows(task, 1000, 0, None).texts, length))
    for name in states[0]:
        first, second = (state[name].double() for state in states)
        made[name] = (first + second) / 2
        if name in grams[0]:
            g, h = (one[name] * 0.9 + 0.1 * one[name].diagonal().diag() for one in grams)
            made[name] = torch.linalg.lstsq(g + h, g @ first.T + h @ second.T).solution.T
    return made


@pytest.mark.filterwarnings("ignore:.*all are taken")
def test_regmean_takes_rows_without_their_labels(room: Path, tmp_path: Path) -> None:
    """Of one task each, cut as the models say; from files too, as classifiers."""
    a, b = (Path(shutil.copytree(room / name, tmp_path / name)) for name in "ab")
    for place in (a, b):
        put(place / "sentence_bert_config.json", {"max_seq_length": 9})
    names, expected = ["toy/value", "toy/pairs"], solved([a, b], [VALUE, TOY], 9)
    merger = Choice("regmean", {"examples": 1000, "batch_size": 4})
    given: dict[str, Any] = {"experts": (str(a), str(b)), "merger": merger}
    made = merge(Recipe(**given, tasks=tuple(names)), out=tmp_path / "out")
    assert made.tasks == ()
    found = load_file(tmp_path / "out" / FILE)
    assert {*found} == {*expected}
    moved = 0
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name].double(), tensor, rtol=0, atol=2e-4, msg=name)
        apart = [load_file(one / FILE)[name] for one in (a, b)]
        moved += bool((found[name] - (apart[0] + apart[1]) / 2).abs().max() > 0.01)
    assert moved == len(made.report["condition"]) == 13, "six of each layer, and the pooler"
    record = json.loads((tmp_path / "out" / "merge.json").read_text())
    assert record["tasks"] == []
    assert [one["task"] for one in record["statistics"]] == [f"{name}@train90" for name in names]
    assert open_checkpoint(tmp_path / "out").pooling is not None
    command = ["merge", str(a), str(b), "--merger", "regmean", "--dry-run"]
    assert main([*command, "--tasks", ",".join(names), "--out", str(tmp_path / "plan")]) == 0
    files = []
    for place, task in zip((a, b), names, strict=True):
        files.append(f"{place}.safetensors")
        command = ["statistics", str(place), "--task", task, "--out", files[-1]]
        assert main([*command, "--merger", "regmean:examples=1000,batch_size=4"]) == 0
    merge(Recipe(**given, statistics=tuple(files)), out=tmp_path / "again")
    assert (tmp_path / "again" / FILE).read_bytes() == (tmp_path / "out" / FILE).read_bytes()


@pytest.mark.filterwarnings("ignore:.*all are taken")
def test_regmean_of_encoders_without_a_pooler(room: Path, tmp_path: Path) -> None:
    """The class of a model has one: it has no values, and no say."""
    merger = Choice("regmean", {"examples": 20})
    made = []
    for pooler in (True, False):
        for name in "ab":
            place = Path(shutil.copytree(room / name, tmp_path / f"{name}-{pooler}"))
            state = load_file(place / FILE)
            kept = {n: t for n, t in state.items() if pooler or not n.startswith("pooler")}
            save_file(kept, place / FILE, metadata={"format": "pt"})
        experts = tuple(str(tmp_path / f"{name}-{pooler}") for name in "ab")
        asked = Recipe(experts=experts, merger=merger, tasks=("toy/value",))
        merge(asked, out=tmp_path / f"out-{pooler}")
        made.append(load_file(tmp_path / f"out-{pooler}" / FILE))
    with_one, without = made
    assert {*with_one} - {*without} == {"pooler.dense.weight", "pooler.dense.bias"}
    assert all(torch.equal(with_one[name], tensor) for name, tensor in without.items())


def test_statistics_of_labels_take_a_head(room: Path, tmp_path: Path) -> None:
    command = ["statistics", room / "a", "--task", "toy/pairs", "--out", tmp_path / "a.safetensors"]
    refused([*map(str, command), "--merger", "fisher"], BadRecipe, "no head")


@pytest.mark.parametrize("method", ["permutation", "rotation"])
def test_alignments_work_on_embedding_models(method: str, room: Path, tmp_path: Path) -> None:
    """One model and itself with its units in another order: brought back, the mean is the model."""
    other = Path(shutil.copytree(room / "a", tmp_path / "other"))
    shuffled_units(other)
    experts = (str(room / "a"), str(other))
    for premerge, same in (((), False), ((Choice(method, {"anchor": "first"}),), True)):
        out = tmp_path / f"out-{same}"
        merge(Recipe(experts=experts, merger=Choice("average"), premerge=premerge), out=out)
        pair = [plain(one, ["word1 word2", "word7"], "mean", True) for one in (out, room / "a")]
        assert torch.allclose(*pair, rtol=0, atol=1e-5) is same


def test_the_order_of_an_embedding_stays(room: Path) -> None:
    """Hidden states are the outputs: no symmetry of the model moves them, as a head's inputs."""
    opened = [open_checkpoint(room / name) for name in "ab"]
    from harness.checkpoints.align import under_prefix

    groups = symmetry([under_prefix(one) for one in opened]).groups
    assert "width" not in groups
    assert {"ffn.0", "qk.1", "vo.1"} <= groups
    assert "width" in symmetry([open_checkpoint(room / "c")]).groups


def test_models_that_pool_differently_are_not_merged(room: Path, one: Path) -> None:
    for change in ({"mode": "cls"}, {"normalized": False}):
        as_embedding(one, **change)  # type: ignore[arg-type]
        asked = Recipe(experts=(str(room / "a"), str(one)), merger=Choice("average"))
        with mistake(IncompatibleWeights, one, "expected mean, normalized", room / "a"):
            merge(asked, out=one.parent / "out")


@pytest.mark.parametrize(
    ("names", "more", "kind", "named"),
    [
        ("a b", {"tasks": ("toy/pairs",)}, BadRecipe, "a embedding --tasks"),
        ("a b", {"heads": "keep"}, BadRecipe, "a embedding --heads"),
        ("c c", {"heads": "none"}, BadRecipe, "c has a head --heads none"),
        ("a b", {"merger": Choice("fisher")}, BadRecipe, "fisher a embedding"),
        ("a b", {"merger": Choice("regmean")}, BadRecipe, "gram --tasks"),
        ("a b", {"merger": Choice("regmean_plus_plus")}, BadRecipe, "gram_through a embedding"),
        (
            "a b",
            {"merger": Choice("fisher"), "tasks": ("toy/pairs",)},
            BadRecipe,
            "fisher a embedding",
        ),
        (
            "a b",
            {"merger": Choice("task_arithmetic"), "tune": "scale=0.1:1:0.1"},
            BadRecipe,
            "task_arithmetic tuned embedding",
        ),
        ("c a", {}, MissingHead, "a no head"),
        ("a c", {}, MissingHead, "a no head"),
        ("a plain", {}, IncompatibleWeights, "plain neither modules.json expected a copy"),
        ("plain a", {}, IncompatibleWeights, "plain neither modules.json expected a copy"),
    ],
)
def test_what_cannot_be_merged_is_one_line(
    names: str, more: dict[str, Any], kind: type[Exception], named: str, room: Path, tmp_path: Path
) -> None:
    asked = recipe(room, *names.split(), **{"merger": Choice("average"), **more})
    asked = asked.model_copy(update={"base": str(room / "base")})
    with mistake(kind, named):
        merge(asked, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("tasks", [(), ("toy/pairs",)])
def test_a_barrier_is_in_the_loss_of_a_head(
    tasks: tuple[str, ...], room: Path, tmp_path: Path
) -> None:
    """With tasks or without: no line asks for what the next one refuses."""
    run = Run(model="", tasks=tasks, output=str(tmp_path / "out"))
    with mistake(MissingHead, f"{room / 'a'} embedding expected classifiers"):
        harness.barrier(recipe(room, "a", "b"), run)
    assert not (tmp_path / "out").exists()


# Evaluating --------------------------------------------------------------------------------


def evaluated(folder: Path, out: Path, *protocols: str, **more: Any) -> list[Record]:
    chosen = tuple(map(Choice, protocols))
    fixed = {"shots": (2,), "draws": 2, "device": "cpu", "output": str(out)}
    return harness.evaluate(Run(model=str(folder), protocols=chosen, **{**fixed, **more}))


@pytest.fixture(scope="module")
def merged(room: Path) -> Path:
    asked = recipe(room, "a", "b", merger=Choice("average"), base=str(room / "base"))
    merge(asked, out=room / "mean")
    return room / "mean"


def test_a_merge_is_read_by_its_own_embeddings(merged: Path, room: Path, tmp_path: Path) -> None:
    """And so are its experts and its base, in a row each: the same as each by itself."""
    found = evaluated(merged, tmp_path, "cosine", tasks=("toy/alike",))
    assert [(r.model, r.role) for r in found] == [
        ("mean", "merged"),
        ("base", "base"),
        ("a", "single"),
        ("b", "single"),
    ]
    rows = load_rows(ALIKE, "test")
    for record in found:
        folder = room / record.model
        first, second = (
            plain(folder, [texts[place] for texts in rows.texts], "mean", True) for place in (0, 1)
        )
        cosines = (first * second).sum(dim=1).numpy()
        parts = {"pearson": pearsonr, "spearman": spearmanr}
        for name, function in parts.items():
            expected = function(cosines, rows.labels).statistic
            assert record.scores[0].parts[name] == pytest.approx(expected, abs=1e-5), record.model
        assert record.settings["features"] == "pooled:mean,normalized"
        assert record.settings["max_length"] == LEN
        assert record.head == "none"
    assert len({record.scores[0].value for record in found}) == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("1_Pooling/config.json", said("cls", newer=False)),
        ("sentence_bert_config.json", {"max_seq_length": LEN - 1}),
        ("sentence_roberta_config.json", {"max_seq_length": LEN - 1}),
        ("modules.json", None),
        ("1_Pooling/config.json", None),
    ],
)
def test_a_merge_pools_as_it_was_written(
    name: str, value: object, merged: Path, tmp_path: Path
) -> None:
    """Its record names it by its method, so another pooling is refused, as another config is."""
    folder = Path(shutil.copytree(merged, tmp_path / "merged"))
    put(folder / name, value) if value else (folder / name).unlink()
    with mistake(BrokenCheckpoint, f"{folder}/{name} changed merge.json make remove"):
        open_checkpoint(folder)


def test_rows_of_a_pair_are_read_as_the_tokenizer_has_pairs(merged: Path, tmp_path: Path) -> None:
    """Under protocols of labeled rows, both texts of a row are one; `cosine` reads them apart."""
    found = evaluated(merged, tmp_path, "knn", "linear-probe", tasks=("toy/pairs", "toy/value"))
    assert {r.protocol for r in found} == {"knn", "linear-probe"}
    assert len(found) == 2 * 2 * 4
    again = evaluated(merged, tmp_path, "knn", "linear-probe", tasks=("toy/pairs", "toy/value"))
    assert again == found


def test_features_that_are_asked_for_are_those(merged: Path, tmp_path: Path) -> None:
    cls = Choice("cosine", {"features": "cls"})
    run = Run(
        model=str(merged), protocols=(cls,), tasks=("toy/alike",), output=str(tmp_path / "records")
    )
    found = harness.evaluate(run)[0]
    rows = load_rows(ALIKE, "test")
    first, second = (plain(merged, [t[i] for t in rows.texts], "cls", True) for i in (0, 1))
    expected = pearsonr((first * second).sum(dim=1).numpy(), rows.labels).statistic
    assert found.scores[0].parts["pearson"] == pytest.approx(expected, abs=1e-5)


def test_no_head_is_made_up(merged: Path, room: Path, tmp_path: Path) -> None:
    """Protocols of heads are left out with a warning, and refused where somebody asks for them."""
    with pytest.warns(UserWarning, match="mean is an embedding model .* current, ft-classifier"):
        found = evaluated(merged, tmp_path / "records", tasks=("toy/pairs",))
    assert {record.protocol for record in found} == {"knn"}
    command = ["evaluate", "--model", merged, "--tasks", "toy/pairs", "--output-path", tmp_path]
    line = refused([*command, "--protocols", "knn,current"], MissingHead, "mean current expected")
    assert "knn, linear-probe" in line
    refused([*command, "--protocols", "probe"], MissingTeacher, "probe", "toy/pairs")
    many = ["--tasks", "toy/many", "--protocols", "knn", "--preset", "ft-classifier"]
    refused([*command, *many], BadRecipe, "mean preset ft-classifier")
    refused([*command, "--best-single", "--protocols", "knn"], BadRecipe, "--best-single")
    refused([*command, "--ceilings", "emr"], BadRecipe, "emr found 0 of mean")
    command[command.index("toy/pairs")] = "toy/tags"
    refused([*command, "--protocols", "knn"], BadRecipe, "mean toy/tags")


def test_features_are_probed_against_an_expert_with_a_head(room: Path, tmp_path: Path) -> None:
    put(room / "c" / "expert.json", {"tasks": ["toy/pairs"]})
    known = {"experts": (str(room / "c"),), "tasks": ("toy/pairs",), "shots": (8,)}
    found = evaluated(room / "a", tmp_path, "probe", "knn", **known)
    assert [(r.model, r.role, r.protocol) for r in found] == [
        ("a", "merged", "probe"),
        ("a", "merged", "knn"),
        ("c", "expert", "probe"),
        ("c", "expert", "knn"),
    ]
    features = [record.settings["features"] for record in found]
    assert features == ["pooled:mean,normalized"] * 2 + ["last_linear"] * 2
    assert found[0].teachers == (weights.digest(open_checkpoint(room / "c").weights),)
    assert main(["leaderboard", str(tmp_path), "--out", str(tmp_path / "board")]) == 0


def test_an_ensemble_is_of_models_with_heads(room: Path, tmp_path: Path) -> None:
    """Beside a classifier, an embedding model has no part in the mean of logits."""
    known = {"experts": (str(room / "c"), str(room / "b")), "tasks": ("toy/pairs",)}
    put(room / "c" / "expert.json", {"tasks": ["toy/pairs"]})
    other = model(tmp_path / "other", ["no", "yes"], seed=9, near=room / "plain")
    with pytest.warns(UserWarning, match="b is an embedding model .* current, ft-classifier"):
        found = evaluated(other, tmp_path / "records", **known)
    roles = {(r.model, r.role) for r in found}
    assert roles == {("other", "merged"), ("c", "expert"), ("b", "single")}


def test_a_row_is_cut_where_the_model_cuts_it(room: Path, one: Path, tmp_path: Path) -> None:
    """At fewer tokens than its encoder has positions for, and than the task would take."""
    put(one / "sentence_bert_config.json", {"max_seq_length": 6})
    for asked in (None, "auto"):
        told = (
            r"toy/alike@test: \d+ of 12 rows .* at 6 tokens; .* longest .* the model takes no more"
        )
        more = {"tasks": ("toy/alike",), "max_length": asked}
        with pytest.warns(UserWarning, match=told):
            (record,) = evaluated(one, tmp_path / str(asked), "cosine", **more)
        assert record.settings["max_length"] == 6
    (whole,) = evaluated(one, tmp_path / "20", "cosine", tasks=("toy/alike",), max_length=20)
    assert whole.scores[0].value != record.scores[0].value


def test_models_that_read_other_lengths_are_told_of(room: Path, one: Path, tmp_path: Path) -> None:
    put(one / "sentence_bert_config.json", {"max_seq_length": 6})
    asked = Recipe(experts=(str(room / "a"), str(one)), merger=Choice("average"))
    with pytest.warns(
        UserWarning, match=rf"a {LEN}, .* 6\): their merge gets the number of the first"
    ):
        merge(asked, out=tmp_path / "out")
    assert open_checkpoint(tmp_path / "out").pooling == open_checkpoint(room / "a").pooling


@pytest.mark.parametrize("size", [1, 5, 12])
def test_texts_that_are_alike_have_one_cosine(
    size: int, merged: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever shares a batch with them: correlations of ranks see the last bit."""
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    more = {"tasks": ("toy/twins",), "batch_size": size}
    (record, *_) = evaluated(merged, tmp_path / "records", "cosine", **more)
    rows = load_rows(TWINS, "test")
    texts = [[texts[place] for texts in rows.texts] for place in (0, 1)]
    first, second = (plain(merged, one, "mean", True).double() for one in texts)
    cosines = (first * second).sum(dim=1)
    cosines[[one == other for one, other in zip(*texts, strict=True)]] = 1
    assert (cosines == 1).sum() == len(rows) // 2
    expected = spearmanr(cosines.numpy(), rows.labels).statistic
    assert record.scores[0].parts["spearman"] == pytest.approx(expected, abs=1e-12)


def test_other_embedding_models_are_references(merged: Path, room: Path, tmp_path: Path) -> None:
    other = noisy(room / "base", tmp_path / "other", 7)
    found = evaluated(
        merged, tmp_path / "records", "knn", tasks=("toy/pairs",), references=(str(other),)
    )
    assert ("other", "reference", "none") in [(r.model, r.role, r.head) for r in found]


@pytest.mark.parametrize("task", ["toy/pairs", "toy/value", "toy/tags"])
def test_cosine_is_for_numbers_of_two_texts(task: str, room: Path, tmp_path: Path) -> None:
    with mistake(BadOption, "cosine", task, "expected a regression of two"):
        evaluated(room / "a", tmp_path, "cosine", tasks=(task,))


def test_cosine_reads_classifiers_too(room: Path, tmp_path: Path) -> None:
    value = model(tmp_path / "value", [], seed=5, near=room / "plain")
    found = evaluated(value, tmp_path / "records", "cosine", "current", tasks=("toy/alike",))
    assert [record.protocol for record in found] == ["cosine", "current"]
    assert found[0].scores[0].value != found[1].scores[0].value


# CrossEncoder ------------------------------------------------------------------------------


def test_a_cross_encoder_is_a_classifier(room: Path, tmp_path: Path) -> None:
    """It opens, merges and is evaluated as it is, whatever release wrote it."""
    for seed, name in enumerate("ab", start=1):
        folder = model(tmp_path / name, [], seed=seed, near=room / "plain")
        config = json.loads((folder / "config.json").read_text())
        activation = {"activation_fn": "torch.nn.modules.activation.Sigmoid", "version": "5.0.0"}
        put(folder / "config.json", {**config, "sentence_transformers": activation})
        kind = "sentence_transformers.base.modules.transformer.Transformer"
        put(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": kind}])
        opened = open_checkpoint(folder)
        assert opened.labels == ()
        assert opened.pooling is None
    asked = recipe(tmp_path, "a", "b", merger=Choice("average"), tasks=("toy/alike",))
    merge(asked, out=tmp_path / "out")
    found = evaluated(tmp_path / "out", tmp_path / "records", "current", "cosine")
    assert {(r.role, r.protocol) for r in found} >= {("merged", "current"), ("expert", "cosine")}
    assert all(np.isfinite(record.scores[0].value) for record in found)


def test_a_merged_cross_encoder_has_the_function_of_its_first_expert(
    room: Path, tmp_path: Path
) -> None:
    """As the release that wrote it says it: after 5.0 in a file of its own."""
    said = {"model_type": "CrossEncoder", "activation_fn": "torch.nn.modules.linear.Identity"}
    for seed, name in enumerate("ab", start=1):
        folder = model(tmp_path / name, [], seed=seed, near=room / "plain")
        kind = "sentence_transformers.base.modules.transformer.Transformer"
        put(folder / "modules.json", [{"idx": 0, "name": "0", "path": "", "type": kind}])
        put(folder / "config_sentence_transformers.json", {**said, "of": name})
        put(folder / "sentence_bert_config.json", {"module_output_name": "scores"})
    asked = recipe(tmp_path, "a", "b", merger=Choice("average"), tasks=("toy/alike",))
    merge(asked, out=tmp_path / "out")
    for file in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
        assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "a" / file).read_bytes()
    assert open_checkpoint(tmp_path / "out").pooling is None
    outside = tmp_path / "outside.json"
    (tmp_path / "a" / "config_sentence_transformers.json").rename(outside)
    (tmp_path / "a" / "config_sentence_transformers.json").symlink_to(outside)
    with mistake(BrokenCheckpoint, "config_sentence_transformers.json link"):
        merge(asked, out=tmp_path / "other")


@pytest.mark.parametrize("several", [True, False])
def test_a_pooler_that_no_embedding_reads_is_in_nobody_s_way(
    several: bool, one: Path, tmp_path: Path
) -> None:
    """transformers draws one, of its own for each model, where the folder of a base has none."""
    folders = [Path(shutil.copytree(one, tmp_path / name)) for name in ("a", "b", "base")]
    for number, folder in enumerate(folders):
        tensors = load_file(folder / FILE)
        kept = {name: tensor for name, tensor in tensors.items() if "pooler" not in name}
        if number < 1 + several:
            drawn = torch.Generator().manual_seed(number)
            kept["pooler.dense.weight"] = torch.randn(16, 16, generator=drawn)
            kept["pooler.dense.bias"] = torch.zeros(16)
        save_file(kept, folder / FILE, metadata={"format": "pt"})
    for base in ("base", None):
        out = tmp_path / f"out-{base}"
        asked = recipe(tmp_path, "a", "b", base=base and str(folders[2]), merger=Choice("average"))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            merge(asked, out=out)
        whole = several and base is None
        assert any("pooler" in name for name in load_file(out / FILE)) is whole
        assert ["not all of these models have a pooler" in str(w.message) for w in told] == (
            [True] * (not whole)
        )
        found = evaluated(out, tmp_path / "records", "cosine", tasks=("toy/alike",))
        assert {one.role for one in found} == {"merged", "single", *(["base"] if base else [])}


@pytest.mark.parametrize("family", ["roberta", "mpnet"])
def test_a_pooler_that_no_classifier_of_the_family_has_is_none_of_the_base_either(
    family: str, tmp_path: Path
) -> None:
    """Classifiers of these families have no pooler, and the encoder alone has one."""
    plain = as_embedding(model(tmp_path / "a", family=family))
    noisy(plain, tmp_path / "b", 1)
    base = Path(shutil.copytree(plain, tmp_path / "base"))
    state = load_file(base / FILE)
    assert any("pooler" in name for name in state)
    bare = {name: tensor for name, tensor in state.items() if "pooler" not in name}
    save_file(bare, base / FILE, metadata={"format": "pt"})
    with pytest.warns(UserWarning, match="not all of these models have a pooler"):
        merge(recipe(tmp_path, "a", "b", base=str(base)), out=tmp_path / "out")
    assert load_file(tmp_path / "out" / FILE).keys() == bare.keys()


def test_an_encoder_in_a_folder_of_its_own_is_one_line(one: Path, tmp_path: Path) -> None:
    """As older releases wrote it."""
    (one / "0_Transformer").mkdir()
    (one / "config.json").rename(one / "0_Transformer" / "config.json")
    command = ["merge", one, one, "--merger", "average", "--out", tmp_path / "out"]
    refused(command, BrokenCheckpoint, "config.json is missing; modules.json save it")
