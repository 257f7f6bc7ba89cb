"""The global random generators of Python, numpy and torch, for code that draws from them: dropout,
a Trainer, a plug-in."""

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
    """A new lock in a forked process: a thread that was not copied may have held the old one."""
    global _alone
    _alone = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_anew)


@contextmanager
def generators_kept(*devices: torch.device) -> Iterator[None]:
    """A context with the global generators, and those of GPUs among `devices`, to itself; on exit
    their states are restored. One thread at a time is in it: the block must not wait for another
    thread that enters it."""
    gpus = [device for device in devices if device.type == "cuda" and torch.cuda.device_count()]
    with _alone, torch.random.fork_rng(gpus):
        python, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002  (others' draws)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numbers)  # noqa: NPY002  (the same)


@contextmanager
def seeded(seed: int, *devices: torch.device) -> Iterator[None]:
    """`generators_kept`, with these generators seeded."""
    with generators_kept(*devices):
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002  (others' draws)
        # torch.manual_seed seeds every GPU, also those whose states are not restored here
        named = any(device.type != "cpu" for device in devices)
        (torch.manual_seed if named else torch.default_generator.manual_seed)(seed)
        yield
