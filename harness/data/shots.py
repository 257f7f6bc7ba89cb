"""Few-shot selection: which rows of a pool are drawn."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from harness.data.rows import units_of
from harness.errors import BadData
from harness.kinds import kind_of
from harness.rng import rng
from harness.types import ALL, Draw, Rows, Shots, Units

Parts: TypeAlias = Sequence[Sequence[int]]
"""Numbers of units, by group or by example."""
Taken: TypeAlias = tuple[Shots, int, Parts, Parts, Sequence[int]]
"""The fields of a `Draw`, by numbers of the units of all rows."""


def amount(shots: Shots | None) -> float:
    """How many units of a group at most: none where nothing is drawn, any number for `all`."""
    return float("inf") if shots == ALL else float(shots or 0)


def counted(shots: Shots) -> str:
    """`1 shot`, `5 shots`, `all shots`."""
    return f"{shots} shot{'' if shots == 1 else 's'}"


def draw(
    rows: Rows,
    shots: Sequence[Shots],
    seeds: Sequence[int],
    reserved: int = 0,
    outside: int = 1,
    *,
    stratified: bool = True,
) -> tuple[list[int], list[Draw]]:
    """Few-shot selections for every number of shots and seed (docs/methods.md#shots).

    Returns what `selected` returns. Of a class, or bin of labels, that has fewer units than shots
    all are taken, which is warned of; its first `reserved` ones are never drawn. With `all` shots
    nothing is left to chance, so there is one draw, of the first seed. Of words of no entity
    `outside` times as many are drawn as of any other tag (`o_anchors` of `knn`).

    Not `stratified`, labels choose nothing: as many units as so many shots of every class would be,
    of all that there are.
    """

    def order(members: Units, seed: int, *group: int) -> list[int]:
        numbers = rng(seed, "fewshot", rows.task.name, *group)
        return [*map(int, numbers.permutation(members))]

    whole = kind_of(rows.task).groups(rows)
    groups = {name: members[reserved:] for name, members in whole.items()}
    if not any(map(len, groups.values())):
        raise BadData(
            f"{rows.task}@{rows.split} has {len(rows)} rows, expected over {reserved} of a class"
        )
    most = max((count for count in shots if count != ALL), default=1)
    if not stratified:
        members = np.unique(np.concatenate([*groups.values()]))
        if (wanted := most * len(groups)) > len(members):
            warnings.warn(
                f"{rows.task}@{rows.split} has {len(members)} units to draw from, and "
                f"{counted(most)} of each of {len(groups)} classes are {wanted}; all are taken",
                stacklevel=2,
            )
        return scattered(rows, {seed: order(members, seed) for seed in seeds}, shots)
    each = _each(rows, len(groups), outside)
    _warn_of_few(rows, {n: len(own) for n, own in groups.items()}, most, each)
    orders = {
        seed: [order(members, seed, index) for index, members in enumerate(groups.values())]
        for seed in seeds
    }
    return selected(rows, orders, shots, outside)


def _each(rows: Rows, groups: int, outside: int) -> list[int]:
    """How many units of each group a shot is."""
    place = kind_of(rows.task).outside(rows.task)
    return [outside if group == place else 1 for group in range(groups)]


def _warn_of_few(rows: Rows, counts: Mapping[str, int], most: int, each: Sequence[int]) -> None:
    shots = [count // units for count, units in zip(counts.values(), each, strict=True)]
    named = [[*counts.items()][group] for group in kind_of(rows.task).groups_below(shots, most)]
    if few := ", ".join(f"{count} with {name}" for name, count in named):
        lonely = ", and one without rows has no neighbours to be predicted by"
        never = "" if all(count for _, count in named) else lonely
        warnings.warn(
            f"{rows.task}@{rows.split} has too few rows for {counted(most)}: {few}; all of them "
            f"are taken{never}",
            stacklevel=3,
        )


def selected(
    rows: Rows, orders: Mapping[int, Parts], shots: Sequence[Shots], outside: int = 1
) -> tuple[list[int], list[Draw]]:
    """Selections by a draw that is given: for every seed, numbers of units by class, as drawn.

    Returns the sorted numbers of the rows that any draw selects (the pool), and the draws, which
    hold positions among the units of the pool. With one seed, fewer shots are a prefix of more.
    """
    kind = kind_of(rows.task)
    draws: list[Taken] = []
    for count, seed in _asked(shots, orders):
        most = len(rows.labels) if count == ALL else count
        pairs = zip(orders[seed], _each(rows, len(orders[seed]), outside), strict=True)
        parts = [part[: most * units] for part, units in pairs]
        examples = kind.examples(rows, orders[seed], seed, most)
        draws.append((count, seed, parts, examples, []))
    return _pooled(rows, draws)


def scattered(
    rows: Rows, orders: Mapping[int, Sequence[int]], shots: Sequence[Shots]
) -> tuple[list[int], list[Draw]]:
    """Selections by a draw that went by no class: for every seed, numbers of units, as drawn.

    Returns what `selected` returns. So many shots are as many units from the first on as so many of
    every class would be; `all` are all of them. A head is tuned on each unit, of a tagging on the
    sentence that it is of.
    """
    kind = kind_of(rows.task)
    groups = [frozenset(members.tolist()) for members in kind.groups(rows).values()]
    draws: list[Taken] = []
    for count, seed in _asked(shots, orders):
        taken = orders[seed][: None if count == ALL else count * len(groups)]
        parts = [[unit for unit in taken if unit in members] for members in groups]
        draws.append((count, seed, parts, kind.examples_containing(rows, taken), taken))
    return _pooled(rows, draws)


def _asked(shots: Sequence[Shots], seeds: Iterable[int]) -> list[tuple[Shots, int]]:
    """Every number of shots by every seed, and `all` by the first alone."""
    return [(count, seed) for count in shots for seed in [*seeds][: 1 if count == ALL else None]]


def _pooled(rows: Rows, draws: Sequence[Taken]) -> tuple[list[int], list[Draw]]:
    """The rows that draws of units select, sorted, and the draws with places among their units."""
    drawn = {unit for _, _, *both, _ in draws for parts in both for part in parts for unit in part}
    row_of = np.repeat(np.arange(len(rows)), kind_of(rows.task).units(rows))
    pool = sorted({int(row_of[unit]) for unit in drawn})
    place = {int(unit): position for position, unit in enumerate(units_of(rows, pool))}

    def placed(part: Sequence[int]) -> tuple[int, ...]:
        return tuple(place[unit] for unit in part)

    return pool, [
        Draw(count, seed, tuple(map(placed, parts)), tuple(map(placed, examples)), placed(order))
        for count, seed, parts, examples, order in draws
    ]


def left_out(rows: Rows, batch: int, seeds: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """For each seed, the rows that do not fill a last batch when they are shuffled, ascending.

    Raises BadData where no batch is filled.
    """
    whole = len(rows) // batch * batch
    if not whole:
        raise BadData(
            f"{rows.task}@{rows.split} has {len(rows)} rows, expected {batch}, a batch, or more"
        )
    orders = {seed: rng(seed, "ftc_test", rows.task.name).permutation(len(rows)) for seed in seeds}
    return {seed: tuple(sorted(map(int, order[whole:]))) for seed, order in orders.items()}
