"""Shell: whether weights are those that a merge or a fine-tuning of ours left in their folder."""

from __future__ import annotations

from harness import weights
from harness.checkpoints.provenance import EXPERT_FILE, MERGE_FILE, merged_by, trained_by
from harness.errors import BrokenCheckpoint
from harness.types import Checkpoint


def check_unchanged(model: Checkpoint) -> None:
    """Raise BrokenCheckpoint unless a model's weights are those that its folder's record speaks of.

    They may lie in other files. Of a folder whose record lists no files nothing is read.
    """
    records = (
        (EXPERT_FILE, "trained", trained_by(model.path)),
        (MERGE_FILE, "merged", merged_by(model.path)),
    )
    for marker, made, said in records:
        if said is None or said.files is None:
            continue
        now = weights.digest(model.weights)
        if now != said.digest:
            raise BrokenCheckpoint(
                f"{model.source} has changed since it was {made}: its weights hash to {now[:12]}, "
                f"expected {said.digest[:12] or 'a digest'} as its {marker} says; make it again, "
                f"or take {marker} away to read it as a model of its own"
            )
