"""Shell: what a worker does: the steps of one chunk, each of them one verb of the harness."""

from __future__ import annotations

import gc
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.errors import CannotWrite, CellsFailed, HarnessError, OutputExists
from harness.evaluation.evaluate import evaluate
from harness.evaluation.records import Record, path_of
from harness.evaluation.run import Run
from harness.merging.merge import merge
from harness.merging.recipes import Recipe
from harness.passes.statistics import statistic
from harness.studies.inputs import changed
from harness.studies.outcomes import Outcome, is_done, outcome_of, settle, take_away, there
from harness.studies.plan import Plan, paid
from harness.studies.step import Step
from harness.training.finetune import finetune
from harness.unfinished import is_written, turn

PATIENCE = 1.0
"""Seconds between two looks at a folder that another run is writing."""
Say = Callable[[str], None]


def work(plan: Plan, chunk: int, folder: Path, *, where: Mapping[str, Any], say: Say) -> bool:
    """Do the steps of a chunk that are not done, in the study's folder; whether all are now.

    `where` has the folder of data and the devices, which are no part of a plan. What is done before
    is not done again, nor what failed, nor what needs a step that is not done. Everything is
    written whole or not at all: whoever is killed loses the step at hand.
    """
    told = {name: where[name] for name in ("data_dir", "device", "merge_device")}
    with _within(folder):  # all paths of a plan are from there
        done = [_worked(plan, name, told, say) for name in plan.chunks[chunk].steps]
    return all(done)


@contextmanager
def _within(folder: Path) -> Iterator[None]:
    """The folder as the one that this process is in."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _worked(plan: Plan, name: str, where: Mapping[str, Any], say: Say) -> bool:
    """Do a step unless it was; whether it is done."""
    step, here = plan.steps[name], Path()
    known = outcome_of(step, here)
    if known.state == "failed" or is_done(step, known, here):
        return known.state == "done"
    lacking = [one for one in step.needs if outcome_of(plan.steps[one], here).state != "done"]
    if lacking:
        say(f"left out: {name}, which needs {lacking[0]}")
        return False
    if other := changed(step, here, where["data_dir"]):
        say(f"left out: {name}: {other} is not what it was when this was planned; plan it again")
        return False
    made = _done(step, here, where)
    gc.collect()  # readers of tensors know one another: a chunk of merges would hold all of theirs
    with turn(here):
        if made.state == "failed" and is_done(step, known := outcome_of(step, here), here):
            made = known  # another run did it meanwhile, and took away what this one read
        settle(step, here, made)
    say(made.told(name))
    if step.verb == "evaluate" and not plan.keep_merges:
        take_away(plan, step, here)
    return made.state == "done"


def _done(step: Step, folder: Path, where: Mapping[str, Any]) -> Outcome:
    """Do a step; what became of it."""
    with turn(folder):  # else this one's `begun` may take the place of another one's `done`
        known, whole = outcome_of(step, folder), there(step, folder)
        if is_done(step, known, folder):
            return known
        if known.state != "begun":
            settle(step, folder, Outcome("begun", step.request))
        elif whole:  # whoever began it was stopped after the folder was whole
            return Outcome("done", step.request)
    begun = time.perf_counter()
    try:
        records = _made(step, folder, where, whole)
    except CellsFailed as error:
        paths = _paths(step, error.records)
        return Outcome("failed", step.request, reason=str(error), records=paths)
    except CannotWrite as error:  # for want of room: neither model nor data are at fault
        return Outcome("missing", step.request, reason=str(error))
    except HarnessError as error:
        return Outcome("failed", step.request, reason=str(error))
    except Exception as error:  # of a library: the step's fault, and not that of the others
        traceback.print_exc()
        return Outcome("failed", step.request, reason=f"{type(error).__name__}: {error}")
    seconds = time.perf_counter() - begun
    paid(step, seconds)
    return Outcome("done", step.request, seconds=round(seconds, 2), records=records)


def _made(step: Step, folder: Path, where: Mapping[str, Any], whole: bool) -> tuple[str, ...]:
    """Do what a step asks; its records. Of two runs that make one folder, one waits.

    A folder that was `whole` when the step began is of no run of the study.
    """
    place = folder / step.name
    late = False
    while True:
        while place.parent.is_dir() and is_written(place):
            late = True
            time.sleep(PATIENCE)
        if late and there(step, folder):
            return ()
        try:
            return _asked(step, place, {**step.request, **where})
        except OutputExists:  # of another run, which began when this one had looked
            late = is_written(place) or (there(step, folder) and not whole)
            if not late:
                raise


def _asked(step: Step, place: Path, asked: Mapping[str, Any]) -> tuple[str, ...]:
    if step.verb == "merge":
        merge(Recipe(**asked), out=place)
        return ()
    asked = {name: value for name, value in asked.items() if name != "merge_device"}
    if step.verb == "finetune":
        finetune(out=place, progress=False, **asked)
    elif step.verb == "statistics":
        statistic(**asked)
    else:
        return _paths(step, evaluate(Run(**asked)))
    return ()


def _paths(step: Step, records: Sequence[Record]) -> tuple[str, ...]:
    """Where records lie, from the study's folder."""
    out = Path(step.request["output"])
    return tuple(sorted({str(path_of(record, out)) for record in records}))
