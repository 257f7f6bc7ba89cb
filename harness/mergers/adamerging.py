"""AdaMerging: coefficients of least entropy on unlabeled rows (Yang et al. 2024)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import fsum
from typing import Any, Literal, TypeAlias

import torch

from harness import StateDict, merger
from harness.options import Positive, PositiveShare, Share
from harness.weights import Lazy, elected, entrywise, once, select, specs, total, widened

LossAndGradient: TypeAlias = Callable[[StateDict], tuple[float, StateDict]]
"""The loss of a merged model, and its gradient by the merged tensors."""
Shares: TypeAlias = dict[str, list[float]]
"""The coefficients of all experts, by the name of the tensor."""
KeptEntries: TypeAlias = Callable[[str], torch.Tensor]
"""From a tensor's name to the entries that each task vector keeps, bools [experts, entries]."""


@merger("adamerging", paper="arXiv:2310.02575", breaks=("copies",))
def adamerging(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    unlabeled: Sequence[LossAndGradient],
    by: Literal["layer", "task"] = "layer",
    density: PositiveShare | None = None,
    learning_rate: Positive = 1e-3,
    initial: Share = 0.3,
) -> StateDict:
    """base + sum_i c_i * (task vector i), with c_i that lower the entropy on unlabeled rows.

    `unlabeled` has one loss for each step, with its gradient by the merged tensors: the entropy of
    the merged model on the next unlabeled rows. Adam takes one step for each, from `initial`, with
    the authors' rate and moments. `by=task` finds one c_i for each expert, `by=layer` one for each
    of its tensors, which the authors' code calls a layer. As there, c_i is Adam's variable clamped
    to [0, 1], and the gradient of a variable out of this range is zero. The report has the
    coefficients, and the losses of the first and the last step, which are of different rows.

    With a `density` (0.2 in the authors' code) it is AdaMerging++: of each task vector only the
    entries count that TIES keeps, the share `density` of largest magnitudes over the whole vector
    where they have the elected sign. These are found once and held, a byte for every entry of every
    expert.

    By hand, on one tensor of one entry: base 0, task vectors 1 and -2, and the loss w^2 / 2. At
    c = (0.3, 0.3) both w and the gradient by w are -0.3, and the gradient by c is (-0.3, 0.6). The
    first step of Adam is as long as the rate, whatever the gradient: c = (0.301, 0.299) and
    w = -0.297. With density 1 the elected sign is -, the first task vector becomes 0 and
    c = (0.3, 0.299).
    """
    report: dict[str, Any] = {}
    chosen = None if density is None else cache(elected(experts, base, density))
    vectors = _TaskVectors(experts, base, chosen)

    @once
    def shares() -> Shares:
        start = torch.full(
            (len(base) if by == "layer" else 1, len(experts)), initial, dtype=torch.float32
        ).double()
        result, losses = _descended(vectors, unlabeled, start, learning_rate)
        coefficients = result if by == "layer" else next(iter(result.values()), [])
        report.update({"coefficients": coefficients, "losses": [losses[0], losses[-1]]})
        return result

    return Lazy(widened(base, *experts), lambda name: vectors.merged_tensor(shares(), name), report)


@dataclass(frozen=True)
class _TaskVectors:
    """The task vectors of experts: all entries, or only those that are `chosen`."""

    experts: Sequence[StateDict]
    base: StateDict
    chosen: KeptEntries | None = None

    def merged_tensor(self, shares: Shares, name: str) -> torch.Tensor:
        """One tensor of base + sum_i c_i * (task vector i)."""
        count = len(self.experts)

        def add(origin: torch.Tensor, *pieces: torch.Tensor) -> torch.Tensor:
            parts = [weight - origin for weight in pieces[:count]]
            for part, mask in zip(parts, pieces[count:], strict=False):
                part.mul_(mask)
            pairs = zip(parts, shares[name], strict=True)
            return total([part.mul_(share) for part, share in pairs]).add_(origin)

        states = [select(state, [name]) for state in (self.base, *self.experts)]
        masks = [] if self.chosen is None else [{name: mask} for mask in self._kept(name)]
        return entrywise(add, *states, *masks)[name]

    def slopes(self, gradient: StateDict, name: str) -> list[float]:
        """The gradient by each expert's coefficient of a tensor: <gradient, task vector>.

        Zero if the loss does not depend on the tensor.
        """
        if name not in gradient:
            return [0.0] * len(self.experts)
        slope, origin = gradient[name].double(), self.base[name].double()
        vectors = [expert[name].double() - origin for expert in self.experts]
        if self.chosen is not None:
            vectors = [part * mask for part, mask in zip(vectors, self._kept(name), strict=True)]
        return [float(slope.flatten().dot(vector.flatten())) for vector in vectors]

    def _kept(self, name: str) -> torch.Tensor:
        assert self.chosen is not None
        return self.chosen(name).view(len(self.experts), *specs(self.base)[name].shape)


def _descended(
    vectors: _TaskVectors,
    losses: Sequence[LossAndGradient],
    free: torch.Tensor,
    learning_rate: float,
) -> tuple[Shares, list[float]]:
    """The coefficients after a step of Adam for each loss, and the losses.

    `free` [groups, experts] are Adam's variables, changed in place: a row for each tensor in the
    order of their names, or one row for all.
    """
    names = sorted(vectors.base)
    headers = specs(vectors.base)
    adam = torch.optim.Adam([free], lr=learning_rate)
    values = []
    for loss in losses:
        shares = _by_name(free, names)
        value, gradient = loss(Lazy(headers, partial(vectors.merged_tensor, shares)))
        values.append(value)
        slopes = [vectors.slopes(gradient, name) for name in names]
        # sums that do not depend on the order of the tensors in a file
        lines = slopes if len(free) > 1 else [[fsum(part) for part in zip(*slopes, strict=True)]]
        inside = (free >= 0) & (free <= 1)
        free.grad = torch.tensor(lines, dtype=free.dtype).view_as(free) * inside
        adam.step()
    return _by_name(free, names), values


def _by_name(free: torch.Tensor, names: Sequence[str]) -> Shares:
    lines: list[list[float]] = free.clamp(0, 1).tolist()
    return {name: lines[place % len(lines)] for place, name in enumerate(names)}
