"""The pipeline of an evaluation: resolve, check, then read the record of each cell or make it."""

from __future__ import annotations

import warnings
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from harness.checkpoints.build import check_ready
from harness.checkpoints.processor import check_inputs, pillow
from harness.data.apart import check_apart
from harness.data.metrics import finished
from harness.data.splits import parse_task
from harness.errors import (
    BadRecipe,
    BrokenPlugin,
    BrokenRecord,
    CellsFailed,
    HarnessError,
    NotFinite,
    WrongPredictions,
)
from harness.evaluation.bootstrap import intervals, kept_loss, kept_resamples
from harness.evaluation.cells import Cell, cells_of
from harness.evaluation.evaluated import warn_of_heads
from harness.evaluation.predictions import (
    Predicted,
    mismatch_with_record,
    read_predictions,
    write_predictions,
)
from harness.evaluation.reader import Reader, plan
from harness.evaluation.records import IMAGE_LIBRARY, DrawScore, Record, read_record, write_record
from harness.evaluation.resamples import LOSS, Resamples, estimates_of
from harness.evaluation.resolve import resolve_model
from harness.evaluation.run import Run
from harness.evaluation.task_split import ProtocolConfig, TaskSplit, protocols_of
from harness.files import check_below, check_place, version
from harness.functions import is_ours
from harness.kinds import kind_of
from harness.passes.features import check_readout
from harness.passes.placement import check_placement
from harness.passes.workload import Workload
from harness.plugins import calling
from harness.presets import preset
from harness.text import counted, few
from harness.types import Draw, Encoded, Predictions, Progress, Task


def evaluate(run: Run, *, progress: Progress | None = None) -> list[Record]:
    """The records of a model and its references, one for each cell, which are written as well.

    Everything is checked before the first forward pass. Records in the output folder with the same
    inputs are read, not computed again; missing predictions beside such a record are computed, and
    the record stays as it is. Raises CellsFailed for cells that cannot be scored, after all others
    are done and saved.
    """
    if not isinstance(run, Run):
        raise BadRecipe(f"a run is {run!r:.80}, expected harness.Run(model=...)")
    check_place(Path(run.output).absolute())
    check_placement(run.placement)
    protocols = protocols_of(run)
    model = resolve_model(run)
    if run.singles and not any(model.others_of(parse_task(name)[0]) for name in model.tasks):
        raise BadRecipe("no expert of another task has the same labels; leave out --singles")
    cells = cells_of(run, model, protocols)
    check_below(Path(run.output), [cell.path for cell in cells])
    # the path of a record has its identity: this hashes all weights, and finds NaN and infinity
    existing = {
        cell.path: record for cell in cells if (record := existing_record(cell)) is not None
    }
    lacking = {path for path, record in existing.items() if not _has_predictions(path, record)}
    to_read = [cell for cell in cells if cell.path not in existing or cell.path in lacking]
    for task in {cell.data.task.name: cell.data.task for cell in to_read}.values():
        check_apart(task, run.data_dir)
    check_cells(to_read)
    warn_of_heads(model, preset(run.preset).readout)
    records: list[Record] = []
    failures: dict[str, list[str]] = {}
    lost: list[str] = []
    workload = Workload(progress)
    for cell in to_read:
        plan(cell, workload)
    for cell, reader in _with_readers(cells, workload, existing.keys() - lacking):
        record = existing.get(cell.path) or existing_record(cell)
        if record is None or cell.path in lacking:
            try:
                new_record, predicted = evaluate_cell(cell, reader, record)
            except HarnessError as error:  # only the forward pass shows it
                if record:
                    lost.append(f"{cell}: {error}")
                else:  # one broken row fails all models and protocols
                    failures.setdefault(str(error), []).append(str(cell))
            else:
                write_predictions(cell.path.with_suffix(".parquet"), predicted)
                if record is None:
                    write_record(cell.path, new_record)
                record = new_record
        if record is not None:
            records.append(record)
    _warn_of_few_rows(records)
    _warn_of_no_expert(cells, protocols)
    _warn_of_lost(lost)
    if failures:
        reasons = [f"{few(cells)}: {reason}" for reason, cells in failures.items()]
        raise CellsFailed(reasons, records)
    return records


