"""The status of a study: what is done, what failed and why, how long the rest takes; how much
sets of experts differ, and how many sets would make a difference significant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import isinf
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from harness.checkpoints.layout import MODEL_FILES
from harness.checkpoints.open import local_folder
from harness.errors import BadRecipe
from harness.reporting.frame import read_records
from harness.stats.tests import sets_needed
from harness.studies.board import record_paths
from harness.studies.inputs import place_of
from harness.studies.outcomes import Outcome, of_other_code
from harness.studies.plan import Plan, SecondsEstimate, estimate_seconds
from harness.studies.step import VERBS
from harness.text import counted, few
from harness.types import ALL

if TYPE_CHECKING:
    import pandas

HOUR = 3600.0
SPREAD_KEYS = ["base", "protocol", "options", "shots"]
"""Columns of records: each combination of their values has a spread."""


def price_of(plan: Plan, names: Sequence[str]) -> tuple[SecondsEstimate, int]:
    """The estimated time of these steps for one worker, and how many of them have no estimate."""
    prices = [estimate_seconds(plan.steps[name]) for name in names]
    known = [price for price in prices if price is not None]
    total = SecondsEstimate(
        sum(price.seconds for price in known), any(price.at_most for price in known)
    )
    return total, len(prices) - len(known)


def _time_text(estimate: SecondsEstimate, unknown: int) -> str:
    """An estimate in words, with the number of steps without one."""
    seconds = estimate.seconds
    if seconds < 120:
        text = f"{seconds:.0f} s"
    elif seconds < 2 * HOUR:
        text = f"{seconds / 60:.0f} min"
    else:
        text = f"{seconds / HOUR:.1f} h"
    text = f"at most {text}" if estimate.at_most else text
    more = f"{unknown} step{'s' * (unknown > 1)} without an estimate" if unknown else ""
    return " + ".join(part for part in (text if seconds else "", more) if part) or text


def status_table(plan: Plan, outcomes: Mapping[str, Outcome]) -> list[list[str | int]]:
    """A line for each verb: steps, done, failed, begun, missing, estimated time of the rest."""
    lines: list[list[str | int]] = []
    for verb in VERBS:
        steps = [step for step in plan.steps.values() if step.verb == verb]
        if not steps:
            continue
        states = Counter(outcomes[step.name].state for step in steps)
        rest = [step.name for step in steps if outcomes[step.name].state not in ("done", "failed")]
        counts = [states[state] for state in ("done", "failed", "begun", "missing")]
        lines.append([verb, len(steps), *counts, _time_text(*price_of(plan, rest)) if rest else ""])
    return lines


def failures(plan: Plan, outcomes: Mapping[str, Outcome]) -> list[str]:
    """A line for each reason of failed steps, with how many steps need them; and one for merges by
    plug-ins whose code has changed since."""
    failed: dict[str, list[str]] = {}
    old: list[str] = []
    for name, outcome in outcomes.items():
        step = plan.steps[name]
        if outcome.state == "failed":
            waiting = len(plan.with_dependents([name])) - 1
            needed = f" (needed by {waiting} step{'s' * (waiting > 1)})" * bool(waiting)
            failed.setdefault(f"{outcome.reason}{needed}", []).append(name)
        elif (
            outcome.state == "done"
            and step.verb == "merge"
            and of_other_code(step, outcome, Path())
        ):
            old.append(name)
    lines = [f"failed: {', '.join(names)}: {why}" for why, names in failed.items()]
    lines += ["failed steps are done again with --retry-failed"] * bool(failed)
    note = f"made before the code of their plug-ins changed, and kept: {few(old)}"
    return lines + [f"{note}; to make them again, add --remake-changed"] * bool(old)


def amounts(plan: Plan, folder: Path) -> str:
    """The cells, rows through models and bytes of a plan in words, with how many are unknown."""
    rows, more = _passes(plan)
    size, others = _bytes(plan, folder)
    uncounted = f" and the unknown number of {counted(more, 'evaluation')}" * bool(more)
    unsized = f" and {others} of unknown size" * bool(others)
    total = f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
    return (
        f"{counted(plan.cells, 'cell')} (merge x task x protocol), {rows} rows through "
        f"models{uncounted}, {total} of models{unsized} in {folder}/"
    )


def _passes(plan: Plan) -> tuple[int, int]:
    """How many rows go through models that are scored, and how many evaluations are not counted.

    Models beside the merges of a set count once.
    """
    rows = unknown = 0
    for step in plan.evaluations:
        # the merge, its expert on the task, the base and the references
        models = 1 if step.after else 3 + len(step.request.get("references", ()))
        rows += models * int(step.size or 0)
        unknown += step.size is None
    return rows, unknown


def _bytes(plan: Plan, folder: Path) -> tuple[int, int]:
    """Bytes of the folders that a plan makes, and how many folders are of unknown size.

    Experts and merges are taken to be as large as their base.
    """
    made = [step for step in plan.steps.values() if step.verb in ("finetune", "merge")]
    size = {step.base: _size(place_of(step.base, folder)) for step in made}
    return sum(size[step.base] or 0 for step in made), sum(size[step.base] is None for step in made)


def _size(base: str) -> int | None:
    """Bytes of a base; None if it has no safetensors on this machine."""
    found = local_folder(base) if base else None
    paths = [path for pattern in MODEL_FILES for path in found.glob(pattern)] if found else []
    whole = any(path.suffix == ".safetensors" for path in paths)
    return sum(path.stat().st_size for path in paths) if whole else None


# Sets of experts ---------------------------------------------------------------------------


@dataclass(frozen=True)
class SetSpread:
    """How much differences of merges vary over sets of experts, under one protocol.

    `deviation` is the standard deviation over sets of the difference of two merges, in points, the
    median over all pairs of merges. `needed` is the number of sets that would make a difference of
    the points asked for significant, at 5 % with a power of 80 %.
    """

    base: str
    protocol: str
    merges: int
    sets: int
    deviation: float
    needed: int


def spreads(
    plan: Plan, outcomes: Mapping[str, Outcome], folder: Path, points: float
) -> dict[str, list[SetSpread]]:
    """`spreads_of` the records of each board of a study. Raises BadRecipe if there are none."""
    boards = record_paths(plan, outcomes, folder)
    found = {
        name: spreads_of(read_records(*sorted(paths)), points) for name, paths in boards.items()
    }
    present = {name: group for name, group in found.items() if group}
    if not present:
        raise BadRecipe(
            f"{folder} has no two merges that were each made of two sets of experts; expected more "
            "seeds"
        )
    return present


def spreads_of(frame: pandas.DataFrame, points: float) -> list[SetSpread]:
    """A spread for every base, protocol with options and shots, and tasks of a frame of records,
    from means over tasks and draws; none where there is one set, or one merge.

    Only sets of experts of the same tasks are compared. The standard deviation of few values is too
    small on average, which is corrected.
    """
    columns = [*SPREAD_KEYS, "experts_digest", "method"]
    merged = frame[frame.role.astype(str) == "merged"].astype(dict.fromkeys(columns, str))
    by_experts = merged.groupby("experts_digest").task
    tasks = by_experts.transform(lambda names: " ".join(sorted({*map(str, names)})))
    means = merged.assign(tasks=tasks).groupby([*columns, "tasks"]).value.mean()
    found = []
    for key, values in means.groupby([*SPREAD_KEYS, "tasks"]):
        table = values.unstack("method").dropna(axis="columns")
        if len(table) < 2 or table.shape[1] < 2:
            continue
        pairs = combinations(table.to_numpy().T, 2)
        deviations = [float((a - b).std(ddof=1)) for a, b in pairs]
        deviation = median(deviations) / (1 - 1 / (4 * (len(table) - 1)))
        base, protocol, shots = key[0], key[1], float(key[3])
        taken = counted(ALL if isinf(shots) else int(shots), "shot")
        name = f"{protocol}, {taken}" if shots else protocol
        needed = sets_needed(deviation, points) if deviation else 2
        base = "" if base in ("", "nan", "None") else Path(base).name
        found.append(SetSpread(base, name, table.shape[1], len(table), deviation, needed))
    return found
