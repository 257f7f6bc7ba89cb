"""Predictions -> scores on resampled rows, their intervals, and tests of two models.

Pure, but for named random streams.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from harness.errors import BrokenRecord, WrongPredictions
from harness.evaluation.counting import EXCHANGED, SUMS, Draws, draws_of
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
from harness.types import Array64, Shots

RESAMPLES = 1000
SLOW_RESAMPLES = 200
"""Where a metric is asked of one resample after the other."""
PERMUTATIONS = 2000
BLOCK = 4_000_000
"""Counts that are held at once: resamples x rows."""
PIECE = 250
"""Resamples that are counted at once: more of them leave the processor's cache."""


# Resampling rows ---------------------------------------------------------------------------


@lru_cache(maxsize=1)
def _block(digest: str, rows: int, first: int, size: int) -> Array64:
    """How often each row is drawn, [size, rows]; the same for all models on the same rows.

    The last block is kept: cells on the same rows follow one another.
    """
    places = rng(0, "bootstrap", digest, first).integers(rows, size=(size, rows))
    places += rows * np.arange(size)[:, None]
    counts = np.bincount(places.ravel(), minlength=size * rows).astype(np.float64)
    counts.flags.writeable = False
    return counts.reshape(size, rows)


def resampled(predicted: Predicted, shots: Shots | None) -> Array64:
    """The mean over the draws with so many shots, on rows drawn with replacement: [resamples].

    Models on the same rows are read on the same resamples, so their differences are paired. One
    that leaves a metric nothing to score is drawn again. Raises BrokenRecord where all do.
    """
    draws, rows = draws_of(predicted, shots), len(predicted.units)
    fast = {*SUMS, "spearman"} >= {*predicted.task.metrics}
    count = RESAMPLES if fast else SLOW_RESAMPLES
    size = max(1, min(count, BLOCK // rows))

    def values(first: int, last: int) -> Array64:
        starts = range(first, last, size)
        blocks = (_block(predicted.digest, rows, at, min(size, last - at)) for at in starts)
        pieces = (block[at : at + PIECE] for block in blocks for at in range(0, len(block), PIECE))
        return np.concatenate([draws.under(piece) for piece in pieces])

    if np.isnan(draws.under(np.ones((1, rows)))).any():
        raise BrokenRecord(
            f"the predictions on {predicted.task} have nothing to score, expected labels of which "
            f"{' and '.join(predicted.task.metrics)} has a value"
        )
    made, drawn = values(0, count), count
    while (odd := np.flatnonzero(np.isnan(made))).size:
        made[odd] = values(drawn, drawn + len(odd))
        drawn += len(odd)
    return made


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


def intervals(predicted: Predicted) -> tuple[Interval, ...]:
    """The interval over test rows of the mean over the draws, for every number of shots."""
    return tuple(
        interval(predicted, shots) for shots in dict.fromkeys(k[0] for k in predicted.values)
    )


def interval(predicted: Predicted, shots: Shots | None) -> Interval:
    """Wilson's, of the accuracy of one prediction; else the percentiles of a bootstrap of rows.

    By hand: 8 of 10 rows right, z = 1.96: (0.8 + 0.192 -+ 1.96 sqrt(0.016 + 0.0096)) / 1.384, from
    0.490 to 0.943.
    """
    keys = predicted.draws(shots)
    if len(keys) == 1 and predicted.task.metrics == ("accuracy",):
        right = _rights(predicted, keys[0])
        low, high = wilson(int(right.sum()), len(right))
        return Interval(low=low, high=high, shots=shots, method="wilson", level=LEVEL)
    low, high = ends(resampled(predicted, shots))
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
