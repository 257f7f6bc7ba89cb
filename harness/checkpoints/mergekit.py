"""mergekit's configuration, as a recipe and in a folder that mergekit wrote."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from harness.errors import BadRecipe, BrokenCheckpoint
from harness.files import read_yaml
from harness.values import Frozen, validated

KEYS = ("models", "merge_method", "base_model", "parameters", "dtype", "out_dtype")
"""Keys of a configuration that are read; any other, but a tokenizer's, must be null."""

BASELESS = ("linear", "karcher", "multislerp", "nuslerp", "passthrough")
"""Methods that we run without a base; two of them could take one."""

ENDPOINTS = ("slerp", "nearswap", "arcee_fusion")
"""Methods whose `base_model` is the first of the two models that are merged."""

INSTEAD = "or run mergekit itself: harness evaluate reads the folder that it writes"


def _plain(name: str) -> str:
    """The name of a model. Raises ValueError if it also names an adapter or a revision."""
    for sign, what in (("+", "an adapter"), ("@", "a revision")):
        if sign in name and not os.path.exists(name):
            raise ValueError(
                f"{name} names {what}, expected the plain folder or Hub id of a model: save that "
                f"model in a folder, {INSTEAD}"
            )
    return name


Named = Annotated[str, AfterValidator(_plain)]
Parameters = Annotated[dict[str, Any], BeforeValidator(lambda it: {} if it is None else it)]


class ModelEntry(Frozen):
    """A model with the parameters given for it."""

    model: Named
    parameters: Parameters = Field(default_factory=dict)


def _listed(entry: object) -> object:
    """An entry of `models`, unchanged. Raises ValueError, showing it, for anything else."""
    if not isinstance(entry, Mapping) or "model" not in entry:
        raise ValueError(f"the entry is {entry!r:.80}, expected model: FOLDER OR HUB ID")
    if unknown := sorted(map(str, set(entry) - {*ModelEntry.model_fields})):
        raise ValueError(f"'{unknown[0]}' of a model is not supported; leave it out, {INSTEAD}")
    return entry


class Config(Frozen):
    """A mergekit configuration in its plain form: models with parameters, and a method.

    `rebuilt`: mergekit would make the tokenizer anew, and cut the token embeddings to its size.
    """

    path: Path
    method: str = Field(alias="merge_method")
    models: tuple[Annotated[ModelEntry, BeforeValidator(_listed)], ...] = Field(min_length=1)
    base: Named | None = Field(None, alias="base_model")
    parameters: Parameters = Field(default_factory=dict)
    dtype: str | None = None
    out_dtype: str | None = None
    rebuilt: bool = False

    @property
    def experts(self) -> tuple[ModelEntry, ...]:
        """The models that are not the base."""
        return tuple(entry for entry in self.models if entry.model != self.base)

    def unsupported_error(self, what: str) -> BadRecipe:
        """The error for something that is not supported, and what to do about it."""
        return BadRecipe(f"{self.path}: {what}; {INSTEAD}")


def read_config(values: Mapping[str, Any], path: Path) -> Config:
    """The configuration with these `values`, read from `path`. Raises BadRecipe, naming the key,
    for what is not supported."""
    rebuilt = [key for key, value in values.items() if _same_tokens(key, value)]
    settings = {k: value for k, value in values.items() if value is not None and k not in rebuilt}
    if unknown := [key for key in settings if key not in KEYS]:
        raise BadRecipe(f"{path}: '{unknown[0]}' is not supported; leave it out, {INSTEAD}")
    if "merge_method" not in settings:
        raise BadRecipe(f"{path} has no merge_method, expected the name of a method")
    config = validated(Config, {**settings, "path": path, "rebuilt": bool(rebuilt)}, str(path))
    names = [entry.model for entry in config.models]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise BadRecipe(f"{path}: models has {repeated[0]} twice, expected every model once")
    return config


def _same_tokens(key: str, value: object) -> bool:
    """Whether a key asks for the tokens of base or models, which are the same for all we merge."""
    if key == "tokenizer" and isinstance(value, Mapping) and set(value) == {"source"}:
        value = value["source"]
    return key in ("tokenizer_source", "tokenizer") and value in ("base", "union")


# What a folder was made of -------------------------------------------------------------------


@dataclass(frozen=True)
class NamedModels:
    """The method, experts and base that the configuration in a folder of mergekit's names."""

    method: str
    experts: tuple[str, ...]
    base: str | None


def named_models(path: Path) -> NamedModels:
    """The models in a mergekit_config.yml. Raises BrokenCheckpoint for a file of another kind."""
    values = read_yaml(path, "mergekit's configuration")
    if "merge_method" not in values:
        raise BrokenCheckpoint(f"{path} names no merge_method, expected mergekit's configuration")
    try:
        base = None if values.get("base_model") is None else _reference(values["base_model"])
        named = [*_models(values)]
    except (AttributeError, KeyError, TypeError) as error:
        raise BrokenCheckpoint(
            f"{path} does not name its models ({error}); expected models, slices or modules"
        ) from error
    method = str(values["merge_method"])
    if method in ENDPOINTS and base is not None:
        named, base = [base, *named], None
    elif method in BASELESS:
        base = None
    experts = tuple(name for name in dict.fromkeys(named) if name != base)
    return NamedModels(method, experts, base)


def _models(values: Mapping[str, Any]) -> Iterator[str]:
    """Every model of `models`, `slices` and `modules`, in the order of the file."""
    for module in (values.get("modules") or {}).values():
        yield from _models(module)
    for part in values.get("slices") or ():
        yield from (_reference(source["model"]) for source in part["sources"])
    for entry in values.get("models") or ():
        yield _reference(entry["model"])


def _reference(value: object) -> str:
    """A model's name, which mergekit also writes as `model: {path: NAME}`."""
    while isinstance(value, Mapping):
        value = value.get("model", value.get("path"))
    if not isinstance(value, str):
        raise TypeError(f"a model is {value!r}, expected a folder or a Hub id")
    return value
