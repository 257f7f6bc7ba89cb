"""The plan of a study: its steps in chunks, written once, which workers are given.

What a step takes on this machine is known from how long others took here.
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
from harness.files import cache_dir, parse_json, read_json, saying, write_json
from harness.hashes import digest_of
from harness.options import parse_choice
from harness.registry import METRICS, NEEDS, PROTOCOLS, STAGES, TASKS, Registry
from harness.studies.step import Step, Verb
from harness.studies.study import Figure
from harness.values import validated

VERSION = 1
"""Of the file of a plan; a worker refuses any other."""
CHUNK = 60.0
"""Seconds of work that a worker is started for: its start takes a tenth of it at most."""
UNKNOWN: Mapping[Verb, float] = {
    "finetune": CHUNK,
    "statistics": CHUNK / 3,
    "merge": CHUNK / 3,
    "evaluate": CHUNK / 3,
}
"""Seconds that a step counts for where none like it was timed: trainings have a worker each; of the
others, which may take a second or ten minutes, a few share one."""
PLACE = re.compile(r"(experts|statistics|merged|records)(/[\w.+-]+)+")
REGISTERED: Mapping[str, Registry[Any]] = {
    **STAGES,
    **dict.fromkeys(("task", "tasks", "tune_on"), TASKS),
    "protocols": PROTOCOLS,
    "need": NEEDS,
    "metrics": METRICS,
}
"""Fields of a request that name something registered."""
PLANS, LATEST = "plans", "latest"
KEPT = 25
"""How many of the last times are regarded of one kind of step."""
NEAR = 4.0
"""The factor between two sizes within which times are taken to be in proportion."""
READ = 2**22
"""How many of the last bytes are read: some ten thousand steps."""


@dataclass(frozen=True)
class Chunk:
    """Steps that one worker does in their order; all are of one level."""

    level: int
    steps: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """Steps by name, each after those it needs, and the chunks that they are done in.

    `keep_merges`: whether merged folders stay. `figures` are drawn beside its boards, and the
    tables of the design `paper`, or of its own name, have its numbers.
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
    def users(self) -> Mapping[str, tuple[str, ...]]:
        """For every step those that need it."""
        found: dict[str, list[str]] = {name: [] for name in self.steps}
        for name, step in self.steps.items():
            for one in step.needs:
                found[one].append(name)
        return {name: tuple(users) for name, users in found.items()}

    def needing(self, names: Iterable[str]) -> set[str]:
        """The steps of these names, and all that need one of them, or one that needs it."""
        found = {*names}
        for name, step in self.steps.items():  # each after those that it needs
            if found.intersection(step.needs):
                found.add(name)
        return found

    @property
    def cells(self) -> int:
        """How many scores of merges it asks for: merge x task x protocol."""
        return sum(step.cells for step in self.steps.values())

    @property
    def levels(self) -> list[list[int]]:
        """The numbers of the chunks by level: each level waits for the one before."""
        numbers = range(len(self.chunks))
        return [[*of] for _, of in groupby(numbers, key=lambda one: self.chunks[one].level)]


def planned(
    study: str,
    steps: Sequence[Step],
    *,
    keep_merges: bool = True,
    figures: tuple[Figure, ...] = (),
    paper: str | None = None,
) -> Plan:
    """The plan of steps, of which each stands after those that it waits for."""
    level: dict[str, int] = {}
    groups: dict[tuple[int, str], list[Step]] = {}
    for step in steps:
        level[step.name] = max((level[one] + 1 for one in (*step.needs, *step.after)), default=0)
        # steps of one model, or of the models of one set, read the same rows and experts
        inputs = step.needs[0] if step.needs else step.name
        groups.setdefault((level[step.name], inputs.rpartition("/")[0]), []).append(step)
    levels = groupby(sorted(groups, key=itemgetter(0)), key=itemgetter(0))
    chunks = tuple(
        Chunk(number, tuple(names))
        for number, of_level in levels
        for names in _cut([step for one in of_level for step in groups[one]])
    )
    return Plan(study, {step.name: step for step in steps}, chunks, keep_merges, figures, paper)


