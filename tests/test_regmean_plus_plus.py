"""RegMean++: against a float64 loop over the layers of ordinary models, and what it takes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)
from transformers.pytorch_utils import Conv1D

import harness
from harness import Recipe, StateDict, merge
from harness.checkpoints.open import open_checkpoint
from harness.errors import BadRecipe, BrokenCheckpoint, NotFinite, UnknownName
from harness.passes import blocks
from harness.passes.blocks import blocks_of
from harness.passes.features import forward
from harness.passes.placement import CPU
from harness.passes.reading import Readings
from harness.passes.statistics import draw_rows
from tests.conftest import DECODERS, FAMILIES, model
from tests.mistakes import mistake
from tests.test_fisher_regmean import reference_regmean
from tests.toys import MOODS, TAGS, THREE, TOY, VALUE, known

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
Loud = Callable[..., Path]
Minis = Callable[[str], dict[str, Path]]
EXAMPLES = 10
SHARE = 0.95
NUMBER = re.compile(r"\.(?:layers?|h)\.(\d+)\.")
TOP = ("classifier.", "pre_classifier.", "pooler.", "bert.pooler.", "score.")
PLUS = harness.MERGERS["regmean_plus_plus"].function
_toys = known(TOY, THREE, VALUE, MOODS, TAGS)


# An independent one ------------------------------------------------------------------------


def depth(name: str) -> int:
    """Embeddings come first, the layers follow, and what stands on them is last."""
    number = NUMBER.search(name)
    return 1 + int(number[1]) if number else 99 if name.startswith(TOP) else 0


def classifier(folder: Path, task: harness.Task) -> Any:
    made = AutoModelForTokenClassification if task is TAGS else AutoModelForSequenceClassification
    network = made.from_pretrained(folder).double().eval()
    for parent in [*network.modules()]:
        for name, module in parent.named_children():
            if isinstance(module, Conv1D):  # GPT-2: the same layer, with its matrix transposed
                layer = torch.nn.Linear(module.nx, module.nf, dtype=torch.float64)
                layer.load_state_dict({"weight": module.weight.T, "bias": module.bias})
                setattr(parent, name, layer)
    return network


def inputs_of(folder: Path, task: harness.Task) -> Iterator[dict[str, torch.Tensor]]:
    """One row at a time, so without any padding."""
    words = AutoTokenizer.from_pretrained(folder)
    for texts in draw_rows(task, EXAMPLES, 0, None).texts:
        if task is TAGS:
            yield dict(words(list(texts), is_split_into_words=True, return_tensors="pt"))
        else:
            yield dict(words(*texts, return_tensors="pt"))


def grams_of(network: Any, batches: Sequence[Mapping[str, Any]], block: int) -> Arrays:
    """The mean of x x^T over all inputs of the linear layers of a block, by the weight.

    What a layer reads at its second call, DeBERTa's relative positions, counts once for a batch of
    the harness, which is one here.
    """
    seen: dict[str, list[torch.Tensor]] = {}
    again: dict[str, torch.Tensor] = {}
    hooks = []
    for name, module in network.named_modules():
        if not isinstance(module, torch.nn.Linear) or depth(f"{name}.weight") != block:
            continue

        def hook(_: Any, args: Any, name: str = name) -> None:
            rows = args[0].reshape(-1, args[0].shape[-1])
            if name in called:
                again[name] = rows
            else:
                seen.setdefault(name, []).append(rows)
            called.add(name)

        hooks.append(module.register_forward_pre_hook(hook))
    with torch.no_grad():
        for batch in batches:
            called: set[str] = set()
            network(**batch)
    for one in hooks:
        one.remove()
    found = {}
    for name, parts in seen.items():
        x = torch.cat([*parts, *([again[name]] if name in again else [])]).numpy()
        found[f"{name}.weight"] = np.einsum("ri,rj->ij", x, x) / len(x)
    return found


def reference(folders: Sequence[Path], tasks: Sequence[harness.Task]) -> Arrays:
    """Layer by layer: ordinary models, whose earlier blocks are overwritten by what is merged."""
    networks = [classifier(folder, task) for folder, task in zip(folders, tasks, strict=True)]
    batches = [list(inputs_of(*pair)) for pair in zip(folders, tasks, strict=True)]
    own = [{n: p.detach().numpy().copy() for n, p in one.named_parameters()} for one in networks]
    shared = [name for name in own[0] if all(name in one for one in own)]
    shared = [n for n in shared if len({one[n].shape for one in own}) == 1]
    merged: Arrays = {}
    for block in sorted({depth(name) for name in shared}):
        products = [grams_of(*pair, block) for pair in zip(networks, batches, strict=True)]
        names = [name for name in shared if depth(name) == block]
        for name in names:
            weights = [one[name] for one in own]
            if name in products[0]:
                merged[name] = reference_regmean(weights, [one[name] for one in products], SHARE)
            else:
                merged[name] = np.mean(weights, axis=0)
        for network in networks:
            known = dict(network.named_parameters())
            with torch.no_grad():
                for name in names:
                    known[name].copy_(torch.from_numpy(merged[name]))
    return merged


def asked(folders: Sequence[Path], tasks: Sequence[harness.Task], **fields: Any) -> Recipe:
    return Recipe(
        experts=tuple(map(str, folders)),
        merger=fields.pop("merger", f"regmean_plus_plus:examples={EXAMPLES},batch_size=64"),
        tasks=tuple(task.name for task in tasks),
        device="cpu",
        **fields,
    )


def arrays(folder: Path) -> Arrays:
    state = open_checkpoint(folder).weights
    return {name: state[name].double().numpy() for name in state}


def same(found: Arrays, expected: Arrays, tolerance: float = 1e-5) -> None:
    for name, array in expected.items():
        scale = max(float(np.abs(array).max()), 1e-3)
        np.testing.assert_allclose(found[name] / scale, array / scale, atol=tolerance, err_msg=name)


def apart(first: Arrays, second: Arrays) -> set[str]:
    return {name for name in second if np.abs(first[name] - second[name]).max() > 1e-3}


@pytest.mark.parametrize("family", [*FAMILIES, *DECODERS])
def test_merges_agree_with_a_loop_over_ordinary_models(
    family: str, loud: Loud, tmp_path: Path
) -> None:
    """From text to the merged folder, with the head; and it is not RegMean."""
    folders, tasks = [loud(family, which) for which in ("a", "b")], [TOY, TOY]
    merge(asked(folders, tasks), out=tmp_path / "m")
    expected = reference(folders, tasks)
    found = arrays(tmp_path / "m")
    assert set(expected) == set(found)
    same(found, expected)
    plain = f"regmean:examples={EXAMPLES},batch_size=64,off_diagonal={SHARE}"
    merge(asked(folders, tasks, merger=plain), out=tmp_path / "regmean")
    differ = apart(arrays(tmp_path / "regmean"), found)
    # the first layer alone has the same inputs but for the embeddings
    assert {depth(name) for name in differ} >= {2, 99}


@pytest.mark.parametrize(
    ("task", "labels", "unit"),
    [(VALUE, [], "row"), (MOODS, list(MOODS.labels), "row"), (TAGS, list(TAGS.labels), "word")],
    ids=["regression", "multilabel", "tagging"],
)
@pytest.mark.parametrize("family", ["bert", "deberta-v2"])
def test_every_kind_of_task(
    family: str, task: harness.Task, labels: list[str], unit: Any, minis: Minis, tmp_path: Path
) -> None:
    folders = []
    for seed in (1, 2):
        folder = model(
            tmp_path / str(seed), labels, family=family, seed=seed, unit=unit,
            near=minis(family)["base"],
            **({"problem_type": "multi_label_classification"} if task is MOODS else {}),
        )  # fmt: skip
        state = load_file(folder / "model.safetensors")
        louder = {n: t * (8 if t.ndim == 2 else 1) for n, t in state.items()}
        save_file(louder, folder / "model.safetensors", metadata={"format": "pt"})
        folders.append(folder)
    merge(asked(folders, [task, task], heads="merge"), out=tmp_path / "m")
    expected = reference(folders, [task, task])
    found = arrays(tmp_path / "m")
    if task is MOODS:  # rows of the head are of those who know the label: no business of ours
        expected = {name: array for name, array in expected.items() if "classifier" not in name}
    same(found, expected)


@pytest.mark.parametrize("family", ["bert", "deberta-v2", "distilbert"])
def test_experts_of_different_tasks_keep_their_heads(
    family: str, loud: Loud, tmp_path: Path
) -> None:
    """Each sees its own rows through the merged layers; the heads, of unlike shapes, stay."""
    folders, tasks = [loud(family, which) for which in ("a", "c")], [TOY, THREE]
    merge(asked(folders, tasks), out=tmp_path / "m")
    found, expected = arrays(tmp_path / "m"), reference(folders, tasks)
    same(found, {name: expected[name] for name in found})
    body = {name for name in expected if not name.startswith(("classifier", "pre_classifier"))}
    assert set(found) == body


def test_with_earlier_layers_alike_it_is_regmean(loud: Loud, tmp_path: Path) -> None:
    """Experts that differ in the last layer alone: what is merged before it is their own."""
    first, second = (shutil.copytree(loud("bert"), tmp_path / which) for which in ("x", "y"))
    state, other = (load_file(loud("bert", which) / "model.safetensors") for which in ("a", "b"))
    mixed = {n: other[n] if ".layer.1." in n else state[n] for n in state}
    save_file(mixed, second / "model.safetensors", metadata={"format": "pt"})
    folders = [Path(first), Path(second)]
    merge(asked(folders, [TOY, TOY]), out=tmp_path / "m")
    plain = f"regmean:examples={EXAMPLES},batch_size=64,off_diagonal={SHARE}"
    merge(asked(folders, [TOY, TOY], merger=plain), out=tmp_path / "regmean")
    found, expected = arrays(tmp_path / "m"), arrays(tmp_path / "regmean")
    same(found, expected, 1e-5)
    assert apart(found, arrays(folders[0]))


def test_by_hand() -> None:
    """Inputs 1 and 1; W = 1 and 3, V = 1 and 0. The merged W = 2 gives 2 and 2, so V = 1/2."""
    experts: list[StateDict] = [
        {"w": torch.tensor([[w]]), "v": torch.tensor([[v]])} for w, v in ((1.0, 1.0), (3.0, 0.0))
    ]

    def through(merged: StateDict) -> StateDict:
        def one(name: str) -> torch.Tensor:
            x = torch.ones(1, 1, dtype=torch.float64)
            return x if name == "w" else (merged["w"].double() @ x) ** 2

        return harness.weights.Lazy(harness.weights.specs(experts[0]), one)

    merged = PLUS(experts, {}, gram_through=[through, through])
    assert merged["v"].item() == 0.5
    assert merged["w"].item() == 2
    own = [{"w": torch.ones(1, 1), "v": torch.tensor([[g]])} for g in (1.0, 9.0)]
    plain = harness.MERGERS["regmean"].function(experts, {}, gram=own)
    assert plain["v"].item() == pytest.approx(1 / 10)


# How it is done ----------------------------------------------------------------------------


def given(folders: Sequence[Path], merged: StateDict, size: int = 64) -> list[StateDict]:
    """The matrices through a merged model, apart from any merge."""
    rows = draw_rows(TOY, EXAMPLES, 0, None)
    checkpoints = tuple(open_checkpoint(folder) for folder in folders)
    readings = Readings(checkpoints, lambda _: rows, CPU)
    made = harness.NEEDS["gram_through"].function
    return [one(merged) for one in made(readings, examples=EXAMPLES, seed=0, batch_size=size)]


@pytest.mark.parametrize("family", ["bert", "distilbert", "roberta", "electra"])
def test_padding_is_never_counted_and_batches_do_not_matter(
    family: str, loud: Loud, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [loud(family, which) for which in ("a", "b")]
    merged = open_checkpoint(loud(family, "b")).weights
    whole = given(folders, merged)[0]
    for size in (1, 3):
        found = given(folders, merged, size)[0]
        assert set(found) == set(whole)
        for name in whole:
            torch.testing.assert_close(found[name], whole[name], rtol=1e-5, atol=1e-6)


def test_nothing_is_read_when_the_merge_is_composed(
    loud: Loud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "harness.passes.statistics.load_rows", lambda *_, **__: pytest.fail("rows are read")
    )
    monkeypatch.setattr(blocks, "TruncatedModel", lambda *_: pytest.fail("a model is built"))
    folders = [loud("bert", which) for which in ("a", "b")]
    merge(asked(folders, [TOY, TOY]), out=tmp_path / "m", dry_run=True)


class Counted:
    """How many batches are run through expert blocks, and through merged ones."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.grams = self.passes = self.built = 0
        made, gram, on = (
            blocks.TruncatedModel.__init__,
            blocks.TruncatedModel.gram,
            blocks.TruncatedModel.pass_on,
        )

        def init(it: Any, *args: Any) -> None:
            self.built += 1
            made(it, *args)

        def grams(it: Any, *args: Any) -> Any:
            self.grams += 1
            return gram(it, *args)

        def passes(it: Any, *args: Any) -> None:
            self.passes += 1
            on(it, *args)

        monkeypatch.setattr(blocks.TruncatedModel, "__init__", init)
        monkeypatch.setattr(blocks.TruncatedModel, "gram", grams)
        monkeypatch.setattr(blocks.TruncatedModel, "pass_on", passes)


