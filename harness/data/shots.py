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
from harness.text import counted, few
from harness.types import ALL, Draw, Rows, Shots, Units

Parts: TypeAlias = Sequence[Sequence[int]]
"""Numbers of units, grouped by class (or bin) or by example."""
Taken: TypeAlias = tuple[Shots, int, Parts, Parts, Sequence[int]]
"""The fields of a `Draw`, but with units numbered among all rows, not among the pool."""


def amount(shots: Shots | None) -> float:
    """The most units of a group: 0 where nothing is drawn, infinity for `all`."""
    return float("inf") if shots == ALL else float(shots or 0)


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

    Returns what `selected` returns. A class, or bin of labels, with fewer units than shots is taken
    whole, with a warning; its first `reserved` units are never drawn. `all` shots leave nothing to
    chance: one draw, with the first seed. `outside` times as many words of no entity are drawn as
    of any other tag (`o_anchors` of `knn`). Raises BadData if no class has units to draw.

    Without `stratified`, labels are ignored: that many shots times the number of classes are drawn
    from all units.
    """

    def order(members: Units, seed: int, *group: int) -> list[int]:
        numbers = rng(seed, "fewshot", rows.task.name, *group)
        return [*map(int, numbers.permutation(members))]

    all_groups = kind_of(rows.task).groups(rows)
    groups = {name: members[reserved:] for name, members in all_groups.items()}
    if not any(map(len, groups.values())):
        raise BadData(
            f"{rows.task}@{rows.split} has {counted(len(rows), 'row')}, expected more than "
            f"{reserved} of some class"
        )
    most = max((count for count in shots if count != ALL), default=1)
    if not stratified:
        members = np.unique(np.concatenate([*groups.values()]))
        if (needed := most * len(groups)) > len(members):
            warnings.warn(
                f"{rows.task}@{rows.split} has {len(members)} units to draw from, and "
                f"{counted(most, 'shot')} of each of {len(groups)} classes are {needed}; all are "
                "taken",
                stacklevel=2,
            )
        return scattered(rows, {seed: order(members, seed) for seed in seeds}, shots)
    per_shot = _each(rows, len(groups), outside)
    _warn_of_few(rows, {n: len(units) for n, units in groups.items()}, most, per_shot)
    orders = {
        seed: [order(members, seed, index) for index, members in enumerate(groups.values())]
        for seed in seeds
    }
    return selected(rows, orders, shots, outside)


def _each(rows: Rows, groups: int, outside: int) -> list[int]:
    """How many units of each group one shot draws: `outside` of words of no entity, else one."""
    place = kind_of(rows.task).outside(rows.task)
    return [outside if group == place else 1 for group in range(groups)]


def _warn_of_few(rows: Rows, counts: Mapping[str, int], most: int, per_shot: Sequence[int]) -> None:
    shots = [count // units for count, units in zip(counts.values(), per_shot, strict=True)]
    scarce = [[*counts.items()][group] for group in kind_of(rows.task).groups_below(shots, most)]
    if scarce:
        listed = few([f"{count} with {name}" for name, count in scarce])
        lonely = ", and a class without rows has no neighbours: KNN Eval never predicts it"
        # the bins of a regression are not predicted
        never = lonely if rows.task.labels and not all(count for _, count in scarce) else ""
        warnings.warn(
            f"{rows.task}@{rows.split} has too few rows for {counted(most, 'shot')}: {listed}; all "
            f"of them are taken{never}",
            stacklevel=3,
        )


def selected(
    rows: Rows, orders: Mapping[int, Parts], shots: Sequence[Shots], outside: int = 1
) -> tuple[list[int], list[Draw]]:
    """Few-shot selections from given `orders`: for every seed, the units of each class as drawn.

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
    """Few-shot selections from `orders` that ignore classes: for every seed, all units as drawn.

    Returns what `selected` returns. n shots are the first n times the number of classes; `all` are
    all units. The example that a head is tuned on is the unit or, for tagging, its sentence.
    """
    kind = kind_of(rows.task)
    groups = [frozenset(members.tolist()) for members in kind.groups(rows).values()]
    draws: list[Taken] = []
    for count, seed in _asked(shots, orders):
        drawn = orders[seed][: None if count == ALL else count * len(groups)]
        parts = [[unit for unit in drawn if unit in members] for members in groups]
        draws.append((count, seed, parts, kind.examples_containing(rows, drawn), drawn))
    return _pooled(rows, draws)


def _asked(shots: Sequence[Shots], seeds: Iterable[int]) -> list[tuple[Shots, int]]:
    """Every number of shots with every seed, but `all` with the first seed alone."""
    return [(count, seed) for count in shots for seed in [*seeds][: 1 if count == ALL else None]]


def _pooled(rows: Rows, draws: Sequence[Taken]) -> tuple[list[int], list[Draw]]:
    """The sorted rows that draws select, and the draws with positions among the units of these."""
    drawn = {unit for _, _, *pair, _ in draws for parts in pair for part in parts for unit in part}
    row_of = np.repeat(np.arange(len(rows)), kind_of(rows.task).unit_counts(rows))
    pool = sorted({int(row_of[unit]) for unit in drawn})
    place = {int(unit): position for position, unit in enumerate(units_of(rows, pool))}

    def placed(part: Sequence[int]) -> tuple[int, ...]:
        return tuple(place[unit] for unit in part)

    return pool, [
        Draw(count, seed, tuple(map(placed, parts)), tuple(map(placed, examples)), placed(order))
        for count, seed, parts, examples, order in draws
    ]


def left_out(rows: Rows, batch: int, seeds: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """For each seed, the rows after the last full batch of a shuffle, ascending.

    Raises BadData if there are too few rows for one batch.
    """
    batched = len(rows) // batch * batch
    if not batched:
        raise BadData(
            f"{rows.task}@{rows.split} has {counted(len(rows), 'row')}, expected at least {batch}, "
            "one batch"
        )
    orders = {seed: rng(seed, "ftc_test", rows.task.name).permutation(len(rows)) for seed in seeds}
    return {seed: tuple(sorted(map(int, order[batched:]))) for seed, order in orders.items()}
