"""FT-Classifier Eval: is the encoder fine and only the head out of tune? (FT-Classifier paper)"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import softmax

from harness import Draw, Encoded, Head, Predictions, protocol
from harness.errors import MissingHead, MissingTeacher
from harness.labels import predicted
from harness.options import Count, Positive
from harness.rng import rng
from harness.types import Array, Array64, Kind

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8


@protocol("ft-classifier", paper="FT-Classifier, section 4", adapts="unlabeled")
def ft_classifier(
    encoded: Encoded, *, learning_rate: Positive = 5e-4, epochs: Count = 5
) -> list[Predictions]:
    """One prediction of the test rows per draw, by a head tuned on the drawn rows' features.

    The encoder is frozen, the head starts as the expert's and is fitted to the expert's outputs:
    KL(expert || head) for classification, the squared difference for regression, by Adam with
    batch size 1. Labels choose the rows (so many of each class) and are not used in the loss.
    """
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
        Predictions(predicted(encoded.kind, test @ head.T), draw)
        for head, draw in zip(heads, encoded.draws, strict=True)
    ]


def visits(task: str, draw: Draw, epochs: int) -> list[int]:
    """The pool rows that a draw's training sees, one by one, over all epochs."""
    rows = np.array([row for group in draw.rows for row in group])
    orders = [rng(draw.seed, "ftc", task, epoch).permutation(len(rows)) for epoch in range(epochs)]
    return [int(row) for order in orders for row in rows[order]]


def tune(
    head: Head,
    x: Array64,
    teacher: Array64,
    orders: Sequence[Sequence[int]],
    kind: Kind,
    learning_rate: float,
) -> Array64:
    """Tuned heads [runs, classes, width + 1], bias last: all draws in one batched Adam.

    `x` is [pool, width + 1] with ones in the last column, `teacher` [pool, classes]; `orders`
    lists the pool row of every step of every run. Runs are sorted by length, so that those still
    going are a prefix of the batch and a finished one is not touched again. In numpy: arrays this
    small cost a tensor library more in threads than in arithmetic.
    """
    ranked = sorted(range(len(orders)), key=lambda run: -len(orders[run]))
    lengths = np.array([len(orders[run]) for run in ranked])
    rows = np.zeros((len(orders), lengths.max()), dtype=np.int64)
    for place, run in enumerate(ranked):
        rows[place, : lengths[place]] = orders[run]
    start = np.column_stack([head.weight, head.bias]).astype(np.float64)
    tuned = np.repeat(start[None], len(orders), axis=0)
    first, second = np.zeros_like(tuned), np.zeros_like(tuned)
    gradients, scratch = np.empty_like(tuned), np.empty_like(tuned)
    for step in range(rows.shape[1]):
        going = int((lengths > step).sum())
        w, m, v, g, s = (a[:going] for a in (tuned, first, second, gradients, scratch))
        seen, wanted = x[rows[:going, step]], teacher[rows[:going, step]]
        outputs = np.matmul(w, seen[:, :, None])[:, :, 0]
        # gradient of the loss by the outputs: of the KL softmax - target, of the square 2 (y - t)
        by_output = (
            softmax(outputs, axis=1) - wanted
            if kind == "classification"
            else 2 * (outputs - wanted)
        )
        # Adam makes a full step of any gradient: what is only rounding must be exactly zero, or a
        # head that equals its teacher walks away from it
        by_output[np.abs(by_output) <= 1e-12 * (1 + np.abs(wanted))] = 0
        np.multiply(by_output[:, :, None], seen[:, None, :], out=g)
        m *= BETA1
        m += np.multiply(g, 1 - BETA1, out=s)
        np.multiply(g, g, out=g)
        v *= BETA2
        v += np.multiply(g, 1 - BETA2, out=g)
        np.sqrt(v, out=s)
        s /= (1 - BETA2 ** (step + 1)) ** 0.5
        s += EPS
        np.divide(m, s, out=s)
        s *= learning_rate / (1 - BETA1 ** (step + 1))
        w -= s
    result = np.empty_like(tuned)
    result[ranked] = tuned
    return result


def _with_one(x: Array) -> Array64:
    return np.column_stack([x, np.ones(len(x))]).astype(np.float64)
