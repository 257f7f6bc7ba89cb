"""Funnel (Dai et al. 2020, arXiv:2006.03236): tokens are pooled between blocks of layers.

Pooling moves no unit. Layer 12 is the third of the second block. What is added to queries, and what
they read of positions and segments, is stored with one axis for heads and one within them. The
decoder, which classifiers of words have, may be permuted in its width only.
"""

from harness.checkpoints.families.family import (
    FFN,
    POOLED,
    QK,
    VO,
    WIDTH,
    Family,
    Top,
    linear,
    norm,
)
from harness.weights import Axes, dual

AT, DECODER = "funnel.encoder.blocks.{layer}.", "funnel.decoder.layers.{layer}."
READ = ("r_kernel", "seg_embed")
ADDED = ("r_w_bias", "r_r_bias", "r_s_bias")


def _layer(at: str) -> Axes:
    return {
        f"{at}attention.q_head.weight": (QK, WIDTH),
        **{f"{at}attention.{name}": (QK,) for name in ADDED},
        **linear(f"{at}attention.k_head", dual(QK), WIDTH),
        **{f"{at}attention.{name}": (None, dual(QK)) for name in READ},
        **linear(f"{at}attention.v_head", VO, WIDTH),
        **linear(f"{at}attention.post_proj", WIDTH, dual(VO)),
        **norm(f"{at}attention.layer_norm"),
        **linear(f"{at}ffn.linear_1", FFN, WIDTH),
        **linear(f"{at}ffn.linear_2", WIDTH, dual(FFN)),
        **norm(f"{at}ffn.layer_norm"),
    }


def _width_alone(axes: Axes) -> Axes:
    return {
        name: tuple(axis if axis == WIDTH else None for axis in of) for name, of in axes.items()
    }


FUNNEL = Family(
    name="funnel",
    model_types=("funnel",),
    prefix="funnel.",
    row=Top(
        ("classifier",),
        "classifier.linear_out",
        {
            **linear("classifier.linear_hidden", POOLED, WIDTH),
            **linear("classifier.linear_out", None, POOLED),
        },
    ),
    axes={
        "funnel.embeddings.word_embeddings.weight": (None, WIDTH),
        **norm("funnel.embeddings.layer_norm"),
        **_layer(AT),
        **_width_alone(_layer(DECODER)),
    },
    heads="n_head",
    views={
        name: (name,)
        for at in (AT, DECODER)
        for name in (f"{at}attention.{one}" for one in (*ADDED, *READ))
    },
    settings={},
    aliases=(
        (r"\bblocks\.0\.(\d)\b", r"blocks.\1"),
        (r"\bblocks\.(\d)\.(\d)\b", r"blocks.\1\2"),
    ),
)
