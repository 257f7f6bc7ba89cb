"""CLIP's vision transformer (Radford et al. 2021, arXiv:2103.00020) under a head made of texts.

Features are the projected class token, scaled to length 1. An expert is often the encoder alone:
then the projection is that of its base. Names are those that transformers writes of an encoder with
its projection; of an encoder alone, newer releases write names without the prefix.
"""

from functools import cache
from typing import Any

import torch

from harness.checkpoints.families.family import WIDTH, Family, Top, Unit, block, norm

EMBEDDINGS = "vision_model.embeddings."


def classifier(config: Any, unit: Unit) -> torch.nn.Module:
    """The encoder, its projection scaled to length 1, and a linear layer without bias."""
    return _class()(config)


@cache
def _class() -> type[torch.nn.Module]:
    import transformers
    from transformers.modeling_outputs import ImageClassifierOutput

    # its name goes into config.json: transformers' class of this name loads all but the head
    class CLIPVisionModelWithProjection(transformers.CLIPVisionModelWithProjection):  # type: ignore[misc]  # transformers has no types
        base_model_prefix = "vision_model"  # as of its newer releases

        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.classifier = torch.nn.Linear(config.projection_dim, config.num_labels, bias=False)

        def forward(self, pixel_values: Any, labels: Any = None) -> Any:
            embeddings = super().forward(pixel_values=pixel_values).image_embeds
            embeddings = embeddings.to(self.classifier.weight.dtype)  # a length of 1 in float32
            logits = self.classifier(torch.nn.functional.normalize(embeddings, dim=-1))
            loss = None if labels is None else torch.nn.functional.cross_entropy(logits, labels)
            return ImageClassifierOutput(loss=loss, logits=logits)

    return CLIPVisionModelWithProjection


CLIP = Family(
    name="clip",
    model_types=("clip_vision_model",),
    prefix="vision_model.",
    inputs="image",
    # the projection's axis stays as it is, since the head's rows are embeddings of texts
    row=Top(("classifier",), "classifier", {"classifier.weight": (None, None)}),
    word=None,
    pooler="visual_projection",
    axes={
        f"{EMBEDDINGS}class_embedding": (WIDTH,),
        f"{EMBEDDINGS}position_embedding.weight": (None, WIDTH),
        f"{EMBEDDINGS}patch_embedding.weight": (WIDTH, None, None, None),
        **norm("vision_model.pre_layrnorm"),
        **block(
            "vision_model.encoder.layers.{layer}.",
            "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.out_proj",
            "mlp.fc1 mlp.fc2",
            "layer_norm1 layer_norm2",
        ),
        **norm("vision_model.post_layernorm"),
        "visual_projection.weight": (None, WIDTH),
    },
    settings={},
    aliases=((r"^(embeddings|encoder|pre_layrnorm|post_layernorm)\.", r"vision_model.\1."),),
    whole="clip",
    make=classifier,
)
