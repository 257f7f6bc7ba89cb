"""Pure: two tensors -> sums that add up over tensors, and measures computed from the sums."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from operator import add

import torch


@dataclass(frozen=True)
class WeightComparison:
    """Sums over some entries of two models; `+` joins the sums of two parts.

    `entries` is the number of entries, `first2` and `second2` are the squared norms of the weights,
    `apart2` is their squared distance. Only of entries that the base has, too: `moved2` and
    `other_moved2` are the squared norms of the task vectors, `product` is their inner product,
    `moved_by_both` the number of entries that are nonzero in both, and `same` the number of those
    with the same sign.
    """

    entries: int = 0
    first2: float = 0.0
    second2: float = 0.0
    apart2: float = 0.0
    moved2: float = 0.0
    other_moved2: float = 0.0
    product: float = 0.0
    moved_by_both: int = 0
    same: int = 0

    def __add__(self, other: WeightComparison) -> WeightComparison:
        return WeightComparison(*map(add, vars(self).values(), vars(other).values()))

    @property
    def distance(self) -> float:
        """The L2 norm of the difference of the weights."""
        return sqrt(self.apart2)

    @property
    def relative(self) -> float | None:
        """The distance over the root mean square of both norms: 0 to 2; None if both are 0."""
        return _ratio(self.distance, sqrt((self.first2 + self.second2) / 2))

    @property
    def task_vector_norms(self) -> tuple[float, float]:
        """The norms of both task vectors."""
        return sqrt(self.moved2), sqrt(self.other_moved2)

    @property
    def ratio(self) -> float | None:
        """The norm of the longer task vector over that of the shorter; None if the latter is 0."""
        return _ratio(max(self.task_vector_norms), min(self.task_vector_norms))

    @property
    def cosine(self) -> float | None:
        """The cosine of the angle between the task vectors; None where one of them is 0."""
        value = _ratio(self.product, sqrt(self.moved2 * self.other_moved2))
        return None if value is None else max(-1.0, min(1.0, value))

    @property
    def agreement(self) -> float | None:
        """The share of entries nonzero in both task vectors that have the same sign in both."""
        return _ratio(self.same, self.moved_by_both)


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None


def weight_comparison(
    first: torch.Tensor, second: torch.Tensor, origin: torch.Tensor | None = None
) -> WeightComparison:
    """The comparison of two flat tensors, in float64; `origin` is the base's tensor, if any.

    By hand: (3, 0) and (0, 4), with the base (1, 1), are 5 apart, 1.414 times the root mean square
    of 3 and 4. The task vectors (2, -1) and (-1, 3) have norms of 2.236 and 3.162 (ratio 1.414), an
    inner product of -5 and so a cosine of -0.707. Of two signs none is the same.
    """
    first, second = first.double(), second.double()
    apart = first - second
    whole = first.numel(), float(first @ first), float(second @ second), float(apart @ apart)
    if origin is None:
        return WeightComparison(*whole)
    mine, theirs = first - origin.double(), second - origin.double()
    moved = float(mine @ mine), float(theirs @ theirs), float(mine @ theirs)
    signs = mine.sign() * theirs.sign()
    return WeightComparison(*whole, *moved, int(signs.count_nonzero()), int((signs > 0).sum()))


@dataclass(frozen=True)
class Measure:
    """A measure for tables and heat maps: the property `name` of a `WeightComparison`.

    `title` describes it for `{first}` and `{second}`, `unit` is the label of the colour scale.
    `of_vectors`: it compares task vectors, and needs a base. The scale begins at `low`, or at a
    smaller value, and ends at `high`, None for the largest value in a layer. `form` is the format
    of a number.
    """

    name: str
    title: str
    unit: str
    of_vectors: bool = False
    low: float = 0.0
    high: float | None = None
    form: str = ".3g"


MEASURES = (
    Measure(
        "distance",
        "Distance between the weights of {first} and {second}",
        "L2 norm of the difference",
    ),
    Measure(
        "relative",
        "Distance between the weights of {first} and {second}, relative to their norm",
        "L2 norm of the difference / root mean square of both norms",
    ),
    Measure(
        "cosine",
        "Cosine of the task vectors of {first} and {second}",
        "cosine (1: same direction, 0: orthogonal)",
        of_vectors=True,
        high=1.0,
        form=".3f",
    ),
    Measure(
        "agreement",
        "Signs that the task vectors of {first} and {second} share",
        "share of entries nonzero in both (0.5: chance)",
        of_vectors=True,
        low=0.5,
        high=1.0,
        form=".3f",
    ),
)


def available_measures(*, with_base: bool) -> list[Measure]:
    """The measures that are available: those of task vectors need a base."""
    return [measure for measure in MEASURES if with_base or not measure.of_vectors]
