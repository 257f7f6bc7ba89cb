"""What config.json decides, beside the weights, of what a model computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from harness.checkpoints.families.family import QK, SETTINGS
from harness.checkpoints.families.generic import GENERIC
from harness.checkpoints.families.known import family_of
from harness.checkpoints.families.symmetry import in_any_layer
from harness.checkpoints.network import configuration
from harness.errors import BrokenCheckpoint, IncompatibleWeights
from harness.types import Checkpoint
from harness.weights import specs


def check_settings(models: Sequence[Checkpoint]) -> None:
    """Raise IncompatibleWeights, naming the first that differs, unless all models of one
    architecture compute the same function of their weights.

    Raises BrokenCheckpoint for attention heads that a model of these weights cannot have.
    """
    for model in models:
        _check_heads(model)
    first = models[0]
    family = family_of(first.config, first.source)
    keys = {*family.settings, *SETTINGS}  # which transformers reads by either name
    said = [{key: model.config[key] for key in keys & model.config.keys()} for model in models]
    if family.name != GENERIC and all(one == said[0] for one in said):
        return  # and transformers, which takes long to import, has nothing to add
    expected = settings_of(first)
    for other in models[1:]:
        for key, value in settings_of(other).items():
            if value != expected[key]:
                raise IncompatibleWeights(
                    f"{other.source} has {_shown(other, key, value)}, expected "
                    f"{_shown(first, key, expected[key])} as {first.source}: weights that are read "
                    "differently cannot be merged or compared; take models of one configuration"
                )


def settings_of(model: Checkpoint) -> dict[str, Any]:
    """What a configuration says of the settings of its family, or stands for if it does not."""
    family = family_of(model.config, model.source)
    read = configuration(model.config, model.source)
    said = {key: getattr(read, key, value) for key, value in family.settings.items()}
    # DeBERTa's `p2c|c2p`, in any order
    return {k: sorted(map(str, v)) if isinstance(v, list) else v for k, v in said.items()}


def heads_of(model: Checkpoint) -> int:
    """The number of attention heads."""
    key = family_of(model.config, model.source).heads
    return int(model.config[key] if key in model.config else settings_of(model)[key])


def _shown(model: Checkpoint, key: str, value: Any) -> str:
    told = "" if key in model.config else " (not in its config.json)"
    return f"{key} {value!r:.80}{told}"


def _check_heads(model: Checkpoint) -> None:
    """Raise BrokenCheckpoint for a number of heads that is none, or cannot share the queries."""
    family = family_of(model.config, model.source)
    heads = model.config.get(family.heads)
    if heads is None or (family.name == GENERIC and isinstance(heads, list)):
        return  # transformers' default, or as many as each of its stages has
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
