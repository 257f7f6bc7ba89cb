"""Architectures as data: what a family says is so in transformers' own models."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from harness import load_plugins, parse_choice
from harness.checkpoints import network
from harness.checkpoints.align import aligned_base, new_in_experts
from harness.checkpoints.build import build_model, check_ready, encoder_of
from harness.checkpoints.families import known
from harness.checkpoints.families.family import Unit
from harness.checkpoints.families.generic import family_of
from harness.checkpoints.families.known import FAMILIES as NAMED
from harness.checkpoints.families.known import FAMILY_OF_TYPE, add_family
from harness.checkpoints.families.symmetry import LAYER_NUMBER, axes_of, in_any_layer, split_parts
from harness.checkpoints.families.t5 import TiedWords, Words
from harness.checkpoints.named import parameters_of, to_family_names
from harness.checkpoints.network import classifier_on_meta
from harness.checkpoints.open import open_checkpoint
from harness.cli import main
from harness.errors import (
    BadOption,
    BrokenCheckpoint,
    HarnessError,
    IncompatibleWeights,
    UnknownName,
)
from harness.merging.merge import merge
from harness.merging.plan import plan
from harness.merging.recipes import Recipe
from harness.passes.features import final_head, final_module
from harness.types import Choice
from harness.weights import Axes, group_of
from tests.conftest import BERT_LIKE, FAMILIES, NEWER, TAGS, is_head, model
from tests.mistakes import mistake, refused
from tests.symmetries import (
    IDS,
    MOVES,
    UNITS,
    VARIANTS,
    check_unit,
    config,
    every_unit,
    every_variant,
    logits,
    loud,
    moved,
    tensors,
)

Minis = Callable[[str], dict[str, Path]]
every_family = pytest.mark.parametrize("family", [*FAMILIES, *NEWER])


def planned(variant: str, unit: Unit) -> Any:
    check_unit(variant, unit)
    return classifier_on_meta(config(variant), variant, unit=unit)


# A classifier without weights --------------------------------------------------------------


def test_a_classifier_without_weights_is_built_once_for_each_configuration_and_unit() -> None:
    made = classifier_on_meta(config("bert"), "here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(network, "without_warnings", None)  # is not asked for anew
        assert classifier_on_meta(dict(config("bert")), "there") is made
    assert {str(one.device) for one in made.parameters()} == {"meta"}
    for other in (
        classifier_on_meta(config("bert"), "here", unit="word"),
        classifier_on_meta({**config("bert"), "num_labels": 7}, "here"),
    ):
        assert other is not made
        assert [one.shape for one in other.parameters()] != [one.shape for one in made.parameters()]


def test_of_many_configurations_the_latest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    two = lru_cache(2)(network._on_meta.__wrapped__)
    monkeypatch.setattr(network, "_on_meta", two)
    first, *_, last = (
        classifier_on_meta({**config("bert"), "num_labels": count}, "here") for count in (2, 3, 4)
    )
    assert two.cache_info().currsize == 2
    assert classifier_on_meta({**config("bert"), "num_labels": 4}, "here") is last
    assert classifier_on_meta({**config("bert"), "num_labels": 2}, "here") is not first


def test_each_folder_is_told_that_no_classifier_can_be_made_of_it() -> None:
    for place in ("here", "there"):
        with mistake(BrokenCheckpoint, place):
            classifier_on_meta({**config("bert"), "hidden_size": "wide"}, place)


# What is said of names ---------------------------------------------------------------------


def test_every_file_of_a_family_is_listed() -> None:
    machinery = {"__init__", "family", "known", "generic", "symmetry"}
    files = {path.stem for path in Path(known.__file__).parent.glob("*.py")}
    assert files - machinery == {family.name for family in NAMED}


def test_every_architecture_of_a_family_is_among_the_variants() -> None:
    assert {one["model_type"] for one in VARIANTS.values()} == set(FAMILY_OF_TYPE)
    assert len({family.name for family in NAMED}) == len(NAMED)


@every_unit
@every_variant
def test_a_family_knows_every_tensor(variant: str, unit: Unit) -> None:
    """Head, pooler or below the prefix; and one linear layer gives the outputs."""
    family, made = family_of(config(variant)), planned(variant, unit)
    names = list(parameters_of(made))
    assert family.prefix == f"{made.base_model_prefix}."
    for name in names:
        kinds = [family.is_head(name), family.is_pooler(name), name.startswith(family.prefix)]
        assert any(kinds), name
        assert not (kinds[0] and any(kinds[1:])), name
    final = final_module(made, family, variant)
    if "text_head" in config(variant) and unit == "row":
        assert isinstance(final, Words | TiedWords)
        return
    assert isinstance(final, torch.nn.Linear)
    assert final.out_features == 3
    top = family.row if unit == "row" else family.word
    assert top is not None
    assert {name.partition(".")[0] for name in names if family.is_head(name)} == {*top.modules}
    assert final is made.get_submodule(top.final)


@every_unit
@every_variant
def test_no_tensor_of_a_family_has_two_names(variant: str, unit: Unit) -> None:
    """But for those that the family says are one."""
    made = planned(variant, unit)
    named = to_family_names(made, dict(made.named_parameters(remove_duplicate=False)))
    assert len({id(tensor) for tensor in named.values()}) == len(named)


@every_variant
def test_the_count_of_heads_is_where_the_family_says(variant: str) -> None:
    settings = planned(variant, "row").config.to_dict()
    assert settings[family_of(config(variant)).heads] == 2


@every_variant
def test_the_embeddings_of_tokens_are_those_that_transformers_reads(variant: str) -> None:
    made = planned(variant, "row")
    family = family_of(config(variant))
    if family.inputs == "text":
        words = dict(made.named_parameters())[family.token_embeddings]
        assert words is made.get_input_embeddings().weight


def test_a_table_has_no_name_that_no_configuration_leads_to() -> None:
    for family in NAMED:
        there = {
            LAYER_NUMBER.sub(".{layer}.", name, count=1)
            for variant in VARIANTS
            if family_of(config(variant)) is family
            for unit in UNITS
            if unit == "row" or family.word is not None
            for name in split_parts(family, parameters_of(planned(variant, unit)))
        }
        said = {*family.axes, *(name for top in family.tops for name in top.axes)}
        assert said == there, family.name


# Symmetries --------------------------------------------------------------------------------


def without(axes: Axes, name: str, axis: int) -> Axes:
    kept = tuple(None if at == axis else group for at, group in enumerate(axes[name]))
    return {**axes, name: kept}


@pytest.mark.parametrize("what", MOVES)
@every_unit
@every_variant
def test_moving_a_group_through_all_its_tensors_changes_nothing(
    variant: str, unit: Unit, what: str
) -> None:
    """And through all but any one of them it does: no entry of the table is idle."""
    made, moves = loud(variant, unit), MOVES[what]
    state = tensors(made)
    axes = axes_of(family_of(config(variant)), state, unit)
    assert axes.keys() == state.keys()
    before = logits(made, state)
    assert before.abs().max() > 0.1
    torch.testing.assert_close(logits(made, moved(state, axes, moves)), before, rtol=0, atol=1e-10)
    kinds = {in_any_layer(name): name for name in reversed(axes)}
    idle = {
        name
        for name in kinds.values()  # layers are alike: the first that has one will do
        for axis, group in enumerate(axes[name])
        if group and group_of(group) in moves
        for after in [logits(made, moved(state, without(axes, name, axis), moves))]
        if (after - before).abs().max() < 1e-7
    }
    # what a key's bias adds to a score is the same for all keys, unless positions read it, too
    blind = ("key.bias", "k_lin.bias", "k_proj.bias", "pos_key_proj.bias", "attn.k.bias")
    assert all(name.endswith(blind) for name in idle), idle


def test_a_tensor_that_no_table_has_is_named() -> None:
    made = loud("bert", "row")
    state = tensors(made)
    family = family_of(config("bert"))
    with mistake(IncompatibleWeights, "bert.adapter"):
        axes_of(family, {**state, "bert.adapter": torch.zeros(16)})
    up = "bert.encoder.layer.1.intermediate.dense.bias"
    with mistake(IncompatibleWeights, "24 ffn.1"):
        axes_of(family, {**state, up: torch.zeros(23)})


# Classifiers of words ----------------------------------------------------------------------


@every_family
def test_a_tagger_is_built_of_exactly_its_tensors(taggers: Minis, family: str) -> None:
    checkpoint = open_checkpoint(taggers(family)["a"])
    assert checkpoint.labels == tuple(TAGS)
    check_ready(checkpoint, unit="word")
    made = build_model(checkpoint.config, checkpoint.weights, checkpoint.source, unit="word")
    parameters = parameters_of(made)
    assert parameters.keys() == set(checkpoint.weights)
    assert all(torch.equal(parameters[name], checkpoint.weights[name]) for name in parameters)
    with torch.no_grad():
        assert made(input_ids=IDS).logits.shape == (*IDS.shape, len(TAGS))


@every_family
def test_the_base_of_a_tagger_is_found_under_its_names(taggers: Minis, family: str) -> None:
    base, tagger = (open_checkpoint(taggers(family)[name]) for name in ("base", "a"))
    pooler = base.family.is_pooler  # a base need not have it, and these have none
    body = {name for name in tagger.weights if not (is_head(name) or pooler(name))}
    aligned = aligned_base(base, tagger)
    assert set(aligned.weights) == body
    assert set(new_in_experts(aligned, tagger)) == set(tagger.weights) - body
    encoder = encoder_of(base, unit="word")
    assert set(encoder.weights) == body
    assert all(torch.equal(encoder.weights[name], aligned.weights[name]) for name in body)


@every_family
def test_the_head_of_a_tagger_is_its_last_linear_layer(taggers: Minis, family: str) -> None:
    checkpoint = open_checkpoint(taggers(family)["a"])
    made: Any = build_model(checkpoint.config, checkpoint.weights, checkpoint.source, unit="word")
    order = [3, 0, 4, 1, 2]
    head = final_head(checkpoint, order)
    assert head is not None
    with torch.no_grad():
        found = made(input_ids=IDS, output_hidden_states=True)
        last = found.hidden_states[-1]
        under = made.head(last) if hasattr(made, "head") else last
    read = under.numpy() @ head.weight.T + head.bias
    np.testing.assert_allclose(read, found.logits.numpy()[..., order], rtol=0, atol=1e-5)


@pytest.mark.parametrize("said", [True, False], ids=["by config.json", "by tensors"])
@every_family
def test_a_classifier_of_the_other_unit_is_one_line(
    minis: Minis, taggers: Minis, family: str, said: bool
) -> None:
    folders: tuple[tuple[Path, Unit], ...] = (
        (minis(family)["a"], "word"),
        (taggers(family)["a"], "row"),
    )
    if family == "modernbert" and not said:
        pytest.skip("tensors of both are the same")
    for folder, unit in folders:
        checkpoint = open_checkpoint(folder)
        settings = {k: v for k, v in checkpoint.config.items() if said or k != "architectures"}
        with mistake(BrokenCheckpoint, folder):
            build_model(settings, checkpoint.weights, str(folder), unit=unit)


# A family from one file -------------------------------------------------------------------

ERNIE = """
from harness.checkpoints.families.family import POOLED, WIDTH, Family, embeddings, layers, linear
from harness.checkpoints.families.known import add_family

