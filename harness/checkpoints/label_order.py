"""The outputs of classifiers of the same labels, put into one order by the names of the labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from harness import weights
from harness.labels import as_config, comparison_key
from harness.types import Checkpoint, StateDict


def ordered_as(expert: Checkpoint, labels: Sequence[str] | None) -> Checkpoint:
    """The model with its outputs in the order of `labels`; unchanged if it has other labels, or has
    them in this order already. Labels are compared by name, as in an evaluation.
    """
    own, tensors = expert.labels or (), expert.weights
    order = _order(own, labels or ())
    if order is None or not _final(expert):
        return expert
    names = [own[index] for index in order]
    config = {**expert.config, **as_config(names)}
    state = _reordered(tensors, _final(expert), order)
    return replace(expert, config=config, labels=tuple(names), weights=state, stored_labels=own)


def tensors_ordered_as(expert: Checkpoint, statistic: StateDict) -> StateDict:
    """A statistic of a model with `joined_parts`, by the names of weights, with the rows of its
    tensors for the final layer in the order of the model's outputs.

    Only tensors of the shape of the weights have a row for each output: inner products of inputs
    have none. Where a final layer is square, so that its shape does not tell, only a statistic
    that has its bias too is put in order.
    """
    order = _order(expert.stored_labels or (), expert.labels or ())
    made_specs, specs = weights.specs(statistic), weights.specs(expert.weights)
    rows = [n for n in _final(expert) if n in made_specs and made_specs[n].shape == specs[n].shape]
    if order is None or all(
        len({*specs[name].shape}) == 1 < len(specs[name].shape) for name in rows
    ):
        return statistic
    return _reordered(statistic, rows, order)


def _order(own: Sequence[str], wanted: Sequence[str]) -> list[int] | None:
    """The place of each wanted label in `own`; None if the labels differ, or are in order."""
    key = comparison_key(own, wanted)
    mine, theirs = list(map(key, own)), list(map(key, wanted))
    alike = sorted(mine) == sorted(theirs) and len({*mine}) == len(mine)
    return None if mine == theirs or not alike else [mine.index(name) for name in theirs]


def _final(model: Checkpoint) -> list[str]:
    """The names of the tensors of the final layer, if there is one."""
    final = model.family.final(model.weights)
    return [n for part in ("weight", "bias") if (n := f"{final}.{part}") in model.weights]


def _reordered(state: StateDict, names: Sequence[str], order: Sequence[int]) -> StateDict:
    """The state with the rows of the tensors `names` in this order."""
    rows = weights.select(state, names)
    moved = weights.Lazy(weights.specs(rows), lambda name: rows[name][torch.tensor(order)])
    return weights.select(weights.union(moved, state), list(state))
