"""Inner products of the hidden activations of two models on the same tokens, cached by content."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from harness.checkpoints.build import classifier_of, unit_of
from harness.checkpoints.named import modules_of
from harness.passes.cache import CachedTensors, recall_or_make
from harness.passes.features import forward_errors, model_key
from harness.passes.gram import recorded_inputs, token_rows
from harness.passes.placement import Placement
from harness.passes.prepared import Inputs, row_count
from harness.passes.reading import Readings
from harness.types import Checkpoint, Products, StateDict, Steps

COUNTS = "counts"
"""The key, in a cache entry, of the tokens seen by each group: stacks see different tokens."""
PARTS = ("inner", "sums.0", "sums.1", "squares.0", "squares.1")
"""How the names of tensors in a cache entry end, after the group: the fields of `Products`."""


@dataclass
class Pairs:
    """The `Products` of any two experts on the same rows, computed when they are asked for.

    `layers` has, for each group of hidden units, the linear layer that reads them. A pair takes a
    run of both models over the rows, and memory for its products: 8 bytes times the square of the
    units of every group.
    """

    readings: Readings
    layers: Mapping[str, str]
    batch_size: int
    _products: dict[tuple[int, int], tuple[StateDict, Mapping[str, int]]] = field(
        default_factory=dict, init=False
    )

    def of(self, first: int, second: int, group: str) -> Products:
        """The products of two experts, given by their places, for one group."""
        if (first, second) not in self._products:
            self._products[first, second] = self._obtained(first, second)
        tensors, counts = self._products[first, second]
        inner, *sums = (tensors[f"{group}.{part}"] for part in PARTS)
        return Products(inner, (sums[0], sums[1]), (sums[2], sums[3]), counts[group])

    def _obtained(self, first: int, second: int) -> tuple[StateDict, Mapping[str, int]]:
        """The products of two experts and the tokens of each group, from the cache or by a run."""
        readings, digests = self.readings, self.readings.digests
        size, other_key = self.batch_size, model_key(readings.checkpoints[second], digests[second])
        reading = readings.of(0)  # the same tokens for both, in every pair
        path = readings.of(first).entry(digests[first], "activations, counted", size, other_key)
        pair = [readings.checkpoints[place] for place in (first, second)]
        what = f"activations of {pair[0].name} and {pair[1].name}"
        step = readings.steps(what, len(reading.rows))
        tensors, description = recall_or_make(
            path, lambda: self._run(pair[: len({first, second})], step), step, len(reading.rows)
        )
        return tensors, description[COUNTS]

    def _run(self, pair: Sequence[Checkpoint], step: Steps | None) -> CachedTensors:
        """The products of two experts, or of one with itself, by one pass over the rows."""
        placement = self.readings.placement
        models = [hooked(checkpoint, self.layers, placement) for checkpoint in pair]
        totals: dict[str, torch.Tensor] = {}
        counts = dict.fromkeys(self.layers, 0)
        for inputs in self.readings.of(0).inputs(self.batch_size):
            activations = [model(inputs) for model in models]
            for group in self.layers:
                tokens = [by_group.pop(group).double() for by_group in activations]
                _add(totals, group, tokens[0], tokens[-1])
                counts[group] += len(tokens[0])
            if step:
                step(row_count(inputs))
        return {name: total.cpu() for name, total in totals.items()}, {COUNTS: counts}


def _add(
    totals: dict[str, torch.Tensor], group: str, first: torch.Tensor, second: torch.Tensor
) -> None:
    """Add the activations of a batch, [tokens, units] of each model, to the totals of a group."""
    squares = (first.square().sum(0), second.square().sum(0))
    parts = (first.T @ second, first.sum(0), second.sum(0), *squares)
    for part, value in zip(PARTS, parts, strict=True):
        name = f"{group}.{part}"
        totals[name] = totals[name].add_(value) if name in totals else value


def hooked(
    checkpoint: Checkpoint, layers: Mapping[str, str], placement: Placement
) -> Callable[[Inputs], dict[str, torch.Tensor]]:
    """A model as a function from a batch to the inputs of its `layers`, by group.

    An input is [tokens, units], at every token of the batch, without padding.
    """
    model = classifier_of(checkpoint, unit_of(checkpoint), placement.where)
    placed, modules = placement.put(model), modules_of(model)
    own = {group: modules[name] for group, name in layers.items()}

    def activations(inputs: Inputs) -> dict[str, torch.Tensor]:
        with (
            torch.inference_mode(),
            forward_errors(checkpoint.source),
            recorded_inputs(own) as calls,
        ):
            placed(**inputs)
        mask = inputs.get("attention_mask")
        return {group: token_rows(tensor, mask) for group, tensor in calls}

    return activations


@dataclass(frozen=True, eq=False)
class ExpertActivations:
    """One of the experts that are run on the same rows."""

    pairs: Pairs
    place: int

    def products(self, other: ExpertActivations, group: str) -> Products:
        """The products of a group of this expert with the same group of another, in float64."""
        return self.pairs.of(self.place, other.place, group)
