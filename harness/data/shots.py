"""Few-shot selection: which rows of a pool are drawn."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.rng import rng
from harness.types import Array64, Draw, Rows, Task

BINS = 5
"""Regression draws its shots from this many equal-width bins of the label (methods.md 3.4)."""


def groups(task: Task, labels: Array64) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
    """Row numbers by class, or by equal-width bin of the label for regression."""
    if task.kind == "classification":
        return [np.flatnonzero(labels == index) for index in range(len(task.labels))]
    edges = np.linspace(labels.min(), labels.max(), BINS + 1)[1:-1]
    bins = np.digitize(labels, edges)
    return [np.flatnonzero(bins == index) for index in range(BINS)]


def draw(rows: Rows, shots: Sequence[int], seeds: Sequence[int]) -> tuple[list[int], list[Draw]]:
    """Few-shot selections for every number of shots and seed (methods.md 3.3).

    Returns what `selected` returns. Of a class, or bin of labels, that has fewer rows than shots
    all are taken, which is warned of.
    """
    by_group = groups(rows.task, rows.labels)
    _warn_of_few(rows, [len(members) for members in by_group], max(shots))
    orders = {
        seed: [
            rng(seed, "fewshot", rows.task.name, index).permutation(members).tolist()
            for index, members in enumerate(by_group)
        ]
        for seed in seeds
    }
    return selected(orders, shots)


def _warn_of_few(rows: Rows, counts: Sequence[int], most: int) -> None:
    labels = rows.task.labels
    called = [f"label '{name}'" for name in labels] or [f"label bin {i}" for i in range(BINS)]
    pairs = zip(counts, called, strict=True)
    if few := ", ".join(f"{count} with {unit}" for count, unit in pairs if count < most):
        never = "" if min(counts) else ", and one without rows has no neighbours to be predicted by"
        warnings.warn(
            f"{rows.task}@{rows.split} has too few rows for {most} shots: {few}; all of them are "
            f"taken{never}",
            stacklevel=3,
        )


def selected(
    orders: Mapping[int, Sequence[Sequence[int]]], shots: Sequence[int]
) -> tuple[list[int], list[Draw]]:
    """Selections by a draw that is given: for every seed, row numbers by class in drawn order.

    Returns the sorted row numbers that any draw selects (the pool) and the draws, whose rows are
    positions in the pool. With one seed, fewer shots are a prefix of more.
    """
    most = max(shots)
    pool = sorted({int(row) for order in orders.values() for part in order for row in part[:most]})
    place = {row: position for position, row in enumerate(pool)}
    draws = [
        Draw(count, seed, tuple(tuple(place[int(r)] for r in part[:count]) for part in order))
        for count in shots
        for seed, order in orders.items()
    ]
    return pool, draws
