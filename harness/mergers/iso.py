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
    """base + scale * (a matrix whose singular values are all their mean).

    `common` (Iso-C): of every matrix the task vectors are summed to U diag(s) V^T, and the result
    is mean(s) * U V^T. `common_and_task` (Iso-CTS): the first singular vectors of the sum, a share
    `common` of them, are joined by the first ones that each expert has outside of their column
    space, equally many for each; these U and V give way to the nearest isometries, and s are the
    values of all that were taken. How many that is for each expert is rounded as in the authors'
    code. The authors sum; `combine="mean"` starts from the mean of the task vectors, which is a
    smaller scale for matrices alone. The scale is one to tune: the authors pick it on validation
    data. Biases and norms take the mean of their task vectors, or none (`others="zero"`); so do
    tables of embeddings with `matrices="linear"`. Directions in which the task vectors are zero
    stay so, but count in the mean, which is over as many values as the matrix has rows or columns,
    as in the authors' code: a table of which few rows moved is scaled down.

    By hand: ((2, 0), (0, 0)) and ((1, 0), (0, 1)) sum to ((3, 0), (0, 1)), of which the singular
    values 3 and 1 become 2 each: ((2, 0), (0, 2)).
    """
    if variant == "common":
        where = "variant=common, which takes all from the sum"
        weights.check_idle("iso", where, "variant=common_and_task", common=(common, COMMON))
    share = len(experts) if combine == "mean" else 1

    def merge(name: str, vectors: weights.Vectors) -> torch.Tensor:
        summed = vectors[0]
        largest = max(vectors.origin, float(summed.norm()))
        for place in range(1, len(vectors)):
            vector = vectors[place]
            largest = max(largest, float(vector.norm()))
            summed += vector
        # where experts cancel, and outside of what they share, rounding may be all that is left
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
    """The common and the experts' own singular vectors as two isometries, and their values."""
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

    Down where rounding would take more than there are.
    """
    # rounded first: 0.29 * 100 is 28.999 in binary
    own = round((rank - int(round(rank * common, 9))) / experts)
    return own if own * experts <= rank else rank // experts
