"""Spherical interpolation of two models, as mergekit has it (Goddard 2024, arXiv:2403.13257)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from harness import StateDict, merger
from harness.errors import BadOption
from harness.options import Share
from harness.weights import each, flat_pieces

PARALLEL = 0.9995
"""If the magnitude of the cosine is above this, the interpolation is linear."""


@merger("slerp", paper="arXiv:2403.13257", task_vectors=False, breaks_with={"t": ("order",)})
def slerp(experts: Sequence[StateDict], base: StateDict, *, t: Share = 0.5) -> StateDict:
    """(sin((1 - t) * angle) * first + sin(t * angle) * second) / sin(angle), for two experts.

    Every tensor is one vector with an angle of its own; lengths are not normalised. If the two are
    nearly (anti)parallel, or one of them is 0 and there is no angle, the result is
    (1 - t) * first + t * second. Raises BadOption unless there are two experts. The base is not
    read.

    By hand: (2, 0) and (0, 4) at t = 1/2 give (2, 4) / sqrt(2), where the average is (1, 2).
    """
    if len(experts) != 2:
        raise BadOption(
            f"slerp got {len(experts)} experts, expected 2; linear takes any number of experts"
        )

    def interpolate(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        cosine = _cosine(first, second)
        a, b = 1 - t, t
        if abs(cosine) <= PARALLEL:
            angle = math.acos(cosine)
            a, b = (math.sin(share * angle) / math.sin(angle) for share in (a, b))
        return (first * a).add_(second, alpha=b)

    return each(interpolate, *experts)


def _cosine(first: torch.Tensor, second: torch.Tensor) -> float:
    """The cosine of the angle between two tensors, summed in float64; 1 if one of them is 0."""
    products = torch.zeros(2, 2, dtype=torch.float64)
    flat = (flat_pieces(tensor) for tensor in (first, second))
    for pieces in zip(*flat, strict=True):
        rows = torch.stack(pieces).double()
        products += (rows @ rows.T).cpu()
    lengths = float(products.diagonal().prod().sqrt())
    return float(products[0, 1]) / lengths if lengths else 1.0
