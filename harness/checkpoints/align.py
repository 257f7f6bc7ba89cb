"""Names of tensors: what is head and what is encoder, and a base under an expert's names."""

from __future__ import annotations

import re
from dataclasses import replace

from harness.errors import IncompatibleWeights
from harness.types import Checkpoint
from harness.weights import Lazy, specs

HEAD = re.compile(r".*(classifier|pre_classifier|classification_head)\.")
"""What the reference repositories call a head. The BERT and DeBERTa poolers are encoder."""


def is_head(name: str) -> bool:
    """Whether a tensor of this name belongs to the head."""
    return HEAD.match(name) is not None


def aligned_base(base: Checkpoint, expert: Checkpoint) -> Checkpoint:
    """The base under the names of the expert.

    A pretrained encoder is stored with or without the prefix of the model class ('bert.'), and
    with a pretraining head or none; tensors the expert has no place for are left out.
    Raises IncompatibleWeights when an encoder tensor of the expert is missing from the base.
    """
    found = specs(base.weights)
    place: dict[str, str] = {}
    for name in expert.weights:
        bare = name.partition(".")[2]
        for candidate in (name, bare):
            if candidate in found:
                place[name] = candidate
                break
    weights = Lazy(
        {new: found[old] for new, old in place.items()}, lambda new: base.weights[place[new]]
    )
    return replace(base, weights=weights)


def new_in_experts(base: Checkpoint | None, expert: Checkpoint) -> list[str]:
    """Names of the expert's tensors that no pretraining has seen: the head, and a pooler that the
    base was published without (DeBERTa-v3).

    Raises IncompatibleWeights for any other tensor that the base lacks.
    """
    fresh = []
    for name in expert.weights:
        if is_head(name):
            fresh.append(name)
        elif base and name not in base.weights and weights_take_part(expert, name):
            if not _is_pooler(name):
                raise IncompatibleWeights(
                    f"the base {base.source} has no tensor '{name}', which {expert.source} has; "
                    "expected the checkpoint that the experts were fine-tuned from"
                )
            fresh.append(name)
    return fresh


def _is_pooler(name: str) -> bool:
    return ".pooler." in name or name.startswith("pooler.")


def weights_take_part(checkpoint: Checkpoint, name: str) -> bool:
    """Whether a tensor is a parameter, as far as its type tells."""
    return specs(checkpoint.weights)[name].dtype.is_floating_point
