"""Rows of a merged head that only some experts were trained on (docs/methods.md#heads)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch

from harness import weights
from harness.checkpoints.provenance import ExpertJson, read_expert_json
from harness.labels import comparison_key
from harness.types import Checkpoint, StateDict


def warn_of_mixed_schemes(experts: Sequence[Checkpoint]) -> None:
    """Warn of heads with the same tags whose training rows write entities in different schemes."""
    records = {expert.source: read_expert_json(expert.path) or ExpertJson() for expert in experts}
    schemes = {source: [*r.schemes.values()] for source, r in records.items() if r.schemes}
    if len({scheme for s in schemes.values() for scheme in s}) > 1:
        text = ", ".join(f"{source}: {'/'.join(dict.fromkeys(s))}" for source, s in schemes.items())
        warnings.warn(
            f"the heads to merge were trained on entities that are tagged in different schemes "
            f"({text}): in IOB1 some begin with I-, in IOB2 none; expected one scheme, else a tag "
            "has different meanings",
            stacklevel=3,
        )


def annotated_by(expert: Checkpoint) -> frozenset[str]:
    """The labels that an expert's training rows annotate; all labels, if that is not recorded."""
    record, every = read_expert_json(expert.path) or ExpertJson(), expert.labels or ()
    by_task = [record.annotated.get(task, every) for task in record.tasks] or [every]
    return frozenset(label for labels in by_task for label in labels)


def mean_over_annotators(
    experts: Sequence[Checkpoint], heads: Sequence[StateDict], merged: StateDict
) -> StateDict:
    """The merged model with each row of its final layer the mean over the experts that know its
    label, which are those whose training rows annotate it.

    `heads` are the experts' heads. The row of a label that no expert knows is zero. If every expert
    knows every label, the model is returned unchanged.
    """
    own = [expert.labels or () for expert in experts]
    spelled = comparison_key(*own)
    labels = [spelled(name) for name in own[0]]
    known = [{*map(spelled, annotated_by(expert))} for expert in experts]
    if all({*labels} <= one for one in known):
        return merged
    first = experts[0]
    final = first.family.final(dict(weights.specs(first.weights)))
    names = [f"{final}.{part}" for part in ("weight", "bias")]
    specs = weights.specs(merged)

    def of_those(name: str) -> torch.Tensor:
        """A tensor with, in each row, the mean over the experts that know the row's label."""
        tensors = [head[name].float() for head in heads]
        mean = torch.zeros_like(tensors[0])
        for place, label in enumerate(labels):
            theirs = [head[place] for head, one in zip(tensors, known, strict=True) if label in one]
            if theirs:
                mean[place] = torch.stack(theirs).mean(dim=0)
        return mean

    rows = weights.Lazy({name: specs[name] for name in names if name in specs}, of_those)
    return weights.select(weights.union(rows, merged), list(merged))
