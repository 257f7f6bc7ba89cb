"""What a property is, and the methods that are tested for it."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from harness import weights
from harness.checking import toys
from harness.checking.toys import ToyExperts
from harness.types import Choice, StateDict

StageName: TypeAlias = Literal["merger", "premerge", "postmerge"]
"""Which stage of a merge a method is."""


class Broken(AssertionError):
    """How a method breaks a property, naming the tensor."""


@dataclass(frozen=True)
class CheckedMethod:
    """A method of any stage as the properties see it: with all its options, on n experts.

    What a post-merging method is given is the mean of the experts. One that does not read the base,
    by what its author says, is given an empty one: it finds nothing there.
    """

    stage: StageName
    choice: Choice
    function: Callable[..., Any]
    needs: tuple[str, ...] = ()
    experts: int = 3
    reads_base: bool = True

    def __call__(self, family: ToyExperts) -> list[StateDict]:
        """The merged model alone, or every expert after the pre-merging method."""
        merged = [weights.mean(family.experts)] if self.stage == "postmerge" else []
        given = {**self.choice.options, **family.needs}
        base = family.base if self.reads_base else {}
        output = self.function(*merged, family.experts, base, **given)
        return [output] if self.makes_one else list(output)

    @property
    def makes_one(self) -> bool:
        """Whether one model comes of it, and not as many as went in."""
        return self.stage != "premerge"

    def which(self, place: int) -> str:
        """How a result is called in what is found: where one is made, not at all."""
        return "" if self.makes_one else f"expert {place + 1}: "

    def family(self, shapes: toys.Shapes | None = None) -> ToyExperts:
        """Fresh toys for it."""
        return toys.family(self.experts, self.needs, shapes)


@dataclass(frozen=True)
class Property:
    """A promise, and the function that raises Broken, naming the tensor, where it is not kept.

    `check` may return a remark.
    """

    name: str
    check: Callable[[CheckedMethod], str | None]
    stages: tuple[StageName, ...]

    @property
    def promise(self) -> str:
        """The promise in one line: the docstring of its function, as far as the first full stop."""
        text = " ".join((inspect.getdoc(self.check) or "").split())
        return text.partition(". ")[0].rstrip(".")


PROPERTIES: dict[str, Property] = {}
"""Every property by its name, in the order in which they are tried."""


def checks(
    name: str, *stages: StageName
) -> Callable[[Callable[[CheckedMethod], str | None]], Callable[[CheckedMethod], str | None]]:
    """Add a property, about methods of all stages unless `stages` says which."""

    def add(check: Callable[[CheckedMethod], str | None]) -> Callable[[CheckedMethod], str | None]:
        PROPERTIES[name] = Property(name, check, stages or typing.get_args(StageName))
        return check

    return add
