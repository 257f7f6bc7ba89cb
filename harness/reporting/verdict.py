"""Pure: lines -> what a merge loses against its experts, and how much of the loss is due to the
head, or to a change of basis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from harness.reporting.difference import (
    by_task,
    constants_of,
    enough_draws,
    fewest_draws,
    in_percent,
    in_points,
    mean_difference,
    one_metric,
    same_resamples,
    sets_of_all,
    task_sets,
)
from harness.reporting.grid import reported, short_task
from harness.reporting.lines import CURRENT, Line, Setting, grouped, headlines, in_order
from harness.reporting.mixed import check_comparable
from harness.reporting.sentences import UNEQUAL, rendered
from harness.stats.intervals import Ends, Ratio, credit, ratio
from harness.stats.tests import FEWEST_DRAWS, p_value
from harness.text import points

PROBE, TURN = "probe", '"transform": "orthogonal"'
"""The protocol, and its option in `Line.options`, whose map is a rotation."""


@dataclass(frozen=True)
class MergeLoss:
    """How far a merge is below its experts under Current Eval, and its score under a `setting`.

    All in points (x100), averaged over the tasks. `experts` and `current` are under Current Eval.
    `adapted` is the merge and `control` the base under the setting: what the setting reaches
    without any merge. `within` is the 95 % interval of the loss over test units and draws, `p` the
    p-value of the loss, on so many `sets` of experts; `above_control` is the interval of the merge
    minus the base under the setting.
    `ratio` is (adapted - current) / loss. Ratios are None where they are undefined, or rest on too
    few draws; `credit` also where tasks have different metrics, whose mean has no scale.
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
    sets: int = 1

    @property
    def loss(self) -> float:
        return self.experts - self.current

    @property
    def recovered(self) -> float:
        return self.adapted - self.current

    @property
    def standing(self) -> Literal["below", "above", "cannot tell"]:
        """Whether the merge is significantly below or above its experts; a loss that is printed as
        0.0 is neither."""
        low, high = self.within
        if low <= 0 <= high or points(self.loss) == "0.0":
            return "cannot tell"
        return "below" if self.loss > 0 else "above"

    @property
    def as_the_base(self) -> bool:
        """Whether the merge is not significantly above the base under the setting, whose scores are
        then no evidence about the merge."""
        if self.control is None:
            return False
        above = self.above_control
        as_high = float(points(self.control)) >= float(points(self.adapted))
        return as_high or (above is not None and above[0] <= 0)


@dataclass(frozen=True)
class Verdict(MergeLoss):
    """How far a merge is below its experts under Current Eval, and what a tuned head recovers.

    The setting is FT-Classifier Eval; every score in it has `draws` draws of shots or more.
    `unequal` has the lowest and the highest score of an expert if their mean is no measure: experts
    of one task are far apart, or one is far below the merge, with a tuned head or without. `astray`
    are the tasks whose experts are all significantly below the best constant prediction.
    """

    draws: int = FEWEST_DRAWS
    unequal: tuple[float, float] | None = None
    astray: tuple[str, ...] = ()

    @property
    def share(self) -> str:
        """How much of the loss the head explains, with its interval; "" where unknown.

        Given for every significant loss, and for no other, however much is recovered: to print only
        large shares would overstate them.
        """
        if self.standing != "below":
            return ""
        if self.as_the_base:
            return "as the base"
        if self.ratio is None:
            return ""
        return in_percent(self.ratio) if self.ratio.ends[1] > 0 else "none"

    def __str__(self) -> str:
        return rendered("verdict", self)


@dataclass(frozen=True)
class Basis(MergeLoss):
    """How far a merge is below its experts, and its score under an orthogonal map of its features.

    The setting is that of the probe. `determined`: no map was fitted to fewer rows than features
    have dimensions; `transductive`: the maps were fitted to the scored rows.
    """

    determined: bool = True
    transductive: bool = False

    def __str__(self) -> str:
        return rendered("basis", self)


# From lines --------------------------------------------------------------------------------


class ComparedLines(NamedTuple):
    """Lines on the same tasks: `experts` and a merge (`current`) under Current Eval, the merge
    (`adapted`) and its `base` under another setting. `base` is empty if it lacks a task."""

    experts: list[Line]
    current: list[Line]
    adapted: list[Line]
    base: list[Line]


def experts_and_bases(lines: Sequence[Line]) -> dict[str, list[Line]]:
    """By task, the lines that merges are compared with: experts under Current Eval, and bases."""
    compared = [
        line
        for line in reported(lines)
        if line.role == "base" or (line.role, line.protocol) == ("expert", CURRENT)
    ]
    return grouped(compared, lambda line: line.task)


def compared_lines(
    merged: Sequence[Line], against: Mapping[str, Sequence[Line]], setting: Setting
) -> ComparedLines | None:
    """A merge beside the experts that it was made of, and the base under the merge's head.

    Of several sets of experts, those are taken whose merge has both scores on every task. If none
    of a task's experts, or bases, belongs to the merge, all of them are taken. None without
    experts, where a task was not evaluated, and where records of a task keep different resamples.
    """
    sides = [
        [line for line in merged if line.protocol == CURRENT],
        [line for line in merged if line.setting == setting],
    ]
    if not (whole := sets_of_all([*map(task_sets, sides)])):
        return None
    merged = [line for line in merged if line.set in whole]
    current, adapted = ([line for line in side if line.set in whole] for side in sides)
    compared = ComparedLines([], current, adapted, [])
    tasks = grouped(merged, lambda line: line.task)
    for task, mine in tasks.items():
        made_of = {digest for line in mine for _, digest in line.experts}
        heads = {(line.head, line.set) for line in mine}
        experts = [line for line in against.get(task, ()) if line.role == "expert"]
        bases = [o for o in against.get(task, ()) if (o.role, o.setting) == ("base", setting)]
        compared.experts.extend([line for line in experts if line.digest in made_of] or experts)
        compared.base.extend([line for line in bases if (line.head, line.set) in heads] or bases)
    *needed, has_base = ({line.task for line in part} == {*tasks} for part in compared)
    if not all(needed) or not same_resamples([line for part in compared for line in part]):
        return None
    check_comparable([*compared.experts, *compared.current])
    is_base = any(line.role == "base" for line in merged)
    return compared if has_base and not is_base else compared._replace(base=[])


