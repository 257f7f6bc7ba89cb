"""ALBERT (Lan et al. 2020, arXiv:1909.11942): one layer run many times over, narrow embeddings.

What is done to a layer is done at each of its turns, so that its groups are those of any layer.
"""

from harness.checkpoints.families.family import (
    EMBEDDING,
    POOLED,
    SETTINGS,
    WIDTH,
    Family,
    block,
    embeddings,
    linear,
)

KINDS = ("word", "position", "token_type")
AT = "albert.encoder.albert_layer_groups.{layer}.albert_layers.0."
PROJECTION = "albert.encoder.embedding_hidden_mapping_in"

ALBERT = Family(
    name="albert",
    model_types=("albert",),
    prefix="albert.",
    pooler="albert.pooler",
    axes={
        **embeddings("albert.embeddings.", *KINDS, group=EMBEDDING, norms=EMBEDDING),
        **linear(PROJECTION, WIDTH, EMBEDDING),
        **block(
            AT,
            "attention.query attention.key attention.value attention.dense",
            "ffn ffn_output",
            "attention.LayerNorm full_layer_layer_norm",
        ),
        **linear("albert.pooler", POOLED, WIDTH),
    },
    projection=f"{PROJECTION}.weight",
    settings={**SETTINGS, "num_hidden_layers": 12},
)
