"""ELECTRA (Clark et al. 2020, arXiv:2003.10555): the small ones have narrower embeddings."""

from harness.checkpoints.families.family import (
    EMBEDDING,
    WIDTH,
    Family,
    embeddings,
    layers,
    linear,
    two_layers,
)

KINDS = ("word", "position", "token_type")
PROJECTION = "electra.embeddings_project"

ELECTRA = Family(
    name="electra",
    model_types=("electra",),
    prefix="electra.",
    row=two_layers(),
    axes={
        **embeddings("electra.embeddings.", *KINDS, group=EMBEDDING, norms=EMBEDDING),
        **linear(PROJECTION, WIDTH, EMBEDDING),
        **layers("electra.encoder.layer."),
    },
    projection=f"{PROJECTION}.weight",
)
