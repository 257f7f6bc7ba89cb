"""Commands that are killed and run again, or run four at a time: what they leave behind.

A kill comes after some time, as from a scheduler, or at a change of the file system, where a run
is most easily caught between two states.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import psutil

from tests.fuzz import forks, kinds
from tests.fuzz.kinds import OUT, Command

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "ctypes.call_function")
"""Events of Python that change a folder; what swaps two of them is called by ctypes. The opening of
a file that is to be written is counted as well."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT

TOOK = re.compile(rb'"seconds": [\d.]+')
DIGEST = re.compile(r"-[0-9a-f]{12}\.json$")
"""In the name of a plan."""
Tree = Mapping[str, bytes]


@dataclass(frozen=True)
class Case:
    """A command, and the one that made what it replaces, if it does."""

    command: Command
    replaces: Command | None = None


FORCED = ("--force",)
CASES: Mapping[str, Case] = {
    "merge": Case(kinds.TIES),
    "merge --force": Case(
        kinds.merge("a", "b", "--base", "base", "--merger", "ties", *FORCED), kinds.AVERAGE
    ),
    "merge, heads kept": Case(kinds.merge("a", "c", "--heads", "keep", *FORCED), kinds.AVERAGE),
    "merge, statistics": Case(
        kinds.merge("a", "b", "--merger", "regmean:examples=8", *kinds.DATA, *FORCED),
        kinds.AVERAGE,
    ),
    "evaluate": Case(kinds.MERGE),
    "statistics": Case(kinds.STATISTICS),
    "leaderboard": Case(kinds.BOARD),
    "finetune": Case(kinds.TUNED),
    "study run": Case(kinds.STUDY),
    "study run --jobs 2": Case(replace(kinds.STUDY, argv=(*kinds.STUDY.argv, "--jobs", "2"))),
}
SLOW = ("study run --jobs 2",)
"""Cases whose workers each import torch: only when they are asked for."""


@dataclass(frozen=True)
class Reference:
    """What lies there before a case, and what its command makes when nobody disturbs it.

    `changes` is how often that changes the file system.
    """

    before: Tree
    after: Tree
    seconds: float
    changes: int


@dataclass(frozen=True)
class Finding:
    """A run that was disturbed: how, and what is wrong with what it left, if anything is."""

    case: str
    how: str
    faults: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.case}, {self.how}: {'; '.join(self.faults) or 'as if nothing had been'}"


def campaign(
    shelf: Path, kills: int, *, seed: int, only: Sequence[str] = (), rounds: int = 1,
    known: dict[str, Reference] | None = None,
) -> Iterator[Finding]:  # fmt: skip
    """Findings of so many kills, over all cases in turn, and of so many rounds of runs at once.

    References are taken from `known`, and added to it where they are missing.
    """
    known = {} if known is None else known
    names = only or [name for name in CASES if name not in SLOW]
    with tempfile.TemporaryDirectory(dir=shelf.parent) as place:
        root = Path(place)
        for name in names:
            if name not in known:
                known[name] = reference(CASES[name], shelf, root)
        for number in range(kills):
            name, folder = names[number % len(names)], root / str(number)
            random = Random(f"{seed}/{name}/{number}")
            yield killed(name, known[name], shelf, folder, random)
            shutil.rmtree(folder)
        for number in range(rounds * len(names)):
            name, folder = names[number % len(names)], root / f"at once {number}"
            yield together(name, known[name], shelf, folder)
            shutil.rmtree(folder)


# Folders -----------------------------------------------------------------------------------


def tree(folder: Path) -> Tree:
    """Every file below a folder with its bytes, the hidden ones too, but for what hangs on times.

    That is what a step took, into which chunks a plan packs its steps, by what like ones took, and
    what the workers of chunks print.
    """
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}
    plans = {
        DIGEST.sub(".json", name): content.partition(b'"chunks"')[0]
        for name, content in found.items()
        if "/plans/" in name
    }
    rest = {
        name: TOOK.sub(b"", content) if "/outcomes/" in name else content
        for name, content in found.items()
        if "/plans/" not in name and "/logs/" not in name
    }
    return plans | rest


def unlike(found: Tree, expected: Tree) -> str:
    """In what two trees differ, in a few words; nothing if they do not."""
    names = [n for n in sorted({*found, *expected}) if found.get(n) != expected.get(n)]
    return f"{len(names)} files differ: {', '.join(names[:4])}" if names else ""


def left_over(folder: Path) -> list[str]:
    """What only a run that still goes on may have: files and folders that are not whole."""
    odd = (".partial", ".old", ".tmp", ".unfinished")
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*")]
    return [name for name in names if Path(name).name.startswith(".") or name.endswith(odd)]


def fresh(case: Case, shelf: Path, folder: Path, before: Tree | None = None) -> Path:
    """A copy of the shelf, with what lies there before the case."""
    shutil.copytree(shelf, folder, copy_function=os.link)
    for name, content in (before or {}).items():
        path = folder / OUT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


# Runs --------------------------------------------------------------------------------------


def run(argv: Sequence[str], folder: Path) -> int:
    """The command, for use in a fork. What it takes is not in question here, and not limited."""
    return forks.command(argv, folder, limited=False)


