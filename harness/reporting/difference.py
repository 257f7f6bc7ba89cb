"""Pure: differences of scores, and what of them shows on other test rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from harness.evaluation.inference import aligned, ends
from harness.types import Array64

Ends: TypeAlias = "tuple[float, float]"
LEAST = 1.0
"""Points: without an interval, a smaller difference is not told from none."""
SHOWN = 0.05
"""Points that are seen in one decimal."""
MOST = 10.0
"""A share is no larger: beyond all of the loss, how much more is chance."""


@dataclass(frozen=True)
class Difference:
    """Points between two scores, and between which ends they lie on other test rows, at 95 %.

    `within` is None where the predictions are not at hand.
    """

    points: float
    within: Ends | None = None

    @property
    def told(self) -> bool:
        """Whether there is one, as far as the rows can show; without an interval, from `LEAST`."""
        if self.within is None:
            return round(abs(self.points), 6) >= LEAST
        return not self.within[0] <= 0 <= self.within[1]


@dataclass(frozen=True)
class Spread:
    """Between which ends differences lie on other test rows, in points, at 95 %.

    `recovered` is what another reading of the merge wins back of the `loss`, `share` is recovered
    over loss, 1 for all of it; `above_control` is that reading of the merge minus that of the base,
    if the base was read.
    """

    loss: Ends
    recovered: Ends
    share: Ends
    above_control: Ends | None = None


def resampled_mean(samples: Iterable[tuple[str, Array64 | None]]) -> Array64 | None:
    """The mean over tasks of the mean over the models of each, in points: [resamples].

    `samples` are scores of 0 to 1 with their task. None unless all of them are known.
    """
    by_task: dict[str, list[Array64]] = {}
    for task, sample in samples:
        if sample is None:
            return None
        by_task.setdefault(task, []).append(100 * sample)
    means = [aligned(each).mean(axis=0) for each in by_task.values()]
    return np.asarray(aligned(means).mean(axis=0))


def spread_of(
    experts: Array64 | None, current: Array64 | None, read: Array64 | None, base: Array64 | None
) -> Spread | None:
    """The differences of means on the same resampled rows; None unless all but the base are known.

    `read` and `base` are the merge and the base under the reading that may win back what is lost.
    """
    if experts is None or current is None or read is None:
        return None
    experts, current, read = aligned([experts, current, read])
    loss, recovered = experts - current, read - current
    # where nothing is lost there is no share: at most one resample in forty, if it is asked for
    share = np.divide(recovered, loss, out=np.full_like(loss, MOST), where=loss > 0)
    return Spread(
        loss=ends(loss),
        recovered=ends(recovered),
        share=ends(share.clip(-MOST, MOST)),
        above_control=None if base is None else ends(np.subtract(*aligned([read, base]))),
    )


def around(ends: Ends) -> str:
    """The ends of a share, `within 60 to 100 %`: between none and all."""
    low, high = (f"{100 * min(max(end, 0), 1):.0f}" for end in ends)
    return f"within {low} to {high} %"


def on_other_rows(loss: Ends) -> str:
    """Where what is lost would lie, as a difference to the experts: `within -3.0 to -1.0`."""
    low, high = sorted(round(-end, 1) + 0.0 for end in loss)  # no -0.0
    return f"within {low:+.1f} to {high:+.1f} on other rows"


NO_INTERVAL = " (No interval: predictions are not at hand.)"
