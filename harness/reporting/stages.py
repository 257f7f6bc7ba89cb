"""Pure: a recorded recipe -> the names of its stages, as the papers print them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from typing import Any, NamedTuple

from harness.entries import Method
from harness.evaluation.records import RecordedRecipe, RecordedStage
from harness.methods import functions_run, resolved_options
from harness.registry import STAGES
from harness.types import Choice, Scalar


class Stages(NamedTuple):
    """The methods of a merge, with the options that are not their defaults."""

    premerge: tuple[str, ...]
    merger: str
    postmerge: tuple[str, ...] = ()

    def __str__(self) -> str:
        """As the papers print it: `dare[ties]+lines`."""
        before = "+".join(self.premerge)
        return "+".join([f"{before}[{self.merger}]" if before else self.merger, *self.postmerge])


def stages_of(
    recipe: RecordedRecipe,
    tuned: Collection[str] = (),
    merge_name: str = "",
    *,
    mark_tuned: bool = False,
) -> Stages:
    """The names of a recipe's methods, without tuned options; `mark_tuned` adds `(OPTION tuned)`.

    The defaults of a plug-in that is not loaded are unknown: its name keeps the options that it has
    in `merge_name`, the name that the merge was given.
    """
    short = [_stage_name(*one, tuned, merge_name, mark_tuned) for one in recipe.stages]
    first = len(recipe.premerge)
    return Stages(tuple(short[:first]), short[first], tuple(short[first + 1 :]))


def _stage_name(
    kind: str, stage: RecordedStage, tuned: Collection[str], called: str, with_tuned: bool
) -> str:
    """A stage with its options, except for defaults, the seed and tuned ones."""
    pairs = [name.rpartition(".")[::2] for name in tuned]
    own = [
        option for name, option in pairs if name == stage.name or (not name and kind == "merger")
    ]
    usual, omitted = _usual(kind, stage.name), {"seed", *own}
    items = stage.options.items()
    unusual = {
        k: v for k, v in items if (f"{k}=" in called if usual is None else v != usual.get(k, ...))
    }
    text = str(Choice(stage.name, {k: v for k, v in unusual.items() if k not in omitted}))
    return text + "".join(f" ({option} tuned)" for option in own * with_tuned)


def _usual(kind: str, name: str) -> Mapping[str, Scalar] | None:
    """The default options of a method; None for a plug-in that is not loaded."""
    if name not in STAGES[kind]:
        return None
    method = STAGES[kind][name]
    return _defaults(method, *functions_run(method))


@cache  # by the functions: a plug-in may be loaded, and a method of a notebook defined, again
def _defaults(method: Method, *_: Callable[..., Any]) -> Mapping[str, Scalar]:
    return resolved_options(method, Choice(method.name))
