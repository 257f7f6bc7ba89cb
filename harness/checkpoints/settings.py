"""The settings in config.json that decide, beside the weights, what a model computes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from harness.checkpoints.families.family import GENERIC, QK
from harness.checkpoints.families.symmetry import in_any_layer
from harness.checkpoints.network import configuration
from harness.errors import BrokenCheckpoint, IncompatibleWeights
from harness.types import Checkpoint
from harness.weights import specs

IDLE = re.compile(
    r"_.*|.*drop.*|name_or_path|model_type|architectures|transformers_version|(torch_)?dtype"
    r"|id2label|label2id|num_labels|problem_type|finetuning_task|task_specific_params|auto_map"
    r"|init.*_(range|std|factor)|init_std|gradient_checkpointing|use_cache|chunk_size_feed_forward"
    r"|(bos|eos|decoder_start|forced_.os)_token_id|tie_.*|legacy|torchscript|onnx_export"
    r"|output_(attentions|hidden_states|past)|(use_)?return_dict|tokenizer_class"
)
"""Keys of a configuration that do not decide what a classifier of given weights computes: names,
versions and types, the head's labels, training, generation, and further outputs."""
PADDING = "pad_token_id"
"""The key of the token that pads rows. A base that is a decoder may lack it, which decides nothing:
no encoder reads padding, and its classifier gets that of the experts."""
SIZES = re.compile(
    r".*vocab_size|.*(hidden|embedding|intermediate|projection)_(size|dim)|dim"
    r"|(num_(\w+_)?|n_)layers|is_encoder_decoder"
)
"""Keys that follow from the shapes and names of tensors, in a family with a table of axes."""


def check_settings(models: Sequence[Checkpoint]) -> None:
    """Raise IncompatibleWeights, naming the first that differs, unless all models of one
    architecture compute the same function of their weights.

    Raises BrokenCheckpoint for attention heads that a model of these weights cannot have.
    """
    for model in models:
        _check_heads(model)
    first = models[0]
    settings = _deciding(first.config, first)
    if all(_deciding(other.config, other) == settings for other in models[1:]):
        return  # without a look at defaults: transformers takes long to import
    expected = settings_of(first)
    for other in models[1:]:
        found = settings_of(other)
        for key in expected | found:
            bare = first.family.decoder and key == PADDING and other.labels is None
            if found.get(key) != expected.get(key) and not (bare and found.get(key) is None):
                raise IncompatibleWeights(
                    f"{other.source} has {_shown(other, key, found.get(key))}, expected "
                    f"{_shown(first, key, expected.get(key))} as {first.source} has: models that "
                    "use their weights differently cannot be merged or compared"
                )


def settings_of(model: Checkpoint) -> dict[str, Any]:
    """The settings of a configuration that decide what is computed, with transformers' defaults.

    Of a generic family these may be any keys, else only those of transformers' class of the
    configuration and of `Family.settings`: models read no others.
    """
    family = model.family
    parsed = configuration(model.config, model.source)
    values = {**family.settings, **parsed.to_dict()}
    if family.name != GENERIC:
        values = {key: values.get(key) for key in {**family.settings, **type(parsed)().to_dict()}}
    if isinstance(kinds := values.get("pos_att_type"), list):  # DeBERTa's `p2c|c2p`, in any order
        values["pos_att_type"] = sorted(map(str, kinds))
    return _deciding(values, model)


def _deciding(config: Mapping[str, Any], model: Checkpoint) -> dict[str, Any]:
    """A configuration without `IDLE` keys and, if the family has a table of axes, `SIZES` keys;
    those of `Family.settings` stay."""
    idle = [IDLE, SIZES] if model.family.axes else [IDLE]
    own = model.family.settings
    dropped = [key for key in config if any(one.fullmatch(key) for one in idle) and key not in own]
    return {key: value for key, value in config.items() if key not in dropped}


def attention_head_count(model: Checkpoint) -> int:
    """The number of attention heads."""
    key = model.family.heads
    return int(model.config[key] if key in model.config else settings_of(model)[key])


def _shown(model: Checkpoint, key: str, value: Any) -> str:
    note = "" if key in model.config else " (not in its config.json)"
    return f"{key} {value!r:.80}{note}"


def _check_heads(model: Checkpoint) -> None:
    """Raise BrokenCheckpoint unless the number of attention heads is a whole number above 0 that
    divides the rows of queries' matrices."""
    family = model.family
    heads = model.config.get(family.heads)
    if heads is None or (family.name == GENERIC and isinstance(heads, list)):
        return  # transformers' default, or a number for each stage
    if not isinstance(heads, int) or isinstance(heads, bool) or heads < 1:
        raise BrokenCheckpoint(
            f"{model.source} has {family.heads} {heads!r:.80} in its config.json, expected a "
            "whole number of at least 1"
        )
    for name, spec in specs(model.weights).items():
        axes = family.axes.get(in_any_layer(name))
        if axes and axes[0] == QK and spec.shape and spec.shape[0] % heads:
            raise BrokenCheckpoint(
                f"{model.source} has {heads} attention heads, and '{name}' is {spec.shape}; "
                "expected a number of heads that divides its rows"
            )
