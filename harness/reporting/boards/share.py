"""Pure: how much of the loss of each row of a board is the head's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from harness.data.shots import amount
from harness.reporting.grid import HEADLINE_SHOTS, TUNED, Grid, reported
from harness.reporting.lines import Line
from harness.reporting.verdict import Verdict
from harness.types import Shots

LEAST = 1.0
"""Points of loss: of less, the share is that of rounding and chance."""


@dataclass(frozen=True)
class Share:
    """The row of a merge (or the base), and the numbers of its verdict."""

    row: str
    verdict: Verdict

    @property
    def setting(self) -> str:
        """FT-Classifier Eval as it was read."""
        return f"{self.verdict.setting}, {self.verdict.shots} shots"

    @property
    def percent(self) -> float | None:
        """What the head explains of the loss; None where less than a point is lost."""
        if self.verdict.loss < LEAST:
            return None
        return 100 * self.verdict.recovered / self.verdict.loss


def shares(scores: Grid, lines: Sequence[Line]) -> tuple[Share, ...]:
    """A share for every row and setting that can have one, settings in the order they come."""
    experts: dict[str, dict[str, float]] = {}
    for line in reported(lines):
        if line.role == "expert" and line.protocol == "current":
            experts.setdefault(line.task, {})[line.digest] = line.values[0]
    rows: dict[str, list[Line]] = {row: [] for row in scores.rows}
    for (row, _, _), line in scores.lines.items():
        if line.role in ("merged", "base"):
            rows[row].append(line)
    made = [share for row, mine in rows.items() for share in _shares(row, mine, experts)]
    settings = [*dict.fromkeys(share.verdict.setting for share in made)]
    return tuple(sorted(made, key=lambda share: settings.index(share.verdict.setting)))


def _shares(
    row: str, lines: Sequence[Line], experts: Mapping[str, Mapping[str, float]]
) -> list[Share]:
    """The shares of a row: one for every setting of FT-Classifier Eval, over all of its tasks."""
    own = [line for line in lines if line.protocol == "current"]
    current = {line.task: line.values[0] for line in own}
    if current.keys() != {line.task for line in lines} or not current.keys() <= experts.keys():
        return []
    made = []
    for setting in dict.fromkeys(line.setting for line in lines if line.protocol == TUNED):
        read = [line for line in lines if line.setting == setting]
        shots = min({one.shots for one in read}, key=_nearest)
        tuned = {one.task: _mean(one.values) for one in read if one.shots == shots}
        if tuned.keys() == current.keys():
            above = _mean([_mean(_own(line, experts[line.task])) for line in own])
            numbers = {"experts": above, "current": _mean([*current.values()])}
            numbers["tuned"] = _mean([*tuned.values()])
            verdict = Verdict(**numbers, shots=shots, tasks=len(current), setting=setting)
            made.append(Share(row, verdict))
    return made


def _nearest(shots: Shots) -> tuple[float, float]:
    return abs(amount(shots) - HEADLINE_SHOTS), amount(shots)


def _own(line: Line, read: Mapping[str, float]) -> list[float]:
    """The experts of the task that were merged; all that were read, where none of those was."""
    merged = [read[digest] for _, digest in line.experts if digest in read]
    return merged or [*read.values()]


def _mean(values: Sequence[float]) -> float:
    return fsum(values) / len(values)
