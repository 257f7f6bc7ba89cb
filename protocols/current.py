"""Current Eval: the merged encoder under the head it came with."""

from __future__ import annotations

from harness import Encoded, Predictions, protocol
from harness.errors import MissingHead
from harness.labels import predicted


@protocol("current", paper="FT-Classifier, section 3", adapts="nothing")
def current(encoded: Encoded) -> list[Predictions]:
    """The labels that the model's own logits name; lowest index on ties. No adaptation."""
    if encoded.head is None:
        raise MissingHead(f"protocol 'current' needs a head for task '{encoded.task}'; found none")
    return [Predictions(predicted(encoded.kind, encoded.test.logits))]
