"""A mergekit configuration as a recipe that gives the same numbers."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import torch

from harness.checkpoints.mergekit import Config, ModelEntry, read_config
from harness.checkpoints.open import open_checkpoint
from harness.checkpoints.tokenizer import shared_tokenizer
from harness.errors import BadOption, BadRecipe, BrokenCheckpoint
from harness.merging.recipes import Recipe
from harness.options import Option
from harness.types import Checkpoint, Choice, Scalar
from harness.weights import floating, specs


def recipe_of(values: Mapping[str, Any], path: str | Path) -> Recipe:
    """The recipe that gives the numbers mergekit 0.1.5 gives for this configuration, in float32.

    Two exceptions: in mergekit a sort decides which of several equal entries at the threshold of a
    trim stay, and its slerp follows an arc even if one tensor is all 0. Raises BadRecipe, naming
    the key, for what has no equivalent here; warns of tensors that older releases drop.
    """
    config = read_config(values, Path(path))
    if config.method not in TRANSLATED:
        raise config.unsupported_error(
            f"merge_method {config.method} has no equivalent in the harness, expected one of "
            f"{', '.join(TRANSLATED)}; try --merger mergekit:{config.method}"
        )
    shared, own, translate = TRANSLATED[config.method]
    _check_parameters(config, shared, own)
    experts, base, merger = translate(config)
    opened = list(_opened([*experts, *([base] if base else [])]))
    _check_types(config, opened)
    if config.rebuilt:
        _check_embeddings(config, opened)
    if merger.name == "breadcrumbs":
        _warn_of_few(config, merger.options, opened[:1])
    return Recipe(experts=tuple(experts), base=base, merger=merger, heads="merge")


def _opened(sources: Sequence[str]) -> Iterator[Checkpoint]:
    """The models that can be opened without reading a pickle."""
    for source in sources:
        with suppress(BrokenCheckpoint):  # planning raises it, or reads pickles if allowed
            yield open_checkpoint(source)


def _check_embeddings(config: Config, models: Sequence[Checkpoint]) -> None:
    """Raise BadRecipe for a model whose token embeddings mergekit would cut to its tokenizer."""
    for checkpoint in models:
        words, rows = shared_tokenizer(checkpoint.processor), checkpoint.config.get("vocab_size")
        if rows != len(words):
            raise config.unsupported_error(
                f"{checkpoint.source} has {rows or 'unknown'} token embeddings for a tokenizer of "
                f"{len(words)} tokens, and mergekit would cut them; expected no tokenizer_source"
            )


def _warn_of_few(
    config: Config, options: Mapping[str, Scalar], models: Sequence[Checkpoint]
) -> None:
    """Warn of tensors too small for gamma, which releases of mergekit treat differently."""
    density, gamma = (float(str(options[name])) for name in ("density", "gamma"))
    if density == 1:
        return
    tensors = chain(*(specs(model.weights).items() for model in models))
    sizes = [(name, math.prod(spec.shape)) for name, spec in tensors]
    few = [name for name, size in sizes if int(density * size) and not int(gamma * size)]
    if few:
        warnings.warn(
            f"{config.path}: gamma {gamma:g} takes no entry of {len(few)} tensors, such as "
            f"{few[0]}: mergekit before 0.1.5 drops their task vectors, this merge keeps the share "
            f"{density:g}",
            stacklevel=2,
        )


def _check_types(config: Config, models: Sequence[Checkpoint]) -> None:
    """Raise BadRecipe where mergekit would compute in, or write, another type than we do.

    We compute in float32 at least and write the type of the experts. mergekit computes in `dtype`,
    by default the type of the models, except for a few methods; and writes `out_dtype` or that.
    """
    stored: dict[str, str] = {}
    for checkpoint in models:
        by_name = specs(checkpoint.weights)
        for name in floating(checkpoint.weights):
            kind = str(checkpoint.stored_dtypes.get(name, by_name[name].dtype))[6:]
            stored[kind] = checkpoint.source
    if not stored:
        return
    if len(stored) > 1:
        mixed = ", ".join(f"{kind} ({source})" for kind, source in sorted(stored.items()))
        raise config.unsupported_error(
            f"the models hold weights of the types {mixed}; expected one type"
        )
    (kind,) = stored
    works = _type(config.dtype or kind, config)
    writes = _type(config.out_dtype or config.dtype or kind, config)
    exact = works in ("float32", "float64") or config.method in ("linear", "slerp")
    if writes != kind or works not in (kind, "float32") or not exact:
        raise config.unsupported_error(
            f"mergekit computes in {works} and writes {writes}, and the harness computes in "
            f"float32 and writes {kind} as in the models; expected dtype: float32 and out_dtype: "
            f"{kind}"
        )


def _type(name: str, config: Config) -> str:
    kind = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(kind, torch.dtype):
        raise BadRecipe(
            f"{config.path}: dtype or out_dtype {name} is not known, expected a type of torch, "
            "such as float32"
        )
    return str(kind)[6:]


# Parameters --------------------------------------------------------------------------------


def _check_parameters(config: Config, shared: tuple[str, ...], own: tuple[str, ...]) -> None:
    """Raise BadRecipe for a parameter that mergekit would silently ignore."""
    reads = f"that {config.method} reads for"
    for_all = config.parameters, (*shared, *own), f"of {config.method}"
    for_one = [(one.parameters, own, f"{reads} {one.model}") for one in config.models]
    for given, known, which in (for_all, *for_one):
        for name in (n for n in given if n not in known):
            raise config.unsupported_error(
                f"parameter '{name}' is not one {which}; known: {', '.join(known) or 'none'}"
            )


def _read(
    config: Config,
    name: str,
    default: bool | float | None,
    model: ModelEntry | None = None,
) -> Any:
    """A parameter, set for a model, else for all, else by default; of the type of its default."""
    called, own = (model.model, model.parameters) if model else (config.method, {})
    value = own.get(name, config.parameters.get(name))
    value = default if value is None else value
    if value is None:
        raise config.unsupported_error(f"{called} has no {name}, which mergekit requires")
    kind = bool if isinstance(default, bool) else float
    try:
        return Option(name, kind, default).read(value, f"parameter '{name}'")
    except BadOption as error:
        raise config.unsupported_error(str(error)) from None


def _each(
    config: Config, models: Sequence[ModelEntry], name: str, default: float | None = None
) -> list[float]:
    """A parameter of each model."""
    return [_read(config, name, default, model) for model in models]


def _one_for_all(config: Config, name: str, default: float | None = None) -> float:
    """A parameter of the experts that must be equal for all of them."""
    values = _each(config, config.experts, name, default)
    if len(set(values)) > 1:
        listed = ", ".join(f"{value:g}" for value in values)
        raise config.unsupported_error(
            f"parameter '{name}' differs ({listed}), expected one value for all models"
        )
    return values[0]


def _required_base(config: Config) -> str:
    if config.base is None:
        raise config.unsupported_error(f"{config.method} needs base_model, found none")
    if not config.experts:
        raise config.unsupported_error(
            f"models names nothing but the base {config.base}; expected models to merge"
        )
    return config.base


# Methods -----------------------------------------------------------------------------------

Translated: TypeAlias = tuple[list[str], str | None, Choice]
"""Experts, base and merger of a recipe."""

SPARSE = ("normalize", "rescale", "int8_mask", "lambda")
"""Parameters of task arithmetic and its variants. int8_mask does not change the numbers."""


def _names(models: Sequence[ModelEntry]) -> list[str]:
    return [model.model for model in models]


def _linear(config: Config) -> Translated:
    """A base that is not in the list is one more model, with the weight given for all."""
    models = config.models
    if config.base is not None and config.base not in _names(models):
        models = (*models, ModelEntry(model=config.base))
    options: dict[str, Scalar] = {
        "weights": _each(config, models, "weight"),
        "normalize": _read(config, "normalize", True),
    }
    return _names(models), None, Choice("linear", options)


def _slerp(config: Config) -> Translated:
    """The base is the first of the two models, at t = 0."""
    base = _required_base(config)
    if len(config.experts) != 1:
        raise config.unsupported_error(
            f"slerp got {len(config.experts)} models beside the base, expected 1"
        )
    return [base, *_names(config.experts)], None, Choice("slerp", {"t": _read(config, "t", None)})


def _task_arithmetic(config: Config) -> Translated:
    base = _required_base(config)
    weights = _each(config, config.experts, "weight")
    factor = _read(config, "lambda", 1.0)
    if _read(config, "normalize", False) and abs(sum(weights)) >= 1e-8:
        factor /= sum(weights)
    scaled: list[float] = [weight * factor for weight in weights]
    return _names(config.experts), base, Choice("task_arithmetic", {"weights": scaled})


def _ties(config: Config) -> Translated:
    _no_rescale(config)
    base = _required_base(config)
    _read(config, "int8_mask", False)
    options: dict[str, Scalar] = {
        "trim": "tensor",
        "undecided": "positive",
        "density": [min(1.0, d) for d in _each(config, config.experts, "density", 1.0)],
        "weights": _each(config, config.experts, "weight"),
        "combine": "mean" if _read(config, "normalize", True) else "sum",
        "scale": _read(config, "lambda", 1.0),
    }
    return _names(config.experts), base, Choice("ties", options)


def _breadcrumbs(config: Config) -> Translated:
    _no_rescale(config)
    base, experts = _required_base(config), config.experts
    weight = _one_for_all(config, "weight")
    density = _one_for_all(config, "density", 1.0)
    gamma = _one_for_all(config, "gamma", 0.01)
    if density >= 1:
        density, gamma = 1.0, 0.0
    if density + gamma > 1:
        raise config.unsupported_error(
            f"density {density:g} and gamma {gamma:g}: expected at most 1 together"
        )
    scale = _read(config, "lambda", 1.0) * weight
    if _read(config, "normalize", False) and abs(weight * len(experts)) >= 1e-8:
        scale /= weight * len(experts)
    options: dict[str, Scalar] = {"density": density, "gamma": gamma, "scale": scale}
    return _names(experts), base, Choice("breadcrumbs", options)


def _no_rescale(config: Config) -> None:
    """Raise BadRecipe for `rescale`, which our methods of these names lack."""
    if _read(config, "rescale", False):
        raise config.unsupported_error(
            "parameter 'rescale' is true, which the harness's merger does not have; expected false"
        )


Translation: TypeAlias = tuple[tuple[str, ...], tuple[str, ...], Callable[[Config], Translated]]
TRANSLATED: Mapping[str, Translation] = {
    "linear": (("normalize",), ("weight",), _linear),
    "slerp": (("t",), (), _slerp),
    "task_arithmetic": (SPARSE, ("weight", "density"), _task_arithmetic),
    "ties": (SPARSE, ("weight", "density"), _ties),
    "breadcrumbs": (SPARSE, ("weight", "density", "gamma"), _breadcrumbs),
}
"""By mergekit method: its parameters for all models, its parameters for each, its translation."""