@pytest.mark.parametrize("cache", [True, False], ids=["cached", "nowhere to cache"])
def test_every_block_is_run_once_whatever_the_order_of_the_tensors(
    cache: bool, loud: Loud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Files have layer 10 before layer 2. Two experts: 3 blocks of Gram matrices, 3 to pass."""
    if not cache:
        monkeypatch.setattr("harness.passes.cache.keep", lambda *_: False)
    counted = Counted(monkeypatch)
    folders = [loud("bert", which) for which in ("a", "b")]
    plan = merge(asked(folders, [TOY, TOY]), out=tmp_path / "m", dry_run=True)
    names = sorted(plan.merged, key=lambda name: -depth(name))
    backwards = {name: plan.merged[name].clone() for name in names}
    assert (counted.built, counted.grams, counted.passes) == (2, 6, 6)
    for name in plan.merged:
        assert torch.equal(plan.merged[name], backwards[name])
    assert (counted.built, counted.grams, counted.passes) == (2, 6, 6)


def test_a_second_merge_runs_no_model_and_writes_the_same(
    loud: Loud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders = [loud("bert", which) for which in ("a", "b")]
    merge(asked(folders, [TOY, TOY]), out=tmp_path / "first")
    counted = Counted(monkeypatch)
    merge(asked(folders, [TOY, TOY]), out=tmp_path / "second")
    assert counted.built == 0
    first, second = (tmp_path / which / "merge.json" for which in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()


def test_what_is_cached_is_of_the_same_merged_layers(
    loud: Loud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With another share of the off-diagonal the first layer's matrices are the same alone."""
    folders = [loud("bert", which) for which in ("a", "b")]
    merge(asked(folders, [TOY, TOY]), out=tmp_path / "first")
    counted = Counted(monkeypatch)
    other = f"regmean_plus_plus:examples={EXAMPLES},batch_size=64,off_diagonal=0.1"
    merge(asked(folders, [TOY, TOY], merger=other), out=tmp_path / "second")
    assert (counted.built, counted.grams) == (2, 4)
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "empty"))
    merge(asked(folders, [TOY, TOY], merger=other), out=tmp_path / "third")
    same(arrays(tmp_path / "third"), arrays(tmp_path / "second"), 1e-9)


