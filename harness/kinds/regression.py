"""Each row has a number."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from harness.kinds.kind import Kind, RowName, Rule, number, with_names
from harness.types import Array64, Draw, Row, Rows, Task, Units

if TYPE_CHECKING:
    import torch

BINS = 5
"""Shots are drawn from this many equal-width bins of the label (docs/methods.md#shots)."""


class Regression(Kind):
    """Labels are values, [rows]; a head has one output, without a name."""

    name: ClassVar[str] = "regression"
    problem_type: ClassVar[str] = "regression"
    metrics: ClassVar[tuple[str, ...]] = ("pearson", "spearman")
    placeholder_labels: ClassVar[tuple[str, ...]] = ()
    integer_labels: ClassVar[bool] = False

    def fault(self, task: Task) -> str | None:
        """What is wrong if a task lists labels: values have no names."""
        if task.labels:
            return f"the labels {', '.join(task.labels)}, expected none for a regression"
        return None

    def read(self, task: Task, rows: Sequence[Row], row_name: RowName) -> Array64:
        """The labels as finite numbers."""
        return np.array(
            [number(row[task.label], place) for place, row in with_names(rows, row_name)]
        )

    def label_summary(self, rows: Rows) -> Mapping[str, float]:
        """The least, the mean and the largest label."""
        values = rows.labels
        ends = {"least": values.min(), "mean": values.mean(), "most": values.max()}
        return {name: float(value) for name, value in ends.items()}

    def output_columns(
        self, task: Task, labels: Sequence[str], where: str, *, by_index: bool = False
    ) -> list[int]:
        """The only output of the head."""
        return super().output_columns(task, labels, where) or [0]

    def _predicted(self, outputs: Array64) -> Array64:
        return outputs[:, 0]

    def constants(self, task: Task, labels: Array64) -> Iterator[Array64]:
        """The mean of the labels."""
        yield np.full(len(labels), labels.mean())

    def losses(self, outputs: Array64, labels: Array64) -> Array64:
        """The squared difference."""
        return np.asarray(np.square(outputs[:, 0] - labels))

    def target(self, outputs: Sequence[Array64]) -> Array64:
        """The mean of the teachers' values."""
        return np.asarray(np.mean(outputs, axis=0))

    def gradient(self, outputs: Array64, target: Array64, *, reverse: bool = False) -> Array64:
        """The gradient of the squared difference: the KL of two normal distributions both ways."""
        return 2 * (outputs - target)

    def groups(self, rows: Rows) -> Mapping[str, Units]:
        """The rows of each bin of the label."""
        labels = rows.labels
        # not by linspace, which rounds the width first: 0.6 of 0, 0.2, ..., 1 was below its bin
        edges = labels.min() + np.ptp(labels) * np.arange(1, BINS) / BINS
        bins = np.digitize(labels, edges)
        return {f"label bin {index}": np.flatnonzero(bins == index) for index in range(BINS)}

    def classes(self, rows: Rows) -> Units:
        """0 or 1: the half of the range of labels that the label is in, as RegMean divides them."""
        middle = (rows.labels.min() + rows.labels.max()) / 2
        return np.asarray(rows.labels > middle, dtype=np.int64)

    def predict_by(self, rule: Rule, labels: Array64, draw: Draw) -> Array64:
        """The number that the rule predicts: each bin of the label is a group."""
        return rule.value(draw.rows, labels)

    def fisher_rows(
        self, estimator: str, outputs: torch.Tensor, labels: torch.Tensor
    ) -> Iterator[torch.Tensor]:
        """The gradient of the mean squared error; `exact` and `empirical` see one row at a time."""
        yield 2 / len(outputs) * (outputs - labels.view_as(outputs))

    def head_labels(self, rows: Rows, places: Sequence[int], outputs: int) -> Array64:
        """The labels themselves."""
        return rows.labels
