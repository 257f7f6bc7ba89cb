"""The pipeline of an evaluation: resolve and check everything, encode once, read, score, record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import softmax

from harness import weights
from harness.checkpoints import check_place, check_ready
from harness.data import draw, load_rows, parse_task, take
from harness.encode import encode, final_head
from harness.errors import BadOption, BadRecipe, MissingHead, MissingTeacher
from harness.labels import columns
from harness.metrics import score
from harness.models import Model, experts_of, resolve_model
from harness.recipes import Run
from harness.records import (
    Adaptation,
    DrawScore,
    Record,
    Role,
    Source,
    identity,
    read_record,
    record_path,
    write_json,
    write_record,
)
from harness.registry import PROTOCOLS, EvaluationProtocol, resolve
from harness.types import (
    Array64,
    Checkpoint,
    Choice,
    Draw,
    Encoded,
    Features,
    Head,
    Predictions,
    Rows,
    Scalar,
    Task,
)

POOL_SPLIT = "train90"
DEFAULTS = Run(model="")

Progress = Callable[[str, int, int], None]
"""Called with what is being encoded, rows done since the last call and rows in all."""


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
        return tuple(content(member) for member in self.members)

    @property
    def digest(self) -> str:
        """One hash for the system."""
        if len(self.digests) == 1:
            return self.digests[0]
        return weights.join_digests({str(i): d for i, d in enumerate(sorted(self.digests))})


def content(checkpoint: Checkpoint) -> str:
    """The digest of a checkpoint's weights, every tensor checked for NaN and Inf on the way."""
    parts = {}
    for name in checkpoint.weights:
        tensor = checkpoint.weights[name]
        weights.check_finite(name, tensor, checkpoint.source)
        parts[name] = weights.tensor_digest(name, tensor)
    return weights.join_digests(parts)


def evaluate(run: Run, *, progress: Progress | None = None) -> list[Record]:
    """Evaluate a model and its references; write a record each and return them all.

    Everything is checked before the first forward pass. What stands in the output folder with the
    same inputs is read back and not computed again.
    """
    check_place(Path(run.output).absolute())
    _check_device(run.device)
    protocols = _protocols(run)
    model = resolve_model(run)
    parts = [_part(run, name, protocols) for name in model.tasks]
    records: list[Record] = []
    work = []
    for part in parts:
        teachers = [
            _system(part.task, run, "expert", expert.name, (expert,), "expert")
            for expert in experts_of(model, part.task)
        ]
        work += [(part, system, teachers) for system in _systems(run, model, part, teachers)]
    chosen = _applicable(run, protocols, work)
    for _, system, _ in work:
        for member in system.members:
            check_ready(member)
        _ = system.digests  # reads every weight once: NaN and Inf are found before any forward pass
    for part, system, teachers in work:
        records += list(_records(run, model, part, system, teachers, chosen[system.role], progress))
    return records


