"""Rows of a merged head that only some experts were trained on (docs/methods.md#heads)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from harness import weights
from harness.checkpoints.provenance import Trained, trained_by
from harness.labels import as_config, spelling
from harness.types import Checkpoint, StateDict


def ordered_as(expert: Checkpoint, labels: Sequence[str] | None) -> Checkpoint:
    """The model with its outputs in the order of these labels, where it has the same ones.

    Names decide, as in an evaluation. Of other labels, or in this order already, it is as it is.
    """
    own, known = expert.labels or (), expert.weights
    order = _order(own, labels or ())
    if order is None or not _final(expert):
        return expert
    names = [own[index] for index in order]
    config = {**expert.config, **as_config(names)}
    state = _reordered(known, _final(expert), order)
    return replace(expert, config=config, labels=tuple(names), weights=state, stored=own)


def as_stored(expert: Checkpoint) -> Checkpoint:
    """The model with its outputs in the order that they have in its folder."""
    return expert if expert.stored is None else ordered_as(expert, expert.stored)


def tensors_ordered_as(expert: Checkpoint, made: StateDict) -> StateDict:
    """Tensors made of a model `as_stored`, by the names of weights, with those that have an entry
    for each weight of the final layer in the order of the model's outputs.

    Those of another shape, as inner products of inputs, have no entries of outputs; of a square
    layer the bias tells.
    """
    order = None if expert.stored is None else _order(expert.stored, expert.labels or ())
    have, known = weights.specs(made), weights.specs(expert.weights)
    rows = [n for n in _final(expert) if n in have and have[n].shape == known[n].shape]
    if order is None or all(
        len({*known[name].shape}) == 1 < len(known[name].shape) for name in rows
    ):
        return made
    return _reordered(made, rows, order)


def _order(own: Sequence[str], wanted: Sequence[str]) -> list[int] | None:
    """The places of wanted labels among the own ones; None where they are others, or in order."""
    spelled = spelling(own, wanted)
    mine, theirs = list(map(spelled, own)), list(map(spelled, wanted))
    alike = sorted(mine) == sorted(theirs) and len({*mine}) == len(mine)
    return None if mine == theirs or not alike else [mine.index(name) for name in theirs]


def _final(model: Checkpoint) -> list[str]:
    """The names of the tensors of the final layer, if there is one."""
    final = model.family.final(model.weights)
    return [n for part in ("weight", "bias") if (n := f"{final}.{part}") in model.weights]


def _reordered(state: StateDict, names: Sequence[str], order: Sequence[int]) -> StateDict:
    rows = weights.select(state, names)
    moved = weights.Lazy(weights.specs(rows), lambda name: rows[name][torch.tensor(order)])
    return weights.select(weights.union(moved, state), list(state))


def annotated_by(expert: Checkpoint) -> frozenset[str]:
    """The labels that an expert's training rows labelled; all, where that is not recorded."""
    said, every = trained_by(expert.path) or Trained(), expert.labels or ()
    by_task = [said.annotated.get(task, every) for task in said.tasks] or [every]
    return frozenset(label for labels in by_task for label in labels)


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
    final = first.family.final(dict(weights.specs(first.weights)))
    names = [f"{final}.{part}" for part in ("weight", "bias")]
    specs = weights.specs(merged)

    def of_those(name: str) -> torch.Tensor:
        """Row by row the mean over the experts that know the label."""
        given = [head[name].float() for head in heads]
        made = torch.zeros_like(given[0])
        for place, label in enumerate(labels):
            theirs = [head[place] for head, one in zip(given, known, strict=True) if label in one]
            if theirs:
                made[place] = torch.stack(theirs).mean(dim=0)
        return made

    rows = weights.Lazy({name: specs[name] for name in names if name in specs}, of_those)
    return weights.select(weights.union(rows, merged), list(merged))
