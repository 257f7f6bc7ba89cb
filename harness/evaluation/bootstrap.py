"""Bootstrap: test units drawn with replacement, and the scores of models on them.

Pure, except for a named random stream. Resample b takes the same units for every model, protocol
and number of shots on the same rows, so that differences of two models are paired.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from harness.errors import BrokenRecord
from harness.evaluation.counting import SUMS, scores_on_counts
from harness.evaluation.predictions import Predicted
from harness.evaluation.records import DrawScore, Interval
from harness.evaluation.resamples import (
    MANY,
    STEP,
    STEP_OF_LOSS,
    STEP_OF_MANY,
    Resamples,
    range_of,
    scores_with_shots,
    to_resamples,
)
from harness.kinds import kind_of
from harness.rng import rng
from harness.stats.estimate import Estimate
from harness.stats.intervals import DIGITS, LEVEL, interval
from harness.types import Array64, Shots

MIN_RESAMPLES, MAX_RESAMPLES, TOTAL_UNITS = 2000, 20_000, 1_200_000
"""Numbers of resamples: at least 2,000; for few units so many that about 1,200,000 units are drawn
in all, at most 20,000 resamples. An end of an interval, 1.96 standard deviations away, is then less
than 0.1 points from that of infinitely many."""
SLOW_RESAMPLES = 200
"""The number of resamples if a metric is computed on one resample after the other."""
DRAW_RESAMPLES = 64
"""The number of resamples, the first ones, for which the score of each draw is kept."""
BLOCK = 1_000_000
"""The most counts (resamples x units) in memory at once as float64."""
TRIES = 100
"""The most resamples drawn per resample kept: those that leave a metric undefined are dropped."""

Counts = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Design:
    """The resamples of some rows: how often each takes each unit, [resamples, units].

    `row_units` [rows] is the unit that each row belongs to, None if each row is a unit. `digest` is
    a hash of the counts.
    """

    counts: Counts
    row_units: npt.NDArray[np.int64] | None
    digest: str

    def blocks(self) -> Iterator[Array64]:
        """How often each row is taken, [some resamples, rows], for all resamples in turn."""
        units = self.counts.shape[1]
        rows = units if self.row_units is None else len(self.row_units)
        size = max(1, BLOCK // rows)
        for first in range(0, len(self.counts), size):
            block = self.counts[first : first + size]
            taken = block if self.row_units is None else block[:, self.row_units]
            yield taken.astype(np.float64)


@dataclass(frozen=True)
class _Drawn:
    """What a `Design` depends on: the rows, by `seed`, a hash of them and of their labels, and the
    `metrics` that no resample may leave undefined, even without the rows of any of `left`."""

    seed: str
    metrics: tuple[str, ...]
    left: tuple[tuple[int, ...], ...]
    labels: Predicted = field(compare=False)


def design_of(predicted: Predicted) -> Design:
    """The resamples of the test rows of some predictions, whatever is predicted.

    Raises BrokenRecord if the labels leave a metric undefined.
    """
    lefts = sorted({tuple(predicted.left(key)) for key in predicted.values})
    # without the predictions, so that the cache of the last design is small
    labels = replace(predicted, values={(None, None): predicted.labels})
    return _design(_Drawn(_seed(predicted), predicted.task.metrics, tuple(lefts), labels))


def resample_count(units: int, metrics: Sequence[str]) -> int:
    """The number of resamples for a number of units."""
    if {*metrics} - {*SUMS, "spearman"}:
        return SLOW_RESAMPLES
    return min(MAX_RESAMPLES, max(MIN_RESAMPLES, math.ceil(TOTAL_UNITS / units)))


def _seed(predicted: Predicted) -> str:
    """A hash that cannot be computed without the labels, and is stored nowhere."""
    hasher = hashlib.blake2b(digest_size=16)
    hasher.update(json.dumps([predicted.digest, predicted.task.labels]).encode())
    for part in (predicted.labels, predicted.units, predicted.documents):
        # little-endian on every machine, and -0.0 as 0.0
        numbers = np.empty(0) if part is None else part
        hasher.update(json.dumps(numbers.shape).encode())
        hasher.update((numbers + 0.0).astype("<f8").tobytes())
    return hasher.hexdigest()


@lru_cache(maxsize=1)
def _design(drawn: _Drawn) -> Design:
    """The last design is cached: cells on the same rows follow one another."""
    labels, rows = drawn.labels, len(drawn.labels.units)
    names = " and ".join(drawn.metrics)
    units = rows if labels.documents is None else int(labels.documents.max()) + 1
    count = resample_count(units, drawn.metrics)
    size = max(1, min(count, BLOCK // units))
    whole = Design(np.ones((1, units), dtype=np.uint8), labels.documents, "")
    if not _defined(drawn, whole).all():
        raise BrokenRecord(f"the labels of {labels.task} leave {names} undefined; expected others")
    counts, filled = np.empty((count, units), dtype=np.uint8), 0
    for first in range(0, TRIES * count, size):
        taken = _taken(drawn.seed, units, first, size)
        defined = taken[_defined(drawn, replace(whole, counts=taken))][: count - filled]
        counts[filled : filled + len(defined)] = defined
        filled += len(defined)
        if filled == count:
            break
    else:
        raise BrokenRecord(
            f"{labels.task} leaves {names} undefined in resamples; expected more rows"
        )
    counts.flags.writeable = False
    digest = hashlib.blake2b(counts.reshape(-1).data, digest_size=8).hexdigest()
    return Design(counts, labels.documents, digest)


def _taken(seed: str, units: int, first: int, size: int) -> Counts:
    """How often each unit is taken, [size, units], from resample `first` on."""
    places = rng(0, "bootstrap", seed, first).integers(units, size=(size, units))
    places += units * np.arange(size)[:, None]
    counts = np.bincount(places.ravel(), minlength=size * units)
    return counts.astype(np.uint8).reshape(size, units)


def _defined(drawn: _Drawn, design: Design) -> npt.NDArray[np.bool_]:
    """Which resamples leave every metric defined: the labels alone decide."""
    good = np.ones(len(design.counts), dtype=np.bool_)
    for left_out in drawn.left:
        score = scores_on_counts(replace(drawn.labels, left_out={0: left_out}), [(None, None)])
        good &= ~np.isnan(np.concatenate([score(block)[0] for block in design.blocks()]))
    return good


# Scores ------------------------------------------------------------------------------------


def resampled_draws(predicted: Predicted, shots: Shots | None) -> Array64:
    """The score of each draw with `shots` shots on every resample: [draws, resamples].

    0 where a user's metric has no value although the labels define it. Raises BrokenRecord if the
    labels leave a metric undefined.
    """
    draws = scores_on_counts(predicted, predicted.draws(shots))
    scores = np.concatenate([draws(block) for block in design_of(predicted).blocks()], axis=1)
    return np.where(np.isfinite(scores), scores, 0.0)


def kept_resamples(
    predicted: Predicted, scores: Sequence[DrawScore], step: float | None = None
) -> tuple[Resamples, ...]:
    """The `resamples` of a record with these scores, one for every number of shots.

    `step` is the smallest step in which they are rounded, by default that of new records; older
    ones have another. Raises BrokenRecord if the labels leave a metric undefined.
    """
    fields, resamples = _units_of(predicted), []
    for shots in predicted.shots:
        draws = resampled_draws(predicted, shots)
        alone = draws[:, : DRAW_RESAMPLES if len(draws) > 1 else 0]
        points = scores_with_shots(scores, shots)
        least = step or (STEP if fields["units"] <= MANY else STEP_OF_MANY)
        resamples.append(
            to_resamples(points, draws.mean(axis=0), alone, step=least, shots=shots, **fields)
        )
    return tuple(resamples)


def _units_of(predicted: Predicted) -> dict[str, Any]:
    """The fields of `Resamples` about the test units."""
    design = design_of(predicted)
    unit = "sentence" if kind_of(predicted.task).split_into_words else "row"
    unit = unit if predicted.documents is None else "document"
    return {"unit": unit, "units": design.counts.shape[1], "design": design.digest}


def kept_loss(predicted: Predicted, losses: Array64) -> tuple[float, Resamples] | None:
    """The mean loss over all labels, and its values on the same resamples as the score.

    `losses` has the loss of every label, NaN where there is no label or the model did not see the
    unit. None if all are NaN.
    """
    finite = np.isfinite(losses)
    pairs = np.stack([np.where(finite, losses, 0.0), finite], axis=-1).reshape(len(losses), -1, 2)
    table = np.zeros((len(predicted.units), 2))
    np.add.at(table, np.repeat(np.arange(len(table)), predicted.units), pairs.sum(axis=1))
    table[[*predicted.left((None, None))]] = 0.0
    total, labels = table.sum(axis=0)
    if not labels:
        return None
    mean = round(float(total / labels), DIGITS)
    sums = np.concatenate([block @ table for block in design_of(predicted).blocks()])
    means = np.divide(sums[:, 0], sums[:, 1], out=np.full(len(sums), mean), where=sums[:, 1] > 0)
    fields = _units_of(predicted)
    return mean, to_resamples([mean], means, np.empty((1, 0)), step=STEP_OF_LOSS, **fields)


def intervals(
    metrics: Sequence[str], estimates: Mapping[Shots | None, Estimate]
) -> tuple[Interval, ...]:
    """The interval over test units and draws for every number of shots."""
    ends = range_of(metrics)
    bounds = ends if max(map(abs, ends)) <= 1 else None  # the range of a user's metric is not known
    result = []
    for shots, estimate in estimates.items():
        low, high = interval(estimate, bounds)
        result.append(Interval(low=low, high=high, shots=shots, method="student", level=LEVEL))
    return tuple(result)
