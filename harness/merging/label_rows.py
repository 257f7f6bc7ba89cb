"""Rows of a merged head that only some of the experts were trained on (methods.md 1.6.6)."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from harness import weights
from harness.checkpoints.families.known import family_of
from harness.checkpoints.provenance import trained_by
from harness.types import Checkpoint, StateDict


def annotated_by(expert: Checkpoint) -> frozenset[str]:
    """The labels that an expert's training rows said anything of; all, where nobody recorded it."""
    said = trained_by(expert.path)
    known = next(iter(said.annotated.values())) if said and said.annotated else expert.labels
    return frozenset(known or ())


def of_those_who_know(
    experts: Sequence[Checkpoint], heads: Sequence[StateDict], merged: StateDict
) -> StateDict:
    """The merged model with each row of its final layer the mean over the experts that know it.

    `heads` are theirs. The row of a label that no expert knows is zero. Where every expert knows
    every label, the model as it is.
    """
    labels, known = experts[0].labels or (), [annotated_by(expert) for expert in experts]
    if all({*labels} <= one for one in known):
        return merged
    first = experts[0]
    final = family_of(first.config, first.source).final(dict(weights.specs(first.weights)))
    names = [f"{final}.{part}" for part in ("weight", "bias")]
    specs = weights.specs(merged)
    rows = weights.Lazy(
        {name: specs[name] for name in names if name in specs},
        lambda name: _rows([head[name].float() for head in heads], labels, known),
    )
    return weights.select(weights.union(rows, merged), list(merged))


def _rows(
    heads: Sequence[torch.Tensor], labels: Sequence[str], known: Sequence[Collection[str]]
) -> torch.Tensor:
    """Row by row the mean over the experts that know the label."""
    made = torch.zeros_like(heads[0])
    for place, label in enumerate(labels):
        theirs = [head[place] for head, one in zip(heads, known, strict=True) if label in one]
        if theirs:
            made[place] = torch.stack(theirs).mean(dim=0)
    return made
