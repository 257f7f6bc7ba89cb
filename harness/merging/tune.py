"""The search for an option's value, `--tune OPTION=FIRST:LAST:STEP` or `--tune
METHOD.OPTION=[A,B]`: a plan for every value that is tried, and the plan that scores best."""

from __future__ import annotations

import gc
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from harness import weights
from harness.entries import Method
from harness.errors import BadOption
from harness.merging.initialisation import check_shared_initialisation
from harness.merging.plan import MergePlan, compose_merge, spool_rereads, with_merged_state
from harness.merging.providers import prepare
from harness.merging.recipes import Recipe, methods_of, with_choices
from harness.merging.spool import Spool
from harness.merging.validation import CANDIDATES, ValidationScorer
from harness.options import options, resolve
from harness.types import Choice, Rows, Scalar

TRIALS = 1000
"""More candidates than this are taken for a mistake in the step."""


def candidates(plan: MergePlan, again: Callable[[Recipe], MergePlan]) -> dict[Scalar, MergePlan]:
    """The plan for every value that is to be tried; empty if nothing is tuned.

    For an option of the merger the plans share all that comes before it; for another method's each
    plan is made by `again`, and reads rows by itself.
    """
    recipe = plan.recipe
    name, values = grid(recipe)
    method, _, option = name.rpartition(".")
    if method in ("", recipe.merger.name):
        return {value: compose_merge(plan, **{option: value}) for value in values}

    def changed(value: Scalar) -> Recipe:
        def with_value(_: Method, choice: Choice) -> Choice:
            own = {option: value} if choice.name == method else {}
            return Choice(choice.name, {**choice.options, **own})

        return with_choices(recipe, with_value)

    return {value: again(changed(value)) for value in values}


def with_shared_direction(candidates: dict[Scalar, MergePlan]) -> dict[Scalar, MergePlan]:
    """The candidates; if all are points base + scale * direction, with one direction, kept on disk.

    So a search for the scale decomposes every matrix once, and the best merge is written with the
    same bytes as without tuning.
    """
    merged = {value: plan.merged for value, plan in candidates.items()}
    lines = {value: one for value, one in merged.items() if isinstance(one, weights.ScaledMerge)}
    first = next(iter(candidates.values()))
    method, _, option = values_of(str(first.recipe.tune))[0].rpartition(".")
    is_scale = method in ("", first.recipe.merger.name) and option == weights.SCALE
    if len(lines) < len(candidates) or not is_scale or first.spool is None:
        return candidates
    (direction,) = first.spool.states([next(iter(lines.values())).direction])
    shared = {v: weights.ScaledMerge(line.base, direction, line.scale) for v, line in lines.items()}
    return {value: with_merged_state(candidates[value], line) for value, line in shared.items()}


def scored_row_counts(candidates: Mapping[Scalar, MergePlan]) -> dict[str, int]:
    """The number of rows that candidates are scored on, by its label in the progress."""
    first = next(iter(candidates.values()), None)
    return {CANDIDATES: _scorer(first, len(candidates)).reads} if first else {}


def _scorer(candidate: MergePlan, count: int) -> ValidationScorer:
    """The scorer of one of `count` candidates, with heads from the same pre-merging methods."""
    scorer = candidate.merger_stage.scorer
    assert scorer is not None
    return replace(scorer, expected=count)


def choose_best(candidates: dict[Scalar, MergePlan], out: Path) -> tuple[MergePlan, dict[str, Any]]:
    """The plan whose merge scores best (of equals, the first), and a record of every trial.

    What is read twice of a candidate is on the disk of `out` while it is scored. Candidates are
    taken out of the dictionary, so that one that is beaten is freed, with all it has read and made.
    """
    count, scores = len(candidates), dict[Scalar, float]()
    rows: tuple[Rows, ...] | None = None
    best: MergePlan | None = None
    chosen = next(iter(candidates))
    for value in [*candidates]:
        candidate: MergePlan | None = candidates.pop(value)
        assert candidate is not None
        scorer = _scorer(candidate, count)
        scorer = scorer.on(rows) if rows else scorer
        prepare(candidate.providers)
        check_shared_initialisation(candidate)
        with Spool(out) as spool:
            scores[value] = scorer(spool_rereads(candidate, spool).state)
        rows = scorer.rows
        if best is None or scores[value] > scores[chosen]:
            best, candidate, chosen = candidate, best, value
        if candidate and candidate.spool and candidate.spool is not best.spool:
            candidate.spool.close()
            del candidate, scorer
            gc.collect()  # lazy states are in reference cycles
    assert best is not None
    splits = _scorer(best, count).splits
    return best, {
        "tune": best.recipe.tune,
        "on": list(splits),
        "protocol": "current",
        "trials": [{"value": value, "score": score} for value, score in scores.items()],
        "chosen": chosen,
    }


def grid(recipe: Recipe) -> tuple[str, list[Scalar]]:
    """The option that is tuned, of the merger or METHOD.OPTION, and its values; "" and none if
    nothing is tuned.

    Raises BadOption for a method that does not occur exactly once, for steps through an option that
    is no number, and for a value out of its range.
    """
    if recipe.tune is None:
        return "", []
    name, values = values_of(recipe.tune)
    method, _, option = name.rpartition(".")
    method = method or recipe.merger.name
    methods = {entry.name: entry for entry, _ in methods_of(recipe)}
    counts = Counter(choice.name for _, choice in methods_of(recipe))
    if counts[method] != 1:
        once = ", ".join(name for name, count in counts.items() if count == 1)
        raise BadOption(
            f"--tune names the method {method}; expected one that the merge has exactly once: "
            f"{once or 'it has none'}"
        )
    by_name = options(methods[method].function)
    numbers = [one.name for one in by_name.values() if type(one.default) in (int, float)]
    if option not in numbers and isinstance(values[0], float):
        these = ", ".join(numbers) or "it has none"
        raise BadOption(
            f"'{option}' of {method} cannot be tuned in steps; expected an option that is a "
            f"number: {these}"
        )
    read = [
        resolve("method", Choice(method, {option: v}), methods[method].function) for v in values
    ]
    return name, [chosen[option] for chosen in read] if isinstance(values[0], str) else values


def values_of(text: str) -> tuple[str, list[Scalar]]:
    """`scale=0.1:1.0:0.1` -> the option and its values, from first to last by the step.

    For a list in brackets, the values are text, as written.
    """
    name, equals, spelled = text.partition("=")
    if listed := re.fullmatch(r"\[([^\[\]]+)\]", spelled.strip()):
        return name.strip(), [value.strip() for value in listed[1].split(",")]
    try:
        first, last, step = map(Decimal, spelled.split(":"))
        finite = first.is_finite() and last.is_finite() and step.is_finite()
        fits = bool(equals) and finite and last >= first and step > 0
        fits = fits and (last - first) / step < TRIALS
    except (ArithmeticError, ValueError):  # of Decimal: InvalidOperation, Overflow
        fits = False
    if not fits:
        raise BadOption(
            f"--tune is '{text}', expected OPTION=FIRST:LAST:STEP with FIRST <= LAST, a positive "
            f"STEP and at most {TRIALS} values: scale=0.1:1.0:0.1, or a list: density=[0.1,1]"
        )
    count = int((last - first) / step) + 1
    return name.strip(), [float(first + step * index) for index in range(count)]
