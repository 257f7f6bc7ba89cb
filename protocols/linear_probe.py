"""Linear probe and fresh head: what does a linear model read off the features, given labels?

Of a few rows, or of all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness import Encoded, Predictions, protocol
from harness.options import Positive
from harness.types import Array, Array64, FeaturesName

ITERATIONS = 1000
"""Of Newton's method at most; scikit-learn warns where it stops there."""
TOLERANCE = 1e-10
"""At 1e-4, noise of 3e-7 in features changed up to five predictions of a thousand, at this none."""


@protocol(
    "linear-probe",
    adapts="labeled",
    by_default=False,
    features=lambda *, features, **_: features,
)
def linear_probe(
    encoded: Encoded,
    *,
    penalty: Positive = 1.0,
    tolerance: Positive = TOLERANCE,
    features: FeaturesName = "last_linear",
) -> list[Predictions]:
    """One prediction of the test rows per draw, by a linear model fitted to the drawn labels.

    Classification: multinomial logistic regression of scikit-learn on the features as they are,
    (an intercept, half the squared norm of the weights times `penalty` beside the sum of the
    losses, C = 1 / penalty; of two classes one vector of weights is fitted, as scikit-learn does,
    to which the same penalty is twice that of two vectors). Tagging: the same, of the drawn words.
    Multi-label: one for each class, of those that have it and those that have it not. Regression:
    ridge with alpha = penalty. Classes of which nothing is drawn are never predicted, and where one
    alone is, it always is.

    `tolerance`: the largest entry of the gradient of the mean loss, of features of size 1, where
    the logistic regression ends. It has one minimum; ended earlier, as by scikit-learn's own 1e-4,
    it is some point near it that the rounding of features moves.

    `features` are taken where those of `knn` are.
    """
    del features  # what is encoded
    return _fitted(encoded, penalty, tolerance)


@protocol(
    "fresh-head",
    paper="openreview:230T2UcWwR",
    adapts="labeled",
    by_default=False,
    all_rows=True,
)
def fresh_head(
    encoded: Encoded, *, penalty: Positive = 1.0, tolerance: Positive = TOLERANCE
) -> list[Predictions]:
    """The prediction of a new head, fitted to the labels of all rows under the frozen encoder.

    The linear model of `linear-probe`, whose `penalty` is here on the weights of features of size 1
    (root mean square about their mean). So no turn, shift or change of size of the features changes
    what it predicts, all of which a new head undoes and of which the loss of a merge may consist.
    """
    return _fitted(encoded, penalty, tolerance, of_size_one=True)


def _fitted(
    encoded: Encoded, penalty: float, tolerance: float, *, of_size_one: bool = False
) -> list[Predictions]:
    """Predictions by a linear model of each draw; its penalty may be of features of size 1."""
    pool = encoded.pool
    assert pool is not None, "or there is no such cell"
    x, made = encoded.test.x.astype(np.float64), list[Predictions]()
    for draw in encoded.draws:
        units = sorted({unit for group in draw.rows for unit in group})
        # the penalty of w for x / size is that of w / size, times size squared, for x
        squared = float(pool.x[units].var(axis=0, dtype=np.float64).mean()) if of_size_one else 1
        rule = Linear(x, pool.x, penalty * (squared or 1), tolerance)
        made.append(Predictions(encoded.kind.predict_by(rule, pool.labels, draw), draw))
    return made


@dataclass(frozen=True)
class Linear:
    """By a linear model of features, [rows, width] of those predicted and of the pool."""

    x: Array64
    pool: Array
    penalty: float
    tolerance: float = TOLERANCE

    def group(self, groups: Sequence[Sequence[int]]) -> Array64:
        """The group that a logistic regression names; of no group with units, the first."""
        from sklearn.linear_model import LogisticRegression

        units = [unit for group in groups for unit in group]
        owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        if len({*owner.tolist()}) < 2:
            return np.full(len(self.x), float(owner[0]) if len(owner) else 0.0)
        x = self.pool[units].astype(np.float64)
        # about the mean and of size 1: the same minimum, which rounding lets a search come down to
        mean = x.mean(axis=0)
        size = float(np.sqrt(((x - mean) ** 2).mean())) or 1.0
        model = LogisticRegression(
            C=size**2 / self.penalty, solver="newton-cg", tol=self.tolerance, max_iter=ITERATIONS
        )
        model.fit((x - mean) / size, owner)
        return np.asarray(model.predict((self.x - mean) / size), dtype=np.float64)

    def value(self, groups: Sequence[Sequence[int]], labels: Array64) -> Array64:
        """The value of a ridge regression."""
        from sklearn.linear_model import Ridge

        units = [unit for group in groups for unit in group]
        model = Ridge(alpha=self.penalty)
        model.fit(self.pool[units].astype(np.float64), labels[units])
        return np.asarray(model.predict(self.x), dtype=np.float64)
