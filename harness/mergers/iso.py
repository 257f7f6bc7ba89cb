"""Isotropic merging, Iso-C and Iso-CTS (Marczak et al. 2025, arXiv:2502.04959)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import torch

from harness import StateDict, merger, weights
from harness.options import Share

COMMON = 0.8
"""The authors' share of the common subspace."""


@merger("iso", paper="arXiv:2502.04959", breaks=("copies",))
def iso(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    variant: Literal["common", "common_and_task"] = "common",
    common: Share = COMMON,
    combine: Literal["sum", "mean"] = "sum",
    matrices: weights.Matrices = "all",
    others: weights.Others = "mean",
    scale: float = 1.0,
) -> StateDict:
    """base + scale * (a matrix whose singular values are all replaced by their mean).

    `common` (Iso-C): the task vectors of every matrix are summed to U diag(s) V^T, and the result
    is mean(s) * U V^T. `common_and_task` (Iso-CTS): to the first singular vectors of the sum, a
    share `common` of them, every expert adds equally many first ones of its part outside of their
    column space. U and V of all these are replaced by the nearest isometries, and s are their
    values. The number for each expert is rounded as in the authors' code. The authors sum;
    `combine="mean"` starts from the mean of the task vectors, which lowers the scale of matrices
    only. The scale should be tuned: the authors pick it on validation data. Biases and norms take
    the mean of their task vectors, or zero (`others="zero"`); so do embedding tables with
    `matrices="linear"`. Directions in which the task vectors are zero stay zero, but count in
    mean(s), which is over min(rows, columns) values, as in the authors' code: a table with few
    changed rows is scaled down.

    By hand: ((2, 0), (0, 0)) and ((1, 0), (0, 1)) sum to ((3, 0), (0, 1)), of which the singular
    values 3 and 1 become 2 each: ((2, 0), (0, 2)).
    """
    if variant == "common":
        condition = "variant=common, which takes all directions from the sum"
        weights.check_idle("iso", condition, "variant=common_and_task", common=(common, COMMON))
    share = len(experts) if combine == "mean" else 1

    def merge(name: str, vectors: weights.Vectors) -> torch.Tensor:
        summed = vectors[0]
        largest = max(vectors.origin, float(summed.norm()))
        for place in range(1, len(vectors)):
            vector = vectors[place]
            largest = max(largest, float(vector.norm()))
            summed += vector
        # only rounding may be left where experts cancel, and outside of what they share
        decomposed = partial(weights.compact_svd, part_of=largest)
        whole = decomposed(summed.div_(share))
        if variant == "common_and_task":
            whole = _with_tasks(vectors, whole, common, decomposed)
        left, values, right = whole
        return (left @ right).mul_(values.sum() / min(len(left), right.shape[1]))

    return weights.by_matrix(merge, experts, base, scale, matrices=matrices, others=others)


def _with_tasks(
    vectors: weights.Vectors,
    whole: weights.Decomposed,
    common: float,
    decomposed: Callable[[torch.Tensor], weights.Decomposed],
) -> weights.Decomposed:
    """The common and the experts' own singular vectors as two isometries, with their values."""
    left, values, right = whole
    rank = min(len(left), right.shape[1])
    own = _own(rank, len(vectors), common)
    shared = rank - own * len(vectors)
    left, values, right = left[:, :shared], values[:shared], right[:shared]

    def outside(place: int) -> weights.Decomposed:
        vector = vectors[place]
        return weights.leading(decomposed(vector - left @ (left.T @ vector)), own)

    if not own:
        return left, values, right
    parts = weights.spread(outside, range(len(vectors)))
    return weights.side_by_side([(left, values, right), *parts])


def _own(rank: int, experts: int, common: float) -> int:
    """How many singular vectors each expert adds: the rest of the rank over the experts, rounded.

    If that is more than the rank for all experts together, it is rank // experts.
    """
    # rounded first: 0.29 * 100 is 28.999 in binary
    own = round((rank - int(round(rank * common, 9))) / experts)
    return own if own * experts <= rank else rank // experts
