"""The measures of a comparison that tables and heat maps show, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.inspecting.comparison import Comparison


@dataclass(frozen=True)
class Measure:
    """A number for each part of two models.

    `title` says what it is of `{first}` and `{second}`, `unit` what a colour stands for. `low` is
    where its scale begins, if no value is smaller, and `high` where it ends: None for the largest
    value in a layer. `form` is how a number is written.
    """

    name: str
    title: str
    unit: str
    of: Callable[[Comparison], float | None]
    of_vectors: bool = False
    low: float = 0.0
    high: float | None = None
    form: str = ".3g"


MEASURES = (
    Measure(
        "distance",
        "Distance between the weights of {first} and {second}",
        "L2 norm of the difference",
        lambda one: one.distance,
    ),
    Measure(
        "relative",
        "Distance between the weights of {first} and {second}, relative to their norm",
        "L2 norm of the difference / root mean square of both norms",
        lambda one: one.relative,
    ),
    Measure(
        "cosine",
        "Cosine of the task vectors of {first} and {second}",
        "cosine (1: same direction, 0: orthogonal)",
        lambda one: one.cosine,
        of_vectors=True,
        high=1.0,
        form=".3f",
    ),
    Measure(
        "agreement",
        "Signs that the task vectors of {first} and {second} share",
        "share of entries nonzero in both (0.5: chance)",
        lambda one: one.agreement,
        of_vectors=True,
        low=0.5,
        high=1.0,
        form=".3f",
    ),
)


def shown(*, with_base: bool) -> list[Measure]:
    """Those that can be had: task vectors need a base."""
    return [measure for measure in MEASURES if with_base or not measure.of_vectors]
