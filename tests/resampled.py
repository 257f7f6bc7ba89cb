"""What records keep of made-up predictions, and their lines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from harness.evaluation.records import Record, each_record
from harness.evaluation.resamples import Resamples, range_of, to_resamples
from harness.reporting.lines import Line, lines_of
from harness.rng import rng
from harness.types import Array64, Shots
from tests.simulations import BY_DRAW, counts


def read_records(places: Iterable[str | Path]) -> list[Record]:
    return [record for _, record in each_record(places)]


def lines(records: Sequence[Record]) -> list[Line]:
    return [*lines_of(("", one) for one in records)]


def kept(right: Sequence[Array64], shots: Shots | None = None, design: str = "0" * 16) -> Resamples:
    """Of draws that are right on units or not, [units] each; records of one design are paired."""
    each = np.asarray(right, dtype=np.float64)
    on = counts(each.shape[1]) @ each.T / each.shape[1]
    alone = on[:BY_DRAW].T if len(each) > 1 else np.empty((1, 0))
    about = {"shots": shots, "unit": "row", "units": each.shape[1], "design": design}
    return to_resamples([*each.mean(axis=1)], on.mean(axis=1), alone, **about)


def resampled(one: Record, design: str = "0" * 16) -> Record:
    """A record with resamples of made-up rows, 0.01 around its scores."""
    made = []
    for shots in one.shots:
        values = np.array(one.values(shots))
        noise = 0.01 * rng(0, one.task, one.digest, one.protocol).standard_normal(2000)
        mean, ends = values.mean() + noise, range_of(one.metrics)
        drawn = values[:, None] + noise[:64] if len(values) > 1 else np.empty((1, 0))
        about = {"shots": shots, "unit": "row", "units": min(100, one.rows), "design": design}
        made.append(to_resamples(values, mean.clip(*ends), drawn.clip(*ends), **about))
    return one.model_copy(update={"resamples": tuple(made)})
