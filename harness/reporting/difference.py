"""Pure: differences of scores, and what of them shows on other test rows and other draws."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from harness.evaluation.estimates import (
    Ends,
    Estimate,
    aligned,
    ends,
    estimate,
    mean_of,
    minus,
    widened,
    within,
)
from harness.text import points
from harness.types import Array64

LEAST = 1.0
"""Points: without an interval, a smaller difference is not told from none."""
SHOWN = 0.05
"""Points that are seen in one decimal."""
MOSTLY = 0.5
"""A share whose interval begins lower is not called all."""
MOST = 10.0
"""A share is no larger: beyond all of the loss, how much more is chance."""


@dataclass(frozen=True)
class Difference:
    """Points between two scores, and between which ends they lie on other rows and draws, at 95 %.

    `within` is None where the predictions are not at hand.
    """

    points: float
    within: Ends | None = None

    @property
    def told(self) -> bool:
        """Whether there is one, as far as can be shown; without an interval, from `LEAST`."""
        if self.within is None:
            return round(abs(self.points), 6) >= LEAST
        return not self.within[0] <= 0 <= self.within[1]


@dataclass(frozen=True)
class Spread:
    """Between which ends differences lie on other rows and draws, in points, at 95 %.

    `recovered` is what another reading of the merge wins back of the `loss`, `share` is recovered
    over loss, 1 for all of it; `above_control` is that reading of the merge minus that of the base,
    if the base was read.
    """

    loss: Ends
    recovered: Ends
    share: Ends
    above_control: Ends | None = None


def mean_over_tasks(parts: Iterable[tuple[str, Estimate | None]]) -> Estimate | None:
    """The mean over tasks of the mean over the models of each; None unless all are known."""
    by_task: dict[str, list[Estimate]] = {}
    for task, one in parts:
        if one is None:
            return None
        by_task.setdefault(task, []).append(one)
    return mean_of([mean_of(each) for each in by_task.values()])


def in_points(values: Sequence[float], sample: Array64 | None) -> Estimate | None:
    """Scores x100 of each draw, and scores of -1 to 1 on resampled rows, as one; None without."""
    return None if sample is None else estimate(values, 100 * sample)


def spread_of(
    experts: Estimate | None, current: Estimate | None, read: Estimate | None, base: Estimate | None
) -> Spread | None:
    """The differences of means on the same resampled rows; None unless all but the base are known.

    `read` and `base` are the merge and the base under the reading that may win back what is lost.
    """
    if experts is None or current is None or read is None:
        return None
    loss, recovered = minus(experts, current), minus(read, current)
    return Spread(
        loss=within(loss),
        recovered=within(recovered),
        share=_share(recovered, loss),
        above_control=None if base is None else within(minus(read, base)),
    )


def _share(recovered: Estimate, loss: Estimate) -> Ends:
    """Of recovered over loss; where nothing is lost there is none to be asked for."""
    if loss.point <= 0:
        return -MOST, MOST
    won, lost = aligned([recovered.rows, loss.rows])
    # at most one resample in forty has no loss, if a share is asked for
    share = np.divide(won, lost, out=np.full_like(lost, MOST), where=lost > 0)
    point = recovered.point / loss.point
    return widened(point, ends(share.clip(-MOST, MOST)), recovered.draws / loss.point)


def around(ends: Ends) -> str:
    """The ends of a share, `within 60 to 100 %`: between none and all."""
    low, high = (f"{100 * min(max(end, 0), 1):.0f}" for end in ends)
    return f"within {low} to {high} %"


def on_other_rows(loss: Ends) -> str:
    """Where what is lost would lie, as a difference to the experts: `within -3.0 to -1.0`."""
    low, high = sorted(-end for end in loss)
    return f"within {points(low, '+')} to {points(high, '+')} on other rows"


NO_INTERVAL = " (No interval: predictions are not at hand.)"
