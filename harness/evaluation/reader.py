"""What protocols may read of a model on a task, encoded when it is asked for, and once."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from harness.errors import MissingHead
from harness.evaluation.cells import Cell
from harness.evaluation.evaluated import EvaluatedModel
from harness.evaluation.task_split import ProtocolConfig
from harness.kinds import kind_of
from harness.passes.features import Seen, dropping, encode, final_head
from harness.passes.workload import Workload
from harness.presets import read_as
from harness.readout import Readout
from harness.types import (
    ALL,
    TRAINED_ON,
    Again,
    Array64,
    Draw,
    Encoded,
    Features,
    Head,
    Rows,
    Teacher,
)


class Reader:
    """What protocols may read of the model of a cell; every set of rows is encoded once.

    All cells of a model on the same rows, and with the same readout, are read by one. What
    readouts `beside` are to read of these rows is kept from the same pass, where that shows it.
    """

    def __init__(self, cell: Cell, workload: Workload, beside: Sequence[Readout] = ()) -> None:
        self.cell, self._workload, self._beside = cell, workload, beside
        self._data, self._evaluated, self._teachers = cell.data, cell.evaluated, cell.teachers
        self._tested = _Pool(self, self._data.test, self._data.name)
        self._pools: dict[int, _Pool] = {}

    def encoded(self, protocol: ProtocolConfig) -> Encoded:
        """What a protocol reads. Raises NotFinite for outputs that mean nothing."""
        task, data = self._data.task, self._data
        kind = read_as(task, self.cell.run.preset)
        classes = kind.outputs(task)
        if len(self._evaluated.members) > 1:
            empty = Head(np.empty((0, 0), dtype=np.float32), np.empty(0, dtype=np.float32))
            return Encoded(task.name, kind, classes, self._ensemble, empty, None, (), None)
        head = final_head(self._evaluated.members[0], self._evaluated.columns[0])
        test = self._tested.features
        plain = Encoded(
            task.name, kind, classes, test, head, None, (), None, outside=kind.outside(task)
        )
        if protocol.transductive:
            pool, draws = self._tested, self._every
        elif (shots := data.pool_for(protocol)) is not None:
            new = _Pool(self, shots.rows, f"{task.name}@{TRAINED_ON} shots")
            pool, draws = self._pools.setdefault(protocol.outside, new), shots.draws
        else:
            return plain
        taught = pool.lessons if protocol.teaches else ()
        adapting = _adapting(plain, pool.features, draws, taught)
        return replace(adapting, again=lambda units, seed: pool.again(units, seed))

    def plan(self, protocol: ProtocolConfig) -> None:
        """Count the passes that a protocol needs."""
        for model, rows in self._passes(protocol):
            for digest in model.digests:
                self._workload.plan(self._pass(digest, rows), len(rows))

    def _pass(self, digest: str, rows: Rows) -> Hashable:
        """What one forward pass is told apart by."""
        return digest, rows.digest, self.cell.readout.way

    def _passes(self, protocol: ProtocolConfig) -> Iterator[tuple[EvaluatedModel, Rows]]:
        data, teachers = self._data, self._teachers if protocol.teaches else ()
        yield self._evaluated, data.test
        if protocol.transductive:
            yield from ((teacher, data.test) for teacher in teachers)
        elif (pool := data.pool_for(protocol)) is not None:
            yield from ((model, pool.rows) for model in (self._evaluated, *teachers))

    @property
    def _every(self) -> tuple[Draw, ...]:
        """All test rows as one draw, of no group."""
        kind, rows = kind_of(self._data.task), self._data.test
        units = tuple(range(int(kind.units(rows).sum())))
        examples = tuple(tuple(one) for one in kind.around(rows, units))
        return (Draw(ALL, self.cell.run.seed, (units,), examples),)

    @cached_property
    def _ensemble(self) -> Features:
        """The mean of the members' logits; an ensemble has no features."""
        read = self.through(self._evaluated, self._data.test, self._data.name)
        logits = np.mean([features.logits for features in read], axis=0)
        none = np.empty((len(logits), 0), dtype=np.float32)
        return Features(none, logits, self._data.test.labels, _seen(read))

    def through(self, model: EvaluatedModel, rows: Rows, what: str) -> list[Features]:
        """Rows through every member of a model."""
        cell, called = self.cell, f"{model.name} · {what}"
        return [
            encode(
                member,
                rows,
                digest=digest,
                columns=order,
                max_length=cell.max_length,
                readout=cell.readout,
                beside=self._beside,
                batch_size=cell.run.batch_size,
                device=cell.run.device,
                progress=self._workload.steps(called, self._pass(digest, rows)),
            )
            for member, digest, order in zip(
                model.members, model.digests, model.columns, strict=True
            )
        ]


class _Pool:
    """Rows to adapt to, through the model and its teachers, each when it is protocol for."""

    def __init__(self, reader: Reader, rows: Rows, called: str) -> None:
        self._reader, self._rows, self._called = reader, rows, called

    @cached_property
    def features(self) -> Features:
        return self._of(self._reader.cell.evaluated)

    @cached_property
    def lessons(self) -> tuple[Lesson, ...]:
        """Through every teacher."""
        return tuple(_lesson(one, self._of(one)) for one in self._reader.cell.teachers)

    @cached_property
    def again(self) -> Again:
        """The model alone in memory: made when a protocol first asks for it."""
        cell = self._reader.cell
        return dropping(
            cell.evaluated.members[0],
            self._rows,
            max_length=cell.max_length,
            readout=cell.readout,
            device=cell.run.device,
        )

    def _of(self, model: EvaluatedModel) -> Features:
        return self._reader.through(model, self._rows, self._called)[0]


def _adapting(
    plain: Encoded, pool: Features, draws: Sequence[Draw], taught: Sequence[Lesson]
) -> Encoded:
    """With what is adapted to, without units that the model, or a teacher, did not see."""
    if (seen := _seen([pool, *(one.features for one in taught)])) is not None:
        gone = {int(unit) for unit in np.flatnonzero(~seen)}
        draws = [_without(draw, gone) for draw in draws]
    return replace(
        plain,
        pool=pool,
        draws=tuple(draws),
        teacher=plain.kind.taught([one.outputs for one in taught]) if taught else None,
        teachers=tuple(Teacher(one.features.x, one.head) for one in taught),
    )


@dataclass(frozen=True)
class Lesson:
    """Some rows through a model that teaches, and its head."""

    features: Features
    head: Head

    @cached_property
    def outputs(self) -> Array64:
        """The model's outputs in float64, from its features.

        Not the float32 logits: Adam scales any gradient up to a full step, so a student that equals
        its teacher must see a difference of exactly zero, not of rounding.
        """
        weight, bias = self.head.weight.astype(np.float64), self.head.bias.astype(np.float64)
        return np.asarray(self.features.x.astype(np.float64) @ weight.T + bias)


def _lesson(model: EvaluatedModel, features: Features) -> Lesson:
    head = final_head(model.members[0], model.columns[0])
    if head is None:
        raise MissingHead("an expert has no final linear layer to teach with")
    return Lesson(features, head)


def _seen(read: Sequence[Features]) -> Seen | None:
    """Which units every one of several models saw; None for all."""
    seen = [features.seen for features in read if features.seen is not None]
    return np.all(seen, axis=0) if seen else None


def _without(draw: Draw, gone: Collection[int]) -> Draw:
    """A draw without some units."""

    def left(parts: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(unit for unit in data if unit not in gone) for data in parts)

    examples = tuple(example for example in left(draw.examples) if example)
    return replace(draw, rows=left(draw.rows), examples=examples)
