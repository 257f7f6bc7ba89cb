"""MPNet (Song et al. 2020, arXiv:2004.09297): names of its own, and RoBERTa's head for rows.

All layers add one table of biases of relative positions, which has a column for each head.
"""

from harness.checkpoints.families.family import (
    FFN,
    HEADS,
    QK,
    VO,
    WIDTH,
    Family,
    embeddings,
    linear,
    norm,
    two_layers,
)
from harness.weights import dual

AT = "mpnet.encoder.layer.{layer}."

MPNET = Family(
    name="mpnet",
    model_types=("mpnet",),
    prefix="mpnet.",
    row=two_layers(),
    axes={
        **embeddings("mpnet.embeddings.", "word", "position"),
        **linear(f"{AT}attention.attn.q", QK, WIDTH),
        **linear(f"{AT}attention.attn.k", dual(QK), WIDTH),
        **linear(f"{AT}attention.attn.v", VO, WIDTH),
        **linear(f"{AT}attention.attn.o", WIDTH, dual(VO)),
        **norm(f"{AT}attention.LayerNorm"),
        **linear(f"{AT}intermediate.dense", FFN, WIDTH),
        **linear(f"{AT}output.dense", WIDTH, dual(FFN)),
        **norm(f"{AT}output.LayerNorm"),
        "mpnet.encoder.relative_attention_bias.weight": (None, HEADS),
    },
    settings={},
)
