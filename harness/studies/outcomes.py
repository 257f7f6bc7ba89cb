"""The outcome of each step: one small file, written when the step begins and when it ends."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from harness.checkpoints.layout import MERGE_LAYOUT
from harness.checkpoints.provenance import EXPERT_FILE, MERGE_FILE
from harness.code import code_of
from harness.errors import BadRecipe, BrokenRecord, HarnessError, OutputExists
from harness.evaluation.run import DEFAULTS
from harness.files import file_hash, read_json, write_json
from harness.functions import is_ours
from harness.hashes import digest_of
from harness.methods import functions_run
from harness.registry import METRICS, PROTOCOLS, STAGES, Registry
from harness.studies.inputs import task_of
from harness.studies.plan import Plan, latest_in, read_plan
from harness.studies.step import Step
from harness.studies.steps import difference
from harness.unfinished import folder_lock, is_written

OUTCOMES = "outcomes"
State = Literal["done", "failed", "begun", "missing"]
MARKERS = {"finetune": EXPERT_FILE, "merge": MERGE_FILE}
"""The file that a step's folder has when it is whole."""
NAMED_BY = {"merge": "sets (sets.called)", "evaluate": "board (score_on)"}
"""What a step is named by, with the field of a study that gives it another name; other steps are
named by experts."""
SCORES = ("protocols", "shots", "draws", "references", "ceilings", "best_single", "singles")
"""Fields of a run that decide which scores are made, and not how one is computed."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a step: `failed` with the reason, `begun` by a run that has not ended it.

    `records` are the paths of those that it wrote or found, from the study's folder; `code` is the
    hash of the plug-ins' code, `inputs` are the hashes of the step's inputs at that time, `made` is
    a hash of what the folder of an expert or a merge says of itself.
    """

    state: State
    request: Mapping[str, Any]
    seconds: float = 0.0
    reason: str = ""
    records: tuple[str, ...] = ()
    code: str | None = None
    inputs: Mapping[str, str] = field(default_factory=dict)
    made: str | None = None

    def as_line(self, name: str) -> str:
        """The outcome as a line, for the step of this name."""
        return f"{self.state}: {name}{f': {self.reason}' if self.reason else ''}"


