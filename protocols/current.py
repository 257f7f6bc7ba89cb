"""Current Eval: the merged encoder under the head it came with."""

from __future__ import annotations

from harness import Encoded, Predictions, protocol
from harness.errors import MissingHead


@protocol("current", paper="FT-Classifier, section 3", adapts="nothing", reads_head=True)
def current(encoded: Encoded) -> list[Predictions]:
    """The labels that the model's own head predicts; lowest index on ties. No adaptation."""
    if encoded.head is None:
        raise MissingHead(f"protocol 'current' needs a head for task '{encoded.task}'; found none")
    return [Predictions(encoded.kind.predicted(encoded.test.logits))]
