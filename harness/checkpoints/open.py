"""Shell: a folder or a Hub id -> `Checkpoint`. No code of a checkpoint is ever run."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from harness.checkpoints.align import under_prefix
from harness.checkpoints.families.family import Family
from harness.checkpoints.families.generic import family_of
from harness.checkpoints.families.known import FAMILY_OF_WHOLE
from harness.checkpoints.families.t5 import is_tied
from harness.checkpoints.layout import (
    ADAPTER_FILE,
    MERGEKIT_FILE,
    MODEL_FILES,
    MODULES,
    PROCESSOR_FILES,
    PROMPTS,
    SENTENCE_CONFIG,
    SHARD_INDEX,
    WEIGHTS_FILE,
    bad_value,
    check_files,
    is_adapter,
    read_config,
)
from harness.checkpoints.pooling import read_pooling
from harness.checkpoints.provenance import (
    EXPERT_FILE,
    MERGE_FILE,
    check_files_unchanged,
    recorded_tasks,
)
from harness.checkpoints.weight_files import open_weights, two_names_error
from harness.errors import BrokenCheckpoint
from harness.files import is_text
from harness.text import counted, few
from harness.types import Checkpoint, StateDict
from harness.weights import Spec, renamed, select, specs, transposed

PART = "CLIPVisionModelWithProjection"
"""transformers' class for the image encoder of a whole CLIP."""
LAYERS = re.compile(r"(^|_)n?_?(layers?|groups?|group_num|blocks?|experts)$")
"""Keys of a configuration that count layers, or parts of layers."""
LENGTHS = re.compile(r"vocab_size|(\w+_)?positions?(_embeddings)?")
"""Keys of a configuration that count tokens or positions. No tensor need be that long: positions
may be relative, and BEiT's tokens are of its pretraining only."""
LENGTH_LIMIT = 2**20
"""The largest value of a key in `LENGTHS` unless a tensor is longer."""
OTHER_WEIGHTS = ("transformers_weights", "quantization_config")
"""Keys of a configuration that make transformers read another file, or quantized weights."""
WRAPPERS = ("module.", "_orig_mod.", "model.")
"""Prefixes of all names in a model that was saved inside a wrapper: DataParallel, torch.compile, a
user's own class."""


def open_checkpoint(
    source: str | Path,
    *,
    revision: str | None = None,
    allow_pickle: bool = False,
    base: str | Path | None = None,
) -> Checkpoint:
    """The checkpoint in a Hugging Face folder or under a Hub id; tensors are read on access.

    A LoRA adapter is opened as its model: `base`, or the base that it names, with the adapter
    applied. Raises BrokenCheckpoint, naming file and cause, unless it is complete and safe.
    """
    if not is_text(str(source)):
        raise BrokenCheckpoint(
            f"{source} is not UTF-8, as a record needs; expected UTF-8: rename it"
        )
    path = Path(source) if os.path.exists(source) else _download(str(source), revision)
    check_files(path)
    if is_adapter(path):
        from harness.checkpoints.adapter import open_adapter  # a cycle: it opens its base

        return open_adapter(path, str(source), base, allow_pickle=allow_pickle)
    file, config = path / "config.json", _config(path)
    embedding = (MODULES, PROMPTS, *(file.name for file in path.glob(SENTENCE_CONFIG)))
    check_files_unchanged(path, ("config.json", *PROCESSOR_FILES, *embedding))
    weights = open_weights(path, allow_pickle=allow_pickle)
    config, weights = _image_encoder_of(config, weights, str(file))
    check_counts(config, weights, str(file))
    family = family_of(config, str(source))
    _check_unwrapped(path, family, weights)
    names = _family_names(path, family, config, weights)
    spelled = {name: stored for name, stored in names.items() if name != stored}
    state = weights if [*names] == [*weights] else renamed(weights, names)
    _check_transposed(path, family, weights)
    state = transposed(state, family.is_transposed)
    labels = labels_of_head(config, family, specs(state), file)
    checkpoint = Checkpoint(
        source=str(source),
        path=path,
        config=config,
        family=family,
        weights=state,
        labels=labels,
        tasks=recorded_tasks(path),
        stored_names=spelled,
        declared_pooling=cache(partial(read_pooling, path, family)),
    )
    return checkpoint if labels is None else under_prefix(checkpoint)


