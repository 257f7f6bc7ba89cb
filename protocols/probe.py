"""Alignment probes: is the merged encoder the expert's up to a simple map? (FT-Classifier paper)"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np

from harness import Encoded, Predictions, Teacher, protocol
from harness.errors import BadData, BadOption, IncompatibleWeights
from harness.options import NotNegative, Positive, StepCount
from harness.types import Array64

if TYPE_CHECKING:
    import torch

Transform: TypeAlias = Literal[
    "orthogonal", "euclidean", "linear", "invertible", "affine", "scaling", "similarity"
]
GRADIENT = {"steps": 200, "learning_rate": 1e-2, "penalty": 1.0, "distance": "squared"}
"""The options of the gradient fit with their defaults."""
SINGULAR = 1e-8
"""`invertible` raises smaller singular values to this share of the largest one."""
ANY_WIDTH = ("linear", "affine")
"""Transforms that map between features of different width."""


def _check(*, fit: str, **options: object) -> None:
    """Raise BadOption for options of the gradient fit with the closed one."""
    odd = [name for name, usual in GRADIENT.items() if options[name] != usual]
    if fit == "closed" and odd:
        raise BadOption(
            f"probe has {odd[0]}={options[odd[0]]} with fit=closed, expected fit=gradient"
        )


@protocol(
    "probe",
    paper="FT-Classifier, section 3",
    adapts="unlabeled",
    check=_check,
    transductive=lambda *, rows, **_: bool(rows == "test"),
    by_default=False,
)
def probe(
    encoded: Encoded,
    *,
    transform: Transform = "orthogonal",
    rows: Literal["shots", "test"] = "shots",
    fit: Literal["closed", "gradient"] = "closed",
    distance: Literal["squared", "l1"] = "squared",
    steps: StepCount = 200,
    learning_rate: Positive = 1e-2,
    penalty: NotNegative = 1.0,
) -> list[Predictions]:
    """One prediction of the test rows per draw, by the expert's head on features mapped to its own.

    The map z A + c takes the model's features of some rows to the expert's of the same rows with
    the least mean squared distance, under the constraint of `transform`:

    affine        none
    linear        c = 0
    invertible    c = 0, A has an inverse
    euclidean     A^T A = I
    orthogonal    c = 0, A^T A = I
    scaling       c = 0, A = s I
    similarity    A = s R, R^T R = I

    Reflections are allowed. `rows` are those of a draw, whose labels are not used (for tagging, all
    words of its sentences), or all test rows, as in the paper: then the fit is transductive, and
    there is one prediction. `fit=closed` is the exact solution in float64: an orthogonal matrix
    that the rows do not determine is the one nearest to the identity, and linear and affine maps
    have the least norm. `fit=gradient` is Adam from the identity on the distance and, for
    transforms with an orthogonal matrix, `penalty` ||A^T A - I||_F^2 in place of the constraint;
    only then may the distance be the sum of absolute differences, which outliers affect less
    (`distance=l1`). With several experts, each has its own map, and the outputs of their heads are
    averaged, as in the logit ensemble.

    By hand: if the model has features (1, 0) and (0, 1) where the expert has (0, 2) and (-2, 0),
    the orthogonal A is ((0, 1), (-1, 0)), the linear A is ((0, 2), (-2, 0)), and s = 0 for scaling.

    Facts, in the mean over experts: `fit_error` is the mean squared distance, `orthogonality` is
    ||A^T A - I||_F, and `rows_per_dimension` tells whether the rows determine the map: below one,
    an affine or a linear map fits any rows.
    """
    assert encoded.pool is not None, "or there is no such cell"
    _check_widths(encoded.pool.x.shape[1], encoded.teachers, transform)
    solve = CLOSED[transform]
    if fit == "gradient":
        descent = Descent(transform, steps, learning_rate, penalty, distance)
        solve = descent.solved
    test, predictions = encoded.test.x.astype(np.float64), []
    for draw in encoded.draws:
        units = list(draw.units)
        if not units:
            raise BadData(
                f"protocol 'probe' has no row of '{encoded.task}' to fit to; expected one"
            )
        x = encoded.pool.x[units].astype(np.float64)
        targets = [teacher.x[units].astype(np.float64) for teacher in encoded.teachers]
        maps = [solve(x, y) for y in targets]
        pairs = zip(maps, encoded.teachers, strict=True)
        outputs = np.mean([one.outputs(test, teacher) for one, teacher in pairs], axis=0)
        told = [one.facts(x, y) for one, y in zip(maps, targets, strict=True)]
        facts = {name: float(np.mean([one[name] for one in told])) for name in told[0]}
        shown = draw if rows == "shots" else None
        predictions.append(Predictions(encoded.kind.predicted(outputs), shown, facts))
    return predictions


def _check_widths(width: int, teachers: Sequence[Teacher], transform: str) -> None:
    """Raise IncompatibleWeights for different widths, unless the transform maps between them."""
    if transform not in ANY_WIDTH:
        for other in {teacher.x.shape[1] for teacher in teachers} - {width}:
            raise IncompatibleWeights(
                f"features have {width} dimensions and an expert's {other}; expected equal numbers "
                f"for transform={transform}: {' and '.join(ANY_WIDTH)} map between any"
            )


# Maps --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProbeMap:
    """z A + c of features as rows: A is [width, width of the expert's], c [width of the expert's].

    Both are float64.
    """

    a: Array64
    c: Array64

    def outputs(self, x: Array64, teacher: Teacher) -> Array64:
        """The outputs of an expert's head on the mapped features x [units, width]."""
        weight = teacher.head.weight.astype(np.float64).T
        return np.asarray(x @ (self.a @ weight) + (self.c @ weight + teacher.head.bias))

    def facts(self, x: Array64, y: Array64) -> dict[str, float]:
        """The facts of the map as a fit from rows x to rows y."""
        rest = x @ self.a + self.c - y
        return {
            "fit_error": float((rest**2).sum(axis=1).mean()),
            "orthogonality": float(np.linalg.norm(self.a.T @ self.a - np.eye(self.a.shape[1]))),
            "rows_per_dimension": len(x) / x.shape[1],
        }


