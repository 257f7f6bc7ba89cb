"""Pure: two tensors -> sums that add up over tensors, and the measures that are read off them."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch


@dataclass(frozen=True)
class Comparison:
    """What two models differ by in some of their entries, as sums: that of two parts is their `+`.

    `entries` is their number, `norms2` are the squared norms of the weights of both, `apart2` is
    their squared distance. Of the entries that the base has, too: `moved2` are the squared norms of
    both task vectors, `product` is their inner product, `both` the number of entries that are
    nonzero in both, and `same` the number of those with the same sign.
    """

    entries: int = 0
    norms2: tuple[float, float] = (0.0, 0.0)
    apart2: float = 0.0
    moved2: tuple[float, float] = (0.0, 0.0)
    product: float = 0.0
    both: int = 0
    same: int = 0

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(
            self.entries + other.entries,
            _both(self.norms2, other.norms2),
            self.apart2 + other.apart2,
            _both(self.moved2, other.moved2),
            self.product + other.product,
            self.both + other.both,
            self.same + other.same,
        )

    @property
    def distance(self) -> float:
        """The L2 norm of the difference of the weights."""
        return sqrt(self.apart2)

    @property
    def relative(self) -> float | None:
        """The distance over the root mean square of both norms: 0 to 2; None if both are 0."""
        return _ratio(self.distance, sqrt(sum(self.norms2) / 2))

    @property
    def moved(self) -> tuple[float, float]:
        """The norms of both task vectors."""
        first, second = self.moved2
        return sqrt(first), sqrt(second)

    @property
    def ratio(self) -> float | None:
        """How many times the longer task vector is as long as the shorter; None if that is 0."""
        return _ratio(max(self.moved), min(self.moved))

    @property
    def cosine(self) -> float | None:
        """The cosine of the angle between the task vectors; None where one of them is 0."""
        first, second = self.moved2
        value = _ratio(self.product, sqrt(first * second))
        return None if value is None else max(-1.0, min(1.0, value))

    @property
    def agreement(self) -> float | None:
        """The share of entries nonzero in both task vectors that have the same sign in both."""
        return _ratio(self.same, self.both)


def _both(mine: tuple[float, float], theirs: tuple[float, float]) -> tuple[float, float]:
    return mine[0] + theirs[0], mine[1] + theirs[1]


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None


def compared(
    first: torch.Tensor, second: torch.Tensor, origin: torch.Tensor | None = None
) -> Comparison:
    """What two flat tensors differ by, in float64; `origin` is the base's, if it has one.

    By hand: (3, 0) and (0, 4) from (1, 1) are 5 apart, which is 1.414 of the root mean square of 3
    and 4. The task vectors (2, -1) and (-1, 3) have norms of 2.236 and 3.162, one 1.414 times the
    other, an inner product of -5 and so a cosine of -0.707. No sign of two is the same.
    """
    first, second = first.double(), second.double()
    apart = first - second
    whole = Comparison(first.numel(), (_dot(first), _dot(second)), _dot(apart))
    if origin is None:
        return whole
    vectors = first - origin.double(), second - origin.double()
    signs = vectors[0].sign() * vectors[1].sign()
    return whole + Comparison(
        moved2=(_dot(vectors[0]), _dot(vectors[1])),
        product=_dot(*vectors),
        both=int(signs.count_nonzero()),
        same=int((signs > 0).sum()),
    )


def _dot(first: torch.Tensor, second: torch.Tensor | None = None) -> float:
    return float(torch.dot(first, first if second is None else second))
