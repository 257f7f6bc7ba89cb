"""What protocols may read of a system on a task, encoded when it is asked for, and once."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from harness.entries import EvaluationProtocol
from harness.errors import (
    MissingHead,
)
from harness.evaluation.cells import Cell
from harness.evaluation.parts import POOL_SPLIT
from harness.evaluation.systems import System
from harness.evaluation.workload import Workload
from harness.kinds import kind_of
from harness.passes.features import Seen, dropping, encode, final_head
from harness.types import (
    Again,
    Array64,
    Draw,
    Encoded,
    Features,
    Head,
    Rows,
)


class Reader:
    """What protocols may read of the system of a cell; every set of rows is encoded once.

    All cells of a system on the same rows are read by one.
    """

    def __init__(self, cell: Cell, workload: Workload) -> None:
        self._cell, self._workload = cell, workload
        self._part, self._system, self._teachers = cell.part, cell.system, cell.teachers

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

    def plan(self, protocol: EvaluationProtocol) -> None:
        """Count the passes that a protocol needs."""
        for system, rows in self._passes(protocol):
            self._workload.plan(system, rows)

    def _passes(self, protocol: EvaluationProtocol) -> Iterator[tuple[System, Rows]]:
        part = self._part
        yield self._system, part.test
        if protocol.adapts != "nothing" and part.pool is not None:
            teachers = self._teachers if protocol.adapts == "unlabeled" else ()
            yield from ((system, part.pool) for system in (self._system, *teachers))

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
            max_length=self._cell.max_length,
            readout=self._cell.readout,
            device=self._cell.run.device,
        )

    def _on_pool(self, system: System) -> Features:
        assert self._part.pool is not None
        what = f"{self._part.task.name}@{POOL_SPLIT} shots"
        return self._through(system, self._part.pool, what)[0]

    def _through(self, system: System, rows: Rows, what: str) -> list[Features]:
        """The rows through every member."""
        cell, called = self._cell, f"{system.name} · {what}"
        return [
            encode(
                member,
                rows,
                digest=digest,
                columns=order,
                max_length=cell.max_length,
                readout=cell.readout,
                batch_size=cell.run.batch_size,
                device=cell.run.device,
                progress=self._workload.steps(called, digest, rows),
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
