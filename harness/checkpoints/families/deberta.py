"""DeBERTa v2 and v3 (He et al. 2021, arXiv:2006.03654 and 2111.09543).

Its pooler is beside the encoder, and v3 was published without it. Relative positions are read by
the projections of queries and keys, or by projections of their own in the same groups.
"""

from harness.checkpoints.families import family
from harness.weights import dual

LAYERS = "deberta.encoder.layer."
SELF = LAYERS + "{layer}.attention.self."
PROJECTION = "deberta.embeddings.embed_proj.weight"
RELATIVE: family.Settings = {"position_buckets": -1, "norm_rel_ebd": "none", "share_att_key": False}
"""Settings of how relative positions are read, with their defaults."""

DEBERTA = family.Family(
    name="deberta",
    model_types=("deberta-v2",),
    prefix="deberta.",
    pooler="pooler",
    axes={
        **family.embeddings(
            "deberta.embeddings.", "word", "position", "token_type", group=family.EMBEDDING
        ),
        PROJECTION: (family.WIDTH, family.EMBEDDING),
        **family.layers(LAYERS, "query_proj key_proj value_proj"),
        **family.linear(f"{SELF}pos_query_proj", family.QK, family.WIDTH),
        **family.linear(f"{SELF}pos_key_proj", dual(family.QK), family.WIDTH),
        "deberta.encoder.rel_embeddings.weight": (None, family.WIDTH),
        **family.norm("deberta.encoder.LayerNorm"),
        "deberta.encoder.conv.conv.weight": (family.WIDTH, family.WIDTH, None),
        "deberta.encoder.conv.conv.bias": (family.WIDTH,),
        **family.norm("deberta.encoder.conv.LayerNorm"),
        **family.linear("pooler.dense", family.POOLED, family.WIDTH),
    },
    projection=PROJECTION,
    settings={**family.SETTINGS, **RELATIVE, "conv_act": "tanh", "conv_groups": 1},
)
