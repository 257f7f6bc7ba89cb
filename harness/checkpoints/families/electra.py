"""ELECTRA (Clark et al. 2020, arXiv:2003.10555): the small ones have narrower embeddings."""

from harness.checkpoints.families import family

KINDS = ("word", "position", "token_type")
PROJECTION = "electra.embeddings_project"

ELECTRA = family.Family(
    name="electra",
    model_types=("electra",),
    prefix="electra.",
    row=family.two_layers(),
    axes={
        **family.embeddings(
            "electra.embeddings.", *KINDS, group=family.EMBEDDING, norms=family.EMBEDDING
        ),
        **family.linear(PROJECTION, family.WIDTH, family.EMBEDDING),
        **family.layers("electra.encoder.layer."),
    },
    projection=f"{PROJECTION}.weight",
)
