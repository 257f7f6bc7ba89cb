"""T5 (Raffel et al. 2020, arXiv:1910.10683): an encoder and a decoder that read one table.

Norms are of the root mean square and come before attention and feed-forward layers; nothing but
the head has a bias. A classifier of rows reads what the decoder, given the row itself shifted by
one, says at the last </s>; one of words has the encoder alone. Version 1.1, Flan and mT5 (Xue et
al. 2021, arXiv:2010.11934) have a gate.
"""

from harness.checkpoints.families.family import (
    CROSS_QK,
    CROSS_VO,
    FFN,
    HEADS,
    POOLED,
    QK,
    VO,
    WIDTH,
    Family,
    Top,
    linear,
)
from harness.weights import Axes, dual


def _attention(at: str, qk: str = QK, vo: str = VO) -> Axes:
    return {
        f"{at}.q.weight": (qk, WIDTH),
        f"{at}.k.weight": (dual(qk), WIDTH),
        f"{at}.v.weight": (vo, WIDTH),
        f"{at}.o.weight": (WIDTH, dual(vo)),
    }


def _stack(stack: str, *parts: Axes) -> Axes:
    """Blocks of self-attention, further `parts`, and two feed-forward layers, the first gated or
    not; the first block alone has a table of relative positions, which all read."""
    block = f"transformer.{stack}.block.{{layer}}"
    self, ffn = f"{block}.layer.0.SelfAttention", f"{block}.layer.{1 + len(parts)}.DenseReluDense"
    norms = [f"{block}.layer.{part}.layer_norm.weight" for part in range(2 + len(parts))]
    return {
        **_attention(self),
        f"{self}.relative_attention_bias.weight": (None, f"{HEADS}.{stack}"),
        **{name: axes for part in parts for name, axes in part.items()},
        **{f"{ffn}.{made}.weight": (FFN, WIDTH) for made in ("wi", "wi_0", "wi_1")},
        f"{ffn}.wo.weight": (WIDTH, dual(FFN)),
        **dict.fromkeys(norms, (WIDTH,)),
        f"transformer.{stack}.final_layer_norm.weight": (WIDTH,),
    }


CROSS = "transformer.decoder.block.{layer}.layer.1.EncDecAttention"
HEAD = "classification_head"
T5 = Family(
    name="t5",
    model_types=("t5", "mt5"),
    prefix="transformer.",
    row=Top(
        (HEAD,),
        f"{HEAD}.out_proj",
        {**linear(f"{HEAD}.dense", POOLED, WIDTH), **linear(f"{HEAD}.out_proj", None, POOLED)},
    ),
    axes={
        "transformer.shared.weight": (None, WIDTH),
        **_stack("encoder"),
        **_stack("decoder", _attention(CROSS, CROSS_QK, CROSS_VO)),
    },
    heads="num_heads",
    settings={"decoder_start_token_id": None, "eos_token_id": 1, "tie_word_embeddings": True},
    aliases=((r"\b(encoder|decoder)\.embed_tokens\b", "shared"),),
    stacks=("encoder", "decoder"),
)