add_family(
    Family(
        name="ernie",
        model_types=("ernie",),
        prefix="ernie.",
        pooler="ernie.pooler",
        axes={
            **embeddings("ernie.embeddings.", "word", "position", "token_type"),
            **layers("ernie.encoder.layer."),
            **linear("ernie.pooler.dense", POOLED, WIDTH),
        },
    )
)
"""


def test_a_family_is_one_file(
    tmp_path: Path, as_found: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """What no table knows cannot be turned; with the file it is, and says what it said."""
    base = model(tmp_path / "base", family="ernie")
    experts = [
        str(model(tmp_path / one, ["no", "yes"], family="ernie", seed=seed, near=base))
        for seed, one in enumerate("ab", start=1)
    ]
    command = ["merge", *experts, "--base", str(base), "--premerge", "rotation"]
    command += ["--merger", "linear:weights=0:1"]
    refused([*command, "--out", tmp_path / "generic"], HarnessError, "symmetries ernie")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "ernie.py").write_text(ERNIE)
    try:
        assert main(["list", "families", "--json", "--plugins", str(mine)]) == 0
        entry = json.loads(capsys.readouterr().out)[-1]
        assert entry["name"] == "ernie"
        assert {"width", "ffn", "qk", "vo", "pooled"} == {*entry["symmetries"]}
        assert main([*command, "--plugins", str(mine), "--out", str(tmp_path / "out")]) == 0
        merged, second = (open_checkpoint(one) for one in (tmp_path / "out", experts[1]))
        said = [
            build_model(one.config, one.weights, one.source)(input_ids=IDS).logits.detach()
            for one in (merged, second)
        ]
        torch.testing.assert_close(*said, rtol=0, atol=1e-6)
        query = "ernie.encoder.layer.0.attention.self.query.weight"
        assert not torch.allclose(merged.weights[query], second.weights[query], atol=1e-3)
    finally:
        FAMILY_OF_TYPE.pop("ernie", None)


def test_two_families_of_one_model_type_are_refused() -> None:
    add_family(FAMILY_OF_TYPE["bert"])  # as it is: nothing
    with mistake(BadOption, "bert", "other"):
        add_family(replace(FAMILY_OF_TYPE["bert"], name="other"))


def test_a_family_may_be_edited_and_loaded_again(tmp_path: Path, as_found: None) -> None:
    """As in a notebook; a function of the file is another one after each time, too."""
    file = tmp_path / "ernie.py"
    text = ERNIE.replace('name="ernie"', 'name="ernie", make=lambda config, unit: None')
    try:
        for pooler in ("ernie.pooler", "ernie.other"):
            file.write_text(text.replace('pooler="ernie.pooler"', f'pooler="{pooler}"'))
            load_plugins(tmp_path)
            assert FAMILY_OF_TYPE["ernie"].pooler == pooler
    finally:
        FAMILY_OF_TYPE.pop("ernie", None)


def test_every_family_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "families"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "model_types", "inputs", "units", "symmetries"]
    assert [line.split()[0] for line in lines] == [family.name for family in NAMED]
    assert main(["list", "families", "--json"]) == 0
    entries = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert entries["roberta"]["model_types"] == ["roberta", "xlm-roberta", "camembert"]
    assert (entries["vit"]["inputs"], entries["vit"]["units"]) == ("image", ["row"])
    assert {"rope", "vo"} < {*entries["modernbert"]["symmetries"]}
    assert "qk" not in entries["modernbert"]["symmetries"]
    assert {"heads", "qk"} < {*entries["mpnet"]["symmetries"]}


# What is not stored as the table has it ----------------------------------------------------


def test_a_method_that_goes_by_a_table_leaves_what_a_model_says(
    minis: Minis, tmp_path: Path
) -> None:
    """Through the door: fused matrices come apart and are written as they were."""
    folders = minis("modernbert")
    recipe = Recipe(
        merger=parse_choice("linear:weights=0:1"),
        experts=(str(folders["a"]), str(folders["b"])),
        base=str(folders["base"]),
        premerge=(parse_choice("permutation:heads=true"), parse_choice("rotation")),
    )
    merge(recipe, out=tmp_path / "out")
    merged, second = (open_checkpoint(one) for one in (tmp_path / "out", folders["b"]))
    raw = [load_file(Path(one) / "model.safetensors") for one in (tmp_path / "out", folders["b"])]
    assert {n: t.shape for n, t in raw[0].items()} == {n: t.shape for n, t in raw[1].items()}
    with torch.no_grad():
        said = [
            build_model(one.config, one.weights, one.source)(input_ids=IDS[1:2]).logits
            for one in (merged, second)
        ]
    torch.testing.assert_close(*said, rtol=0, atol=1e-5)
    assert any(not torch.allclose(raw[0][n], raw[1][n], atol=1e-3) for n in raw[0])


def test_heads_that_all_layers_share_an_order_of_go_together(minis: Minis) -> None:
    """One layer's alone would leave the biases of positions with other heads."""
    made = loud("mpnet", "row")
    state = tensors(made)
    axes = axes_of(family_of(config("mpnet")), state)
    one_layer = {name: one for name, one in MOVES["heads"].items() if name in ("qk.0", "vo.0")}
    before = logits(made, state)
    assert (logits(made, moved(state, axes, one_layer)) - before).abs().max() > 1e-3
    folders = minis("mpnet")
    recipe = Recipe(
        merger=Choice("average"),
        experts=(str(folders["a"]), str(folders["b"])),
        premerge=(parse_choice("permutation:heads=true,layers=first:1"),),
    )
    with mistake(BadOption, "first:1", "mpnet", "one order", "expected all"):
        plan(recipe)


