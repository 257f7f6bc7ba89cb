"""Score against the number of shots that a protocol adapts on (FT-Classifier, Figures 2 and 5)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import log
from typing import TYPE_CHECKING

from harness.data.shots import amount
from harness.errors import BadOption, MissingScores
from harness.evaluation.records import Record
from harness.reporting.grid import PROTOCOL_ORDER
from harness.reporting.plots.curves import Curve, Curves, Panel, Point, draw
from harness.reporting.plots.scores import MEAN, Scores, View, scores_of, shown
from harness.types import ALL, Shots

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAKE = "harness evaluate --model MODEL --shots 1,5,10,50"


def picture(records: Sequence[Record], view: View) -> Figure:
    """Score against shots for every merge, or for every task of the only one."""
    return draw(curves(records, view))


def curves(records: Sequence[Record], view: View) -> Curves:
    """A curve for each protocol that adapts, over the shots it was read with.

    Raises MissingScores where none was read with two numbers of shots, and BadOption where the view
    names one.
    """
    if view.shots is not None:
        raise BadOption("shots shows every number of shots, found one of them; leave out --shots")
    scores = scores_of(shown(records, view))
    counts = sorted({one.shots for one in scores.readings if one.shots}, key=amount)
    if len(counts) < 2 or not scores.rows:
        raise MissingScores(
            "shots shows scores over two or more numbers of shots, found "
            f"{', '.join(map(str, counts)) or 'none'}; make them with {MAKE}"
        )
    places = places_of(counts)
    return Curves(
        title=titled("Score against shots", scores),
        x_label="shots per class",
        ticks=tuple((place, str(count)) for count, place in places.items()),
        panels=panels_of(scores, lambda row, column: _by_protocol(scores, row, column, places)),
        spread=scores.spread,
    )


def places_of(counts: Sequence[Shots]) -> dict[Shots, float]:
    """Where ascending numbers of shots stand along x, as logarithms.

    `all` is no number, and stands as far beyond the last one as that is from the one before.
    """
    places: dict[Shots, float] = {count: log(count) for count in counts if count != ALL}
    known = [0.0, *places.values()]
    if ALL in counts:
        places[ALL] = known[-1] + (known[-1] - known[-2] if len(known) > 2 else log(2))
    return places


def titled(what: str, scores: Scores) -> str:
    """The title of panels for merges, or of those for the tasks of the only one."""
    if len(scores.rows) == 1:
        return f"{what}: {scores.rows[0]}"
    return f"{what}, {scores.title(MEAN if len(scores.tasks) > 1 else scores.tasks[0])}"


def panels_of(scores: Scores, curves: Callable[[str, str], tuple[Curve, ...]]) -> tuple[Panel, ...]:
    """A panel for the mean of every row, or for each task of the only one; `curves` are of both.

    Raises MissingScores where no row has a mean, as none was read on all tasks.
    """
    if len(scores.rows) > 1:
        column = MEAN if len(scores.tasks) > 1 else scores.tasks[0]
        places = [(row, row, column) for row in scores.rows]
    else:
        columns = scores.columns_of(scores.readings)
        places = [(scores.title(column), scores.rows[0], column) for column in columns]
    panels = tuple(
        Panel(
            title,
            scores.unit(column),
            curves(row, column),
            levels_of(scores, row, column),
            row in scores.bases,
        )
        for title, row, column in places
        if curves(row, column)
    )
    if not panels:
        raise MissingScores(
            f"no merge was read on all of {len(scores.tasks)} tasks, expected one for a mean over "
            "them; name fewer with --tasks"
        )
    return panels


def levels_of(scores: Scores, row: str, column: str) -> tuple[tuple[str, float], ...]:
    """What a row, and its experts, score under Current Eval; and what no model needs."""
    current = next((r for r in scores.readings if r.protocol == PROTOCOL_ORDER[0]), None)
    cell = scores.cell(row, current, column) if current else None
    known = {
        "experts": scores.expert(current, column) if current else None,
        "current": None if cell is None else cell.mean,
        "best constant prediction": scores.baseline(column),
    }
    return tuple((name, value) for name, value in known.items() if value is not None)


def _by_protocol(
    scores: Scores, row: str, column: str, places: Mapping[Shots, float]
) -> tuple[Curve, ...]:
    curves: dict[str, list[Point]] = {}
    for reading in scores.readings:
        cell = scores.cell(row, reading, column)
        if reading.shots and cell is not None:
            point = Point(places[reading.shots], cell.mean, cell.deviation)
            curves.setdefault(reading.protocol, []).append(point)
    return tuple((name, tuple(points)) for name, points in curves.items())
