"""Layers that a base was published without: whether experts began with the same random ones."""

from __future__ import annotations

from itertools import combinations

from harness import weights
from harness.checkpoints.bases import POOLER
from harness.checkpoints.provenance import ExpertJson, read_expert_json
from harness.errors import IncompatibleWeights
from harness.merging.plan import MergePlan
from harness.types import Checkpoint
from harness.weights import cosine

MIN_SHARED_COSINE = 0.5
"""The least cosine of two matrices trained from one initialisation: independent ones have 0, and
training leaves more than 0.9."""


def check_shared_initialisation(plan: MergePlan) -> None:
    """Raise IncompatibleWeights for a pooler that is merged although experts initialised it apart.

    This happens if the experts' own base lacks it, given or not. Whether they did is known from
    their records, else from their weights: its matrices are unrelated while another matrix of the
    two encoders is not. Encoders that have nothing in common are not refused.
    """
    if plan.experts[0].pooling is not None:  # no embedding is read through a pooler
        return
    family = plan.experts[0].family
    tops = plan.head_states[0] if plan.recipe.heads != "keep" else {}
    merged = weights.specs(weights.union(plan.merger_inputs[0], tops))
    matrices = [name for name, spec in merged.items() if len(spec.shape) == 2]
    rest = [n for n in matrices if not family.is_pooler(n) and not family.is_head(n)]
    for name in filter(family.is_pooler, matrices):
        for first, second in combinations(plan.experts, 2):
            pair = first.weights, second.weights
            reason = _apart(first, second, name)
            if reason is None and (alike := cosine(*pair, name)) < MIN_SHARED_COSINE <= cosine(
                *pair, rest[-1]
            ):
                reason = f"their cosine is {alike:.2f}"
            if reason:
                raise IncompatibleWeights(
                    f"'{name}' of {first.source} and {second.source} was initialised differently "
                    f"({reason}), {_lacking(plan, name)}; expected the same initialisation: train "
                    "all with `harness finetune`, or all with one script that calls set_seed(0) of "
                    "transformers; or merge experts of different tasks with their base, where each "
                    "expert keeps its own"
                )


def _lacking(plan: MergePlan, name: str) -> str:
    if plan.base is None:
        return "and no base is given that has one"
    has = "has another one" if name in plan.base.weights else "has none"
    return f"and {plan.base.source} {has}"


def _apart(first: Checkpoint, second: Checkpoint, name: str) -> str | None:
    """How records show that a tensor was initialised apart; '' if it was not, None if unknown.

    '' also if both bases have it: these are compared elsewhere.
    """
    records = [read_expert_json(expert.path) or ExpertJson() for expert in (first, second)]
    if all(name in record.drawn for record in records):
        return "as their records say" if records[0].drawn[name] != records[1].drawn[name] else ""
    began = {name in record.drawn: POOLER in record.base_weights for record in records}
    if began == {True: False, False: True}:  # one drew it, and the base of the other had it
        return "as their records say"
    return "" if all(POOLER in record.base_weights for record in records) else None
