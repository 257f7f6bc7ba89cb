"""The noun `Resamples`: a score on resampled test units, as a record stores it in little space.

The score on a resample is stored as a whole number of steps from the score itself, in one byte;
bytes are written in base64. Which units a resample takes is not stored, and cannot be found without
the labels: see `bootstrap`.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Sequence
from math import fsum
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field

from harness.evaluation.counting import SUMS
from harness.stats.estimate import Estimate
from harness.types import Array64, Shots
from harness.values import Frozen

if TYPE_CHECKING:
    from harness.evaluation.records import DrawScore, Record

RIGHT_OR_WRONG = (("accuracy",), "row")
"""The metrics and the test unit of a score to which each unit counts as right or wrong."""
LOSS = "loss"
"""The fact of Current Eval with the loss of the model's own head, in the mean over labels."""
STEP = 0.0005
"""The step to which scores on resamples are rounded; doubled until the farthest fits in a byte."""
MANY, STEP_OF_MANY = 10_000, STEP / 16
"""With more test units, two models may differ by less than STEP, so this smaller step is used."""
STEP_OF_LOSS = STEP / 1024
"""The step of losses, which may be near 0 and then differ by little."""
MAX_STEPS = 127
"""The most steps from the score that are stored in a signed byte."""
DIGITS = 6
"""The digits that a number of steps is rounded to before it is rounded to a whole number, so that
halves round alike on every processor."""


MAX_SCORE = 1e6
"""The largest size of a score: that of a user's metric may be above 1, but not above this."""
CORRELATIONS = ("matthews", "pearson", "spearman")
"""The metrics whose least value is -1; that of the harness's other metrics is 0."""


def range_of(metrics: Sequence[str]) -> tuple[float, float]:
    """The least and the largest value of the mean of metrics; a user's metric has +-MAX_SCORE."""
    ranges = [_range(metric) for metric in metrics]
    least, most = (fsum(ends) / len(ranges) for ends in zip(*ranges, strict=True))
    return least, most


def _range(metric: str) -> tuple[float, float]:
    if metric == LOSS:  # a squared error has no bound
        return -math.inf, math.inf
    if metric in CORRELATIONS:
        return -1.0, 1.0
    return (0.0, 1.0) if metric in SUMS else (-MAX_SCORE, MAX_SCORE)


class Resamples(Frozen):
    """The mean score over the draws with `shots` shots on `count` resamples of the test units.

    `unit` is what is drawn with replacement (row, sentence, document), `units` how many there are.
    Records with the same `design` took the same units in every resample, so that their differences
    are paired. `values` has a signed byte for each resample: the number of steps from the score.
    `by_draw` has the same for each draw alone, if there are several, on the first resamples: one
    draw after the other.
    """

    shots: Shots | None = None
    unit: Literal["row", "sentence", "document"]
    units: int = Field(gt=0)
    count: int = Field(gt=1)
    step: float = Field(gt=0)
    design: str
    values: str = Field(repr=False)  # tens of thousands of characters, in a notebook
    by_draw: str = Field("", repr=False)


def to_resamples(
    scores: Sequence[float], mean: Array64, by_draw: Array64, *, step: float = STEP, **of: Any
) -> Resamples:
    """`Resamples` of the mean score [B] and of each draw [draws, K]; inverse of `to_estimate`.

    `scores` [draws] are those on all units; `step` is the smallest step, `of` the other fields.
    """
    points = np.asarray(scores)
    while True:
        whole, alone = _steps(mean - points.mean(), step), _steps(by_draw - points[:, None], step)
        if max(np.abs(whole).max(), np.abs(alone).max(initial=0)) <= MAX_STEPS:
            mean_text, draws_text = _text(whole), _text(alone)
            return Resamples(count=len(mean), step=step, values=mean_text, by_draw=draws_text, **of)
        step *= 2


def _steps(values: Array64, step: float) -> Array64:
    """The values as whole numbers of steps."""
    return np.asarray(np.rint(np.round(values / step, DIGITS)))


def _text(steps: Array64) -> str:
    return base64.b64encode(steps.astype(np.int8).tobytes()).decode()


def bytes_of(text: str) -> Array64:
    """The signed bytes in a text of base64. Raises ValueError if the text is not base64."""
    try:
        return np.frombuffer(base64.b64decode(text, validate=True), dtype=np.int8).astype(float)
    except binascii.Error as error:
        raise ValueError(f"{text:.20}: {error}") from error


def to_estimate(resamples: Resamples, scores: Sequence[float], metrics: Sequence[str]) -> Estimate:
    """The score with its resamples, clipped to the range of the metrics; inverse of `to_resamples`.

    `scores` are those of the draws on all units. Raises ValueError for scores outside the range of
    the metrics, and for text that is not base64.
    """
    points, step = np.asarray(scores, dtype=np.float64), resamples.step
    mean = points.mean() + bytes_of(resamples.values) * step
    alone = (
        bytes_of(resamples.by_draw).reshape(len(points), -1)
        if resamples.by_draw
        else np.empty((1, 0))
    )
    low, high = range_of(metrics)
    resampled = mean, points[: len(alone), None] + alone * step
    if any(((low - step > values) | (values > high + step)).any() for values in resampled):
        raise ValueError(f"scores beyond {low:g} to {high:g}")
    counted = len(points) == 1 and (tuple(metrics), resamples.unit) == RIGHT_OR_WRONG
    parts = resampled[0].clip(low, high), resampled[1].clip(low, high)
    return Estimate(points, *parts, resamples.units, counted=counted)


def scores_with_shots(scores: Sequence[DrawScore], shots: Shots | None) -> list[float]:
    """The scores of the draws with `shots` shots."""
    return [score.value for score in scores if score.shots == shots]


def estimates_of(
    resamples: Sequence[Resamples], scores: Sequence[DrawScore], metrics: Sequence[str]
) -> dict[Shots | None, Estimate]:
    """The score with its resamples, by number of shots."""
    return {
        kept.shots: to_estimate(kept, scores_with_shots(scores, kept.shots), metrics)
        for kept in resamples
    }


def loss_of(record: Record) -> Estimate | None:
    """A record's loss with its resamples; None if it has none."""
    if record.loss_resamples is None:
        return None
    return to_estimate(record.loss_resamples, [record.scores[0].facts[LOSS]], (LOSS,))


def estimate_of(record: Record, shots: Shots | None) -> Estimate:
    """A record's score with `shots` shots, and its resamples."""
    return estimates_of(record.resamples, record.scores, record.metrics)[shots]


def with_fewer_resamples(record: Record, count: int) -> Record:
    """A record with its first `count` resamples, the same for every model; `by_draw` is kept."""

    def first(kept: Resamples) -> Resamples:
        values = bytes_of(kept.values)[:count]
        return kept.model_copy(update={"count": len(values), "values": _text(values)})

    loss = record.loss_resamples
    fields = {
        "resamples": tuple(map(first, record.resamples)),
        "loss_resamples": loss and first(loss),
    }
    return record.model_copy(update=fields)
