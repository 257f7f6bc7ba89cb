"""T5: two stacks that number their layers alike and read one table, and what a decoder asks for."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import harness
from harness import Run, weights
from harness.checking.toys import exact_norms
from harness.checkpoints.align import aligned_base
from harness.checkpoints.bases import encoder_digests
from harness.checkpoints.build import build_model, check_ready, encoder_of
from harness.checkpoints.families.symmetry import axes_of
from harness.checkpoints.families.t5 import T5
from harness.checkpoints.network import new_classifier
from harness.checkpoints.open import open_checkpoint
from harness.checkpoints.settings import check_settings
from harness.cli import main
from harness.data.rows import load_rows
from harness.errors import (
    BadData,
    BadOption,
    BrokenCheckpoint,
    HarnessError,
    IncompatibleWeights,
)
from harness.kinds import KINDS
from harness.needs.activations import activations
from harness.passes.features import forward
from harness.passes.fisher import fisher
from harness.passes.gram import gram, linear_layers
from harness.passes.layerwise import layerwise
from harness.passes.placement import CPU
from harness.passes.prepared import prepare
from harness.passes.reading import Readings
from harness.passes.statistics import draw_rows
from harness.types import Checkpoint, Rows
from harness.weights import Symmetry
from tests import test_regmean_plus_plus as plus
from tests.conftest import TAGS as LABELS
from tests.conftest import resumes
from tests.mistakes import mistake, refused
from tests.symmetries import far, logits, tensors
from tests.t5 import FILE, t5
from tests.test_moved import HOME, in_all_ways, written
from tests.toys import MOODS, TAGS, THREE, TOY, known

SHARED = "transformer.shared.weight"
STACKS = ("encoder", "decoder")
BIAS = "layer.0.SelfAttention.relative_attention_bias.weight"
TASKS = (TOY, THREE, TAGS, MOODS)
pytestmark = [
    pytest.mark.filterwarnings("ignore:.* drove the experts apart"),
    pytest.mark.filterwarnings("ignore:.*all are taken"),
    pytest.mark.filterwarnings("ignore:probe was fitted to fewer rows"),
]


@pytest.fixture(scope="module", params=["v1.0", "v1.1", "mT5"])
def minis(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base as it is published, two classifiers of rows, and two taggers."""
    root = tmp_path_factory.mktemp("t5")
    how: dict[str, Any] = {
        "gated": request.param != "v1.0",
        "kind": "MT5" if request.param == "mT5" else "T5",
    }
    base = t5(root / "base", **how)
    for seed, name in enumerate("ab", start=1):
        t5(root / name, ["no", "yes"], **how, seed=seed, near=base)
        t5(root / f"tag-{name}", LABELS, **how, seed=seed, near=base, unit="word")
    return root


tasks = known(*TASKS)


def rows_of(task: harness.Task, count: int = 10) -> Rows:
    return load_rows(task, "test", limit=count)


# Files -------------------------------------------------------------------------------------


def respelled(folder: Path, out: Path, **names: str) -> Path:
    """A copy whose table goes by further names, or by others: `shared` among them or not."""
    shutil.copytree(folder, out)
    state = load_file(out / FILE)
    (own,) = (name for name in state if name.endswith("shared.weight"))
    table = state.pop(own)
    for where, what in names.items():
        copy = table + 1 if what == "another" else table.clone()
        place = "shared.weight" if where == "shared" else f"{where}.embed_tokens.weight"
        state[own.replace("shared.weight", place)] = copy
    save_file(state, out / FILE, metadata={"format": "pt"})
    return out


def test_a_published_base_is_the_encoder_of_classifiers(minis: Path) -> None:
    """Two stacks under a classifier of rows, the first alone under one of words."""
    base = open_checkpoint(minis / "base")
    stored = load_file(minis / "base" / FILE)
    gated = "lm_head.weight" in stored
    if base.config["model_type"] == "t5":  # mT5 never scales
        assert base.config["scale_decoder_outputs"] is not gated
    for name, unit in (("a", "row"), ("tag-a", "word")):
        expert = open_checkpoint(minis / name)
        encoder = encoder_of(base, unit=unit)  # type: ignore[arg-type]
        assert {*encoder.weights} == {n for n in expert.weights if not T5.is_head(n)}
        for own in encoder.weights:
            bare = own.removeprefix("transformer.")
            assert torch.equal(encoder.weights[own], stored[bare]), own
    assert any(".decoder." in name for name in encoder_of(base).weights)
    assert not any(".decoder." in name for name in encoder_of(base, unit="word").weights)


