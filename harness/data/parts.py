"""Pure: rows of a task -> two parts, one with most of a class (RegMean, arXiv:2212.09849).

One class, drawn, is the key. Part A gets 80 % of its rows, part B all other rows; then drawn rows
of other classes move from B to A until both have the same size. Parts are in random order: the
first rows of a part are a draw from it.
"""

from __future__ import annotations

import numpy as np

from harness.checkpoints.provenance import Part
from harness.data.rows import take
from harness.errors import BadData, BadOption
from harness.kinds import kind_of
from harness.rng import rng
from harness.types import Rows, Units

PARTS = ("1/2", "2/2")
SHARE = 0.8
"""The share of the rows of the key class that the first part gets."""
LEAST = 2
"""The fewest classes that rows must have."""


def part_named(text: str, seed: int, limit: int | None) -> Part:
    """The part called `1/2` or `2/2`, as drawn by a seed, with at most `limit` rows."""
    if text not in PARTS:
        raise BadOption(f"--part is '{text}', expected {' or '.join(PARTS)}")
    return Part(number=PARTS.index(text) + 1, seed=seed, limit=limit)


def part_of(rows: Rows, part: Part) -> Rows:
    """The rows of a part, in the order in which they were drawn.

    Raises BadData for rows without classes, or of only one.
    """
    classes = kind_of(rows.task).classes(rows)
    if len(np.unique(classes)) < LEAST:
        raise BadData(f"{rows.task}@{rows.split} has rows of one class; expected {LEAST} or more")
    draws = rng(part.seed, "partition", rows.task.name)
    picked = halves(classes, draws)[part.number - 1][: part.limit]
    return take(rows, picked.tolist())


def halves(classes: Units, draws: np.random.Generator) -> tuple[Units, Units]:
    """The row numbers of both parts, each in random order.

    By hand: of 10 rows of the key class and 30 others, A gets 8 and then 12 of the others, B keeps
    2 and 18. If A is larger from the start, nothing moves.
    """
    key = draws.choice(np.unique(classes))
    of_key = draws.permutation(np.flatnonzero(classes == key))
    others = draws.permutation(np.flatnonzero(classes != key))
    first = int(SHARE * len(of_key))
    moved = max((len(classes) - 2 * first) // 2, 0)
    a = np.concatenate([of_key[:first], others[:moved]])
    b = np.concatenate([of_key[first:], others[moved:]])
    return draws.permutation(a), draws.permutation(b)
