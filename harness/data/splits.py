"""Splits of a task: their names, and which of them share rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from harness.data.metrics import check_metrics
from harness.data.sources import TRAIN
from harness.errors import BadData
from harness.registry import TASKS
from harness.types import DERIVED, TRAINED_ON, Task


def parse_task(text: str) -> tuple[Task, str]:
    """`glue/rte` or `glue/rte@heldout10` -> the task and the split (default: the reported one)."""
    name, _, split = text.partition("@")
    task = TASKS[name]
    check_metrics(task)
    if split and split not in splits_of(task):
        raise BadData(f"task '{name}' has no split '{split}'; known: {', '.join(splits_of(task))}")
    return task, split or task.reported


def splits_of(task: Task) -> tuple[str, ...]:
    """All splits of a task: those scored, the derived ones, and the whole of train."""
    return (*task.splits, *DERIVED, TRAIN)


def share_rows(task: Task, first: str, second: str) -> bool:
    """Whether two splits of a task have rows of the source in common, whatever their names.

    Equal texts do not count: published splits repeat some, as rows of their own.
    """
    places = [task.splits.get(split, TRAIN) for split in (first, second)]
    apart = {first, second} == set(DERIVED)
    return places[0] == places[1] and not apart


def pick(count: int, split: str, limit: int | None, *, first: bool = False) -> Sequence[int]:
    """The rows of a split, by their numbers in the file that it is cut from.

    In a published split, `limit` takes the first rows of a fixed permutation, in file order, or the
    `first` rows of the file. The rows of a smaller limit are among those of a larger one.
    """
    order: Sequence[int] = range(count)
    if split in DERIVED:
        # MergeLM's split: a permutation with seed 0, the first nine tenths train
        shuffled = np.random.RandomState(0).permutation(count).tolist()
        cut = int(0.9 * count)
        order = shuffled[:cut] if split == TRAINED_ON else shuffled[cut:]
    elif limit is not None and limit < count and not first:
        return sorted(np.random.RandomState(0).permutation(count)[:limit].tolist())
    return order[:limit]
