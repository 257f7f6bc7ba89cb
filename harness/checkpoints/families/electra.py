"""ELECTRA (Clark et al. 2020, arXiv:2003.10555): the small ones have narrower embeddings."""

from harness.checkpoints.families.family import (
    EMBEDDING,
    WIDTH,
    Family,
    embeddings,
    layers,
    linear,
    one_linear,
    two_layers,
)

KINDS = ("word", "position", "token_type")
PROJECTION = "electra.embeddings_project"

ELECTRA = Family(
    name="electra",
    model_types=("electra",),
    prefix="electra.",
    row=two_layers(),
    word=one_linear(WIDTH),
    axes={
        **embeddings("electra.embeddings.", *KINDS, group=EMBEDDING, norms=EMBEDDING),
        **linear(PROJECTION, WIDTH, EMBEDDING),
        **layers("electra.encoder.layer."),
    },
    words="electra.embeddings.word_embeddings.weight",
    projection=f"{PROJECTION}.weight",
)
