"""T5 (Raffel et al. 2020, arXiv:1910.10683): an encoder and a decoder that share one token table.

Norms are of the root mean square and come before attention and feed-forward layers; nothing but
the head has a bias. In a classifier of rows, the decoder is given the row itself shifted by one,
and the head reads its state at the last </s>; a classifier of words has the encoder alone. Under a
head of words, the decoder's input is the same for all rows, and its last state is read. Version
1.1, Flan and mT5 (Xue et al. 2021, arXiv:2010.11934) have gated feed-forward layers.
"""

from collections.abc import Mapping
from functools import cache
from typing import Any

import torch

from harness.checkpoints.families import family
from harness.weights import Axes, dual


def _attention(module: str, qk: str = family.QK, vo: str = family.VO) -> Axes:
    return {
        f"{module}.q.weight": (qk, family.WIDTH),
        f"{module}.k.weight": (dual(qk), family.WIDTH),
        f"{module}.v.weight": (vo, family.WIDTH),
        f"{module}.o.weight": (family.WIDTH, dual(vo)),
    }


def _stack(stack: str, *parts: Axes) -> Axes:
    """The axes of one stack: blocks of self-attention, further `parts`, and two feed-forward
    layers, the first gated or not; the first block alone has the table of relative positions."""
    block = f"transformer.{stack}.block.{{layer}}"
    self, ffn = f"{block}.layer.0.SelfAttention", f"{block}.layer.{1 + len(parts)}.DenseReluDense"
    norms = [f"{block}.layer.{part}.layer_norm.weight" for part in range(2 + len(parts))]
    return {
        **_attention(self),
        f"{self}.relative_attention_bias.weight": (None, f"{family.HEADS}.{stack}"),
        **{name: axes for part in parts for name, axes in part.items()},
        **{f"{ffn}.{name}.weight": (family.FFN, family.WIDTH) for name in ("wi", "wi_0", "wi_1")},
        f"{ffn}.wo.weight": (family.WIDTH, dual(family.FFN)),
        **dict.fromkeys(norms, (family.WIDTH,)),
        f"transformer.{stack}.final_layer_norm.weight": (family.WIDTH,),
    }


OUTPUTS = "lm_head"
"""The layer that generates text, with a row for each token; where tied, the token table."""
DECODER, ANSWERS, TIED = "decoder", "answers", "tied"
"""Keys of the description of a head of words: the tokens that the decoder is given, the tokens of
the answers, and whether the rows of these are the token table's."""


class Words(torch.nn.Linear):
    """Outputs for some tokens alone, by a layer that has a row for every token."""

    def __init__(self, table: torch.nn.Embedding, tokens: list[int]) -> None:
        super().__init__(table.embedding_dim, table.num_embeddings, bias=False)
        self.tokens = tokens

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """[rows, width] -> [rows, words]"""
        return torch.nn.functional.linear(features, self.weight[self.tokens])


class TiedWords(torch.nn.Module):
    """Outputs for some tokens by their rows of the token table; it has no parameter of its own."""

    def __init__(self, table: torch.nn.Embedding, tokens: list[int]) -> None:
        super().__init__()
        self._table, self.tokens = (table,), tokens

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """[rows, width] -> [rows, words]"""
        rows = self._table[0].weight[self.tokens]
        return torch.nn.functional.linear(features, rows.to(features.dtype))


def is_scaled(config: Any) -> bool:
    """Whether states are divided by the root of the width before the outputs, as in tied models."""
    return bool(getattr(config, "scale_decoder_outputs", False))


def is_tied(config: Mapping[str, Any]) -> bool:
    """Whether a config.json ties the outputs to the token table, as T5 1.0 does; mT5 never does."""
    keys = ("tie_word_embeddings", "scale_decoder_outputs")
    return config.get("model_type") == "t5" and all(config.get(key) is not False for key in keys)


def verbalizer_classifier(config: Any, unit: family.Unit) -> torch.nn.Module | None:
    """A classifier of rows under the head of words of a configuration; None if it has none."""
    if unit == "word" or DECODER not in (getattr(config, "text_head", None) or {}):
        return None
    return _class(config.model_type)(config)


@cache
def _class(model_type: str) -> type[torch.nn.Module]:
    """transformers' classifier of rows, with a head of words in the place of its own."""
    import transformers
    from transformers.modeling_outputs import SequenceClassifierOutput

    parent: Any = getattr(transformers, f"{model_type.upper()}ForSequenceClassification")

    class Verbalizer(parent):  # type: ignore[misc]  # transformers has no types
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            del self.classification_head
            tokens, table = config.text_head[ANSWERS], self.transformer.shared
            tied = config.text_head[TIED]
            words: type[Words | TiedWords] = TiedWords if tied else Words
            self.lm_head = words(table, tokens)

        def forward(self, input_ids: Any, attention_mask: Any = None, labels: Any = None) -> Any:
            start = input_ids.new_tensor([self.config.text_head[DECODER]])
            states = self.transformer(
                input_ids=input_ids,
                attention_mask=attention_mask,
                decoder_input_ids=start.expand(len(input_ids), -1),
                use_cache=False,
            ).last_hidden_state[:, -1]
            scale = self.config.d_model**-0.5 if is_scaled(self.config) else 1.0
            logits = self.lm_head(states * scale)
            loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
            return SequenceClassifierOutput(loss=loss, logits=logits)

    return Verbalizer


CROSS = "transformer.decoder.block.{layer}.layer.1.EncDecAttention"
T5 = family.Family(
    name="t5",
    model_types=("t5", "mt5"),
    prefix="transformer.",
    row=family.two_layers("classification_head.dense", "classification_head.out_proj"),
    axes={
        "transformer.shared.weight": (None, family.WIDTH),
        **_stack("encoder"),
        **_stack("decoder", _attention(CROSS, family.CROSS_QK, family.CROSS_VO)),
        f"{OUTPUTS}.weight": (None, family.WIDTH),
    },
    pooler=OUTPUTS,  # merged with the encoder; classifiers lack it
    heads="num_heads",
    settings={"decoder_start_token_id": None, "eos_token_id": 1, "tie_word_embeddings": True},
    aliases=((r"\b(encoder|decoder)\.embed_tokens\b", "shared"),),
    stacks=("encoder", "decoder"),
    make=verbalizer_classifier,
)
