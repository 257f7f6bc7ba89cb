"""The measures of a comparison that tables and heat maps show, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from harness.inspecting.comparison import Comparison


@dataclass(frozen=True)
class Measure:
    """A number for each part of two models, the property of a `Comparison` of this name.

    `title` says what it is of `{first}` and `{second}`, `unit` what a colour stands for. `low` is
    where its scale begins, if no value is smaller, and `high` where it ends: None for the largest
    value in a layer. `form` is how a number is written.
    """

    name: str
    title: str
    unit: str
    of_vectors: bool = False
    low: float = 0.0
    high: float | None = None
    form: str = ".3g"

    def of(self, one: Comparison) -> float | None:
        """Its value, None where it is not defined."""
        value: float | None = getattr(one, self.name)
        return value


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


def shown(*, with_base: bool) -> list[Measure]:
    """Those that can be had: task vectors need a base."""
    return [measure for measure in MEASURES if with_base or not measure.of_vectors]
