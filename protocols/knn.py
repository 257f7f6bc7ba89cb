"""KNN Eval: is the label still in the neighbourhood of the feature? (FT-Classifier paper)"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import faiss
import numpy as np

from harness import Encoded, Predictions, protocol
from harness.errors import BadOption
from harness.kinds import Rule
from harness.options import Count
from harness.types import Array, Array64, Draw, FeaturesName

BATCH = 4096
"""The most rows whose distances are computed at a time."""
PAIRS = 2**24
"""The most distances that are held at a time: with all rows as anchors there are many."""
NEIGHBOURS = 5


def _check(*, rule: str, neighbours: int, **_: object) -> None:
    """Raise BadOption for a number of neighbours with a rule that counts none."""
    if rule != "vote" and neighbours != NEIGHBOURS:
        raise BadOption(f"knn has neighbours={neighbours} with rule={rule}, expected rule=vote")


@protocol(
    "knn",
    paper="FT-Classifier, section 4",
    adapts="labeled",
    check=_check,
    of_tags=("o_anchors",),
    outside=lambda *, o_anchors, **_: int(o_anchors),
    features=lambda *, features, **_: features,
)
def knn(
    encoded: Encoded,
    *,
    rule: Literal["mean", "vote", "centroid"] = "mean",
    neighbours: Count = NEIGHBOURS,
    o_anchors: Count = 1,
    features: FeaturesName = "last_linear",
) -> list[Predictions]:
    """One prediction of the test rows per draw, by Euclidean distance to the drawn anchors.

    Classification: the class whose anchors are nearest on average, lowest index on ties. It is
    neither a vote of k neighbours nor the nearest class mean. Tagging: the same, with words as
    anchors. Multi-label: for each class, whether anchors with it or anchors without it are nearer.
    Regression: the mean label of all anchors, weighted by 1 / (distance + 1e-8). A class of which
    nothing is drawn is never predicted.

    `rule=vote`: the most frequent class among the `neighbours` nearest anchors, on ties the one
    with the nearest anchor; for regression, the mean label of these anchors.
    `rule=centroid`: the class whose anchors have the nearest mean; for regression, the mean label
    of the bin with the nearest mean.

    `o_anchors`: how many times as many words of no entity are drawn as of any other tag. Most words
    of a text are of no entity, and a few of them represent them badly.

    `features`: the input of the final layer of the model's head (`last_linear`) or, for whole rows,
    the encoder's last hidden states without head and pooler: their mean over the tokens of a row
    (`mean_masked`), their mean over all `--max-length` positions with padding (`mean_padded`), or
    that of the first token (`cls`).
    """
    del o_anchors, features  # they decided what was drawn and what was encoded
    assert encoded.pool is not None, "or there is no such cell"
    # for tagging, the pool has every word of the drawn sentences, and few words are anchors
    anchors = sorted({unit for draw in encoded.draws for rows in draw.rows for unit in rows})
    place = {unit: at for at, unit in enumerate(anchors)}
    x, labels = encoded.pool.x[anchors], encoded.pool.labels[anchors]
    draws = [_placed(draw, place) for draw in encoded.draws]
    parts: list[list[Array64]] = [[] for _ in draws]
    count = max(1, min(BATCH, PAIRS // max(1, len(anchors))))
    for start in range(0, len(encoded.test), count):
        decide = RULES[rule](encoded.test.x[start : start + count], x, neighbours)
        for part, draw in zip(parts, draws, strict=True):
            part.append(encoded.kind.predict_by(decide, labels, draw))
    return [
        Predictions(np.concatenate(part), draw)
        for part, draw in zip(parts, encoded.draws, strict=True)
    ]


def _placed(draw: Draw, place: Mapping[int, int]) -> Draw:
    """The draw with units numbered among the anchors."""
    return replace(draw, rows=tuple(tuple(place[unit] for unit in rows) for rows in draw.rows))


# Rules -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mean:
    """The rule of the mean distance. `far` are the distances [rows, anchors]."""

    far: Array64

    def group(self, groups: Sequence[Sequence[int]]) -> Array64:
        """The group whose anchors are nearest on average, lowest index on ties."""
        never = np.full(len(self.far), np.inf)
        means = [self.far[:, list(group)].mean(axis=1) if group else never for group in groups]
        return np.asarray(np.stack(means, axis=1).argmin(axis=1), dtype=np.float64)

    def value(self, groups: Sequence[Sequence[int]], labels: Array64) -> Array64:
        """The mean label, weighted by 1 / (distance + 1e-8)."""
        anchors = [unit for group in groups for unit in group]
        closeness = 1 / (self.far[:, anchors] + 1e-8)
        return np.asarray(closeness @ labels[anchors] / closeness.sum(axis=1))


@dataclass(frozen=True)
class Vote:
    """The rule of the nearest `neighbours` anchors. `far` are the distances [rows, anchors]."""

    far: Array64
    neighbours: int

    def group(self, groups: Sequence[Sequence[int]]) -> Array64:
        """The most frequent group among the nearest, on ties the one with the nearest anchor."""
        owner = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
        if not len(owner):
            return np.zeros(len(self.far))
        nearest = owner[self._nearest(groups)]
        votes = (nearest[:, :, None] == np.arange(len(groups))).sum(axis=1)
        winning = np.take_along_axis(votes, nearest, axis=1) == votes.max(axis=1)[:, None]
        first = winning.argmax(axis=1)
        return np.asarray(nearest[np.arange(len(nearest)), first], dtype=np.float64)

    def value(self, groups: Sequence[Sequence[int]], labels: Array64) -> Array64:
        """The mean label of the nearest anchors."""
        anchors = np.array([unit for group in groups for unit in group])
        # sorted: sums in another order differ in the last digit, and so in ranks
        return np.asarray(labels[anchors][np.sort(self._nearest(groups), axis=1)].mean(axis=1))

    def _nearest(self, groups: Sequence[Sequence[int]]) -> Any:
        """Indices [rows, neighbours], nearest first, of anchors in the concatenated groups."""
        anchors = [unit for group in groups for unit in group]
        return self.far[:, anchors].argsort(axis=1, kind="stable")[:, : self.neighbours]


@dataclass(frozen=True)
class Centroid:
    """The rule of the nearest mean, in float64. `x` and `anchors` are features [rows, width]."""

    x: Array
    anchors: Array

    def group(self, groups: Sequence[Sequence[int]]) -> Array64:
        """The group with the nearest mean, lowest index on ties."""
        from scipy.spatial.distance import cdist

        known = [index for index, group in enumerate(groups) if group]
        centres = [self.anchors[list(groups[index])].mean(axis=0, dtype=float) for index in known]
        if not known:
            return np.zeros(len(self.x))
        far = cdist(self.x.astype(np.float64), np.stack(centres))
        return np.asarray(np.array(known, dtype=np.float64)[far.argmin(axis=1)])

    def value(self, groups: Sequence[Sequence[int]], labels: Array64) -> Array64:
        """The mean label of the group with the nearest mean."""
        means = np.array([labels[list(group)].mean() if group else np.nan for group in groups])
        return np.asarray(means[self.group(groups).astype(int)])


RULES: Mapping[str, Callable[[Array, Array, int], Rule]] = {
    "mean": lambda x, anchors, _: Mean(distances(x, anchors)),
    "vote": lambda x, anchors, neighbours: Vote(distances(x, anchors), neighbours),
    "centroid": lambda x, anchors, _: Centroid(x, anchors),
}
"""Rules, made from features of test rows, features of anchors, and a number of neighbours."""


# Distances ---------------------------------------------------------------------------------


def distances(x: Array, anchors: Array) -> Array64:
    """Euclidean distances [rows, anchors], by faiss.

    Features of a pair are subtracted, then squared: the expanded square, which faiss uses for a
    search of many, cancels where rows lie close together.
    """
    if not len(anchors):  # faiss needs at least one
        return np.empty((len(x), 0))
    index: Any = faiss.IndexFlatL2(anchors.shape[1])
    index.add(np.ascontiguousarray(anchors))
    rows, squared = np.ascontiguousarray(x), np.empty((len(x), len(anchors)), dtype=np.float32)
    every = np.tile(np.arange(len(anchors), dtype=np.int64), (len(x), 1))
    to, of = faiss.swig_ptr(squared), faiss.swig_ptr(every)
    index.compute_distance_subset(len(x), faiss.swig_ptr(rows), len(anchors), to, of)
    return np.sqrt(squared.astype(np.float64))
