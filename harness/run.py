"""The pipeline of an evaluation: check everything, encode once, read, score, record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import softmax

from harness.checkpoints import check_ready
from harness.data import origin, parse_task
from harness.encode import encode, final_head
from harness.errors import BadOption, MissingHead
from harness.files import check_place, write_json
from harness.metrics import score
from harness.models import Model, resolve_model
from harness.recipes import Run
from harness.records import (
    Adaptation,
    DrawScore,
    Record,
    Source,
    identity,
    read_record,
    record_path,
    write_record,
)
from harness.registry import EvaluationProtocol, resolve
from harness.systems import (
    POOL_SPLIT,
    Asked,
    Part,
    System,
    applicable,
    asked_protocols,
    candidates,
    check_singles,
    choosing,
    experts_on,
    part_of,
    systems_of,
    teachers_of,
)
from harness.types import (
    Array64,
    Choice,
    Encoded,
    Features,
    Head,
    Predictions,
    Progress,
    Rows,
    Scalar,
    Task,
)

DEFAULTS = Run(model="")


def evaluate(run: Run, *, progress: Progress | None = None) -> list[Record]:
    """Evaluate a model and its references; write a record each and return them all.

    Everything is checked before the first forward pass. What stands in the output folder with the
    same inputs is read back and not computed again.
    """
    check_place(Path(run.output).absolute())
    _check_device(run.device)
    protocols = asked_protocols(run)
    model = resolve_model(run)
    if run.singles:
        check_singles(model, [parse_task(name)[0] for name in model.tasks])
    parts = [part_of(run, name, protocols) for name in model.tasks]
    readers = [(part, experts_on(run, model, part.task)) for part in parts]
    work = [
        (part, system, teachers_of(system, experts))
        for part, experts in readers
        for system in systems_of(run, model, part, experts)
    ]
    chosen = applicable(run, protocols, work)
    asked = [(*found, chosen[found[1].role]) for found in work]
    if run.best_single:
        asked += [
            (part, system, [system], [choosing()]) for part, system in candidates(run, readers)
        ]
    for _, system, _ in work:
        for member in system.members:
            check_ready(member)
        _ = system.digests  # reads every weight once: NaN and Inf are found before any forward pass
    records: list[Record] = []
    for part, system, teachers, read in asked:
        records += list(_records(run, model, part, system, teachers, read, progress))
    return records


def _check_device(name: str) -> None:
    try:
        torch.empty(0, device=None if name == "auto" else name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadOption(f"device is '{name}', which torch cannot use here: {reason}") from error


# Reading -----------------------------------------------------------------------------------


def _records(
    run: Run,
    model: Model,
    part: Part,
    system: System,
    teachers: Sequence[System],
    protocols: Sequence[Asked],
    progress: Progress | None,
) -> Iterator[Record]:
    encoded: Encoded | None = None
    for asked in protocols:
        entry, options = asked.protocol, asked.options
        values = _description(run, model, part, system, teachers, entry, options)
        unusual = _unusual(run, entry, options)
        if system.role == "reference" and entry.adapts == "unlabeled" and teachers == [system]:
            unusual["teachers"] = "own"  # beside experts it is taught by them: another record
        path = record_path(
            Path(run.output),
            system.name,
            system.digest,
            part.name,
            entry.name,
            unusual,
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
    called = {key: values[key] for key in ("role", "method", "head", "base", "experts", "dataset")}
    if all(getattr(kept, key) == value for key, value in called.items()):
        return kept
    renamed = kept.model_copy(update=called)
    write_json(path, renamed.model_dump(mode="json"), indent=1, sort_keys=True)
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


@cache
def _versions() -> dict[str, str]:
    names = ("merging-harness", "torch", "transformers", "faiss-cpu", "scikit-learn")
    return {name: version(name) for name in names}


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
        "dataset": {"digest": part.test.digest, **origin(part.task, run.data_dir)},
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
        "versions": dict(_versions()),
    }


def _encoded(
    run: Run,
    part: Part,
    system: System,
    teachers: Sequence[System],
    protocols: Sequence[Asked],
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
    adapting = {asked.protocol.adapts for asked in protocols} - {"nothing"}
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
