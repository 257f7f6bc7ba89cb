"""LiNeS: scale the merge less in shallow layers (Wang et al. 2024, arXiv:2410.17146)."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, Literal

import torch

from harness import StateDict, postmerge
from harness.options import NotNegative
from harness.weights import after, each_named, once, select, where_shared

NUMBER = re.compile(r"\.(\d+)\.")
"""Finds the number of a layer in the name of a tensor."""


@postmerge("lines", paper="arXiv:2410.17146", breaks=("copies",), rereads=("alpha=norms",))
def lines(
    merged: StateDict,
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    alpha: NotNegative | Literal["norms"] = "norms",
    beta: float = 1.0,
) -> StateDict:
    """base + (alpha + beta * l / (L - 1)) * (merged - base) in layer l = 0, ..., L - 1 of L.

    Tensors outside of numbered layers, as embeddings and a pooler, are scaled by alpha like the
    first layer, as in the authors' code. Layers of a decoder come after its encoder's. Tensors that
    the base lacks stay. With `norms` alpha is, as in the paper, the L1 norm of the sum of the task
    vectors of n experts over n times that of the merged task vector, over all tensors: 1 after the
    mean, and 1 / n after the plain sum; it is in the report. The merged tensors are then read
    twice, once for the norms: the harness keeps them on disk meanwhile, one model in float32. beta
    multiplies the merged task vector, as the merger's scale does, which the paper tunes with beta
    at 1: do the same. For one model alone the paper has alpha + beta = 1.

    By hand: task vectors (2, 4) of layer 0 and (1, 3) of layer 1 have the means 3 and 2; alpha is
    (6 + 4) / (2 * (3 + 2)) = 1, and they become 1 * 3 and (1 + 1) * 2.
    """
    numbers = {name: int(found[1]) for name in merged if (found := NUMBER.search(name))}
    encoder = [number for name, number in numbers.items() if "encoder." in name]
    for name in numbers:
        numbers[name] += len({*encoder}) if "decoder." in name else 0
    last = max(numbers.values(), default=0)
    report: dict[str, Any] = {}

    @once
    def first() -> float:
        report["alpha"] = _ratio(merged, experts, base) if isinstance(alpha, str) else alpha
        return float(report["alpha"])

    def scaled(name: str, weight: torch.Tensor, origin: torch.Tensor) -> torch.Tensor:
        depth = numbers.get(name, 0) / max(last, 1)
        return (weight - origin).mul_(first() + beta * depth).add_(origin)

    return after(first, where_shared(scaled, merged, base), report)


def _ratio(merged: StateDict, experts: Sequence[StateDict], base: StateDict) -> float:
    """The L1 norm of the mean task vector over that of the merged one; 0 if that is rounding."""
    sums: list[list[float]] = [[], [], []]

    def add(_: str, weight: torch.Tensor, origin: torch.Tensor, *tuned: torch.Tensor) -> Any:
        total = tuned[0] - origin
        for other in tuned[1:]:
            total += other - origin
        rounding = origin * torch.finfo(origin.dtype).eps
        for norms, vector in zip(sums, (total, weight - origin, rounding), strict=True):
            norms.append(float(vector.abs_().sum(dtype=torch.float64)))
        return origin

    shared = select(merged, [name for name in merged if name in base])
    measured = each_named(add, shared, base, *experts)
    for name in measured:
        _ = measured[name]
    # exactly rounded, so that the order of the tensors does not matter
    of_sum, of_merged, rounding = map(math.fsum, sums)
    return of_sum / (len(experts) * of_merged) if of_merged > rounding else 0.0
