"""`Family`: an architecture as data; and functions that build its table of axes."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from harness.weights import Axes, dual

if TYPE_CHECKING:
    import torch

GENERIC = "generic"
"""The name of a family without a file of its own, which generic.py derives by rules."""
Unit: TypeAlias = Literal["row", "word"]
"""What a classifier gives outputs for: a whole row, or each token of it."""
WIDTH = "width"
"""The residual stream. Norms have a gain and a bias for each unit: it may be permuted only."""
EMBEDDING = "embedding"
"""The embeddings' own width, where they are projected to `WIDTH`; else it is `WIDTH`."""
POOLED = "pooled"
"""The input of the final linear layer, where a layer with an activation comes before it."""
FFN = "ffn.{layer}"
"""The units between the two feed-forward layers: any permutation."""
QK, VO = "qk.{layer}", "vo.{layer}"
"""Queries with keys, and values with attention's output: one block for each head, in the order of
the heads. Within a head, each group by itself may be rotated and scaled, which is undone in its
dual; heads must be permuted alike in both groups."""
ROPE = "rope.{layer}"
"""`QK` where positions are rotary: heads are permuted as those of `VO`, nothing within a head."""
CROSS_QK, CROSS_VO = "qk.{layer}.cross", "vo.{layer}.cross"
"""`QK` and `VO` of a decoder's attention to the encoder's output."""
HEADS = "heads"
"""The axis over heads of a table that all layers read (of relative positions, say): heads must be
permuted alike in all layers. In a model of two stacks the name has the stack, `heads.encoder`."""

Settings: TypeAlias = Mapping[str, Any]
"""Keys of config.json, with defaults, that two models must agree on although transformers' class of
the configuration lacks them, or although the rules in settings.py would leave them out."""
SETTINGS: Settings = {"position_embedding_type": "absolute"}
Modality: TypeAlias = Literal["text", "image"]
"""What a model reads."""


@dataclass(frozen=True)
class Top:
    """The head on top of an encoder.

    `modules` are its modules by their names in the classifier, `final` its last linear layer, whose
    input are the features; `axes` is its part of the table of axes.
    """

    modules: tuple[str, ...]
    final: str
    axes: Axes = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """An architecture, as data; names are those of transformers' classifiers.

    `model_types` are its names in config.json. `prefix` precedes the names of the encoder, but not
    of a pooler beside it; some pretrained bases are stored without the prefix. `row` and `word` are
    the heads of classifiers of rows and of words. A `pooler` is merged as part of the encoder,
    though a base may lack it. `axes` is the table of the encoder's symmetries, which may have more
    names than a model of one configuration. `projection` is a tensor that is there only if
    embeddings have a width of their own. `heads` is the key of config.json that counts attention
    heads. `inputs` is what it reads. `aliases` are pairs of a pattern and its replacement, applied
    in turn: they turn names of any release of transformers into those that it writes. `readers` are
    the norms that come before layers, each with all modules that read it; a family with norms after
    its layers has none. `whole` is the model_type of the larger model that a base is part of, if
    experts may lack their pooler and their head. `make` builds a classifier for configurations for
    which transformers' Auto classes have none, and gives None for others. `stacks` are the names
    of the stacks of an encoder-decoder: layers are numbered in each, and all share one token table.
    The classifier of rows of a `decoder` reads the last token of a row that is no padding.
    `parts` are the names that `axes` has for equal shares of the rows of one stored tensor.
    `transposed` are the last names of modules whose matrices a file has as [inputs, outputs].
    """

    name: str
    model_types: tuple[str, ...]
    prefix: str
    row: Top = field(default_factory=lambda: one_linear(POOLED))
    word: Top | None = field(default_factory=lambda: one_linear(WIDTH))
    pooler: str | None = None
    axes: Axes = field(default_factory=dict)
    projection: str | None = None
    heads: str = "num_attention_heads"
    settings: Settings = field(default_factory=lambda: SETTINGS)
    inputs: Modality = "text"
    aliases: tuple[tuple[str, str], ...] = ()
    readers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    whole: str | None = None
    make: Callable[[Any, Unit], torch.nn.Module | None] | None = None
    stacks: tuple[str, ...] = ()
    decoder: bool = False
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    transposed: tuple[str, ...] = ()

    @property
    def recorded(self) -> dict[str, str]:
        """What a record says of a generic family: `family: generic`; of any other, nothing."""
        return {"family": self.name} if self.name == GENERIC else {}

    @property
    def token_embeddings(self) -> str:
        """The name of the token embeddings: the first in `axes`, which must not be empty."""
        return next(iter(self.axes))

    @property
    def tops(self) -> tuple[Top, ...]:
        """The heads of classifiers of rows and, if the family has them, of words."""
        return (self.row,) if self.word is None else (self.row, self.word)

    @cached_property
    def _of_heads(self) -> tuple[str, ...]:
        return tuple({f"{module}.": None for top in self.tops for module in top.modules})

    def is_head(self, name: str) -> bool:
        """Whether a tensor of this name belongs to the head."""
        return name.startswith(self._of_heads)

    def is_pooler(self, name: str) -> bool:
        """Whether a tensor of this name belongs to the pooler, which a base may lack."""
        return self.pooler is not None and name.startswith(f"{self.pooler}.")

    def canonical(self, name: str) -> str:
        """The family's name of a tensor or module, by its name in any release of transformers."""
        for pattern, replacement in self.aliases:
            name = re.sub(pattern, replacement, name)
        return name

    def is_transposed(self, name: str) -> bool:
        """Whether a file has the transpose of the tensor of this name."""
        module, _, kind = name.rpartition(".")
        return kind == "weight" and module.rpartition(".")[2] in self.transposed

    def bare(self, name: str) -> str:
        """The name without the prefix, as a lone encoder may have it in its file."""
        return name.removeprefix(self.prefix)

    def final(self, names: Container[str]) -> str | None:
        """The final linear layer of a model with tensors of these names; None if there is none.

        In some families its name differs between classifiers of rows and of words.
        """
        finals = {top.final for top in self.tops if f"{top.final}.weight" in names}
        return finals.pop() if len(finals) == 1 else None


