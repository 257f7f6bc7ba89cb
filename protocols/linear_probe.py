"""Linear probe and fresh head: what does a linear model read off the features, given labels?

The probe is given the labels of a few rows, the fresh head those of all rows.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from harness import Encoded, Predictions, protocol
from harness.options import Positive
from harness.types import Array, Array64, FeaturesName

ITERATIONS = 1000
"""The most iterations of Newton's method; scikit-learn warns if it stops there."""
TOLERANCE = 1e-10
"""Noise of 3e-7 in features changed up to 5 in 1000 predictions with 1e-4, and none with this."""


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

    Classification: scikit-learn's multinomial logistic regression on the unscaled features, with an
    intercept; the objective is the sum of the losses plus `penalty` times half the squared norm of
    the weights (C = 1 / penalty). For two classes scikit-learn fits one vector of weights, to which
    the same penalty is twice that of two vectors. Tagging: the same on the drawn words.
    Multi-label: one regression for each class, between rows with and without it. Regression: ridge
    with alpha = penalty. Classes of which nothing is drawn are never predicted; if only one class
    is drawn, it always is.

    `tolerance`: the logistic regression stops when no entry of the gradient of the mean loss, for
    features of size 1, is larger. Its minimum is unique; stopped earlier, as with scikit-learn's
    default of 1e-4, it ends at a point nearby that depends on the rounding of features.

    `features` are taken as for `knn`.
    """
    del features  # it decided what was encoded
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

    The linear model of `linear-probe`, but with the `penalty` on weights for features of size 1
    (root mean square about their mean). So rotations, shifts and scalings of the features do not
    change its predictions: a merge may lose by these alone, and a new head undoes them.
    """
    return _fitted(encoded, penalty, tolerance, of_size_one=True)


def _fitted(
    encoded: Encoded, penalty: float, tolerance: float, *, of_size_one: bool = False
) -> list[Predictions]:
    """Predictions by a linear model for each draw; `of_size_one`: the penalty of `fresh-head`."""
    pool = encoded.pool
    assert pool is not None, "or there is no such cell"
    x, made = encoded.test.x.astype(np.float64), list[Predictions]()
    for draw in encoded.draws:
        units = sorted({unit for group in draw.rows for unit in group})
        # a penalty on w for x / size is size squared times that penalty on w / size for x
        squared = float(pool.x[units].var(axis=0, dtype=np.float64).mean()) if of_size_one else 1
        rule = Linear(x, pool.x, penalty * (squared or 1), tolerance)
        made.append(Predictions(encoded.kind.predict_by(rule, pool.labels, draw), draw))
    return made


@dataclass(frozen=True)
class Linear:
    """The rule of a linear model. `x` [rows, width] are to be predicted, `pool` has drawn rows."""

    x: Array64
    pool: Array
    penalty: float
    tolerance: float = TOLERANCE

    def group(self, groups: Sequence[Sequence[int]]) -> Array64:
        """The group that a logistic regression predicts; the first if no group has units."""
        from sklearn.linear_model import LogisticRegression

        units = [unit for group in groups for unit in group]
        owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        if len({*owner.tolist()}) < 2:
            return np.full(len(self.x), float(owner[0]) if len(owner) else 0.0)
        x = self.pool[units].astype(np.float64)
        # centred and of size 1: the same minimum, but rounding does not end the search before it
        mean = x.mean(axis=0)
        size = float(np.sqrt(((x - mean) ** 2).mean())) or 1.0
        model = LogisticRegression(
            C=size**2 / self.penalty, solver="newton-cg", tol=self.tolerance, max_iter=ITERATIONS
        )
        with warnings.catch_warnings():
            # one shot of each of many classes is meant
            warnings.filterwarnings("ignore", "The number of unique classes")
            model.fit((x - mean) / size, owner)
        return np.asarray(model.predict((self.x - mean) / size), dtype=np.float64)

    def value(self, groups: Sequence[Sequence[int]], labels: Array64) -> Array64:
        """The value that a ridge regression predicts."""
        from sklearn.linear_model import Ridge

        units = [unit for group in groups for unit in group]
        model = Ridge(alpha=self.penalty)
        model.fit(self.pool[units].astype(np.float64), labels[units])
        return np.asarray(model.predict(self.x), dtype=np.float64)
