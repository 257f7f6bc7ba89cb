"""Score against the number of shots that a protocol adapts on (FT-Classifier, Figures 2 and 5)."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from harness.data.shots import amount
from harness.errors import BadOption
from harness.reporting.figures import Figure
from harness.reporting.grid import grid_of_lines
from harness.reporting.lines import Line
from harness.reporting.plots.curves import draw
from harness.reporting.plots.scores import View, lacking
from harness.types import ALL, Shots


def picture(lines: Sequence[Line], view: View) -> Figure:
    """A curve for each protocol that adapts, over its shots, for every merge or every task.

    Raises MissingScores unless there are two numbers of shots, and BadOption where the view asks
    for one number.
    """
    if view.shots is not None:
        raise BadOption("plot shots shows every number of shots, found --shots; leave it out")
    scores = grid_of_lines(lines, by_method=True)
    drawn = [setting for setting in scores.settings if setting.shots]
    counts = sorted({setting.shots for setting in drawn}, key=amount)
    if len(counts) < 2 or not scores.models("merged", "base"):
        do = "make them with harness evaluate --model MODEL --shots 1,5,10,50"
        raise lacking("shots", "scores over two or more numbers of shots", counts, do)
    places = places_of(counts)
    curves = {setting: (setting.protocol, places[setting.shots]) for setting in drawn}
    ticks = {str(count): place for count, place in places.items()}
    return draw("Score against shots", scores, curves, ticks, "shots per class")


def places_of(counts: Sequence[Shots]) -> dict[Shots, float]:
    """The x of ascending numbers of shots: their logarithms.

    `all` is as far beyond the last number as that is from the one before; log 2 if there is none.
    """
    places: dict[Shots, float] = {count: log(count) for count in counts if count != ALL}
    xs = [0.0, *places.values()]
    if ALL in counts:
        places[ALL] = xs[-1] + (xs[-1] - xs[-2] if len(xs) > 2 else log(2))
    return places
