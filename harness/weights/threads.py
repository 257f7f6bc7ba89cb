"""Work on pieces of tensors on all cores, with few temporaries in memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock, Semaphore, local
from typing import TypeVar

import torch

S = TypeVar("S")
T = TypeVar("T")
K = TypeVar("K", bound=Hashable)
PROCESSOR = torch.device("cpu")
_piece = 1 << 17
LARGER = 1 << 7
"""How many times larger a piece is on another device, where it need not fit into a cache."""


class _Here(local):
    """Of each thread: its cores while torch is limited to one, and the spare ones to borrow."""

    cores: int | None = None
    spare: Semaphore | None = None


_this_thread = _Here()


def here(device: torch.device) -> bool:
    """Whether a device is the processor."""
    return device.type == PROCESSOR.type


def piece_size() -> int:
    """How many entries a formula works on at a time: its temporaries stay in cache.

    A function, so that no method holds a copy: tests try other sizes.
    """
    return _piece


@contextmanager
def pieces_of(size: int) -> Iterator[None]:
    """A context with pieces of another size, in all threads."""
    global _piece
    before, _piece = _piece, size
    try:
        yield
    finally:
        _piece = before


def flat_pieces(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The entries of a tensor in order, piece by piece; views of them where that is possible."""
    return torch.split(tensor.reshape(-1), _size_on(tensor.device))


def _size_on(device: torch.device) -> int:
    return piece_size() if here(device) else piece_size() * LARGER


def by_piece(fn: Callable[[slice], T], size: int, device: torch.device = PROCESSOR) -> list[T]:
    """`fn` of the slice of every piece of a flat tensor of this size, in order, on all cores."""
    step = _size_on(device)
    return spread(fn, [slice(start, start + step) for start in range(0, size, step)])


def spread(fn: Callable[[S], T], parts: Sequence[S]) -> list[T]:
    """`fn` of every part, in the order of the parts, on all cores.

    The cores share the parts, with one thread of torch on each. Torch's own threads wait for one
    another after every operation, which takes several times as long when another process holds a
    core. A thread that uses torch for the first time meanwhile keeps to one core as well.

    If `fn` itself spreads parts, cores that have run out of outer parts help with the inner ones.
    """
    threads, own = torch.get_num_threads(), cores()
    workers = min(own, len(parts))
    while (
        _this_thread.spare and workers < len(parts) and _this_thread.spare.acquire(blocking=False)
    ):
        workers += 1
    if workers < 2:
        return [fn(part) for part in parts]
    spare = _this_thread.spare or Semaphore(own - workers)
    values: dict[int, T] = {}
    waiting, countdown = iter(enumerate(parts)), iter(range(workers - 1, -1, -1))

    def work() -> None:
        torch.set_num_threads(1)
        _this_thread.spare = spare
        try:
            for place, part in waiting:
                values[place] = fn(part)
        except BaseException:
            for _ in waiting:  # emptied, so that the other threads stop
                pass
            raise
        finally:
            if next(countdown):  # the last one has the core of the caller, who waits
                spare.release()

    try:
        with ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(work) for _ in range(workers)]:
                done.result()
    finally:
        torch.set_num_threads(threads)
    return [values[place] for place in range(len(parts))]


def cores() -> int:
    """How many cores `spread` shares parts among, in this thread."""
    return _this_thread.cores or torch.get_num_threads()


@contextmanager
def one_thread() -> Iterator[None]:
    """A context with one thread of torch for each operation, and all cores for `spread`.

    The number of threads that share an operation affects the last bits of sums and decompositions.
    This way they are the same on any number of cores.
    """
    threads, before = torch.get_num_threads(), _this_thread.cores
    _this_thread.cores = cores()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        _this_thread.cores = before


def once(fn: Callable[[], T]) -> Callable[[], T]:
    """The function, which is run once and its result kept, even if two threads call at a time."""
    cached = latest(lambda _: fn())
    return lambda: cached(None)


def latest(fn: Callable[[K], T]) -> Callable[[K], T]:
    """The function, which keeps its last result: threads that ask for the same key share it."""
    lock, results = Lock(), dict[K, T]()

    def value(key: K) -> T:
        with lock:
            if key not in results:
                results.clear()
                results[key] = fn(key)
            return results[key]

    return value
