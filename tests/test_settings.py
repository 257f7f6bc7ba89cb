"""What config.json decides of what a model computes, and what it says besides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.checkpoints.families.known import FAMILIES
from harness.checkpoints.network import configuration
from harness.checkpoints.settings import check_settings, heads_of, settings_of
from harness.errors import BrokenCheckpoint, IncompatibleWeights
from harness.types import Checkpoint
from tests.conftest import FAMILIES as SIZES

GENERIC = {"model_type": "albert", "num_attention_heads": 2, "hidden_size": 16}
GENERIC |= {"embedding_size": 16, "intermediate_size": 24, "vocab_size": 45}


def named(source: str, config: dict[str, Any]) -> Checkpoint:
    return Checkpoint(source, Path(source), config, {}, None)


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
}


@pytest.mark.parametrize(
    ("kind", "key", "mine", "theirs"),
    [(kind, *one) for kind, found in DIFFERENT.items() for one in found],
)
def test_models_that_compute_something_else_are_told_apart(
    kind: str, key: str, mine: Any, theirs: Any
) -> None:
    config = GENERIC if kind == "albert" else {"model_type": kind}
    with pytest.raises(IncompatibleWeights, match=f"^two has {key} .*, expected {key} .* as one: "):
        check({**config, key: mine}, {**config, key: theirs})
    check({**config, key: mine}, {**config, key: mine})


@pytest.mark.parametrize("kind", [*DIFFERENT])
def test_nothing_else_tells_models_apart(kind: str) -> None:
    config = GENERIC if kind == "albert" else {"model_type": kind}
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
    assert heads_of(named("one", heads[0])) == 4
    assert heads_of(named("one", heads[1])) == 12


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
def test_every_setting_is_a_key_of_transformers_or_has_a_default(family: Any) -> None:
    known = configuration({"model_type": family.model_types[0]}, "it").to_dict()
    for key, value in family.settings.items():
        assert key in known or value is not None, key
    assert family.heads in family.settings
    sizes = SIZES.get(family.model_types[0], {})
    assert settings_of(named("it", {"model_type": family.model_types[0], **sizes}))[family.heads]


@pytest.mark.parametrize("heads", [0, -2, 2.0, "2", True, [2]])
def test_a_number_of_heads_is_a_whole_number_above_nothing(heads: Any) -> None:
    config = {"model_type": "bert", "num_attention_heads": heads}
    with pytest.raises(BrokenCheckpoint, match=r"^one has num_attention_heads .*at least 1"):
        check(config, config)
