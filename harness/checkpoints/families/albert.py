"""ALBERT (Lan et al. 2020, arXiv:1909.11942): one layer run many times over, narrow embeddings.

A map of a layer's weights acts in each of its runs, so that its groups are those of any layer.
"""

from harness.checkpoints.families import family

AT = "albert.encoder.albert_layer_groups.{layer}.albert_layers.0."
PROJECTION = "albert.encoder.embedding_hidden_mapping_in"

ALBERT = family.Family(
    name="albert",
    model_types=("albert",),
    prefix="albert.",
    pooler="albert.pooler",
    axes={
        **family.narrow_embeddings("albert.embeddings.", PROJECTION),
        **family.block(
            AT,
            "attention.query attention.key attention.value attention.dense",
            "ffn ffn_output",
            "attention.LayerNorm full_layer_layer_norm",
        ),
        **family.linear("albert.pooler", family.POOLED, family.WIDTH),
    },
    projection=f"{PROJECTION}.weight",
    settings={**family.SETTINGS, "num_hidden_layers": 12},
)