SHIFTED = ("affine", "euclidean", "similarity")
TURNED = ("euclidean", "orthogonal", "similarity")
SCALED = ("scaling", "similarity")


def closed(transform: Transform, x: Array64, y: Array64) -> ProbeMap:
    """The map that takes rows x nearest to rows y, [rows, width] each."""
    if transform == "affine":
        both = _least_squares(np.column_stack([x, np.ones(len(x))]), y)
        return ProbeMap(both[:-1], both[-1])
    if transform in ("linear", "invertible"):
        a = _least_squares(x, y)
        if transform == "invertible":
            left, values, right = np.linalg.svd(a)
            a = np.asarray(left * np.maximum(values, SINGULAR * values.max()) @ right)
        return ProbeMap(a, np.zeros(y.shape[1]))
    # with a shift, the best map takes the mean of x to the mean of y
    mean, wanted = (one.mean(axis=0) * (transform in SHIFTED) for one in (x, y))
    x, y = x - mean, y - wanted
    a = _turn(x, y) if transform in TURNED else np.eye(x.shape[1])
    size = float((x**2).sum())
    if transform in SCALED and size:
        a = float(((x @ a) * y).sum()) / size * a
    return ProbeMap(a, wanted - mean @ a)


def _least_squares(x: Array64, y: Array64) -> Array64:
    return np.asarray(np.linalg.lstsq(x, y, rcond=None)[0])


def _turn(x: Array64, y: Array64) -> Array64:
    """The orthogonal polar factor of x^T y, [width, width]; undetermined directions move least."""
    import torch

    from harness import weights

    (turn,) = weights.turns_to(torch.from_numpy(y), [torch.from_numpy(x)])
    return np.asarray(turn(torch.eye(x.shape[1], dtype=torch.float64)))


CLOSED: Mapping[str, Callable[[Array64, Array64], ProbeMap]] = {
    name: partial(closed, name) for name in get_args(Transform)
}


# By gradient -------------------------------------------------------------------------------

RIDGE = 0.01
"""An invertible A is M^T M + RIDGE I."""
ROUNDING = 1e-5
"""A relative difference below it counts as none: features are sums of many terms in float32."""


@dataclass(frozen=True)
class Descent:
    """Adam on full batches from the identity, with a penalty for the constraint A^T A = I."""

    transform: str
    steps: int
    learning_rate: float
    penalty: float
    distance: str = "squared"

    def solved(self, x: Array64, y: Array64) -> ProbeMap:
        """The map after the last step."""
        import torch

        rows, wanted = torch.from_numpy(x), torch.from_numpy(y)
        leaves = self._start(x.shape[1], y.shape[1])
        adam = torch.optim.Adam([one for one in leaves if one.requires_grad], lr=self.learning_rate)
        # Adam makes full steps for any gradient: features that equal the expert's are not fitted
        a, c = self._map(*leaves)
        there = (rows @ a + c - wanted).abs() <= ROUNDING * (1 + wanted.abs())
        for _ in range(0 if there.all() else self.steps):
            a, c = self._map(*leaves)
            far = rows @ a + c - wanted
            loss = (far.abs() if self.distance == "l1" else far**2).sum(dim=1).mean()
            if self.transform in TURNED:
                rest = leaves[0].mT @ leaves[0] - torch.eye(len(c), dtype=c.dtype)
                loss = loss + self.penalty * (rest**2).sum()
            adam.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]  # torch has no type for it
            adam.step()
        a, c = self._map(*leaves)
        return ProbeMap(a.detach().numpy(), c.detach().numpy())

    def _start(self, width: int, wide: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A matrix, a shift and a factor that make the identity; fixed ones require no gradient."""
        import torch

        kept, matrix = self.transform, torch.eye(width, wide, dtype=torch.float64)
        if kept == "invertible":
            matrix *= (1 - RIDGE) ** 0.5
        shift, factor = matrix.new_zeros(wide), matrix.new_ones(())
        return (
            matrix.requires_grad_(kept != "scaling"),
            shift.requires_grad_(kept in SHIFTED),
            factor.requires_grad_(kept in SCALED),
        )

    def _map(
        self, matrix: torch.Tensor, shift: torch.Tensor, factor: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.transform == "invertible":
            matrix = matrix.mT @ matrix + RIDGE * matrix.new_ones(len(matrix)).diag()
        return factor * matrix, shift
