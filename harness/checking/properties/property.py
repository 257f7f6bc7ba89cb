"""Properties, and the methods that are checked for them."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from harness import weights
from harness.checking import toys
from harness.checking.toys import ToyExperts
from harness.types import Choice, StateDict

StageName: TypeAlias = Literal["merger", "premerge", "postmerge"]
"""The stage of a merge that a method belongs to."""


class Broken(AssertionError):
    """A method breaks a property; the message says how, and names the tensor."""


@dataclass(frozen=True)
class CheckedMethod:
    """A method of any stage with all its options and a number of experts, as properties call it.

    A post-merging method gets the mean of the experts as the merge. A method that is declared not
    to read the base gets an empty one.
    """

    stage: StageName
    choice: Choice
    function: Callable[..., Any]
    needs: tuple[str, ...] = ()
    experts: int = 3
    reads_base: bool = True

    def __call__(self, family: ToyExperts) -> list[StateDict]:
        """The merged model alone, or every expert after the pre-merging method.

        Raises Broken if the method returned something else.
        """
        merged = [weights.mean(family.experts)] if self.stage == "postmerge" else []
        arguments = {**self.choice.options, **family.needs}
        base = family.base if self.reads_base else {}
        output = self.function(*merged, family.experts, base, **arguments)
        states = [output] if self.makes_one else output
        expected = "a mapping from names to tensors" if self.makes_one else "a list of experts"
        if not isinstance(states, list | tuple) or not all(
            isinstance(state, Mapping) for state in states
        ):
            raise Broken(f"the method returned a {type(output).__name__}, expected {expected}")
        return [*states]

    @property
    def makes_one(self) -> bool:
        """Whether it returns one model rather than one for each expert."""
        return self.stage != "premerge"

    def which(self, place: int) -> str:
        """A prefix that names a result in a finding; empty for a method that returns one model."""
        return "" if self.makes_one else f"expert {place + 1}: "

    def family(self, shapes: toys.Shapes | None = None) -> ToyExperts:
        """Fresh toy experts, base and needs for the method."""
        return toys.family(self.experts, self.needs, shapes)


Check: TypeAlias = Callable[[CheckedMethod], "str | None"]


@dataclass(frozen=True)
class Property:
    """A named promise about methods of some stages.

    `check` raises Broken, naming the tensor, if the promise is not kept; it may return a remark.
    """

    name: str
    check: Check
    stages: tuple[StageName, ...]

    @property
    def promise(self) -> str:
        """The promise in one line: the first sentence of the docstring of `check`."""
        text = " ".join((inspect.getdoc(self.check) or "").split())
        return text.partition(". ")[0].rstrip(".")


PROPERTIES: dict[str, Property] = {}
"""All properties by name, in the order in which they are checked."""


def checks(name: str, *stages: StageName) -> Callable[[Check], Check]:
    """A decorator that adds a property of methods of `stages`, by default of all stages."""

    def add(check: Check) -> Check:
        PROPERTIES[name] = Property(name, check, stages or typing.get_args(StageName))
        return check

    return add