def linear(name: str, out: str | None, into: str) -> Axes:
    """The axes of a linear layer from the group `into` to the group `out`."""
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def norm(name: str, group: str = WIDTH) -> Axes:
    """The axes of a layer normalisation over a group."""
    return {f"{name}.weight": (group,), f"{name}.bias": (group,)}


def embeddings(prefix: str, *kinds: str, group: str = WIDTH, norms: str = WIDTH) -> Axes:
    """The axes of a table of embeddings of each kind, and of the normalisation of their sum."""
    tables: Axes = {f"{prefix}{kind}_embeddings.weight": (None, group) for kind in kinds}
    return {**tables, **norm(f"{prefix}LayerNorm", norms)}


def narrow_embeddings(prefix: str, projection: str) -> Axes:
    """The axes of embeddings with a width of their own, and of their projection to `WIDTH`."""
    kinds = ("word", "position", "token_type")
    return {
        **embeddings(prefix, *kinds, group=EMBEDDING, norms=EMBEDDING),
        **linear(projection, WIDTH, EMBEDDING),
    }


def block(layer: str, attention: str, units: str, norms: str) -> Axes:
    """The axes of one layer: attention, two feed-forward layers and the norms.

    Each argument has names after `layer`, with spaces between: `attention` those of the modules of
    queries, keys, values and output, `units` those of the two feed-forward layers, `norms` those
    of the norms.
    """
    query, key, value, out = (f"{layer}{name}" for name in attention.split())
    up, down = (f"{layer}{name}" for name in units.split())
    return {
        **linear(query, QK, WIDTH),
        **linear(key, dual(QK), WIDTH),
        **linear(value, VO, WIDTH),
        **linear(out, WIDTH, dual(VO)),
        **linear(up, FFN, WIDTH),
        **linear(down, WIDTH, dual(FFN)),
        **{name: axes for one in norms.split() for name, axes in norm(f"{layer}{one}").items()},
    }


def layers(prefix: str, modules: str = "query key value") -> Axes:
    """The axes of BERT's layers; `modules` names the modules of queries, keys and values."""
    attention = [f"attention.self.{name}" for name in modules.split()]
    return block(
        prefix + "{layer}.",
        " ".join([*attention, "attention.output.dense"]),
        "intermediate.dense output.dense",
        "attention.output.LayerNorm output.LayerNorm",
    )


def one_linear(into: str) -> Top:
    """A single linear layer called `classifier`."""
    return Top(("classifier",), "classifier", linear("classifier", None, into))


def two_layers(hidden: str = "classifier.dense", final: str = "classifier.out_proj") -> Top:
    """A hidden layer, and the final one: by default RoBERTa's head for rows."""
    modules = dict.fromkeys(name.partition(".")[0] for name in (hidden, final))
    return Top(
        tuple(modules), final, {**linear(hidden, POOLED, WIDTH), **linear(final, None, POOLED)}
    )