@pytest.mark.parametrize("name", ["base", "a", "tag-a"])
def test_a_table_under_any_of_its_names_is_one_model(
    minis: Path, name: str, tmp_path: Path
) -> None:
    first = open_checkpoint(minis / name)
    ways = [
        {"encoder": "it"},
        {"encoder": "it", "shared": "it"},
        {"encoder": "it", "decoder": "it", "shared": "it"},
    ]
    for number, names in enumerate(ways):
        other = open_checkpoint(respelled(minis / name, tmp_path / str(number), **names))
        assert {*other.weights} == {*first.weights}
        assert weights.digest(other.weights) == weights.digest(first.weights)
        if name == "base":
            assert encoder_digests(other) == encoder_digests(first)
        assert bool(other.stored_names) == ("shared" not in names)


def test_tables_that_differ_and_one_that_is_missing_are_refused(
    minis: Path, tmp_path: Path
) -> None:
    """transformers makes up the one that is missing."""
    odd = respelled(minis / "base", tmp_path / "odd", encoder="another", shared="it")
    with mistake(BrokenCheckpoint, odd, "encoder.embed_tokens.weight"):
        open_checkpoint(odd)
    none = respelled(minis / "base", tmp_path / "none")
    refused(["inspect", none, none], BrokenCheckpoint, none, "shared.weight")


def test_a_merge_is_written_as_its_base_and_plain_transformers_loads_it(
    minis: Path, tmp_path: Path
) -> None:
    from transformers import AutoModelForSequenceClassification

    base = respelled(minis / "base", tmp_path / "base", encoder="it")
    for given in (minis / "base", base):
        recipe = harness.Recipe.model_validate(
            {"experts": [str(minis / n) for n in "ab"], "base": str(given), "merger": "ties"}
        )
        harness.merge(recipe, out=tmp_path / "out", force=True)
        written = load_file(tmp_path / "out" / FILE)
        assert (SHARED in written) == (given != base)
        merged = open_checkpoint(tmp_path / "out")
        plain: Any = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
        for name, tensor in plain.named_parameters():
            assert torch.equal(tensor, merged.weights[name]), name
        assert plain.transformer.decoder.embed_tokens.weight is plain.transformer.shared.weight


@pytest.mark.parametrize("stages", [{"merger": "wudi"}, {"postmerge": ["svc:alpha=0.1"]}])
def test_tables_are_no_matrices_of_a_layer(
    minis: Path, stages: dict[str, Any], tmp_path: Path
) -> None:
    """WUDI leaves them as the base has them, SVC as the average has them."""
    given = {"experts": [str(minis / n) for n in "ab"], "base": str(minis / "base"), **stages}
    harness.merge(harness.Recipe.model_validate(given), out=tmp_path / "out")
    merged = open_checkpoint(tmp_path / "out").weights
    a, b = (open_checkpoint(minis / n) for n in "ab")
    base = aligned_base(open_checkpoint(minis / "base"), a)
    layer = "transformer.encoder.block.0.layer.0.SelfAttention.q.weight"
    for name in (SHARED, *(f"transformer.{stack}.block.0.{BIAS}" for stack in STACKS), layer):
        both = (a.weights[name] + b.weights[name]) / 2
        left = base.weights[name] if "merger" in stages else both
        assert torch.allclose(merged[name], left, rtol=0, atol=1e-6) == (name != layer), name


@pytest.mark.parametrize(
    ("key", "value"),
    [("eos_token_id", 5), ("decoder_start_token_id", 4), ("feed_forward_proj", "silu")],
)
def test_what_decides_the_function_is_compared(minis: Path, key: str, value: object) -> None:
    one = open_checkpoint(minis / "a")
    with mistake(IncompatibleWeights, key):
        check_settings([one, replace(one, config={**one.config, key: value})])


@pytest.mark.parametrize("token", [None, -1, 10**9, "0"])
@pytest.mark.parametrize("key", ["decoder_start_token_id", "pad_token_id"])
def test_a_token_that_the_decoder_cannot_be_given_is_one_line(
    minis: Path, key: str, token: object
) -> None:
    one = open_checkpoint(minis / "a")
    check_ready(one)
    with mistake(BrokenCheckpoint, "config.json", key):
        check_ready(replace(one, config={**one.config, key: token}))


def test_a_release_that_says_scaling_by_tying_is_compared_by_what_it_does(minis: Path) -> None:
    one = open_checkpoint(minis / "a")
    if one.config["model_type"] == "mt5":  # published ones say they tie nothing, and no top is read
        check_settings([one, replace(one, config={**one.config, "tie_word_embeddings": False})])
        return
    scaled = one.config["scale_decoder_outputs"]
    older = {k: v for k, v in one.config.items() if k != "scale_decoder_outputs"}
    check_settings([one, replace(one, config={**older, "tie_word_embeddings": scaled})])
    with mistake(IncompatibleWeights, "scale_decoder_outputs"):
        check_settings([one, replace(one, config={**older, "tie_word_embeddings": not scaled})])


