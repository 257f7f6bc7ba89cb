"""Pure: whether the first rows of a split are a fair sample of it, judged by their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from harness.kinds import kind_of
from harness.types import Rows

LEAST, APART = 0.05, 2
"""The least share that counts, and the least ratio of that share to the other."""
CHANCE = 1e-4
"""The largest probability that a task with rows in random order is called unfair."""
SHOWN = 3


def unlike(rows: Rows, first: int) -> dict[str, tuple[float, float]]:
    """Labels whose shares of the first rows and of all rows differ: both, widest apart first.

    One share is 5 % or more and at least twice the other, and the difference is significant
    (binomial tail). For tags, shares are of the rows that have the tag. By hand: of 1,000 rows
    sorted by four classes, the first 500 have none of a class that a quarter of all has, which
    happens by chance once in 10^62.
    """
    from scipy.special import bdtr, bdtrc

    kind = kind_of(rows.task)
    row_of = np.repeat(np.arange(len(rows)), kind.unit_counts(rows))
    groups = kind.groups(rows)
    found = {}
    for name, units in groups.items():
        having = np.unique(row_of[units])
        count = int((having < first).sum())
        here, all_over = count / first, len(having) / len(rows)
        low, high = sorted((here, all_over))
        if high < LEAST or high < APART * low:
            continue
        rare = here < all_over
        tail = bdtr(count, first, all_over) if rare else bdtrc(count - 1, first, all_over)
        if tail < CHANCE / len(groups):
            found[name] = here, all_over
    return dict(sorted(found.items(), key=lambda item: -abs(item[1][0] - item[1][1])))


def described(shares: Mapping[str, Sequence[float]]) -> str:
    """The labels whose shares are widest apart, in words."""
    texts = [
        f"{name} {here:.1%} of them, {all_over:.1%} of all"
        for name, (here, all_over) in shares.items()
    ]
    more = [f"and {len(texts) - SHOWN} more"] if len(texts) > SHOWN else []
    return "; ".join([*texts[:SHOWN], *more])
