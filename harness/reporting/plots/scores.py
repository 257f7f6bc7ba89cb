"""Pure: lines -> the scores that a picture shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

from pydantic import PositiveInt

from harness.data.shots import amount, counted
from harness.errors import MissingScores
from harness.evaluation.records import Role
from harness.reporting.chosen import Chosen
from harness.reporting.difference import Difference, difference_of, enough_draws, in_points
from harness.reporting.grid import (
    CONSTANT,
    CURRENT,
    HEADLINE_SHOTS,
    SUMMARY,
    Cell,
    Grid,
    Setting,
    in_order,
    laid_out,
    short_task,
)
from harness.reporting.lines import Line, tasks_by
from harness.reporting.names import EXPERT
from harness.types import Shots

MEAN = "mean"
"""The column of the mean over tasks. A task has a split, and is never called so."""
OF_MANY = "score"
EXPERTS = (EXPERT, SUMMARY[1])
"""The row of the experts, where every task has one, or of their mean where one has several."""


class View(Chosen):
    """What a picture shows of records: by default, everything.

    `shots` is the number wanted of each protocol that adapts, instead of the nearest to five, or
    `all`. `rows` is how many of each task `tsne` lays out. `option` is what `sweep` goes along, and
    `loss` whether it shows that instead of the score.
    """

    shots: PositiveInt | Literal["all"] | None = None
    rows: PositiveInt = 500
    option: str = ""
    loss: bool = False


Spot: TypeAlias = tuple[str, Setting]
"""A row under a setting."""


@dataclass(frozen=True)
class Scores:
    """The scores of a grid, x100, whose rows are called as on a board, and what they are of."""

    grid: Grid

    @cached_property
    def lines(self) -> dict[str, Line]:
        """A line of every row of a model."""
        return {row: line for (row, _, _), line in self.grid.lines.items()}

    def rows(self, *roles: Role) -> tuple[str, ...]:
        """The rows of models, or of the merges and the base."""
        roles = roles or ("merged", "base")
        return tuple(row for role in roles for row, one in self.lines.items() if one.role == role)

    def columns(self, *known: Setting) -> list[str]:
        """The tasks, and the mean over them where any row has one under one of the settings."""
        whole = any(self.cell(row, one, MEAN) for one in known for row in self.rows())
        return [column for column in self.grid.columns if column != MEAN or whole]

    def cell(self, row: str, setting: Setting, column: str) -> Cell | None:
        """A score; of the mean, None unless every task has one."""
        if column not in self.grid.columns:
            return None
        return self.grid.row(row, setting)[self.grid.columns.index(column)]

    def difference(self, first: Spot, second: Spot, column: str) -> Difference | None:
        """How far a score is above another; None unless both were evaluated.

        With its paired interval, where records keep resamples and draws are enough.
        """
        one, other = self.cell(*first, column), self.cell(*second, column)
        if one is None or other is None:
            return None
        tasks = self.grid.tasks if column == MEAN else (column,)
        pair = [[self.grid.lines[(*spot, task)] for task in tasks] for spot in (first, second)]
        apart = difference_of(*pair) if enough_draws([*pair[0], *pair[1]]) else None
        return Difference(one.mean - other.mean, None if apart is None else in_points(apart))

    def levels(self, column: str, row: str | None = None) -> dict[str, float]:
        """What goes across a panel: the experts, and a row, under Current Eval; the constant."""
        every = self.grid.settings
        current = tuple(one for one in every if one.protocol == CURRENT)
        wanted = [(f"experts under {CURRENT}", name, current) for name in EXPERTS]
        wanted += [(CURRENT, row, current)] if row else []
        wanted += [(CONSTANT, CONSTANT, every)]
        return {
            label: cell.mean
            for label, name, settings in wanted
            for one in reversed(settings)
            if (cell := self.cell(name, one, column)) is not None
        }

    def title(self, column: str) -> str:
        """The name of a column, with its task if there are several."""
        if column == MEAN:
            return f"mean of {len(self.grid.tasks)} tasks"
        return short_task(column, self.grid.tasks)

    def unit(self, column: str) -> str:
        """What a column is measured by, with its scale."""
        known = tasks_by(self.grid.lines.values())
        metrics = {"+".join(known[t].metrics) for t in known if column in (t, MEAN)}
        return f"{metrics.pop() if len(metrics) == 1 else OF_MANY} × 100"

    @property
    def spread(self) -> str:
        """What the deviation of a cell is, in words."""
        drawn = (one for one in self.grid.lines.values() if one.role in ("merged", "base"))
        counts = sorted({len(line.values) for line in drawn} - {1})
        return f"± standard deviation over {' or '.join(map(str, counts))} draws"


def scores_of(lines: Iterable[Line], view: View, *protocols: str) -> Scores:
    """The scores of lines under some protocols, or those that the view names.

    Raises BrokenRecord where a column would mix what is not the same work.
    """
    wanted = () if view.protocols else protocols
    return Scores(
        laid_out([one for one in lines if not wanted or one.protocol in wanted], by_method=True)
    )


def headline(known: Iterable[Setting], shots: Shots | None = None) -> list[Setting]:
    """One number of shots for each protocol, the nearest to `shots`, or to the papers' five.

    Raises MissingScores where a protocol was not evaluated with so many.
    """
    wanted: Shots = HEADLINE_SHOTS if shots is None else shots
    known = list(known)

    def far(one: Setting) -> tuple[float, float]:
        # from `all`, everything else is as far off, and it is not a number to itself
        off = 0 if one.shots == wanted else abs(amount(one.shots) - amount(wanted))
        return off, amount(one.shots)

    nearest: dict[str, Setting] = {}
    for one in sorted(known, key=far):
        nearest.setdefault(one.protocol, one)
    for one in in_order(nearest.values()):
        if shots is not None and one.shots not in (0, shots) and not _of_all_rows(one.protocol):
            counts = (str(other.shots) for other in known if other.protocol == one.protocol)
            raise MissingScores(
                f"no record of {one.protocol} has {counted(shots)}, found {', '.join(counts)}; "
                f"make them with harness evaluate --model MODEL --shots {shots}"
            )
    return in_order(nearest.values())


def _of_all_rows(protocol: str) -> bool:
    """Whether a protocol has one number of shots, whatever was asked: `all`."""
    from harness.registry import PROTOCOLS

    name = protocol.partition(":")[0]
    return name in PROTOCOLS and PROTOCOLS[name].all_rows


def one_setting(what: str, scores: Scores, view: View) -> Setting:
    """The only setting of a picture of one protocol.

    Raises MissingScores for several, and for a number of shots of one that draws none.
    """
    known = headline(scores.grid.settings, view.shots)
    if len(known) != 1:
        raise MissingScores(
            f"{what} shows one protocol, found {'; '.join(map(str, known)) or 'none'}; name one "
            "with its options"
        )
    if view.shots is not None and not known[0].shots:
        raise MissingScores(
            f"{what} has {counted(view.shots)}, and {known[0]} adapts to no drawn rows; leave out "
            "--shots, or name another with --protocols"
        )
    return known[0]
