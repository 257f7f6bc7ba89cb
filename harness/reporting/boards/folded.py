"""Pure: a grid -> the grid in which identical rows are one."""

from __future__ import annotations

from collections.abc import Mapping

from harness.reporting.grid import Grid

SAME = " = "
"""Between the names of rows that are one."""


def same_rows(scores: Grid) -> dict[str, str]:
    """What rows of the same scores in every column, by models of the same experts, are called.

    In a single column models may have the same score by chance: there, of the same weights.
    """
    groups: dict[object, list[str]] = {}
    for row in (row for row in scores.rows if row in scores.by_row):
        lines = scores.by_row[row]
        cells = frozenset((one.setting, one.task, one.values) for one in lines)
        alone = lines[0].digest if len(cells) == 1 else ""
        key = lines[0].role, lines[0].made_on_test, lines[0].experts, cells, alone
        groups.setdefault(key, []).append(row)
    names = {SAME.join(rows[:2]): rows for rows in groups.values() if len(rows) > 1}
    more = {name: f"{SAME}{len(rows) - 2} more" if rows[2:] else "" for name, rows in names.items()}
    return {row: name + more[name] for name, rows in names.items() for row in rows}


def folded(scores: Grid, called: Mapping[str, str]) -> Grid:
    """The grid with rows renamed; of those of one name the first stays."""
    rows: dict[str, str] = {}
    for row in scores.rows:
        rows.setdefault(called.get(row, row), row)
    name = {row: new for new, row in rows.items()}
    cells = {(name[at[0]], *at[1:]): one for at, one in scores.cells.items() if at[0] in name}
    lines = {(name[at[0]], *at[1:]): one for at, one in scores.lines.items() if at[0] in name}
    sets = {(name[at[0]], *at[1:]): of for at, of in scores.sets.items() if at[0] in name}
    return Grid((*rows,), scores.settings, scores.tasks, cells, lines, sets)
