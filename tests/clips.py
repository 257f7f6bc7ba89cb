"""Miniature CLIPs in the published layouts, made from configuration: nothing is downloaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.images import FILE, SIZE

TEXT = {key: SIZE[key] for key in SIZE.keys() - {"image_size", "patch_size"}}
PROJECTION = "visual_projection.weight"
PROCESSING: dict[str, Any] = {
    "crop_size": 8,
    "do_center_crop": True,
    "do_normalize": True,
    "do_resize": True,
    "feature_extractor_type": "CLIPFeatureExtractor",
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "resample": 3,
    "size": 8,
}
"""As openai/clip-vit-base-patch32 has it, but for the size."""


def tokenizer(folder: Path) -> dict[str, Any]:
    """CLIP's tokenizer in its published files, of letters alone; what the text tower says of it."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    letters = list(bytes_to_unicode().values())
    merges = ["p h", "ph o", "t o</w>"]
    tokens = [*letters, *(f"{one}</w>" for one in letters), "ph", "pho", "to</w>"]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({one: at for at, one in enumerate(tokens)}))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    said = {
        "unk_token": "<|endoftext|>",
        "bos_token": "<|startoftext|>",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 77,
        "tokenizer_class": "CLIPTokenizer",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    last = len(tokens) - 1
    ends = {"bos_token_id": last - 1, "eos_token_id": last, "pad_token_id": last}
    return {"vocab_size": len(tokens), "max_position_embeddings": 77, **ends}


def clip(folder: Path, *, seed: int = 3, **text: Any) -> Path:
    """A whole CLIP with its processor, as OpenAI's are published: a base."""
    from transformers import CLIPConfig, CLIPModel

    folder.mkdir(parents=True)
    torch.manual_seed(seed)
    settings = {**TEXT, **tokenizer(folder), **text}
    made = CLIPModel(CLIPConfig(text_config=settings, vision_config=SIZE, projection_dim=12))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if name != "logit_scale":
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
        # an image shows in what is said of it
        made.vision_model.embeddings.patch_embedding.weight.mul_(20)
    made.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSING))
    return folder


def expert(folder: Path, base: Path, *, seed: int, prefix: bool = True, own: bool = False) -> Path:
    """An encoder of images near that of a base, as `tanganke/clip-vit-base-patch32_*` are.

    Its names have the `prefix`, as releases of transformers before 5 write them, or none. One with
    an `own` projection is as those of task vectors are.
    """
    folder.mkdir(parents=True)
    torch.manual_seed(seed)
    state = load_file(base / FILE)
    names = [n for n in state if n.startswith("vision_model.") or (own and n == PROJECTION)]
    kept = {name: state[name] for name in names}
    near = {name: tensor + 0.05 * torch.randn_like(tensor) for name, tensor in kept.items()}
    bare = {n if prefix else n.removeprefix("vision_model."): t for n, t in near.items()}
    save_file(bare, folder / FILE, metadata={"format": "pt"})
    said = json.loads((base / "config.json").read_text())["vision_config"]
    kind = "CLIPVisionModelWithProjection" if own else "CLIPVisionModel"
    said |= {"architectures": [kind], "torch_dtype": "float32", "projection_dim": 12}
    (folder / "config.json").write_text(json.dumps(said))
    return folder
