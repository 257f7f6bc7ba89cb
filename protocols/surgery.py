"""Representation Surgery: is the loss a small correction of features? (Yang et al. 2024)"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from harness import Draw, Encoded, Predictions, Teacher, protocol
from harness.errors import BadData, IncompatibleWeights
from harness.options import Count, Positive, StepCount
from harness.rng import rng
from harness.types import Array64, Units

if TYPE_CHECKING:
    import torch

BATCH = 16
"""Rows in a step of Adam."""


@protocol(
    "surgery",
    paper="Representation Surgery; FT-Classifier, figure 7",
    adapts="unlabeled",
    transductive=lambda *, rows, **_: bool(rows == "test"),
    by_default=False,
)
def surgery(
    encoded: Encoded,
    *,
    rows: Literal["shots", "test"] = "shots",
    rank: Count = 16,
    steps: StepCount = 1000,
    learning_rate: Positive = 1e-3,
) -> list[Predictions]:
    """One prediction of the test rows per draw, by the expert's head on corrected features.

    Features z become z - U relu(D z), with D [rank, width] and U [width, rank], fitted to the
    expert's features of the same rows by the mean absolute difference: Adam, 16 rows a step. D
    begins uniform in +-1 / sqrt(width), U as zeros, so that nothing is corrected at first.
    `rows` are those of a draw, whose labels are not used (for tagging, all words of its sentences),
    in shuffled passes until all steps are made; or all test rows, as in the paper: then the fit is
    transductive, and there is one prediction. With several experts, each has its own correction,
    and the outputs of their heads are averaged, as in the logit ensemble.

    Facts, in the mean over experts: `fit_error` is the mean absolute difference after the fit,
    `rows_per_dimension` the number of rows per dimension of the features.
    """
    _check(encoded)
    lessons = [
        Lesson(encoded, draw, place, teacher)
        for draw in encoded.draws
        for place, teacher in enumerate(encoded.teachers)
    ]
    down, up = _fitted(lessons, rank, steps, learning_rate)
    test, each = encoded.test.x.astype(np.float64), len(encoded.teachers)
    predictions = []
    for start, draw in zip(range(0, len(lessons), each), encoded.draws, strict=True):
        runs = range(start, start + each)
        outputs = [lessons[r].teacher.head.outputs(corrected(test, down[r], up[r])) for r in runs]
        rest = [corrected(lessons[r].x, down[r], up[r]) - lessons[r].y for r in runs]
        facts = {
            "fit_error": float(np.mean([np.abs(one).mean() for one in rest])),
            "rows_per_dimension": len(draw.units) / test.shape[1],
        }
        values = encoded.kind.predicted(np.mean(outputs, axis=0))
        predictions.append(Predictions(values, draw if rows == "shots" else None, facts))
    return predictions


def corrected(x: Array64, down: Array64, up: Array64) -> Array64:
    """Features x [units, width] less U relu(D x).

    By hand: x = (3, 4), D = (1, 0), U = (0, 1)^T gives (3, 4 - 3) = (3, 1), and D = (-1, 0) leaves
    x as it is.
    """
    return np.asarray(x - np.maximum(x @ down.T, 0) @ up.T)


def _check(encoded: Encoded) -> None:
    """Raise IncompatibleWeights for features of unlike width, BadData for a draw without rows."""
    width = encoded.test.x.shape[1]
    for other in {teacher.x.shape[1] for teacher in encoded.teachers} - {width}:
        raise IncompatibleWeights(
            f"features have {width} dimensions and an expert's {other}; expected equal numbers"
        )
    if not all(draw.units for draw in encoded.draws):
        raise BadData(f"protocol 'surgery' has no row of '{encoded.task}' to fit to; expected one")


# The fit -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lesson:
    """A fit of the model's features to those of teacher number `place`, on the rows of a draw."""

    encoded: Encoded
    draw: Draw
    place: int
    teacher: Teacher

    @property
    def x(self) -> Array64:
        """Features of the model, [rows, width]."""
        assert self.encoded.pool is not None
        return self.encoded.pool.x[list(self.draw.units)].astype(np.float64)

    @property
    def y(self) -> Array64:
        """Features of the teacher, [rows, width]."""
        return self.teacher.x[list(self.draw.units)].astype(np.float64)

    def start(self, rank: int) -> Array64:
        """D before the first step: kaiming uniform with a = sqrt 5, torch's default for layers."""
        width = self.teacher.x.shape[1]
        random = rng(self.draw.seed, "surgery_start", self.encoded.task, self.place)
        return np.asarray(random.uniform(-1, 1, size=(rank, width)) / width**0.5)

    def batches(self, steps: int) -> Units:
        """The units of the pool that each step sees, [steps, 16]."""
        rows, seen = np.array(self.draw.units), steps * BATCH
        passes = -(-seen // len(rows))
        orders = (
            rng(self.draw.seed, "surgery", self.encoded.task, one).permutation(len(rows))
            for one in range(passes)
        )
        return np.asarray(rows[np.concatenate([*orders])[:seen].reshape(steps, BATCH)])


def _fitted(
    lessons: Sequence[Lesson], rank: int, steps: int, learning_rate: float
) -> tuple[Array64, Array64]:
    """D [lessons, rank, width] and U [lessons, width, rank]: all lessons in one batched Adam.

    Losses are summed over the lessons, so no lesson moves the matrices of another.
    """
    import torch

    down = torch.from_numpy(np.stack([one.start(rank) for one in lessons]))
    up = torch.zeros_like(down)  # U^T, whose gradient has the form of that of D
    adam = torch.optim.Adam([down, up], lr=learning_rate, fused=True)
    for x, y in _steps(lessons, steps):
        down.grad, up.grad = gradients(x, y, down, up)
        adam.step()
    return down.numpy(), up.mT.numpy()


def gradients(
    x: torch.Tensor, y: torch.Tensor, down: torch.Tensor, up: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The gradients of the loss by D and by U^T, [lessons, rank, width].

    In closed form, as automatic differentiation takes longer than these few products. For features
    x and y [lessons, rows, width], the loss of a lesson is the mean of |x - h U^T - y| with
    h = relu(x D^T). The slope of a difference or hidden unit that is zero is taken as zero.

    By hand: x = (3, 4), y = (3, 3), D = (1, 0), U = (0, 1)^T leave the differences (0, -2). The
    slope by h is 1 / 2: the gradients are (3, 4) / 2 by D, and (0, 3 / 2) by U^T.
    """
    import torch

    hidden = torch.bmm(x, down.mT).clamp_(min=0)
    signs = torch.baddbmm(x - y, hidden, up, alpha=-1).sign_().div_(-x[0].numel())
    back = torch.bmm(signs, up.mT).mul_(hidden > 0)
    return torch.bmm(back.mT, x), torch.bmm(hidden.mT, signs)


def _steps(lessons: Sequence[Lesson], steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Features of model and teachers at each step, [lessons, 16, width] each."""
    import torch

    encoded = lessons[0].encoded
    assert encoded.pool is not None
    ours = torch.from_numpy(encoded.pool.x)
    theirs = torch.from_numpy(np.concatenate([one.x for one in encoded.teachers]))
    units = torch.from_numpy(np.stack([one.batches(steps) for one in lessons], axis=1))
    begins = torch.tensor([one.place * len(ours) for one in lessons])[:, None]
    for step in units:
        yield ours[step].double(), theirs[begins + step].double()
