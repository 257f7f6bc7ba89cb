"""What an evaluation evaluates, checked before anything runs: tasks with their draws, the models
that are rows of the table, and the protocols that read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from harness import weights
from harness.checkpoints import is_head
from harness.data import draw, load_rows, parse_task, share_rows, take
from harness.errors import BadRecipe, MissingHead, MissingTeacher
from harness.labels import columns
from harness.models import Model, experts_of, others_of
from harness.recipes import Run
from harness.records import CHOICE_SPLIT, Role
from harness.registry import PROTOCOLS, EvaluationProtocol, resolve
from harness.types import Checkpoint, Choice, Draw, Rows, Scalar, StateDict, Task

POOL_SPLIT = "train90"


@dataclass(frozen=True)
class Asked:
    """A protocol with all its options."""

    protocol: EvaluationProtocol
    options: dict[str, Scalar]

    @property
    def adapts(self) -> bool:
        return self.protocol.adapts != "nothing"


@dataclass(frozen=True)
class Part:
    """A task of a run: its test rows, the pool that shots are drawn from, and the draws."""

    task: Task
    split: str
    test: Rows
    pool: Rows | None
    draws: tuple[Draw, ...]

    @property
    def name(self) -> str:
        return f"{self.task.name}@{self.split}"


@dataclass(frozen=True)
class System:
    """A model as read on one task: a row of the table. An ensemble has several members."""

    name: str
    role: Role
    method: str
    members: tuple[Checkpoint, ...]
    columns: tuple[tuple[int, ...], ...]
    head: str

    @cached_property
    def digests(self) -> tuple[str, ...]:
        """Content hashes of the members; reading them checks that all weights are finite."""
        return tuple(weights.Observed(m.weights, m.source).digest() for m in self.members)

    @property
    def digest(self) -> str:
        """One hash for the system."""
        if len(self.digests) == 1:
            return self.digests[0]
        return weights.join_digests({str(i): d for i, d in enumerate(sorted(self.digests))})


def asked_protocols(run: Run) -> list[Asked]:
    """The protocols of a run, every one if it names none, with their options checked."""
    asked = run.protocols or tuple(Choice(name) for name in PROTOCOLS)
    if run.draws < 1 or not run.shots or min(run.shots) < 1:
        raise BadRecipe(
            f"shots {', '.join(map(str, run.shots)) or 'none'} with {run.draws} draws; "
            "expected at least one shot and one draw"
        )
    found = []
    for choice in asked:
        entry = PROTOCOLS[choice.name]
        options = resolve("protocol", choice, entry.function)
        if entry.check is not None:
            entry.check(**options)
        found.append(Asked(entry, options))
    return found


def part_of(run: Run, name: str, protocols: Sequence[Asked]) -> Part:
    """The rows of a task and the draws from its training split, if a protocol adapts to any."""
    task, split = parse_task(name)
    test = load_rows(task, split, folder=run.data_dir, limit=run.limit)
    if not any(asked.adapts for asked in protocols):
        return Part(task, split, test, None, ())
    if share_rows(task, split, POOL_SPLIT):
        raise BadRecipe(
            f"shots are drawn from {task}@{POOL_SPLIT}; expected another split to score"
        )
    train = load_rows(task, POOL_SPLIT, folder=run.data_dir)
    seeds = range(run.seed, run.seed + run.draws)
    pool, draws = draw(train, sorted(set(run.shots)), seeds)
    return Part(task, split, test, take(train, pool), tuple(draws))


def system_of(
    task: Task, run: Run, role: Role, name: str, members: tuple[Checkpoint, ...], head: str,
    method: str = "",
) -> System:  # fmt: skip
    """Members as one row of the table. Raises MissingHead, and LabelMismatch by `columns`."""
    orders = []
    for member in members:
        if member.labels is None:
            raise MissingHead(
                f"{member.source} has no head for {task}, and a newly initialised one is never "
                "used; give an expert of the task with --experts"
            )
        by_index = run.labels == "by-index"
        orders.append(tuple(columns(task, member.labels, member.source, by_index=by_index)))
    return System(name, role, method or role, members, tuple(orders), head)


def experts_on(run: Run, model: Model, task: Task) -> list[System]:
    """The experts of a task and, if asked for, those of other tasks that have its labels."""
    found: list[tuple[Role, Checkpoint]] = [("expert", one) for one in experts_of(model, task)]
    if run.singles:
        found += [("single", one) for one in others_of(model, task)]
    return [system_of(task, run, role, one.name, (one,), "own") for role, one in found]


def _own(experts: Sequence[System]) -> list[System]:
    """Those that are experts of the very task they are read on."""
    return [expert for expert in experts if expert.role == "expert"]


def systems_of(run: Run, model: Model, part: Part, experts: Sequence[System]) -> Iterator[System]:
    """The model and its reference rows on one task; `experts` are those that can be read on it."""
    task = part.task
    own = _own(experts)
    merged, head = model.on(task)
    yield system_of(task, run, model.role, model.name, (merged,), head, model.method)
    if model.base is not None:
        body = [name for name in model.base.weights if not is_head(name)]
        encoder = weights.select(model.base.weights, body)
        both = weights.union(encoder, _plain_head(merged, own), merged.weights)
        known = weights.select(both, list(merged.weights))
        control = replace(merged, weights=known, source=model.base.source)
        yield system_of(task, run, "base", model.base.name, (control,), head)
    yield from experts
    groups = {"ensemble": own, "ensemble of all": experts if len(experts) > len(own) else []}
    for method, group in groups.items():
        if len(group) > 1:
            members = tuple(expert.members[0] for expert in group)
            yield system_of(task, run, "ensemble", "ensemble", members, "own", method)
    for reference in model.references:
        if reference.has_head(task):
            read, head = reference.on(task)
            called = reference.name, (read,), head, reference.method
            yield system_of(task, run, "reference", *called)


def _plain_head(merged: Checkpoint, experts: Sequence[System]) -> StateDict:
    """The mean of the experts' heads, if there are several alike: what the base is read under.

    Not the merged head: one base is the control of every merge of the same experts.
    """
    names = [name for name in merged.weights if is_head(name)]
    known = weights.specs(weights.select(merged.weights, names))
    heads = [expert.members[0].weights for expert in experts]
    shapes = [{n: weights.specs(head)[n].shape for n in names if n in head} for head in heads]
    if len(heads) < 2 or any(found != {n: known[n].shape for n in names} for found in shapes):
        return {}
    mean = weights.mean([weights.select(head, names) for head in heads])
    return weights.cast_like(mean, merged.weights)


def teachers_of(system: System, experts: Sequence[System]) -> list[System]:
    """Whose outputs a tuned head is fitted to: those of the task's own experts.

    An expert teaches itself, and so does a reference that no expert stands beside.
    """
    own = _own(experts)
    alone = system.role == "expert" or (system.role == "reference" and not own)
    return [system] if alone else own


def check_singles(model: Model, tasks: Sequence[Task]) -> None:
    """Raise BadRecipe where no expert can be read on a task of another, or rows would be mixed."""
    names = [expert.name for expert in model.experts]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadRecipe(
            f"two experts are called '{twice[0]}', and rows are told apart by folder; "
            "expected names that differ for --singles: rename one"
        )
    if not any(others_of(model, task) for task in tasks):
        raise BadRecipe(
            "experts are read on one another's tasks where those have the same labels, found none "
            "that do; leave out --singles"
        )


def candidates(
    run: Run, readers: Sequence[tuple[Part, Sequence[System]]]
) -> list[tuple[Part, System]]:
    """Each expert on the rows that choose the best single one, for tasks that have several.

    Raises BadRecipe where there is nothing to choose, or the reported rows would choose.
    """
    found = []
    for part, experts in readers:
        if len(experts) < 2:
            continue
        if share_rows(part.task, part.split, CHOICE_SPLIT):
            raise BadRecipe(
                f"the best single expert is chosen on {part.task}@{CHOICE_SPLIT}, which "
                f"{part.name} reports; expected another split to score"
            )
        rows = load_rows(part.task, CHOICE_SPLIT, folder=run.data_dir, limit=run.limit)
        held = Part(part.task, CHOICE_SPLIT, rows, None, ())
        found += [(held, expert) for expert in experts]
    if not found:
        raise BadRecipe(
            "the best single expert is chosen among several of one task, found none with more "
            "than one; leave out --best-single"
        )
    return found


def choosing() -> Asked:
    """The protocol that the best single expert is chosen under: each head as it came."""
    entry = PROTOCOLS["current"]
    return Asked(entry, resolve("protocol", Choice(entry.name), entry.function))


def applicable(
    run: Run, protocols: Sequence[Asked], work: Sequence[tuple[Part, System, Sequence[System]]]
) -> dict[Role, list[Asked]]:
    """The protocols of each role: an ensemble has no features, so nothing adapts to it."""
    untaught = [part.task.name for part, _, teachers in work if not teachers]
    taught = [a for a in protocols if not (untaught and a.protocol.adapts == "unlabeled")]
    if len(taught) < len(protocols) and run.protocols:
        lacking = next(asked.protocol.name for asked in protocols if asked not in taught)
        raise MissingTeacher(
            f"protocol '{lacking}' needs an expert of task '{untaught[0]}' as teacher; "
            "name it with --experts"
        )
    return {
        "merged": taught,
        "base": taught,
        "expert": taught,
        "single": taught,
        "reference": taught,
        "ensemble": [asked for asked in taught if not asked.adapts],
    }
