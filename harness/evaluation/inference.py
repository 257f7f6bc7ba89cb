"""What scores say beyond the rows that they were measured on. Pure, but for named random streams.

All of it is of the test rows, and of the tasks where that is said: the draws of shots, the training
and the models are held as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from harness.errors import BrokenRecord
from harness.evaluation.counting import EXCHANGED, SUMS, Draws, draws_of
from harness.evaluation.predictions import DrawKey, Lookup, Predicted
from harness.evaluation.records import Interval, Record, identity
from harness.rng import rng
from harness.types import Array64, Shots

LEVEL = 0.95
POWER = 0.8
RESAMPLES = 1000
SLOW_RESAMPLES = 200
"""Where a metric is asked of one resample after the other."""
FEWEST_TASKS = 6
"""Tasks that say something of other tasks: all five of one sign happen by chance in 1 of 16."""
PERMUTATIONS = 2000
COUNTED = 5
"""Resamples in a tail below which its share is not counted."""
DIGITS = 6
"""Of the ends of an interval, far below the chance of a bootstrap: sums round as threads do."""
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

    Models on the same rows are read on the same resamples, so their differences are paired.
    """
    draws, rows = draws_of(predicted, shots), len(predicted.units)
    fast = {*SUMS, "spearman"} >= {*predicted.task.metrics}
    count = RESAMPLES if fast else SLOW_RESAMPLES
    size = max(1, min(count, BLOCK // rows))
    starts = range(0, count, size)
    blocks = (_block(predicted.digest, rows, at, min(size, count - at)) for at in starts)
    pieces = (block[at : at + PIECE] for block in blocks for at in range(0, len(block), PIECE))
    return np.concatenate([draws.under(piece) for piece in pieces])


Samples: TypeAlias = Callable[[Record, "Shots | None"], "Array64 | None"]
"""What a record says with so many shots, on resampled rows; None without its predictions."""


def sampler(look: Lookup) -> Samples:
    """The resamples of records whose predictions can be read; each is made once."""
    known: dict[tuple[str, Shots | None], Array64 | None] = {}

    def read(record: Record) -> Predicted | None:
        try:
            return look(record)
        except BrokenRecord:  # of an older version, say: who shows a record can do without
            return None

    def samples(record: Record, shots: Shots | None) -> Array64 | None:
        key = identity(record.model_dump(mode="json")), shots
        if key not in known:
            predicted = read(record)
            known[key] = None if predicted is None else resampled(predicted, shots)
        return known[key]

    return samples


def aligned(samples: Sequence[Array64]) -> Array64:
    """Resamples of several scores as rows, as many as all of them have."""
    count = min(map(len, samples))
    return np.stack([one[:count] for one in samples])


def ends(sample: Array64) -> tuple[float, float]:
    """The ends of the interval that holds the middle share `LEVEL` of a bootstrap."""
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(sample, [tail, 100 - tail])
    return round(float(low), DIGITS), round(float(high), DIGITS)


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

TestName: TypeAlias = Literal["McNemar", "permutation", "bootstrap"]


@dataclass(frozen=True)
class PairedTest:
    """A two-sided test of whether two models score the same, and its p-value."""

    name: TestName
    p: float


def paired_test(first: Predicted, second: Predicted, shots: Shots | None) -> PairedTest:
    """The test of two models on the same rows of a task.

    Exact McNemar for the accuracy of one prediction each. Where the metrics are counts, and both
    have as many draws, a permutation test: were the models alike, a row's predictions might as well
    be the other's. Else a bootstrap of the rows.
    """
    keys = [one.draws(shots) for one in (first, second)]
    alike = len(keys[0]) == len(keys[1])
    if alike and len(keys[0]) == 1 and first.task.metrics == ("accuracy",):
        a, b = _rights(first, keys[0][0]), _rights(second, keys[1][0])
        return PairedTest("McNemar", mcnemar(int((a & ~b).sum()), int((b & ~a).sum())))
    if alike and {*first.task.metrics} <= EXCHANGED:
        both = draws_of(first, shots), draws_of(second, shots)
        return PairedTest("permutation", permutation(*both, first.digest))
    samples = aligned([resampled(one, shots) for one in (first, second)])
    return PairedTest("bootstrap", bootstrap_p(samples[0] - samples[1]))


def mcnemar(first: int, second: int) -> float:
    """The exact p-value, of the rows that only the first, and only the second, is right on.

    By hand: 1 and 5: 2 (1 + 6) / 2^6 = 0.21875.
    """
    from scipy.stats import binomtest

    return float(binomtest(first, first + second).pvalue) if first + second else 1.0


def permutation(first: Draws, second: Draws, digest: str) -> float:
    """The p-value where the rows of two models, all draws at once, are exchanged at random."""
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
    return float(tested.pvalue)


def bootstrap_p(differences: Array64) -> float:
    """The two-sided p-value of paired differences on resampled rows: twice the smaller tail.

    Of a tail with too few resamples to be counted, that of a normal distribution of their mean and
    deviation, which stays below what was counted: Holm asks small values of many.
    """
    from scipy.stats import norm

    count = 1 + len(differences)
    tail = int(min((differences <= 0).sum(), (differences >= 0).sum()))
    spread = float(differences.std(ddof=1))
    if tail >= COUNTED or not spread:
        return min(1.0, 2 * (1 + tail) / count)
    return min(2 * (1 + COUNTED) / count, float(2 * norm.sf(abs(differences.mean()) / spread)))


def holm(values: Sequence[float]) -> tuple[float, ...]:
    """p-values adjusted for there being several, so that the chance of any false alarm is held.

    Holm (1979). By hand: 0.01, 0.04, 0.03 are 3 x 0.01, then 2 x 0.03, then 1 x 0.04, which is no
    less than the one before: 0.03, 0.06, 0.06.
    """
    p = np.asarray(values, dtype=np.float64)
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(steps, 1)
    return tuple(adjusted.tolist())


# Over tasks --------------------------------------------------------------------------------


def over_tasks(samples: Array64) -> Array64:
    """The mean over tasks, tasks and rows drawn anew: [..., tasks, resamples] -> [..., resamples].

    Of each task that is drawn, one of its resamples. A single task is held.
    """
    tasks, count = samples.shape[-2:]
    if tasks == 1:
        return np.asarray(samples[..., 0, :])
    random = rng(0, "tasks", tasks)
    drawn = random.integers(tasks, size=(count, tasks))
    at = random.integers(count, size=(count, tasks))
    return np.asarray(samples[..., drawn, at].mean(axis=-1))


def _factor() -> float:
    """How many standard errors a difference has to be for a test at LEVEL to have POWER."""
    from scipy.stats import norm

    return float(norm.ppf((1 + LEVEL) / 2) + norm.ppf(POWER))


def detectable(differences: Array64) -> float:
    """The smallest difference that a test on so many rows shows with a power of 80 %.

    By hand: 1.960 + 0.842 = 2.802 standard errors; 0.01 is the error, 0.028 is shown.
    """
    return _factor() * float(np.std(differences, ddof=1))


def rows_needed(difference: float, rows: int, samples: Array64) -> int | None:
    """About how many rows would show such a mean difference; None where no number would.

    `samples`, [tasks, resamples], are the paired differences on so many `rows`. What differs from
    task to task does not shrink with the rows of each.
    """
    of_rows, whole = samples.mean(axis=0).var(ddof=1), over_tasks(samples).var(ddof=1)
    left = (difference / _factor()) ** 2 - max(0.0, float(whole - of_rows))
    return None if left <= 0 else math.ceil(rows * float(of_rows) / left)


# Several models ----------------------------------------------------------------------------


def ranks(values: Array64) -> Array64:
    """The rank of each model on each task, 1 the best, ties in the middle: [models, ...]."""
    from scipy.stats import rankdata

    return np.asarray(rankdata(-values, axis=0))


def win_rates(values: Array64) -> Array64:
    """The share of other models, over all tasks, that each is better than: ties are half of one.

    [models, tasks] -> [models]. By hand: one of three that wins one task and ties with another one
    for the last place of a second has won (2 + 0.5) / 4.
    """
    ahead = values[:, None] - values[None]
    wins = (ahead > 0) + 0.5 * (ahead == 0)
    models, tasks = values.shape
    return np.asarray((wins.sum(axis=(1, 2)) - 0.5 * tasks) / ((models - 1) * tasks))


def apart(samples: Array64) -> set[tuple[int, int]]:
    """The pairs of models, (i, j) with i < j, whose means over tasks are told apart.

    `samples` are [models, tasks, resamples]; a paired bootstrap, Holm over all pairs.
    """
    means = over_tasks(samples)
    pairs = list(combinations(range(len(means)), 2))
    p = holm([bootstrap_p(means[i] - means[j]) for i, j in pairs])
    return {pair for pair, value in zip(pairs, p, strict=True) if value < 1 - LEVEL}


def tie_groups(order: Sequence[int], known: Collection[tuple[int, int]]) -> list[tuple[int, ...]]:
    """Models in an order, in the longest runs in which no two are `known` to be apart.

    A model may be of several. By hand: of 0, 1, 2 with 0 and 2 apart: (0, 1) and (1, 2).
    """

    def joined(first: int, last: int) -> bool:
        pairs = combinations(sorted(order[first : last + 1]), 2)
        return not any(pair in known for pair in pairs)

    runs: list[tuple[int, ...]] = []
    end = -1
    for first in range(len(order)):
        last = max(last for last in range(first, len(order)) if joined(first, last))
        if last > end:
            runs.append(tuple(order[first : last + 1]))
            end = last
    return runs
