"""How much of the loss of each row of a board is the head's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.data.shots import counted
from harness.evaluation.estimates import Ends
from harness.reporting.boards.gains import Gain, gaps
from harness.reporting.difference import Difference
from harness.reporting.grid import CURRENT, Grid, reported
from harness.reporting.lines import TUNED, Line
from harness.reporting.verdict import Sampled, Verdict, verdicts_of


@dataclass(frozen=True)
class Share:
    """The row of a merge (or the base), and its verdict."""

    row: str
    verdict: Verdict

    @property
    def setting(self) -> str:
        """FT-Classifier Eval as it was read."""
        return f"{self.verdict.setting}, {counted(self.verdict.shots)}"

    @property
    def lost(self) -> Gain:
        """What the merge is below its experts, as far as can be told."""
        spread = self.verdict.spread
        return _told(self.verdict.loss, spread.loss if spread else None)

    @property
    def recovered(self) -> Gain:
        """What a tuned head wins back, as far as can be told."""
        spread = self.verdict.spread
        if self.verdict.untold:
            return Gain(self.verdict.recovered, told=False)
        return _told(self.verdict.recovered, spread.recovered if spread else None)


def _told(points: float, within: Ends | None) -> Gain:
    """A difference with what its interval says; without one, nobody says it."""
    return Gain(points, None if within is None else Difference(points, within).told)


def shares(scores: Grid, lines: Sequence[Line], sampled: Sampled | None) -> tuple[Share, ...]:
    """A share for every row and setting that can have one, settings in the order they come."""
    against = _against(lines)
    rows: dict[str, list[Line]] = {row: [] for row in scores.rows}
    for (row, _, _), line in scores.lines.items():
        if line.role in ("merged", "base"):
            rows[row].append(line)
    made = [
        Share(row, verdict if verdict.spread else _as_stored(verdict, scores, row))
        for row, mine in rows.items()
        for verdict in verdicts_of([*_compared(mine, against), *mine], mine, sampled)
    ]
    settings = [*dict.fromkeys(share.verdict.setting for share in made)]
    return tuple(sorted(made, key=lambda share: settings.index(share.verdict.setting)))


def _as_stored(verdict: Verdict, scores: Grid, row: str) -> Verdict:
    """A verdict without predictions, with what the intervals of its records tell."""
    known = {(reading.protocol, reading.shots): reading for reading in scores.readings}
    current, tuned = known[CURRENT, 0], known[verdict.setting, verdict.shots]
    column = scores.columns[-1]
    gain = gaps(scores, [row], current, tuned, None).get((row, column))
    return replace(verdict, untold=gain is not None and gain.told is False)


def _against(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """By task, the lines that merges are compared with: of experts, and of the base as control."""
    against: dict[str, list[Line]] = {}
    for line in reported(lines):
        if (line.role, line.protocol) in (("expert", CURRENT), ("base", TUNED)):
            against.setdefault(line.task, []).append(line)
    return against


def _compared(mine: Sequence[Line], against: Mapping[str, Sequence[Line]]) -> list[Line]:
    """What a row is compared with: the experts that were merged, and the base under its head.

    All experts, and every base, of a task where none is of this merge.
    """
    compared = []
    for task, line in {line.task: line for line in mine}.items():
        merged = {digest for _, digest in line.experts}
        for role, ours in (
            ("expert", [one for one in against.get(task, ()) if one.digest in merged]),
            ("base", [one for one in against.get(task, ()) if one.head == line.head]),
        ):
            of_role = [one for one in ours if one.role == role]
            compared += of_role or [one for one in against.get(task, ()) if one.role == role]
    return compared
