"""A configuration and weights -> a model of transformers, with exactly these weights."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from harness.checkpoints.align import aligned_base
from harness.checkpoints.families.family import Family, Unit
from harness.checkpoints.families.symmetry import layer_in
from harness.checkpoints.layout import bad_value
from harness.checkpoints.named import parameters_of, tensors_of, to_memory_names
from harness.checkpoints.network import classifier_on_meta, new_classifier
from harness.checkpoints.open import check_counts
from harness.checkpoints.processor import check_image_processor
from harness.checkpoints.settings import PADDING
from harness.checkpoints.tokenizer import shared_tokenizer
from harness.errors import BrokenCheckpoint
from harness.labels import as_config
from harness.process import shared
from harness.types import Checkpoint, StateDict
from harness.weights import PROCESSOR, floating, here, seeded, specs

TEXT_HEAD = "text_head"
"""The key of a configuration under which a head made of texts describes these."""
HEAD_KEYS = ("id2label", "label2id", "problem_type", "num_labels", "architectures", TEXT_HEAD)
"""Keys of a configuration that are about the head alone."""
UNREAD_KEYS = ("id2label", "label2id", "architectures", "transformers_version", "_name_or_path")
"""Keys of a configuration that the forward pass does not read."""


def config_with_labels(config: Mapping[str, Any], labels: Sequence[str]) -> dict[str, Any]:
    """A configuration with these labels, and without the keys of its former head."""
    bare = {key: value for key, value in config.items() if key not in HEAD_KEYS}
    return {**bare, **as_config(labels)}


def encoder_of(base: Checkpoint, *, unit: Unit = "row") -> Checkpoint:
    """The base without a head, under the names of transformers' classifier of rows or of words.

    Tensors of a pretraining head are left out, and a pooler may be missing. Raises
    BrokenCheckpoint, naming it, for any other tensor of the encoder that is missing, which
    transformers would initialise at random, or of another shape or kind (float or not).
    """
    family = base.family
    config = {key: value for key, value in base.config.items() if key not in HEAD_KEYS}
    tensors = tensors_of(classifier_on_meta(config, base.source, unit=unit))
    expected = {name: tensor for name, tensor in tensors.items() if not family.is_head(name)}
    encoder = aligned_base(base, replace(base, weights=expected))
    headers = specs(encoder.weights)
    for name, spec in specs(expected).items():
        if name not in headers:
            if family.is_pooler(name):
                continue
            raise BrokenCheckpoint(
                f"{base.source} has no tensor '{name}', expected a whole encoder to train on"
            )
        same_kind = headers[name].dtype.is_floating_point == spec.dtype.is_floating_point
        if headers[name].shape != spec.shape or not same_kind:
            raise BrokenCheckpoint(
                f"{base.source}: '{name}' is {headers[name].shape} of {headers[name].dtype}, "
                f"expected {spec.shape} of {spec.dtype} as config.json says"
            )
    return replace(encoder, config=config, labels=None)


def initialised_layers(
    base: Checkpoint, seed: int, *, unit: Unit = "row"
) -> dict[str, torch.Tensor]:
    """The encoder's tensors that a base was published without, initialised with a seed."""
    encoder, family = encoder_of(base, unit=unit), base.family
    expected = tensors_of(classifier_on_meta(encoder.config, base.source, unit=unit))
    lacking = [n for n in expected if not family.is_head(n) and n not in encoder.weights]
    if not lacking:
        return {}
    with seeded(seed):
        drawn = tensors_of(new_classifier(encoder.config, base.source, unit))
    return {name: drawn[name] for name in lacking}


def build_model(
    config: Mapping[str, Any],
    state: StateDict,
    what: str,
    *,
    unit: Unit = "row",
    device: torch.device = PROCESSOR,
) -> torch.nn.Module:
    """A transformers classifier with exactly these weights, in eval mode, in float32, on a device.

    It gives one output per row, or per token for `unit="word"`. Raises BrokenCheckpoint for a
    classifier of the other unit, and when a tensor of the model is missing, left over or of another
    shape: nothing is ever newly initialised.
    """
    check_counts(config, state, what)
    _check_classifier(config, state, what, unit)
    return _filled(config, state, what, unit, device)


