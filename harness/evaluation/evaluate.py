"""The pipeline of an evaluation: check everything, encode once, read, score, record."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.checkpoints.build import check_ready
from harness.checkpoints.families.known import by_rules
from harness.data.metrics import finished, score
from harness.data.sources import origin
from harness.data.splits import parse_task
from harness.errors import (
    BadOption,
    BrokenRecord,
    CellsFailed,
    HarnessError,
    MissingHead,
    NotFinite,
)
from harness.evaluation.entries import (
    POOL_SPLIT,
    Asked,
    Part,
    System,
    Work,
    applicable,
    asked_protocols,
    candidates,
    check_singles,
    choosing,
    experts_on,
    joined,
    part_of,
    systems_of,
    teachers_of,
    warn_of_heads,
)
from harness.evaluation.model import Model, resolve_model
from harness.evaluation.records import (
    Adaptation,
    DrawScore,
    Record,
    identity,
    read_record,
    record_path,
    write_record,
)
from harness.evaluation.run import Run
from harness.files import check_place
from harness.kinds import kind_of
from harness.options import resolve
from harness.passes.features import Seen, check_readout, dropping, encode, final_head
from harness.presets import preset
from harness.registry import EvaluationProtocol
from harness.types import (
    Again,
    Array64,
    Choice,
    Draw,
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
    same inputs is read back and not computed again. Raises CellsFailed, when all others are done
    and saved, for cells that cannot be scored.
    """
    check_place(Path(run.output).absolute())
    _check_device(run.device)
    protocols = asked_protocols(run)
    model = resolve_model(run)
    if run.singles:
        check_singles(model, [parse_task(name)[0] for name in model.tasks])
    parts = [part_of(run, name, protocols) for name in model.tasks]
    readers = [(part, experts_on(run, model, part.task)) for part in parts]
    work: list[Work] = [
        (part, system, teachers_of(system, experts))
        for part, experts in readers
        for system in systems_of(run, model, part, experts)
    ]
    asked = list(zip(work, applicable(run, protocols, work), strict=True))
    if run.best_single:
        chosen = candidates(run, readers)
        asked += [((part, system, [system]), [choosing()]) for part, system in chosen]
    readout = preset(run.preset).readout
    for part, system, _ in work:
        for member in system.members:
            check_ready(member, unit=kind_of(part.task).unit)
            check_readout(member, readout, _max_length(run, part.task))
        _ = system.digests  # reads every weight once: NaN and Inf are found before any forward pass
    warn_of_heads(model, readout)
    records: list[Record] = []
    failures: list[str] = []
    for one, readings in asked:
        for outcome in _records(run, model, one, readings, progress):
            if isinstance(outcome, Record):
                records.append(outcome)
            else:
                failures.append(outcome)
    if failures:
        raise CellsFailed(failures, records)
    return records


def _check_device(name: str) -> None:
    try:
        torch.empty(0, device=None if name == "auto" else name)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BadOption(f"device is '{name}', which torch cannot use here: {reason}") from error


# Reading -----------------------------------------------------------------------------------


def _records(
    run: Run, model: Model, work: Work, protocols: Sequence[Asked], progress: Progress | None
) -> Iterator[Record | str]:
    """The record of each protocol, read back or made; or why a cell could not be scored."""
    part, system, _ = work
    encoder = Reader(run, work, progress)
    for asked in protocols:
        entry, options = asked.protocol, asked.options
        values = _description(run, model, work, asked)
        path = record_path(Path(run.output), values, _unusual(run, entry, options))
        if path.is_file():
            yield _kept(path, values)
            continue
        try:
            encoded = encoder.encoded(entry)
            predictions = _finished(part, encoded, entry.function(encoded, **options))
            scores = _scores(part, predictions)
        except HarnessError as error:  # what only the forward pass shows of a model and these rows
            yield f"{system.name} on {part.name} under {entry.name}: {error}"
            continue
        record = Record(**values, scores=scores, unseen=_unseen(encoded))
        write_record(path, record, part.test.labels, predictions)
        yield record


def _kept(path: Path, values: Mapping[str, Any]) -> Record:
    """A record that was made before. Raises BrokenRecord if it is not what its name says."""
    kept = read_record(path)
    if identity(kept.model_dump(mode="json")) != identity(values):
        raise BrokenRecord(
            f"{path} is not the record that its name says; expected it unchanged: take it away"
        )
    return kept


