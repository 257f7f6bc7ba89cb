"""Miniature vision transformers and images, made by our own code: nothing is downloaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

SIZE: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 8,
    "patch_size": 4,
}
PROCESSING: dict[str, Any] = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": 8, "width": 8},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.25, 0.25, 0.25],
}
COLOURS = ("blue", "green", "red")
FILE = "model.safetensors"


def vit(
    folder: Path,
    labels: tuple[str, ...] | None = COLOURS,
    *,
    seed: int = 0,
    near: Path | None = None,
    **config: Any,
) -> Path:
    """A random ViT with its image processor: a classifier, else a bare encoder.

    With `near`, the encoder is that of another folder plus a little noise.
    """
    from transformers import AutoConfig, AutoModel, AutoModelForImageClassification

    torch.manual_seed(seed)
    settings = {**SIZE, **config}
    if labels is None:
        made = AutoModel.from_config(AutoConfig.for_model("vit", **settings))
    else:
        names = dict(enumerate(labels))
        ids = {name: place for place, name in names.items()}
        asked = AutoConfig.for_model("vit", **settings, id2label=names, label2id=ids)
        made = AutoModelForImageClassification.from_config(asked)
    with torch.no_grad():
        if near is not None:
            made.vit.load_state_dict(AutoModel.from_pretrained(near).state_dict(), strict=False)
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02 if near else 0.3)
    made.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSING))
    return folder


def respelled(folder: Path, names: Mapping[str, str]) -> None:
    """The folder with its tensors under other names: pieces of names by what stands for them."""
    state = load_file(folder / FILE)
    for old, new in names.items():
        state = {name.replace(old, new): tensor for name, tensor in state.items()}
    save_file(state, folder / FILE, metadata={"format": "pt"})


NEWER = {
    "encoder.layer.": "layers.",
    "attention.attention.query": "attention.q_proj",
    "attention.attention.key": "attention.k_proj",
    "attention.attention.value": "attention.v_proj",
    "attention.output.dense": "attention.o_proj",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
}
"""How newer releases of transformers call tensors in memory, and write them on request."""
