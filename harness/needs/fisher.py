"""Diagonals of the Fisher information on an expert's own rows, for Fisher merging."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence

import torch

from harness.kinds import kind_of
from harness.options import Count
from harness.passes.features import forward_errors
from harness.passes.fisher import BY_EXAMPLE, Estimator, fisher
from harness.passes.reading import Reading
from harness.registry import need
from harness.rng import rng
from harness.types import Checkpoint, Scalar, StateDict
from harness.weights import Spec, floating, specs


def _shapes(checkpoint: Checkpoint) -> dict[str, Spec]:
    """The shape of every parameter, with the type float32."""
    headers = specs(checkpoint.weights)
    return {name: Spec(headers[name].shape, torch.float32) for name in floating(checkpoint.weights)}


def _fault(fisher: torch.Tensor) -> str | None:
    """Why a tensor cannot be a mean of squares; None if it can."""
    if fisher.numel() and float(fisher.min()) < 0:
        return f"has the entry {float(fisher.min()):.3g}, expected means of squares"
    return None


def _check(chosen: Mapping[str, Scalar]) -> None:
    """Warn of the estimator `soft`, which is zero but for rounding."""
    if chosen["estimator"] == "soft":
        warnings.warn(
            "the estimator 'soft' has a gradient of zero, and what it finds is rounding alone: use "
            "it only to compare",
            stacklevel=2,
        )


def _toy(experts: Sequence[StateDict]) -> list[StateDict]:
    """Made-up Fisher information of every parameter, a fifth of it exactly zero."""

    def toy(place: int, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        values = rng(place, "fisher", name).random(math.prod(shape))
        return torch.from_numpy(values * (values > 0.2)).to(torch.float32).view(shape)

    return [
        {name: toy(place, name, spec.shape) for name, spec in specs(expert).items()}
        for place, expert in enumerate(experts, start=1)
    ]


@need(
    "fisher",
    paper="arXiv:2111.09832",
    shapes=_shapes,
    fault=_fault,
    check=_check,
    toy=_toy,
    gradients=True,
)
def fisher_diagonals(
    reading: Reading,
    *,
    examples: Count = 1024,
    seed: int = 0,
    estimator: Estimator = "exact",
    batch_size: Count = 16,
) -> Mapping[str, torch.Tensor]:
    """The diagonal of the Fisher information of every parameter, over `examples` rows.

    See `passes.fisher`. Only the estimators of published code square gradients of whole batches,
    which have the rows in the order of the draw.
    """
    size = 1 if estimator in BY_EXAMPLE else batch_size
    read = reading.batches(size, as_drawn=True)
    model, kind = reading.model(), kind_of(reading.rows.task)
    with forward_errors(reading.checkpoint.source):
        return fisher(model, read, kind, estimator=estimator, batch_size=size)
