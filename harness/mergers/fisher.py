"""Fisher merging: the mean weighted by each expert's certainty (Matena & Raffel 2022)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal

import torch

from harness import StateDict, merger
from harness.options import NotNegative
from harness.weights import Lazy, entrywise, factors_of, mean, select, specs, total


@merger(
    "fisher",
    paper="arXiv:2111.09832",
    task_vectors=False,
    by_label=True,
    breaks_with={"weights": ("order",)},
)
def fisher(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    fisher: Sequence[StateDict],
    normalize: Literal["model", "tensor", "none"] = "model",
    floor: NotNegative = 1e-6,
    floor_is: Literal["added", "minimum"] = "added",
    weights: list[NotNegative] | None = None,
) -> StateDict:
    """sum_i c_i F_i theta_i / sum_i c_i F_i, entry by entry.

    `fisher` are the diagonals F_i by the name of the parameter, of its shape. `floor` is added to
    each entry, or is the least value of an entry (`floor_is="minimum"`). c_i is the expert's weight
    (1 by default; a common factor cancels, so the Procrustes paper's 0.3 for all changes nothing),
    divided by floor + the L2 norm of F_i over the whole model or over the tensor (`normalize`).
    Where every c_i F_i is 0 the mean is taken. The report counts the entries at which the Fisher
    information of all experts is 0, so that the floor alone decides. The base is not read.

    By hand: theta = (0, 4), F = (3, 1), no floor, not normalised: (0 * 3 + 4 * 1) / 4 = 1.
    """
    scales = factors_of("fisher", weights, len(experts))
    headers = specs(mean(experts))
    share = _share(fisher, list(headers), normalize, floor)
    unreached: dict[str, int] = {}

    def compute(name: str) -> torch.Tensor:
        shares = [scale * share(i, name) for i, scale in enumerate(scales)]
        # a common factor cancels; it could take the products out of the range of float32
        shares = [value / max(shares) for value in shares]
        missed: list[int] = []

        def ratio(*pieces: torch.Tensor) -> torch.Tensor:
            thetas, diagonals = pieces[: len(experts)], pieces[len(experts) :]
            missed.append(int((total(diagonals) == 0).sum()))
            lifted = [
                (f + floor if floor_is == "added" else f.clamp(min=floor)).mul_(scale)
                for f, scale in zip(diagonals, shares, strict=True)
            ]
            below = total(lifted)
            above = total([t * f for t, f in zip(thetas, lifted, strict=True)])
            return torch.where(below > 0, above / below, total(thetas) / len(thetas))

        merged = entrywise(ratio, *(select(state, [name]) for state in (*experts, *fisher)))[name]
        if any(missed):
            unreached[name] = sum(missed)
        return merged

    return Lazy(headers, compute, {"entries with no Fisher": unreached})


def _share(
    fisher: Sequence[StateDict], names: Sequence[str], normalize: str, floor: float
) -> Callable[[int, str], float]:
    """1 / (norm + floor) of an expert's Fisher, over the merged tensors or over one."""

    @cache
    def squares(index: int, name: str) -> float:
        return float(fisher[index][name].double().square().sum())

    @cache
    def whole(index: int) -> float:
        return sum(squares(index, name) for name in sorted(names))

    def share(index: int, name: str) -> float:
        if normalize == "none":
            return 1.0
        norm = (whole(index) if normalize == "model" else squares(index, name)) ** 0.5
        return 1 / (norm + floor) if norm + floor else 1.0

    return share