def _finished(part: Part, encoded: Encoded, found: Sequence[Predictions]) -> list[Predictions]:
    """Predictions of all units, also of those that the model did not see."""
    seen = encoded.test.seen
    return [Predictions(finished(part.task, one.values, seen), one.draw) for one in found]


def _unseen(encoded: Encoded) -> int:
    """How many units the model did not see."""
    return 0 if encoded.test.seen is None else int((~encoded.test.seen).sum())


def _scores(part: Part, found: Sequence[Predictions]) -> tuple[DrawScore, ...]:
    scores = []
    for prediction in found:
        if not np.isfinite(prediction.values).all():
            raise NotFinite("predictions are NaN or infinite, expected finite ones")
        units = kind_of(part.task).units(part.test)
        drawn = prediction.draw
        rows = part.scored(drawn)
        scored = np.repeat(rows, units)
        one = score(part.task, prediction.values[scored], part.test.labels[scored], units[rows])
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
    settings = ["labels", "limit", "max_length", "metrics", "preset"]
    if entry.adapts != "nothing":
        settings += ["draws", "seed", "shots"]
    for key in settings:
        value = getattr(run, key)
        if value != getattr(DEFAULTS, key):
            found[key] = "-".join(map(str, value)) if isinstance(value, tuple) else value
    return found


@cache
def _versions() -> dict[str, str]:
    names = ("merging-harness", "torch", "transformers", "numpy", "faiss", "scikit-learn")
    return {name: _version(name) for name in names}


def _version(name: str) -> str:
    """The version of a distribution, or of the module of that name, whoever distributes it."""
    try:
        return version(name)
    except PackageNotFoundError:
        return str(getattr(importlib.import_module(name), "__version__", "unknown"))


def _max_length(run: Run, task: Task) -> int:
    return run.max_length or task.finetune.max_length


def _description(run: Run, model: Model, work: Work, asked: Asked) -> dict[str, Any]:
    """All of a record but the scores: known before anything is encoded."""
    part, system, teachers = work
    entry = asked.protocol
    settings: dict[str, Any] = {
        "features": preset(run.preset).readout.name,
        "max_length": _max_length(run, part.task),
        "limit": run.limit,
        **by_rules(system.members[0].config),
    }
    if part.left_out:
        seeds = sorted(part.left_out)[: None if asked.adapts else 1]
        settings["left_out"] = {str(seed): list(part.left_out[seed]) for seed in seeds}
    adaptation = None
    if asked.adapts and part.pool is not None:
        settings |= {"shots": sorted(set(run.shots)), "draws": run.draws, "seed": run.seed}
        settings |= {"pool": part.pool.digest}
        read = entry.adapts == "labeled"
        adaptation = Adaptation(
            split=f"{part.task.name}@{POOL_SPLIT}",
            rows=len(part.pool),
            drawn=part.drawn,
            labels="chose the rows and were read" if read else "chose the rows",
        ).model_dump(mode="json")
    taught = teachers if entry.adapts == "unlabeled" else ()
    merged = system.role == "merged"
    return {
        "model": system.name,
        "role": system.role,
        "method": system.method,
        "digest": system.digest,
        "content": joined([system.content, *(teacher.content for teacher in taught)]),
        "task": part.name,
        "protocol": entry.name,
        "options": dict(asked.options),
        "settings": settings,
        "metrics": list(part.task.metrics),
        "rows": len(part.test),
        "adaptation": adaptation,
        "dataset": {"digest": part.test.digest, **origin(part.task, run.data_dir)},
        "head": system.head,
        "labels": run.labels,
        "preset": run.preset,
        "base": {"source": model.base.source, "digest": model.base_digest}
        if merged and model.base is not None
        else None,
        "experts": [
            {"source": expert.source, "digest": digest}
            for expert, digest in zip(model.experts, model.expert_digests, strict=True)
        ]
        if merged
        else [],
        "teachers": [teacher.digest for teacher in taught],
        "versions": dict(_versions()),
    }


