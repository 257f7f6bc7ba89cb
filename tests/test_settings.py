"""What config.json decides of what a model computes, and what it says besides."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness import Checkpoint
from harness.checkpoints.families.generic import family_of
from harness.checkpoints.families.known import FAMILIES
from harness.checkpoints.layout import MERGE_LAYOUT
from harness.checkpoints.network import configuration
from harness.checkpoints.settings import attention_head_count, check_settings, settings_of
from harness.cli import main
from harness.errors import BrokenCheckpoint, HarnessError, IncompatibleWeights, UnknownName
from harness.folders import FILES
from tests.conftest import FAMILIES as SIZES
from tests.conftest import model
from tests.mistakes import mistake, refused

GENERIC = {"model_type": "convbert", "num_attention_heads": 2, "hidden_size": 16}
GENERIC |= {"embedding_size": 16, "intermediate_size": 24, "vocab_size": 45}


def named(source: str, config: dict[str, Any]) -> Checkpoint:
    return Checkpoint(source, Path(source), config, family_of(config), {}, None)


def check(first: dict[str, Any], second: dict[str, Any]) -> None:
    check_settings([named("one", first), named("two", second)])


#: by model_type: a setting, a value for one model, and another for the other
DIFFERENT: dict[str, list[tuple[str, Any, Any]]] = {
    "bert": [
        ("num_attention_heads", 2, 4),
        ("hidden_act", "gelu", "relu"),
        ("layer_norm_eps", 1e-12, 1e-5),
        ("position_embedding_type", "relative_key", "relative_key_query"),
        ("is_decoder", False, True),
    ],
    "roberta": [("num_attention_heads", 2, 4), ("pad_token_id", 1, 0)],
    "distilbert": [("n_heads", 2, 4), ("activation", "gelu", "relu")],
    "deberta-v2": [
        ("pos_att_type", ["p2c"], ["c2p", "p2c"]),
        ("relative_attention", True, False),
        ("position_buckets", 8, 16),
        ("norm_rel_ebd", "none", "layer_norm"),
        ("pooler_hidden_act", "gelu", "tanh"),
    ],
    "electra": [("num_attention_heads", 2, 4), ("hidden_act", "gelu", "relu")],
    "albert": [("num_attention_heads", 2, 4), ("num_hidden_layers", 2, 4)],
    "convbert": [("num_attention_heads", 2, 4), ("num_hidden_layers", 2, 4)],
}


@pytest.mark.parametrize(
    ("kind", "key", "mine", "theirs"),
    [(kind, *one) for kind, found in DIFFERENT.items() for one in found],
)
def test_models_that_compute_something_else_are_told_apart(
    kind: str, key: str, mine: Any, theirs: Any
) -> None:
    config = GENERIC if kind == "convbert" else {"model_type": kind}
    with mistake(IncompatibleWeights, "two", key, key, "one"):
        check({**config, key: mine}, {**config, key: theirs})
    check({**config, key: mine}, {**config, key: mine})


@pytest.mark.parametrize("kind", [*DIFFERENT])
def test_nothing_else_tells_models_apart(kind: str) -> None:
    config = GENERIC if kind == "convbert" else {"model_type": kind}
    besides = {
        "attention_probs_dropout_prob": 0.0,
        "attention_dropout": 0.3,
        "classifier_dropout": 0.5,
        "problem_type": "regression",
        "id2label": {"0": "x", "1": "y", "2": "z"},
        "torch_dtype": "float16",
        "dtype": "bfloat16",
        "_name_or_path": "somewhere",
        "architectures": ["BertModel"],
        "transformers_version": "4.10.0",
        "use_cache": False,
        "initializer_range": 0.5,
        "gradient_checkpointing": True,
    }
    check(config, {**config, **besides})


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("bert", {"num_attention_heads": 12, "layer_norm_eps": 1e-12, "hidden_act": "gelu"}),
        ("bert", {"position_embedding_type": "absolute", "is_decoder": False}),
        ("roberta", {"pad_token_id": 1}),
        ("distilbert", {"n_heads": 12, "activation": "gelu"}),
        ("deberta-v2", {"position_buckets": -1, "share_att_key": False, "norm_rel_ebd": "none"}),
    ],
)
def test_what_is_not_said_is_the_default_of_transformers(kind: str, said: dict[str, Any]) -> None:
    check({"model_type": kind}, {"model_type": kind, **said})


def test_the_ways_to_spell_a_setting_are_one() -> None:
    deberta = {"model_type": "deberta-v2"}
    check({**deberta, "pos_att_type": "p2c|c2p"}, {**deberta, "pos_att_type": ["c2p", "p2c"]})
    heads = {"model_type": "distilbert", "n_heads": 4}, {"model_type": "distilbert"}
    check(heads[0], {**heads[1], "num_attention_heads": 4})
    assert attention_head_count(named("one", heads[0])) == 4
    assert attention_head_count(named("one", heads[1])) == 12


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
def test_a_family_names_the_settings_that_transformers_does_not(family: Any) -> None:
    known = configuration({"model_type": family.model_types[0]}, "it").to_dict()
    # and those that count nothing elsewhere: layers that are one, what rows of a decoder end with
    counting = {"num_hidden_layers", "eos_token_id", "tie_word_embeddings"}
    assert family.settings.keys() & known.keys() <= counting
    sizes = SIZES.get(family.model_types[0], {})
    assert settings_of(named("it", {"model_type": family.model_types[0], **sizes}))[family.heads]


SMALL = {
    "bert": {},
    "mpnet": {"pad_token_id": 0},
    "albert": {"embedding_size": 8},
    "deberta-v2": {},
    "convbert": {"embedding_size": 16, "pad_token_id": 0},
}
#: keys of config.json that no shape of a tensor tells, as one expert alone says them
EDITED = [
    ("bert", {"hidden_act": "relu"}),
    ("bert", {"pad_token_id": 3}),
    ("mpnet", {"relative_attention_num_buckets": 16}),
    ("mpnet", {"layer_norm_eps": 1e-5}),
    ("albert", {"hidden_act": "relu"}),
    ("albert", {"num_hidden_layers": 3}),
    ("convbert", {"a_key_of_tomorrow": 3}),
    ("deberta-v2", {"max_position_embeddings": 20}),
    ("convbert", {"conv_kernel_size": 7}),
    ("convbert", {"head_ratio": 1}),
]


def say(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(("kind", "said"), EDITED)
@pytest.mark.parametrize("role", ["expert", "base"])
def test_models_whose_configurations_differ_are_not_merged(
    kind: str,
    said: dict[str, Any],
    role: str,
    tmp_path: Path,
) -> None:

    labels = {"base": None, "a": ["no", "yes"], "b": ["no", "yes"]}
    for name, ones in labels.items():
        model(tmp_path / name, ones, family=kind, **SMALL[kind])
    say(tmp_path / ("b" if role == "expert" else role), **said)
    command = ["merge", tmp_path / "a", tmp_path / "b", "--merger", "average"]
    ((key, value),) = said.items()
    at_fault = tmp_path / ("b" if role == "expert" else role)
    command += ["--base", tmp_path / "base", "--out", tmp_path / "m"]
    refused(command, HarnessError, at_fault, key, repr(value), tmp_path / "a")


def test_a_configuration_that_says_more_of_what_decides_nothing_is_merged(tmp_path: Path) -> None:
    """One of an old version says less, and one of a trainer more."""
    for name in "ab":
        model(tmp_path / name, ["no", "yes"], family="mpnet", pad_token_id=0)
    kept = ("model_type", "vocab_size", "num_attention_heads", "num_hidden_layers", "hidden_size")
    kept += ("intermediate_size", "max_position_embeddings", "id2label", "pad_token_id")
    path = tmp_path / "a" / "config.json"
    told = json.loads(path.read_text())
    path.write_text(json.dumps({key: told[key] for key in kept}))
    more = {"finetuning_task": "rte", "hidden_dropout_prob": 0.3, "use_cache": False}
    say(tmp_path / "b", **more, transformers_version="4.0.0", torch_dtype="float32")
    command = ["merge", str(tmp_path / "a"), str(tmp_path / "b"), "--merger", "average"]
    assert main([*command, "--out", str(tmp_path / "m")]) == 0


@pytest.mark.parametrize(
    ("said", "named"),
    [({"to_dict": 1}, "not callable"), ({"dtype": "é"}, "dtype 'é'"), ({"dtype": [1]}, "dtype '[")],
)
def test_a_configuration_that_spoils_its_class_is_refused(
    said: dict[str, Any], named: str, tmp_path: Path
) -> None:
    for name in "ab":
        model(tmp_path / name, ["no", "yes"])
    say(tmp_path / "a", **said)
    command = ["merge", tmp_path / "a", tmp_path / "b", "--merger", "average"]
    error = refused([*command, "--out", tmp_path / "m"], HarnessError, tmp_path / "a")
    assert named in error
    assert not (tmp_path / "m").exists()


def test_how_a_model_is_run_is_no_part_of_what_is_read() -> None:
    said = {"chunk_size_feed_forward": "16", "output_hidden_states": True, "return_dict": False}
    read = configuration({**GENERIC, **said}, "here")
    assert (read.chunk_size_feed_forward, read.output_hidden_states) == (0, False)


def test_a_model_that_gives_all_its_layers_is_tuned_and_scored(tmp_path: Path) -> None:
    """As some published ones do: the Trainer would take them for predictions."""
    model(tmp_path / "base", ["no", "yes"])
    say(tmp_path / "base", output_hidden_states=True, output_attentions=True)
    tuned = ["finetune", "--base", str(tmp_path / "base"), "--task", "embedded/comparison"]
    limits = ["--limit", "20", "--epochs", "1", "--out", str(tmp_path / "tuned")]
    assert main([*tuned, *limits]) == 0
    scored = ["evaluate", "--model", str(tmp_path / "tuned"), "--protocols", "current"]
    assert main([*scored, "--limit", "10", "--output-path", str(tmp_path / "records")]) == 0


ENCODER_DECODERS: dict[str, dict[str, Any]] = {
    "bart": {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1},
    "mbart": {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1},
}


@pytest.mark.parametrize("hidden", [False, True], ids=["plain", "hidden"])
@pytest.mark.parametrize("verb", ["merge", "evaluate", "finetune"])
@pytest.mark.parametrize("kind", ENCODER_DECODERS)
def test_an_encoder_decoder_is_refused_by_name(
    kind: str, verb: str, hidden: bool, tmp_path: Path
) -> None:
    model(tmp_path / "a", ["no", "yes"])
    config = {"model_type": kind, **ENCODER_DECODERS[kind], "vocab_size": 45, "num_labels": 2}
    told = {"is_encoder_decoder": False} if hidden else {}
    (tmp_path / "a" / "config.json").write_text(json.dumps({**config, **told}))
    words = {
        "merge": ["merge", str(tmp_path / "a"), str(tmp_path / "a"), "--out", str(tmp_path / "m")],
        "evaluate": ["evaluate", "--model", str(tmp_path / "a"), "--tasks", "glue/rte"],
        "finetune": ["finetune", "--base", str(tmp_path / "a"), "--tasks", "glue/rte"],
    }
    refused(
        [*words[verb], *(["--out", str(tmp_path / "m")] * (verb == "finetune"))],
        UnknownName,
        kind,
        "encoder-decoder",
    )


def test_a_kept_head_is_of_the_same_function(tmp_path: Path) -> None:
    for name, labels in (("a", ["no", "yes"]), ("b", ["x", "y", "z"])):
        model(tmp_path / name, labels)
    command = ["merge", str(tmp_path / "a"), str(tmp_path / "b"), "--tasks", "glue/rte,glue/mnli"]
    assert main([*command, "--merger", "average", "--out", str(tmp_path / "m")]) == 0
    say(tmp_path / "m" / "heads" / "glue" / "rte", hidden_act="relu")
    listed = MERGE_LAYOUT.read_marker(tmp_path / "m")
    del listed[FILES]
    MERGE_LAYOUT.write(tmp_path / "m", listed)  # or it would be refused as edited
    refused(
        ["evaluate", "--model", str(tmp_path / "m")],
        IncompatibleWeights,
        "heads/glue/rte hidden_act relu hidden_act gelu",
    )


def test_an_expert_is_of_the_function_that_was_merged(tmp_path: Path) -> None:
    for name in "ab":
        model(tmp_path / name, ["no", "yes"])
    command = ["merge", str(tmp_path / "a"), str(tmp_path / "b"), "--tasks", "glue/rte"]
    assert main([*command, "--merger", "average", "--out", str(tmp_path / "m")]) == 0
    say(tmp_path / "b", hidden_act="relu")
    refused(
        ["evaluate", "--model", str(tmp_path / "m")],
        IncompatibleWeights,
        "hidden_act relu hidden_act gelu",
    )


@pytest.mark.parametrize("heads", [0, -2, 2.0, "2", True, [2]])
def test_a_number_of_heads_is_a_whole_number_above_nothing(heads: Any) -> None:
    config = {"model_type": "bert", "num_attention_heads": heads}
    with mistake(BrokenCheckpoint, "one num_attention_heads 1"):
        check(config, config)
