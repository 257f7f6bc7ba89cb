"""Pure: lines -> how much of a loss is a change of basis, and which fits rows leave open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.reporting.grid import reported, settings_of, short_task
from harness.reporting.lines import Line, Setting
from harness.reporting.loss import Loss, compared, loss_of
from harness.reporting.sentences import said

PROBE, TURN = "probe", '"transform": "orthogonal"'


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


def bases(lines: Sequence[Line]) -> list[Basis]:
    """What the orthogonal probe finds for the merged model, for every way that it was run.

    By the most shots there are, which determine a turn best. None without experts, or where a task
    was not evaluated.
    """
    lines = reported(lines)
    merged = [line for line in lines if line.role == "merged"]
    turned = [line for line in merged if line.protocol == PROBE and TURN in line.options]
    most = {setting.protocol: setting for setting in settings_of(turned)}
    found = [(compared(lines, merged, setting), setting) for setting in most.values()]
    return [
        Basis(
            **vars(loss_of(of, setting)),
            determined=all(line.fewest >= 1 for line in of.adapted),
            transductive=any(line.transductive for line in of.adapted),
        )
        for of, setting in found
        if of is not None
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
