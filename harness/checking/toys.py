"""Toy models for the properties of methods, made fresh for each so that none affects the next.

A toy has the tensors of a two-layer BERT classifier, so that methods that look for layers find
them, and tensors of odd shapes, which every method must accept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import torch
from safetensors.torch import save_file

from harness.checkpoints.families.family import Modality
from harness.checkpoints.layout import WEIGHTS_FILE
from harness.checkpoints.network import classifier_on_meta
from harness.labels import as_config
from harness.registry import NEEDS
from harness.types import Checkpoint, Need, StateDict
from harness.weights import seeded

Shapes: TypeAlias = "Mapping[str, tuple[int, ...]]"
Tensors: TypeAlias = "dict[str, torch.Tensor]"

WIDTH, INNER = 8, 12
CONFIG = {
    "model_type": "bert",
    "architectures": ["BertForSequenceClassification"],
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 11,
    "max_position_embeddings": 10,
    "type_vocab_size": 2,
}
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d", "e", "f")


NETWORK: Shapes = {
    name: tuple(tensor.shape)
    for name, tensor in classifier_on_meta(CONFIG, "the toy").named_parameters()
}
"""Names and shapes of the classifier that `CONFIG` describes, as transformers stores it."""

ODD: Shapes = {
    "odd.scale": (),
    "odd.bias": (5,),
    "odd.weight": (4, 3),
    "odd.none": (0, 3),
    "odd.patch": (2, 2, 2),
}
"""A scalar, an empty tensor, one to three axes."""

BUFFER = "bert.embeddings.position_ids"
TIED = ("bert.embeddings.word_embeddings.weight", "bert.shared_embeddings.weight")
"""Two names of one tensor: transformers writes one of them, other tools write both."""


def model(seed: int, shapes: Shapes) -> Tensors:
    """Random weights: seed 0 is the base, every other seed an expert fine-tuned from it."""

    def draw(which: int) -> Tensors:
        numbers = torch.Generator().manual_seed(which)
        drawn = {name: torch.randn(shapes[name], generator=numbers) for name in sorted(shapes)}
        return {name: drawn[name] for name in shapes}

    base = draw(0)
    if not seed:
        return base
    return {name: base[name].add(step, alpha=0.25) for name, step in draw(seed).items()}


def with_tied(state: StateDict) -> Tensors:
    """The state with a second name for its word embeddings, as a copy."""
    return {**state, TIED[1]: state[TIED[0]].clone()}


# What methods need beside weights -----------------------------------------------------------


def needed(needs: Sequence[str], shapes: Shapes, experts: int) -> dict[str, Any]:
    """A toy of every need of a method: a list with one for each expert, or one for all."""
    models = [model(seed, shapes) for seed in range(1, experts + 1)] if needs else []
    return {name: _toy(NEEDS[name], models) for name in needs}


def _toy(need: Need, models: Sequence[StateDict]) -> Any:
    assert need.toy is not None  # `battery` refuses a need without a toy
    with seeded(0):  # a toy that is drawn is the same each time
        toy = need.toy(models)
    if need.rows != "own":
        return toy
    # two names of one tensor are one parameter, with one statistic
    return [with_tied(state) if TIED[1] in state else dict(state) for state in toy]


@contextmanager
def handed_out(needs: Sequence[str], shapes: Shapes, experts: int) -> Iterator[None]:
    """In the block, merges are given toys for these needs, and no rows are read."""

    def always(toy: Any, experts: Sequence[Checkpoint]) -> Any:
        return toy

    by_need = needed(needs, shapes, experts).items()
    toys = [Need(name, partial(always, toy), rows="none") for name, toy in by_need]
    with NEEDS.overridden_by(toys):
        yield


@dataclass(frozen=True)
class ToyExperts:
    """Experts, their base, and the toys of the method's needs.

    A need is a list with an entry for each expert, in the experts' order, or one value for all of
    them. The entries of a statistic are state dicts.
    """

    experts: Sequence[StateDict]
    base: StateDict
    needs: Mapping[str, Any]

    def ordered(self, places: Sequence[int]) -> ToyExperts:
        """A copy with the experts, and their entries of needs, in another order."""
        lists = {need: entries for need, entries in self.needs.items() if isinstance(entries, list)}
        moved = {need: [entries[place] for place in places] for need, entries in lists.items()}
        experts = [self.experts[place] for place in places]
        return ToyExperts(experts, self.base, {**self.needs, **moved})

    def of(self, experts: Sequence[StateDict]) -> ToyExperts:
        """A copy with other experts, and new toys for needs with rows=`same`, made of them."""
        same = [name for name in self.needs if NEEDS[name].rows == "same"]
        remade = {name: _toy(NEEDS[name], experts) for name in same}
        return ToyExperts(experts, self.base, {**self.needs, **remade})

    def each(self, fn: Callable[[StateDict], StateDict]) -> ToyExperts:
        """A copy with `fn` applied to every model."""
        return replace(self, experts=[fn(expert) for expert in self.experts], base=fn(self.base))

    def every(self, fn: Callable[[StateDict], StateDict]) -> ToyExperts:
        """A copy with `fn` applied to every model and every statistic."""
        states = {need: entries for need, entries in self.needs.items() if are_states(entries)}
        mapped = {need: [*map(fn, entries)] for need, entries in states.items()}
        return replace(self.each(fn), needs={**self.needs, **mapped})


def are_states(toy: Any) -> bool:
    """Whether the toy of a need is a list of state dicts, one for each expert."""
    return isinstance(toy, list) and all(isinstance(entry, Mapping) for entry in toy)


def family(experts: int, needs: Sequence[str], shapes: Shapes | None = None) -> ToyExperts:
    """Fresh, different experts with their base and needs."""
    shapes = {**NETWORK, **ODD} if shapes is None else shapes
    models = [model(seed, shapes) for seed in range(experts + 1)]
    return ToyExperts(models[1:], models[0], needed(needs, shapes, experts))


# Folders -----------------------------------------------------------------------------------


def labelled(config: Mapping[str, Any], classes: int) -> dict[str, Any]:
    """The configuration with labels for a head of `classes` outputs, at most three."""
    return {**config, **as_config(("no", "yes", "maybe")[:classes])}


IMAGES = {"image_size": 6, "patch_size": 2, "num_channels": 3}
"""Fields of the configuration of a network of toy images."""


def inputs(modality: Modality = "text") -> dict[str, torch.Tensor]:
    """Arguments for a network: six rows of different lengths, or six images."""
    numbers = torch.Generator().manual_seed(0)
    if modality == "image":
        return {"pixel_values": torch.randn(6, 3, 6, 6, generator=numbers)}
    ids = torch.randint(5, len(WORDS), (6, 8), generator=numbers)
    lengths = torch.tensor([8, 8, 5, 3, 2, 1])
    ids[torch.arange(6), lengths - 1] = WORDS.index("[SEP]")  # where T5 takes its features
    mask = (torch.arange(8) < lengths[:, None]).long()
    return {"input_ids": ids, "attention_mask": mask}


def exact_norms(network: torch.nn.Module) -> torch.nn.Module:
    """The network with T5's norms, which compute in float32, replaced by ones that keep float64."""
    for module in [*network.modules()]:
        for name, norm in module.named_children():
            if type(norm).__name__ in ("T5LayerNorm", "MT5LayerNorm"):
                old: Any = norm
                exact = torch.nn.RMSNorm(old.weight.shape, old.variance_epsilon)
                exact.weight = old.weight
                setattr(module, name, exact)
    return network


def write(folder: Path, state: StateDict, config: Mapping[str, Any] | None = None) -> Path:
    """Write a state as a Hugging Face folder: weights, configuration, vocabulary."""
    folder.mkdir()
    save_file(dict(state), folder / WEIGHTS_FILE)
    config = config or labelled(CONFIG, len(state["classifier.bias"]))
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "vocab.txt").write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return folder