# Rows --------------------------------------------------------------------------------------


def by_hand(checkpoint: Checkpoint, ids: list[int]) -> torch.Tensor:
    """What a classifier's last layer reads of one row, in float64: the stacks of transformers' own
    model are run by us."""
    from transformers import AutoModelForSequenceClassification

    made: Any = exact_norms(
        AutoModelForSequenceClassification.from_pretrained(checkpoint.path).double().eval()
    )
    row = torch.tensor([ids])
    told = made.transformer.encoder(input_ids=row).last_hidden_state
    shifted = torch.tensor([[0, *ids[:-1]]])  # with the token that a decoder starts at
    said = made.transformer.decoder(input_ids=shifted, encoder_hidden_states=told)
    return made.classification_head.dense(said.last_hidden_state[0, -1]).tanh()


def test_features_are_what_the_decoder_says_at_the_end(minis: Path) -> None:
    """Of rows by themselves and of rows that were padded."""
    checkpoint, rows = open_checkpoint(minis / "a"), rows_of(TOY)
    ids = prepare(checkpoint, rows, 20).columns["input_ids"]
    assert all(row.count(1) == 2 and row[-1] == 1 for row in ids)
    with torch.no_grad():
        expected = torch.stack([by_hand(checkpoint, row) for row in ids]).numpy()
    for size in (1, 4, 10):
        x, _, _ = forward(checkpoint, rows, max_length=20, batch_size=size)
        np.testing.assert_allclose(x, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_features_of_words_are_what_the_encoder_says(minis: Path) -> None:
    """In float64, of transformers' own model."""
    from transformers import AutoModelForTokenClassification

    checkpoint, rows = open_checkpoint(minis / "tag-a"), rows_of(TAGS)
    made: Any = exact_norms(
        AutoModelForTokenClassification.from_pretrained(minis / "tag-a").double().eval()
    )
    ready = prepare(checkpoint, rows, 64)
    assert ready.first is not None
    parts = []
    with torch.no_grad():
        for ids, first in zip(ready.columns["input_ids"], ready.first, strict=True):
            told = made.transformer.encoder(input_ids=torch.tensor([ids])).last_hidden_state[0]
            parts.append(told[list(first)])
    expected = torch.cat(parts).numpy()
    x, _, _ = forward(checkpoint, rows, max_length=64, batch_size=4)
    np.testing.assert_allclose(x, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_a_row_that_is_cut_keeps_its_ends(minis: Path) -> None:
    for task, ends in ((TOY, 2), (THREE, 1)):
        for length in (4, 7):
            ready = prepare(open_checkpoint(minis / "a"), rows_of(task), length)
            assert max(ready.costs) == length
            assert {row.count(1) for row in ready.columns["input_ids"]} == {ends}


@pytest.mark.parametrize("places", [[3], [0], [*range(10)]], ids=["one", "the first", "all"])
def test_rows_end_alike_or_are_refused(minis: Path, places: list[int]) -> None:
    """In a batch that it is alone in, a row with another number of ends would pass."""
    rows = rows_of(THREE)
    texts = [(f"word1 </s> {one}" if i in places else one,) for i, (one,) in enumerate(rows.texts)]
    said = replace(rows, texts=texts)
    if len(places) == len(rows):  # as the models of pairs are read
        forward(open_checkpoint(minis / "a"), said, max_length=20)
        return
    quoted = texts[places[0]][0][:20].rpartition(" ")[0]  # rows may be drawn: no number
    with mistake(BadData, f"'{quoted}", "toy/three@test", "token 1", "2 times", "expected 1"):
        forward(open_checkpoint(minis / "a"), said, max_length=20)


def test_a_tokenizer_without_an_end_is_refused(minis: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(minis / "a", tmp_path / "endless"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": 2}))
    with mistake(BadData, "token 2", "0 times", "expected 1", "tokenizer"):
        forward(open_checkpoint(folder), rows_of(TOY), max_length=20)


# Statistics --------------------------------------------------------------------------------


def one_by_one(checkpoint: Checkpoint, rows: Rows) -> Iterator[dict[str, torch.Tensor]]:
    ready = prepare(checkpoint, rows, 128)
    return (ready.batch([row], CPU) for row in range(len(rows)))


def test_gram_matrices_of_both_stacks_leave_padding_out(minis: Path) -> None:
    checkpoint, rows = open_checkpoint(minis / "a"), rows_of(TOY)
    made = build_model(checkpoint.config, checkpoint.weights, "it").double()
    layers = linear_layers(made)
    ready = prepare(checkpoint, rows, 128)
    whole = [ready.batch([*range(len(rows))], CPU)]
    assert (whole[0]["attention_mask"] == 0).any()
    alone, _ = gram(made, layers, one_by_one(checkpoint, rows))
    padded, shared = gram(made, layers, whole)
    assert padded.keys() == alone.keys()
    for name in padded:
        torch.testing.assert_close(padded[name], alone[name], rtol=1e-4, atol=1e-6)
    assert {*shared} == {f"{name}.weight" for name in layers}
    assert SHARED not in shared
    assert not any(BIAS in name for name in shared)
    cross = "transformer.decoder.block.{}.layer.1.EncDecAttention.{}.weight"
    assert len({shared[cross.format(at, kind)] for at in (0, 1) for kind in "kv"}) == 1
    assert shared[cross.format(0, "q")] != shared[cross.format(0, "k")]
    counted, _ = gram(made, layers, whole, padding=True)
    assert far(counted, alone) > 1e-3


@pytest.mark.parametrize("name", ["a", "tag-a"])
def test_the_fisher_information_is_that_of_squared_gradients(minis: Path, name: str) -> None:
    checkpoint = open_checkpoint(minis / name)
    task, unit = (TOY, "row") if name == "a" else (TAGS, "word")
    made = build_model(checkpoint.config, checkpoint.weights, "it", unit=unit).double()  # type: ignore[arg-type]
    inputs = next(one_by_one(checkpoint, rows_of(task)))
    said = made(**inputs).logits.reshape(-1, len(checkpoint.labels or ())).log_softmax(-1)
    expected: dict[str, torch.Tensor] = {}
    for row in said:
        for value in row:
            made.zero_grad()
            value.backward(retain_graph=True)
            for own, tensor in tensors_with_gradients(made).items():
                add = float(value.detach().exp()) * tensor**2
                expected[own] = expected.get(own, torch.zeros_like(add)) + add
    labels = torch.zeros(len(said) if name != "a" else 1, dtype=torch.long)
    labels = labels[None] if name != "a" else labels
    kind = KINDS["classification" if name == "a" else "tagging"]
    found = fisher(made, iter([(inputs, labels)] * 2), kind)
    assert found.keys() == expected.keys()
    for own in found:
        torch.testing.assert_close(found[own], expected[own], rtol=1e-5, atol=1e-12)
    assert found[SHARED].count_nonzero()
    assert found[f"transformer.encoder.block.0.{BIAS}"].count_nonzero()


def tensors_with_gradients(made: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {n: p.grad for n, p in made.named_parameters() if p.grad is not None}


def test_activations_of_both_stacks_are_those_of_single_rows(minis: Path) -> None:
    pair = tuple(open_checkpoint(minis / name) for name in "ab")
    rows = rows_of(TOY)
    one, other = activations(Readings(pair, lambda _: rows, CPU), examples=10, batch_size=4)
    for stack, place in (("encoder", 1), ("decoder", 2)):
        sides = []
        for checkpoint in pair:
            made: Any = build_model(checkpoint.config, checkpoint.weights, "it")
            block = getattr(made.transformer, stack).block[1].layer[place]
            seen: list[torch.Tensor] = []
            block.DenseReluDense.wo.register_forward_pre_hook(
                lambda _, given, seen=seen: seen.append(given[0][0].detach())
            )
            for inputs in one_by_one(checkpoint, rows_of(TOY)):
                made(**inputs)
            sides.append(torch.cat(seen).double())
        found = one.products(other, f"ffn.{stack}.1")
        expected = sides[0].T @ sides[1]
        torch.testing.assert_close(found.inner, expected, rtol=1e-3, atol=1e-5)
        assert found.count == len(sides[0])


# Layers ------------------------------------------------------------------------------------


def symmetry(folder: Path) -> Symmetry:
    checkpoint = open_checkpoint(folder)
    return Symmetry(axes_of(T5, checkpoint.weights, "row"), 2, (T5.token_embeddings,))


def test_layers_have_the_name_of_their_stack(minis: Path) -> None:
    table = symmetry(minis / "a")
    encoder, decoder = ("encoder.0", "encoder.1"), ("decoder.0", "decoder.1")
    assert table.words == (SHARED,)
    assert table.layers == (*encoder, *decoder)
    asked = {
        "all": table.layers,
        "encoder": encoder,
        "decoder": decoder,
        "decoder.first:1": decoder[:1],
        "encoder.last:2": encoder,
        "encoder.1": encoder[1:],
    }
    assert {layers: table.chosen(layers) for layers in asked} == asked
    for layers in (
        "0",
        "first:1",
        "last:2",
        "cross",
        "encoder.2",
        "decoder.first:3",
        "decoder.-1",
        "encoder.",
        ".",
    ):
        with mistake(BadOption, layers, "encoder", "decoder"):
            table.chosen(layers)
    assert weights.in_order(["decoder.2", "encoder.10", "decoder.0", "encoder.9"]) == (
        *("encoder.9", "encoder.10"),
        *("decoder.0", "decoder.2"),
    )
    cross = ["qk.decoder.0", "qk.decoder.0.cross", "vo.decoder.0", "vo.decoder.0.cross"]
    assert table.within("decoder.0", "qk", "vo", "ffn") == [*cross, "ffn.decoder.0"]


def test_heads_of_a_stack_have_one_order_and_those_of_the_cross_their_own(minis: Path) -> None:
    table = symmetry(minis / "a")
    orders = table.head_orders("all")
    assert {*orders} == {
        *("heads.encoder", "heads.decoder"),
        *(f"heads.decoder.{layer}.cross" for layer in (0, 1)),
    }
    assert {*orders["heads.encoder"]} == {
        *(f"{kind}.encoder.{layer}" for kind in ("qk", "vo") for layer in (0, 1)),
        "heads.encoder",
    }
    assert {*table.head_orders("encoder")} == {"heads.encoder"}
    with mistake(BadOption, "decoder.0", "decoder"):
        table.head_orders("decoder.0")


def test_what_a_table_has_for_a_head_is_never_turned() -> None:
    """A head that is turned may be negated; a bias of positions may not: its sign tells."""
    table = Symmetry({"bias": (None, "heads.encoder")}, 2)
    here, there = ({"bias": torch.tensor([one])} for one in ([1.0, -1.0], [-1.0, 1.0]))
    units = weights.UnitGroup("heads.encoder", ("heads.encoder",), 2)
    for rotated in (False, True):
        found = weights.matched(here, there, units, table, rotated=rotated)
        assert found["heads.encoder"].order.tolist() == [1, 0]


def test_layers_of_a_decoder_are_deeper_than_those_of_its_encoder() -> None:
    names = [f"transformer.{s}.block.{i}.w" for s in ("encoder", "decoder") for i in (0, 1)]
    base = {name: torch.zeros(1) for name in [SHARED, *names]}
    merged = {name: torch.ones(1) for name in base}
    lines = harness.POSTMERGE["lines"].function
    found = lines(merged, [merged], base, alpha=0.0, beta=3.0)
    assert [float(found[name]) for name in [SHARED, *names]] == pytest.approx([0, 0, 1, 2, 3])


# Through the doors -------------------------------------------------------------------------


@pytest.mark.parametrize("gated", [False, True], ids=["v1.0", "v1.1"])
@pytest.mark.parametrize("unit", ["row", "word"])
def test_an_expert_that_was_moved_comes_home(gated: bool, unit: Any, tmp_path: Path) -> None:
    """Aligned in all ways: in part, or not at all, the average says something else."""
    pattern = t5(tmp_path / "pattern", "xyz", gated=gated, unit=unit, eos_token_id=3)
    config = open_checkpoint(pattern).config
    made = exact_norms(new_classifier(config, "it", unit).double().eval())
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.copy_(torch.randn_like(parameter) / 2)
    state = tensors(made)
    table = Symmetry(axes_of(T5, state, unit), 2)
    copy = in_all_ways(state, table)
    expected = logits(made, state)
    largest = float(expected.abs().max())
    models = {"expert": state, "copy": copy}
    experts = [written(pattern, tmp_path / n, one, torch.float64) for n, one in models.items()]

    def gap(*premerge: str) -> float:
        recipe = harness.Recipe.model_validate({"experts": experts, "premerge": premerge})
        harness.merge(recipe, out=tmp_path / "out", force=True)
        merged = open_checkpoint(tmp_path / "out").weights
        said = logits(made, {name: merged[name].double() for name in merged})
        return float((said - expected).abs().max()) / largest

    assert float((logits(made, copy) - expected).abs().max()) < 1e-12 * largest
    assert gap() > 0.05
    assert gap(HOME[0]) > 0.01
    assert gap(*HOME) < 1e-10


MERGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "average": ("average", ()),
    "regmean": ("regmean:examples=8", ()),
    "fisher": ("fisher:examples=4", ()),
    "procrustes": ("average", ("procrustes",)),
    "procrustes of a stack": ("average", ("procrustes:layers=decoder",)),
    "activations": ("average", ("activation_matching:examples=8",)),
    "cca": ("average", ("cca:examples=8,layers=encoder.0",)),
    "transport": ("average", ("ot_fusion",)),
    "quirks": ("average", ("ot_fusion:reference_quirks=true",)),
    "at once": ("average", ("permutation:heads=true,cycle_consistent=true",)),
}


@pytest.mark.parametrize("how", MERGES)
def test_a_merge_of_copies_says_what_they_say(minis: Path, how: str, tmp_path: Path) -> None:
    """But for CCA, whose maps go through an activation function, and the far rows of RegMean."""
    merger, premerge = MERGES[how]
    experts = [str(minis / "a")] * 2
    given = {"experts": experts, "merger": merger, "premerge": premerge, "tasks": ["toy/pairs"]}
    harness.merge(harness.Recipe.model_validate(given), out=tmp_path / "out")
    checkpoint = open_checkpoint(minis / "a")
    merged = open_checkpoint(tmp_path / "out")
    for name in checkpoint.weights:
        torch.testing.assert_close(
            merged.weights[name], checkpoint.weights[name], rtol=1e-3, atol=1e-3
        )


def test_regmean_of_two_is_the_least_squares_of_both_stacks(minis: Path, tmp_path: Path) -> None:
    """By the normal equations of a cross-attention's keys, from plain transformers."""
    experts = [minis / "a", minis / "b"]
    given = {
        "experts": [*map(str, experts)],
        "merger": "regmean:examples=8,off_diagonal=1.0",
        "tasks": ["toy/pairs"],
    }
    harness.merge(harness.Recipe.model_validate(given), out=tmp_path / "out")
    merged = open_checkpoint(tmp_path / "out").weights
    rows = draw_rows(TOY, 8, 0, None)
    name = "transformer.decoder.block.1.layer.1.EncDecAttention.k"
    left = torch.zeros(16, 16, dtype=torch.float64)
    right = torch.zeros(16, 16, dtype=torch.float64)
    for folder in experts:
        checkpoint = open_checkpoint(folder)
        made: Any = build_model(checkpoint.config, checkpoint.weights, "it")
        with torch.no_grad():
            told = [
                made.transformer.encoder(input_ids=one["input_ids"]).last_hidden_state[0]
                for one in one_by_one(checkpoint, rows)
            ]
        x = torch.cat(told).double()
        products = x.T @ x / len(x)
        left += products
        right += products @ checkpoint.weights[f"{name}.weight"].double().T
    expected = torch.linalg.solve(left, right).T
    torch.testing.assert_close(
        merged[f"{name}.weight"].double(), expected, rtol=0, atol=1e-3 * float(expected.abs().max())
    )
    average = sum(open_checkpoint(f).weights[f"{name}.weight"] for f in experts) / 2
    assert float((average - merged[f"{name}.weight"]).abs().max()) > 1e-3


def depth(name: str) -> int:
    """The table and last norms, the layers of the encoder, those of the decoder, and the head."""
    number = re.search(r"(en|de)coder\.block\.(\d)\.", name)
    if number is None:
        return 99 if name.startswith("class") else 0
    return 1 + int(number[2]) + 2 * (number[1] == "de")


@pytest.mark.parametrize(("names", "task"), [("ab", TOY), (("tag-a", "tag-b"), TAGS)])
def test_layers_merged_in_turn_agree_with_a_loop_over_ordinary_models(
    minis: Path, names: Any, task: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What a decoder attends to comes from the whole merged encoder."""
    monkeypatch.setattr(plus, "depth", depth)
    folders = [minis / name for name in names]
    harness.merge(plus.asked(folders, [task] * 2), out=tmp_path / "m")
    expected = plus.reference(folders, [task] * 2)
    found = plus.arrays(tmp_path / "m")
    assert set(expected) == set(found)
    plus.same(found, expected, 5e-5)
    plain = plus.asked(folders, [task] * 2, merger=f"regmean:examples={plus.EXAMPLES}")
    harness.merge(plain, out=tmp_path / "regmean")
    differ = plus.apart(plus.arrays(tmp_path / "regmean"), found)
    assert any("EncDecAttention.k" in name for name in differ) is (task is TOY)


def test_matrices_through_a_taggers_own_layers_are_its_own(minis: Path) -> None:
    checkpoint, rows = open_checkpoint(minis / "tag-a"), rows_of(TAGS)
    readings = Readings((checkpoint,), lambda _: rows, CPU)
    through = layerwise(readings, 4)(0, checkpoint.weights)
    made = build_model(checkpoint.config, checkpoint.weights, "it", unit="word")
    own, shared = gram(made, linear_layers(made), readings.of(0).inputs(4))
    assert {*through} == {*shared}
    for name, kept in shared.items():
        torch.testing.assert_close(through[name], own[kept], rtol=1e-4, atol=1e-5)


def test_a_tagger_and_a_classifier_of_rows_share_no_decoder(minis: Path, tmp_path: Path) -> None:
    command = ["merge", minis / "a", minis / "tag-a", "--out", tmp_path / "out"]
    refused(
        [*command, "--tasks", "toy/pairs,toy/tags"], IncompatibleWeights, minis / "tag-a", "decoder"
    )


@pytest.mark.parametrize("task", ["toy/three", "toy/tags"])
def test_an_interrupted_run_resumes(minis: Path, task: str, tmp_path: Path) -> None:
    few: dict[str, Any] = {"epochs": 2, "limit": 16, "progress": False}
    resumes(lambda out: harness.finetune(minis / "base", task, out=out, **few), tmp_path)


def test_an_expert_is_tuned_merged_and_scored(minis: Path, tmp_path: Path) -> None:
    """And the merge of copies scores as they do, under every protocol that reads features."""
    base = str(minis / "base")
    settings: dict[str, Any] = {"epochs": 1, "learning_rate": 3e-3, "limit": 40, "progress": False}
    usual = {"shots": [2], "draws": 2, "output": str(tmp_path / "records")}
    for task in ("toy/three", "toy/moods", "toy/tags"):
        out = tmp_path / task.replace("/", "-")
        harness.finetune(base, task, out=out, **settings)
        merged = tmp_path / f"{out.name}-merged"
        recipe = {"experts": [str(out)] * 2, "base": base, "merger": "average"}
        recipe = {**recipe, "premerge": ["rotation"]} if task != "toy/moods" else recipe
        harness.merge(harness.Recipe.model_validate(recipe), out=merged)
        protocols = ["current", "knn", "linear-probe"]
        protocols += ["ft-classifier", "probe"] if task == "toy/three" else []
        found = harness.evaluate(
            Run.model_validate({"model": str(merged), "protocols": protocols, **usual})
        )
        scores = {
            (record.role, record.protocol, one.shots, one.seed): one.value
            for record in found
            for one in record.scores
        }
        asked = {protocol for role, protocol, *_ in scores if role == "merged"}
        assert asked == {*protocols}
        for (role, *which), value in scores.items():
            if role == "expert":
                assert scores[("merged", *which)] == pytest.approx(value)  # type: ignore[index]
        assert {which[0] for role, *which in scores if role == "expert"} >= {"current"}


def test_several_tasks_share_both_stacks(minis: Path, tmp_path: Path) -> None:
    out = tmp_path / "both"
    settings: dict[str, Any] = {"epochs": 1, "learning_rate": 3e-3, "progress": False}
    harness.finetune(
        str(minis / "base"), tasks=["toy/three", "toy/moods"], out=out, batch_size=8, **settings
    )
    state = load_file(out / FILE)
    assert {*state} == {*encoder_of(open_checkpoint(minis / "base")).weights}
    base = encoder_of(open_checkpoint(minis / "base")).weights
    assert far({n: base[n] for n in base}, state) > 1e-3


def test_inspect_and_statistics_name_the_stacks(
    minis: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["inspect", str(minis / "a"), str(minis / "b"), "--base", str(minis / "base")]
    assert main([*command, "--json", "--out", str(tmp_path / "seen")]) == 0
    found = json.loads(capsys.readouterr().out)["pairs"][0]
    layers = ["encoder.0", "encoder.1", "decoder.0", "decoder.1"]
    assert [one["layer"] for one in found["units"]] == layers
    assert {one["layer"] for one in found["places"]} == {None, *layers}
    assert main(command) == 0
    said = capsys.readouterr().out
    places = [said.index(f"\n{layer} ") for layer in layers]
    assert all(first < second for first, second in pairwise(places))
    file = tmp_path / "grams.safetensors"
    command = ["statistics", str(minis / "a"), "--task", "toy/pairs", "--merger", "regmean"]
    assert main([*command, "--out", str(file)]) == 0
    names = load_file(file)
    assert any(".encoder." in name for name in names)
    assert any("EncDecAttention" in name for name in names)
    assert not any("shared" in name or "relative" in name for name in names)


def test_an_adapter_of_a_published_base_is_its_model(minis: Path, tmp_path: Path) -> None:
    numbers = torch.Generator().manual_seed(0)
    module = "decoder.block.1.layer.1.EncDecAttention.q"
    first = torch.randn((2, 16), generator=numbers)
    second = torch.randn((16, 2), generator=numbers)
    folder = tmp_path / "adapter"
    folder.mkdir()
    called = f"base_model.model.transformer.{module}"
    factors = {f"{called}.lora_A.weight": first, f"{called}.lora_B.weight": second}
    save_file(factors, folder / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": [module]}
    said["base_model_name_or_path"] = str(minis / "base")
    (folder / "adapter_config.json").write_text(json.dumps(said))
    name = f"transformer.{module}.weight"
    base = encoder_of(open_checkpoint(minis / "base")).weights[name].double()
    torch.testing.assert_close(
        open_checkpoint(folder).weights[name],
        base + second.double() @ first.double(),
        rtol=0,
        atol=1e-6,
    )


def of_text(folder: Path, base: Path, **changed: Any) -> Path:
    """An adapter of a model that makes text: a query and, where the base has one, its lm_head."""
    numbers = torch.Generator().manual_seed(0)
    stored = load_file(base / FILE)
    modules = ["encoder.block.0.layer.0.SelfAttention.q"]
    modules += ["lm_head"] if "lm_head.weight" in stored else []
    factors = {}
    for module in modules:
        rows, columns = stored[f"{module}.weight"].shape
        name = f"base_model.model.{module}"
        factors[f"{name}.lora_A.weight"] = torch.randn((2, columns), generator=numbers)
        factors[f"{name}.lora_B.weight"] = torch.randn((rows, 2), generator=numbers)
    folder.mkdir()
    save_file(factors, folder / "adapter_model.safetensors")
    said = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "task_type": "SEQ_2_SEQ_LM"}
    said |= {"base_model_name_or_path": str(base), "target_modules": [*modules], **changed}
    (folder / "adapter_config.json").write_text(json.dumps(said))
    return folder


def test_adapters_of_a_model_that_makes_text_are_merged_with_its_outputs(
    minis: Path, tmp_path: Path
) -> None:
    """Without them transformers would make text by the table of tokens, and say nothing."""
    from transformers import AutoModelForSeq2SeqLM

    folder = of_text(tmp_path / "one", minis / "base")
    stored, factors = (
        load_file(minis / "base" / FILE),
        load_file(folder / "adapter_model.safetensors"),
    )
    wanted = {name: tensor.double() for name, tensor in stored.items()}
    for name in {name.rpartition(".lora_")[0] for name in factors}:
        product = (
            factors[f"{name}.lora_B.weight"].double() @ factors[f"{name}.lora_A.weight"].double()
        )
        wanted[f"{name.removeprefix('base_model.model.')}.weight"] += product
    out = tmp_path / "merged"
    command = ["merge", folder, folder, "--base", minis / "base", "--merger", "average"]
    assert main([*map(str, command), "--heads", "none", "--out", str(out)]) == 0
    made = load_file(out / FILE)
    assert made.keys() == wanted.keys()
    for name, tensor in wanted.items():
        torch.testing.assert_close(made[name].double(), tensor, rtol=0, atol=1e-5)
    of_base, of_merge = (AutoModelForSeq2SeqLM.from_pretrained(p) for p in (minis / "base", out))
    tied = "lm_head.weight" not in stored
    assert tied == torch.equal(of_merge.lm_head.weight, of_merge.shared.weight)
    assert type(of_base) is type(of_merge)


def test_a_target_that_the_base_has_not_is_called_as_it_is_stored(
    minis: Path, tmp_path: Path
) -> None:
    folder = of_text(tmp_path / "one", minis / "base", target_modules=["r"])
    file = folder / "adapter_model.safetensors"
    named = {
        name.replace("Attention.q", "Attention.r"): one for name, one in load_file(file).items()
    }
    save_file(named, file)
    with pytest.raises(
        BrokenCheckpoint, match=r"the base has no 'encoder[^']*\.r\.weight'; expected the base"
    ):
        open_checkpoint(folder)


def test_outputs_that_are_the_table_once_more_are_left_out(minis: Path, tmp_path: Path) -> None:
    """As a pickle of an older release has them; where they are others, or untied, they stay."""
    folder = Path(shutil.copytree(minis / "base", tmp_path / "copy"))
    stored, config = load_file(folder / FILE), json.loads((folder / "config.json").read_text())
    untied = "lm_head.weight" in stored
    save_file({**stored, "lm_head.weight": stored["shared.weight"].clone()}, folder / FILE)
    for said, kept in (({}, untied), ({"tie_word_embeddings": False}, True)):
        (folder / "config.json").write_text(json.dumps(config | said))
        found = open_checkpoint(folder)
        assert ("lm_head.weight" in found.weights) == kept
        assert weights.digest(found.weights)
    other = stored["shared.weight"] + 1
    save_file({**stored, "lm_head.weight": other}, folder / FILE)
    (folder / "config.json").write_text(json.dumps(config))
    assert torch.equal(open_checkpoint(folder).weights["lm_head.weight"], other)


def test_other_readouts_are_refused_in_one_line(minis: Path, tmp_path: Path) -> None:
    command = ["evaluate", "--model", minis / "a", "--tasks", "toy/pairs"]
    command += ["--protocols", "knn:features=cls", "--output-path", tmp_path]
    refused(command, HarnessError, minis / "a", "no encoder under a head")
