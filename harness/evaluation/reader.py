"""The input of protocols, `Encoded`: features of a model on a task, encoded once, on demand."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace

import numpy as np

from harness.evaluation.cells import Cell
from harness.evaluation.evaluated import EvaluatedModel
from harness.kinds import kind_of
from harness.passes.features import Seen, dropout_features, encode, final_head
from harness.passes.workload import Workload
from harness.presets import kind_under_preset
from harness.readout import Readout
from harness.types import (
    ALL,
    AUTO,
    TRAINED_ON,
    Draw,
    DropoutFeatures,
    Encoded,
    Features,
    Head,
    Rows,
    Teacher,
)
from harness.weights import once


class Reader:
    """Encodes rows for all cells of one model on one task; each set of rows is encoded once.

    `beside` are the readouts of all these cells: the features of those that share a forward pass
    are cached together.
    """

    def __init__(self, workload: Workload, beside: Sequence[Readout] = ()) -> None:
        self._workload, self._beside = workload, beside
        self._known: dict[tuple[int, str, str], list[Features]] = {}
        self._again: dict[tuple[str, str], Callable[[], DropoutFeatures]] = {}

    def encoded(self, cell: Cell) -> Encoded:
        """The input of a cell's protocol. Raises NotFinite for outputs that are NaN or infinite."""
        data, model = cell.data, cell.evaluated
        task, kind = data.task, kind_under_preset(data.task, cell.run.preset)
        classes = kind.output_count(task)
        parts = [self.member_features(model, cell, rows, data.name) for rows in cell.test_inputs]
        members = [_beside(features) for features in zip(*parts, strict=True)]
        if len(members) > 1:
            empty = Head(np.empty((0, 0), dtype=np.float32), np.empty(0, dtype=np.float32))
            return Encoded(task.name, kind, classes, _ensemble(members), empty, None, (), None)
        head, outside = final_head(model.members[0], model.columns[0]), kind.outside(task)
        plain = Encoded(task.name, kind, classes, members[0], head, None, (), None, outside=outside)
        if cell.protocol.transductive:
            rows, label, draws = data.test, data.name, _every(cell)
        elif (shots := cell.pool) is not None:
            rows, label, draws = shots.rows, f"{task.name}@{TRAINED_ON} shots", shots.draws
        else:
            return plain
        pool, *taught = (
            self.member_features(evaluated, cell, rows, label)[0]
            for evaluated in cell.with_teachers
        )
        key = (cell.readout.name, rows.digest)
        again = self._again.setdefault(key, once(lambda: _dropping(cell, rows)))
        pairs = [(teacher.members[0], teacher.columns[0]) for teacher in cell.teachers]
        heads = [head for pair in pairs if (head := final_head(*pair)) is not None]
        adapting = _adapting(plain, pool, draws, [*zip(taught, heads, strict=True)])
        return replace(adapting, with_dropout=lambda units, seed: again()(units, seed))

    def member_features(
        self, model: EvaluatedModel, cell: Cell, rows: Rows, what: str
    ) -> list[Features]:
        """The features of rows by every member of a model, encoded if they are not yet."""
        readout, workload, label = cell.readout_of(model), self._workload, f"{model.name} · {what}"
        key = (id(model), readout.name, rows.digest)
        if key not in self._known:
            for digest in model.digests:
                workload.plan(_pass(cell, model, digest, rows), len(rows))
            self._known[key] = [
                encode(
                    member,
                    rows,
                    digest=digest,
                    columns=order,
                    max_length=cell.data.max_length,
                    readout=readout,
                    beside=self._beside,
                    batch_size=None if cell.run.batch_size == AUTO else cell.run.batch_size,
                    placement=cell.run.placement,
                    progress=workload.steps(label, _pass(cell, model, digest, rows)),
                )
                for member, digest, order in zip(
                    model.members, model.digests, model.columns, strict=True
                )
            ]
        return self._known[key]


def plan(cell: Cell, workload: Workload) -> None:
    """Add the forward passes that a cell needs to the workload."""
    passes = [(cell.evaluated, rows) for rows in cell.test_inputs]
    if cell.protocol.transductive:
        passes += [(teacher, cell.data.test) for teacher in cell.teachers]
    elif cell.pool is not None:
        passes += [(model, cell.pool.rows) for model in cell.with_teachers]
    for model, rows in passes:
        for digest in model.digests:
            workload.plan(_pass(cell, model, digest, rows), len(rows))


def _pass(cell: Cell, model: EvaluatedModel, digest: str, rows: Rows) -> Hashable:
    """A key of one forward pass."""
    return digest, rows.digest, cell.readout_of(model).pass_key


def _beside(parts: Sequence[Features]) -> Features:
    """The features of the texts of each row, joined: those of the first, then of the second."""
    if len(parts) == 1:
        return parts[0]
    return replace(parts[0], x=np.concatenate([part.x for part in parts], axis=1))


def _every(cell: Cell) -> tuple[Draw, ...]:
    """All test rows as one draw, in a single group."""
    kind, rows = kind_of(cell.data.task), cell.data.test
    units = tuple(range(int(kind.unit_counts(rows).sum())))
    examples = tuple(tuple(example) for example in kind.examples_containing(rows, units))
    return (Draw(ALL, cell.run.seed, (units,), examples),)


def _dropping(cell: Cell, rows: Rows) -> DropoutFeatures:
    """A function that encodes units with dropout on. It holds the model in memory."""
    model, length, placement = cell.evaluated.members[0], cell.data.max_length, cell.run.placement
    return dropout_features(
        model, rows, max_length=length, readout=cell.readout, placement=placement
    )


def _ensemble(parts: Sequence[Features]) -> Features:
    """The mean of the members' logits; an ensemble has no features."""
    logits = np.mean([features.logits for features in parts], axis=0)
    none = np.empty((len(logits), 0), dtype=np.float32)
    return Features(none, logits, parts[0].labels, _seen(parts))


def _adapting(
    plain: Encoded, pool: Features, draws: Sequence[Draw], taught: Sequence[tuple[Features, Head]]
) -> Encoded:
    """`plain` with pool, teachers and draws, these without units that some model did not see."""
    if (seen := _seen([pool, *(features for features, _ in taught)])) is not None:
        gone = {int(unit) for unit in np.flatnonzero(~seen)}
        draws = [_without(draw, gone) for draw in draws]
    # not the float32 logits: Adam scales any gradient up to a full step, so a student that equals
    # its teacher must see a difference of exactly zero, not of rounding
    outputs = [head.outputs(features.x) for features, head in taught]
    return replace(
        plain,
        pool=pool,
        draws=tuple(draws),
        teacher=plain.kind.target(outputs) if taught else None,
        teachers=tuple(Teacher(features.x, head) for features, head in taught),
    )


def _seen(parts: Sequence[Features]) -> Seen | None:
    """Which units all of several models saw; None if each saw all units."""
    masks = [features.seen for features in parts if features.seen is not None]
    return np.all(masks, axis=0) if masks else None


def _without(draw: Draw, gone: Collection[int]) -> Draw:
    """A draw without some units."""

    def kept(parts: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(unit for unit in part if unit not in gone) for part in parts)

    examples = tuple(example for example in kept(draw.examples) if example)
    return replace(draw, rows=kept(draw.rows), examples=examples)
