"""The score of a candidate merge on held-out rows, for methods that choose by trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness.merging.validation import ValidationScorer
from harness.registry import need
from harness.types import StateDict


def _toy(experts: Sequence[StateDict]) -> Callable[[StateDict], float]:
    """A made-up score: minus the squared distance from 0.6 * first + 0.4 * second expert.

    The mean of these two scores higher than either, and a third expert lowers it. Tensors that a
    candidate lacks, as a head that is averaged, do not count.
    """
    first, second = experts[:2]
    best = {name: 0.6 * first[name] + 0.4 * second[name] for name in sorted(first)}

    def near(state: StateDict) -> float:
        shared = [name for name in best if name in state]
        return -sum(float((state[n] - best[n]).double().square().sum()) for n in shared)

    return near


@need("score", rows="shared", toy=_toy)
def score(scorer: ValidationScorer) -> Callable[[StateDict], float]:
    """The score of a candidate under Current Eval on held-out rows, averaged over the tasks."""
    return scorer
