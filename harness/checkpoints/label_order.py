"""Classifiers of the same labels with their outputs in one order: names decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from harness import weights
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
