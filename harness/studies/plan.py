"""The plan of a study: its steps, cut into chunks for workers, in one file.

The time of a step is estimated from the times of similar steps on this machine.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

from harness.errors import BadRecipe, HarnessError
from harness.files import cache_dir, parse_json, read_json, write_json
from harness.hashes import digest_of
from harness.options import parse_choice
from harness.registry import METRICS, NEEDS, PROTOCOLS, STAGES, TASKS, Registry
from harness.studies.step import TASK_FIELDS, VERBS, Step
from harness.studies.study import Figure
from harness.values import validated

VERSION = 1
"""The version of plan files; a worker refuses any other."""
CHUNK = 60.0
"""Least seconds of work in a chunk: the start of a worker takes a tenth of that at most."""
ASSUMED_SECONDS = {**dict.fromkeys(VERBS, CHUNK / 3), "finetune": CHUNK}
"""Seconds assumed for a step if none like it was timed: each training has its own worker; three of
the others, which may take a second or ten minutes, share one."""
PLACE = re.compile(r"(experts|statistics|merged|records)(/[\w.+-]+)+")
"""Names of steps and paths that they write, from the study's folder."""
REGISTERED: Mapping[str, Registry[Any]] = {
    **STAGES,
    **dict.fromkeys(TASK_FIELDS, TASKS),
    "protocols": PROTOCOLS,
    "need": NEEDS,
    "metrics": METRICS,
}
"""Fields of a request whose values are registered names, and the registries."""
PLANS, LATEST = "plans", "latest"
KEPT = 25
"""How many of the last times of one kind of step are used."""
NEAR = 4.0
"""Times are taken to be in proportion to sizes that differ by this factor at most."""
READ = 2**22
"""Bytes that are read from the end of the file of times: some ten thousand steps."""


@dataclass(frozen=True)
class Chunk:
    """Steps that one worker does in their order; all are of one level."""

    level: int
    steps: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """Steps by name, each after those it needs, and the chunks that they are done in.

    `keep_merges`: whether merged folders stay. `figures` are drawn beside the boards. `paper`: the
    design whose printed tables are filled with the study's numbers (None: that of its own name).
    """

    study: str
    steps: Mapping[str, Step]
    chunks: tuple[Chunk, ...]
    keep_merges: bool = True
    figures: tuple[Figure, ...] = ()
    paper: str | None = None

    @cached_property
    def digest(self) -> str:
        """A hash of all that is asked, whatever the order of its steps."""
        return digest_of(sorted([name, step.digest] for name, step in self.steps.items()))

    @cached_property
    def users(self) -> Mapping[str, Sequence[str]]:
        """For every step, the steps that need it."""
        found: dict[str, list[str]] = {name: [] for name in self.steps}
        for name, step in self.steps.items():
            for need in step.needs:
                found[need].append(name)
        return found

    def with_dependents(self, names: Iterable[str]) -> set[str]:
        """The steps of these names and all that need one of them, directly or through others."""
        found = {*names}
        for name, step in self.steps.items():  # each after those that it needs
            if found.intersection(step.needs):
                found.add(name)
        return found

    @property
    def cells(self) -> int:
        """The number of scores of merges: merge x task x protocol."""
        return sum(step.cells for step in self.steps.values())

    @property
    def evaluations(self) -> list[Step]:
        """The steps that score merges."""
        return [step for step in self.steps.values() if step.verb == "evaluate"]

    @property
    def levels(self) -> list[list[int]]:
        """The numbers of the chunks by level: each level waits for the one before."""
        numbers = range(len(self.chunks))
        return [[*group] for _, group in groupby(numbers, key=lambda n: self.chunks[n].level)]


def make_plan(
    study: str,
    steps: Sequence[Step],
    *,
    keep_merges: bool = True,
    figures: tuple[Figure, ...] = (),
    paper: str | None = None,
) -> Plan:
    """The plan of steps, given in an order in which each follows those that it waits for."""
    level: dict[str, int] = {}
    groups: dict[tuple[int, str], list[Step]] = {}
    for step in steps:
        level[step.name] = max((level[name] + 1 for name in (*step.needs, *step.after)), default=0)
        # steps of one model, or of the models of one set, read the same rows and experts
        inputs = step.needs[0] if step.needs else step.name
        groups.setdefault((level[step.name], inputs.rpartition("/")[0]), []).append(step)
    levels = groupby(sorted(groups, key=itemgetter(0)), key=itemgetter(0))
    chunks = tuple(
        Chunk(number, tuple(names))
        for number, keys in levels
        for names in _cut([step for key in keys for step in groups[key]])
    )
    return Plan(study, {step.name: step for step in steps}, chunks, keep_merges, figures, paper)


