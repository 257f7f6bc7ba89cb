"""Coefficient search, `--tune OPTION=FIRST:LAST:STEP`: the plan of every value that is tried, and
the one that scores best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

from harness import weights
from harness.errors import BadOption
from harness.merging.plan import MergePlan, completed, composed, read_once
from harness.merging.recipes import Recipe
from harness.merging.spool import Spool
from harness.merging.validation import CANDIDATES, ValidationScorer
from harness.options import options, resolve
from harness.registry import MERGERS
from harness.types import Choice

TRIALS = 1000
"""More candidates than this are taken for a slip in the step."""


def candidates(plan: MergePlan) -> dict[float, MergePlan]:
    """The plan for every value that is to be tried; none if nothing is tuned."""
    name, tried = grid(plan.recipe)
    return {value: composed(plan, **{name: value}) for value in tried}


def found_once(candidates: dict[float, MergePlan], spool: Spool) -> dict[float, MergePlan]:
    """The candidates; those on a line with its direction kept on disk when it has been found.

    A sweep along it decomposes every matrix once, and what is written of the best has the bytes of
    a merge that is not tuned.
    """
    merged = {value: plan.merged for value, plan in candidates.items()}
    lines = {value: one for value, one in merged.items() if isinstance(one, weights.ScaledMerge)}
    tune = next(iter(candidates.values())).recipe.tune
    if len(lines) < len(candidates) or values_of(str(tune))[0] != weights.SCALE:
        return candidates
    (direction,) = spool.states([next(iter(lines.values())).direction])
    again = {v: weights.ScaledMerge(line.base, direction, line.scale) for v, line in lines.items()}
    return {value: completed(candidates[value], line) for value, line in again.items()}


def _scorer(candidates: Mapping[float, MergePlan]) -> ValidationScorer:
    """What scores all candidates."""
    scorer = next(iter(candidates.values())).merging.scorer
    assert scorer is not None
    return replace(scorer, expected=len(candidates))


def scored(candidates: Mapping[float, MergePlan]) -> dict[str, int]:
    """How many rows candidates are scored on, by what is told of it."""
    return {CANDIDATES: _scorer(candidates).reads} if candidates else {}


def tuned(candidates: dict[float, MergePlan], out: Path) -> tuple[MergePlan, dict[str, Any]]:
    """The plan whose merge scores best (of equals, the first), and a record of every trial.

    What is read twice of a candidate is on the disk of `out` while that one is scored.
    """
    scorer = _scorer(candidates)
    scores = {}
    for value, candidate in candidates.items():
        with Spool(out) as spool:
            scores[value] = scorer(read_once(candidate, spool).state)
    best = max(scores, key=lambda value: scores[value])
    recipe = candidates[best].recipe
    return candidates[best], {
        "tune": recipe.tune,
        "on": list(scorer.splits),
        "protocol": "current",
        "trials": [{"value": value, "score": score} for value, score in scores.items()],
        "chosen": best,
    }


def grid(recipe: Recipe) -> tuple[str, list[float]]:
    """The option of the merger that is tuned, and its values; none if nothing is tuned.

    Raises BadOption for an option that is no number, and for a value out of its range.
    """
    if recipe.tune is None:
        return "", []
    name, values = values_of(recipe.tune)
    merger = MERGERS[recipe.merger.name]
    known = options(merger.function).values()
    numbers = [option.name for option in known if type(option.default) in (int, float)]
    if name not in numbers:
        these = ", ".join(numbers) or "it has none"
        raise BadOption(f"'{name}' of {merger.name} cannot be tuned; expected a number: {these}")
    for value in values:
        resolve("merger", Choice(merger.name, {name: value}), merger.function)
    return name, values


def values_of(text: str) -> tuple[str, list[float]]:
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
