"""Shell: a LoRA adapter as peft lays it out, and the model it was trained on -> `Checkpoint`.

An adapted matrix W [out, in] of the base becomes W + s B A with A [r, in] and B [out, r]; s is
alpha / r (Hu et al. 2021, arXiv:2106.09685) or alpha / sqrt(r) (Kalajdzievski 2023,
arXiv:2312.03732). Whole tensors in the file, those of the head, are taken unchanged. All other
features of peft are refused.

By hand: W = ((1, 0), (0, 1)), A = (1, 2), B = (3, 0)^T, r = 1 and alpha = 2 give ((7, 12), (0, 1)).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from harness.checkpoints.build import encoder_of
from harness.checkpoints.families.family import Family, Unit
from harness.checkpoints.families.symmetry import LAYER_NUMBER
from harness.checkpoints.layout import (
    ADAPTER_FILE,
    bad_value,
    has_processor,
    is_adapter,
    read_config,
)
from harness.checkpoints.named import parameters_of
from harness.checkpoints.network import classifier_on_meta
from harness.checkpoints.open import check_counts, labels_of_head, open_checkpoint
from harness.checkpoints.pooling import read_pooling
from harness.checkpoints.provenance import recorded_tasks
from harness.checkpoints.weight_files import open_file, two_names_error
from harness.errors import BrokenCheckpoint
from harness.files import read_json
from harness.types import Checkpoint, StateDict
from harness.weights import Lazy, Spec, renamed, select, specs, union

WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""What peft puts before the names of the wrapped model."""
FIRST, SECOND = ".lora_A.weight", ".lora_B.weight"
TYPES: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("r", "qalora_group_size"), (int,)),
    **dict.fromkeys(("lora_alpha", "lora_dropout"), (int, float)),
    **dict.fromkeys(("use_rslora", "inference_mode"), (bool,)),
    **dict.fromkeys(("base_model_name_or_path", "revision", "task_type", "peft_version"), (str,)),
    **dict.fromkeys(("target_modules", "exclude_modules", "layers_pattern"), (list, str)),
    "modules_to_save": (list,),
    "layers_to_transform": (list, int),
    **dict.fromkeys(("auto_mapping", "megatron_core", "runtime_config"), (dict, str)),
}
"""Keys of adapter_config.json that are read here, or that do not change the weights, with the types
of their values; each may be null."""
PLAIN: Mapping[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    # set by peft itself, where a file has the matrices transposed
    "fan_in_fan_out": (True, False, None),
    "init_lora_weights": (True, False, "gaussian", None),
}
"""Values under which an adapter is just W + s B A: others change the base, the ranks or the
formula. An unknown key could do so too, unless its value is one of `NOTHING`."""
NOTHING: tuple[Any, ...] = (None, False, {}, [])
OF_TEXT = "SEQ_2_SEQ_LM"
"""peft's task type of a text-to-text model."""
UNIT_OF_TASK_TYPE: Mapping[str, Unit] = {"SEQ_CLS": "row", "TOKEN_CLS": "word"}
"""By peft's task type, what a classifier has an output for."""
INSTEAD = (
    "merge the adapter into its base with peft, PeftModel.from_pretrained(model, ADAPTER)"
    ".merge_and_unload().save_pretrained(FOLDER), and give that folder"
)


@dataclass(frozen=True)
class Adapter:
    """An adapter_config.json, its content (`config`), and the adapter's tensors by name."""

    file: Path
    config: Mapping[str, Any]
    weights: StateDict

    def targets(self, module: str) -> bool:
        """Whether peft would put factors into a module, by the lists of the configuration.

        A pattern in place of a list is not run, as it may take forever: a target pattern counts as
        a match, an exclude pattern as none.
        """
        wanted, unwanted = (self.config.get(f"{key}_modules") for key in ("target", "exclude"))
        if isinstance(unwanted, list) and _ends(module, unwanted):
            return False
        if not isinstance(wanted, list) or module in wanted:
            return True
        layers, number = self.config.get("layers_to_transform"), LAYER_NUMBER.search(f"{module}.")
        numbers = layers if isinstance(layers, list) else [] if layers is None else [layers]
        within = not numbers or (number is not None and int(number[1]) in numbers)
        return within and _ends(module, wanted)