def _cut(steps: Sequence[Step]) -> list[list[str]]:
    """The names of steps in order, cut into chunks of at least `CHUNK` seconds but for the last."""
    chunks, seconds = [list[str]()], 0.0
    for step in steps:
        if seconds >= CHUNK:
            chunks.append([])
            seconds = 0.0
        chunks[-1].append(step.name)
        seconds += seconds_of(step)
    return chunks


def seconds_of(step: Step) -> float:
    """The estimated seconds of a step; those of `ASSUMED_SECONDS` if none like it was timed."""
    estimate = estimate_seconds(step)
    return ASSUMED_SECONDS[step.verb] if estimate is None else estimate.seconds


def write_plan(plan: Plan, folder: Path) -> Path:
    """Write a plan into its study's folder, twice: named by its content, and as the latest.

    Returns the path of the first.
    """
    data = {
        "version": VERSION,
        "study": plan.study,
        "digest": plan.digest,
        "keep_merges": plan.keep_merges,
        "figures": [figure.model_dump() for figure in plan.figures],
        "paper": plan.paper,
        "steps": [asdict(step) for step in plan.steps.values()],
        "chunks": [asdict(chunk) for chunk in plan.chunks],
    }
    path = folder / PLANS / f"{plan.study}-{digest_of(data)[:12]}.json"
    for place in (path, folder / PLANS / LATEST / f"{plan.study}.json"):
        write_json(place, data, indent=1)
    return path


def plans_in(folder: Path) -> list[Plan]:
    """The latest plan of every study in a folder. Raises BadRecipe where there is none."""
    paths = latest_in(folder)
    if not paths:
        raise BadRecipe(
            f"no study was ever run or planned in {folder}, which has no {PLANS}/{LATEST}; "
            "expected the folder of a study"
        )
    return [read_plan(path) for path in paths]


def latest_in(folder: Path) -> list[Path]:
    """The files of the latest plans in a folder."""
    return sorted((folder / PLANS / LATEST).glob("*.json"))


def read_plan(path: Path) -> Plan:
    """The plan in a file. Raises BadRecipe for no plan, another version, or a changed plan."""
    data = read_json(path, "the plan of a study", error=BadRecipe)
    if data.get("version") != VERSION:
        found = data.get("version")
        raise BadRecipe(f"{path} is a plan of version {found}, expected {VERSION}: plan again")
    try:
        steps = {entry["name"]: _step(entry) for entry in data["steps"]}
        chunks = tuple(Chunk(entry["level"], tuple(entry["steps"])) for entry in data["chunks"])
        named = {name for chunk in chunks for name in chunk.steps}
        figures = tuple(validated(Figure, entry, str(path)) for entry in data.get("figures", ()))
        plan = Plan(data["study"], steps, chunks, data["keep_merges"], figures, data.get("paper"))
    except (AttributeError, KeyError, TypeError) as error:
        raise BadRecipe(
            f"{path} is no plan of a study: {error} is missing or wrong; plan again"
        ) from error
    if named != {*steps} or plan.digest != data.get("digest"):
        raise BadRecipe(
            f"{path} was changed since it was written; expected it unchanged: plan again"
        )
    return plan


def _step(data: Mapping[str, Any]) -> Step:
    """A step from a plan file.

    Raises BadRecipe if it would write outside of the study's folder, and UnknownName for a name
    that would import code.
    """
    request = data["request"]
    for place in (data["name"], request.get("output", data["name"])):
        if not PLACE.fullmatch(place) or ".." in place.split("/"):
            raise BadRecipe(f"a step writes to {place[:80]!r}; expected a place in the study")
    lists = {"needs": tuple(data["needs"]), "after": tuple(data["after"])}
    step = Step(**{**data, **lists, "inputs": {**data["inputs"]}})
    for key, registry in REGISTERED.items():
        for value in step.asked(key):
            name = value["name"] if isinstance(value, dict) else parse_choice(str(value)).name
            registry.check_name(name, step.name)
    return step


