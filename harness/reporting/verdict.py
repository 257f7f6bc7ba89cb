"""Pure: lines -> where the score of a merge goes, and how much of a loss is the head's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.reporting.difference import fewest_draws, in_percent
from harness.reporting.grid import reported
from harness.reporting.lines import Line, Setting, headlines
from harness.reporting.loss import Compared, Loss, compared, loss_of, mean
from harness.reporting.sentences import UNEQUAL, said
from harness.stats.tests import FEWEST_DRAWS


@dataclass(frozen=True)
class Verdict(Loss):
    """How far a merge is below its experts under Current Eval, and what a tuned head wins back.

    The setting is FT-Classifier Eval, `draws` how many draws of its shots there are, at least.
    `unequal` are the least and the largest score of an expert where their mean is no measure: those
    of one task are far apart, or one is far below the merge, with a tuned head or without.
    """

    draws: int = FEWEST_DRAWS
    unequal: tuple[float, float] | None = None

    @property
    def share(self) -> str:
        """How much of the loss the head explains, with its interval; "" where that is not known.

        Of a significant loss alone, whatever is recovered: a share that is printed where it is
        large would be too large.
        """
        if self.standing != "below":
            return ""
        if self.as_the_base:
            return "as the base"
        if self.ratio is None:
            return ""
        return in_percent(self.ratio) if self.ratio.ends[1] > 0 else "none"

    def __str__(self) -> str:
        return said("verdict", self)


def verdicts(lines: Sequence[Line], merged: Sequence[Line] | None = None) -> list[Verdict]:
    """The verdict on the merged model for every way that FT-Classifier Eval was run.

    `merged` are its lines, if they are not those of that role. Of several numbers of shots, by the
    nearest to the papers' five. None by a head that was tuned on the rows that are scored, without
    experts, or where a task was not evaluated.
    """
    lines = reported(lines)
    mine = [one for one in lines if one.role == "merged"] if merged is None else merged
    settings = headlines(line.setting for line in mine if line.tuned).values()
    found = [(compared(lines, mine, setting), setting) for setting in settings]
    return [_verdict(of, setting) for of, setting in found if of is not None]


def _verdict(of: Compared, setting: Setting) -> Verdict:
    drawn = fewest_draws([*of.adapted, *of.base])
    return Verdict(**vars(loss_of(of, setting)), draws=drawn, unequal=_unequal(of))


def _unequal(of: Compared) -> tuple[float, float] | None:
    """The least and the largest score of an expert, where some are too far from what is theirs."""
    experts = [(one.task, mean([one])) for one in of.experts]
    far = False
    for task in {line.task for line in of.current}:
        mine = [value for name, value in experts if name == task]
        own = [mean([one]) for one in of.current if one.task == task]
        tuned = mean([one for one in of.adapted if one.task == task])
        far = far or max(*mine, *own, tuned) - min(mine) > UNEQUAL
    scores = [value for _, value in experts]
    return (min(scores), max(scores)) if far else None
