"""Pure: lines -> what a merge loses against its experts, and how much of that is the head's, or a
change of basis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from harness.reporting.difference import (
    alike,
    apart,
    by_task,
    constants_of,
    enough_draws,
    fewest_draws,
    in_percent,
    in_points,
    one_metric,
)
from harness.reporting.grid import reported, short_task
from harness.reporting.lines import CURRENT, Line, Setting, grouped, headlines, in_order
from harness.reporting.mixed import check_work
from harness.reporting.sentences import UNEQUAL, said
from harness.stats.intervals import Ends, Ratio, credit, ratio
from harness.stats.tests import FEWEST_DRAWS, p_value
from harness.text import points

PROBE, TURN = "probe", '"transform": "orthogonal"'


@dataclass(frozen=True)
class Loss:
    """How far a merge is below its experts under Current Eval, and its score under a `setting`.

    All in points (x100), averaged over the tasks. `adapted` is the merge and `control` the base
    under the setting: what that can do without any merge. `within` is the 95 % interval of the
    loss over test units and draws, and `p` of its test; `above_control` that of the merge minus the
    base under the setting. `ratio` is what the setting recovers over the loss. Ratios are None
    where they are undefined, or rest on too few draws; `credit` also where tasks have several
    metrics, of which the mean has no scale.
    """

    experts: float
    current: float
    adapted: float
    setting: Setting
    tasks: int
    within: Ends
    ratio: Ratio | None = None
    control: float | None = None
    above_control: Ends | None = None
    credit: Ratio | None = None
    p: float = 0.0

    @property
    def loss(self) -> float:
        return self.experts - self.current

    @property
    def recovered(self) -> float:
        return self.adapted - self.current

    @property
    def standing(self) -> Literal["below", "above", "cannot tell"]:
        """Where the merge is, of its experts; what is printed as 0.0 is nowhere."""
        low, high = self.within
        if low <= 0 <= high or points(self.loss) == "0.0":
            return "cannot tell"
        return "below" if self.loss > 0 else "above"

    @property
    def as_the_base(self) -> bool:
        """Whether the merge is not above the base under the setting, which is then no evidence."""
        if self.control is None:
            return False
        above = self.above_control
        as_high = float(points(self.control)) >= float(points(self.adapted))
        return as_high or (above is not None and above[0] <= 0)


@dataclass(frozen=True)
class Verdict(Loss):
    """How far a merge is below its experts under Current Eval, and what a tuned head recovers.

    The setting is FT-Classifier Eval, `draws` how many draws of its shots there are, at least.
    `unequal` are the least and the largest score of an expert where their mean is no measure: those
    of one task are far apart, or one is far below the merge, with a tuned head or without. `astray`
    are tasks of which every expert is significantly below the best constant prediction.
    """

    draws: int = FEWEST_DRAWS
    unequal: tuple[float, float] | None = None
    astray: tuple[str, ...] = ()

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


@dataclass(frozen=True)
class Basis(Loss):
    """How far a merge is below its experts, and its score under an orthogonal map of its features.

    The setting is of the probe. `determined`: no fit had fewer rows than features have dimensions;
    `transductive`: they were to the rows that are scored.
    """

    determined: bool = True
    transductive: bool = False

    def __str__(self) -> str:
        return said("basis", self)


# From lines --------------------------------------------------------------------------------


class Compared(NamedTuple):
    """Lines of the same tasks: of experts and of a merge under Current Eval, of that merge and of
    its base, if it is of these tasks, under another setting."""

    experts: list[Line]
    current: list[Line]
    adapted: list[Line]
    base: list[Line]


def against_of(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """By task, the lines that merges are compared with: of experts, and of the base as control."""
    kept = [
        line
        for line in reported(lines)
        if line.role == "base" or (line.role, line.protocol) == ("expert", CURRENT)
    ]
    return grouped(kept, lambda line: line.task)


def compared(
    merged: Sequence[Line], against: Mapping[str, Sequence[Line]], setting: Setting
) -> Compared | None:
    """A merge beside the experts that it is of, and the base under its head.

    All experts, and every base, of a task where none is of this merge. None without experts, where
    a task was not evaluated, and where records of a task keep other resamples.
    """
    current = [one for one in merged if one.protocol == CURRENT]
    found = Compared([], current, [one for one in merged if one.setting == setting], [])
    tasks = grouped(merged, lambda line: line.task)
    for task, mine in tasks.items():
        made_of = {digest for one in mine for _, digest in one.experts}
        heads = {(one.head, one.set) for one in mine}
        experts = [one for one in against.get(task, ()) if one.role == "expert"]
        bases = [o for o in against.get(task, ()) if (o.role, o.setting) == ("base", setting)]
        found.experts.extend([one for one in experts if one.digest in made_of] or experts)
        found.base.extend([one for one in bases if (one.head, one.set) in heads] or bases)
    *needed, base = ({line.task for line in part} == {*tasks} for part in found)
    if not all(needed) or not alike([line for part in found for line in part]):
        return None
    check_work([*found.experts, *found.current])
    is_base = any(line.role == "base" for line in merged)
    return found if base and not is_base else found._replace(base=[])


def loss_of(of: Compared, setting: Setting) -> Loss:
    """The loss of a merge, with its intervals."""
    experts, current, adapted, *control = by_task(*(part for part in of if part)) or []
    loss = apart(experts, current)
    enough = enough_draws([*of.adapted, *of.base])
    whole = None
    if control and enough and one_metric(of.current):
        whole = credit(adapted, control[0], experts, constants_of(of.current))
    return Loss(
        experts=mean(of.experts),
        current=mean(of.current),
        adapted=mean(of.adapted),
        setting=setting,
        tasks=len({line.task for line in of.current}),
        within=in_points(loss),
        ratio=ratio(apart(adapted, current), loss) if enough else None,
        control=mean(of.base) if of.base else None,
        above_control=in_points(apart(adapted, control[0])) if control else None,
        credit=whole,
        p=p_value(loss),
    )


def mean(lines: Sequence[Line]) -> float:
    """The mean over tasks of that over models and draws."""
    tasks = sorted(grouped(lines, lambda line: line.task).items())
    return float(np.mean([np.mean([v for one in of for v in one.values]) for _, of in tasks]))


def verdicts(lines: Sequence[Line]) -> list[Verdict]:
    """As `verdicts_on`, of the merged model of some lines."""
    return verdicts_on(_merged(lines), against_of(lines))


def _merged(lines: Sequence[Line]) -> list[Line]:
    return [line for line in reported(lines) if line.role == "merged"]


def verdicts_on(merged: Sequence[Line], against: Mapping[str, Sequence[Line]]) -> list[Verdict]:
    """The verdict on a merge for every way that FT-Classifier Eval was run.

    Of several numbers of shots, by the nearest to the papers' five. None by a head that was tuned
    on the rows that are scored, without experts, or where a task was not evaluated.
    """
    settings = headlines(line.setting for line in merged if line.tuned).values()
    return [
        Verdict(
            **vars(loss_of(of, setting)),
            draws=fewest_draws([*of.adapted, *of.base]),
            unequal=_unequal(of),
            astray=_astray(of.experts),
        )
        for setting in settings
        if (of := compared(merged, against, setting)) is not None
    ]


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


def _highest(line: Line) -> float:
    return line.interval[1] if line.interval else mean([line])


def _astray(experts: Sequence[Line]) -> tuple[str, ...]:
    """The tasks of which every expert is significantly below the best constant prediction, if that
    is known."""
    tasks = grouped(experts, lambda line: line.task)
    return tuple(
        short_task(task, [*tasks])
        for task, of in tasks.items()
        if all(one.majority is not None and _highest(one) < one.majority for one in of)
    )


def bases(lines: Sequence[Line]) -> list[Basis]:
    """What the orthogonal probe finds for the merged model, for every way that it was run.

    By the most shots there are, which determine a turn best. None without experts, or where a task
    was not evaluated.
    """
    merged, against = _merged(lines), against_of(lines)
    turned = {one.setting for one in merged if one.protocol == PROBE and TURN in one.options}
    most = {setting.protocol: setting for setting in in_order(turned)}
    return [
        Basis(
            **vars(loss_of(of, setting)),
            determined=all(line.fewest >= 1 for line in of.adapted),
            transductive=any(line.transductive for line in of.adapted),
        )
        for setting in most.values()
        if (of := compared(merged, against, setting)) is not None
    ]


def left_open(lines: Sequence[Line]) -> list[str]:
    """A line for every setting with fits to fewer rows than features have dimensions."""
    tasks = [*dict.fromkeys(line.task for line in lines)]
    fewest: dict[Setting, dict[str, float]] = {}
    for line in lines:
        if line.fewest < 1:
            known = fewest.setdefault(line.setting, {})
            known[line.task] = min(known.get(line.task, 1), line.fewest)
    return [
        f"{setting}: fitted to fewer rows than features have dimensions, rows for each "
        "dimension: "
        + ", ".join(f"{short_task(task, tasks)} {value:.2f}" for task, value in known.items())
        for setting, known in fewest.items()
    ]
