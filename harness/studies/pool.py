"""Shell: runs a plan on this machine, in this process or in several workers at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.files import as_cannot_write
from harness.studies.outcomes import Outcome, outcome_of, outcomes_of
from harness.studies.plan import Plan, seconds_of
from harness.studies.work import Say, work
from harness.types import Progress

LOGS = "logs"
POLL = 0.05
"""Seconds between two checks of the workers."""
ENDING = [one for one in signal.Signals if one.name in ("SIGTERM", "SIGHUP")]
"""Signals that a supervisor sends, and a terminal that is closed (ignored under `nohup`)."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
GPUS = "CUDA_VISIBLE_DEVICES"

Environment = Mapping[str, str]
"""The environment variables of a worker."""


def run_plan(
    plan: Plan,
    path: Path,
    folder: Path,
    *,
    jobs: int = 1,
    where: Mapping[str, Any],
    progress: Progress | None = None,
    say: Say,
) -> dict[str, Outcome]:
    """Do all missing steps of a plan, which is in the file `path`; returns all outcomes.

    With several `jobs` each chunk has a process of its own, `jobs` of them at a time, which share
    the cores and take GPUs in turn; what they print is in `folder`/logs. `say` is called with a
    line for each step.
    """
    known = outcomes_of(plan, folder)
    waiting, settled = unfinished_chunks(plan, known), settled_of(plan, known)
    steps = {
        number: [plan.steps[name] for name in plan.chunks[number].steps if name not in settled]
        for number in waiting
    }
    cost = {number: max(round(sum(map(seconds_of, todo))), 1) for number, todo in steps.items()}

    def tell(number: int) -> None:
        if progress:
            progress(f"seconds of {plan.study}", cost[number], sum(cost.values()))

    # later levels first: merges are scored, and may be removed, before more are made
    waiting.sort(key=lambda number: -plan.chunks[number].level)
    if jobs == 1:
        while waiting:
            number = next(n for n in waiting if _ready(plan, n, settled))
            waiting.remove(number)
            work(plan, number, folder, where=where, say=say)
            settled.update(plan.chunks[number].steps)
            tell(number)
        return outcomes_of(plan, folder)
    command, free = worker_command(path, where), _environments(jobs, where)
    logs = folder / LOGS
    with as_cannot_write(logs):
        logs.mkdir(exist_ok=True)
    with _asked_to_end() as signals, _workers() as working:
        while (waiting or working) and not signals:
            for number in [n for n in waiting if _ready(plan, n, settled)][: len(free)]:
                waiting.remove(number)
                environment = free.pop()
                file = logs / f"{path.stem}-{number}.log"
                with as_cannot_write(file), file.open("ab") as log:
                    process = subprocess.Popen(
                        [*command, "--chunk", str(number)], stdout=log, stderr=log, env=environment
                    )
                working[process] = number, environment
            time.sleep(POLL)
            for process in [one for one in working if one.poll() is not None]:
                number, environment = working.pop(process)
                free.append(environment)
                settled.update(plan.chunks[number].steps)
                for step in steps[number]:
                    say(outcome_of(step, folder).as_line(step.name))
                tell(number)
    return outcomes_of(plan, folder)


def unfinished_chunks(plan: Plan, outcomes: Mapping[str, Outcome]) -> list[int]:
    """The numbers of the chunks with steps that are not settled, by level."""
    settled = settled_of(plan, outcomes)
    return [n for n, chunk in enumerate(plan.chunks) if not settled.issuperset(chunk.steps)]


def settled_of(plan: Plan, outcomes: Mapping[str, Outcome]) -> set[str]:
    """The steps that are done, or failed, or need one that failed."""
    states = {name: outcome.state for name, outcome in outcomes.items()}
    lost = plan.with_dependents(name for name, state in states.items() if state == "failed")
    return lost | {name for name, state in states.items() if state == "done"}


def _ready(plan: Plan, number: int, settled: set[str]) -> bool:
    """Whether all steps that those of a chunk wait for are settled."""
    steps = [plan.steps[name] for name in plan.chunks[number].steps]
    return all(name in settled for step in steps for name in (*step.needs, *step.after))


def _environments(jobs: int, where: Mapping[str, Any]) -> list[Environment]:
    """The environments of workers: each has its share of the cores and, unless `where` names a GPU,
    one of the GPUs in turn."""
    threads = dict.fromkeys(THREADS, str(max(cores() // jobs, 1)))
    named = any(":" in str(where.get(key)) for key in ("device", "merge_device"))
    gpus = [] if named else _gpus()
    own = [{GPUS: gpus[place % len(gpus)]} if gpus else {} for place in range(jobs)]
    return [{**threads, **os.environ, **gpu} for gpu in own]


def worker_command(path: Path, where: Mapping[str, Any]) -> list[str]:
    """The command line of a worker on the plan in a file, without its chunk."""
    places = ("data_dir", "device", "merge_device")
    flags = [(f"--{name.replace('_', '-')}", where.get(name)) for name in places]
    flags += [("--plugins", plugin) for plugin in where.get("plugins", ())]
    words = [word for flag, value in flags if value is not None for word in (flag, value)]
    return [sys.executable, "-m", "harness", "work", str(path.resolve()), *words]


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    if GPUS in os.environ:
        return [gpu for gpu in os.environ[GPUS].split(",") if gpu]
    folder = Path("/proc/driver/nvidia/gpus")
    return [str(number) for number, _ in enumerate(folder.iterdir())] if folder.is_dir() else []


@contextmanager
def _asked_to_end() -> Iterator[list[int]]:
    """The signals that asked this process to end during the block; it exits after the block.

    They would leave workers behind if they ended it at once. They raise nothing in the block: an
    error while a worker starts would leave a worker that nobody ends.
    """
    seen: list[int] = []
    mine = threading.current_thread() is threading.main_thread()
    handled = [ending for ending in ENDING if mine and signal.getsignal(ending) is signal.SIG_DFL]
    for ending in handled:
        signal.signal(ending, lambda number, _: seen.append(number))
    try:
        yield seen
    finally:
        for ending in handled:
            signal.signal(ending, signal.SIG_DFL)
    if seen:
        sys.exit(128 + seen[0])  # the exit status of a shell for a process that a signal ended


@contextmanager
def _workers() -> Iterator[dict[subprocess.Popen[bytes], tuple[int, Environment]]]:
    """The running workers, with chunk and environment. They are ended when the block ends."""
    working: dict[subprocess.Popen[bytes], tuple[int, Environment]] = {}
    try:
        yield working
    finally:
        for process in working:
            process.terminate()
        for process in working:
            process.wait()
