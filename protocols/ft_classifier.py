"""FT-Classifier Eval: is the encoder fine and only the head out of tune? (FT-Classifier paper)"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Literal, TypeAlias

import numpy as np

from harness import Draw, Encoded, Head, Predictions, protocol
from harness.kinds import Kind
from harness.options import Positive, StepCount
from harness.rng import rng
from harness.types import Array, Array64, Units

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
PADDED = 1024
"""Steps whose units are padded to one array at a time: with all rows there are many steps."""


@protocol(
    "ft-classifier",
    paper="FT-Classifier, section 4",
    adapts="unlabeled",
    transductive=lambda *, rows, **_: bool(rows == "test"),
    of_tags=("o_weight",),
    reads_head=True,
)
def ft_classifier(
    encoded: Encoded,
    *,
    learning_rate: Positive = 5e-4,
    epochs: StepCount = 5,
    variant: Literal["clean", "paper"] = "clean",
    rows: Literal["shots", "test"] = "shots",
    o_weight: Positive = 1.0,
    kl: Literal["forward", "reverse"] = "forward",
) -> list[Predictions]:
    """One prediction of the test rows per draw, by a head tuned on the drawn rows' features.

    The encoder is frozen. The head starts as the expert's and is fitted to the expert's outputs by
    Adam, one row at a time. The loss is KL(expert || head) for classification, its sum over the
    classes for multi-label rows, its mean over the words of a sentence for tagging, and the squared
    difference for regression. Labels choose the rows (so many of each class) and are not used in
    the loss.
    `variant=paper`: at each visit of a row, its features are computed anew with the encoder's
    dropout on, as in the paper's published script; test rows are read without dropout. `rows` are
    those of a draw, or all test rows (the paper takes parts of them for images): then the fit is
    transductive, and there is one prediction.
    `kl`: the direction of the loss. With `reverse`, KL(head || expert), a head need not cover all
    that the expert finds likely. For regression both are the squared difference.
    `o_weight`: the weight, in the mean over its sentence, of a word that the expert predicts to be
    of no entity; all other words weigh 1.
    """
    head, pool, teacher = encoded.head, encoded.pool, encoded.teacher
    assert head is not None, "or there is no such cell"
    assert pool is not None
    assert teacher is not None
    orders = [visits(encoded.task, draw, epochs) for draw in encoded.draws]
    x = pool.x
    if variant == "paper":
        x = np.concatenate([*_dropped(encoded, orders, epochs)])
        teacher = teacher[[unit for order in orders for example in order for unit in example]]
        orders = _numbered(orders)
    weights = np.ones(len(teacher))
    if encoded.outside is not None:
        weights[teacher.argmax(axis=1) == encoded.outside] = o_weight
    taught = Taught(_with_one(x), teacher, weights, reverse=kl == "reverse")
    heads = tune(head, taught, orders, encoded.kind, learning_rate)
    test = _with_one(encoded.test.x).astype(np.float64)
    return [
        Predictions(encoded.kind.predicted(test @ head.T), draw if rows == "shots" else None)
        for head, draw in zip(heads, encoded.draws, strict=True)
    ]


def visits(task: str, draw: Draw, epochs: int) -> Order:
    """The units of the example at each step of a draw's training, over all epochs."""
    alone = ((unit,) for units in draw.rows for unit in units)
    examples = draw.examples or tuple(alone)
    orders = (rng(draw.seed, "ftc", task, e).permutation(len(examples)) for e in range(epochs))
    return [examples[place] for order in orders for place in order]


Order: TypeAlias = "list[tuple[int, ...]]"
"""The units of each step of a training."""


def _dropped(encoded: Encoded, orders: Sequence[Order], epochs: int) -> Iterator[Array]:
    """Features of every visit of every draw, an epoch at a time, with the encoder's dropout on."""
    assert encoded.with_dropout is not None
    for draw, order in zip(encoded.draws, orders, strict=True):
        each = len(order) // epochs
        for epoch in range(epochs):
            named = rng(draw.seed, "ftc_dropout", encoded.task, draw.shots, epoch)
            seed = int(named.integers(2**63))
            visited = order[epoch * each : (epoch + 1) * each]
            yield encoded.with_dropout([unit for example in visited for unit in example], seed)


def _numbered(orders: Sequence[Order]) -> list[Order]:
    """The orders of all draws with consecutive unit numbers: each visit has its own features."""
    numbers = count()
    return [[tuple(next(numbers) for _ in example) for example in order] for order in orders]


@dataclass(frozen=True)
class Taught:
    """Units that a head is tuned on.

    `x` is [units, width + 1] with ones in the last column, `outputs` [units, outputs] are the
    teacher's, and `weights` [units] are relative to the other units of the same example. With
    `reverse` the loss is KL(head || outputs), else KL(outputs || head).
    """

    x: Array | Array64
    outputs: Array64
    weights: Array64
    reverse: bool = False


def tune(
    head: Head, taught: Taught, orders: Sequence[Order], kind: Kind, learning_rate: float
) -> Array64:
    """Tuned heads [runs, outputs, width + 1], bias last: all draws in one batched Adam.

    `orders` lists the units of every step of every run. Runs are sorted by length, so that those
    still going are a prefix of the batch and a finished one is not touched again. Written in numpy:
    with arrays this small, a tensor library spends more time on threads than on arithmetic.
    """
    ranked = sorted(range(len(orders)), key=lambda run: -len(orders[run]))
    lengths = np.array([len(orders[run]) for run in ranked])
    start = np.column_stack([head.weight, head.bias]).astype(np.float64)
    tuned = np.repeat(start[None], len(orders), axis=0)
    first, second = np.zeros_like(tuned), np.zeros_like(tuned)
    gradients, scratch = np.empty_like(tuned), np.empty_like(tuned)
    for step in range(lengths.max(initial=0)):
        going, place = int((lengths > step).sum()), step % PADDED
        if not place:
            left = [orders[run][step : step + PADDED] for run in ranked[:going]]
            units, shares = _padded(left, taught.weights)
        w, m, v, g, s = (a[:going] for a in (tuned, first, second, gradients, scratch))
        seen = taught.x[units[:going, place]].astype(np.float64)
        wanted = taught.outputs[units[:going, place]]
        outputs = np.matmul(w, np.ascontiguousarray(seen.transpose(0, 2, 1))).transpose(0, 2, 1)
        by_output = kind.gradient(outputs, wanted, reverse=taught.reverse)
        # Adam makes a full step for any gradient, however small: rounding errors are set to zero,
        # or a head that equals its teacher would drift away
        by_output[np.abs(by_output) <= 1e-12 * (1 + np.abs(wanted))] = 0
        by_output *= shares[:going, place, :, None]
        np.matmul(by_output.transpose(0, 2, 1), seen, out=g)
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


def _padded(orders: Sequence[Order], weights: Array64) -> tuple[Units, Array64]:
    """The units of every step, [runs, steps, longest], and the share of each in its example."""
    longest = max((len(example) for order in orders for example in order), default=1)
    units = np.zeros((len(orders), max(map(len, orders)), longest), dtype=np.int64)
    shares = np.zeros(units.shape)
    for run, order in enumerate(orders):
        for step, example in enumerate(order):
            units[run, step, : len(example)] = example
            own = weights[[*example]]
            shares[run, step, : len(example)] = own / own.sum()
    return units, shares


def _with_one(x: Array) -> Array:
    return np.column_stack([x, np.ones(len(x), dtype=np.float32)])
