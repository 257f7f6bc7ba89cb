"""What an evaluation evaluates, checked before anything runs: tasks with their draws, the models
that are rows of the table, and the protocols that read them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from harness import weights
from harness.checkpoints.families.known import family_of
from harness.checkpoints.provenance import Trained, merged_by, trained_by
from harness.data.metrics import check_metrics
from harness.data.rows import load_rows, take, units_of
from harness.data.shots import draw, left_out
from harness.data.splits import parse_task, share_rows
from harness.errors import BadRecipe, MissingHead, MissingTeacher
from harness.evaluation.model import Model, experts_of, others_of
from harness.evaluation.records import CHOICE_SPLIT, Role
from harness.evaluation.run import Run
from harness.kinds import kind_of
from harness.options import resolve
from harness.passes.features import model_key
from harness.presets import as_read, faithful, preset
from harness.readout import LAST_LINEAR, Readout
from harness.registry import PROTOCOLS, EvaluationProtocol
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
    """A task of a run: its test rows, the pool that shots are drawn from, and the draws.

    `places` are the units of the pool's split that the pool holds; `left_out` are, for the seed of
    each draw, test rows that are not scored.
    """

    task: Task
    split: str
    test: Rows
    pool: Rows | None
    draws: tuple[Draw, ...]
    places: tuple[int, ...] = ()
    left_out: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def drawn(self) -> dict[str, list[list[int]]]:
        """For each seed, the units that the most shots took, by class, as units of the split."""
        most = max((draw.shots for draw in self.draws), default=0)
        return {
            str(draw.seed): [[self.places[row] for row in rows] for rows in draw.rows]
            for draw in self.draws
            if draw.shots == most
        }

    def scored(self, draw: Draw | None) -> npt.NDArray[np.bool_]:
        """Which test rows a prediction is scored on; one without a draw is of the first seed."""
        seed = draw.seed if draw else min(self.left_out, default=0)
        scored = np.ones(len(self.test), dtype=np.bool_)
        scored[[*self.left_out.get(seed, ())]] = False
        return scored

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
        """One hash for the weights of the system."""
        return joined(self.digests)

    @cached_property
    def content(self) -> str:
        """One hash for all that its outputs depend on, and for what each of them stands for."""
        parts = zip(self.members, self.digests, self.columns, strict=True)
        return joined([f"{model_key(one, digest)} {order}" for one, digest, order in parts])


def joined(parts: Sequence[str]) -> str:
    """One hash of several, whatever their order; of one, itself."""
    if len(parts) == 1:
        return parts[0]
    return weights.join_digests({str(i): part for i, part in enumerate(sorted(parts))})


def asked_protocols(run: Run) -> list[Asked]:
    """The protocols of a run, every one if it names none, with their options checked."""
    known = preset(run.preset).protocols or tuple(PROTOCOLS)
    asked = run.protocols or tuple(Choice(name) for name in known)
    if run.draws < 1 or not run.shots or min(run.shots) < 1:
        raise BadRecipe(
            f"shots {', '.join(map(str, run.shots)) or 'none'} with {run.draws} draws; "
            "expected at least one shot and one draw"
        )
    found = []
    for choice in asked:
        entry = PROTOCOLS[choice.name]
        options = resolve("protocol", faithful(choice, run.preset), entry.function)
        if entry.check is not None:
            entry.check(**options)
        found.append(Asked(entry, options))
    return found


def task_of(run: Run, name: str) -> tuple[Task, str]:
    """A task with the metrics and the columns that the run asks for, and the split."""
    task, split = parse_task(name)
    task = as_read(task, run.preset)
    metrics = run.metrics or preset(run.preset).metrics.get(task.name, ())
    if metrics:
        task = replace(task, metrics=tuple(metrics))
        check_metrics(task)
    return task, split


def part_of(run: Run, name: str, protocols: Sequence[Asked]) -> Part:
    """The rows of a task and the draws from its training split, if a protocol adapts to any."""
    task, split = task_of(run, name)
    known = preset(run.preset)
    test = load_rows(task, split, folder=run.data_dir, limit=run.limit)
    seeds = range(run.seed, run.seed + run.draws)
    out = left_out(test, known.test_batch, seeds) if known.test_batch else {}
    if not any(asked.adapts for asked in protocols):
        return Part(task, split, test, None, (), left_out=out)
    if share_rows(task, split, POOL_SPLIT):
        raise BadRecipe(
            f"shots are drawn from {task}@{POOL_SPLIT}; expected another split to score"
        )
    train = load_rows(task, POOL_SPLIT, folder=run.data_dir)
    pool, draws = draw(train, sorted(set(run.shots)), seeds, known.reserved)
    places = tuple(units_of(train, pool).tolist())
    return Part(task, split, test, take(train, pool), tuple(draws), places, out)


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
        order = kind_of(task).columns(task, member.labels, member.source, by_index=by_index)
        orders.append(tuple(order))
    return System(name, role, method or role, members, tuple(orders), head)


def experts_on(run: Run, model: Model, task: Task) -> list[System]:
    """The experts of a task and, if asked for, those of other tasks that have its labels."""
    found: list[tuple[Role, Checkpoint]] = [("expert", one) for one in experts_of(model, task)]
    if run.singles:
        found += [("single", one) for one in others_of(model, task)]
    called = dict(zip((one.source for one in model.experts), names_of(model), strict=True))
    return [system_of(task, run, role, called[one.source], (one,), "own") for role, one in found]


def names_of(model: Model) -> list[str]:
    """What tables call the experts: the last part of the path, more where that is not enough."""
    parts = [expert.source.rstrip("/").split("/") for expert in model.experts]
    for length in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if length == 1:
            names = [expert.name for expert in model.experts]
        if len({*names}) == len(names):
            return names
    return [expert.source for expert in model.experts]


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
        known = weights.union(_encoder(model.base), _fresh(merged, model.base, own), merged.weights)
        whole = weights.select(known, list(merged.weights))
        control = replace(merged, weights=whole, source=model.base.source)
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


def _encoder(base: Checkpoint) -> StateDict:
    is_head = family_of(base.config, base.source).is_head
    return weights.select(base.weights, [name for name in base.weights if not is_head(name)])


def _fresh(merged: Checkpoint, base: Checkpoint, experts: Sequence[System]) -> StateDict:
    """What the base is read under: the mean of its experts' tensors that no pretraining has seen.

    Those are the head, and the pooler of a base that was published without. Not the merge's own:
    one base is the control of every merge of the same experts.
    """
    is_head = family_of(merged.config, merged.source).is_head
    names = [n for n in merged.weights if is_head(n) or n not in base.weights]
    known = weights.specs(weights.select(merged.weights, names))
    states = [expert.members[0].weights for expert in experts]
    shapes = [{n: weights.specs(one)[n].shape for n in names if n in one} for one in states]
    if not states or any(found != {n: known[n].shape for n in names} for found in shapes):
        return {}
    parts = [weights.select(one, names) for one in states]
    return weights.cast_like(weights.mean(parts), merged.weights) if len(parts) > 1 else parts[0]


def teachers_of(system: System, experts: Sequence[System]) -> list[System]:
    """Whose outputs a tuned head is fitted to: those of the task's own experts.

    An expert teaches itself, and so does a reference that no expert stands beside.
    """
    own = _own(experts)
    alone = system.role == "expert" or (system.role == "reference" and not own)
    return [system] if alone else own


def warn_of_heads(model: Model, readout: Readout) -> None:
    """Warn of heads that are read on other features than they were trained on.

    A head of unknown origin is taken for one of transformers' own.
    """
    read = [*(model.experts or [model.checkpoint]), *(r.checkpoint for r in model.references)]
    made = [one for one in read if not merged_by(one.path)]
    trained = [(one.source, trained_by(one.path) or Trained()) for one in made]
    if other := [source for source, said in trained if said.readout != readout.name]:
        usual = readout == LAST_LINEAR
        warnings.warn(
            f"the head of {', '.join(other)} was trained on other features than the "
            f"'{readout.name}' that it is read on; {'give' if usual else 'leave out'} --preset "
            f"ft-classifier, or train it {'without' if usual else 'with'} the preset",
            stacklevel=3,
        )


def check_singles(model: Model, tasks: Sequence[Task]) -> None:
    """Raise BadRecipe where no expert can be read on a task of another."""
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


Work: TypeAlias = tuple[Part, System, Sequence[System]]
"""A system on a task, with its teachers."""


def applicable(run: Run, protocols: Sequence[Asked], work: Sequence[Work]) -> list[list[Asked]]:
    """The protocols of each piece of work: no features, nothing adapts; no teacher, none teaches.

    Raises MissingTeacher where one that somebody asked for cannot be had; warns where only some
    tasks go without.
    """
    untaught = {part.task.name: part for part, _, teachers in work if not teachers}
    teaching = [asked for asked in protocols if asked.protocol.adapts == "unlabeled"]
    if untaught and teaching and run.protocols:
        raise MissingTeacher(
            f"protocol '{teaching[0].protocol.name}' needs an expert of task "
            f"'{next(iter(untaught))}' as teacher; name it with --experts"
        )
    if untaught and teaching and any(teachers for _, _, teachers in work):
        warnings.warn(
            f"no expert of {', '.join(untaught)} is known, so nothing is read there by "
            f"{', '.join(asked.protocol.name for asked in teaching)}; name it with --experts",
            stacklevel=2,
        )
    return [
        [
            asked
            for asked in protocols
            if not (asked.adapts and system.role == "ensemble")
            and not (asked in teaching and not teachers)
        ]
        for _, system, teachers in work
    ]
