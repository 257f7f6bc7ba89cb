"""Predictions -> scores on resampled rows, their intervals, and tests of two models.

Pure, but for named random streams.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from harness.errors import BrokenRecord, WrongPredictions
from harness.evaluation.bootstrap import resampled
from harness.evaluation.counting import EXCHANGED, Draws, draws_of
from harness.evaluation.estimates import (
    COUNTED,
    DIGITS,
    LEVEL,
    Estimate,
    ends,
    p_value,
    uncounted,
)
from harness.evaluation.predictions import DrawKey, Lookup, Predicted
from harness.evaluation.records import Interval, Record, identity_of
from harness.rng import rng
from harness.stats.estimate import Estimate as Of
from harness.types import Array64, Shots

PERMUTATIONS = 2000
BLOCK = 4_000_000
"""Counts that are held at once: resamples x rows."""


# Resampled rows ---------------------------------------------------------------------------


Samples: TypeAlias = Callable[[Record, "Shots | None"], "Array64 | None"]
"""What a record says with so many shots, on resampled rows; None without its predictions."""


def sampler(look: Lookup) -> Samples:
    """The resamples of records whose predictions can be read; each is made once."""
    known: dict[tuple[str, Shots | None], Array64 | None] = {}

    def read(record: Record, shots: Shots | None) -> Array64 | None:
        try:
            predicted = look(record)
            return None if predicted is None else resampled(predicted, shots)
        except WrongPredictions:
            raise
        except BrokenRecord:  # of an older version, say: who shows a record can do without
            return None

    def samples(record: Record, shots: Shots | None) -> Array64 | None:
        key = identity_of(record), shots
        if key not in known:
            known[key] = read(record, shots)
        return known[key]

    return samples


# An interval of a score --------------------------------------------------------------------


def intervals(predicted: Predicted, estimates: Mapping[Shots | None, Of]) -> tuple[Interval, ...]:
    """The interval over test rows of the mean over the draws, for every number of shots."""
    return tuple(interval(predicted, shots, one.resamples) for shots, one in estimates.items())


def interval(predicted: Predicted, shots: Shots | None, sample: Array64) -> Interval:
    """Wilson's, of the accuracy of one prediction; else the percentiles of a bootstrap of rows.

    `sample` are the scores on resampled rows. By hand: 8 of 10 rows right, z = 1.96: (0.8 + 0.192
    -+ 1.96 sqrt(0.016 + 0.0096)) / 1.384, from 0.490 to 0.943.
    """
    keys = predicted.draws(shots)
    if len(keys) == 1 and predicted.task.metrics == ("accuracy",) and predicted.documents is None:
        right = _rights(predicted, keys[0])
        low, high = wilson(int(right.sum()), len(right))
        return Interval(low=low, high=high, shots=shots, method="wilson", level=LEVEL)
    low, high = ends(sample)
    return Interval(low=low, high=high, shots=shots, method="bootstrap", level=LEVEL)


def wilson(right: int, rows: int) -> tuple[float, float]:
    """Wilson's interval of a share."""
    from scipy.stats import binomtest

    around = binomtest(right, rows).proportion_ci(LEVEL, method="wilson")
    return round(float(around.low), DIGITS), round(float(around.high), DIGITS)


def _rights(predicted: Predicted, key: DrawKey) -> npt.NDArray[np.bool_]:
    """Which of the scored rows a prediction is right on."""
    right = predicted.values[key] == predicted.labels
    return np.delete(right, np.asarray(predicted.left(key), dtype=np.int64))


# Two models on the same rows ---------------------------------------------------------------

TestName: TypeAlias = Literal["McNemar", "permutation", "bootstrap", "draws"]


@dataclass(frozen=True)
class PairedTest:
    """A two-sided test of whether two models score the same, and its p-value."""

    name: TestName
    p: float


def paired_test(
    first: Predicted, second: Predicted, shots: Shots | None, difference: Estimate
) -> PairedTest:
    """The test of two models on the same rows of a task; `difference` is that of their scores.

    Exact McNemar for the accuracy of one prediction each. Where the metrics are counts, a
    permutation test: were the models alike, a row's predictions might as well be the other's. Else
    a bootstrap of the rows; of several draws of shots a t test of rows and draws, as rows alone
    would take what these draws happen to say for what the models do.
    """
    keys = [one.draws(shots) for one in (first, second)]
    single = len(keys[0]) == len(keys[1]) == 1
    if single and first.task.metrics == ("accuracy",):
        a, b = _rights(first, keys[0][0]), _rights(second, keys[1][0])
        return PairedTest("McNemar", mcnemar(int((a & ~b).sum()), int((b & ~a).sum())))
    if single and {*first.task.metrics} <= EXCHANGED:
        both = draws_of(first, shots), draws_of(second, shots)
        return PairedTest("permutation", permutation(*both, first.digest))
    return PairedTest("bootstrap" if single else "draws", p_value(difference))


FEWEST_APART = 6
"""Rows that an exact McNemar tells two models apart by, all of one sign: 2 / 2^6 = 0.031."""


def mcnemar(first: int, second: int) -> float:
    """The exact p-value, of the rows that only the first, and only the second, is right on.

    By hand: 1 and 5: 2 (1 + 6) / 2^6 = 0.21875.
    """
    from scipy.stats import binomtest

    return float(binomtest(first, first + second).pvalue) if first + second else 1.0


def permutation(first: Draws, second: Draws, digest: str) -> float:
    """The p-value where the rows of two models, all draws at once, are exchanged at random.

    Of a tail with too few of these to be counted, that of a normal distribution.
    """
    from scipy.stats import permutation_test

    pairs = list(zip(first.sums(), second.sums(), strict=True))
    rows = len(pairs[0][0].table)

    def difference(theirs: Array64, mine: Array64, axis: int) -> Array64:
        """Between the models when each has those rows of the other that `theirs` is 1 at."""
        each = [
            a.formula(a.table.sum(0) + theirs @ (b.table - a.table))
            - a.formula(b.table.sum(0) - theirs @ (b.table - a.table))
            for a, b in pairs
        ]
        return np.asarray(np.mean(each, axis=0))

    tested = permutation_test(
        (np.zeros(rows), np.ones(rows)),
        difference,
        permutation_type="samples",
        vectorized=True,
        n_resamples=PERMUTATIONS - 1,
        batch=max(1, BLOCK // rows),
        random_state=rng(0, "permutation", digest),
    )
    chance = np.asarray(tested.null_distribution)
    reached = int((np.abs(chance) >= abs(tested.statistic)).sum())
    every = len(chance) < PERMUTATIONS - 1  # few rows: all exchanges were tried
    if every or reached >= COUNTED or not chance.std():
        return float(tested.pvalue)
    return uncounted(abs(tested.statistic) / chance.std(), float(tested.pvalue))
