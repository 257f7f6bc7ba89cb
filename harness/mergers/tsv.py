"""Task Singular Vectors, TSV-Merge (Gargiulo et al. 2025, arXiv:2412.00081)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from annotated_types import Interval

from harness import StateDict, merger, weights
from harness.options import PositiveShare


@merger("tsv", paper="arXiv:2412.00081", breaks=("copies",))
def tsv(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    keep: PositiveShare | None = None,
    at_least: Annotated[int, Interval(ge=0)] = 0,
    matrices: weights.Matrices = "all",
    others: weights.Others = "mean",
    scale: float = 1.0,
) -> StateDict:
    """base + scale * (a matrix of decorrelated singular vectors; the mean of other task vectors).

    For every matrix, each expert's task vector is cut to its first k singular values and vectors.
    Side by side, those of all experts are U, s and V; U and V are replaced by their nearest
    isometries U' and V' (Algorithm 1: an orthogonal Procrustes problem), and the result is
    U' diag(s) V'^T. k is the share `keep` of the singular values, by default 1 / n (the paper), and
    no less than `at_least`. If k is 0, as by default for a matrix with fewer rows or columns than
    there are experts, the matrix stays as the base has it, and the report names it. Biases and
    norms take the mean of their task vectors, or zero (`others="zero"`); so do embedding tables
    with `matrices="linear"`, as in code for language models. No direction is added that a task
    vector lacks, so nothing depends on the null space that LAPACK returns.

    By hand: ((3, 0), (0, 1)) and ((0, 0), (2, 0)) keep one each, 3 e1 e1^T and 2 e2 e1^T. U is
    (e1, e2) and stays, V is (e1, e1) and becomes (e1, e1) / sqrt(2): ((3, 0), (2, 0)) / sqrt(2).
    """
    shapes = {name: spec.shape for name, spec in weights.specs(base).items()}
    cuts = {
        name: _kept(min(shape), len(experts), keep, at_least)
        for name, shape in shapes.items()
        if weights.is_matrix(name, shape, matrices)
    }

    def merge(name: str, vectors: weights.Vectors) -> torch.Tensor:
        def first(place: int) -> weights.Decomposed:
            return weights.leading(weights.compact_svd(vectors[place], vectors.origin), cuts[name])

        if not cuts[name]:
            return torch.zeros_like(vectors[0])
        left, values, right = weights.side_by_side(weights.spread(first, range(len(vectors))))
        return (left * values) @ right

    narrow = [name for name, count in cuts.items() if not count]
    report = {"too narrow for a singular vector each": narrow} if narrow else {}
    return weights.by_matrix(
        merge, experts, base, scale, matrices=matrices, others=others, report=report
    )


def _kept(rank: int, experts: int, keep: float | None, at_least: int) -> int:
    """How many singular values each expert keeps of a matrix whose short side is `rank`."""
    # rounded first: 0.29 * 100 is 28.999 in binary
    share = rank // experts if keep is None else int(round(rank * keep, 9))
    return min(max(share, at_least), rank)
