"""ModernBERT (Warner et al. 2024, arXiv:2412.13663): rotary positions, gated feed-forward layers.

Queries, keys and values are rows of one matrix, and so are the feed-forward units and their gates.
A pretrained layer, `head`, comes before the final layer; some bases are published without it. The
rotations within an attention head that commute with rotary positions, one for each pair of units,
are not in the table.
"""

from harness.checkpoints.families import family
from harness.weights import dual

AT = "model.layers.{layer}."
QKV, UP = f"{AT}attn.Wqkv", f"{AT}mlp.Wi"
PARTS = {QKV: ("query", "key", "value"), UP: ("input", "gate")}

MODERNBERT = family.Family(
    name="modernbert",
    model_types=("modernbert",),
    prefix="model.",
    word=family.one_linear(family.POOLED),
    pooler="head",
    axes={
        "model.embeddings.tok_embeddings.weight": (None, family.WIDTH),
        **family.norm("model.embeddings.norm"),
        **family.norm(f"{AT}attn_norm"),
        **family.linear(f"{QKV}.query", family.ROPE, family.WIDTH),
        **family.linear(f"{QKV}.key", dual(family.ROPE), family.WIDTH),
        **family.linear(f"{QKV}.value", family.VO, family.WIDTH),
        **family.linear(f"{AT}attn.Wo", family.WIDTH, dual(family.VO)),
        **family.norm(f"{AT}mlp_norm"),
        **family.linear(f"{UP}.input", family.FFN, family.WIDTH),
        **family.linear(f"{UP}.gate", family.FFN, family.WIDTH),
        **family.linear(f"{AT}mlp.Wo", family.WIDTH, dual(family.FFN)),
        **family.norm("model.final_norm"),
        **family.linear("head.dense", family.POOLED, family.WIDTH),
        **family.norm("head.norm", family.POOLED),
    },
    parts={
        f"{stored}.{kind}": tuple(f"{stored}.{part}.{kind}" for part in parts)
        for stored, parts in PARTS.items()
        for kind in ("weight", "bias")
    },
    settings={},
)