def classifier_of(
    model: Checkpoint, unit: Unit = "row", device: torch.device = PROCESSOR
) -> torch.nn.Module:
    """A checkpoint's classifier, as `build_model` makes it; of an embedding model, a classifier
    that holds its encoder.

    Of the latter only `base_model` may be run: the values of its head, and of a pooler that the
    model lacks, are arbitrary. Raises BrokenCheckpoint as `build_model` and `encoder_of` do.
    """
    if model.pooling is None:
        return build_model(model.config, model.weights, model.source, unit=unit, device=device)
    encoder = encoder_of(model)
    return _filled(encoder.config, encoder.weights, model.source, "row", device)


def _filled(
    config: Mapping[str, Any], state: StateDict, what: str, unit: Unit, device: torch.device
) -> torch.nn.Module:
    """The classifier with these weights, unchecked; parameters that `state` lacks are arbitrary."""
    from transformers.initialization import no_init_weights

    # initialising weights takes longer than a forward pass over a few rows; tensors go from the
    # file to the device
    with no_init_weights(), nullcontext() if here(device) else device:
        model: Any = new_classifier(config, what, unit)
    model.tie_weights()  # skipped with the initialisation
    model.config.get_text_config().use_cache = False  # of a decoder: no token is read twice
    tensors = {name: state[name] for name in floating(state)}
    model.load_state_dict(to_memory_names(model, tensors), strict=False)
    built: torch.nn.Module = model.float().eval()
    return built


@shared
@contextmanager
def without_progress_bars() -> Iterator[None]:
    """A block without the progress bars of transformers."""
    from transformers.utils import logging

    enabled = logging.is_progress_bar_enabled()
    try:
        logging.disable_progress_bar()
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


def check_ready(checkpoint: Checkpoint, *, unit: Unit = "row") -> None:
    """Raise BrokenCheckpoint for a checkpoint that could not be run, without reading a tensor."""
    if checkpoint.family.inputs == "image":
        check_image_processor(checkpoint)
    else:
        shared_tokenizer(checkpoint.processor)
    check_counts(checkpoint.config, checkpoint.weights, checkpoint.source)
    if checkpoint.pooling is not None:
        encoder_of(checkpoint)
        return
    model = _check_classifier(checkpoint.config, checkpoint.weights, checkpoint.source, unit)
    check_decoder(checkpoint, model, unit)


def check_decoder(checkpoint: Checkpoint, network: Any, unit: Unit) -> None:
    """Raise BrokenCheckpoint for a decoder whose configuration lacks a token that its classifier of
    rows, `network`, needs: the one that pads, and of an encoder-decoder the one that begins."""
    if unit == "word":
        return
    family = checkpoint.family
    # of a decoder the file itself: rows are padded by it, not by a default of transformers' class
    config = network.config.to_dict() if family.stacks else checkpoint.config
    keys = ["decoder_start_token_id"] if family.stacks else []
    keys += [PADDING] if family.stacks or family.decoder else []
    for key in keys:
        token, tokens = config.get(key), network.get_input_embeddings().num_embeddings
        if not isinstance(token, int) or not 0 <= token < tokens:
            expected = (
                f"the number of a token, below {tokens}, which the decoder needs: write it there"
            )
            raise bad_value(checkpoint.path / "config.json", key, token, expected)


def unit_of(checkpoint: Checkpoint) -> Unit:
    """A classifier's unit: a row if it has all tensors of a classifier of rows, else a word."""
    network = classifier_on_meta(checkpoint.config, checkpoint.source)
    headers = specs(checkpoint.weights)
    return "row" if all(name in headers for name in parameters_of(network)) else "word"


CLASS_OF_UNIT: Mapping[Unit, tuple[str, str]] = {
    "row": ("ForSequenceClassification", "one output for each row"),
    "word": ("ForTokenClassification", "one output for each word"),
}
"""By unit, how the names of transformers' classifiers end, and what these give."""


