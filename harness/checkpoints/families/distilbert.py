"""DistilBERT (Sanh et al. 2019, arXiv:1910.01108): names of its own, and a hidden layer as head."""

from harness.checkpoints.families.family import (
    FFN,
    POOLED,
    QK,
    VO,
    WIDTH,
    Family,
    Top,
    embeddings,
    linear,
    norm,
)
from harness.weights import dual

AT = "distilbert.transformer.layer.{layer}."

DISTILBERT = Family(
    name="distilbert",
    model_types=("distilbert",),
    prefix="distilbert.",
    row=Top(
        ("pre_classifier", "classifier"),
        "classifier",
        {**linear("pre_classifier", POOLED, WIDTH), **linear("classifier", None, POOLED)},
    ),
    axes={
        **embeddings("distilbert.embeddings.", "word", "position"),
        **linear(f"{AT}attention.q_lin", QK, WIDTH),
        **linear(f"{AT}attention.k_lin", dual(QK), WIDTH),
        **linear(f"{AT}attention.v_lin", VO, WIDTH),
        **linear(f"{AT}attention.out_lin", WIDTH, dual(VO)),
        **norm(f"{AT}sa_layer_norm"),
        **linear(f"{AT}ffn.lin1", FFN, WIDTH),
        **linear(f"{AT}ffn.lin2", WIDTH, dual(FFN)),
        **norm(f"{AT}output_layer_norm"),
    },
    heads="n_heads",
    settings={},
)
