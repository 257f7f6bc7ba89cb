"""What there is of a study: how much is done, what failed and why, what it will cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from harness.checkpoints.layout import MODEL_FILES
from harness.checkpoints.open import at_hand
from harness.studies.inputs import place_of
from harness.studies.outcomes import Outcome, methods_code
from harness.studies.plan import Plan
from harness.studies.prices import price
from harness.studies.steps import VERBS
from harness.text import few

HOUR = 3600.0


def price_of(plan: Plan, names: Sequence[str]) -> tuple[float, int]:
    """What it costs one worker to do the steps of these names: seconds, and for how many of them
    nothing like was timed."""
    prices = [price(plan.steps[name]) for name in names]
    known = [one for one in prices if one is not None]
    return sum(known), len(prices) - len(known)


def _told(seconds: float, unknown: int) -> str:
    """A price in words."""
    if seconds < 120:
        known = f"{seconds:.0f} s"
    elif seconds < 2 * HOUR:
        known = f"{seconds / 60:.0f} min"
    else:
        known = f"{seconds / HOUR:.1f} h"
    more = f"{unknown} steps without an estimate" if unknown else ""
    return " + ".join(part for part in (known if seconds else "", more) if part) or known


def status_table(plan: Plan, known: Mapping[str, Outcome]) -> list[list[str | int]]:
    """A line for each verb: steps, done, failed, begun, missing, price of what is left."""
    lines: list[list[str | int]] = []
    for verb in VERBS:
        steps = [step for step in plan.steps.values() if step.verb == verb]
        if not steps:
            continue
        states = Counter(known[step.name].state for step in steps)
        left = [step.name for step in steps if known[step.name].state not in ("done", "failed")]
        counts = [states[one] for one in ("done", "failed", "begun", "missing")]
        lines.append([verb, len(steps), *counts, _told(*price_of(plan, left)) if left else ""])
    return lines


def failures(plan: Plan, known: Mapping[str, Outcome]) -> list[str]:
    """A line for each step that failed, with its reason, and how many wait for it; and one for
    merges that a plug-in made whose code is another now."""
    failed = []
    for name in (name for name, one in known.items() if one.state == "failed"):
        waiting = len(plan.needing([name])) - 1
        needed = f" ({waiting} steps need it)" * bool(waiting)
        failed.append(f"failed: {name}: {known[name].reason}{needed}")
    codes = [(name, one.code, methods_code(plan.steps[name])) for name, one in known.items()]
    old = [name for name, code, now in codes if code and now and code != now]
    kept = f"made before the code of its methods changed, and kept: {few(old)}; for new ones "
    return failed + [f"{kept}choose another --out"] * bool(old)


def amounts(plan: Plan, folder: Path) -> str:
    """Cells, rows through models and bytes of a plan, and what is not known of them."""
    rows, more = _passes(plan)
    size, others = _bytes(plan, folder)
    uncounted = f" and the unknown number of {more} evaluations" * bool(more)
    unsized = f" and {others} of unknown size" * bool(others)
    told = f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
    return (
        f"{plan.cells} cells (merge x task x protocol), {rows} rows through models{uncounted}, "
        f"{told} of models{unsized} in {folder}/"
    )


def _passes(plan: Plan) -> tuple[int, int]:
    """How many rows go through a model that is scored, and of how many evaluations nobody counted.

    Of models beside merges they count once.
    """
    evaluations = [step for step in plan.steps.values() if step.verb == "evaluate"]
    counted = [(one, one.size) for one in evaluations if one.size is not None]
    # the merge, its experts of the task, the base and the references
    rows = sum(
        int(size) * (1 if one.after else 3 + len(one.request.get("references", ())))
        for one, size in counted
    )
    return rows, len(evaluations) - len(counted)


def _bytes(plan: Plan, folder: Path) -> tuple[int, int]:
    """Bytes of the folders that a plan makes, and how many more there are.

    Experts and merges are as large as their base.
    """
    made = [step for step in plan.steps.values() if step.verb in ("finetune", "merge")]
    size = {step.base: _size(place_of(step.base, folder)) for step in made}
    return sum(size[step.base] or 0 for step in made), sum(size[step.base] is None for step in made)


def _size(base: str) -> int | None:
    """Bytes of a base; None where it is still to be fetched."""
    found = at_hand(base) if base else None
    paths = [path for pattern in MODEL_FILES for path in found.glob(pattern)] if found else []
    whole = any(path.suffix == ".safetensors" for path in paths)
    return sum(path.stat().st_size for path in paths) if whole else None
