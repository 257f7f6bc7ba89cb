"""FT-Classifier Eval: is the encoder fine and only the head out of tune? (FT-Classifier paper)"""

from __future__ import annotations

import numpy as np
import torch

from harness import Draw, Encoded, Head, Predictions, protocol
from harness.errors import BadOption, MissingHead, MissingTeacher
from harness.labels import predicted
from harness.rng import rng
from harness.types import Array64, Kind

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


@protocol("ft-classifier", paper="FT-Classifier, section 4", adapts="unlabeled")
def ft_classifier(
    encoded: Encoded, *, learning_rate: float = 5e-4, epochs: int = 5
) -> list[Predictions]:
    """One prediction of the test rows per draw, by a head tuned on the drawn rows' features.

    The encoder is frozen, the head starts as the expert's and is fitted to the expert's outputs:
    KL(expert || head) for classification, the squared difference for regression, by Adam with
    batch size 1. Labels choose the rows (so many of each class) and are not used in the loss.
    """
    if learning_rate <= 0 or epochs < 1:
        raise BadOption(
            f"ft-classifier has learning_rate {learning_rate:g} and epochs {epochs}, "
            "expected both above zero"
        )
    if encoded.head is None:
        raise MissingHead(
            f"protocol 'ft-classifier' needs a head for task '{encoded.task}'; found none"
        )
    if encoded.teacher is None or encoded.pool is None:
        raise MissingTeacher(
            f"protocol 'ft-classifier' needs an expert of task '{encoded.task}' as teacher; "
            "name it with --experts"
        )
    orders = [visits(encoded.task, draw, epochs) for draw in encoded.draws]
    x = _with_one(encoded.pool.x)
    heads = tune(encoded.head, x, encoded.teacher, orders, encoded.kind, learning_rate)
    test = _with_one(encoded.test.x)
    return [
        Predictions(predicted(encoded.kind, (test @ head.T).numpy()), draw)
        for head, draw in zip(heads, encoded.draws, strict=True)
    ]


def visits(task: str, draw: Draw, epochs: int) -> list[int]:
    """The pool rows that a draw's training sees, one by one, over all epochs."""
    rows = np.array([row for group in draw.rows for row in group])
    orders = [rng(draw.seed, "ftc", task, epoch).permutation(len(rows)) for epoch in range(epochs)]
    return [int(row) for order in orders for row in rows[order]]


def tune(
    head: Head,
    x: torch.Tensor,
    teacher: Array64,
    orders: list[list[int]],
    kind: Kind,
    learning_rate: float,
) -> torch.Tensor:
    """Tuned heads [runs, classes, width + 1], bias last: all draws in one batched Adam.

    `x` is [pool, width + 1] with ones in the last column, `teacher` [pool, classes]; `orders`
    lists the pool row of every step of every run. Runs are sorted by length, so that those still
    going are a prefix of the batch and a finished one is not touched again.
    """
    ranked = sorted(range(len(orders)), key=lambda run: -len(orders[run]))
    lengths = torch.tensor([len(orders[run]) for run in ranked])
    rows = torch.zeros(len(orders), int(lengths.max()), dtype=torch.long)
    for place, run in enumerate(ranked):
        rows[place, : len(orders[run])] = torch.tensor(orders[run])
    start = torch.from_numpy(np.column_stack([head.weight, head.bias]).astype(np.float64))
    tuned = start.repeat(len(orders), 1, 1)
    first, second = torch.zeros_like(tuned), torch.zeros_like(tuned)
    target = torch.from_numpy(teacher)
    for step in range(rows.shape[1]):
        going = int((lengths > step).sum())
        w, m, v = tuned[:going], first[:going], second[:going]
        seen = x[rows[:going, step]]
        outputs = torch.einsum("rcw,rw->rc", w, seen)
        wanted = target[rows[:going, step]]
        # gradient of the loss by the outputs: of the KL softmax - target, of the square 2 (y - t)
        error = outputs.softmax(1) - wanted if kind == "classification" else 2 * (outputs - wanted)
        gradient = error[:, :, None] * seen[:, None, :]
        m.mul_(BETA1).add_(gradient, alpha=1 - BETA1)
        v.mul_(BETA2).addcmul_(gradient, gradient, value=1 - BETA2)
        spread = v.sqrt().div_((1 - BETA2 ** (step + 1)) ** 0.5).add_(EPS)
        w.addcdiv_(m, spread, value=-learning_rate / (1 - BETA1 ** (step + 1)))
    result = torch.empty_like(tuned)
    result[ranked] = tuned
    return result


def _with_one(x: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> torch.Tensor:
    return torch.from_numpy(np.column_stack([x, np.ones(len(x))]).astype(np.float64))
