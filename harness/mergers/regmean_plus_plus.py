"""RegMean++: RegMean on inputs that come through merged layers (Nguyen et al. 2025)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from harness import StateDict, merger
from harness.mergers.regmean import regression_mean
from harness.options import NotNegative, Share
from harness.weights import Lazy, specs


@merger(
    "regmean_plus_plus",
    paper="arXiv:2508.03121",
    task_vectors=False,
    breaks_with={"weights": ("order", "copies", "zero")},
)
def regmean_plus_plus(
    experts: Sequence[StateDict],
    base: StateDict,
    *,
    gram_through: Sequence[Callable[[StateDict], StateDict]],
    off_diagonal: Share = 0.95,
    weights: list[NotNegative] | None = None,
) -> StateDict:
    """RegMean layer by layer, on the inputs that the merged layers before it give.

    In RegMean the inputs come from the expert's own layers, which the merged model never sees.
    `gram_through` is, for each expert, a function from the merged model to Gram matrices [in, in],
    by the name of the weight [out, in]: those of a layer depend on the merged layers before it
    alone, so that the merged model is found one layer after the other. Embeddings, biases and norms
    are the mean. All else is as in `regmean`; the defaults, also of `examples`, are those of the
    authors' code, which merges no head: ours is one more layer, with the pooler, if it is merged.

    By hand, two layers of one input each, W = (1), V = (1) and W = (3), V = (0), on the inputs 1
    and 1: the first layer is the mean, W = 2. RegMean has inputs 1 and 3 of the second, G = 1 and
    9, and V = 1/10. The merged first layer gives 2 and 2, G = 4 and 4, and V = 1/2.
    """
    merged: StateDict = Lazy(specs(experts[0]), lambda name: solution[name])
    grams = [through(merged) for through in gram_through]
    solution = regression_mean("regmean_plus_plus", experts, grams, off_diagonal, weights)
    return solution
