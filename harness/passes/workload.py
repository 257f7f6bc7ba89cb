"""The work of a command in all, and how much of it is done: one progress bar for everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from harness.types import Progress, Steps


class Workload:
    """The parts of some work, each with its size, and the progress of all parts together.

    Totals are always those of all parts. A row through a model and a tensor that is written count
    the same: without models there are only tensors, and with models these are few.
    """

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._sizes: dict[Hashable, int] = {}
        self._done: Counter[Hashable] = Counter()

    def plan(self, part: Hashable, size: int) -> None:
        """Add a part of this size to the total, unless it is there already."""
        self._sizes.setdefault(part, size)

    def steps(self, what: str, part: Hashable) -> Steps | None:
        """The progress of a part; None if nothing shows it, it was not planned, or it is done.

        A part that is done again, or is larger than planned, counts up to its planned size.
        """
        tell, size = self._progress, self._sizes.get(part, 0)
        if tell is None or self._done[part] >= size:
            return None

        def step(done: int) -> None:
            more = min(done, size - self._done[part])
            self._done[part] += more
            if more:
                tell(what, more, sum(self._sizes.values()))

        return step

    def within(self, name: str, part: Hashable) -> Progress | None:
        """A `Progress` for work with a total of its own, shown as a share of the part, under the
        label `name` · what.

        If its own total grows, the bar waits. None if nothing shows it.
        """
        if self._progress is None:
            return None
        done = 0

        def tell(what: str, more: int, total: int) -> None:
            nonlocal done
            done += more
            reached = self._sizes.get(part, 0) * done // max(total, 1)
            if step := self.steps(f"{name} · {what}" if name else what, part):
                step(max(0, reached - self._done[part]))

        return tell

    def finish(self, what: str, part: Hashable) -> None:
        """Count a part as done, whatever was counted: less was to do, or it was refused."""
        if step := self.steps(what, part):
            step(self._sizes[part])

    def tell(self, what: str, done: int, size: int) -> None:
        """A `Progress` of the part named `what`, which is added now if it was not planned."""
        self.plan(what, size)
        if step := self.steps(what, what):
            step(done)