def merge_loss(lines: ComparedLines, setting: Setting) -> MergeLoss:
    """The loss of a merge, with its intervals."""
    experts, current, adapted, *control = by_task(*(part for part in lines if part)) or []
    loss = mean_difference(experts, current)
    enough = enough_draws([*lines.adapted, *lines.base])
    credited = None
    if control and enough and one_metric(lines.current):
        credited = credit(adapted, control[0], experts, constants_of(lines.current))
    return MergeLoss(
        experts=mean_score(lines.experts),
        current=mean_score(lines.current),
        adapted=mean_score(lines.adapted),
        setting=setting,
        tasks=len({line.task for line in lines.current}),
        within=in_points(loss),
        ratio=ratio(mean_difference(adapted, current), loss) if enough else None,
        control=mean_score(lines.base) if lines.base else None,
        above_control=in_points(mean_difference(adapted, control[0])) if control else None,
        credit=credited,
        p=p_value(loss),
        sets=len({line.set for line in lines.current}),
    )


def mean_score(lines: Sequence[Line]) -> float:
    """The mean over tasks of the mean over models and draws, times 100."""
    tasks = sorted(grouped(lines, lambda line: line.task).items())
    means = [np.mean([v for line in group for v in line.values]) for _, group in tasks]
    return float(np.mean(means))


def verdicts(lines: Sequence[Line]) -> list[Verdict]:
    """`verdicts_on` for the merged model in some lines."""
    return verdicts_on(_merged(lines), experts_and_bases(lines))


def _merged(lines: Sequence[Line]) -> list[Line]:
    return [line for line in reported(lines) if line.role == "merged"]


def verdicts_on(merged: Sequence[Line], against: Mapping[str, Sequence[Line]]) -> list[Verdict]:
    """The verdict on a merge for every way that FT-Classifier Eval was run.

    Of several numbers of shots, the nearest to the papers' five is used. Left out are heads that
    were tuned on the scored rows, and ways for which `compared_lines` is None.
    """
    settings = headlines(line.setting for line in merged if line.tuned).values()
    return [
        Verdict(
            **vars(merge_loss(compared, setting)),
            draws=fewest_draws([*compared.adapted, *compared.base]),
            unequal=_unequal(compared),
            astray=_astray(compared.experts),
        )
        for setting in settings
        if (compared := compared_lines(merged, against, setting)) is not None
    ]


def _unequal(compared: ComparedLines) -> tuple[float, float] | None:
    """The lowest and the highest score of an expert, if one is more than UNEQUAL below another
    expert of its task, or below the merge."""
    experts = [(line.task, mean_score([line])) for line in compared.experts]
    far = False
    for task in {line.task for line in compared.current}:
        mine = [value for name, value in experts if name == task]
        own = [mean_score([line]) for line in compared.current if line.task == task]
        tuned = mean_score([line for line in compared.adapted if line.task == task])
        far = far or max(*mine, *own, tuned) - min(mine) > UNEQUAL
    scores = [value for _, value in experts]
    return (min(scores), max(scores)) if far else None


def _highest(line: Line) -> float:
    """The upper end of a score's interval, or the score where it has none."""
    return line.interval[1] if line.interval else mean_score([line])


def _astray(experts: Sequence[Line]) -> tuple[str, ...]:
    """The tasks whose experts are all significantly below the best constant prediction, where it is
    known."""
    tasks = grouped(experts, lambda line: line.task)
    return tuple(
        short_task(task, [*tasks])
        for task, group in tasks.items()
        if all(line.majority is not None and _highest(line) < line.majority for line in group)
    )


def basis_verdicts(lines: Sequence[Line]) -> list[Basis]:
    """What the orthogonal probe finds for the merged model, for every way that it was run.

    The largest number of shots is used, which determines a rotation best. Ways for which
    `compared_lines` is None are left out.
    """
    merged, against = _merged(lines), experts_and_bases(lines)
    turned = {line.setting for line in merged if line.protocol == PROBE and TURN in line.options}
    largest = {setting.protocol: setting for setting in in_order(turned)}
    return [
        Basis(
            **vars(merge_loss(compared, setting)),
            determined=all(line.rows_per_dimension >= 1 for line in compared.adapted),
            transductive=any(line.transductive for line in compared.adapted),
        )
        for setting in largest.values()
        if (compared := compared_lines(merged, against, setting)) is not None
    ]


def left_open(lines: Sequence[Line]) -> list[str]:
    """A sentence for every setting with fits to fewer rows than features have dimensions."""
    tasks = [*dict.fromkeys(line.task for line in lines)]
    fewest: dict[Setting, dict[str, float]] = {}
    for line in lines:
        if line.rows_per_dimension < 1:
            least = fewest.setdefault(line.setting, {})
            least[line.task] = min(least.get(line.task, 1), line.rows_per_dimension)
    return [
        f"{setting}: fitted to fewer rows than features have dimensions, rows for each "
        "dimension: "
        + ", ".join(f"{short_task(task, tasks)} {value:.2f}" for task, value in ratios.items())
        for setting, ratios in fewest.items()
    ]
