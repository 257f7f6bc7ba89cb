"""What there is of a study: how much is done, what failed and why, what it will cost."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.checkpoints.layout import MODEL_FILES
from harness.studies.outcomes import Outcome
from harness.studies.plan import Plan
from harness.studies.prices import price
from harness.studies.steps import VERBS

HOUR = 3600.0


@dataclass(frozen=True)
class Price:
    """What some steps cost: seconds of one worker, for how many of them nothing like was timed."""

    seconds: float
    unknown: int

    def __str__(self) -> str:
        if self.seconds < 120:
            known = f"{self.seconds:.0f} s"
        elif self.seconds < 2 * HOUR:
            known = f"{self.seconds / 60:.0f} min"
        else:
            known = f"{self.seconds / HOUR:.1f} h"
        more = f"{self.unknown} steps of a kind not timed here" if self.unknown else ""
        return " + ".join(part for part in (known if self.seconds else "", more) if part) or known


def price_of(plan: Plan, names: Sequence[str]) -> Price:
    """What it costs one worker to do the steps of these names."""
    prices = [price(plan.steps[name]) for name in names]
    known = [one for one in prices if one is not None]
    return Price(sum(known), len(prices) - len(known))


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
        lines.append([verb, len(steps), *counts, str(price_of(plan, left)) if left else ""])
    return lines


def failures(plan: Plan, known: Mapping[str, Outcome]) -> list[str]:
    """A line for each step that failed, with its reason, and how many wait for it."""
    waiting = {name: _users(plan, name) for name, one in known.items() if one.state == "failed"}
    needed = {
        name: f" ({len(users)} steps need it)" * bool(users) for name, users in waiting.items()
    }
    return [f"failed: {name}: {known[name].reason}{more}" for name, more in needed.items()]


def _users(plan: Plan, name: str) -> set[str]:
    """All steps that need a step, or one that needs it."""
    found: set[str] = set()
    open_steps = [name]
    while open_steps:
        for user in plan.users[open_steps.pop()]:
            if user not in found:
                found.add(user)
                open_steps.append(user)
    return found


def passes(plan: Plan) -> int:
    """How many rows go through a model that is scored; of models beside merges, once."""
    evaluations = [step for step in plan.steps.values() if step.verb == "evaluate"]
    # the merge, its experts of the task, the base and the references
    models = (1 if one.after else 3 + len(one.request.get("references", ())) for one in evaluations)
    return sum(int(one.size) * count for one, count in zip(evaluations, models, strict=True))


def bytes_of(plan: Plan, folder: Path) -> int:
    """Bytes of the folders that a plan makes: experts and merges are as large as their base."""
    made = [step for step in plan.steps.values() if step.verb in ("finetune", "merge")]
    # the folder need not be there yet, and `..` leads through it
    size = {step.base: _size(Path(os.path.normpath(folder / step.base))) for step in made}
    return sum(size[step.base] for step in made)


def _size(base: Path) -> int:
    if not base.is_dir():
        return 0
    return sum(path.stat().st_size for pattern in MODEL_FILES for path in base.glob(pattern))
