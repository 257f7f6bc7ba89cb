"""Exactness on every known architecture: a method that is right on BERT may not know the names,
the head or the embeddings of another."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import Any

import torch

from harness.checking import toys
from harness.checking.properties.compare import dtype_name
from harness.checking.properties.folders import gap, in_type, recipe_of, written
from harness.checking.properties.property import Broken, CheckedMethod, checks
from harness.checking.toys import Tensors
from harness.checkpoints.build import CLASS_OF_UNIT
from harness.checkpoints.families.family import Unit
from harness.checkpoints.families.known import FAMILY_OF_TYPE
from harness.checkpoints.named import parameters_of, to_memory_names
from harness.checkpoints.network import new_classifier
from harness.errors import BadOption
from harness.merging.plan import plan
from harness.merging.providers import prepare
from harness.merging.spool import Spool
from harness.registry import NEEDS
from harness.types import StateDict
from harness.weights import transposed

SIZES = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
WIDE = {**SIZES, "intermediate_size": 12}
WORDS = {"vocab_size": len(toys.WORDS), "max_position_embeddings": 16}
BERT = {**WIDE, **WORDS, "pad_token_id": 0}
NARROW = {**BERT, "embedding_size": 6}
DEBERTA: Mapping[str, Any] = {
    **BERT,
    "model_type": "deberta-v2",
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "position_buckets": 4,
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "pooler_hidden_size": 8,
}
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "bert": BERT,
    "roberta": BERT,
    "distilbert": {**WORDS, "dim": 8, "n_layers": 2, "n_heads": 2, "hidden_dim": 12},
    "electra": NARROW,
    "deberta-v2": DEBERTA,
    "deberta-v2, positions apart": {**DEBERTA, "share_att_key": False, "embedding_size": 6},
    "clip": {"model_type": "clip_vision_model", **WIDE, "projection_dim": 6, **toys.IMAGES},
    "t5": {
        "d_model": 8,
        "d_kv": 4,
        "d_ff": 12,
        "num_layers": 2,
        "num_heads": 2,
        "vocab_size": len(toys.WORDS),
        "feed_forward_proj": "gated-gelu",
        "eos_token_id": toys.WORDS.index("[SEP]"),
        "decoder_start_token_id": 0,
    },
    "vit": {**WIDE, **toys.IMAGES},
    "albert": NARROW,
    "modernbert": {
        **BERT,
        "sliding_window": 2,
        **dict.fromkeys(("bos_token_id", "cls_token_id"), 2),
        **dict.fromkeys(("eos_token_id", "sep_token_id"), 3),
    },
    "mpnet": BERT,
    # GPT-2's configuration takes the usual names for its own
    "gpt2": {**SIZES, **WORDS, "n_inner": 12, "pad_token_id": 0},
}
CONFIGS = {name: {"model_type": name, **one} for name, one in CONFIGS.items()}
"""A configuration for every family, and a second one where that gives further tensors."""

DRIFT = {torch.float32: 1e-5, torch.float64: 1e-10}
"""The most that outputs may move, relative to the largest, and count as unchanged."""


@checks("family", "premerge")
def family(method: CheckedMethod) -> str:
    """The outputs of no family's networks move, of rows and of words, in float32 and in float64.

    Weights are random and not small. Experts are taken as they leave the method, in the plan of a
    merge, which gives the method the architecture as in any merge; toys replace needs that read
    rows. A family with two stacks is skipped if the method refuses it with BadOption, as when
    options name layers without a stack.
    """
    largest, done = dict.fromkeys(DRIFT, 0.0), set()
    for name, unit in models():
        for dtype, bound in DRIFT.items():
            mini = miniature(name, unit, dtype, method.experts)
            try:
                after = _left(method, mini)
            except BadOption:
                if FAMILY_OF_TYPE[mini.config["model_type"]].stacks:
                    continue
                raise
            done.add(name)
            for place, moved in enumerate(map(gap, mini.before, after), start=1):
                if not moved <= bound:
                    raise Broken(
                        f"outputs of expert {place}, a {name} for each {unit}, change by "
                        f"{moved:.2g} of the largest in {dtype_name(dtype)}"
                    )
                largest[dtype] = max(largest[dtype], moved)
    texts = (f"{moved:.1g} in {dtype_name(dtype)}" for dtype, moved in largest.items())
    return f"by {' and '.join(texts)} at most, on {len(done)} architectures"


def models() -> list[tuple[str, Unit]]:
    """Pairs of a configuration and a unit of outputs; some families have no outputs for words."""
    return [
        (name, unit)
        for (name, config), unit in product(CONFIGS.items(), CLASS_OF_UNIT)
        if unit != "word" or FAMILY_OF_TYPE[config["model_type"]].word
    ]


@dataclass(frozen=True)
class Miniature:
    """A base and experts of an architecture with random weights, and the network to run them in."""

    config: Mapping[str, Any]
    network: torch.nn.Module
    base: Tensors
    experts: tuple[Tensors, ...]

    @cached_property
    def before(self) -> tuple[torch.Tensor, ...]:
        """The logits of each expert before the method, [rows or tokens, classes]."""
        return tuple(self.outputs(expert) for expert in self.experts)

    def outputs(self, state: StateDict) -> torch.Tensor:
        """The logits of the network with these weights on toy rows or images."""
        inputs = toys.inputs(FAMILY_OF_TYPE[self.config["model_type"]].inputs)
        dtype = next(self.network.parameters()).dtype
        with torch.inference_mode():
            logits: torch.Tensor = torch.func.functional_call(
                self.network,
                to_memory_names(self.network, {name: state[name] for name in self.base}),
                kwargs=in_type(dtype, inputs),
            ).logits
        return logits if logits.ndim == 2 else logits[inputs["attention_mask"].bool()]

    @cached_property
    def written(self) -> tuple[Path, list[Path]]:
        """The folders of base and experts, deleted when the miniature is garbage collected."""
        folder = tempfile.TemporaryDirectory(prefix="harness-check-")
        weakref.finalize(self, folder.cleanup)
        is_transposed = FAMILY_OF_TYPE[self.config["model_type"]].is_transposed
        base, *experts = (transposed(state, is_transposed) for state in (self.base, *self.experts))
        return written(Path(folder.name), base, experts, self.config)


@cache
def miniature(name: str, unit: Unit, dtype: torch.dtype, experts: int) -> Miniature:
    """The miniature of a configuration of `CONFIGS`, as a classifier of rows or of words."""
    config = toys.labelled(CONFIGS[name], 3)
    with torch.random.fork_rng([]):
        network = toys.exact_norms(new_classifier(config, name, unit).to(dtype).eval())
    # the class depends on the unit
    architecture = {"architectures": [type(network).__name__]}
    base, *tuned = [_drawn(network, seed, dtype) for seed in range(experts + 1)]
    return Miniature({**config, **architecture}, network, base, tuple(tuned))


def _drawn(network: torch.nn.Module, seed: int, dtype: torch.dtype) -> Tensors:
    """Weights unrelated to those of other seeds, so that matching moves units."""
    numbers = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(tensor.shape, generator=numbers, dtype=torch.float64).to(dtype) / 2
        for name, tensor in parameters_of(network).items()
    }


def _left(method: CheckedMethod, mini: Miniature) -> list[torch.Tensor]:
    """The logits of each expert after the method."""
    rows = [need for need in method.needs if NEEDS[need].rows != "none"]
    shapes = {name: tuple(tensor.shape) for name, tensor in mini.base.items()}
    base, experts = mini.written
    with toys.handed_out(rows, shapes, method.experts), Spool(base) as spool:
        draft = plan(recipe_of(method, base, experts, heads="merge"), spool=spool)
        prepare([provider for stage in draft.stages for provider in stage.providers])
        return [mini.outputs(body) for body in draft.merger_inputs]
