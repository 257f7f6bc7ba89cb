"""DeBERTa v2 and v3 (He et al. 2021, arXiv:2006.03654 and 2111.09543).

Its pooler stands beside the encoder, and v3 was published without. Relative positions are read by
the projections of queries and keys, or by projections of their own, which share their groups.
"""

from harness.checkpoints.families.family import (
    EMBEDDING,
    POOLED,
    QK,
    SETTINGS,
    WIDTH,
    Family,
    Settings,
    embeddings,
    layers,
    linear,
    norm,
)
from harness.weights import dual

LAYERS = "deberta.encoder.layer."
SELF = LAYERS + "{layer}.attention.self."
PROJECTION = "deberta.embeddings.embed_proj.weight"
RELATIVE: Settings = {"position_buckets": -1, "norm_rel_ebd": "none", "share_att_key": False}
"""How relative positions are read."""

DEBERTA = Family(
    name="deberta",
    model_types=("deberta-v2",),
    prefix="deberta.",
    pooler="pooler",
    axes={
        **embeddings("deberta.embeddings.", "word", "position", "token_type", group=EMBEDDING),
        PROJECTION: (WIDTH, EMBEDDING),
        **layers(LAYERS, "query_proj key_proj value_proj"),
        **linear(f"{SELF}pos_query_proj", QK, WIDTH),
        **linear(f"{SELF}pos_key_proj", dual(QK), WIDTH),
        "deberta.encoder.rel_embeddings.weight": (None, WIDTH),
        **norm("deberta.encoder.LayerNorm"),
        "deberta.encoder.conv.conv.weight": (WIDTH, WIDTH, None),
        "deberta.encoder.conv.conv.bias": (WIDTH,),
        **norm("deberta.encoder.conv.LayerNorm"),
        **linear("pooler.dense", POOLED, WIDTH),
    },
    projection=PROJECTION,
    settings={**SETTINGS, **RELATIVE, "conv_act": "tanh", "conv_groups": 1},
)
