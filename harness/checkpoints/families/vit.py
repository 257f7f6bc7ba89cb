"""ViT (Dosovitskiy et al. 2021, arXiv:2010.11929): patches of images after a class token.

The norms come before attention and feed-forward layers, and one after the last layer. Names are
those that transformers writes; its newer releases have others in memory.
"""

from harness.checkpoints.families.family import WIDTH, Family, block, norm, one_linear

EMBEDDINGS, AT = "vit.embeddings.", "vit.encoder.layer.{layer}."
MAKES = "attention.attention.query attention.attention.key attention.attention.value"

VIT = Family(
    name="vit",
    model_types=("vit",),
    prefix="vit.",
    inputs="image",
    row=one_linear(WIDTH),
    word=None,
    pooler="vit.pooler",
    axes={
        f"{EMBEDDINGS}cls_token": (None, None, WIDTH),
        f"{EMBEDDINGS}position_embeddings": (None, None, WIDTH),
        f"{EMBEDDINGS}patch_embeddings.projection.weight": (WIDTH, None, None, None),
        f"{EMBEDDINGS}patch_embeddings.projection.bias": (WIDTH,),
        **block(
            AT,
            f"{MAKES} attention.output.dense",
            "intermediate.dense output.dense",
            "layernorm_before layernorm_after",
        ),
        **norm("vit.layernorm"),
    },
    settings={},
    readers={
        f"{AT}layernorm_before": tuple(f"{AT}{module}" for module in MAKES.split()),
        f"{AT}layernorm_after": (f"{AT}intermediate.dense",),
        "vit.layernorm": ("classifier",),
    },
    aliases=(
        (r"^(vit\.)?layers\b", r"\1encoder.layer"),
        (r"\.attention\.q_proj\b", ".attention.attention.query"),
        (r"\.attention\.k_proj\b", ".attention.attention.key"),
        (r"\.attention\.v_proj\b", ".attention.attention.value"),
        (r"\.attention\.o_proj\b", ".attention.output.dense"),
        (r"\.mlp\.fc1\b", ".intermediate.dense"),
        (r"\.mlp\.fc2\b", ".output.dense"),
    ),
)