def open_adapter(
    folder: Path, source: str, base: str | Path | None, *, allow_pickle: bool = False
) -> Checkpoint:
    """The model of an adapter applied to `base`, by default to the base that it names.

    Adapted matrices are computed on access. Raises BrokenCheckpoint, naming file and cause, for an
    adapter with features that are not supported, and for one that does not fit the base.
    """
    adapter = _read(folder)
    model = _opened_base(adapter, base, allow_pickle)
    unit = UNIT_OF_TASK_TYPE.get(str(adapter.config.get("task_type")))
    encoder = encoder_of(model, unit=unit or "row")
    of_text = bool(model.family.stacks) and adapter.config.get("task_type") == OF_TEXT
    # the lm_head of a T5, which no classifier has
    outputs = [name for name in model.weights if of_text and model.family.is_pooler(name)]
    base_state = union(encoder.weights, select(model.weights, outputs))
    others = [name for name in adapter.weights if not name.endswith((FIRST, SECOND))]
    whole = {name.removeprefix(PREFIX): name for name in others}
    for name in whole:
        new_pooler = model.family.is_pooler(name) and name not in base_state
        if not (model.family.is_head(name) or new_pooler) or ".lora_" in name:
            raise bad_value(folder, "tensor", name, f"LoRA factors and a head alone; {INSTEAD}")
    head = renamed(adapter.weights, whole)
    adapted = _adapted_matrices(adapter, base_state, model.family)
    weights = select(union(head, adapted, base_state), [*base_state, *head])
    config = _config(folder, encoder, head)
    if of_text and "architectures" in model.config:
        config.setdefault("architectures", model.config["architectures"])
    own = folder / "config.json"  # what is wrong is in it: that of the base has been checked
    file = own if own.is_file() else adapter.file
    check_counts(config, weights, str(file))
    # a tensor saved whole may also be an lm_head, which has no labels
    labels = labels_of_head(config, encoder.family, specs(head), file)
    if head and unit:  # without a known task type, the unit is not known
        network = classifier_on_meta(config, source, unit=unit)
        _check_wanted(folder, model, parameters_of(network), weights)
        if type(network).__module__.startswith("transformers."):
            config.setdefault("architectures", [type(network).__name__])
    return replace(
        encoder,
        source=source,
        path=folder,
        config=config,
        weights=weights,
        labels=labels,
        tasks=recorded_tasks(folder),
        processor_folder=None if has_processor(folder) else model.processor,
        stored_dtypes={name: specs(base_state)[name].dtype for name in adapted},
        declared_pooling=cache(partial(read_pooling, folder, model.family)),
    )


def _read(folder: Path) -> Adapter:
    """The adapter in a folder. Raises BrokenCheckpoint for features that are not supported."""
    file = folder / ADAPTER_FILE
    config = read_json(file, "the configuration of an adapter")
    for key, value in {**dict.fromkeys(PLAIN), **config}.items():
        if key in TYPES:
            if value is not None and type(value) not in TYPES[key]:
                expected = " or ".join(kind.__name__ for kind in TYPES[key])
                raise bad_value(file, key, value, expected)
        elif not any(value == one and type(value) is type(one) for one in PLAIN.get(key, NOTHING)):
            raise BrokenCheckpoint(
                f"{file} has the {key!s:.80} {value!r:.80}, expected a plain LoRA adapter, which "
                f"adds (alpha / r) B A to W: {INSTEAD}"
            )
    for key in ("r", "lora_alpha"):
        value = config.get(key, 8)
        if value is None or not 0 < value < 2**24:
            raise bad_value(file, key, value, f"a number above 0 and below {2**24}")
    if not (folder / WEIGHTS).is_file():
        raise BrokenCheckpoint(
            f"{folder} has no {WEIGHTS}; expected it: save the adapter with safe_serialization=True"
        )
    weights = open_file(folder / WEIGHTS)
    for name in weights:
        if (bare := name.removeprefix(PREFIX)) != name and bare in weights:
            raise two_names_error(folder / WEIGHTS, name, bare)
    return Adapter(file, config, weights)


def _ends(module: str, names: Sequence[object]) -> bool:
    """Whether a module's dotted name is, or ends with, one of the names."""
    return any(f".{module}".endswith(f".{name}") for name in names)


def _opened_base(adapter: Adapter, base: str | Path | None, allow_pickle: bool) -> Checkpoint:
    """`base`, else the folder (relative to the adapter) or Hub id that the adapter names."""
    recorded = adapter.config.get("base_model_name_or_path")
    if base is None and (not isinstance(recorded, str) or not recorded):
        raise BrokenCheckpoint(f"{adapter.file} names no base; expected one: give it with --base")
    beside = adapter.file.parent / str(recorded)
    place = base if base is not None else str(beside) if beside.is_dir() else str(recorded)
    if Path(place).is_dir() and is_adapter(Path(place)):
        raise BrokenCheckpoint(
            f"{place}, the base of {adapter.file}, is an adapter, too; {INSTEAD}"
        )
    revision = adapter.config.get("revision") if base is None else None
    try:
        return open_checkpoint(place, revision=revision, allow_pickle=allow_pickle)
    except BrokenCheckpoint as error:
        if base is not None:
            raise
        raise BrokenCheckpoint(
            f"{error}; {adapter.file} names this base: say where it is with --base"
        ) from error


