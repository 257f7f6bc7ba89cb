"""MPNet (Song et al. 2020, arXiv:2004.09297): names of its own, and RoBERTa's head for rows.

All layers share one table of biases of relative positions, which has a column for each head.
"""

from harness.checkpoints.families.family import HEADS, Family, block, embeddings, two_layers

MPNET = Family(
    name="mpnet",
    model_types=("mpnet",),
    prefix="mpnet.",
    row=two_layers(),
    axes={
        **embeddings("mpnet.embeddings.", "word", "position"),
        **block(
            "mpnet.encoder.layer.{layer}.",
            "attention.attn.q attention.attn.k attention.attn.v attention.attn.o",
            "intermediate.dense output.dense",
            "attention.LayerNorm output.LayerNorm",
        ),
        "mpnet.encoder.relative_attention_bias.weight": (None, HEADS),
    },
    settings={},
)
