"""Score under probes whose transformation is bound more and more (FT-Classifier, Figure 4).

How far a score falls says which change of basis lies between the features of a merge and those of
its expert.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from harness.errors import MissingScores
from harness.evaluation.records import Record
from harness.reporting.grid import Reading, label, readings
from harness.reporting.names import marked
from harness.reporting.plots.curves import Curve, Curves, Point, draw
from harness.reporting.plots.scores import Scores, View, headline, scores_of, shown
from harness.reporting.plots.shots import panels_of, titled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROBE, OPTION = "probe", "transform"
STRICTER = ("affine", "linear", "invertible", "similarity", "euclidean", "orthogonal", "scaling")
"""Transformations of features from the freest to the most bound (docs/methods.md#probe).

Each is a special case of affine, and of those before it, with two exceptions: what is linear has no
offset, so similarity and euclidean are none of linear and invertible; and scaling turns nothing, so
it is one of similarity and of the linear ones, but stretches, so it is none of the two between.
"""
MAKE = "harness evaluate --model MODEL --protocols current," + ",".join(
    f"{PROBE}:{OPTION}={name}" for name in ("affine", "orthogonal", "scaling")
)


def picture(records: Sequence[Record], view: View) -> Figure:
    """Score against the strictness of the probe for every merge, or every task of the only one."""
    return draw(curves(records, view))


def curves(records: Sequence[Record], view: View) -> Curves:
    """A curve for each choice of rows that the probe was fitted on, over its transformations.

    Raises MissingScores where the probe was not read with two of them.
    """
    records = shown(records, view)
    scores, probes = scores_of(records), _probes(records, view)
    names = [name for name in STRICTER if name in {name for _, name in probes.values()}]
    if len(names) < 2 or not scores.rows:
        raise MissingScores(
            f"transforms shows two or more transformations of the protocol '{PROBE}', found "
            f"{', '.join(names) or 'none'}; make them with {MAKE}"
        )
    return Curves(
        title=titled("Score of the probe by the transformation it may use", scores),
        x_label="from free to strict",
        ticks=tuple(enumerate(names)),
        panels=panels_of(scores, lambda row, column: _by_rows(scores, row, column, probes, names)),
        spread=scores.spread,
        slant=35,
    )


def _probes(records: Sequence[Record], view: View) -> dict[Reading, tuple[str, str]]:
    """Readings of the probe, one number of shots each: what it was fitted on, and its transform."""
    probes = {}
    for record in records:
        if record.protocol == PROBE and record.options.get(OPTION) in STRICTER:
            rest = {key: value for key, value in record.options.items() if key != OPTION}
            name = label(record.model_copy(update={"options": rest}))
            for reading in headline(readings([record]), view.shots):
                seen = record.adaptation is not None and record.adaptation.transductive
                fitted = marked(str(Reading(reading.rank, name, reading.shots)), transductive=seen)
                probes[reading] = fitted, str(record.options[OPTION])
    return probes


def _by_rows(
    scores: Scores,
    row: str,
    column: str,
    probes: Mapping[Reading, tuple[str, str]],
    names: Sequence[str],
) -> tuple[Curve, ...]:
    curves: dict[str, list[Point]] = {}
    for reading, (fitted, name) in probes.items():
        cell = scores.cell(row, reading, column)
        if cell is not None:
            point = Point(names.index(name), cell.mean, cell.deviation)
            curves.setdefault(fitted, []).append(point)
    return tuple(
        (name, tuple(sorted(curve, key=lambda point: point.x))) for name, curve in curves.items()
    )
