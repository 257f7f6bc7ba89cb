"""The noun `Family`, and the pieces that its table of axes is put together from."""

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
"""The name of a family that was told by rules, as it has no file of its own."""
Unit: TypeAlias = Literal["row", "word"]
"""What a classifier gives outputs for: a whole row, or each token of it."""
WIDTH = "width"
"""The residual stream. Its gains and biases stand for one place each: it may be permuted only."""
EMBEDDING = "embedding"
"""The width of the embeddings, where they are projected to that of the stream; else `WIDTH`."""
POOLED = "pooled"
"""What the final linear layer reads, where a layer with an activation comes before it."""
FFN = "ffn.{layer}"
"""The units between the two feed-forward layers: any permutation."""
QK, VO = "qk.{layer}", "vo.{layer}"
"""Queries with keys, and values with attention's output: one block for each head, in the order of
the heads. Within a head any rotation, of either group by itself, and any scale, undone in its dual;
heads move in both alike."""
ROPE = "rope.{layer}"
"""`QK` where positions are rotary: heads move with those of `VO`, and nothing moves within them."""
CROSS_QK, CROSS_VO = "qk.{layer}.cross", "vo.{layer}.cross"
"""The same of a decoder's attention to what the encoder gave."""
HEADS = "heads"
"""What a table has for each head, where all layers read it: their heads are in one order. In a
model of two stacks it is called by the stack as well, `heads.encoder`."""

Settings: TypeAlias = Mapping[str, Any]
"""Keys of config.json that a model reads though transformers' class of the configuration has them
not, or though no shape of a tensor tells what they say, and what stands for one that is not
there."""
SETTINGS: Settings = {"position_embedding_type": "absolute"}
Modality: TypeAlias = Literal["text", "image"]
"""What a row is, as a model takes it."""


@dataclass(frozen=True)
class Top:
    """What stands on an encoder and gives the outputs.

    `modules` are its modules as the classifier calls them, `final` the last linear layer of all,
    whose input the features are.
    """

    modules: tuple[str, ...]
    final: str
    axes: Axes = field(default_factory=dict)


@dataclass(frozen=True)
class Family:
    """What an architecture is, as data; names are those of transformers' classifiers.

    `model_types` is what config.json may call it. `prefix` is before the encoder's names, but for a
    pooler that stands beside it, and is left out by some pretrained bases. `row` and `word` are
    the tops of classifiers of rows and of words. A `pooler` is encoder and merged as such, though a
    base may come without. `axes` is the table of the encoder's symmetries, which may have more
    names than a configuration leads to; a `projection` is there if embeddings have a width of their
    own. `heads` is the key of config.json that counts attention heads. `inputs` is what it reads.
    `aliases` are patterns and what stands for them, in turn, from the names of any release of
    transformers to those that it writes. `readers` are norms that stand before layers, with all
    that reads each; of a family with norms after its layers there are none. `whole` is the
    model_type of what a base is a part of, where experts may leave their pooler and their head to
    it. `make` makes its classifier of a configuration that transformers' Auto classes have none of.
    `stacks` are those of an encoder-decoder, as its names have them: layers are numbered in each,
    and all read one table of tokens. `parts` are names that the table has for equal shares of the
    rows of one tensor of files.
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
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def recorded(self) -> dict[str, str]:
        """What a record says of a family told by rules: `family: generic`; else nothing."""
        return {"family": self.name} if self.name == GENERIC else {}

    @property
    def words(self) -> str:
        """The table of embeddings of tokens, in a family with a table of axes: the first there."""
        return next(iter(self.axes))

    @property
    def tops(self) -> tuple[Top, ...]:
        """Those of classifiers of rows and of words, as far as there are any."""
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
        """The name of a tensor or a module that a release of transformers may call otherwise."""
        for pattern, replacement in self.aliases:
            name = re.sub(pattern, replacement, name)
        return name

    def bare(self, name: str) -> str:
        """The name as an encoder by itself may be stored under."""
        return name.removeprefix(self.prefix)

    def final(self, names: Container[str]) -> str | None:
        """The final linear layer of a model with tensors of these names; None where there is none.

        Its name tells the unit of a classifier in some families, and is one for both in others.
        """
        there = {top.final for top in self.tops if f"{top.final}.weight" in names}
        return there.pop() if len(there) == 1 else None


def linear(name: str, out: str | None, into: str) -> Axes:
    """A linear layer from one group to another."""
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


def norm(name: str, group: str = WIDTH) -> Axes:
    """A layer normalisation over a group."""
    return {f"{name}.weight": (group,), f"{name}.bias": (group,)}


def embeddings(prefix: str, *kinds: str, group: str = WIDTH, norms: str = WIDTH) -> Axes:
    """A table of embeddings of each kind, and the normalisation of their sum."""
    tables: Axes = {f"{prefix}{kind}_embeddings.weight": (None, group) for kind in kinds}
    return {**tables, **norm(f"{prefix}LayerNorm", norms)}


def narrow_embeddings(prefix: str, projection: str) -> Axes:
    """Embeddings of a width of their own, and what projects them to that of the stream."""
    kinds = ("word", "position", "token_type")
    return {
        **embeddings(prefix, *kinds, group=EMBEDDING, norms=EMBEDDING),
        **linear(projection, WIDTH, EMBEDDING),
    }


def block(at: str, attention: str, units: str, norms: str) -> Axes:
    """A layer: attention and two feed-forward layers, each with what it adds to.

    By their names after `at`, with spaces between: of what makes queries, keys, values and the
    output of attention, of what makes and what reads the units, and of the norms.
    """
    query, key, value, out = (f"{at}{name}" for name in attention.split())
    up, down = (f"{at}{name}" for name in units.split())
    return {
        **linear(query, QK, WIDTH),
        **linear(key, dual(QK), WIDTH),
        **linear(value, VO, WIDTH),
        **linear(out, WIDTH, dual(VO)),
        **linear(up, FFN, WIDTH),
        **linear(down, WIDTH, dual(FFN)),
        **{name: axes for one in norms.split() for name, axes in norm(f"{at}{one}").items()},
    }


def layers(prefix: str, made: str = "query key value") -> Axes:
    """The layers of BERT, which may have other names for what makes queries, keys and values."""
    attention = [f"attention.self.{name}" for name in made.split()]
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
