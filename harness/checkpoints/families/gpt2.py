"""GPT-2 (Radford et al. 2019): a decoder with norms before its layers and learned positions.

Queries, keys and values are rows of one matrix. A file has the matrices of layers transposed. The
norms cannot be absorbed into what reads them, as the head has no bias: the residual stream may be
permuted, not rotated.
"""

from harness.checkpoints.families import family

AT = "transformer.h.{layer}."
QKV = f"{AT}attn.c_attn"
PARTS = ("query", "key", "value")

GPT2 = family.Family(
    name="gpt2",
    model_types=("gpt2",),
    prefix="transformer.",
    row=family.Top(("score",), "score", {"score.weight": (None, family.WIDTH)}),
    axes={
        "transformer.wte.weight": (None, family.WIDTH),
        "transformer.wpe.weight": (None, family.WIDTH),
        **family.block(
            AT,
            " ".join([*(f"attn.c_attn.{part}" for part in PARTS), "attn.c_proj"]),
            "mlp.c_fc mlp.c_proj",
            "ln_1 ln_2",
        ),
        **family.norm("transformer.ln_f"),
    },
    heads="n_head",
    settings={},
    decoder=True,
    parts={
        f"{QKV}.{kind}": tuple(f"{QKV}.{part}.{kind}" for part in PARTS)
        for kind in ("weight", "bias")
    },
    transposed=("c_attn", "c_proj", "c_fc"),
)
