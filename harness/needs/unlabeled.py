"""The entropy of a model's predictions on unlabeled rows, for methods that lower it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from harness.options import Count, StepCount
from harness.passes.entropy import EntropyLoss, entropies
from harness.passes.reading import Readings
from harness.registry import need
from harness.types import StateDict

TOY_STEPS = 3


def _toy(experts: Sequence[StateDict]) -> tuple[EntropyLoss, ...]:
    """A made-up loss, the same at every step: half the sum of all squared entries."""
    return (_half_square,) * TOY_STEPS


def _half_square(state: StateDict) -> tuple[float, StateDict]:
    gradient = {name: state[name].clone() for name in state}
    return sum(float(tensor.double().square().sum()) for tensor in gradient.values()) / 2, gradient


@need(
    "unlabeled",
    paper="arXiv:2310.02575",
    rows="tasks",
    toy=_toy,
    kinds=("classification", "multilabel", "tagging"),
    gradients=True,
)
def unlabeled(
    readings: Readings,
    *,
    rows: Literal["train", "test"] = "train",
    steps: StepCount = 100,
    examples: Count = 1024,
    batch_size: Count = 16,
    seed: int = 0,
) -> tuple[EntropyLoss, ...]:
    """For each step, the entropy of a model's predictions on the next rows, with its gradient.

    The entropy is in nats: the mean over the next `batch_size` of the `examples` rows of a task
    (over their words, for tags), summed over the tasks; that of several labels is summed over the
    classes. No label is read. The rows are of the training split, or with `rows=test` those that
    scores are reported on: the merge has then seen them, and its scores are transductive, like the
    authors'. The authors take 500 steps of 32 rows, which is out of reach without a GPU.
    """
    return entropies(readings, steps, batch_size)
