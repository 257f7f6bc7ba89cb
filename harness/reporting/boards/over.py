"""Pure: the credits of several boards -> one table of merges by board, for the page over them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from operator import itemgetter
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
    by_name = {
        merge.name: merge.credit for merge in board.credits.defined if merge.credit is not None
    }
    by_row = {row: by_name[name] for row, name in board.joint_names.items() if name in by_name}
    by_row |= {
        name: credit for name, credit in by_name.items() if name not in board.joint_names.values()
    }
    rows = zip(board_row_names(board.lines), board.lines, strict=True)
    staged = frozenset(row for row, line in rows if line.premerge)
    return BoardCredits(work, dict(sorted(by_row.items(), key=lambda item: -item[1].point)), staged)


def credits_over_boards(boards: Mapping[str, BoardCredits]) -> dict[str, Any]:
    """Tables of the merges whose credit is defined on two boards or more; {} without any.

    `groups` are tables of merges and the boards that these have in common, in the order of their
    mean place on these boards. `heads` are all boards that some of the merges are on; rows have for
    each the credit, its interval and its shade. `finding`: sentences on the merge that is first
    most often, and on how far the boards of the first group agree.
    """
    credits = {name: board for name, board in boards.items() if board.credit}
    pairs = ((merge, name) for name, board in credits.items() for merge in board.credit)
    boards_of = {
        merge: frozenset(name for _, name in places)
        for merge, places in grouped(pairs, itemgetter(0)).items()
        if len(places) >= FEWEST
    }
    if not boards_of:
        return {}
    groups = [*_groups(credits, boards_of)]
    return {
        "groups": [_table(credits, common, merges) for common, merges in groups],
        "finding": [*_first(credits), *_agreement(credits, *groups[0])],
    }


def _table(
    credits: Mapping[str, BoardCredits], common: list[str], merges: list[str]
) -> dict[str, Any]:
    columns = {
        name: board.credit for name, board in credits.items() if {*merges} & board.credit.keys()
    }
    rows = [(merge, [_cell(credit.get(merge)) for credit in columns.values()]) for merge in merges]
    return {"common": _named(common), "heads": [*columns], "rows": rows}


def _groups(
    credits: Mapping[str, BoardCredits], boards_of: Mapping[str, frozenset[str]]
) -> Iterator[tuple[list[str], list[str]]]:
    """Boards and the merges on all of them, largest works x merges first, each merge once."""
    remaining = dict(boards_of)
    while remaining:
        sets = dict.fromkeys(remaining.values())
        shared = dict.fromkeys(both for one in sets for other in sets if (both := one & other))
        size = {
            boards: len({credits[name].base_and_tasks for name in boards})
            * sum(boards <= names for names in remaining.values())
            for boards in shared
        }
        boards = max(size, key=size.__getitem__)
        common = [name for name in credits if name in boards]
        merges = [merge for merge, names in remaining.items() if boards <= names]
        yield common, _ordered({name: credits[name] for name in common}, merges)
        remaining = {merge: names for merge, names in remaining.items() if merge not in merges}


def _ordered(boards: Mapping[str, BoardCredits], merges: list[str]) -> list[str]:
    """The merges by the mean over works of their mean place on the boards of each work."""
    means = []
    for group in grouped(boards.values(), lambda board: board.base_and_tasks).values():
        orders = [[merge for merge in board.credit if merge in merges] for board in group]
        means.append([np.mean([order.index(merge) for order in orders]) for merge in merges])
    places = dict(zip(merges, np.mean(means, axis=0), strict=True))
    return sorted(merges, key=places.__getitem__)


def _named(boards: list[str]) -> str:
    return f"{len(boards)} boards" if len(boards) > NAMED else ", ".join(map(plain, boards))


def _cell(credit: Ratio | None) -> tuple[str, str, int]:
    text, shade = shaded_percent(credit)
    return ("", "", 0) if credit is None else (text, interval_text(credit), shade)


def _widest(credits: Mapping[str, BoardCredits]) -> dict[str, BoardCredits]:
    """For each work, the board with the most merges."""
    works = grouped(credits, lambda name: credits[name].base_and_tasks).values()
    return {
        name: credits[name]
        for names in works
        for name in [max(names, key=lambda n: len(credits[n].credit))]
    }


def _first(credits: Mapping[str, BoardCredits]) -> Iterator[str]:
    """A sentence on the merge that is first most often, if it is so on two boards or more."""
    widest = _widest(credits)
    once = ", those of one base and the same tasks counted once" * (len(widest) < len(credits))
    first = Counter(next(iter(board.credit)) for board in widest.values())
    for merge, count in first.most_common(1):
        if count > 1:
            having = sum(merge in board.credit for board in widest.values())
            yield f"{plain(merge)} has the most credit on {count} of its {having} boards{once}."


def _agreement(
    credits: Mapping[str, BoardCredits], common: list[str], merges: list[str]
) -> Iterator[str]:
    """A sentence on whether boards agree in the order of the mergers that all of them have."""
    boards = _widest({name: credits[name] for name in common})
    merges = [
        merge for merge in merges if not any(merge in board.staged for board in boards.values())
    ]
    if len(merges) > 2 and len(boards) > 1:
        values = np.array(
            [[board.credit[merge].point for board in boards.values()] for merge in merges]
        )
        chance = friedman(values)
        same = "more" if chance < 1 - LEVEL else "no more"
        tasks = [board.base_and_tasks[1] for board in boards.values()]
        shared = len(frozenset.union(*tasks)) < sum(map(len, tasks))
        yield (
            f"On {_named([*boards])} the orders of {len(merges)} mergers alone agree {same} than "
            f"by chance: Kendall's W is {concordance(values):.2f} (1: the same order on all; "
            f"Friedman's test, p {p(chance)})."
            + " Some of these boards share tasks, so that p is too small."
            * shared
        )