def test_an_interrupted_merge_goes_on_where_it_was(
    loud: Loud, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folders = [loud("bert", which) for which in ("a", "b")]
    plan = merge(asked(folders, [TOY, TOY]), out=tmp_path / "m", dry_run=True)
    _ = plan.merged["bert.encoder.layer.0.attention.self.query.weight"]
    counted = Counted(monkeypatch)
    merge(asked(folders, [TOY, TOY]), out=tmp_path / "again")
    assert (counted.built, counted.grams, counted.passes) == (2, 4, 6)
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "empty"))
    merge(asked(folders, [TOY, TOY]), out=tmp_path / "fresh")
    same(arrays(tmp_path / "again"), arrays(tmp_path / "fresh"), 1e-9)


def test_a_model_run_block_by_block_is_the_model(loud: Loud) -> None:
    """With its own weights for the merged ones, what its head reads are its features."""
    rows = draw_rows(TOY, EXAMPLES, 0, None)
    for family in (*FAMILIES, "mpnet", "modernbert"):
        checkpoint = open_checkpoint(loud(family))
        reading = Readings((checkpoint,), lambda _: rows, CPU).of(0)
        cut, own = blocks_of(checkpoint), checkpoint.weights
        parts = blocks.TruncatedModel(reading, cut, 4)
        for block in range(1 + checkpoint.config.get("num_hidden_layers", 2)):
            parts.pass_on({name: own[name] for name in own if cut.block_number(name) == block})
        stored, shared = parts.gram()
        final = dict.fromkeys(("roberta", "electra", "mpnet"), "classifier.out_proj")
        name = f"{final.get(family, 'classifier')}.weight"
        x, _, _ = forward(checkpoint, rows, max_length=128, placement=CPU)
        expected = torch.from_numpy(x).double()
        found = stored[shared.get(name, name)]
        torch.testing.assert_close(found, expected.T @ expected / len(x), rtol=1e-4, atol=1e-6)


