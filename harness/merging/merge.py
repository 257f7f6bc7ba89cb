"""From a recipe to a merged folder: plan, obtain what data must say, tune, write."""

from __future__ import annotations

import os
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from harness import weights
from harness.checkpoints.layout import MERGE
from harness.errors import BadOption, OutputExists
from harness.files import check_output
from harness.merging.plan import Plan, composed, parts, plan
from harness.merging.recipes import Recipe, read_recipe
from harness.merging.write import write
from harness.options import options
from harness.registry import MERGERS
from harness.types import Progress

TRIALS = 1000
"""More candidates than this are taken for a slip in the step."""


def merge(
    recipe: Recipe | str | Path,
    *,
    out: str | Path,
    force: bool = False,
    dry_run: bool = False,
    allow_pickle: bool = False,
    progress: Progress | None = None,
) -> Plan:
    """Merge as the recipe (or its YAML file) says and write the folder `out`.

    `force` replaces an older merge there. Returns the plan. With `dry_run` everything that headers
    can tell is checked and nothing is written. `progress` is called with what is being done, how
    much since the last call and how much in all. Raises a HarnessError before anything is written,
    or for NaN and Inf while streaming, with no partial output left.
    """
    asked = recipe if isinstance(recipe, Recipe) else read_recipe(recipe)
    check_output(Path(out), MERGE, force=force)
    observed: dict[str, weights.Observed] = {}
    found = plan(asked, allow_pickle=allow_pickle, observed=observed, progress=progress)
    for part in (*found.experts, *([found.base] if found.base else [])):
        if part.path.resolve().is_relative_to(os.path.realpath(out)):
            raise OutputExists(
                f"{out} holds {part.source}, which goes into the merge; expected another --out"
            )
    candidates = _candidates(found)
    if dry_run:
        return found
    for supply in found.supplies:
        supply.prepare(progress)
    trials = None
    if candidates:
        found, trials = tuned(candidates)
    tell = progress or (lambda what, done, total: None)
    write(found, Path(out), observed, tell, trials=trials, force=force)
    return found


# Coefficient search ------------------------------------------------------------------------


def _candidates(found: Plan) -> dict[float, Plan]:
    """The plan for every value that is to be tried; none if nothing is tuned.

    Raises BadOption for an option or a value that the merger cannot take, before any is tried.
    """
    if found.recipe.tune is None:
        return {}
    name, values = grid(found.recipe.tune)
    merger = MERGERS[found.recipe.merger.name]
    numbers = [
        option.name
        for part in parts(merger)[:1]
        for option in options(part).values()
        if isinstance(option.default, int | float) and not isinstance(option.default, bool)
    ]
    if name not in numbers:
        raise BadOption(
            f"'{name}' of {merger.name} cannot be tuned; expected a number among its options: "
            f"{', '.join(numbers) or 'it has none'}"
        )
    return {value: composed(found, **{name: value}) for value in values}


def grid(text: str) -> tuple[str, list[float]]:
    """`scale=0.1:1.0:0.1` -> the option and its values, from first to last by the step."""
    name, equals, spelled = text.partition("=")
    try:
        first, last, step = map(Decimal, spelled.split(":"))
        fits = bool(equals) and first.is_finite() and last >= first and step > 0
    except (InvalidOperation, ValueError):
        fits = False
    if not fits or (last - first) / step >= TRIALS:
        raise BadOption(
            f"--tune is '{text}', expected OPTION=FIRST:LAST:STEP with FIRST <= LAST, a positive "
            f"STEP and at most {TRIALS} values: scale=0.1:1.0:0.1"
        )
    count = int((last - first) / step) + 1
    return name.strip(), [float(first + step * index) for index in range(count)]


def tuned(candidates: dict[float, Plan]) -> tuple[Plan, dict[str, Any]]:
    """The plan whose merge scores best (of equals, the first), and a record of every trial."""
    judge = next(iter(candidates.values())).judge
    assert judge is not None
    judge = replace(judge, expected=len(candidates))
    scores = {value: judge(candidate.state) for value, candidate in candidates.items()}
    best = max(scores, key=lambda value: scores[value])
    recipe = candidates[best].recipe
    return candidates[best], {
        "tune": recipe.tune,
        "on": list(judge.splits),
        "protocol": "current",
        "trials": [{"value": value, "score": score} for value, score in scores.items()],
        "chosen": best,
    }