def run_until(argv: Sequence[str], folder: Path, change: int, seconds: float) -> int:
    """The command, killed just before a change of the file system, by its number, or soon after."""

    def tell(number: int) -> None:
        if number == change and seconds > 0:
            signal.setitimer(signal.ITIMER_REAL, seconds)  # its signal ends a process at once
        elif number == change:
            os.kill(os.getpid(), signal.SIGKILL)

    watch(tell)
    return run(argv, folder)


def run_counted(argv: Sequence[str], folder: Path) -> int:
    """The command; the number of its changes of the file system is written beside its folder."""
    numbers = [0]
    watch(numbers.append)
    status = run(argv, folder)
    folder.with_suffix(".changes").write_text(str(numbers[-1]))
    return status


def watch(tell: Callable[[int], None]) -> None:
    """Call `tell` with 1, 2, ... before every change that this process makes."""
    numbers = iter(range(1, 2**31))

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if event in CHANGES or (event == "open" and given[2] and given[2] & WRITING):
            tell(next(numbers))

    sys.addaudithook(hook)


def reference(case: Case, shelf: Path, root: Path) -> Reference:
    """The case with nobody in its way."""
    folder = fresh(case, shelf, root / "undisturbed")
    if case.replaces is not None:
        _finish(partial(run, case.replaces.argv, folder), root)
    before = tree(folder / OUT)
    _finish(partial(run, case.command.argv, fresh(case, shelf, root / "again", before)), root)
    ended = _finish(partial(run_counted, case.command.argv, folder), root)
    changes = int(folder.with_suffix(".changes").read_text())
    after = tree(folder / OUT)
    if said := unlike(tree(root / "again" / OUT), after):
        raise RuntimeError(f"{case.command.argv} does not make the same twice: {said}")
    shutil.rmtree(folder)
    shutil.rmtree(root / "again")
    return Reference(before, after, ended.seconds, changes)


def _finish(work: Callable[[], int], root: Path) -> forks.Ended:
    ended = forks.once(work, root / "reference.log", forks.LATEST)
    if ended.status:
        raise RuntimeError(f"a command fails on the shelf: {ended.stderr}")
    return ended


def killed(name: str, known: Reference, shelf: Path, folder: Path, random: Random) -> Finding:
    """A run that is killed at some moment, and the same command again."""
    case = CASES[name]
    fresh(case, shelf, folder, known.before)
    argv = case.command.argv
    if random.random() < 0.7:
        change, soon = random.randint(1, known.changes), random.choice((0, random.uniform(0, 2e-3)))
        how = f"killed {soon:.6f} s after change {change} of {known.changes}"
        forks.once(partial(run_until, argv, folder, change, soon), folder / "1.log", forks.LATEST)
    else:
        moment = random.uniform(0, known.seconds)
        how = f"killed after {moment:.3f} s of {known.seconds:.3f}"
        forks.once(partial(run, argv, folder), folder / "1.log", moment)
    faults = list(_between(case, known, folder))
    done = not unlike(tree(folder / OUT), known.after)
    again = forks.once(partial(run, argv, folder), folder / "2.log", forks.LATEST)
    told = again.stderr.strip().splitlines() or [""]
    _await_workers(folder)
    # a run that was killed after its last change has left its work, which the second one finds
    if again.status not in ((0, 2) if done else (0,)):
        faults.append(f"the second run ends with {again.status}: {told[-1]}")
    return Finding(name, how, (*faults, *_after(known, folder)))


def _await_workers(folder: Path) -> None:
    """Workers of a run that was killed alone end their chunks."""
    place = str(folder.resolve())
    while any(
        place in word
        for one in psutil.process_iter(["cmdline"])
        for word in one.info["cmdline"] or ()
    ):
        time.sleep(0.05)


def _between(case: Case, known: Reference, folder: Path) -> Iterator[str]:
    """What is wrong right after a kill: what is replaced must be the old one or the new one."""
    if case.replaces is not None:
        now = {name: b for name, b in tree(folder / OUT).items() if name.startswith("made/")}
        if unlike(now, known.before) and unlike(now, known.after):
            yield f"neither the old nor the new one: {unlike(now, known.before)} from the old"


def _after(known: Reference, folder: Path) -> Iterator[str]:
    """What is wrong when all is done."""
    if said := unlike(tree(folder / OUT), known.after):
        yield said
    if names := left_over(folder):
        yield f"left over: {', '.join(names[:4])}"


def together(name: str, known: Reference, shelf: Path, folder: Path, count: int = 4) -> Finding:
    """Several runs of one command at once, on one output and one cache."""
    argv = CASES[name].command.argv
    fresh(CASES[name], shelf, folder, known.before)
    logs = [folder.with_name(f"{folder.name}.{i}.log") for i in range(count)]
    works = ((i, partial(run, argv, folder), logs[i], forks.LATEST) for i in range(count))
    faults, statuses = [], []
    for _, ended in forks.each(works, count):
        told = [line for line in ended.stderr.splitlines() if line.startswith("harness: ")]
        statuses.append(ended.status)
        if ended.status != 0 and not (ended.status == 2 and len(told) == 1):
            faults.append(f"one ends with {ended.status}: {ended.stderr.strip()[-300:]}")
    if 0 not in statuses:
        faults.append(f"none succeeds: {statuses}")
    return Finding(name, f"{count} at once", (*faults, *_after(known, folder)))