def _adapted_matrices(adapter: Adapter, encoder: StateDict, family: Family) -> StateDict:
    """The adapted matrices, under the names of the encoder.

    In float64: if rounded to the base's type, W + s B A minus W would have full rank.
    """
    headers, own, folder = specs(encoder), specs(adapter.weights), adapter.file.parent
    places: dict[str, tuple[str, str]] = {}
    halves = [name for name in own if name.endswith((FIRST, SECOND))]
    modules = dict.fromkeys(name.removesuffix(FIRST).removesuffix(SECOND) for name in halves)
    rank, alpha = adapter.config.get("r", 8), float(adapter.config.get("lora_alpha", 8))
    scale = alpha / (math.sqrt(rank) if adapter.config.get("use_rslora") else rank)
    for stored in modules:
        module, first, second = stored.removeprefix(PREFIX), stored + FIRST, stored + SECOND
        name = family.canonical(f"{module}.weight")
        place = family.prefix + name if family.prefix + name in headers else name
        if place in places:
            raise two_names_error(folder / WEIGHTS, first, places[place][0])
        half = next((factor for factor in (first, second) if factor not in own), None)
        if place not in headers or half is not None:
            lacking, expected = (
                f"the base has no '{name}'",
                "the base that the adapter was trained on",
            )
            if half:
                lacking, expected = f"there is no '{half}'", "both factors"
            raise BrokenCheckpoint(f"{folder} adapts '{name}', and {lacking}; expected {expected}")
        if not adapter.targets(module):
            raise BrokenCheckpoint(
                f"{folder} adapts '{name}', which its {ADAPTER_FILE} leaves out (target_modules, "
                "exclude_modules, layers_to_transform); expected only modules that the file names"
            )
        shape = headers[place].shape
        # peft has other names for the factors of embeddings
        fits = len(shape) == 2 and not place.endswith("_embeddings.weight")
        fits = fits and own[first].shape == (rank, shape[1])
        floats = all(own[factor].dtype.is_floating_point for factor in (first, second))
        if not fits or not floats or own[second].shape != (shape[0], rank):
            raise BrokenCheckpoint(
                f"'{name}' of {folder} has the factors {own[second].shape} and {own[first].shape}, "
                f"expected floats, a product of rank {rank} with the shape {shape} of the base's"
            )
        places[place] = first, second
    targets = dict.fromkeys(_across_layers(adapter, headers, modules, family))
    if missing := [matrix for matrix in targets if matrix not in places]:
        raise BrokenCheckpoint(
            f"{folder} has no factors of '{missing[0]}', which its {ADAPTER_FILE} names, too; "
            f"expected {len(places) + len(missing)} pairs of factors, not {len(places)}"
        )
    if not places:
        raise BrokenCheckpoint(f"{folder} has no LoRA factors; expected those of some matrices")
    for module in adapter.config.get("modules_to_save") or ():
        if any(f".{module}." in f".{name}" for name in headers):
            raise BrokenCheckpoint(
                f"{adapter.file} has {module!r:.80} among modules_to_save, a part of the base; "
                f"expected only a head there: {INSTEAD}"
            )

    def compute(name: str) -> torch.Tensor:
        first, second = (adapter.weights[factor].double() for factor in places[name])
        return encoder[name].double() + scale * (second @ first)

    return Lazy({name: Spec(headers[name].shape, torch.float64) for name in places}, compute)


def _across_layers(
    adapter: Adapter, headers: Mapping[str, Spec], modules: Iterable[str], family: Family
) -> Iterator[str]:
    """The counterparts of the adapted matrices in all layers of the base, as far as the adapter's
    lists name them."""
    if not isinstance(adapter.config.get("target_modules"), list):
        return
    numbers = dict.fromkeys(found[1] for name in headers if (found := LAYER_NUMBER.search(name)))
    for stored, number in product(modules, numbers):
        module = LAYER_NUMBER.sub(f".{number}.", stored.removeprefix(PREFIX), count=1)
        name = family.canonical(f"{module}.weight")
        place = name if name in headers else family.prefix + name
        if place in headers and adapter.targets(module):
            yield place


def _check_wanted(folder: Path, base: Checkpoint, names: Iterable[str], weights: StateDict) -> None:
    """Raise BrokenCheckpoint for tensors `names` that neither adapter nor base has: a pooler that
    the base was published without, say."""
    bare = base.family.bare
    if lacking := [name for name in names if name not in weights]:
        own = [*lacking, *filter(base.family.is_head, weights)]
        missing = "', '".join(lacking)
        modules = dict.fromkeys(bare(name).partition(".")[0] for name in own)
        raise BrokenCheckpoint(
            f"{folder} has no tensor '{missing}', nor has its base "
            f"{base.source}, and a classifier needs it; expected the adapter to have it: train the "
            f"adapter with modules_to_save={json.dumps([*modules])} in peft's LoraConfig"
        )


def _config(folder: Path, encoder: Checkpoint, head: StateDict) -> dict[str, Any]:
    """The configuration in the folder, added to the base's if it has no model_type (labels alone,
    say); without a file the base's, with as many labels as the head has outputs."""
    file = folder / "config.json"
    if file.is_file():
        config = read_config(file)
        return config if "model_type" in config else {**encoder.config, **config}
    final = encoder.family.final(head)
    labels = {"num_labels": specs(head)[f"{final}.weight"].shape[0]} if final else {}
    return {**encoder.config, **labels}
