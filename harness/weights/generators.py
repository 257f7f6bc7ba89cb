"""The generators that Python, numpy and torch share, for what draws from nothing else: a model that
drops units, a Trainer, somebody's method."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_alone = threading.RLock()


def _anew() -> None:
    """In a process that was forked while a thread, which is not in it, had them."""
    global _alone
    _alone = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_anew)


@contextmanager
def generators_kept(*devices: torch.device) -> Iterator[None]:
    """With the generators of this process, and of GPUs among `devices`, to itself: threads wait for
    one another, so that the block must wait for none that draws too. Afterwards they are as they
    were."""
    gpus = [one for one in devices if one.type == "cuda" and torch.cuda.device_count()]
    with _alone, torch.random.fork_rng(gpus):
        python, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002  (others' draws)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)  # noqa: NPY002  (the same)


@contextmanager
def seeded(seed: int, *devices: torch.device) -> Iterator[None]:
    """As `generators_kept`, with all of them at a seed."""
    with generators_kept(*devices):
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002  (others' draws)
        torch.manual_seed(seed)
        yield
