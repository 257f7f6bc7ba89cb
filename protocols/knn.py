"""KNN Eval: is the label still in the neighbourhood of the feature? (FT-Classifier paper)"""

from __future__ import annotations

import faiss
import numpy as np

from harness import Encoded, Predictions, protocol
from harness.errors import BadData, NotFinite
from harness.types import Array, Array64


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
    far = distances(encoded.test.x, encoded.pool.x)
    labels, kind = encoded.pool.labels, encoded.kind
    return [Predictions(kind.nearest(far, labels, draw), draw) for draw in encoded.draws]


def distances(x: Array, anchors: Array) -> Array64:
    """Euclidean distances [rows, anchors], by faiss.

    faiss expands the square (|x|^2 - 2 x a + |a|^2) for batches above a threshold, which cancels
    where rows lie close together; the threshold is raised so that it subtracts first. Raises
    NotFinite for NaN, which faiss finds no neighbours of.
    """
    if not (np.isfinite(x).all() and np.isfinite(anchors).all()):
        raise NotFinite("features are NaN or infinite, expected finite ones")
    index = faiss.IndexFlatL2(anchors.shape[1])
    index.add(np.ascontiguousarray(anchors))
    before = faiss.cvar.distance_compute_blas_threshold
    faiss.cvar.distance_compute_blas_threshold = 2**31 - 1
    try:
        squared, order = index.search(np.ascontiguousarray(x), len(anchors))
    finally:
        faiss.cvar.distance_compute_blas_threshold = before
    far = np.empty(squared.shape, dtype=np.float64)
    np.put_along_axis(far, order, np.sqrt(squared.astype(np.float64)), axis=1)
    return far
