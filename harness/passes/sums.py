"""What a method can ask of an expert's rows: a statistic of each kind, by one pass over them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from harness.checkpoints.build import build_model
from harness.kinds import kind_of
from harness.options import Count
from harness.passes.features import (
    Tokens,
    device_of,
    padded,
    row_labels,
    running,
    stacked,
    tokenize,
)
from harness.passes.fisher import BY_EXAMPLE, Estimator, fisher
from harness.passes.gram import gram
from harness.types import Checkpoint, Rows, Scalar, Steps

Batches: TypeAlias = Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]
Found: TypeAlias = tuple[dict[str, torch.Tensor], dict[str, str]]


@dataclass(frozen=True)
class Pass:
    """An expert and the rows it is to see, ready to run."""

    checkpoint: Checkpoint
    rows: Rows
    max_length: int
    device: str
    progress: Steps | None

    def model(self) -> torch.nn.Module:
        """The expert in eval mode, without dropout, on the device."""
        where = device_of(self.device)
        state = self.checkpoint.weights
        unit = kind_of(self.rows.task).unit
        config, source = self.checkpoint.config, self.checkpoint.source
        return build_model(config, state, source, unit=unit).to(where)

    def batches(self, size: int, *, as_drawn: bool) -> Batches:
        """Inputs and labels of the rows, in the order of the draw or, padding less, by length."""
        where = device_of(self.device)
        encoded = tokenize(self.checkpoint, self.rows, self.max_length)
        kind, order = kind_of(self.rows.task), list(range(len(self.rows)))
        if not as_drawn:
            order.sort(key=lambda i: -len(encoded["input_ids"][i]))
        labels = self._labels(encoded)
        for start in range(0, len(order), size):
            picked = order[start : start + size]
            inputs = padded(encoded, picked, self.checkpoint, where)
            yield inputs, stacked([labels[i] for i in picked], whole=kind.whole).to(where)
            if self.progress:
                self.progress(len(picked))

    def _labels(self, encoded: Tokens) -> list[Any]:
        """Gold labels of every row, by the place they have in the model's outputs."""
        task, labels = self.rows.task, self.checkpoint.labels or ()
        places = kind_of(task).columns(task, labels, self.checkpoint.source)
        return row_labels(encoded, self.rows, places, max(1, len(labels)))


def gram_pass(
    asked: Pass,
    *,
    examples: Count = 1024,
    seed: int = 0,
    batch_size: Count = 16,
    padding: bool = False,
    gram_scale: Literal["mean", "sum"] = "mean",
) -> Found:
    """Gram matrices of `examples` rows; see `gram`.

    The size of a batch matters where `padding` counts, and for DeBERTa, whose relative positions
    are read once for every batch.
    """
    read = (inputs for inputs, _ in asked.batches(batch_size, as_drawn=padding))
    model = asked.model()
    with running(asked.checkpoint.source):
        return gram(model, read, padding=padding, scale=gram_scale)


def fisher_pass(
    asked: Pass,
    *,
    examples: Count = 1024,
    seed: int = 0,
    estimator: Estimator = "exact",
    batch_size: Count = 16,
) -> Found:
    """The Fisher diagonal over `examples` rows; see `fisher`.

    Only the published estimators have batches, in the order of the draw.
    """
    size = 1 if estimator in BY_EXAMPLE else batch_size
    read = asked.batches(size, as_drawn=True)
    model, kind = asked.model(), kind_of(asked.rows.task)
    with running(asked.checkpoint.source):
        return fisher(model, read, kind, estimator=estimator, batch_size=size), {}


PASSES: Mapping[str, Callable[..., Found]] = {"gram": gram_pass, "fisher": fisher_pass}
"""What a merger can ask for by a keyword of this name; the options are those of the pass."""


def warn_of_nothing(chosen: Mapping[str, Scalar]) -> None:
    """Warn of an estimator that is zero by its mathematics."""
    if chosen.get("estimator") == "soft":
        warnings.warn(
            "the estimator 'soft' has a gradient of zero and holds only rounding; expected for "
            "comparison alone",
            stacklevel=2,
        )
