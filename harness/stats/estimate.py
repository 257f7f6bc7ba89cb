"""The noun: what a model scores on a task, with what is known of chance."""

from __future__ import annotations

from dataclasses import dataclass

from harness.types import Array64


@dataclass(frozen=True)
class Estimate:
    """A model on a task under one protocol and number of shots; scores are fractions.

    `values` [draws] are the scores of each draw of shots, one where nothing is drawn. `resamples`
    [B] is their mean on resampled test units, `by_draw` [draws, K] each draw alone on the first K
    of the same resamples, [1, 0] where there is one draw. `units` is how many test units are
    resampled: rows, sentences or documents.
    """

    values: Array64
    resamples: Array64
    by_draw: Array64
    units: int
