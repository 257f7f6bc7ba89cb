"""Running a model block by block: of the blocks that were run only the output is kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from harness.checkpoints.build import unit_of
from harness.checkpoints.families.family import Family
from harness.checkpoints.named import modules_of, parameters_of
from harness.checkpoints.network import classifier_on_meta
from harness.errors import UnknownName
from harness.passes.features import forward_errors
from harness.passes.gram import gram, linear_layers, recorded_inputs
from harness.passes.prepared import Inputs, row_count
from harness.passes.reading import Reading
from harness.types import Checkpoint, StateDict, Steps


@dataclass(frozen=True)
class Blocks:
    """How a classifier is cut: block 0 is its embeddings, each layer is a block, the top is last.

    `stacks` maps the name of each list of layers to its length, in the order in which they run: the
    layers of a decoder follow those of its encoder. The top consists of a pooler and the head.
    """

    stacks: Mapping[str, int]
    family: Family

    def block_number(self, name: str) -> int:
        """The number of the block that has the tensor of this name."""
        before = 1
        for stack, layers in self.stacks.items():
            within = name.removeprefix(f"{stack}.")
            if within != name:
                return before + int(within.partition(".")[0])
            before += layers
        top = self.family.is_head(name) or self.family.is_pooler(name)
        return before if top else 0


def blocks_of(checkpoint: Checkpoint) -> Blocks:
    """How a checkpoint is cut, by its configuration alone.

    Raises UnknownName for an encoder whose layers are not in exactly one list, each run once.
    """
    config, source = checkpoint.config, checkpoint.source
    model: Any = classifier_on_meta(config, source, unit=unit_of(checkpoint))
    count = model.config.num_hidden_layers
    lists = {n: m for n, m in modules_of(model).items() if isinstance(m, torch.nn.ModuleList)}
    stacks = [name for name, modules in lists.items() if len(modules) == count]
    if checkpoint.family.stacks:  # of any depth; each block is a ModuleList, too
        stacks = [name for name in lists if name.endswith(".block")]
    if len(stacks) != 1 and not checkpoint.family.stacks:
        raise UnknownName(
            f"{source} has {len(stacks)} lists of modules for its {count} layers, expected one list"
        )
    return Blocks({name: len(lists[name]) for name in stacks}, checkpoint.family)


ATTENTION = "attention_type"
"""An attribute that some models read of their layers, so that stand-ins need it, too."""


class StandIn(torch.nn.Module):
    """Takes the place of all layers of a stack that were run, and returns the output of the last of
    them; or of a layer whose turn has not come, and ends the run there."""

    output: Any = None

    def forward(self, *_: Any, **__: Any) -> Any:
        """The kept output, whatever the input. Raises Stopped if there is none."""
        if self.output is None:
            raise Stopped
        return self.output


class Stopped(Exception):
    """Ends a forward pass where nothing more is to be run."""


class TruncatedModel:
    """An expert on its rows, whose first blocks have the weights of another model.

    In memory are its embeddings, its top and one layer and, for every token, the output of the last
    layer that was run in each stack: 4 bytes times the width. What comes before the layers, and
    between stacks, is run again each time.
    """

    def __init__(self, reading: Reading, blocks: Blocks, batch_size: int) -> None:
        self.block = 0
        self._reading, self._blocks = reading, blocks
        self._model: Any = reading.model()
        self._parameters = parameters_of(self._model)
        self._linear = linear_layers(self._model)
        lists: Any = modules_of(self._model)
        stacks = [(lists[name], StandIn()) for name in blocks.stacks]
        self._places = [(*pair, place) for pair in stacks for place in range(len(pair[0]))]
        self._layers = [stack[place] for stack, _, place in self._places]
        self._batches = list(reading.inputs(batch_size))
        self._given: list[dict[StandIn, Any]] = [{} for _ in self._batches]
        self._kept: Any = None
        self._in_use = self._layers_in_use()
        for layer in self._layers:
            _empty(layer)
        self._arrange()

    def gram(self, step: Steps | None = None) -> tuple[StateDict, Mapping[str, str]]:
        """The Gram matrices of the linear layers in the current block, as `gram` returns them.

        The block has the expert's own weights; the blocks before have those given to `pass_on`.
        Raises UnknownName for a layer of the block that comes after layers of later blocks.
        """
        number_of = self._blocks.block_number
        layers = {n: m for n, m in self._linear.items() if number_of(f"{n}.weight") == self.block}
        if not layers:
            return {}, {}
        own = self._reading.checkpoint.weights
        names = [name for name in self._parameters if number_of(name) == self.block]
        self._put({name: own[name] for name in names})
        source = self._reading.checkpoint.source
        with forward_errors(source):
            stored, shared = gram(self._run, layers, self._read(step))
        for name in layers:
            if name in self._in_use and f"{name}.weight" not in shared:
                raise UnknownName(
                    f"{source} runs '{name}' after other layers of its model, expected it before "
                    "them all: its inputs cannot be those of a merged model"
                )
        return stored, shared

    def _layers_in_use(self) -> set[str]:
        """The linear layers that the whole model runs: some read other inputs than rows of text."""
        with (
            torch.inference_mode(),
            forward_errors(self._reading.checkpoint.source),
            recorded_inputs(self._linear) as calls,
        ):
            for batch in self._batches[:1]:
                self._model(**batch)
        return {name for name, _ in calls}

    def pass_on(self, tensors: StateDict) -> None:
        """Run this block with these weights, keep its outputs, and go on to the next block."""
        self._put(tensors)
        if self.block:
            layer = self._layers[self.block - 1]
            hook = layer.register_forward_hook(self._keep)
            with torch.inference_mode(), forward_errors(self._reading.checkpoint.source):
                for place, batch in enumerate(self._read(None)):
                    self._run(**batch)
                    self._given[place][self._places[self.block - 1][1]] = self._kept
            hook.remove()
            _empty(layer)
        self.block += 1
        self._arrange()

    def _arrange(self) -> None:
        """Put the layer of the current block into its stack, and stand-ins for all others."""
        for block, (stack, stand_in, place) in enumerate(self._places, start=1):
            layer = self._layers[block - 1]
            module = stand_in if block < self.block else StandIn()
            if kind := getattr(layer, ATTENTION, None):
                setattr(module, ATTENTION, kind)
            stack[place] = layer if block == self.block else module

    def _keep(self, layer: torch.nn.Module, inputs: Any, output: Any) -> None:
        self._kept = output
        raise Stopped

    def _read(self, step: Steps | None) -> Iterator[Inputs]:
        """The batches; before each one, the stand-ins get the outputs that were kept for it."""
        for batch, outputs in zip(self._batches, self._given, strict=True):
            for stand_in, output in outputs.items():
                stand_in.output = output
            yield batch
            if step:
                step(row_count(batch))

    def _run(self, **batch: torch.Tensor) -> None:
        with suppress(Stopped):
            self._model(**batch)

    def _put(self, tensors: StateDict) -> None:
        for name, tensor in tensors.items():
            if name in self._parameters:
                parameter = self._parameters[name]
                parameter.data = tensor.to(parameter.device, parameter.dtype)


def _empty(layer: torch.nn.Module) -> None:
    """Free the memory of a layer's weights; its buffers stay."""
    for parameter in layer.parameters():
        parameter.data = parameter.data.new_empty(0)
