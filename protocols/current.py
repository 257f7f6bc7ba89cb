"""Current Eval: the merged encoder under the head it came with."""

from __future__ import annotations

from harness import Encoded, Predictions, protocol


@protocol("current", paper="FT-Classifier, section 3", adapts="nothing", reads_head=True)
def current(encoded: Encoded) -> list[Predictions]:
    """The labels that the model's own head predicts; lowest index on ties. No adaptation."""
    return [Predictions(encoded.kind.predicted(encoded.test.logits))]
