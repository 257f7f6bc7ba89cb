"""Tensors of costly stages, or that are read twice: computed once, on disk while a merge lasts."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from threading import Lock
from typing import BinaryIO, TypeAlias

import torch

from harness import weights
from harness.files import as_cannot_write, nameless
from harness.types import StateDict

Slot: TypeAlias = tuple[int, weights.Spec]
"""Where a tensor begins in the file, and its shape and type."""


class Spool(AbstractContextManager["Spool"]):
    """The tensors that some stages of a merge have made, in one file on the disk of its output.

    The file is made with the first tensor, and removed when the block ends, however it ends; from
    then on tensors are computed again.
    """

    def __init__(self, out: Path) -> None:
        self._out = out
        self._open = True
        self._lock = Lock()
        self._file: BinaryIO | None = None
        self._end = 0
        self._workers: list[ThreadPoolExecutor] = []

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the file. Tensors that are read later are computed again."""
        self._open = False
        for worker in self._workers:
            worker.shutdown(cancel_futures=True)
        if self._file is not None:
            self._file.close()

    def states(self, states: Sequence[StateDict]) -> list[StateDict]:
        """The states that a stage made, from disk: the first read of a tensor computes it for all.

        The states share the work that this takes. One tensor is in memory at a time, whatever the
        number of threads that read.
        """
        # its own thread has all cores: readers may be threads with one core each
        worker = ThreadPoolExecutor(
            1, initializer=torch.set_num_threads, initargs=(torch.get_num_threads(),)
        )
        self._workers.append(worker)
        slots: dict[str, Mapping[int, Slot]] = {}

        def put_all(name: str) -> Mapping[int, Slot]:
            if name not in slots:
                places = [place for place, state in enumerate(states) if name in state]
                slots[name] = {place: self._put(states[place][name]) for place in places}
            return slots[name]

        def read(place: int, name: str) -> torch.Tensor:
            if not self._open:
                return states[place][name]
            by_place = slots.get(name) or worker.submit(put_all, name).result()
            return self._get(by_place[place])

        return [weights.stored(state, partial(read, place)) for place, state in enumerate(states)]

    def _put(self, tensor: torch.Tensor) -> Slot:
        content = weights.flat_bytes(tensor)
        with self._lock, as_cannot_write(self._out):
            if self._file is None:
                self._file = nameless(self._out)
            start = self._end
            self._file.seek(start)
            self._file.write(content)
            self._file.flush()
            # a memory map has to begin at a multiple of this
            self._end += -(-len(content) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
        return start, weights.Spec(tuple(tensor.shape), tensor.dtype)

    def _get(self, slot: Slot) -> torch.Tensor:
        """The tensor, memory-mapped: copied when it is written to."""
        start, spec = slot
        if not spec.bytes or self._file is None:
            return torch.empty(spec.shape, dtype=spec.dtype)
        number, copied = self._file.fileno(), mmap.ACCESS_COPY
        content = mmap.mmap(number, spec.bytes, access=copied, offset=start)
        return torch.frombuffer(content, dtype=spec.dtype).view(spec.shape)