def _warn_of_few_rows(records: Sequence[Record]) -> None:
    """Warn, once for each protocol, of maps fitted to fewer rows than features have dimensions."""
    fits = [
        (record.protocol, share, record.task)
        for record in records
        for score in record.scores
        if (share := score.facts.get("rows_per_dimension", 1.0)) < 1
    ]
    for protocol in dict.fromkeys(name for name, *_ in fits):
        _, share, task = min(fit for fit in fits if fit[0] == protocol)
        warnings.warn(
            f"{protocol} was fitted to fewer rows than features have dimensions, as on {task} to "
            f"{share:.2f} rows per dimension, so part of the map may be chance; give more --shots",
            stacklevel=3,
        )


def _warn_of_no_expert(cells: Sequence[Cell], protocols: Sequence[ProtocolConfig]) -> None:
    """Warn of protocols on by default that are left out because no expert is known."""
    teaching = [protocol.name for protocol in protocols if protocol.needs_teacher]
    alone = all(
        cell.evaluated.pooling is None and not cell.protocol.needs_teacher for cell in cells
    )
    if teaching and alone:
        tasks = ", ".join(dict.fromkeys(cell.data.task.name for cell in cells))
        warnings.warn(
            f"no expert of {tasks} is known, so nothing is evaluated under {', '.join(teaching)}; "
            "name one with --experts",
            stacklevel=3,
        )


def _warn_of_lost(lost: Sequence[str]) -> None:
    """Warn of cells with a record whose missing predictions could not be made; `lost` says why."""
    if lost:
        others = f", and {len(lost) - 1} more" if lost[1:] else ""
        warnings.warn(
            f"predictions of a record could not be made again ({lost[0]}{others}); the record is "
            "kept: to compare models on this machine, evaluate into another --output-path",
            stacklevel=3,
        )


def check_cells(cells: Iterable[Cell]) -> None:
    """Raise BrokenCheckpoint, before any forward pass, for a model that could not be run."""
    checked = set()
    for cell in cells:
        for model, member in (
            (evaluated, member) for evaluated in cell.with_teachers for member in evaluated.members
        ):
            readout = cell.readout_of(model)
            key = (id(member), cell.data.name, readout.name)
            if key not in checked:
                checked.add(key)
                check_inputs(member, cell.data.task)
                check_ready(member, unit=kind_of(cell.data.task).unit)
                check_readout(member, readout, cell.data.max_length)


def _with_readers(
    cells: Sequence[Cell], workload: Workload, recorded: Container[Path]
) -> Iterator[tuple[Cell, Reader]]:
    """Every cell with its `Reader`, which all cells of one model on the same rows share.

    A reader is told the readouts of all its cells, except those whose paths are in `recorded`.
    """
    for _, grouped in groupby(cells, key=lambda cell: (id(cell.data), id(cell.evaluated))):
        group = list(grouped)
        readouts = {cell.readout: None for cell in group if cell.path not in recorded}
        reader = Reader(workload, tuple(readouts))
        yield from ((cell, reader) for cell in group)


# A cell ------------------------------------------------------------------------------------


def existing_record(cell: Cell) -> Record | None:
    """The record of a cell that was made before, found by the identity in its file name; else None.

    Raises BrokenRecord if its content has another identity.
    """
    return read_record(cell.path) if cell.path.is_file() else None


def _has_predictions(path: Path, record: Record) -> bool:
    """Whether readable predictions of a record lie beside it."""
    beside = path.with_suffix(".parquet")
    try:
        return beside.is_file() and bool(read_predictions(record, beside))
    except BrokenRecord:
        return False


def evaluate_cell(cell: Cell, reader: Reader, existing: Record | None) -> tuple[Record, Predicted]:
    """The record of a cell and its predictions. An `existing` record, which lacks them, is kept.

    Raises HarnessError for a cell that cannot be scored, WrongPredictions if the predictions differ
    from those of the known record, as on another processor or with other versions of libraries.
    """
    encoded = reader.encoded(cell)
    task, seen = cell.data.task, encoded.test.seen
    predictions = [
        replace(prediction, values=finished(task, prediction.values, seen))
        for prediction in _predictions(cell, encoded)
    ]
    predicted = cell.data.predicted(predictions)
    if existing is not None:
        if fault := mismatch_with_record(existing, predicted):
            raise WrongPredictions(f"what is predicted here {fault}")
        return existing, predicted
    loss = _loss(cell, encoded, predicted)
    facts = {LOSS: loss[0]} if loss else {}
    with_loss = [
        replace(prediction, facts={**prediction.facts, **facts}) for prediction in predictions
    ]
    scores = _scores(cell.data, with_loss)
    resamples = kept_resamples(predicted, scores)
    record = Record(
        **cell.record_fields(encoded),
        scores=scores,
        intervals=intervals(task.metrics, estimates_of(resamples, scores, task.metrics)),
        resamples=resamples,
        loss_resamples=loss and loss[1],
        majority=cell.data.majority,
        unseen=0 if seen is None else int((~seen).sum()),
        predictions=predicted.content,
        versions={**_versions(), **({IMAGE_LIBRARY: pillow().__version__} if task.image else {})},
    )
    return record, predicted


