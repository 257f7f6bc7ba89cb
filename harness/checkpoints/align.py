"""Models of one architecture under the same names, and the tensors of an expert that are new."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from harness.checkpoints.alike import check_tokens
from harness.checkpoints.families.symmetry import in_any_layer
from harness.checkpoints.settings import PADDING, check_settings
from harness.errors import IncompatibleWeights
from harness.types import Checkpoint
from harness.weights import renamed, select, specs, union


def check_architecture(models: Sequence[Checkpoint]) -> None:
    """Raise IncompatibleWeights, naming the first that differs, unless all models are of one
    architecture, read the same tokens, and compute the same function of their weights."""
    first = models[0]
    for other in models[1:]:
        model_type, expected = other.config.get("model_type"), first.config.get("model_type")
        if model_type != expected:
            raise IncompatibleWeights(
                f"{other.source} is a {model_type} model, expected {expected} as {first.source} is"
            )
    check_tokens(models)
    check_settings(models)


def under_prefix(model: Checkpoint) -> Checkpoint:
    """The model under the names of a classifier: an encoder may be stored without the prefix."""
    family = model.family
    if any(name.startswith(family.prefix) for name in model.weights):
        return model
    beside = [name for name in model.weights if family.is_head(name) or family.is_pooler(name)]
    names = {name if name in beside else family.prefix + name: name for name in model.weights}
    return replace(model, weights=renamed(model.weights, names))


def aligned_base(base: Checkpoint, expert: Checkpoint) -> Checkpoint:
    """The base under the names of the expert.

    A pretrained encoder is stored with or without the prefix of the model class ('bert.'), and
    with a pretraining head or none; tensors that the expert lacks are left out.
    Raises IncompatibleWeights for a base with more layers than the expert.
    """
    family = expert.family
    headers = specs(base.weights)
    stored = {name: name if name in headers else family.bare(name) for name in expert.weights}
    names = {name: own for name, own in stored.items() if own in headers}
    _check_depth(base, expert, {family.bare(name) for name in headers.keys() - {*names.values()}})
    padding = {PADDING: expert.config.get(PADDING)} if family.decoder else {}
    return replace(base, weights=renamed(base.weights, names), config={**base.config, **padding})


def _check_depth(base: Checkpoint, expert: Checkpoint, rest: Collection[str]) -> None:
    """Raise IncompatibleWeights if the `rest` of the base's tensors has further layers of the kind
    that the expert has."""
    family = expert.family
    kinds = {in_any_layer(family.bare(name)) for name in expert.weights}
    for name in sorted(rest):
        kind = in_any_layer(name)
        if kind != name and kind in kinds:
            raise IncompatibleWeights(
                f"the base {base.source} has a layer with '{name}', which {expert.source} lacks; "
                "expected the checkpoint that the experts were fine-tuned from, with as many layers"
            )


def new_in_experts(base: Checkpoint | None, expert: Checkpoint) -> list[str]:
    """Names of the expert's tensors that are not pretrained: the head, and a pooler that the base
    was published without (DeBERTa-v3).

    Raises IncompatibleWeights for any other tensor that the base lacks.
    """
    family = expert.family
    fresh = []
    for name, spec in specs(expert.weights).items():
        if family.is_head(name):
            fresh.append(name)
        elif base and name not in base.weights and spec.dtype.is_floating_point:
            if not family.is_pooler(name):
                raise IncompatibleWeights(
                    f"the base {base.source} has no tensor '{name}' of {expert.source}; expected "
                    "the checkpoint that the experts were fine-tuned from"
                )
            fresh.append(name)
    return fresh


def whole_base(base: Checkpoint | None, pattern: Checkpoint) -> Checkpoint | None:
    """The base, if there is one, under the names of `pattern`, a model made from it.

    Raises IncompatibleWeights if it lacks a tensor, as the model's own would be read in its place.
    """
    if base is None:
        return None
    aligned = aligned_base(base, pattern)
    if pattern.pooling is not None:
        (pattern,) = with_shared_poolers(aligned, [pattern])
    new_in_experts(aligned, pattern)
    return aligned


def in_all(models: Sequence[Checkpoint]) -> Checkpoint:
    """The first model with the tensors that any of them has: the `pattern` of `whole_base`."""
    return replace(models[0], weights=union(*(model.weights for model in models)))


def with_shared_poolers(
    base: Checkpoint | None, models: Sequence[Checkpoint]
) -> tuple[Checkpoint, ...]:
    """Embedding models without those tensors of poolers that any of them, or the base, lacks.

    transformers initialises a pooler where a folder has none, and no embedding is read through it.
    """
    states = [model.weights for model in (*models, base) if model]
    family = models[0].family
    # RoBERTa's and MPNet's classifiers have no pooler, and their families name none
    poolers = [
        name
        for name in union(*states)
        if family.bare(name).startswith("pooler.")
        or any(map(family.is_pooler, (name, family.prefix + name)))
    ]
    lacking = {name for name in poolers if any(name not in state for state in states)}
    kept_names = [[name for name in model.weights if name not in lacking] for model in models]
    return tuple(
        replace(model, weights=select(model.weights, names))
        for model, names in zip(models, kept_names, strict=True)
    )


def new_in_any(base: Checkpoint | None, experts: Sequence[Checkpoint]) -> tuple[str, ...]:
    """Names of the tensors that, if heads are kept, are kept for every task: those that are new in
    any expert, and a pooler that not all experts have (taggers have none).

    The pooler counts as new in all of them: a base that is not given may have had none.
    """
    fresh = {name: None for expert in experts for name in new_in_experts(base, expert)}
    family = experts[0].family
    poolers = {name for expert in experts for name in expert.weights if family.is_pooler(name)}
    apart = {name for name in poolers if any(name not in expert.weights for expert in experts)}
    return (*fresh, *sorted(apart - fresh.keys()))
