"""Semantic similarity: are embeddings of two texts as close as people judge the texts to be?"""

from __future__ import annotations

import numpy as np

from harness import Encoded, Predictions, protocol
from harness.types import FeaturesName

DECIMALS = 6
"""Rounding of float32 features, which differs between batches, changes cosines by less."""


@protocol(
    "cosine",
    paper="arXiv:1908.10084",
    adapts="nothing",
    by_default=False,
    apart=True,
    features=lambda *, features, **_: features,
)
def cosine(encoded: Encoded, *, features: FeaturesName = "last_linear") -> list[Predictions]:
    """The cosine of the features of a row's two texts, each encoded by itself; 0 for zero features.

    For regressions with two texts, such as STS-B: their metrics are correlations, which do not
    depend on the scale of the labels. Nothing is fitted, and no label is read.

    Cosines are rounded to six decimals, or rounding errors would rank equally similar texts.

    `features` are taken as for `knn`; for an embedding model they are its embeddings.
    """
    del features  # it decided what was encoded
    first, second = np.split(encoded.test.x.astype(np.float64), 2, axis=1)
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    cosines = (first * second).sum(axis=1) / np.where(lengths == 0, 1, lengths)
    return [Predictions(np.round(cosines, DECIMALS))]
