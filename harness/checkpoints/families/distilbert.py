"""DistilBERT (Sanh et al. 2019, arXiv:1910.01108): names of its own, a hidden layer in the head."""

from harness.checkpoints.families.family import Family, block, embeddings, two_layers

DISTILBERT = Family(
    name="distilbert",
    model_types=("distilbert",),
    prefix="distilbert.",
    row=two_layers("pre_classifier", "classifier"),
    axes={
        **embeddings("distilbert.embeddings.", "word", "position"),
        **block(
            "distilbert.transformer.layer.{layer}.",
            "attention.q_lin attention.k_lin attention.v_lin attention.out_lin",
            "ffn.lin1 ffn.lin2",
            "sa_layer_norm output_layer_norm",
        ),
    },
    heads="n_heads",
    settings={},
)
