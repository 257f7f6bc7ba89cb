"""Pure: the credits of several boards -> one table of merges by board, for the page over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from harness.reporting.boards.about import about
from harness.reporting.boards.board import Board
from harness.reporting.boards.credit_table import interval_text, shaded_percent
from harness.reporting.grid import board_row_names
from harness.reporting.lines import grouped
from harness.reporting.sentences import p
from harness.stats.intervals import LEVEL, Ratio
from harness.stats.ranks import concordance, friedman
from harness.text import plain

FEWEST = 2
"""The fewest boards that a merge in the table is on."""
NAMED = 4
"""The most boards that a sentence names; more are counted."""


class BoardCredits(NamedTuple):
    """The credits of the methods of a board where defined, the highest first.

    `base_and_tasks` are the base and tasks of the board: boards with the same ones are not
    independent evidence. `staged` are the methods with a pre-merging stage: they resemble the
    merger alone, and are not independent evidence either.
    """

    base_and_tasks: tuple[str, frozenset[str]]
    credit: Mapping[str, Ratio]
    staged: frozenset[str] = frozenset()


def board_credits(board: Board) -> BoardCredits:
    """The credits of the methods of a board; rows that it folds into one are listed separately."""
    work = about(board)["base"], frozenset(board.tasks)
    if board.credits is None:
        return BoardCredits(work, {})
    found = {one.name: one.credit for one in board.credits.defined if one.credit is not None}
    known = {row: found[name] for row, name in board.joint_names.items() if name in found}
    known |= {name: one for name, one in found.items() if name not in board.joint_names.values()}
    rows = zip(board_row_names(board.lines), board.lines, strict=True)
    staged = frozenset(row for row, line in rows if line.premerge)
    return BoardCredits(work, dict(sorted(known.items(), key=lambda one: -one[1].point)), staged)


def credits_over_boards(boards: Mapping[str, BoardCredits]) -> dict[str, Any]:
    """Tables of the merges whose credit is defined on two boards or more; {} without any.

    `groups` are tables of merges and the boards that these have in common, in the order of their
    mean place on these boards. `heads` are all boards that some of the merges are on; rows have for
    each the credit, its interval and its shade. `finding`: sentences on the merge that is first
    most often, and on how far the boards of the first group agree.
    """
    known = {name: of for name, of in boards.items() if of.credit}
    each = dict.fromkeys(merge for of in known.values() for merge in of.credit)
    places = {one: frozenset(name for name in known if one in known[name].credit) for one in each}
    on = {merge: names for merge, names in places.items() if len(names) >= FEWEST}
    if not on:
        return {}
    groups = [*_groups(known, on)]
    return {
        "groups": [_table(known, common, merges) for common, merges in groups],
        "finding": [*_first(known), *_agreement(known, *groups[0])],
    }


def _table(
    known: Mapping[str, BoardCredits], common: list[str], merges: list[str]
) -> dict[str, Any]:
    on = {name: of.credit for name, of in known.items() if {*merges} & of.credit.keys()}
    rows = [(one, [_cell(of.get(one)) for of in on.values()]) for one in merges]
    return {"common": _named(common), "heads": [*on], "rows": rows}


def _groups(
    known: Mapping[str, BoardCredits], on: Mapping[str, frozenset[str]]
) -> Iterator[tuple[list[str], list[str]]]:
    """Boards and the merges on all of them, largest works x merges first, each merge once."""
    left = dict(on)
    while left:
        sets = dict.fromkeys(left.values())
        shared = dict.fromkeys(both for one in sets for other in sets if (both := one & other))
        size = {
            boards: len({known[one].base_and_tasks for one in boards})
            * sum(boards <= of for of in left.values())
            for boards in shared
        }
        boards = max(size, key=size.__getitem__)
        common = [name for name in known if name in boards]
        merges = [merge for merge, of in left.items() if boards <= of]
        yield common, _ordered({name: known[name] for name in common}, merges)
        left = {merge: of for merge, of in left.items() if merge not in merges}


def _ordered(boards: Mapping[str, BoardCredits], merges: list[str]) -> list[str]:
    """The merges by the mean over works of their mean place on the boards of each work."""
    each = []
    for of in grouped(boards.values(), lambda one: one.base_and_tasks).values():
        orders = [[merge for merge in one.credit if merge in merges] for one in of]
        each.append([np.mean([order.index(merge) for order in orders]) for merge in merges])
    places = dict(zip(merges, np.mean(each, axis=0), strict=True))
    return sorted(merges, key=places.__getitem__)


def _named(boards: list[str]) -> str:
    return f"{len(boards)} boards" if len(boards) > NAMED else ", ".join(map(plain, boards))


def _cell(credit: Ratio | None) -> tuple[str, str, int]:
    text, shade = shaded_percent(credit)
    return ("", "", 0) if credit is None else (text, interval_text(credit), shade)


def _widest(known: Mapping[str, BoardCredits]) -> dict[str, BoardCredits]:
    """For each work, the board with the most merges."""
    works = grouped(known, lambda name: known[name].base_and_tasks).values()
    return {
        name: known[name] for of in works for name in [max(of, key=lambda n: len(known[n].credit))]
    }


def _first(known: Mapping[str, BoardCredits]) -> Iterator[str]:
    """A sentence on the merge that is first most often, if it is so on two boards or more."""
    widest = _widest(known)
    once = ", those of one base and the same tasks counted once" * (len(widest) < len(known))
    first = Counter(next(iter(of.credit)) for of in widest.values())
    for merge, on in first.most_common(1):
        if on > 1:
            having = sum(merge in of.credit for of in widest.values())
            yield f"{plain(merge)} has the most credit on {on} of its {having} boards{once}."


def _agreement(
    known: Mapping[str, BoardCredits], common: list[str], merges: list[str]
) -> Iterator[str]:
    """A sentence on whether boards agree in the order of the mergers that all of them have."""
    boards = _widest({name: known[name] for name in common})
    merges = [one for one in merges if not any(one in of.staged for of in boards.values())]
    if len(merges) > 2 and len(boards) > 1:
        values = np.array([[of.credit[one].point for of in boards.values()] for one in merges])
        chance = friedman(values)
        same = "more" if chance < 1 - LEVEL else "no more"
        tasks = [of.base_and_tasks[1] for of in boards.values()]
        shared = len(frozenset.union(*tasks)) < sum(map(len, tasks))
        yield (
            f"On {_named([*boards])} the orders of {len(merges)} mergers alone agree {same} than "
            f"by chance: Kendall's W is {concordance(values):.2f} (1: the same order on all; "
            f"Friedman's test, p {p(chance)})."
            + " Some of these boards share tasks, so that p is too small."
            * shared
        )
