"""Coefficient search: the plan of every value that is tried, and the one that scores best."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import weights
from harness.merging.candidates import checked_values, values_of
from harness.merging.plan import Plan, completed, composed, read_once
from harness.merging.spool import Spool
from harness.merging.validation import CANDIDATES, ValidationScorer
from harness.registry import MERGERS


def candidates(plan: Plan) -> dict[float, Plan]:
    """The plan for every value that is to be tried; none if nothing is tuned.

    Raises BadOption for what the merger cannot take, before any is tried.
    """
    if plan.recipe.tune is None:
        return {}
    name, tried = checked_values(plan.recipe.tune, MERGERS[plan.recipe.merger.name])
    return {value: composed(plan, **{name: value}) for value in tried}


def found_once(candidates: dict[float, Plan], spool: Spool) -> dict[float, Plan]:
    """The candidates; those on a line with its direction kept on disk when it has been found.

    A sweep along it decomposes every matrix once, and what is written of the best has the bytes of
    a merge that is not tuned.
    """
    merged = {value: plan.merged for value, plan in candidates.items()}
    lines = {value: one for value, one in merged.items() if isinstance(one, weights.Line)}
    tune = next(iter(candidates.values())).recipe.tune
    if len(lines) < len(candidates) or values_of(str(tune))[0] != weights.SCALE:
        return candidates
    (direction,) = spool.states([next(iter(lines.values())).direction])
    return {
        value: completed(candidates[value], weights.Line(line.base, direction, line.scale))
        for value, line in lines.items()
    }


def _scorer(candidates: Mapping[float, Plan]) -> ValidationScorer:
    """What scores all candidates."""
    scorer = next(iter(candidates.values())).scorer
    assert scorer is not None
    return replace(scorer, expected=len(candidates))


def scored(candidates: Mapping[float, Plan]) -> dict[str, int]:
    """How many rows candidates are scored on, by what is told of it."""
    return {CANDIDATES: _scorer(candidates).reads} if candidates else {}


def tuned(candidates: dict[float, Plan], out: Path) -> tuple[Plan, dict[str, Any]]:
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