def _family_names(
    path: Path, family: Family, config: Mapping[str, Any], weights: StateDict
) -> dict[str, str]:
    """The names in the file by those of the family. Raises BrokenCheckpoint for a tensor under two
    names, and for a text-to-text model without its token table."""
    names: dict[str, str] = {}
    for name in sorted(weights, key=lambda name: family.canonical(name) != name):
        first = names.setdefault(family.canonical(name), name)
        # a file may have the table that two stacks share once for each stack
        if first != name and not (family.stacks and torch.equal(weights[first], weights[name])):
            raise two_names_error(path, first, name)
    if family.stacks:
        table, outputs = family.token_embeddings, f"{family.pooler}.weight"
        stored, lm_head = names.get(table) or names.get(family.bare(table)), names.get(outputs)
        if stored is None:
            raise BrokenCheckpoint(
                f"{path} has no {family.bare(table)}, nor embed_tokens.weight of a stack, which "
                "transformers would initialise at random; expected a table of token embeddings"
            )
        # pickles of older releases store a tied `lm_head`, too
        if lm_head and is_tied(config) and torch.equal(weights[lm_head], weights[stored]):
            del names[outputs]
    for name in names:
        if (bare := family.bare(name)) != name and bare in names:
            raise two_names_error(path, names[name], names[bare])
    return names


def _check_unwrapped(path: Path, family: Family, weights: StateDict) -> None:
    """Raise BrokenCheckpoint if all names have the prefix of a wrapper around the model."""
    for wrapper in WRAPPERS:
        wrapped = bool(weights) and all(name.startswith(wrapper) for name in weights)
        usual = family.prefix.startswith(wrapper)
        if wrapped and (not usual or any(n.startswith(wrapper + family.prefix) for n in weights)):
            raise BrokenCheckpoint(
                f"{path} has '{next(iter(weights))}', and all other names begin with '{wrapper}', "
                "too; expected the names of transformers: save the model inside the wrapper"
            )


def _check_transposed(path: Path, family: Family, weights: StateDict) -> None:
    """Raise BrokenCheckpoint for a matrix that is not transposed as in other files of the family,
    by the length of its bias: a square one shows only beside a base."""
    headers = specs(weights)
    for name in filter(family.is_transposed, headers):
        shape, bias = headers[name].shape, headers.get(f"{name.removesuffix('weight')}bias")
        if bias is not None and shape != shape[::-1] and shape[:-1] == bias.shape:
            raise BrokenCheckpoint(
                f"'{name}' of {path} is {shape}, expected {shape[::-1]}: [inputs, outputs], as "
                "transformers writes it"
            )


def labels_of_head(
    config: Mapping[str, Any], family: Family, headers: Mapping[str, Spec], file: Path
) -> tuple[str, ...] | None:
    """`labels_of` a model with these tensors; None if it has no head.

    Raises BrokenCheckpoint, naming `file`, unless a classifier's last layer has an output for each
    label, as transformers requires. A multiple-choice model has one output, whatever its labels.
    """
    if not any(map(family.is_head, headers)):
        return None
    labels, final = labels_of(config, str(file)), family.final(headers)
    if final and "ForMultipleChoice" not in str(config.get("architectures")):
        outputs, count = max(headers[f"{final}.weight"].shape[:1], default=0), len(labels) or 1
        if outputs != count:
            raise BrokenCheckpoint(
                f"{file} names {counted(count, 'label')}, and the head has "
                f"{counted(outputs, 'output')}; expected a name for each output in its id2label"
            )
    return labels


def opened_config(source: str) -> Checkpoint | None:
    """A model from its config.json alone, without weights; None for an adapter, and for a Hub model
    that is not in the cache.

    Raises BrokenCheckpoint for such a Hub model if the Hub is offline, and for a config.json that
    cannot be used.
    """
    path = local_folder(source)
    if path is None or is_adapter(path):
        return None
    config, weights = _image_encoder_of(_config(path), {}, str(path))
    return Checkpoint(source, path, config, family_of(config, source), weights, labels=None)


def local_folder(source: str, revision: str | None = None) -> Path | None:
    """The folder of a model on this machine; None for a Hub model that is not in the cache.

    Raises BrokenCheckpoint for such a model if the Hub is offline (HF_HUB_OFFLINE).
    """
    if os.path.exists(source):
        return Path(source)
    from huggingface_hub.constants import HF_HUB_OFFLINE

    try:
        return _download(source, revision, fetch=False)
    except BrokenCheckpoint:
        if HF_HUB_OFFLINE:
            raise
        return None


def _config(path: Path) -> dict[str, Any]:
    """The configuration in a folder. Raises BrokenCheckpoint where it is missing, names weights in
    other files than are read here, or names no dtype of torch."""
    file = path / "config.json"
    if (path / MODULES).is_file() and not file.is_file():  # older: in 0_Transformer
        raise BrokenCheckpoint(
            f"{file} is missing; expected the encoder beside {MODULES}: load the folder with a "
            "newer sentence-transformers, and save it"
        )
    models = [inner.parent.name for inner in sorted(path.glob("*/config.json"))]
    if models and not file.is_file():
        raise BrokenCheckpoint(
            f"{file} is missing; expected one model: this folder has models in {few(models)}"
        )
    config = read_config(file)
    for key in OTHER_WEIGHTS:
        if config.get(key):
            raise BrokenCheckpoint(
                f"{file} has {key}, which is not read; expected weights in {WEIGHTS_FILE} "
                f"or {SHARD_INDEX}"
            )
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "float32")
    if not isinstance(getattr(torch, dtype.removeprefix("torch."), None), torch.dtype):
        raise bad_value(file, "dtype", dtype, "a type of torch: float32, say")
    return config