def outcome_of(step: Step, folder: Path) -> Outcome:
    """The outcome of a step. Raises BadRecipe if a different request was run under the step's name.

    An evaluation that is now asked for more scores is missing; the records that it has stay.
    """
    path = _path(step, folder)
    if not path.is_file():
        return Outcome("missing", step.request)
    data = read_json(path, "the outcome of a step", error=BrokenRecord)
    try:
        outcome = Outcome(**{**data, "records": tuple(data["records"])})
        then = dict(outcome.request)
        # an input without a hash, such as a Hub model that was not fetched, counts as the same
        changed = [
            name
            for name, digest in step.inputs.items()
            if outcome.inputs.get(name, digest) != digest
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BrokenRecord(
            f"{path} is not the outcome of a step; expected the file as a study wrote it"
        ) from error
    now = dict(step.request)
    if then == now and not changed:
        # if plug-in code changed, score again: records have its hash, so the older ones stay
        again = step.verb == "evaluate" and of_other_code(step, outcome, folder)
        return Outcome("missing", step.request) if again else outcome
    differing = [name for name in {**then, **now} if not _asks_no_less(step, name, then, now)]
    more, made = not differing and not changed, outcome.state == "done" or has_folder(step, folder)
    if more or not (made or _is_being_made(step, folder)):
        return Outcome("missing", step.request)
    if changed:
        raise BadRecipe(
            f"{changed[0]}, or a file that it names, has changed since {folder / step.name} was "
            "made; expected the same model or data: put it back, or choose another --out"
        )
    before, after = ({name: request.get(name) for name in differing} for request in (then, now))
    called = NAMED_BY.get(step.verb, "experts (experts.called)")
    verb = "was made" if made else "is being made by a run that has not ended,"
    raise BadRecipe(
        f"{folder / step.name} {verb} with other settings: {difference(before, after)}; "
        f"expected the same settings: choose another --out, or another name for the {called}"
    )


def check_same_requests(plan: Plan, before: Sequence[Plan]) -> None:
    """Raise BadRecipe if a study `before` makes a step of the same name by another request."""
    for other in before:
        for name in filter(other.steps.__contains__, plan.steps):
            old, new = (p.steps[name].request for p in (other, plan))
            if old != new:
                raise BadRecipe(
                    f"{other.study} and {plan.study} both make {name}, with {difference(old, new)}"
                    "; expected the same settings, or other names (called) in one of the studies"
                )


def _asks_no_less(step: Step, name: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a field of a request asks for all that it asked then, and perhaps more scores."""
    if step.verb != "evaluate" or name not in SCORES:
        return bool(then.get(name) == now.get(name))
    default = DEFAULTS.model_dump(mode="json")[name]
    before, after = then.get(name, default), now.get(name, default)
    if isinstance(after, list):
        return isinstance(before, list) and all(item in after for item in before)
    return type(before) is type(after) and bool(before <= after)


def write_outcome(step: Step, folder: Path, outcome: Outcome) -> None:
    """Write the outcome of a step, atomically."""
    data = {**vars(outcome), "request": dict(step.request), "records": list(outcome.records)}
    data |= {"code": outcome.code or methods_code(step, folder), "inputs": dict(step.inputs)}
    data["made"] = _made(step, folder) if outcome.state == "done" else None
    write_json(_path(step, folder), data)


def methods_code(step: Step, folder: Path) -> str | None:
    """A hash of the plug-ins' code by which a step merges or scores; None if it uses no plug-in, or
    none that is loaded. Task files are found from the study's folder."""
    chosen = [(STAGES[kind], choice["name"]) for kind in STAGES for choice in step.asked(kind)]
    methods = [registry[name] for registry, name in chosen if name in registry]
    codes = [code_of(method.function) for method in methods]
    codes += filter(
        None, (code_of(need) for method in methods for need in functions_run(method)[1:])
    )
    if step.verb == "evaluate":
        named: list[tuple[Registry[Any], str]]
        named = [(PROTOCOLS, protocol["name"]) for protocol in step.asked("protocols")]
        metrics = step.asked("metrics") or _metrics_of(step, folder)
        named += [(METRICS, name) for name in metrics]
        codes += [code_of(registry[name].function) for registry, name in named if name in registry]
    return digest_of(codes) if any(codes) else None


def _metrics_of(step: Step, folder: Path) -> list[str]:
    """The metrics of an evaluation's tasks; if only its experts name the tasks, all metrics of
    plug-ins."""
    if not step.asked("tasks"):
        return [name for name, metric in METRICS.items() if not is_ours(metric.function)]
    found = list[str]()
    for text in step.asked("tasks"):
        with suppress(HarnessError):  # a task file that is gone is an error of the step itself
            found += task_of(text, folder).metrics
    return found


def _made(step: Step, folder: Path) -> str | None:
    marker = MARKERS.get(step.verb)
    return file_hash(folder / step.name / marker) if marker else None


def has_folder(step: Step, folder: Path) -> bool:
    """Whether the folder that a step makes is there, and whole."""
    return step.verb in MARKERS and (folder / step.name / MARKERS[step.verb]).is_file()


def _is_being_made(step: Step, folder: Path) -> bool:
    """Whether a run is making the folder of a step: a worker of a run that was killed, say."""
    place = folder / step.name
    return step.verb in MARKERS and place.parent.is_dir() and is_written(place)


def outcomes_of(plan: Plan, folder: Path) -> dict[str, Outcome]:
    """The outcome of every step, by its name.

    A step whose folder or records are gone is missing, unless other steps need it and are all done.
    """
    found: dict[str, Outcome] = {}
    for name, step in reversed([*plan.steps.items()]):
        outcome = outcome_of(step, folder)
        if outcome.state == "done" and not is_done(step, outcome, folder):
            users = plan.users[name]
            if not users or any(found[user].state != "done" for user in users):
                outcome = Outcome("missing", step.request)
        found[name] = outcome
    return {name: found[name] for name in plan.steps}


def check_made(plan: Plan, outcomes: Mapping[str, Outcome], folder: Path) -> None:
    """Raise BadRecipe for an expert or a merge that is not the one that its step made: what was
    made of the former would be mixed with what is made of this one."""
    for name, step in plan.steps.items():
        then = outcomes[name].made
        if then is not None and _made(step, folder) not in (then, None):
            raise BadRecipe(
                f"{MARKERS[step.verb]} has changed since {folder / name} was made; expected the "
                "folder as the study made it: put it back, or choose another --out"
            )


def is_done(step: Step, outcome: Outcome, folder: Path) -> bool:
    """Whether a step was done and what it made is still there."""
    if outcome.state != "done":
        return False
    if step.verb == "evaluate":
        return all((folder / path).is_file() for path in outcome.records)
    return step.verb == "statistics" or has_folder(step, folder)


def forget_failed(plan: Plan, folder: Path) -> None:
    """Delete the outcomes of failed steps, so that they are done again."""
    for step in plan.steps.values():
        if outcome_of(step, folder).state == "failed":
            _path(step, folder).unlink()


def of_other_code(step: Step, outcome: Outcome, folder: Path) -> bool:
    """Whether the plug-ins' code by which a step was done has changed since."""
    now = methods_code(step, folder) if outcome.code else None
    return now not in (None, outcome.code)


def remove_changed_merges(plan: Plan, folder: Path) -> None:
    """Delete merges by plug-ins whose code changed since, and outcomes of all steps that need them,
    in any study of the folder: they are made again.

    Outcomes that need the merges go first: a killed run leaves merges that still count as changed.
    Raises OutputExists for a merged folder that holds anything else.
    """
    steps = [step for step in plan.steps.values() if step.verb == "merge"]
    outcomes = {step.name: outcome_of(step, folder) for step in steps}
    old = [step for step in steps if of_other_code(step, outcomes[step.name], folder)]
    done = [folder / step.name for step in old if is_done(step, outcomes[step.name], folder)]
    for place in done:
        if foreign := MERGE_LAYOUT.foreign(place):
            raise OutputExists(f"{place} has {min(foreign)}, which no merge wrote; move it away")
    names = [step.name for step in old]
    plans = [*map(read_plan, latest_in(folder))]  # this plan included
    with folder_lock(folder):
        for other in plans:
            for name in other.with_dependents(names).intersection(other.steps).difference(names):
                _path(other.steps[name], folder).unlink(missing_ok=True)
        for place in done:
            shutil.rmtree(place, ignore_errors=True)
        for step in old:
            _path(step, folder).unlink(missing_ok=True)


def remove_scored_merges(plan: Plan, step: Step, folder: Path) -> None:
    """Remove the merged folders that a step read, if all steps that need them are done, no study of
    the folder keeps them, and they hold nothing but the merge."""
    for name in step.needs:
        if plan.steps[name].verb != "merge" or not has_folder(plan.steps[name], folder):
            continue
        users = [plan.steps[user] for user in plan.users[name]]
        if (
            all(is_done(user, outcome_of(user, folder), folder) for user in users)
            and name not in _kept(*((path, path.stat().st_mtime_ns) for path in latest_in(folder)))
            and _is_merge(folder / name)
        ):
            shutil.rmtree(folder / name, ignore_errors=True)


@lru_cache(maxsize=4)
def _kept(*plans: tuple[Path, int]) -> frozenset[str]:
    """The steps of those plans, given as (file, its time), that keep merged folders."""
    read = [read_plan(path) for path, _ in plans]
    return frozenset(name for plan in read if plan.keep_merges for name in plan.steps)


def _is_merge(folder: Path) -> bool:
    """Whether a folder holds a merge, as it was written, and nothing else."""
    try:
        return not MERGE_LAYOUT.foreign(folder)
    except HarnessError:
        return False


def _path(step: Step, folder: Path) -> Path:
    return folder / OUTCOMES / f"{step.name}.json"
