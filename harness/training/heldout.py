"""The score of a trained model on held-out rows, and what the best constant has there."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

from harness.checkpoints.named import canonical
from harness.data.metrics import check_scored, finished, score
from harness.errors import BadData
from harness.kinds import kind_of
from harness.passes.features import forward
from harness.passes.placement import Placement
from harness.text import points
from harness.training.single import Training, readings
from harness.types import HELD_OUT, Checkpoint, Score


def tell_of_constant(part: Training, made: Score) -> None:
    """Warn of a score that the best prediction that is the same for every row has as well."""
    task, rows, kind = part.task, part.heldout, kind_of(part.task)
    constants = kind.constants(task, rows.labels)
    units = kind.units(rows)
    best = max(score(task, one, rows.labels, units).value for one in constants)
    if made.value <= best:
        told = (
            f"the expert scores {points(100 * made.value)}, no more than the best constant "
            f"prediction ({points(100 * best)}): train it longer or otherwise"
        )
        if best == 1:
            told = f"its {len(rows.labels)} labels are all alike, which says nothing of an expert"
        warnings.warn(f"{task}@{HELD_OUT}: {told}", stacklevel=2)


def can_be_scored(part: Training) -> bool:
    """Whether held-out rows say anything of a model."""
    rows = part.heldout
    try:
        check_scored(part.task, rows.labels, kind_of(part.task).units(rows), str(part.task))
    except BadData:
        return False
    return True


def scored(trainer: Any, source: Checkpoint, part: Training, rows: Any, number: int) -> Score:
    """The score of a trained model on held-out rows of its task, of this number."""
    task, kind = part.task, kind_of(part.task)
    if not kind.split_into_words:
        # grouping by length shuffles the rows as well: labels as the Trainer hands them back
        outputs = trainer.predict(rows)
        return score(task, readings(task, outputs), outputs.label_ids)
    # of words that were cut off the Trainer knows nothing
    models = list(getattr(trainer.model, "classifiers", [trainer.model]))
    made = models[number]
    weights = canonical(made, made.state_dict())
    trained = replace(source, config=made.config.to_dict(), weights=weights)
    there = Placement(device=str(trainer.args.device))
    length = part.settings.max_length
    _, logits, seen = forward(trained, part.heldout, max_length=length, placement=there)
    values = finished(task, kind.predicted(logits), seen)
    return score(task, values, part.heldout.labels, kind.units(part.heldout))
