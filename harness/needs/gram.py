"""Gram matrices of an expert's own rows, for the least squares of RegMean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from harness.options import Count
from harness.passes.features import forward_errors
from harness.passes.gram import gram, gram_shapes, linear_layers
from harness.passes.reading import Reading
from harness.registry import need
from harness.rng import rng
from harness.types import StateDict
from harness.weights import specs

SLACK = 1e-6
"""How far, relative to the diagonal, a sum of float64 products may be from symmetric."""


def _fault(gram: torch.Tensor) -> str | None:
    """Why a matrix cannot be inner products of inputs; None if no reason is found.

    The full test is for negative eigenvalues, which takes minutes for all layers. Tested are the
    minors of one and two rows, which find matrices that are no Gram matrix at all. Other negative
    eigenvalues, of the size of rounding or made on purpose, are left out when `regmean` solves.
    """
    squares = gram.diagonal()
    if not bool((squares >= 0).all()):
        return f"has {float(squares.min()):.3g} on its diagonal, expected sums of squares"
    if not float(squares.sum()) > 0:
        return "has only zeros on its diagonal, expected inner products of inputs"
    lengths = squares.sqrt()
    bound = torch.outer(lengths, lengths)
    if bool(((gram - gram.T).abs() > SLACK * bound).any()):
        return "is not symmetric, expected inner products of inputs"
    if bool((gram.abs() > (1 + SLACK) * bound).any()):
        return "has entries too large for its diagonal, expected inner products of inputs"
    return None


def toy_grams(experts: Sequence[StateDict]) -> list[StateDict]:
    """Inner products of made-up inputs of every linear layer, [in, in] in float64."""

    def toy(place: int, name: str, width: int) -> torch.Tensor:
        rows = torch.from_numpy(rng(place, "gram", name).normal(size=(4 * width, width)))
        return rows.T @ rows / len(rows)

    return [
        {
            name: toy(place, name, spec.shape[1])
            for name, spec in specs(expert).items()
            if len(spec.shape) == 2 and name.endswith(".weight") and "embeddings" not in name
        }
        for place, expert in enumerate(experts, start=1)
    ]


@need(
    "gram", paper="arXiv:2212.09849", shapes=gram_shapes, fault=_fault, toy=toy_grams, embeds=True
)
def gram_matrices(
    reading: Reading,
    *,
    examples: Count = 1024,
    seed: int = 0,
    batch_size: Count = 16,
    padding: bool = False,
    gram_scale: Literal["mean", "sum"] = "mean",
) -> tuple[Mapping[str, torch.Tensor], Mapping[str, str]]:
    """Inner products of the inputs of every linear layer, over `examples` rows.

    See `passes.gram`. The size of a batch matters where `padding` counts, and for DeBERTa, whose
    layers read the relative positions once for every batch.
    """
    read = reading.inputs(batch_size, as_drawn=padding)
    model: Any = reading.model()
    run = model.base_model if reading.embeds else model
    layers = linear_layers(model)
    if reading.embeds:  # the pooler of an embedding model may not be stored
        layers = {n: m for n, m in layers.items() if f"{n}.weight" in reading.checkpoint.weights}
    with forward_errors(reading.checkpoint.source):
        return gram(run, layers, read, padding=padding, scale=gram_scale)
