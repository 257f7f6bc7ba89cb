"""An expert and the rows it is to see: what a need of each expert's own rows is made from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from harness.checkpoints.build import build_model
from harness.kinds import kind_of
from harness.passes.features import (
    Tokens,
    device_of,
    padded,
    row_labels,
    stacked,
    tokenize,
)
from harness.types import Checkpoint, Rows, Steps

Batches: TypeAlias = Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]


@dataclass(frozen=True)
class Reading:
    """An expert and the rows it is to see, ready to run.

    `progress`, if anybody listens, is called with the number of rows done since the last call.
    """

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
