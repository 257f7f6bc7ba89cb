"""Commands in processes of their own: forked from one that is warm, limited, and killed in time.

An import of torch costs a hundred times what a merge of miniatures does. A fork has only the thread
that forked, and would wait for ever for those of a pool: `ONE_THREAD` keeps the libraries from
starting any while the parent warms up.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import select
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}
"""What must stand in the environment before torch is imported."""
MEMORY = 3 * 2**30
"""Bytes of address space that a command may take beside what is loaded already."""
PROCESSOR = 10
"""Seconds of processor time that a command may take; a busy machine changes nothing in them."""
LATEST = 600.0
"""Seconds after which a command is taken to wait for ever, however busy the machine."""
CRASHED = 70
"""The exit status of a command that ended with a traceback."""


@dataclass(frozen=True)
class Ended:
    """How a process ended: its exit status, or minus the signal; and what it wrote to stderr."""

    status: int
    late: bool
    stderr: str
    seconds: float


@dataclass(frozen=True)
class Child:
    """A process that is running."""

    pid: int
    fd: int
    started: float
    deadline: float
    log: Path

    def kill(self) -> None:
        """Kill it and all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)


@dataclass
class Crew:
    """Up to `size` processes at a time, and the work of each by its number."""

    size: int
    children: dict[int, Child] = field(default_factory=dict)

    def start(self, number: int, work: Callable[[], int], log: Path, seconds: float) -> None:
        """Fork, and do the work there; its result is the exit status."""
        log.touch()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads that only wait
            pid = os.fork()
        if not pid:
            _serve(work, log, seconds)
        now = time.monotonic()
        self.children[number] = Child(pid, os.pidfd_open(pid), now, now + seconds, log)

    def ended(self) -> Iterator[tuple[int, Ended]]:
        """Those that have ended by now, after waiting for one; the late ones are killed."""
        fds = {child.fd: number for number, child in self.children.items()}
        wait = min((c.deadline for c in self.children.values()), default=0) - time.monotonic()
        ready, _, _ = select.select(list(fds), [], [], max(0.0, wait))
        for number, child in list(self.children.items()):
            late = time.monotonic() > child.deadline and child.fd not in ready
            if late:
                child.kill()
            if late or child.fd in ready:
                yield number, self._reaped(number, late)

    def _reaped(self, number: int, late: bool) -> Ended:
        child = self.children.pop(number)
        _, code = os.waitpid(child.pid, 0)
        os.close(child.fd)
        said = child.log.read_text(encoding="utf-8", errors="replace")
        seconds = time.monotonic() - child.started
        return Ended(os.waitstatus_to_exitcode(code), late, said, seconds)


def each(
    works: Iterable[tuple[int, Callable[[], int], Path, float]], size: int
) -> Iterator[tuple[int, Ended]]:
    """Do the works, `size` at a time, and tell how each ended."""
    crew = Crew(size)
    for number, work, log, seconds in works:
        while len(crew.children) >= crew.size:
            yield from crew.ended()
        crew.start(number, work, log, seconds)
    while crew.children:
        yield from crew.ended()


def once(work: Callable[[], int], log: Path, seconds: float = LATEST) -> Ended:
    """Do one work in a fork and wait for it."""
    return next(each([(0, work, log, seconds)], 1))[1]


def _serve(work: Callable[[], int], log: Path, seconds: float) -> None:
    """Do the work of a fork, and never come back."""
    status = CRASHED
    try:
        os.setpgid(0, 0)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.dup2(file, 2)
        if seconds > 1:
            faulthandler.dump_traceback_later(seconds - 0.5)  # says where a run hangs
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        status = work()
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(Exception):
            sys.stderr.flush()
        os._exit(status)


def command(argv: Sequence[str], folder: Path, *, limited: bool = True) -> int:
    """Run the command line in a folder, with a cache there; for use in a fork."""
    from harness.cli import main

    os.chdir(folder)
    os.environ["HARNESS_CACHE_DIR"] = str(folder / "cache")
    if limited:
        limit()
    return main(list(argv))


def limit() -> None:
    """Limit this process; one that takes too long says where, and dies of SIGXCPU."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))
    faulthandler.register(signal.SIGXCPU, chain=True)
    resource.setrlimit(resource.RLIMIT_CPU, (PROCESSOR, PROCESSOR + 1))


@contextmanager
def silent(log: Path) -> Iterator[None]:
    """With all that this process and its libraries say written to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = os.dup(1), os.dup(2)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    os.dup2(file, 1)
    os.dup2(file, 2)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, one in enumerate(kept, start=1):
            os.dup2(one, number)
            os.close(one)
        os.close(file)