def _cut(steps: Sequence[Step]) -> list[list[str]]:
    """The names of steps, in their order, in chunks that are worth a worker's start."""
    made, seconds = [list[str]()], 0.0
    for step in steps:
        if seconds >= CHUNK:
            made.append([])
            seconds = 0.0
        made[-1].append(step.name)
        seconds += seconds_of(step)
    return made


def seconds_of(step: Step) -> float:
    """What a step is taken to cost, though nothing like it was timed."""
    known = price(step)
    return UNKNOWN[step.verb] if known is None else known.seconds


def write_plan(plan: Plan, folder: Path) -> Path:
    """Write a plan into the folder of its study, by its content and as the latest; its path."""
    said = {
        "version": VERSION,
        "study": plan.study,
        "digest": plan.digest,
        "keep_merges": plan.keep_merges,
        "figures": [one.model_dump() for one in plan.figures],
        "paper": plan.paper,
        "steps": [asdict(step) for step in plan.steps.values()],
        "chunks": [asdict(chunk) for chunk in plan.chunks],
    }
    path = folder / PLANS / f"{plan.study}-{digest_of(said)[:12]}.json"
    for place in (path, folder / PLANS / LATEST / f"{plan.study}.json"):
        write_json(place, said, indent=1)
    return path


def plans_in(folder: Path) -> list[Plan]:
    """The latest plan of every study in a folder. Raises BadRecipe where there is none."""
    paths = latest_in(folder)
    if not paths:
        raise BadRecipe(
            f"no study was ever run or planned in {folder}, which has no {PLANS}/{LATEST}; "
            "expected the folder of one"
        )
    return [read_plan(path) for path in paths]


def latest_in(folder: Path) -> list[Path]:
    """The files of the latest plans in a folder."""
    return sorted((folder / PLANS / LATEST).glob("*.json"))


def read_plan(path: Path) -> Plan:
    """The plan in a file. Raises BadRecipe for what is none, or of another version."""
    said = read_json(path, "the plan of a study", error=BadRecipe)
    if said.get("version") != VERSION:
        found = said.get("version")
        raise BadRecipe(f"{path} is a plan of version {found}, expected {VERSION}: plan again")
    try:
        steps = {one["name"]: _step(one) for one in said["steps"]}
        chunks = tuple(Chunk(one["level"], tuple(one["steps"])) for one in said["chunks"])
        named = {name for chunk in chunks for name in chunk.steps}
        figures = tuple(validated(Figure, one, str(path)) for one in said.get("figures", ()))
        plan = Plan(said["study"], steps, chunks, said["keep_merges"], figures, said.get("paper"))
    except (AttributeError, KeyError, TypeError) as error:
        raise BadRecipe(f"{path} is no plan of a study: {error} is missing or odd") from error
    if named != {*steps} or plan.digest != said.get("digest"):
        raise BadRecipe(f"{path} was changed since it was planned; expected it unchanged")
    return plan


def _step(said: Mapping[str, Any]) -> Step:
    """A step of a file: it writes below the study's folder, and no name in it imports code."""
    request = said["request"]
    for place in (said["name"], request.get("output", said["name"])):
        if not PLACE.fullmatch(place) or ".." in place.split("/"):
            raise BadRecipe(f"a step writes to {place[:80]!r}; expected a place in the study")
    lists = {"needs": tuple(said["needs"]), "after": tuple(said["after"])}
    step = Step(**{**said, **lists, "inputs": {**said["inputs"]}})
    for key, registry in REGISTERED.items():
        for one in step.asked(key):
            called = one["name"] if isinstance(one, dict) else parse_choice(str(one)).name
            registry.check_name(called, step.name)
    return step


