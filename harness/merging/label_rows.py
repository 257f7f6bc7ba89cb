"""Rows of a merged head that only some of the experts were trained on (methods.md 1.6.6)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from harness import weights
from harness.checkpoints.families.known import family_of
from harness.checkpoints.provenance import trained_by
from harness.labels import spelling
from harness.types import Checkpoint, StateDict


def ordered_as(expert: Checkpoint, labels: Sequence[str] | None) -> Checkpoint:
    """The model with its outputs in the order of these labels, where it has the same ones.

    Names decide, as in an evaluation. Of other labels, or in this order already, it is as it is.
    """
    own = expert.labels or ()
    spelled = spelling(own, labels or ())
    mine, wanted = list(map(spelled, own)), list(map(spelled, labels or ()))
    final, known = family_of(expert.config, expert.source).final(expert.weights), expert.weights
    alike = sorted(mine) == sorted(wanted) and len({*mine}) == len(mine)
    if mine == wanted or not alike or final is None:
        return expert
    order = torch.tensor([mine.index(name) for name in wanted])
    rows = [name for part in ("weight", "bias") if (name := f"{final}.{part}") in known]

    def compute(name: str) -> torch.Tensor:
        return known[name][order] if name in rows else known[name]

    names = [own[index] for index in order.tolist()]
    config = {
        **expert.config,
        "id2label": {str(index): name for index, name in enumerate(names)},
        "label2id": {name: index for index, name in enumerate(names)},
    }
    state = weights.Lazy(weights.specs(known), compute)
    return replace(expert, config=config, labels=tuple(names), weights=state)


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
    own = [expert.labels or () for expert in experts]
    spelled = spelling(*own)
    labels = [spelled(name) for name in own[0]]
    known = [{*map(spelled, annotated_by(expert))} for expert in experts]
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
