"""Pure: lines -> what a merge loses against its experts, and scores under another setting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from harness.reporting.difference import (
    apart,
    by_task,
    constants_of,
    enough_draws,
    in_points,
    one_metric,
)
from harness.reporting.grid import check_work
from harness.reporting.lines import CURRENT, Line, Setting
from harness.stats.intervals import Ends, Ratio, credit, ratio
from harness.stats.tests import p_value
from harness.text import points

LEAST = 1.0
"""Points: without an interval, a smaller loss counts as none."""


@dataclass(frozen=True)
class Spread:
    """The 95 % intervals of the differences of a loss, in points, over test units and draws.

    `p` is that of the test of the `loss`; `share` is what the other setting recovers over the loss;
    `above_control` is the merge minus the base under it, if the base was evaluated. Ratios are
    None where they are undefined, or rest on too few draws; `credit` also where tasks have several
    metrics, of which the mean has no scale.
    """

    loss: Ends
    share: Ratio | None = None
    above_control: Ends | None = None
    credit: Ratio | None = None
    p: float = 0.0


@dataclass(frozen=True)
class Loss:
    """How far a merge is below its experts under Current Eval, and its score under a `setting`.

    All in points (x100), averaged over the tasks. `adapted` is the merge and `control` the base
    under the setting: what that can do without any merge. Without a `spread`, which takes lines
    that keep resamples, no ratio is said.
    """

    experts: float
    current: float
    adapted: float
    setting: Setting
    tasks: int
    control: float | None = None
    spread: Spread | None = None

    @property
    def loss(self) -> float:
        return self.experts - self.current

    @property
    def recovered(self) -> float:
        return self.adapted - self.current

    @property
    def standing(self) -> Literal["below", "above", "cannot tell"]:
        """Where the merge is, of its experts; what is printed as 0.0 is nowhere."""
        low, high = self.spread.loss if self.spread else (0.0, 0.0)
        unclear = low <= 0 <= high if self.spread else round(abs(self.loss), 6) < LEAST
        if unclear or points(self.loss) == "0.0":
            return "cannot tell"
        return "below" if self.loss > 0 else "above"

    @property
    def as_the_base(self) -> bool:
        """Whether the merge is not above the base under the setting, which is then no evidence."""
        if self.control is None:
            return False
        above = self.spread.above_control if self.spread else None
        as_high = float(points(self.control)) >= float(points(self.adapted))
        return as_high or (above is not None and above[0] <= 0)

    @property
    def ratio(self) -> Ratio | None:
        """What the setting recovers of the loss, where that is known."""
        return self.spread.share if self.spread else None


class Compared(NamedTuple):
    """Lines of the same tasks: of experts and of a merge under Current Eval, of that merge and of
    its base, if it is of these tasks, under another setting."""

    experts: list[Line]
    current: list[Line]
    adapted: list[Line]
    base: list[Line]


def compared(lines: Sequence[Line], merged: Sequence[Line], setting: Setting) -> Compared | None:
    """Those of a merge; None without experts, or where a task was not evaluated."""
    tasks = {line.task for line in merged}
    lines = [line for line in lines if line.task in tasks]
    found = Compared(
        [one for one in lines if (one.role, one.protocol) == ("expert", CURRENT)],
        [one for one in merged if one.protocol == CURRENT],
        [one for one in merged if one.setting == setting],
        [one for one in lines if (one.role, one.setting) == ("base", setting)],
    )
    *needed, base = ({line.task for line in part} == tasks for part in found)
    if not all(needed):
        return None
    check_work([*found.experts, *found.current])
    is_base = any(line.role == "base" for line in merged)
    return found if base and not is_base else found._replace(base=[])


def loss_of(of: Compared, setting: Setting) -> Loss:
    """The loss of a merge, with intervals where all lines keep resamples."""
    return Loss(
        experts=mean(of.experts),
        current=mean(of.current),
        adapted=mean(of.adapted),
        setting=setting,
        tasks=len({line.task for line in of.current}),
        control=mean(of.base) if of.base else None,
        spread=_spread(of),
    )


def mean(lines: Sequence[Line]) -> float:
    """The mean over tasks of that over models and draws."""
    values: dict[str, list[float]] = {}
    for line in lines:
        values.setdefault(line.task, []).extend(line.values)
    return float(np.mean([np.mean(values[task]) for task in sorted(values)]))


def _spread(of: Compared) -> Spread | None:
    known = by_task(*(part for part in of if part))
    if known is None:
        return None
    experts, current, adapted, *control = known
    loss = apart(experts, current)
    enough = enough_draws([*of.adapted, *of.base])
    whole = None
    if control and enough and one_metric(of.current):
        whole = credit(adapted, control[0], experts, constants_of(of.current))
    return Spread(
        loss=in_points(loss),
        p=p_value(loss),
        share=ratio(apart(adapted, current), loss) if enough else None,
        above_control=in_points(apart(adapted, control[0])) if control else None,
        credit=whole,
    )
