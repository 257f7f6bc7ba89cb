"""Incremental merging: best expert first, one more at a time (Jin et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness import StateDict, merger
from harness.options import Count
from harness.weights import Lazy, check_at_most_all, mean, once, specs


@merger("incremental", paper="arXiv:2212.09849", task_vectors=False)
def incremental(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    score: Callable[[StateDict], float],
    count: Count | None = None,
) -> StateDict:
    """The mean of the `count` experts (default: all) that score best alone on held-out rows.

    No expert is left out for lowering the score. The report has the order (of equals the first is
    first) and the curve, the scores of the means of the first 1, 2, ..., `count` (the paper's
    figure on incremental merging). Other mergers may be given the experts in this order. The base
    is not read.
    """
    taken = len(experts) if count is None else count
    check_at_most_all("count of incremental", taken, len(experts))
    report: dict[str, Any] = {}

    @once
    def merged() -> StateDict:
        alone = [score(expert) for expert in experts]
        order = sorted(range(len(experts)), key=lambda i: -alone[i])[:taken]
        further = [score(mean([experts[i] for i in order[:k]])) for k in range(2, taken + 1)]
        report.update({"alone": alone, "order": order, "curve": [alone[order[0]], *further]})
        return mean([experts[i] for i in order])

    return Lazy(specs(mean(experts)), lambda name: merged()[name], report)
