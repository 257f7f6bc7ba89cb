"""A configuration -> a newly initialised classifier of transformers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch

from harness.checkpoints.families.family import Unit
from harness.checkpoints.families.known import FAMILY_OF_TYPE
from harness.errors import BrokenCheckpoint, HarnessError
from harness.files import parse_json
from harness.process import shared
from harness.text import first_line


def new_classifier(config: Mapping[str, Any], what: str, unit: Unit = "row") -> torch.nn.Module:
    """The classifier of a configuration: one output per row, or per token for `unit="word"`.

    Raises BrokenCheckpoint, naming `what`, for a configuration that none can be made from.
    """
    with using_transformers(what):
        return _made(config, unit)


class Conv1DAsLinear(torch.nn.Linear):
    """A Conv1D of transformers as a linear layer: with its matrix as [outputs, inputs]."""


def _with_linear_layers(network: torch.nn.Module) -> torch.nn.Module:
    """The network with a `Conv1DAsLinear` in place of each Conv1D, with the same values."""
    from transformers.pytorch_utils import Conv1D

    for parent in [*network.modules()]:
        for name, module in parent.named_children():
            if isinstance(module, Conv1D):
                with torch.device("meta"):
                    layer = Conv1DAsLinear(module.nx, module.nf)
                layer.weight = torch.nn.Parameter(module.weight.detach().T.contiguous())
                layer.bias = module.bias
                setattr(parent, name, layer)
    return network


def _made(config: Mapping[str, Any], unit: Unit) -> torch.nn.Module:
    import transformers

    kind = config["model_type"]
    family = FAMILY_OF_TYPE.get(kind)
    if family is not None and family.make is not None:
        network = family.make(_read(config), unit)
        if network is not None:
            return network
    rows = transformers.AutoModelForSequenceClassification
    if is_image_type(kind):
        rows = transformers.AutoModelForImageClassification
    classes = {"row": rows, "word": transformers.AutoModelForTokenClassification}
    model: torch.nn.Module = classes[unit].from_config(_read(config))
    return _with_linear_layers(model)


def is_image_type(model_type: str) -> bool:
    """Whether transformers has a single image classifier of an architecture, and none of text."""
    from transformers.models.auto import modeling_auto as auto

    single = isinstance(auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES.get(model_type), str)
    return single and model_type not in auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES


def text_tower(config: Mapping[str, Any], what: str) -> Any:
    """The text encoder, with its projection, of a whole CLIP with this configuration.

    Raises as `new_classifier` does.
    """
    from transformers import CLIPTextModelWithProjection

    with using_transformers(what):
        parsed = _read(config)
        parsed.text_config.projection_dim = parsed.projection_dim
        return CLIPTextModelWithProjection(parsed.text_config)


def configuration(config: Mapping[str, Any], what: str) -> Any:
    """The configuration as transformers reads it, with its class's defaults and aliases of keys.

    Raises BrokenCheckpoint, naming `what`, for one that it cannot read.
    """
    with using_transformers(what):
        parsed = _read(config)
        parsed.to_dict()  # fails here if a key has replaced a method of its name
        return parsed


RUN_KEYS = {"model_type", "dtype", "torch_dtype", "chunk_size_feed_forward", "output_attentions"}
RUN_KEYS |= {"output_hidden_states", "return_dict", "use_return_dict", "torchscript"}
"""Keys of how a model is run, and of what it returns beside logits: left to the caller."""


def _read(config: Mapping[str, Any]) -> Any:
    from transformers import AutoConfig

    values = {key: value for key, value in config.items() if key not in RUN_KEYS}
    parsed = AutoConfig.for_model(config["model_type"], **values)
    # a kernel that it names would be code from the Hub; this sets its parts' as well
    parsed._attn_implementation = parsed._experts_implementation = None
    return parsed


@contextmanager
def using_transformers(what: str) -> Iterator[None]:
    """Turns any error of transformers in the block into a BrokenCheckpoint; it logs nothing."""
    with _made_from_config(what), without_warnings():
        yield


@contextmanager
def _made_from_config(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        reason = " ".join(str(error).split()).partition(". ")[0]
        if isinstance(error, ZeroDivisionError):
            reason = "a size or a number of parts is 0, expected at least 1"
        raise BrokenCheckpoint(
            f"{what}: no classifier can be made from its config.json: {reason}"
        ) from error


@contextmanager
def one_line_errors(what: str, expected: str) -> Iterator[None]:
    """Turns whatever a library raises in the block into a BrokenCheckpoint of one line.

    Libraries raise many types of error, one of them a panic of Rust code, which is no Exception.
    """
    try:
        yield
    except HarnessError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit | GeneratorExit):
            raise
        kind, reason = type(error).__name__, first_line(error)
        reason = kind if reason == kind else f"{kind}: {reason}"
        raise BrokenCheckpoint(f"{what} ({reason:.300}); {expected}") from error


def classifier_on_meta(
    config: Mapping[str, Any], what: str, *, unit: Unit = "row"
) -> torch.nn.Module:
    """The classifier of a configuration with no weights in memory: its modules and shapes.

    It is cached and shared by all callers: never change it. Raises as `new_classifier` does.
    """
    with _made_from_config(what):
        return _on_meta(json.dumps(config, default=repr), unit)


@lru_cache(64)
def _on_meta(config: str, unit: Unit) -> torch.nn.Module:
    """`classifier_on_meta` of a configuration as JSON. Cached because each expert is checked
    against its own several times, and building one takes longer than reading a header."""
    # not around the cache: to set a level of logging goes through all loggers there are
    with torch.device("meta"), without_warnings():
        return _made(parse_json(config, "a configuration", "JSON"), unit)


@shared
@contextmanager
def without_warnings() -> Iterator[None]:
    """A block without the warnings that transformers logs, whole configurations among them."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    try:
        logging.set_verbosity(logging.CRITICAL)  # takes long enough for a Ctrl-C
        yield
    finally:
        logging.set_verbosity(level)
