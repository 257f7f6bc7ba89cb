"""How much work there is in all, and how much of it is done: one bar for everything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

from harness.types import Progress, Steps


class Workload:
    """The parts of some work, each with its size, and what is told while they are done.

    Whatever is done, what is told is of all of them. The rows through models and the tensors that
    are written count alike: without models nothing else is counted, and with them it is little.
    """

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._sizes: dict[Hashable, int] = {}
        self._done: Counter[Hashable] = Counter()

    def plan(self, part: Hashable, size: int) -> None:
        """Count a part, unless it is counted already."""
        self._sizes.setdefault(part, size)

    def steps(self, what: str, part: Hashable) -> Steps | None:
        """What is told of a part; None if nobody listens, it was not planned, or it is done.

        A part that is done again, or is larger than was planned, is told of as far as it was.
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
        """A `Progress` for work that counts by itself: told as so much of the part, `name` · what.

        Where its own total grows, the bar waits for it. None if nobody listens.
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
        """Count a part as done, whatever was told of it: less was to do, or it was refused."""
        if step := self.steps(what, part):
            step(self._sizes[part])

    def tell(self, what: str, done: int, size: int) -> None:
        """A `Progress` of the part of that name, which is counted now if nobody planned it."""
        self.plan(what, size)
        if step := self.steps(what, what):
            step(done)
