"""Estimates -> the intervals that a record has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.evaluation.records import Interval
from harness.evaluation.resamples import range_of
from harness.stats.estimate import Estimate
from harness.stats.intervals import LEVEL, interval
from harness.types import Shots


def intervals(
    metrics: Sequence[str], estimates: Mapping[Shots | None, Estimate]
) -> tuple[Interval, ...]:
    """The interval over test units and draws, for every number of shots."""
    ends = range_of(metrics)
    bounds = ends if max(map(abs, ends)) <= 1 else None  # of one's own, nobody knows
    made = []
    for shots, one in estimates.items():
        low, high = interval(one, bounds)
        made.append(Interval(low=low, high=high, shots=shots, method="student", level=LEVEL))
    return tuple(made)