# What steps take ---------------------------------------------------------------------------


@dataclass(frozen=True)
class SecondsEstimate:
    """The estimated seconds of a step for one worker; an upper bound if `at_most`."""

    seconds: float
    at_most: bool = False


def estimate_seconds(step: Step) -> SecondsEstimate | None:
    """The estimated time of a step from the most similar timed steps; None if none was timed here.

    From steps of similar size (`NEAR`), in proportion to the size. Else from steps of several
    sizes, by a fitted line; far beyond the largest this is an upper bound. Steps of one size do not
    show how much of the time grows with the size, so they give an upper bound: in proportion if
    they are smaller than this step, and their own time if they are larger.
    """
    path, size = _path(), _size(step)
    by_kind = _times(path, path.stat().st_size) if path.is_file() else {}
    timed = [by_kind[kind][-KEPT:] for kind in _kinds(step) if kind in by_kind]
    for times in timed:
        near = [took / other for other, took in times if size / NEAR <= other <= size * NEAR]
        if near:
            return SecondsEstimate(median(near) * size)
    for times in timed:
        sizes = [other for other, _ in times]
        if max(sizes) > NEAR * min(sizes):
            start, rate = _line(times)
            return SecondsEstimate(start + rate * size, at_most=size > NEAR * max(sizes))
    if not timed:
        return None
    bounds = [took * max(size / other, 1.0) for other, took in timed[0]]
    return SecondsEstimate(median(bounds), at_most=True)


def _line(times: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The line through (size, seconds) pairs: seconds at size 0 and seconds per unit of size.

    Neither is below zero, and the sum of squared relative errors is the least.
    """
    from scipy.optimize import nnls

    shares = [[1 / took, size / took] for size, took in times if took > 0]
    start, rate = nnls(shares, [1.0] * len(shares))[0] if shares else (0.0, 0.0)
    return float(start), float(rate)


def record_time(step: Step, seconds: float) -> None:
    """Append the time of a step to the file of times, if that can be written, in one write: a
    killed run leaves no part."""
    path = _path()
    entry = {"kinds": [*_kinds(step)], "size": _size(step), "seconds": seconds}
    line = json.dumps(entry).encode() + b"\n"
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            file.write(line)


def _kinds(step: Step) -> Iterator[tuple[str, ...]]:
    """Keys of similar steps, the most similar first: the same work, then that on other tasks or
    with other options. Other protocols, statistics and methods may take a hundred times as long.

    A step whose rows are not counted has only the key of the same work.
    """
    first = "later" if step.after else "first"
    _, _, rest = step.about.partition(" ")  # without the task of an evaluation
    options = re.sub(r":[^\[\]+ ]*", "", step.about)  # the methods without options
    need = options.partition(" ")[0]
    similar = {"evaluate": rest, "statistics": need, "finetune": "", "merge": options}
    if step.size is None:
        limits = (str(step.request.get(name)) for name in ("limit", "epochs", "tune_limit"))
        yield step.verb, step.base, step.about, first, *limits
        return
    yield step.verb, step.base, step.about, first
    yield step.verb, step.base, similar[step.verb], first
    yield step.verb, step.base, similar[step.verb]


def _size(step: Step) -> float:
    return max(step.size or 1.0, 1.0)


def _path() -> Path:
    """The file of times: a line of JSON for each step that was timed on this machine."""
    return cache_dir("times") / f"{digest_of('times by rows')}.jsonl"


@cache
def _times(path: Path, size: int) -> Mapping[tuple[str, ...], list[tuple[float, float]]]:
    """(size, seconds) of steps by kind, from the end of the file of times, of `size` bytes."""
    found = defaultdict[tuple[str, ...], list[tuple[float, float]]](list)
    with path.open("rb") as file:
        file.seek(max(size - READ, 0))
        lines = file.read(READ).splitlines()
    for line in lines:
        # a line may be broken, as in any cache
        with suppress(HarnessError, ValueError, TypeError, KeyError):
            entry = parse_json(line.decode(), "a line", "the time of a step")
            timing = max(float(entry["size"]), 1.0), float(entry["seconds"])
            for kind in [tuple(map(str, kind)) for kind in entry["kinds"]]:
                found[kind].append(timing)
    return dict(found)
