"""BERT (Devlin et al. 2019, arXiv:1810.04805): a pooler, and one linear layer on it."""

from harness.checkpoints.families.family import POOLED, WIDTH, Family, embeddings, layers, linear

BERT = Family(
    name="bert",
    model_types=("bert",),
    prefix="bert.",
    pooler="bert.pooler",
    axes={
        **embeddings("bert.embeddings.", "word", "position", "token_type"),
        **layers("bert.encoder.layer."),
        **linear("bert.pooler.dense", POOLED, WIDTH),
    },
)
