"""What rises above the straight line between two ends: the barrier between two models."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.stats.estimate import Estimate, minus, of


def rises(places: Sequence[float], along: Sequence[Estimate]) -> list[Estimate]:
    """How far each value lies above the line from the first to the last, at places from 0 to 1.

    By hand: 1, 4 and 2 at 0, 1/2 and 1 are 0, 5/2 and 0 above it.
    """

    def line(x: float) -> Estimate:
        return of(lambda first, last: (1 - x) * first + x * last, along[0], along[-1])

    return [minus(one, line(x)) for x, one in zip(places, along, strict=True)]


def highest(above: Sequence[Estimate]) -> tuple[int, Estimate]:
    """The place of the largest of some estimates, and that: on each resample the largest there.

    So its variance has that of which one is the largest. It is as a rule a little too large, as
    every maximum of what chance moves.
    """
    at = int(np.argmax([one.point for one in above]))
    largest = np.stack([one.resamples for one in above]).max(axis=0)
    return at, Estimate(above[at].values, largest, above[at].by_draw, above[at].units)
