"""How much of the loss of each row of a board is the head's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.reporting.boards.tested import gaps
from harness.reporting.difference import Difference
from harness.reporting.grid import Grid
from harness.reporting.lines import CURRENT, Line, Setting
from harness.reporting.verdict import Verdict, against_of, verdicts_on
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
    by_setting: dict[Setting, dict[str, Verdict]] = {}
    for row in scores.rows:
        mine = [one for one in scores.by_row.get(row, ()) if one.role in ("merged", "base")]
        for one in verdicts_on(mine, against):
            by_setting.setdefault(one.setting, {})[row] = one
    protocols = [*dict.fromkeys(setting.protocol for setting in by_setting)]
    every = [share for known in by_setting.values() for share in _shares(scores, known)]
    return tuple(sorted(every, key=lambda share: protocols.index(share.verdict.setting.protocol)))


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
