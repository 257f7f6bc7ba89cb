"""Many mutants, one after another on all cores: what became of each, and a table by kind."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from threading import RLock
from typing import Literal

from tabulate import tabulate

from tests.fuzz import forks
from tests.fuzz.kinds import KINDS, OUT, Command, Mutant, mutant
from tests.fuzz.shelf import stock

Verdict = Literal["refused", "accepted", "failed", "traceback", "hang", "partial", "untidy"]
FAULTS: tuple[Verdict, ...] = ("traceback", "hang", "partial", "untidy")
"""`failed` is none of them: cells that could not be scored, with all others saved and exit 3.
`partial`: something is left by a command that refused, or is missing after one that did not.
`untidy`: a refusal in more or less than one line."""


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant, and what was said of it."""

    mutant: Mutant
    verdict: Verdict
    said: str
    seconds: float


def campaign(shelf: Path, numbers: Sequence[int], *, seed: int, jobs: int,
             only: Sequence[str] = (), keep: Path | None = None) -> Iterator[Outcome]:  # fmt: skip
    """The outcome of every mutant of these numbers; those with a fault stay in `keep`."""
    with tempfile.TemporaryDirectory(dir=shelf.parent) as place:
        root = Path(place)
        mutants = {number: mutant(seed, number, only) for number in numbers}
        works = ((n, *_work(mutants[n], shelf, root / str(n))) for n in numbers)
        for number, ended in forks.each(works, jobs):
            folder = root / str(number)
            outcome = judged(mutants[number], ended, folder, shelf)
            if keep is not None and outcome.verdict in FAULTS:
                shutil.copytree(folder, keep / str(number), symlinks=True, ignore=_odd_files)
            shutil.rmtree(folder)
            yield outcome


MEMORY = Path("/dev/shm")
ROOM = 2**30
"""Bytes that a campaign may take, with four runs at once, and to spare."""


@contextmanager
def prepared() -> Iterator[Path]:
    """A shelf for campaigns, which share it. This process is the one that they fork from.

    It lies in memory where there is room: every mutant and kill is a copy of it, and to link and
    remove its files on a disk takes ten times as long.
    """
    fits = MEMORY.is_dir() and shutil.disk_usage(MEMORY).free > ROOM
    root = MEMORY if fits else None
    with tempfile.TemporaryDirectory(prefix="harness-campaign-", dir=root) as place:
        prepare(Path(place) / "shelf")
        yield Path(place) / "shelf"


def prepare(shelf: Path) -> None:
    """Fill the shelf, and run every command on it once: what that imports, all forks have."""
    import torch
    from tqdm import tqdm

    torch.set_num_threads(1)
    tqdm.monitor_interval = 0  # no thread that watches the bars
    tqdm.set_lock(RLock())  # its own is one for all forks: who is killed with it keeps it for ever
    shelf.mkdir()
    with forks.silent(shelf.with_suffix(".log")):
        stock(shelf)
        commands = {door.command.argv: door.command for k in KINDS.values() for door in k.doors}
        for argv in sorted(commands):
            status = run(commands[argv], shelf, limited=False)
            if status not in commands[argv].done:
                raise RuntimeError(f"{argv} fails on the shelf: see {shelf.with_suffix('.log')}")
            shutil.rmtree(shelf / OUT, ignore_errors=True)
    shutil.rmtree(shelf / "cache", ignore_errors=True)
    gc.collect()
    gc.freeze()


def _work(one: Mutant, shelf: Path, folder: Path) -> tuple[Callable[[], int], Path, float]:
    """The mutant in a folder of its own, and the command on it."""
    shutil.copytree(shelf, folder, copy_function=os.link)
    one.spoil(spoilt(one, folder))
    work = partial(run, one.door.command, folder)
    return work, folder / "stderr.log", forks.LATEST


def run(asked: Command, folder: Path, *, limited: bool = True) -> int:
    """The exit status of a command in a folder."""
    if asked.before is not None:
        asked.before()
    return forks.command(asked.argv, folder, limited=limited)


def spoilt(one: Mutant, folder: Path) -> Path:
    """The file of a mutant; of the records, the first."""
    if one.door.file.endswith("@record"):
        return sorted((folder / "records").rglob("*.json"))[0]
    return folder / one.door.file


