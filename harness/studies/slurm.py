"""Shell: a plan as job arrays of Slurm, and the states of their tasks.

Slurm starts `harness work` for each chunk and orders the levels. Outcomes say what is done.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

from harness.errors import BadRecipe
from harness.files import as_cannot_write, read_json, read_text, write_json
from harness.studies.plan import Plan
from harness.studies.pool import LOGS, THREADS, worker_command

JOBS = "slurm.json"
"""The file in a study's folder that lists the arrays submitted last."""
PATIENCE = 60.0
"""Seconds that a command of Slurm may take to answer."""
LARGEST = 1001
"""How many indices an array may have if Slurm does not say: Slurm's default."""
EXPECTED = "COMPLETED", "COMPLETING", "CONFIGURING", "PENDING", "RUNNING"
"""States of a task that need no attention."""
WORKING = "CONFIGURING", "PENDING", "REQUEUED", "RUNNING", "SUSPENDED"
"""States of a task that waits or runs."""
SHOWN = 5
"""How many of the tasks of a state that needs attention are named."""


def read_header(path: Path) -> str:
    """The text that jobs begin with. Raises BadRecipe unless it starts with `#!`."""
    text = read_text(path, "the beginning of a job script", error=BadRecipe)
    if not text.startswith("#!"):
        begins = text.partition("\n")[0][:40]
        raise BadRecipe(f"{path} begins with {begins!r}, expected a line like #!/bin/bash")
    return text.rstrip("\n") + "\n"


def submitted(
    plan: Plan,
    path: Path,
    chunks: Sequence[int],
    *,
    header: str,
    parallel: int,
    where: Mapping[str, Any],
) -> Iterator[str]:
    """Submit chunks of the plan in the file `path`; yields the id of each array once Slurm has it.

    An array has chunks of one level, runs `parallel` at a time, and starts when the array before it
    has ended, successfully or not. Raises BadRecipe if sbatch refuses an array; those before it
    stay submitted.
    """
    folder = path.resolve().parent.parent
    with as_cannot_write(folder / LOGS):
        (folder / LOGS).mkdir(exist_ok=True)
    largest, jobs = _largest(), list[str]()
    # indices must stay below the largest: each is a chunk's number minus `first`
    for (_, first), numbers in groupby(
        chunks, key=lambda number: (plan.chunks[number].level, number // largest * largest)
    ):
        words = ["sbatch", "--parsable", "--requeue", "--open-mode=append"]
        words += [f"--job-name={plan.study}", f"--output={folder / LOGS}/%A_%a.log"]
        words += [f"--array={','.join(str(number - first) for number in numbers)}%{parallel}"]
        words += [f"--dependency=afterany:{jobs[-1]}"] if jobs else []
        answer = _slurm_output(words, header + _work(path, first, where))
        jobs.append(answer.partition(";")[0].strip())  # what follows is the name of the cluster
        write_json(folder / JOBS, {"jobs": jobs})
        yield jobs[-1]


def _work(path: Path, first: int, where: Mapping[str, Any]) -> str:
    """The commands of a job: the worker of its chunk, with as many threads as it has cores.

    Without `exec`: Slurm reports a batch shell that is killed as never begun.
    """
    threads = "\n".join(f'export {name}="${{{name}:-$SLURM_CPUS_ON_NODE}}"' for name in THREADS)
    words = shlex.join(worker_command(path, where))
    return f'{threads}\n{words} --chunk "$((SLURM_ARRAY_TASK_ID + {first}))"\n'


def _largest() -> int:
    """How many indices an array may have (MaxArraySize)."""
    found = None
    with suppress(BadRecipe):
        settings = _slurm_output(["scontrol", "show", "config"])
        found = re.search(r"^MaxArraySize\s*=\s*(\d+)", settings, re.M)
    return (found and int(found[1])) or LARGEST


def tasks_of(folder: Path) -> dict[tuple[str, str], list[str]]:
    """Tasks of the arrays that were submitted last, by (state, reason), as Slurm reports them.

    Slurm forgets tasks minutes after their end. Empty if Slurm does not answer.
    """
    found = defaultdict[tuple[str, str], list[str]](list)
    if not (folder / JOBS).is_file():
        return found
    jobs = read_json(folder / JOBS, "the arrays of a study", error=BadRecipe).get("jobs")
    if not isinstance(jobs, list):
        return found
    try:
        answer = _slurm_output(["squeue", "-h", "-r", "--states=all", "-o", "%i|%T|%r"])
    except BadRecipe:
        return found
    for line in answer.splitlines():
        task, state, reason = [*line.strip().split("|", 2), "", ""][:3]
        if task.partition("_")[0] in map(str, jobs):
            found[state, "" if reason == "None" else reason].append(task)
    return found


def queue_table(tasks: Mapping[tuple[str, str], Sequence[str]]) -> list[list[str | int]]:
    """A line for each state and reason: how many tasks, and some of their names if they need
    attention."""
    lines: list[list[str | int]] = []
    for (state, reason), names in sorted(tasks.items()):
        shown = [] if state in EXPECTED else [*names[:SHOWN], *["..."][: len(names) - SHOWN]]
        lines.append([state.lower(), len(names), reason, " ".join(shown)])
    return lines


def check_slurm(folder: Path) -> None:
    """Raise BadRecipe where there is no Slurm, or arrays of the study still wait or run."""
    if shutil.which("sbatch") is None:
        raise BadRecipe(
            "there is no sbatch on the PATH; expected a machine with Slurm, or use `harness work`"
        )
    tasks = [task for key, names in tasks_of(folder).items() if key[0] in WORKING for task in names]
    if tasks:
        arrays = " ".join(dict.fromkeys(task.partition("_")[0] for task in tasks))
        raise BadRecipe(
            f"{len(tasks)} tasks of {folder} still wait or run; expected none: end them with "
            f"scancel {arrays}"
        )


def _slurm_output(words: Sequence[str], script: str = "") -> str:
    """The output of a Slurm command. Raises BadRecipe if it is missing, hangs, or fails."""
    try:
        done = subprocess.run(
            words, input=script, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadRecipe(f"{words[0]} does not answer: {error}; expected a working Slurm") from error
    if done.returncode:
        reason = done.stderr.strip() or f"exit status {done.returncode}"
        raise BadRecipe(f"{words[0]} refused: {reason}")
    return done.stdout