# Architectures without a file --------------------------------------------------------------


#: what is known by rules alone, with what stands beside the encoder
BY_RULES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "nystromformer": (BERT_LIKE, {"classifier"}),
    "convbert": (BERT_LIKE, {"classifier"}),
    "deberta": (BERT_LIKE, {"pooler", "classifier"}),
}
NOT_BY_RULES: dict[str, dict[str, Any]] = {
    "funnel": {"d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 24, "block_sizes": [1]},
    "xlnet": {"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 24, "vocab_size": 45},
}


@every_unit
@pytest.mark.parametrize("name", BY_RULES)
def test_a_family_is_told_by_rules(name: str, unit: Unit) -> None:
    settings, beside = BY_RULES[name]
    given = {"model_type": name, **settings, "num_labels": 3}
    family = family_of(given)
    assert family.name == "generic"
    made: Any = classifier_on_meta(given, name, unit=unit)
    names = [parameter for parameter, _ in made.named_parameters()]
    final = made.get_submodule(family.final(names))
    assert final.out_features == 3
    outside = {one.partition(".")[0] for one in names if not one.startswith(family.prefix)}
    assert outside <= beside
    assert {one.partition(".")[0] for one in names if family.is_head(one)} == {"classifier"}
    with mistake(UnknownName, name):
        axes_of(family, {})


@pytest.mark.parametrize("name", NOT_BY_RULES)
def test_an_architecture_that_rules_do_not_fit_is_refused_by_name(name: str) -> None:
    with mistake(UnknownName, "here", name):
        family_of({"model_type": name, **NOT_BY_RULES[name]}, "here")


def test_features_of_funnel_depend_on_the_batch_of_a_row() -> None:
    """So it is refused, and the line says why: its pooling takes padding for tokens."""
    config = {"model_type": "funnel", **NOT_BY_RULES["funnel"], "block_sizes": [1, 2]}
    with mistake(UnknownName, "here", "funnel", "padding", "batch"):
        family_of(config, "here")
    torch.manual_seed(0)
    made = network.new_classifier({**config, "vocab_size": 45}, "here").eval()
    row = torch.tensor([[5, 6, 7]])
    padded = {"input_ids": torch.nn.functional.pad(row, (0, 4))}
    padded["attention_mask"] = (padded["input_ids"] > 0).long()
    with torch.no_grad():
        for one in made.parameters():
            one.add_(torch.randn_like(one), alpha=0.3)
        alone, beside = made(input_ids=row).logits, made(**padded).logits
    assert (alone - beside).abs().max() > 1e-3


@pytest.fixture(scope="module", params=["convbert", "bert"])
def merged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A merge of two experts, with the folders that it was made of."""
    root, name = tmp_path_factory.mktemp(request.param), request.param
    base = model(root / "base", family=name)
    experts = [
        str(model(root / one, ["negative", "positive"], family=name, seed=seed, near=base))
        for seed, one in enumerate("ab", start=1)
    ]
    command = ["merge", *experts, "--base", str(base), "--tasks", "glue/sst2"]
    assert main([*command, "--merger", "ties", "--out", str(root / name)]) == 0
    return root / name


def test_a_merge_and_its_records_say_what_was_told_by_rules(merged: Path, tmp_path: Path) -> None:
    data = tmp_path / "data" / "glue" / "sst2"
    data.mkdir(parents=True)
    rows = [{"sentence": f"word{i} word{2 * i}", "label": i % 2} for i in range(8)]
    (data / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    places = ["--data-dir", str(tmp_path / "data"), "--output-path", str(tmp_path / "records")]
    command = ["evaluate", "--model", str(merged), "--protocols", "current"]
    assert main([*command, *places]) == 0
    records = [json.loads(path.read_text()) for path in tmp_path.rglob("records/**/*.json")]
    assert {record["role"] for record in records} == {"merged", "base", "expert", "ensemble"}
    said = [json.loads((merged / "merge.json").read_text()), *(r["settings"] for r in records)]
    expected = "generic" if merged.name == "convbert" else None
    assert all(one.get("family") == expected for one in said)