# What steps take ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Price:
    """What a step is taken to cost one worker, in seconds; or at most, if `at_most`."""

    seconds: float
    at_most: bool = False


def price(step: Step) -> Price | None:
    """What a step takes, by those most like it of about its size; None where none was timed here.

    By steps of several sizes that are all far from its own, the line that is nearest to them all;
    far beyond the largest, as much at most. By those of one size alone nobody knows how much of the
    time grows with the size: if they are smaller, in proportion at most; if they are larger, no
    longer than they took.
    """
    path, size = _path(), _size(step)
    known = _times(path, path.stat().st_size) if path.is_file() else {}
    timed = [known[kind][-KEPT:] for kind in _kinds(step) if kind in known]
    for times in timed:
        near = [took / of for of, took in times if size / NEAR <= of <= size * NEAR]
        if near:
            return Price(median(near) * size)
    for times in timed:
        sizes = [of for of, _ in times]
        if max(sizes) > NEAR * min(sizes):
            start, rate = _line(times)
            return Price(start + rate * size, at_most=size > NEAR * max(sizes))
    if not timed:
        return None
    bounds = [took * max(size / of, 1.0) for of, took in timed[0]]
    return Price(median(bounds), at_most=True)


def _line(times: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Seconds to begin with and for each unit of size, by (size, seconds): neither below zero,
    least squares of the shares by which they miss."""
    from scipy.optimize import nnls

    shares = [[1 / took, size / took] for size, took in times if took > 0]
    start, rate = nnls(shares, [1.0] * len(shares))[0] if shares else (0.0, 0.0)
    return float(start), float(rate)


def paid(step: Step, seconds: float) -> None:
    """Remember how long a step took: one line, which a run that is killed writes or does not."""
    path = _path()
    said = {"kinds": [*_kinds(step)], "size": _size(step), "seconds": seconds}
    line = json.dumps(said).encode() + b"\n"
    with saying(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            file.write(line)


def _kinds(step: Step) -> Iterator[tuple[str, ...]]:
    """What a step is like, from most to least: the same of other tasks, or by other options. Other
    protocols, statistics and methods may take a hundred times as long. Of rows that nobody counted,
    the same alone.
    """
    first = "later" if step.after else "first"
    _, _, after = step.about.partition(" ")  # the task is the one of evaluate, else the other
    options = re.sub(r":[^\[\]+ ]*", "", step.about)  # the same methods, whatever they are asked
    need = options.partition(" ")[0]
    like = {"evaluate": after, "statistics": need, "finetune": "", "merge": options}
    if step.size is None:
        asked = (str(step.request.get(name)) for name in ("limit", "epochs", "tune_limit"))
        yield step.verb, step.base, step.about, first, *asked
        return
    yield step.verb, step.base, step.about, first
    yield step.verb, step.base, like[step.verb], first
    yield step.verb, step.base, like[step.verb]


def _size(step: Step) -> float:
    return max(step.size or 1.0, 1.0)


def _path() -> Path:
    return cache_dir("times") / f"{digest_of('times by rows')}.jsonl"


@cache
def _times(path: Path, size: int) -> Mapping[tuple[str, ...], list[tuple[float, float]]]:
    """Size and seconds of steps by their kind, as the file says that has so many bytes."""
    found = defaultdict[tuple[str, ...], list[tuple[float, float]]](list)
    with path.open("rb") as file:
        file.seek(max(size - READ, 0))
        lines = file.read(READ).splitlines()
    for line in lines:
        # one may be broken, as any of a cache
        with suppress(HarnessError, ValueError, TypeError, KeyError):
            said = parse_json(line.decode(), "a line", "the time of a step")
            took = max(float(said["size"]), 1.0), float(said["seconds"])
            for kind in [tuple(map(str, kind)) for kind in said["kinds"]]:
                found[kind].append(took)
    return dict(found)
