"""Semantic similarity: do embeddings of two texts lie as near as people call the texts alike?"""

from __future__ import annotations

import numpy as np

from harness import Encoded, Predictions, protocol
from harness.types import FeaturesName

DECIMALS = 6
"""Features in float32 differ by less from batch to batch."""


@protocol(
    "cosine",
    paper="arXiv:1908.10084",
    adapts="nothing",
    by_default=False,
    apart=True,
    features=lambda *, features, **_: features,
)
def cosine(encoded: Encoded, *, features: FeaturesName = "last_linear") -> list[Predictions]:
    """The cosine of the features of both texts of a row, each read by itself; of zeros, 0.

    For regressions of two texts, as STS-B is one: its metrics are correlations, which do not depend
    on the scale of the labels. Nothing is fitted, and no label is read.

    Cosines have six decimals, as texts that are alike would be in an order that rounding makes.

    `features` are taken where those of `knn` are; of an embedding model they are its embeddings.
    """
    del features  # what is encoded
    first, second = np.split(encoded.test.x.astype(np.float64), 2, axis=1)
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = (first * second).sum(axis=1) / np.where(lengths == 0, 1, lengths)
    return [Predictions(np.round(cosines, DECIMALS))]
