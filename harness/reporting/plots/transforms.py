"""Score under probes with stricter and stricter transformations (FT-Classifier, Figure 4).

Where the score falls shows which change of basis lies between the features of a merge and those of
its expert.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.files import parse_json
from harness.options import parse_choice
from harness.reporting.figures import Figure
from harness.reporting.grid import grid_of_lines
from harness.reporting.lines import Line, Setting
from harness.reporting.names import marked
from harness.reporting.plots.curves import draw
from harness.reporting.plots.scores import View, headline, lacking
from harness.types import Choice

PROBE, OPTION = "probe", "transform"
STRICTER = ("affine", "linear", "invertible", "similarity", "euclidean", "orthogonal", "scaling")
"""Transformations of features from the freest to the strictest (docs/methods.md#probe).

Each is a special case of those before it, with two exceptions: similarity and euclidean have an
offset, so they are not special cases of linear and invertible; scaling stretches, so it is not one
of euclidean and orthogonal.
"""
ASKED = ",".join(f"{PROBE}:{OPTION}={name}" for name in ("affine", "orthogonal", "scaling"))


def picture(lines: Sequence[Line], view: View) -> Figure:
    """A curve over transformations of the probe for each choice of the rows it was fitted on.

    A panel for every merge, or for every task of a single one. Raises MissingScores unless the
    probe was evaluated with two transformations.
    """
    scores, probes = grid_of_lines(lines, by_method=True), _probes(lines, view)
    names = [name for name in STRICTER if name in {name for _, name in probes.values()}]
    if len(names) < 2 or not scores.models("merged", "base"):
        do = f"make them with harness evaluate --model MODEL --protocols current,{ASKED}"
        shows = f"two or more transformations of the protocol '{PROBE}'"
        raise lacking("transforms", shows, names, do)
    ticks = {name: float(index) for index, name in enumerate(names)}
    curves = {setting: (fitted, ticks[name]) for setting, (fitted, name) in probes.items()}
    title = "Score of the probe by the transformation it may use"
    return draw(title, scores, curves, ticks, "from free to strict", slant=35)


def _probes(lines: Sequence[Line], view: View) -> dict[Setting, tuple[str, str]]:
    """By setting of the probe, one number of shots each: the name of its curve, its transform."""
    probes = {line.setting: line for line in lines if line.protocol == PROBE}
    curves = {}
    for setting in headline(probes, view.shots):
        line = probes[setting]
        transform = parse_json(line.options, line.path, "options of a probe").get(OPTION)
        if transform in STRICTER:
            options = parse_choice(line.setting.protocol).options
            rest = Choice(PROBE, {key: value for key, value in options.items() if key != OPTION})
            fitted = str(replace(setting, protocol=str(rest)))
            curves[setting] = marked(fitted, transductive=line.transductive), transform
    return curves