def test_after_a_pre_merging_method_rows_go_through_what_it_made(
    loud: Loud, minis: Minis, tmp_path: Path
) -> None:
    """DARE that drops nothing changes nothing; one that drops changes the Gram matrices too."""
    folders, base = [loud("bert", which) for which in ("a", "b")], str(minis("bert")["base"])
    merge(asked(folders, [TOY, TOY]), out=tmp_path / "plain")
    for rate, moves in ((0.0, False), (0.5, True)):
        before = {"base": base, "premerge": [f"dare:drop_rate={rate}"]}
        merge(asked(folders, [TOY, TOY], **before), out=tmp_path / str(rate))
        differ = apart(arrays(tmp_path / str(rate)), arrays(tmp_path / "plain"))
        assert bool(differ) == moves


def test_the_record_says_which_rows_were_read(loud: Loud, tmp_path: Path) -> None:
    folders = [loud("bert", which) for which in ("a", "b")]
    merge(asked(folders, [TOY, TOY]), out=tmp_path / "m")
    record = json.loads((tmp_path / "m" / "merge.json").read_text())
    first, second = record["statistics"]
    assert first["kind"] == second["kind"] == "gram_through"
    assert first["task"] == "toy/pairs@train90"
    assert first["options"] == {"examples": EXAMPLES, "seed": 0, "batch_size": 64}
    assert first["rows"] == draw_rows(TOY, EXAMPLES, 0, None).digest
    assert [one["digest"] for one in record["statistics"]] == [
        one["digest"] for one in record["experts"]
    ]
    assert record["merger"]["options"]["off_diagonal"] == SHARE
    assert set(record["report"]) == {"condition", "inputs that never move"} & set(record["report"])


