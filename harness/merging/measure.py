"""Shell: what the pre-merging stages of a merge did, measured when it has been written."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import combinations

import numpy as np
import torch

from harness import weights
from harness.data.rows import load_rows
from harness.data.sources import TRAIN, at_hand
from harness.data.splits import parse_task
from harness.errors import HarnessError, UnknownName
from harness.merging.passage import Measured
from harness.merging.plan import Plan
from harness.merging.recipes import Recipe
from harness.merging.stages import entering
from harness.passes.features import forward
from harness.passes.statistics import SPLIT
from harness.presets import as_read, preset
from harness.types import Array, Checkpoint, Rows, StateDict

PROBES = 16
"""Rows of its task that an expert is run on."""


def measured(plan: Plan) -> tuple[Measured, ...]:
    """What each pre-merging stage did to the experts.

    The distance is the mean over pairs of experts of the L2 norm of their difference, over all
    parameters of the encoder. The drift is in the logits of 16 training rows of the expert's task,
    in float32, of a local folder or generated; nothing is downloaded, and none is measured of a
    recipe that says so.
    """
    if not plan.passages:
        return ()
    seconds = [one.seconds for one in plan.passages]  # before anything is computed again
    stages = [plan.passages[0].entering, *(one.leaving for one in plan.passages)]
    names = plan.passages[0].encoder
    between = [distance([weights.select(state, names) for state in one]) for one in stages]
    drift = _drifts(plan, stages) if plan.recipe.drift else None
    return tuple(
        Measured(
            _both(between[number : number + 2]),
            seconds[number],
            passage.report,
            drift[number] if drift else (),
        )
        for number, passage in enumerate(plan.passages)
    )


def _both(between: Sequence[float | None]) -> tuple[float, float] | None:
    before, after = between
    return None if before is None or after is None else (before, after)


def distance(states: Sequence[StateDict]) -> float | None:
    """The mean over pairs of states of the L2 norm of their difference, summed in float64.

    By hand: of (0, 0), (3, 4) and (0, 4) it is (5 + 4 + 3) / 3 = 4. None for a single state.
    """
    if len(states) < 2:
        return None

    def squares(*pieces: torch.Tensor) -> list[float]:
        gaps = [(a - b).double() for a, b in combinations(pieces, 2)]
        return [float(gap.dot(gap)) for gap in gaps]

    return float(np.sqrt(np.sum(list(weights.in_pieces(squares, *states)), axis=0)).mean())


# Drift -------------------------------------------------------------------------------------


def _drifts(
    plan: Plan, stages: Sequence[Sequence[StateDict]]
) -> list[tuple[float | None, ...]] | None:
    """For each stage, how far the logits of each expert are from where they began."""
    rows = {name: _probes(name, plan.recipe) for name in dict.fromkeys(plan.tasks)}
    of_experts = [_drift(plan, stages, place, rows[name]) for place, name in enumerate(plan.tasks)]
    if all(one is None for one in of_experts):
        return None
    return [
        tuple(None if one is None else one[number] for one in of_experts)
        for number in range(len(plan.passages))
    ]


def _probes(name: str, recipe: Recipe) -> Rows | None:
    """Rows of a task, if there are any without a download. Warns of those that cannot be read."""
    try:
        task = parse_task(name)[0]
    except UnknownName:
        return None
    if not at_hand(task, TRAIN, recipe.data_dir):
        return None
    try:
        return load_rows(as_read(task, recipe.preset), SPLIT, folder=recipe.data_dir, limit=PROBES)
    except HarnessError as error:
        _warn(error)
        return None


def _drift(
    plan: Plan, stages: Sequence[Sequence[StateDict]], place: int, rows: Rows | None
) -> list[float] | None:
    """How far the logits of one expert are from where they began, after each stage."""
    if rows is None:
        return None
    try:
        first, *later = [
            _logits(plan.recipe, entering(plan.experts, states)[place], rows) for states in stages
        ]
    except HarnessError as error:
        _warn(error)
        return None
    return [float(np.abs(logits - first).max()) for logits in later]


def _logits(recipe: Recipe, expert: Checkpoint, rows: Rows) -> Array:
    _, logits, _ = forward(
        expert,
        rows,
        max_length=rows.task.finetune.max_length,
        readout=preset(recipe.preset).readout,
        device=recipe.device,
    )
    return logits


def _warn(error: HarnessError) -> None:
    """The merge is made and right; what is not measured is not worth losing it."""
    warnings.warn(f"the drift of an expert is not measured: {error}", stacklevel=2)
