"""KNN Eval: is the label still in the neighbourhood of the feature? (FT-Classifier paper)"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import faiss
import numpy as np

from harness import Encoded, Predictions, protocol
from harness.errors import BadData, NotFinite
from harness.types import Array, Array64, Draw

BATCH = 4096
"""Rows whose distances are found at a time."""


@protocol("knn", paper="FT-Classifier, section 4", adapts="labeled")
def knn(encoded: Encoded) -> list[Predictions]:
    """One prediction of the test rows per draw, by Euclidean distance to the drawn anchors.

    Classification: the class whose anchors are nearest on average, lowest index on ties. It is
    neither a vote of k neighbours nor the nearest class mean. Tagging: the tag, of words alike.
    Multi-label: class by class, whether those that have it or those that have it not are nearer.
    Regression: the mean label of all anchors, weighted by 1 / (distance + 1e-8).
    """
    if encoded.pool is None or not len(encoded.pool):
        raise BadData(f"protocol 'knn' needs labeled rows of task '{encoded.task}'; found none")
    # of a tagging the pool is every word of the drawn sentences, and few of them are anchors
    anchors = sorted({unit for draw in encoded.draws for rows in draw.rows for unit in rows})
    far = distances(encoded.test.x, encoded.pool.x[anchors])
    labels, place = encoded.pool.labels[anchors], {unit: at for at, unit in enumerate(anchors)}

    def predicted(draw: Draw) -> Array64:
        rows = tuple(tuple(place[unit] for unit in rows) for rows in draw.rows)
        return encoded.kind.nearest(far, labels, replace(draw, rows=rows))

    return [Predictions(predicted(draw), draw) for draw in encoded.draws]


def distances(x: Array, anchors: Array) -> Array64:
    """Euclidean distances [rows, anchors], by faiss.

    Each is that of a pair, subtracted before it is squared: the square expanded, as faiss has it
    for a search of many, cancels where rows lie close together. Raises NotFinite for NaN.
    """
    if not (np.isfinite(x).all() and np.isfinite(anchors).all()):
        raise NotFinite("features are NaN or infinite, expected finite ones")
    index: Any = faiss.IndexFlatL2(anchors.shape[1])
    index.add(np.ascontiguousarray(anchors))
    squared = np.empty((len(x), len(anchors)), dtype=np.float32)
    for start in range(0, len(x), BATCH):
        rows = np.ascontiguousarray(x[start : start + BATCH])
        every = np.tile(np.arange(len(anchors), dtype=np.int64), (len(rows), 1))
        to, of = faiss.swig_ptr(squared[start : start + BATCH]), faiss.swig_ptr(every)
        index.compute_distance_subset(len(rows), faiss.swig_ptr(rows), len(anchors), to, of)
    return np.sqrt(squared.astype(np.float64))