# What is refused ---------------------------------------------------------------------------


def test_the_tasks_must_be_known(loud: Loud, tmp_path: Path) -> None:
    folders = [loud("bert", which) for which in ("a", "b")]
    recipe = asked(folders, [TOY]).model_copy(update={"tasks": ()})
    with mistake(BadRecipe, "--tasks"):
        merge(recipe, out=tmp_path / "m")


def test_files_of_statistics_are_of_no_use(loud: Loud, tmp_path: Path) -> None:
    folder = loud("bert")
    file = tmp_path / "gram.safetensors"
    harness.statistic(folder, task="toy/pairs", out=file, merger="regmean:examples=4", device="cpu")
    with mistake(BadRecipe, "regmean_plus_plus"):
        merge(asked([folder, folder], [TOY, TOY], statistics=(str(file),)), out=tmp_path / "m")


def test_an_architecture_without_one_list_of_layers_is_refused(tmp_path: Path) -> None:
    """ALBERT runs one group of layers again and again."""
    folder = model(tmp_path / "albert", ["no", "yes"], family="albert", embedding_size=16)
    with mistake(UnknownName, "0 2"):
        merge(asked([folder, folder], [TOY, TOY]), out=tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_model_of_words_on_rows_is_refused_before_any_row_runs(
    minis: Minis, taggers: Minis, tmp_path: Path
) -> None:
    folders = [taggers("bert")["a"], taggers("bert")["b"]]
    with mistake(BrokenCheckpoint, folders[0], "BertForTokenClassification row"):
        merge(asked(folders, [TOY, TOY]), out=tmp_path / "m")


def test_activations_that_overflow_name_the_expert(loud: Loud, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(loud("bert"), tmp_path / "huge"))
    state = load_file(folder / "model.safetensors")
    name = "bert.encoder.layer.0.output.LayerNorm.weight"
    state[name] = torch.full_like(state[name], 3e38)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    with mistake(NotFinite, folder, "NaN"):
        merge(asked([folder, folder], [TOY, TOY]), out=tmp_path / "m")
