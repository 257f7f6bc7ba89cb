"""What stands in a configuration of mergekit's, and in a folder that it wrote."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from harness.errors import BadRecipe, BrokenCheckpoint
from harness.files import read_yaml

KEYS = ("models", "merge_method", "base_model", "parameters", "dtype", "out_dtype")
"""What is read of a configuration; of other keys but a tokenizer's only null is let through."""

BASELESS = ("linear", "karcher", "multislerp", "nuslerp", "passthrough")
"""Methods that we run without a base; two of them could take one."""

ENDPOINTS = ("slerp", "nearswap", "arcee_fusion")
"""Methods whose `base_model` is the first of the two models that are merged."""

INSTEAD = "or run mergekit itself: harness evaluate reads the folder that it writes"

Models: TypeAlias = tuple[tuple[str, Mapping[str, Any]], ...]
"""Names of models with the parameters given for each."""


@dataclass(frozen=True)
class Config:
    """A mergekit configuration in its plain form: models with parameters, and a method.

    `rebuilt`: mergekit makes the tokenizer anew, and cuts the token embeddings to its size.
    """

    path: Path
    method: str
    models: Models
    base: str | None
    parameters: Mapping[str, Any]
    dtype: str | None = None
    out_dtype: str | None = None
    rebuilt: bool = False

    @property
    def experts(self) -> Models:
        """The models that are not the base."""
        return tuple((name, own) for name, own in self.models if name != self.base)

    def refuse(self, what: str) -> BadRecipe:
        """The error that says so, and what to do."""
        return BadRecipe(f"{self.path}: {what}; {INSTEAD}")


def read_config(values: Mapping[str, Any], path: Path) -> Config:
    """The configuration in a YAML file. Raises BadRecipe, naming the key, for what is not read."""
    rebuilt = [key for key, value in values.items() if _same_tokens(key, value)]
    for key, value in values.items():
        if key not in (*KEYS, *rebuilt) and value is not None:
            raise BadRecipe(f"{path}: '{key}' is not supported; leave it out, {INSTEAD}")
    texts = ("merge_method", "base_model", "dtype", "out_dtype")
    said = {key: values[key] for key in texts if values.get(key) is not None}
    known = {key: _text(value, f"{path}: {key}") for key, value in said.items()}
    if "merge_method" not in known:
        raise BadRecipe(f"{path} has no merge_method, expected the name of one")
    models = values.get("models")
    if not isinstance(models, list) or not models:
        raise BadRecipe(f"{path}: models is {models!r}, expected a list with a model in each entry")
    listed = tuple(_model(entry, path) for entry in models)
    names = [name for name, _ in listed]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise BadRecipe(f"{path}: models has {repeated[0]} twice, expected every model once")
    return Config(
        path,
        known["merge_method"],
        listed,
        _plain(known["base_model"], path) if "base_model" in known else None,
        _mapping(values.get("parameters"), f"{path}: parameters"),
        known.get("dtype"),
        known.get("out_dtype"),
        bool(rebuilt),
    )


def _same_tokens(key: str, value: object) -> bool:
    """Whether a key asks for the tokens of the models, which are the same for all we merge."""
    if key == "tokenizer" and isinstance(value, Mapping) and set(value) == {"source"}:
        value = value["source"]
    return key in ("tokenizer_source", "tokenizer") and value in ("base", "union")


def _model(entry: object, path: Path) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(entry, Mapping) or "model" not in entry:
        raise BadRecipe(f"{path}: models has the entry {entry!r}, expected model: FOLDER OR HUB ID")
    if unknown := sorted(map(str, set(entry) - {"model", "parameters"})):
        raise BadRecipe(f"{path}: '{unknown[0]}' of a model is not supported; {INSTEAD}")
    name = _plain(_text(entry["model"], f"{path}: model"), path)
    return name, _mapping(entry.get("parameters"), f"{path}: parameters of {name}")


def _text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise BadRecipe(f"{where} is {value!r}, expected text")
    return value


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, Mapping):
        raise BadRecipe(f"{where} is {value!r}, expected names with values")
    return value or {}


def _plain(name: str, path: Path) -> str:
    """The name of a model, unless it asks for more than a model."""
    for sign, what in (("+", "an adapter"), ("@", "a revision")):
        if sign in name and not os.path.exists(name):
            raise BadRecipe(
                f"{path}: {name} names {what}, expected a folder or Hub id: save one, {INSTEAD}"
            )
    return name


# What a folder was made of -------------------------------------------------------------------


@dataclass(frozen=True)
class NamedModels:
    """The method, experts and base that the configuration in a folder of mergekit's names."""

    method: str
    experts: tuple[str, ...]
    base: str | None


def named_models(path: Path) -> NamedModels:
    """What a mergekit_config.yml names. Raises BrokenCheckpoint unless it is one of mergekit."""
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
