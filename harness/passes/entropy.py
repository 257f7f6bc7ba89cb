"""The entropy of a model's predictions on unlabeled rows of several tasks, with its gradient."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import torch

from harness.checkpoints.named import parameters_of
from harness.kinds import kind_of
from harness.passes.features import forward_errors
from harness.passes.reading import Reading, Readings
from harness.types import StateDict, Steps
from harness.weights import once

EntropyLoss: TypeAlias = Callable[[StateDict], tuple[float, StateDict]]
"""From a model to the entropy, and its gradient by each tensor that it depends on."""


def entropies(readings: Readings, steps: int, batch_size: int) -> tuple[EntropyLoss, ...]:
    """The loss of every step: the sum over the tasks of the mean entropy on the next rows of each.

    For each task an expert, the first of several, supplies tokenizer, configuration and every
    tensor that the model lacks. Rows are used in the order of the draw, from the first again when
    all were used; nothing is read, and no model is made, before a loss is computed.
    """

    @once
    def shared() -> tuple[list[tuple[Reading, Any]], Steps | None]:  # for all steps
        places = {readings.rows(place).task.name: place for place in reversed(range(len(readings)))}
        by_task = [readings.of(place) for place in sorted(places.values())]
        total = steps * sum(min(batch_size, len(reading.rows)) for reading in by_task)
        networks = [(reading, reading.model()) for reading in by_task]
        return networks, readings.steps("reading unlabeled rows", total)

    def loss(step: int, state: StateDict) -> tuple[float, StateDict]:
        networks, tell = shared()
        tensors = {name: state[name] for name in state}
        total, gradient = 0.0, dict[str, torch.Tensor]()
        for reading, network in networks:
            count = len(reading.rows)
            size = min(batch_size, count)
            rows = [(step * size + place) % count for place in range(size)]
            value, gradients = _entropy(reading, network, rows, tensors)
            total += value
            for name, part in gradients.items():
                gradient[name] = gradient[name].add_(part) if name in gradient else part
            if tell:
                tell(size)
        return total, gradient

    return tuple(partial(loss, step) for step in range(steps))


def _entropy(
    reading: Reading, network: Any, rows: Sequence[int], tensors: StateDict
) -> tuple[float, StateDict]:
    """The mean entropy over the units of some rows, and its gradient by the given tensors.

    Parameters that are not among `tensors` are those of the expert.
    """
    parameters, placement = parameters_of(network), reading.placement
    for name, parameter in parameters.items():
        tensor = tensors[name] if name in tensors else reading.checkpoint.weights[name]
        parameter.data = tensor.to(placement.where, torch.float32)
    variables = {name: parameters[name] for name in parameters if name in tensors}
    with torch.enable_grad(), forward_errors(reading.checkpoint.source):
        parts = []
        for batch in reading.prepared.together(rows):
            logits = network(**reading.prepared.batch(batch, placement)).logits
            outputs = reading.prepared.of_words(logits, batch)[:, reading.places]
            parts.append(kind_of(reading.rows.task).entropy(outputs))
        value = torch.cat(parts).mean()
        gradients = torch.autograd.grad(value, list(variables.values()), allow_unused=True)
    pairs = zip(variables, gradients, strict=True)
    return value.item(), {name: part.cpu() for name, part in pairs if part is not None}
