"""Random numbers: a generator for each seed and labels (docs/methods.md#random-numbers)."""

from __future__ import annotations

import hashlib

import numpy as np


def rng(seed: int, *labels: object) -> np.random.Generator:
    """A PCG64 generator that depends on the seed and the labels alone, not on the device, the
    number of threads or the order of calls."""
    text = "|".join(map(str, (seed, *labels)))
    word = hashlib.sha256(text.encode()).digest()[:8]
    return np.random.Generator(np.random.PCG64(int.from_bytes(word, "little")))
