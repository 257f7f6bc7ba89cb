"""How much methods vary from one set of experts to another, learned from all methods of a board.

Three sets tell little about the variance of one difference: with two degrees of freedom and
hundreds of pairs nothing can be significant. Methods that share their experts have similar
variances, so that of each difference is shrunk towards that of all: the moderated t statistic of
Smyth (2004, doi:10.2202/1544-6115.1027).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from harness.stats.estimate import Estimate, Prior
from harness.stats.intervals import FEWEST_SETS
from harness.types import Array64

FEWEST_MODELS = 4


def prior_of(models: Sequence[Estimate]) -> Prior | None:
    """The prior from models that were scored on the same three sets or more; None for fewer than
    four models, as one of three that varies more would have too much weight in the prior."""
    numbers = [sorted(model.by_set) for model in models]
    if len(models) < FEWEST_MODELS or len(numbers[0]) < FEWEST_SETS:
        return None
    if any(other != numbers[0] for other in numbers):
        return None
    return prior(np.array([[model.by_set[number] for number in numbers[0]] for model in models]))


def prior(scores: Array64) -> Prior:
    """The prior from scores [models, sets], less the mean of each model and of each set.

    The variances of models are taken to follow a scaled F distribution, whose two parameters are
    fitted to the mean and the variance of their logarithms: a few models that vary much more than
    the others say little of these. Half of its degrees of freedom count, and at most half of those
    of the residuals, as boards pick the extremes of many pairs. The variance of a difference is
    twice that of a model.
    """
    from scipy.special import digamma, polygamma

    models, sets = scores.shape
    most = (models - 1) * (sets - 1)
    residuals = scores - scores.mean(0) - scores.mean(1, keepdims=True) + scores.mean()
    per_model = most / models
    variances = np.square(residuals).sum(1) / per_model
    mean = float(variances.mean())
    if not mean:
        return Prior(0.0, most / 2)
    logs = np.log(np.maximum(variances, mean * _LEAST))
    spread = float(logs.var(ddof=1)) - float(polygamma(1, per_model / 2))
    if spread <= 0:
        return Prior(2 * mean, most / 2)
    degrees = 2 * _inverse_trigamma(spread)
    middle = float(logs.mean()) - digamma(per_model / 2) + math.log(per_model / 2)
    scale = math.exp(middle + digamma(degrees / 2) - math.log(degrees / 2))
    return Prior(2 * scale, min(degrees, most) / 2)


_LEAST = 1e-4
"""The least variance, as a share of the mean one: the logarithm of 0 would make the spread of all
variances infinite."""


def _inverse_trigamma(value: float) -> float:
    from scipy.optimize import brentq
    from scipy.special import polygamma

    return float(10 ** brentq(lambda x: float(polygamma(1, 10**x)) - value, -6, 8))
