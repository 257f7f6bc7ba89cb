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
    """RegMean layer by layer, on the inputs that a layer gets from the merged layers before it.

    In RegMean the inputs come from the expert's own layers, so that the merged model never sees
    them. `gram_through` has, for each expert, a function from the merged model to Gram matrices
    [in, in], by the name of the weight [out, in]. Those of a layer depend only on the merged layers
    before it, so that the merged model is computed one layer after the other. Embeddings, biases
    and norms are the mean. All else is as in `regmean`. The defaults, also of `examples`, are those
    of the authors' code. That merges no head; here the head, if it is merged, is one more layer,
    together with the pooler.

    By hand, two experts with two layers of one input each, W = 1, V = 1 and W = 3, V = 0, both on
    the input 1. The first merged layer is the mean, W = 2. In RegMean the inputs of the second are
    1 and 3, G = 1 and 9, and V = 1/10. From the merged first layer both are 2, G = 4 and 4, and
    V = 1/2.
    """
    merged: StateDict = Lazy(specs(experts[0]), lambda name: solution[name])
    grams = [through(merged) for through in gram_through]
    solution = regression_mean("regmean_plus_plus", experts, grams, off_diagonal, weights)
    return solution
