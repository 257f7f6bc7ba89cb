"""Each row has exactly one of several classes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from harness.kinds.kind import IGNORED, Kind, RowName, Rule, class_indices
from harness.types import Array64, Draw, Row, Rows, Task, Units

if TYPE_CHECKING:
    import torch


class Classification(Kind):
    """Labels are indices of classes, [rows]."""

    name: ClassVar[str] = "classification"
    problem_type: ClassVar[str] = "single_label_classification"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy",)

    def read(self, task: Task, rows: Sequence[Row], row_name: RowName) -> Array64:
        """Class indices, from names of classes or from indices."""
        return class_indices(task, [row[task.label] for row in rows], row_name)

    def _predicted(self, outputs: Array64) -> Array64:
        """The index of the largest output, the lowest on ties."""
        return np.asarray(outputs.argmax(axis=1), dtype=np.float64)

    def constants(self, task: Task, labels: Array64) -> Iterator[Array64]:
        """Each class that occurs, the most frequent first: best by accuracy, not always by F1.

        By hand: for labels 1, 0, 0, predicting 0 has accuracy 2/3 and F1 0, predicting 1 has 1/3
        and 1/2, which is better in the mean.
        """
        counts = np.bincount(labels.astype(np.int64), minlength=len(task.labels))
        for label in np.argsort(-counts, kind="stable"):
            if counts[label]:
                yield np.full(len(labels), label, dtype=np.float64)

    def losses(self, outputs: Array64, labels: Array64) -> Array64:
        """The cross entropy among the classes of the task, in nats.

        By hand: outputs (0, log 3) are p = (1/4, 3/4); the loss is log 4 for class 0, else log 4/3.
        """
        from scipy.special import log_softmax

        places = labels.astype(np.int64)[:, None]
        return np.asarray(-np.take_along_axis(log_softmax(outputs, axis=1), places, axis=1)[:, 0])

    def target(self, outputs: Sequence[Array64]) -> Array64:
        """The mean of the teachers' probabilities."""
        from scipy.special import softmax

        return np.asarray(np.mean([softmax(one, axis=1) for one in outputs], axis=0))

    def gradient(self, outputs: Array64, target: Array64, *, reverse: bool = False) -> Array64:
        """The gradient of KL(target || outputs): softmax - target.

        With `reverse`, p = softmax and q = target: p_j (log p_j / q_j - KL(p || q)). By hand:
        p = (1/2, 1/2) and q = (1/4, 3/4) have log ratios of 0.693 and -0.405, a KL of 0.144, and
        gradients of 0.275 and -0.275.
        """
        from scipy.special import log_softmax, softmax

        if not reverse:
            return np.asarray(softmax(outputs, axis=-1) - target)
        log = log_softmax(outputs, axis=-1)
        gap, p = log - np.log(np.maximum(target, np.finfo(np.float64).tiny)), np.exp(log)
        return np.asarray(p * (gap - (p * gap).sum(axis=-1, keepdims=True)))

    def groups(self, rows: Rows) -> Mapping[str, Units]:
        """The rows of each class."""
        return {
            f"label '{name}'": np.flatnonzero(rows.labels == index)
            for index, name in enumerate(rows.task.labels)
        }

    def classes(self, rows: Rows) -> Units:
        """The label of every row."""
        return rows.labels.astype(np.int64)

    def predict_by(self, rule: Rule, labels: Array64, draw: Draw) -> Array64:
        """The group that the rule predicts: each class is a group."""
        return rule.group(draw.rows)

    def fisher_rows(
        self, estimator: str, outputs: torch.Tensor, labels: torch.Tensor
    ) -> Iterator[torch.Tensor]:
        """The rows of the units that have a label, which are independent."""
        from harness.kinds.information import of_classes, of_places

        counted = labels != IGNORED
        if estimator == "exact":
            yield from of_places(outputs, counted)
        else:
            yield of_classes(estimator, outputs, labels, counted)

    def entropy(self, outputs: torch.Tensor) -> torch.Tensor:
        """The entropy of the distribution over classes: -sum_y p(y) log p(y).

        By hand: outputs (0, 0) are p = (1/2, 1/2), with entropy log 2.
        """
        log = outputs.log_softmax(-1)
        return -(log.exp() * log).sum(-1)

    def head_labels(self, rows: Rows, places: Sequence[int], outputs: int) -> Array64:
        """The index of each row's class among the head's outputs."""
        return np.asarray(places, dtype=np.float64)[rows.labels.astype(np.int64)]
