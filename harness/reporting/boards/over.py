"""Pure: the credits of several boards -> one table of merges by board, for the page over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.reporting.boards.board import Board
from harness.reporting.boards.credit_table import leaf
from harness.stats.intervals import LEVEL, Ratio
from harness.stats.ranks import concordance, friedman
from harness.text import plain

FEWEST = 2
"""Boards that a merge of the table is on."""


def credit_of(board: Board) -> dict[str, Ratio]:
    """The credit of each method where it is defined, the most first; rows that are one apart."""
    if board.credits is None:
        return {}
    found = {one.name: one.credit for one in board.credits.defined if one.credit is not None}
    known = {row: found[name] for row, name in board.called.items() if name in found}
    known |= {name: one for name, one in found.items() if name not in board.called.values()}
    return dict(sorted(known.items(), key=lambda one: -one[1].point))


def over(boards: Mapping[str, Mapping[str, Ratio]]) -> dict[str, Any]:
    """The table of the merges whose credit is defined on two boards or more; {} without any.

    `rows` have for each board the credit with half of its interval, and a shade of ten, in the
    order of the mean place, which is 0 for the first of a board and 1 for its last; `heads` are the
    boards, `finding` sentences on what is first, and how far their orders agree.
    """
    known = {name: of for name, of in boards.items() if of}
    count = Counter(merge for of in known.values() for merge in of)
    places: dict[str, list[float]] = {merge: [] for merge, on in count.items() if on >= FEWEST}
    if not places:
        return {}
    for of in known.values():
        inside = [merge for merge in of if merge in places]
        for at, merge in enumerate(inside):
            places[merge].append(at / max(len(inside) - 1, 1))
    order = sorted(places, key=lambda merge: float(np.mean(places[merge])))
    rows = [(plain(one), [_cell(of.get(one)) for of in known.values()]) for one in order]
    return {"heads": [*known], "rows": rows, "finding": _finding(known)}


def _cell(credit: Ratio | None) -> tuple[str, str, int]:
    text, shade = leaf(credit)
    if credit is None:
        return "", "", 0
    low, high = credit.ends
    return text, f"±{100 * (high - low) / 2:.0f}" if low < high else "", shade


def _finding(known: Mapping[str, Mapping[str, Ratio]]) -> list[str]:
    """Which merges are first, and whether boards agree on the merges that all of them have."""
    first = Counter(max(of, key=lambda merge: of[merge].point) for of in known.values())
    made = [
        f"{plain(merge)} has the most credit on {on} of {len(known)} boards."
        for merge, on in first.most_common(1)
        if on > 1
    ]
    shared = sorted(set.intersection(*(set(of) for of in known.values())))
    if len(shared) > 2 and len(known) > 1:
        values = np.array([[of[merge].point for of in known.values()] for merge in shared])
        p = friedman(values)
        same = "more" if p < 1 - LEVEL else "no more"
        made.append(
            f"The orders of the {len(shared)} merges that are on every board have a Kendall's W of "
            f"{concordance(values):.2f} (1: the same order on all): they agree {same} than chance "
            f"explains (Friedman's test, p = {p:.2g})."
        )
    return made
