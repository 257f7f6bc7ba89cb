"""ELECTRA (Clark et al. 2020, arXiv:2003.10555): small models have narrower embeddings."""

from harness.checkpoints.families import family

PROJECTION = "electra.embeddings_project"

ELECTRA = family.Family(
    name="electra",
    model_types=("electra",),
    prefix="electra.",
    row=family.two_layers(),
    axes={
        **family.narrow_embeddings("electra.embeddings.", PROJECTION),
        **family.layers("electra.encoder.layer."),
    },
    projection=f"{PROJECTION}.weight",
)
