"""Shell: a worker, which does the steps of one chunk; each step is one verb of the harness."""

from __future__ import annotations

import gc
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import plugins
from harness.errors import CannotWrite, CellsFailed, HarnessError, OutputExists
from harness.evaluation.evaluate import evaluate
from harness.evaluation.records import Record, written_path
from harness.evaluation.run import Run
from harness.files import CACHE_DIR
from harness.merging.merge import merge
from harness.merging.mergekit import methods as mergekit
from harness.merging.recipes import Recipe
from harness.passes.statistics import statistic
from harness.studies.inputs import changed
from harness.studies.outcomes import (
    Outcome,
    has_folder,
    is_done,
    outcome_of,
    remove_scored_merges,
    write_outcome,
)
from harness.studies.plan import Plan, record_time
from harness.studies.step import Step
from harness.training.finetune import finetune
from harness.unfinished import folder_lock, is_written

PLACES = (CACHE_DIR, mergekit.VARIABLE, plugins.FOLDERS)
"""Variables of the environment that name files or folders."""
PATIENCE = 1.0
"""Seconds between two checks of a folder that another run is writing."""
Say = Callable[[str], None]


def work(plan: Plan, chunk: int, folder: Path, *, where: Mapping[str, Any], say: Say) -> bool:
    """Do the steps of a chunk, in the study's folder; returns whether all are done.

    `where` has the data folder and the devices, which are no part of a plan. Steps that are done,
    that failed, or that need a step that is not done, are left out. Everything is written
    atomically: a worker that is killed loses only its current step.
    """
    arguments = {name: where[name] for name in ("data_dir", "device", "merge_device")}
    with _within(folder):  # paths of a plan are relative to it
        done = [_do_unless_done(plan, name, arguments, say) for name in plan.chunks[chunk].steps]
    return all(done)


@contextmanager
def _within(folder: Path) -> Iterator[None]:
    """Make a folder the working directory during the block. What the environment names stays."""
    before = Path.cwd()
    for name in filter(os.environ.get, PLACES):
        paths = filter(None, os.environ[name].split(os.pathsep))
        os.environ[name] = os.pathsep.join(map(os.path.abspath, map(os.path.expanduser, paths)))
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _do_unless_done(plan: Plan, name: str, where: Mapping[str, Any], say: Say) -> bool:
    """Do a step unless it is done or failed; returns whether it is done."""
    step, here = plan.steps[name], Path()
    latest = outcome_of(step, here)
    if latest.state == "failed" or is_done(step, latest, here):
        return latest.state == "done"
    lacking = [need for need in step.needs if outcome_of(plan.steps[need], here).state != "done"]
    if lacking:
        say(f"left out: {name}, which needs {lacking[0]}")
        return False
    if stale := changed(step, here, where["data_dir"]):
        say(f"left out: {name}: {stale} has changed since the study was planned; plan it again")
        return False
    outcome = _do(step, here, where)
    gc.collect()  # readers of tensors form cycles: a chunk of merges would keep those of all merges
    with folder_lock(here):
        if outcome.state == "failed" and is_done(step, latest := outcome_of(step, here), here):
            outcome = latest  # another run did it meanwhile, and removed what this one read
        write_outcome(step, here, outcome)
    say(outcome.as_line(name))
    if step.verb == "evaluate" and not plan.keep_merges:
        remove_scored_merges(plan, step, here)
    return outcome.state == "done"


def _do(step: Step, folder: Path, where: Mapping[str, Any]) -> Outcome:
    """Do a step; returns its outcome."""
    with folder_lock(folder):  # else `begun` of this run may replace `done` of another run
        latest, whole = outcome_of(step, folder), has_folder(step, folder)
        if is_done(step, latest, folder):
            return latest
        if latest.state == "begun" and whole:  # that run was killed after the folder was whole
            return replace(latest, state="done")
        write_outcome(step, folder, Outcome("begun", step.request))
    start = time.perf_counter()
    try:
        records = _make_waiting(step, folder, where, whole)
    except CellsFailed as error:
        paths = _paths(step, error.records)
        return Outcome("failed", step.request, reason=str(error), records=paths)
    except CannotWrite as error:  # no space, say: neither model nor data are at fault
        return Outcome("missing", step.request, reason=str(error))
    except HarnessError as error:
        return Outcome("failed", step.request, reason=str(error))
    except Exception as error:  # of a library: this step fails, and no other
        traceback.print_exc()
        return Outcome("failed", step.request, reason=f"{type(error).__name__}: {error}")
    seconds = time.perf_counter() - start
    record_time(step, seconds)
    return Outcome("done", step.request, seconds=round(seconds, 2), records=records)


def _make_waiting(
    step: Step, folder: Path, where: Mapping[str, Any], whole: bool
) -> tuple[str, ...]:
    """Do what a step asks; returns the paths of its records. Waits if another run makes its folder.

    A folder that was `whole` when the step began was made by no run of the study.
    """
    place = folder / step.name
    late = False
    while True:
        while place.parent.is_dir() and is_written(place):
            late = True
            time.sleep(PATIENCE)
        if late and has_folder(step, folder):
            outcome_of(step, folder)  # raises if the other run was asked for something else
            return ()
        try:
            return _call_verb(step, place, {**step.request, **where})
        except OutputExists:  # of another run, which began after this one had looked
            late = is_written(place) or (has_folder(step, folder) and not whole)
            if not late:
                raise


def _call_verb(step: Step, place: Path, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Call the verb of a step with its arguments; returns the paths of its records."""
    if step.verb == "merge":
        merge(Recipe(**arguments), out=place)
        return ()
    arguments = {name: value for name, value in arguments.items() if name != "merge_device"}
    if step.verb == "finetune":
        finetune(out=place, progress=False, **arguments)
    elif step.verb == "statistics":
        statistic(**arguments)
    else:
        return _paths(step, evaluate(Run(**arguments)))
    return ()


def _paths(step: Step, records: Sequence[Record]) -> tuple[str, ...]:
    """The paths of records, relative to the study's folder."""
    out = Path(step.request["output"])
    return tuple(sorted({str(written_path(record, out)) for record in records}))