def _predictions(cell: Cell, encoded: Encoded) -> list[Predictions]:
    """The predictions of a cell's protocol, one for each draw.

    Raises BrokenPlugin unless the protocol returns predictions of all units for all draws.
    """
    function = cell.protocol.entry.function
    if not is_ours(function):  # other code may write to arrays that are read again
        shared = {id(one): one for one in (encoded.kind, encoded.with_dropout, encoded.draws)}
        encoded = deepcopy(encoded, shared)
    with calling(f"protocol {cell.protocol.entry.name}", function):
        returned: Any = function(encoded, **cell.protocol.options)
    count, fault = len(encoded.draws) or 1, None
    if not isinstance(returned, list | tuple):
        fault = f"a {type(returned).__name__}, expected a list of harness.Predictions"
    elif len(returned) != count:
        fault = f"{counted(len(returned), 'prediction')}, expected {count}: one for each draw"
    else:
        shape = encoded.test.labels.shape
        fault = next(filter(None, (_odd(item, cell.data.task, shape) for item in returned)), None)
        none = cell.protocol.transductive or not encoded.draws
        expected_draws = {None} if none else {*encoded.draws}
        if not fault and {item.draw for item in returned} != expected_draws:
            expected = "no draw" if none else "one of each in encoded.draws"
            fault = f"predictions of other draws, expected {expected}"
    if fault:
        raise BrokenPlugin(f"protocol {cell.protocol.entry.name} returned {fault}")
    return [*returned]


def _odd(item: object, task: Task, shape: tuple[int, ...]) -> str | None:
    """Why `item` is no predictions of this shape, and what was expected; None if it is."""
    if not isinstance(item, Predictions):
        return f"a list of {type(item).__name__}, expected one of harness.Predictions"
    if not isinstance(item.draw, Draw | None):
        return f"predictions of the draw {item.draw!r:.80}, expected one in encoded.draws"
    facts: Any = item.facts
    named = isinstance(facts, Mapping)
    if not named or not all(isinstance(one, int | float | np.number) for one in facts.values()):
        return f"predictions with the facts {facts!r:.80}, expected a number for each name"
    values: Any = item.values
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "biuf":
        found = getattr(values, "dtype", type(values).__name__)
        return f"predictions that are a {found}, expected an array of numbers"
    if values.shape != shape:
        return f"predictions of the shape {values.shape}, expected {shape}, that of the labels"
    classes = 2 if values.ndim > 1 else len(task.labels) if kind_of(task).integer_labels else None
    if classes is None:
        return None
    wrong = np.isfinite(values) & ~np.isin(values, np.arange(classes))
    if wrong.any():
        expected = f"whole numbers from 0 to {classes - 1}"
        return f"the label {max(values[wrong], key=abs):g}, expected {expected}"
    return None


def _loss(cell: Cell, encoded: Encoded, predicted: Predicted) -> tuple[float, Resamples] | None:
    """The loss of the model's own head, and its values on resampled test units.

    None for a protocol that reads no head, or fits another.
    """
    if cell.protocol.adapts or not cell.protocol.entry.reads_head:
        return None
    test = encoded.test
    losses = encoded.kind.losses(test.logits.astype(np.float64), test.labels)
    if test.seen is not None:
        losses[~test.seen] = np.nan
    return kept_loss(predicted, losses)


def _scores(data: TaskSplit, predictions: Sequence[Predictions]) -> tuple[DrawScore, ...]:
    for prediction in predictions:
        if not np.isfinite(prediction.values).all():
            raise NotFinite("predictions are NaN or infinite, expected finite ones")
        if not np.isfinite([*prediction.facts.values()]).all():
            facts = ", ".join(f"{name} {value}" for name, value in prediction.facts.items())
            raise NotFinite(f"the fit reports {facts}; expected finite numbers")
    return tuple(data.score(prediction) for prediction in predictions)


@cache
def _versions() -> dict[str, str]:
    names = ("merging-harness", "torch", "transformers", "numpy", "faiss", "scikit-learn")
    return {name: version(name) for name in names}
