"""How many rows a run has to put through models, and how many of them are done."""

from __future__ import annotations

from typing import TypeAlias

from harness.evaluation.systems import System
from harness.types import Progress, Rows, Steps

Pass: TypeAlias = tuple[str, str]
"""Rows through a model, by what weights and rows hash to."""


class Workload:
    """The passes that a run is known to need, each once, and what is told while they are made.

    A pass is told of when it is made for the first time; one that nobody planned is not.
    """

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self._left: dict[Pass, int] = {}
        self._total = 0

    def plan(self, system: System, rows: Rows) -> None:
        """Count the rows through every member of a system, unless they are counted already."""
        for digest in system.digests:
            if (digest, rows.digest) not in self._left:
                self._left[digest, rows.digest] = len(rows)
                self._total += len(rows)

    def steps(self, what: str, digest: str, rows: Rows) -> Steps | None:
        """What is told of a pass, of all rows of the run; None if that is nothing."""
        tell, total = self._progress, self._total
        if tell is None or not self._left.get((digest, rows.digest)):
            return None
        self._left[digest, rows.digest] = 0
        return lambda done: tell(what, done, total)
