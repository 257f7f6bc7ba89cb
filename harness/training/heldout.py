"""The score of a trained model on held-out rows, and that of the best constant."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from harness.checkpoints.named import tensors_of
from harness.data.metrics import check_scored, finished, score
from harness.errors import BadData
from harness.kinds import kind_of
from harness.passes.features import forward
from harness.passes.placement import Placement
from harness.text import points
from harness.training.single import Training, predictions
from harness.types import HELD_OUT, Checkpoint, Score
from harness.weights import transposed


def warn_of_best_constant(part: Training, made: Score) -> None:
    """Warn of a score that is no higher than that of the best constant prediction."""
    task, rows, kind = part.task, part.heldout, kind_of(part.task)
    constants = kind.constants(task, rows.labels)
    units = kind.unit_counts(rows)
    best = max(score(task, constant, rows.labels, units).value for constant in constants)
    if made.value <= best:
        message = (
            f"the expert scores {points(100 * made.value)}, no more than the best constant "
            f"prediction ({points(100 * best)}): train it longer, or with other options"
        )
        if best == 1:
            message = f"its labels ({len(rows.labels)}) are all alike, so the score says nothing"
        warnings.warn(f"{task}@{HELD_OUT}: {message}", stacklevel=2)


def can_be_scored(part: Training) -> bool:
    """Whether the task's metrics are defined on its held-out rows."""
    rows = part.heldout
    try:
        check_scored(part.task, rows.labels, kind_of(part.task).unit_counts(rows), str(part.task))
    except BadData:
        return False
    return True


def scored(trainer: Any, source: Checkpoint, part: Training, rows: Any, number: int) -> Score:
    """The score of a trained model on the held-out `rows` of the task with this number."""
    task, kind = part.task, kind_of(part.task)
    if not kind.split_into_words:
        # the Trainer shuffles rows when it groups them by length: labels in its order
        outputs = trainer.predict(rows)
        return score(task, predictions(task, outputs), outputs.label_ids)
    # the Trainer lacks words that were cut off: a forward pass of ours
    model = list(getattr(trainer.model, "classifiers", [trainer.model]))[number]
    weights = transposed(tensors_of(model), source.family.is_transposed)  # transformers' own class
    trained = replace(source, config=model.config.to_dict(), weights=weights)
    placement = Placement(device=str(trainer.args.device))
    length = part.settings.max_length
    _, logits, seen = forward(trained, part.heldout, max_length=length, placement=placement)
    values = finished(task, kind.predicted(logits), seen)
    return score(task, values, part.heldout.labels, kind.unit_counts(part.heldout))
