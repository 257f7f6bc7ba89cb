"""Gram matrices: inner products of the inputs of every linear layer, [in, in] in float64."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import torch

from harness.checkpoints.build import unit_of
from harness.checkpoints.named import modules_of
from harness.checkpoints.network import classifier_on_meta
from harness.types import Checkpoint
from harness.weights import Spec


def linear_layers(model: torch.nn.Module) -> dict[str, torch.nn.Linear]:
    """The linear layers of a model by name: those whose inputs have a Gram matrix.

    A convolution has none: it is averaged, as in the published code for vision transformers.
    """
    return {n: m for n, m in modules_of(model).items() if isinstance(m, torch.nn.Linear)}


def gram_shapes(checkpoint: Checkpoint) -> dict[str, Spec]:
    """[in, in] in float64 for the weight of every linear layer of a classifier, or of the encoder
    of an embedding model."""
    config, source = checkpoint.config, checkpoint.source
    unit = unit_of(checkpoint) if checkpoint.pooling is None else "row"
    layers = linear_layers(classifier_on_meta(config, source, unit=unit))
    return {
        f"{name}.weight": Spec((layer.in_features,) * 2, torch.float64)
        for name, layer in layers.items()
        if f"{name}.weight" in checkpoint.weights
    }


def gram(
    run: Callable[..., object],
    layers: Mapping[str, torch.nn.Linear],
    batches: Iterable[Mapping[str, torch.Tensor]],
    *,
    padding: bool = False,
    scale: Literal["mean", "sum"] = "mean",
) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """X^T X of the inputs X of some linear layers, in float64, and which weights share a matrix.

    `run` is a model, or another function of a batch that runs the layers. The rows of X are all
    positions of all batches that hold a token; `padding` counts padding as well, as the published
    code does. `mean` divides by the number of rows (both published codes), `sum` does not (the
    formula of the paper). Layers that the first batch gives the same input share one matrix: the
    second result maps the name of each weight to the one it is kept under. Layers that never ran
    have none.

    RegMean, arXiv:2212.09849.
    """
    groups: dict[str, str] | None = None
    sums: dict[str, torch.Tensor] = {}
    counts: dict[str, int] = {}
    with torch.inference_mode(), recorded_inputs(layers) as calls:
        for batch in batches:
            run(**batch)
            groups = groups or _shared(calls)
            mask = None if padding else batch.get("attention_mask")
            for name, tensor in calls:
                if groups[name] == name:
                    rows = token_rows(tensor, mask).double()
                    product = rows.T @ rows
                    sums[name] = sums[name].add_(product) if name in sums else product
                    counts[name] = counts.get(name, 0) + len(rows)
            calls.clear()
    divisors = counts if scale == "mean" else dict.fromkeys(sums, 1)
    matrices = {f"{name}.weight": (total / divisors[name]).cpu() for name, total in sums.items()}
    return matrices, {f"{name}.weight": f"{first}.weight" for name, first in (groups or {}).items()}


@contextmanager
def recorded_inputs(
    layers: Mapping[str, torch.nn.Module],
) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """A context that lists the calls of some layers: for each call, the layer's name and input."""
    calls: list[tuple[str, torch.Tensor]] = []
    hooks = [
        module.register_forward_pre_hook(lambda _, args, name=name: calls.append((name, args[0])))
        for module, name in {module: name for name, module in layers.items()}.items()
    ]
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _shared(calls: Sequence[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """For every layer that ran, the first layer that was given the very same tensors."""
    by_layer: dict[str, list[int]] = {}
    for name, tensor in calls:
        by_layer.setdefault(name, []).append(id(tensor))
    first: dict[tuple[int, ...], str] = {}
    return {name: first.setdefault(tuple(ids), name) for name, ids in by_layer.items()}


def token_rows(inputs: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """The inputs of a layer as rows, without those of padding.

    Some decoders lay the tokens of a batch end to end, [batch x tokens, width]. An input of any
    other shape has no padding: a pooled [batch, width], and DeBERTa's relative positions, which its
    query and key layers read besides the tokens.
    """
    if mask is not None and inputs.shape[:-1] in (mask.shape, (mask.numel(),)):
        return inputs[mask.reshape(inputs.shape[:-1]).bool()]
    return inputs.reshape(-1, inputs.shape[-1])
