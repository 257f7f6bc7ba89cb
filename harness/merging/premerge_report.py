"""Shell: what the pre-merging stages of a merge did, measured when it has been written."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import TypeAlias

import numpy as np
import torch

from harness import weights
from harness.data.rows import load_rows
from harness.data.sources import TRAIN, at_hand
from harness.data.splits import parse_task
from harness.errors import HarnessError, UnknownName
from harness.merging.plan import MergePlan
from harness.merging.premerge_steps import PremergeReport, PremergeStep
from harness.merging.stages import experts_entering
from harness.passes.features import forward
from harness.passes.lengths import at_length
from harness.passes.placement import Placement
from harness.presets import preset, task_under_preset
from harness.types import TRAINED_ON, Rows, StateDict

Squares: TypeAlias = dict[str, list[float]]
"""The squared distance of each pair of experts, by the name of a tensor."""
DRIFT_ROWS = 16
"""Rows of its task that an expert is run on to measure its drift."""


def watched(merged: StateDict, steps: Sequence[PremergeStep]) -> tuple[StateDict, list[Squares]]:
    """The merge, which as it is read measures the experts' tensors, and the distances it found.

    There is a mapping for the experts before the first stage, which stays empty, and after each
    stage. A tensor is measured just after the merger has read it: no stage computes it again.
    """
    squares: list[Squares] = [{} for _ in range(len(steps) + 1)]

    def compute(name: str) -> torch.Tensor:
        tensor = merged[name]
        for number, step in enumerate(steps, start=1):
            parts = [latest(name) for latest in step.latest]
            present = [part for part in parts if part is not None]
            if name in step.encoder_names and len(present) == len(parts) > 1:
                squares[number][name] = _squares([{name: part} for part in present], name)
        return tensor

    return weights.Lazy(weights.specs(merged), compute), squares


def _between(steps: Sequence[PremergeStep]) -> list[tuple[StateDict, ...]]:
    """The experts before the first stage and after each one."""
    return [steps[0].entering, *(step.leaving for step in steps)]


def measure_premerge(plan: MergePlan, measured: Sequence[Squares]) -> tuple[PremergeReport, ...]:
    """What each pre-merging stage did to the experts; `measured` are squares that `watched`
    measured.

    The distance is the mean over pairs of experts of the L2 norm of their difference, over all
    parameters of the encoder, summed in float64; None for a single expert, and for a stage that
    absorbed norms.
    The drift is in the logits of 16 training rows of the expert's task, in float32, from a local
    folder or generated; nothing is downloaded, and a recipe can turn it off.
    """
    if not plan.steps:
        return ()
    seconds = [step.seconds() for step in plan.steps]  # before anything is computed again
    means = []
    for states, squares in zip(_between(plan.steps), measured, strict=True):
        encoders = [weights.select(state, plan.steps[0].encoder_names) for state in states]
        means.append(distance(encoders, squares))
    # a stage that absorbs norms rescales weights: distances before and after do not compare
    alike = ["absorbed" not in step.report for step in plan.steps]
    pairs = zip(alike, pairwise(means), strict=True)
    distances = [
        (a, b) if same and a is not None and b is not None else None for same, (a, b) in pairs
    ]
    for step, change in zip(plan.steps, distances, strict=True):
        if change:
            _call_out(step, *change)
        merger = plan.merger_stage.entry
        if "absorbed" in step.report and getattr(merger, "task_vectors", False):
            what = f"experts whose norms {step.stage.entry.name} absorbed"
            expected = "a merger that does not read the base, such as average"
            message = f"{merger.name} subtracted the base from {what}; expected {expected}"
            warnings.warn(message, stacklevel=2)
    reports = (step.report for step in plan.steps)
    return tuple(map(PremergeReport, distances, seconds, reports, _drifts(plan)))


MAX_DISTANCE_GROWTH = 1.01
"""The growth of the distance that is warned of: a smaller one does not change the merge."""


def _call_out(step: PremergeStep, before: float, after: float) -> None:
    """Warn of an alignment after which experts are farther apart: it failed its purpose.

    A method with the need `symmetry` moves units of models to bring experts together.
    """
    method, options = step.stage.entry, step.stage.options
    if "symmetry" in method.needs and after > before * MAX_DISTANCE_GROWTH:
        instead = [
            "leave it out (the units of experts of one base are mostly in one order)",
            *(["try fewer layers (layers=last:1)"] if options.get("layers") == "all" else []),
            *(["try more rows (examples=N)"] if "activations" in method.needs else []),
        ]
        apart = f"drove the experts apart, from a distance of {before:.4g} to {after:.4g}"
        message = f"{method.name} {apart}; {', '.join(instead)} or another method"
        warnings.warn(message, stacklevel=2)


def distance(states: Sequence[StateDict], measured: Squares | None = None) -> float | None:
    """The mean over pairs of states of the L2 norm of their difference; None for a single state.

    Tensors whose squares are `measured` are not read. By hand: of (0, 0), (3, 4) and (0, 4) it is
    (5 + 4 + 3) / 3 = 4.
    """
    if len(states) < 2:
        return None
    measured = measured or {}
    squares = [measured[n] if n in measured else _squares(states, n) for n in states[0]]
    return float(np.sqrt(np.sum(squares, axis=0)).mean())


def _squares(states: Sequence[StateDict], name: str) -> list[float]:
    """For each pair of states the squared L2 norm of the difference of their tensors."""

    def squares(*pieces: torch.Tensor) -> list[float]:
        pairs = combinations(pieces, 2)
        norms = (torch.linalg.vector_norm(a - b, dtype=torch.float64) for a, b in pairs)
        return [float(norm) ** 2 for norm in norms]

    parts = weights.in_pieces(squares, *(weights.select(state, [name]) for state in states))
    return [float(value) for value in np.sum([*parts], axis=0)]


# Drift -------------------------------------------------------------------------------------


def _drifts(plan: MergePlan) -> list[tuple[float | None, ...]]:
    """For each stage, how far it moves the logits of each expert; () if that is known of none."""
    tasks = plan.tasks if plan.recipe.drift else ()
    rows = {name: _drift_rows(name, plan) for name in dict.fromkeys(tasks)}
    of_experts = [_drift(plan, place, rows[name]) for place, name in enumerate(tasks)]
    if not any(of_experts):
        return [()] * len(plan.steps)
    unknown = [None] * len(plan.steps)
    return list(zip(*(drifts or unknown for drifts in of_experts), strict=True))


def _drift_rows(name: str, plan: MergePlan) -> Rows | None:
    """Rows of a task; None if they would be downloaded or, with a warning, cannot be read."""
    recipe = plan.recipe
    try:
        task = parse_task(name)[0]
        if at_hand(task, TRAIN, recipe.data_dir):
            task = task_under_preset(task, recipe.preset)
            rows = load_rows(task, TRAINED_ON, folder=recipe.data_dir, limit=DRIFT_ROWS)
            return at_length(rows, recipe.max_length, plan.experts)
    except UnknownName:
        pass
    except HarnessError as error:
        _warn(error)
    return None


def _drift(plan: MergePlan, place: int, rows: Rows | None) -> list[float] | None:
    """How far each stage moves the logits of one expert; None, with a warning, if it cannot run."""
    if rows is None:
        return None
    length, readout = rows.task.finetune.max_length, preset(plan.recipe.preset).readout
    # in float32: in half precision rounding alone moves them
    logits, placement = [], Placement(device=plan.recipe.device)
    try:
        for states in _between(plan.steps):
            expert = experts_entering(plan.experts, states)[place]
            out = forward(expert, rows, max_length=length, readout=readout, placement=placement)
            logits.append(out[1])
    except HarnessError as error:
        _warn(error)
        return None
    return [float(np.abs(after - before).max()) for before, after in pairwise(logits)]


def _warn(error: HarnessError) -> None:
    """Warn, not raise: the merge is made and correct without this measurement."""
    warnings.warn(f"the drift of an expert is not measured: {error}", stacklevel=2)