def _check_classifier(
    config: Mapping[str, Any], state: StateDict, what: str, unit: Unit
) -> torch.nn.Module:
    """The classifier of a configuration without weights. Raises BrokenCheckpoint if config.json
    names a classifier of the other unit, and unless its tensors are those of `state`.

    Tensors would show the unit in most cases, with a less clear error, but not where names are the
    same.
    """
    classes, other = config.get("architectures"), CLASS_OF_UNIT["word" if unit == "row" else "row"]
    for name in classes if isinstance(classes, list) else ():
        if str(name).endswith(other[0]):
            raise BrokenCheckpoint(
                f"{what} is a {name!s:.80} ({other[1]}) according to its config.json, expected "
                f"{CLASS_OF_UNIT[unit][1]}: a model ...{CLASS_OF_UNIT[unit][0]}"
            )
    model = classifier_on_meta(config, what, unit=unit)
    check_tensors(model, state, what)
    return model


def check_whole(checkpoint: Checkpoint, *, unit: Unit = "row") -> None:
    """Raise BrokenCheckpoint, naming it, for a parameter that the classifier of the configuration
    has and the checkpoint lacks; no tensor is read."""
    model = classifier_on_meta(checkpoint.config, checkpoint.source, unit=unit)
    _check_none_lacks(model, floating(checkpoint.weights), checkpoint.source)


def check_configured(model: Checkpoint) -> None:
    """Raise BrokenCheckpoint for an encoder with other layers than its config.json says, or with a
    tensor of another shape. No tensor is read.

    transformers would drop surplus layers, and initialise missing ones at random.
    """
    family, headers = model.family, specs(model.weights)
    # without labels, one cached network serves all experts of a base; a tagger has no other tensors
    bare = {key: value for key, value in model.config.items() if key not in HEAD_KEYS}
    parameters = parameters_of(classifier_on_meta(bare, model.source))
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    encoder = [name for name in floating(model.weights) if not family.is_head(name)]
    for name in encoder:
        if (shape := shapes.get(name, headers[name].shape)) != headers[name].shape:
            raise BrokenCheckpoint(
                f"{model.source}: '{name}' is {headers[name].shape}, expected {shape} as "
                "config.json says"
            )
    for stack in family.stacks or ("",):
        found = _layers(family, encoder, stack)
        expected = _layers(family, shapes, stack)
        if found and found != expected:  # a T5 tagger has no decoder
            whose = f" in its {stack}" * bool(stack)
            raise BrokenCheckpoint(
                f"{model.source} has {len(found)} layers{whose}, expected {len(expected)} as its "
                f"config.json says: layer {min(found ^ expected)} is in one of the two alone"
            )


def _layers(family: Family, names: Iterable[str], stack: str) -> set[str]:
    """The layers of one stack that tensors of these names are in."""
    layers = (str(layer_in(family, name)) for name in names if layer_in(family, name) is not None)
    return {layer for layer in layers if layer.startswith(stack)}


def _check_none_lacks(model: torch.nn.Module, names: Collection[str], what: str) -> None:
    """Raise BrokenCheckpoint for a parameter of the model that is not among the names."""
    for name in parameters_of(model):
        if name not in names:
            raise BrokenCheckpoint(
                f"{what} has no tensor '{name}', expected those of {type(model).__name__}"
            )


def check_tensors(model: torch.nn.Module, state: StateDict, what: str) -> None:
    """Raise BrokenCheckpoint for a tensor that is missing, left over or of another shape."""
    headers = specs(state)
    shapes = {name: headers[name].shape for name in floating(state)}
    _check_none_lacks(model, shapes, what)
    expected = {name: tuple(parameter.shape) for name, parameter in parameters_of(model).items()}
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise BrokenCheckpoint(
                f"{what}: '{name}' is {shapes[name]}, expected {shape} as config.json says"
            )
    unknown = shapes.keys() - expected.keys() - {name for name, _ in model.named_buffers()}
    if unknown:
        kind = type(model).__name__
        raise BrokenCheckpoint(
            f"{what} has an unknown tensor '{min(unknown)}', expected those of {kind}"
        )
