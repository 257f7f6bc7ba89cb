"""ModernBERT (Warner et al. 2024, arXiv:2412.13663): rotary positions, gated feed-forward layers.

Queries, keys and values are rows of one matrix, and so are the units and their gates. A pretrained
head comes before the final layer, and some bases are published without. What commutes with the
positions within a head, a turn of each pair of units that turn together, is not in the table.
"""

from harness.checkpoints.families.family import (
    FFN,
    POOLED,
    ROPE,
    VO,
    WIDTH,
    Family,
    linear,
    norm,
    one_linear,
)
from harness.weights import dual

AT = "model.layers.{layer}."
QKV, UP = f"{AT}attn.Wqkv", f"{AT}mlp.Wi"
PARTS = {QKV: ("query", "key", "value"), UP: ("input", "gate")}

MODERNBERT = Family(
    name="modernbert",
    model_types=("modernbert",),
    prefix="model.",
    word=one_linear(POOLED),
    pooler="head",
    axes={
        "model.embeddings.tok_embeddings.weight": (None, WIDTH),
        **norm("model.embeddings.norm"),
        **norm(f"{AT}attn_norm"),
        **linear(f"{QKV}.query", ROPE, WIDTH),
        **linear(f"{QKV}.key", dual(ROPE), WIDTH),
        **linear(f"{QKV}.value", VO, WIDTH),
        **linear(f"{AT}attn.Wo", WIDTH, dual(VO)),
        **norm(f"{AT}mlp_norm"),
        **linear(f"{UP}.input", FFN, WIDTH),
        **linear(f"{UP}.gate", FFN, WIDTH),
        **linear(f"{AT}mlp.Wo", WIDTH, dual(FFN)),
        **norm("model.final_norm"),
        **linear("head.dense", POOLED, WIDTH),
        **norm("head.norm", POOLED),
    },
    parts={
        f"{stored}.{kind}": tuple(f"{stored}.{part}.{kind}" for part in parts)
        for stored, parts in PARTS.items()
        for kind in ("weight", "bias")
    },
    settings={},
)