def _image_encoder_of(
    config: dict[str, Any], state: StateDict, source: str
) -> tuple[dict[str, Any], StateDict]:
    """Configuration and weights of a whole CLIP's image encoder, with its projection; those of any
    other model unchanged."""
    family = FAMILY_OF_WHOLE.get(str(config.get("model_type")))
    if family is None:
        return config, state
    vision = config.get("vision_config_dict") or config.get("vision_config") or {}
    if not isinstance(vision, dict):
        raise bad_value(source, "vision_config", vision, "the configuration of the image encoder")
    vision = {**vision, "model_type": family.model_types[0], "architectures": [PART]}
    projection = f"{family.pooler}.weight"
    if projection in state:
        vision["projection_dim"] = max(specs(state)[projection].shape[:1], default=0)
    names = [n for n in state if n.startswith(family.prefix) or family.is_pooler(n)]
    return vision, select(state, names)


def check_counts(config: Mapping[str, Any], state: StateDict, where: str) -> None:
    """Raise BrokenCheckpoint for more layers, labels, tokens or positions than the weights can
    have, and for weights of integers.

    Building a model of 10^9 layers would never end, even without weights.
    """
    headers = specs(state)
    for name, spec in headers.items():
        if name.endswith((".weight", ".bias")) and not spec.dtype.is_floating_point:
            kind = str(spec.dtype).removeprefix("torch.")
            raise BrokenCheckpoint(
                f"'{name}' beside {where} is {kind}, expected floats: no quantized weights are read"
            )
    widest = max((max(spec.shape, default=0) for spec in headers.values()), default=0)
    for key, value in config.items():
        limit = len(headers) if LAYERS.search(key) else widest if key == "num_labels" else None
        limit = max(widest, LENGTH_LIMIT) if LENGTHS.fullmatch(key) else limit
        numeric = isinstance(value, int | float)
        if limit is not None and numeric and not value <= max(limit, 1000):
            size = f"{len(headers)} tensors and no axis longer than {widest}"
            raise bad_value(
                where, key, value, f"at most {max(limit, 1000)} as its weights have {size}"
            )


def labels_of(config: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Label names in the order of the outputs; empty for regression.

    Names that the configuration lacks are transformers' LABEL_0, LABEL_1, ...; by default two.
    """
    names = config.get("id2label")
    try:
        ordered = {int(index): str(name) for index, name in (names or {}).items()}
        count = int(config.get("num_labels") or len(ordered) or 2)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise bad_value(
            where, "id2label", names, "a name for each of 0, 1, ..., and a number as num_labels"
        ) from error
    if count < 1:
        raise bad_value(where, "num_labels", count, "the number of labels, 1 for regression")
    if len(ordered) < len(names or ()) or len({*ordered.values()}) < len(ordered):
        raise bad_value(where, "id2label", names, "one name for each of 0, 1, ..., no two alike")
    places = config.get("label2id")
    places = places if isinstance(places, dict) else {}
    # some files have the places as strings
    if wrong := [name for i, name in ordered.items() if places.get(name, i) not in (i, str(i))]:
        expected = f"{wrong[0]!r:.80} with the number that it has in id2label"
        raise bad_value(where, "label2id", places, expected)
    if count == 1:
        return ()
    return tuple(ordered.get(index, f"LABEL_{index}") for index in range(count))


def _download(source: str, revision: str | None, *, fetch: bool = True) -> Path:
    if source.count("/") > 1 or source.startswith((".", "/", "~")):
        raise BrokenCheckpoint(f"{source} does not exist; expected a folder or a Hub id")
    from huggingface_hub import snapshot_download

    patterns = [*MODEL_FILES, "*.safetensors", MERGE_FILE, EXPERT_FILE, MERGEKIT_FILE, ADAPTER_FILE]
    try:
        folder = snapshot_download(
            source, revision=revision, allow_patterns=patterns, local_files_only=not fetch
        )
    except Exception as error:  # the Hub client raises a different type for each way to fail
        raise BrokenCheckpoint(
            f"'{source}' is no local folder and could not be fetched from the Hub "
            f"({type(error).__name__}); expected a folder with {WEIGHTS_FILE} and config.json"
        ) from error
    return Path(folder)