def judged(one: Mutant, ended: forks.Ended, folder: Path, shelf: Path) -> Outcome:
    """What became of a mutant, by how its command ended and what it left."""
    verdict, said = _verdict(one, ended, folder, shelf)
    return Outcome(one, verdict, said, ended.seconds)


def _verdict(one: Mutant, ended: forks.Ended, folder: Path, shelf: Path) -> tuple[Verdict, str]:
    lines = ended.stderr.splitlines()
    last = lines[-1] if lines else ""
    if ended.late or ended.status == -signal.SIGXCPU:
        return "hang", ended.stderr
    done = ended.status in one.door.command.done
    if not done and ended.status not in (2, 3):
        return "traceback", ended.stderr
    lines = [line for line in lines if "shared_with_train" not in line]  # said before work, too
    told = [line for line in lines if line.startswith("harness: ") and "warning:" not in line]
    left = _left(folder, shelf)
    if done:
        made = f"{OUT}/made"  # beside it there is nothing: names in files lead nowhere else
        odd = [n for n in left if n != OUT and (not n.startswith(made) or "/." in n)]
        whole = one.door.command.complete(folder / OUT) and not odd
        return ("accepted", last) if whole else ("partial", f"done, but left {left}")
    if len(told) != 1 or len(_unasked(lines)) != 1:
        return "untidy", ended.stderr
    if ended.status == 3 and (not left or one.door.command.complete(folder / OUT)):
        return "failed", told[0]
    return ("partial", f"{told[0]}: left {left}") if left else ("refused", told[0])


def _unasked(lines: Sequence[str]) -> list[str]:
    """The lines that are no warning, no bar of progress and no log of a training."""
    kept = [line for line in lines if "warning:" not in line and not line.startswith("{'")]
    return [line for line in kept if re.search(r"\w", line) and not re.search(r"━|%[|)]", line)]


def _left(folder: Path, shelf: Path) -> list[str]:
    """What stands in a mutant's folder and did not before, but for whole files of the cache."""
    found = []
    for name in sorted(_names(folder) - _shelved(shelf)):
        cached = name.startswith("cache") and not name.rpartition("/")[2].startswith(".")
        if name != "stderr.log" and not cached:
            found.append(name)
    return found


def _names(folder: Path) -> set[str]:
    """Every file and folder below a folder; pathlib takes five times as long to tell them."""
    names = set()
    for place, folders, files in os.walk(folder):
        below = "" if place == str(folder) else f"{place[len(str(folder)) + 1 :]}/"
        names |= {below + name for name in (*folders, *files)}
    return names


@cache
def _shelved(shelf: Path) -> set[str]:
    """What stands on a shelf, which is filled once."""
    return _names(shelf)


def _odd_files(folder: str, names: list[str]) -> set[str]:
    """What cannot be copied: pipes, and what is larger than the disk."""
    places = {name: Path(folder) / name for name in names}
    return {
        name
        for name, path in places.items()
        if not path.is_symlink() and (path.is_fifo() or path.stat().st_size > 2**30)
    }


def cause(outcome: Outcome) -> str:
    """What faults have in common: the innermost place of ours, and what was raised."""
    places = re.findall(r'harness/(\w+(?:/\w+)*\.py)", line (\d+)', outcome.said)
    lines = outcome.said.strip().splitlines() or [""]
    told = re.sub(r"'.*?'|\d+|\[.*\]", "_", lines[-1])[:90]
    place = ":".join(places[-1]) if places else ""
    return f"{outcome.verdict} {place} {told}"


def table(outcomes: Sequence[Outcome]) -> str:
    """Counts of verdicts by kind."""
    counts = Counter((outcome.mutant.kind, outcome.verdict) for outcome in outcomes)
    columns = ("refused", "accepted", "failed", *FAULTS)
    kinds = [kind for kind in KINDS if any(counts[kind, column] for column in columns)]
    rows = [[kind, *(counts[kind, column] for column in columns)] for kind in kinds]
    rows.append(["all", *(sum(row[i] for row in rows) for i in range(1, len(columns) + 1))])
    return tabulate(rows, ["kind", *columns], tablefmt="github")