class Reader:
    """What protocols may read of a system on a task; each set of rows is encoded when it is asked
    for, and once."""

    def __init__(self, run: Run, work: Work, progress: Progress | None) -> None:
        self._run, self._progress = run, progress
        self._part, self._system, self._teachers = work

    def encoded(self, protocol: EvaluationProtocol) -> Encoded:
        """What a protocol reads. Raises NotFinite for outputs that mean nothing."""
        task, part = self._part.task, self._part
        kind = kind_of(task)
        classes = kind.outputs(task)
        if len(self._system.members) > 1:
            empty = Head(np.empty((0, 0), dtype=np.float32), np.empty(0, dtype=np.float32))
            return Encoded(task.name, kind, classes, self._ensemble, empty, None, (), None)
        adapts = protocol.adapts != "nothing" and part.pool is not None
        return Encoded(
            task=task.name,
            kind=kind,
            classes=classes,
            test=self._test,
            head=final_head(self._system.members[0], self._system.columns[0]),
            pool=self._pool if adapts else None,
            draws=self._draws(protocol) if adapts else (),
            teacher=self._teacher if adapts and protocol.adapts == "unlabeled" else None,
            again=(lambda rows, seed: self._again(rows, seed)) if adapts else None,
        )

    def _draws(self, protocol: EvaluationProtocol) -> tuple[Draw, ...]:
        """The draws, without units that the model, or one that teaches, did not see."""
        read = [self._pool, *(self._lessons if protocol.adapts == "unlabeled" else [])]
        seen = _seen(read)
        if seen is None:
            return self._part.draws
        gone = {int(unit) for unit in np.flatnonzero(~seen)}
        return tuple(_without(draw, gone) for draw in self._part.draws)

    @cached_property
    def _ensemble(self) -> Features:
        """The mean of the members' logits; an ensemble has no features."""
        read = self._through(self._system, self._part.test, self._part.name)
        logits = np.mean([features.logits for features in read], axis=0)
        none = np.empty((len(logits), 0), dtype=np.float32)
        return Features(none, logits, self._part.test.labels, _seen(read))

    @cached_property
    def _test(self) -> Features:
        return self._through(self._system, self._part.test, self._part.name)[0]

    @cached_property
    def _pool(self) -> Features:
        return self._on_pool(self._system)

    @cached_property
    def _lessons(self) -> list[Features]:
        """The pool through every teacher."""
        return [self._on_pool(one) for one in self._teachers]

    @cached_property
    def _teacher(self) -> Array64:
        """What the teachers say of the pool."""
        heads = [final_head(one.members[0], one.columns[0]) for one in self._teachers]
        pairs = zip(self._lessons, heads, strict=True)
        return kind_of(self._part.task).taught([_outputs(read, head) for read, head in pairs])

    @cached_property
    def _again(self) -> Again:
        """The model alone in memory: made when a protocol first asks for it."""
        assert self._part.pool is not None
        return dropping(
            self._system.members[0],
            self._part.pool,
            max_length=_max_length(self._run, self._part.task),
            readout=preset(self._run.preset).readout,
            device=self._run.device,
        )

    def _on_pool(self, system: System) -> Features:
        assert self._part.pool is not None
        what = f"{self._part.task.name}@{POOL_SPLIT} shots"
        return self._through(system, self._part.pool, what)[0]

    def _through(self, system: System, rows: Rows, what: str) -> list[Features]:
        """The rows through every member."""
        run, tell = self._run, self._progress
        total = len(rows) * len(system.members)
        step = (lambda done: tell(f"{system.name} · {what}", done, total)) if tell else None
        return [
            encode(
                member,
                rows,
                digest=digest,
                columns=order,
                max_length=_max_length(run, self._part.task),
                readout=preset(run.preset).readout,
                batch_size=run.batch_size,
                device=run.device,
                progress=step,
            )
            for member, digest, order in zip(
                system.members, system.digests, system.columns, strict=True
            )
        ]


def _outputs(features: Features, head: Head | None) -> Array64:
    """A model's outputs in float64, from its features.

    Not the float32 logits: Adam scales any gradient up to a full step, so a student that equals
    its teacher must see a difference of exactly zero, not of rounding.
    """
    if head is None:
        raise MissingHead("an expert has no final linear layer to teach with")
    weight, bias = head.weight.astype(np.float64), head.bias.astype(np.float64)
    return np.asarray(features.x.astype(np.float64) @ weight.T + bias)


def _seen(read: Sequence[Features]) -> Seen | None:
    """Which units every one of several models saw; None for all."""
    seen = [features.seen for features in read if features.seen is not None]
    return np.all(seen, axis=0) if seen else None


def _without(draw: Draw, gone: Collection[int]) -> Draw:
    """A draw without some units."""

    def left(parts: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(unit for unit in part if unit not in gone) for part in parts)

    examples = tuple(example for example in left(draw.examples) if example)
    return replace(draw, rows=left(draw.rows), examples=examples)
