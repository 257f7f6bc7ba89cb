"""RoBERTa (Liu et al. 2019, arXiv:1907.11692) and its variants in other languages: no pooler."""

from harness.checkpoints.families.family import Family, embeddings, layers, two_layers

ROBERTA = Family(
    name="roberta",
    model_types=("roberta", "xlm-roberta", "camembert"),
    prefix="roberta.",
    row=two_layers(),
    axes={
        **embeddings("roberta.embeddings.", "word", "position", "token_type"),
        **layers("roberta.encoder.layer."),
    },
)
