"""How much of the loss of each row of a board is the head's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.reporting.boards.tested import gaps
from harness.reporting.difference import Difference
from harness.reporting.grid import Grid, reported
from harness.reporting.lines import CURRENT, TUNED, Line, Setting
from harness.reporting.verdict import Verdict, verdicts
from harness.stats.intervals import LEVEL
from harness.stats.tests import holm


@dataclass(frozen=True)
class Share:
    """The row of a merge (or the base), its verdict, and how far a tuned head is above its own.

    `lost` is significant with Holm over the rows of a setting; only then there is a share.
    """

    row: str
    verdict: Verdict
    lost: Difference
    recovered: Difference

    @property
    def setting(self) -> str:
        """FT-Classifier Eval with its options and shots."""
        return str(self.verdict.setting)

    @property
    def share(self) -> str:
        """How much of the loss the head explains, with its interval; "" of none that is known."""
        return "" if self.lost.significant is False else self.verdict.share


def shares(scores: Grid, lines: Sequence[Line]) -> tuple[Share, ...]:
    """A share for every row and setting that can have one, settings in the order they come."""
    against = against_of(lines)
    roles = ("merged", "base")
    rows = {
        row: [one for one in scores.by_row.get(row, ()) if one.role in roles] for row in scores.rows
    }
    by_setting: dict[Setting, dict[str, Verdict]] = {}
    for row, mine in rows.items():
        for one in verdicts([*compared(mine, against), *mine], mine):
            by_setting.setdefault(one.setting, {})[row] = one
    settings = [*dict.fromkeys(setting.protocol for setting in by_setting)]
    made = (_shares(scores, known) for known in by_setting.values())
    every = [share for each in made for share in each]
    return tuple(sorted(every, key=lambda share: settings.index(share.verdict.setting.protocol)))


def _shares(scores: Grid, known: Mapping[str, Verdict]) -> list[Share]:
    """Those of the rows that have a verdict under one setting."""
    p = {row: one.spread.p for row, one in known.items() if one.spread is not None}
    lost = {row: value < 1 - LEVEL for row, value in zip(p, holm([*p.values()]), strict=True)}
    current = next(one for one in scores.settings if one.protocol == CURRENT)
    tuned = next(iter(known.values())).setting
    recovered = gaps(scores, known, current, tuned)
    return [
        Share(
            row,
            verdict,
            Difference(verdict.loss, significant=lost.get(row)),
            recovered.get((row, scores.columns[-1]), Difference(verdict.recovered)),
        )
        for row, verdict in known.items()
    ]


def against_of(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """By task, the lines that merges are compared with: of experts, and of the base as control."""
    against: dict[str, list[Line]] = {}
    for line in reported(lines):
        if (line.role, line.protocol) in (("expert", CURRENT), ("base", TUNED)):
            against.setdefault(line.task, []).append(line)
    return against


def compared(mine: Sequence[Line], against: Mapping[str, Sequence[Line]]) -> list[Line]:
    """What a row is compared with: the experts that were merged, and the base under its head.

    All experts, and every base, of a task where none is of this merge.
    """
    compared = []
    for task in dict.fromkeys(line.task for line in mine):
        of_task = [line for line in mine if line.task == task]
        merged = {digest for line in of_task for _, digest in line.experts}
        under = {(line.head, line.set) for line in of_task}
        for role, ours in (
            ("expert", [one for one in against.get(task, ()) if one.digest in merged]),
            ("base", [one for one in against.get(task, ()) if (one.head, one.set) in under]),
        ):
            of_role = [one for one in ours if one.role == role]
            compared += of_role or [one for one in against.get(task, ()) if one.role == role]
    return compared
