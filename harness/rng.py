"""Random numbers: a generator named by a seed and labels (docs/methods.md#random-numbers)."""

from __future__ import annotations

import hashlib

import numpy as np


def rng(seed: int, *labels: object) -> np.random.Generator:
    """A PCG64 generator that depends on the seed and the labels alone.

    Draws never depend on the device, the number of threads or the order of visits.
    """
    text = "|".join(map(str, (seed, *labels)))
    word = hashlib.sha256(text.encode()).digest()[:8]
    return np.random.Generator(np.random.PCG64(int.from_bytes(word, "little")))
