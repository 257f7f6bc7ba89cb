"""Model soups: the mean of all experts, or of those that help (Wortsman et al. 2022)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from harness import StateDict, merger
from harness.weights import Lazy, mean, once, specs


@merger("soup", paper="arXiv:2203.05482", task_vectors=False)
def soup(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    score: Callable[[StateDict], float],
    select: Literal["greedy", "uniform"] = "greedy",
) -> StateDict:
    """The mean of all experts (`uniform`), or of those that greedy selection keeps.

    `greedy`: best first by their own score on held-out rows, of equals the first; each stays if
    the mean with it scores no lower than without. The report has every score that decided; it
    numbers the experts from 0. The base is not read.
    """
    if select == "uniform":
        return mean(experts)
    report: dict[str, Any] = {}

    @once
    def merged() -> StateDict:
        alone = [score(expert) for expert in experts]
        first, *others = sorted(range(len(experts)), key=lambda i: -alone[i])
        kept, best, trials = [first], alone[first], []
        for index in others:
            together = score(mean([experts[i] for i in (*kept, index)]))
            trials.append({"with": index, "score": together, "stays": together >= best})
            if together >= best:
                kept.append(index)
                best = together
        report.update({"alone": alone, "trials": trials, "kept": kept, "score": best})
        return mean([experts[i] for i in kept])

    return Lazy(specs(mean(experts)), lambda name: merged()[name], report)