def _check_device(name: str) -> None:
    try:
        torch.empty(0, device=None if name == "auto" else name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadOption(f"device is '{name}', which torch cannot use here: {reason}") from error


# Resolving ---------------------------------------------------------------------------------


def _protocols(run: Run) -> list[tuple[EvaluationProtocol, dict[str, Scalar]]]:
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
        found.append((entry, options))
    return found


def _part(
    run: Run, name: str, protocols: Sequence[tuple[EvaluationProtocol, dict[str, Scalar]]]
) -> Part:
    task, split = parse_task(name)
    test = load_rows(task, split, folder=run.data_dir, limit=run.limit)
    if all(entry.adapts == "nothing" for entry, _ in protocols):
        return Part(task, split, test, None, ())
    if split in ("train", POOL_SPLIT):
        raise BadRecipe(
            f"shots are drawn from {task}@{POOL_SPLIT}; expected another split to score"
        )
    train = load_rows(task, POOL_SPLIT, folder=run.data_dir)
    seeds = range(run.seed, run.seed + run.draws)
    pool, draws = draw(train, sorted(set(run.shots)), seeds)
    return Part(task, split, test, take(train, pool), tuple(draws))


def _system(
    task: Task, run: Run, role: Role, name: str, members: tuple[Checkpoint, ...], head: str,
    method: str = "",
) -> System:  # fmt: skip
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


def _systems(run: Run, model: Model, part: Part, experts: Sequence[System]) -> Iterator[System]:
    """The model and its reference rows on one task."""
    task = part.task
    merged, head = model.on(task)
    yield _system(task, run, model.role, model.name, (merged,), head, model.method)
    if model.base is not None:
        base = weights.union(
            weights.select(
                merged.weights, [n for n in merged.weights if n not in model.base.weights]
            ),
            model.base.weights,
        )
        known = weights.select(base, list(merged.weights))
        control = replace(merged, weights=known, source=model.base.source)
        yield _system(task, run, "base", model.base.name, (control,), head)
    yield from experts
    if len(experts) > 1:
        members = tuple(expert.members[0] for expert in experts)
        yield _system(task, run, "ensemble", "ensemble", members, "expert")


def _applicable(
    run: Run,
    protocols: Sequence[tuple[EvaluationProtocol, dict[str, Scalar]]],
    work: Sequence[tuple[Part, System, Sequence[System]]],
) -> dict[Role, list[tuple[EvaluationProtocol, dict[str, Scalar]]]]:
    """The protocols of each role: an ensemble has no features, so nothing adapts to it."""
    adapting = [(entry, options) for entry, options in protocols if entry.adapts != "nothing"]
    untaught = [part.task.name for part, _, teachers in work if not teachers]
    taught = [p for p in protocols if not (untaught and p[0].adapts == "unlabeled")]
    if len(taught) < len(protocols) and run.protocols:
        lacking = next(entry.name for entry, _ in protocols if entry.adapts == "unlabeled")
        raise MissingTeacher(
            f"protocol '{lacking}' needs an expert of task '{untaught[0]}' as teacher; "
            "name it with --experts"
        )
    return {
        "merged": taught,
        "base": taught,
        "expert": taught,
        "ensemble": [p for p in taught if p not in adapting],
    }


# Reading -----------------------------------------------------------------------------------


def _records(
    run: Run,
    model: Model,
    part: Part,
    system: System,
    teachers: Sequence[System],
    protocols: Sequence[tuple[EvaluationProtocol, dict[str, Scalar]]],
    progress: Progress | None,
) -> Iterator[Record]:
    if system.role == "expert":
        teachers = [system]
    encoded: Encoded | None = None
    for entry, options in protocols:
        values = _description(run, model, part, system, teachers, entry, options)
        path = record_path(
            Path(run.output),
            system.name,
            system.digest,
            part.name,
            entry.name,
            _unusual(run, entry, options),
        )
        if path.is_file():
            kept = read_record(path)
            if identity(kept.model_dump(mode="json")) == identity(values):
                yield _named(kept, path, values)
                continue
        if encoded is None:
            encoded = _encoded(run, part, system, teachers, protocols, progress)
        found = list(entry.function(encoded, **options))
        record = Record(**values, scores=_scores(part, found))
        write_record(path, record, part.test.labels, found)
        yield record


def _named(kept: Record, path: Path, values: Mapping[str, Any]) -> Record:
    """A record made before, as what this run calls the model: its scores are the same."""
    called = {key: values[key] for key in ("role", "method", "head", "base", "experts")}
    if all(getattr(kept, key) == value for key, value in called.items()):
        return kept
    renamed = kept.model_copy(update=called)
    write_json(path, renamed)
    return renamed


def _scores(part: Part, found: Sequence[Predictions]) -> tuple[DrawScore, ...]:
    scores = []
    for prediction in found:
        one = score(part.task, prediction.values, part.test.labels)
        drawn = prediction.draw
        scores.append(
            DrawScore(
                value=one.value,
                parts=dict(one.parts),
                shots=drawn.shots if drawn else None,
                seed=drawn.seed if drawn else None,
            )
        )
    return tuple(scores)


def _unusual(
    run: Run, entry: EvaluationProtocol, options: Mapping[str, Scalar]
) -> dict[str, Scalar]:
    """What was asked beside the defaults, for the name of the record."""
    default = resolve("protocol", Choice(entry.name), entry.function)
    found = {key: value for key, value in options.items() if value != default[key]}
    settings = ["labels", "limit", "max_length"]
    if entry.adapts != "nothing":
        settings += ["draws", "seed", "shots"]
    for key in settings:
        value = getattr(run, key)
        if value != getattr(DEFAULTS, key):
            found[key] = "-".join(map(str, value)) if isinstance(value, tuple) else value
    return found


def _max_length(run: Run, task: Task) -> int:
    return run.max_length or task.finetune.max_length


def _description(
    run: Run,
    model: Model,
    part: Part,
    system: System,
    teachers: Sequence[System],
    entry: EvaluationProtocol,
    options: Mapping[str, Scalar],
) -> dict[str, Any]:
    """All of a record but the scores: known before anything is encoded."""
    adapts = entry.adapts != "nothing"
    settings: dict[str, Any] = {
        "features": "last_linear",
        "max_length": _max_length(run, part.task),
        "limit": run.limit,
    }
    adaptation = None
    if adapts and part.pool is not None:
        settings |= {"shots": sorted(set(run.shots)), "draws": run.draws, "seed": run.seed}
        settings |= {"pool": part.pool.digest}
        read = entry.adapts == "labeled"
        adaptation = Adaptation(
            split=f"{part.task.name}@{POOL_SPLIT}",
            rows=len(part.pool),
            labels="chose the rows and were read" if read else "chose the rows",
        )
    merged = system.role == "merged"
    return {
        "model": system.name,
        "role": system.role,
        "method": system.method,
        "digest": system.digest,
        "task": part.name,
        "protocol": entry.name,
        "options": dict(options),
        "settings": settings,
        "metrics": part.task.metrics,
        "rows": len(part.test),
        "adaptation": adaptation,
        "dataset": {
            "digest": part.test.digest,
            "source": part.task.source or "local",
            "revision": part.task.revision,
        },
        "head": system.head,
        "labels": run.labels,
        "base": Source(source=model.base.source, digest=model.base_digest)
        if merged and model.base is not None
        else None,
        "experts": tuple(
            Source(source=expert.source, digest=digest)
            for expert, digest in zip(model.experts, model.expert_digests, strict=True)
        )
        if merged
        else (),
        "teachers": tuple(t.digest for t in teachers) if entry.adapts == "unlabeled" else (),
        "versions": {
            name: version(name)
            for name in ("merging-harness", "torch", "transformers", "faiss-cpu", "scikit-learn")
        },
    }


def _encoded(
    run: Run,
    part: Part,
    system: System,
    teachers: Sequence[System],
    protocols: Sequence[tuple[EvaluationProtocol, dict[str, Scalar]]],
    progress: Progress | None,
) -> Encoded:
    def through(one: System, rows: Rows, what: str) -> list[Features]:
        total = len(rows) * len(one.members)
        step = (lambda done: progress(f"{one.name} · {what}", done, total)) if progress else None
        return [
            encode(
                member,
                rows,
                digest=digest,
                columns=order,
                max_length=_max_length(run, part.task),
                batch_size=run.batch_size,
                device=run.device,
                progress=step,
            )
            for member, digest, order in zip(one.members, one.digests, one.columns, strict=True)
        ]

    test = through(system, part.test, part.name)
    if len(test) > 1:
        logits = np.mean([features.logits for features in test], axis=0)
        empty = Features(np.empty((len(logits), 0), dtype=np.float32), logits, part.test.labels)
        head = Head(np.empty((0, 0), dtype=np.float32), np.empty(0, dtype=np.float32))
        kinds = part.task.kind, max(1, len(part.task.labels))
        return Encoded(part.task.name, *kinds, empty, head, None, (), None)
    adapting = {entry.adapts for entry, _ in protocols} - {"nothing"}
    pool = teacher = None
    pool_name = f"{part.task.name}@{POOL_SPLIT} shots"
    if adapting and part.pool is not None:
        pool = through(system, part.pool, pool_name)[0]
    if "unlabeled" in adapting and part.pool is not None:
        outputs = [
            _outputs(through(t, part.pool, pool_name)[0], final_head(t.members[0], t.columns[0]))
            for t in teachers
        ]
        teacher = teach(part.task, outputs)
    return Encoded(
        task=part.task.name,
        kind=part.task.kind,
        classes=max(1, len(part.task.labels)),
        test=test[0],
        head=final_head(system.members[0], system.columns[0]),
        pool=pool,
        draws=part.draws,
        teacher=teacher,
    )


def _outputs(features: Features, head: Head | None) -> Array64:
    """A model's outputs in float64, from its features.

    Not the float32 logits: Adam scales any gradient up to a full step, so a student that equals
    its teacher must see a difference of exactly zero, not of rounding.
    """
    if head is None:
        raise MissingHead("an expert has no final linear layer to teach with")
    weight, bias = head.weight.astype(np.float64), head.bias.astype(np.float64)
    return np.asarray(features.x.astype(np.float64) @ weight.T + bias)


def teach(task: Task, outputs: Sequence[Array64]) -> Array64:
    """What the experts' outputs [rows, classes] teach: mean probabilities, or mean values."""
    if task.kind == "regression":
        return np.asarray(np.mean(outputs, axis=0))
    return np.asarray(np.mean([softmax(one, axis=1) for one in outputs], axis=0))
