"""Miniature vision transformers and images, made by our own code: nothing is downloaded."""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow
import pyarrow.parquet
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
STAGES: dict[str, Any] = {"image_size": 8, "patch_size": 2, "depths": [1, 1]}
OTHERS: dict[str, dict[str, Any]] = {
    "swin": {**STAGES, "embed_dim": 8, "num_heads": [2, 2], "window_size": 2},
    "convnext": {**STAGES, "hidden_sizes": [8, 16], "num_stages": 2},
    "dinov2": SIZE,
    "beit": SIZE,
}
"""Miniatures of architectures without a file of their own."""
COLOURS = ("blue", "green", "red")
FILE = "model.safetensors"


def vit(
    folder: Path,
    labels: tuple[str, ...] | None = COLOURS,
    *,
    seed: int = 0,
    near: Path | None = None,
    family: str = "vit",
    **config: Any,
) -> Path:
    """A random ViT, or another model of images, with its processor: a classifier, else an encoder.

    With `near`, the encoder is that of another folder plus a little noise.
    """
    from transformers import AutoConfig, AutoModel, AutoModelForImageClassification

    torch.manual_seed(seed)
    settings = {**OTHERS.get(family, SIZE), **config}
    if labels is None:
        made = AutoModel.from_config(AutoConfig.for_model(family, **settings))
    else:
        names = dict(enumerate(labels))
        ids = {name: place for place, name in names.items()}
        asked = AutoConfig.for_model(family, **settings, id2label=names, label2id=ids)
        made = AutoModelForImageClassification.from_config(asked)
    with torch.no_grad():
        if near is not None:
            near_to = AutoModel.from_pretrained(near).state_dict()
            made.base_model.load_state_dict(near_to, strict=False)
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


# Images --------------------------------------------------------------------------------------


Pixels: TypeAlias = "npt.NDArray[np.uint8]"


def pictures(count: int, *, seed: int = 0, side: int = 10) -> list[tuple[Pixels, int]]:
    """Noise with more of one of the `COLOURS`, and which of them."""
    random = np.random.default_rng(seed)
    made = []
    for index in range(count):
        label = index % len(COLOURS)
        pixels = random.integers(0, 100, (side, side + 2, 3))
        pixels[..., 2 - label] += 120
        made.append((pixels.astype(np.uint8), label))
    return made


def encoded(pixels: npt.NDArray[Any], kind: str = "PNG", **options: Any) -> bytes:
    """An image as the bytes of a file."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def png(width: int, height: int, samples: list[int], *more: bytes) -> bytes:
    """A PNG of 16-bit colours, which Pillow does not write, with `more` chunks before its data."""
    rows = b"\0" + struct.pack(f">{len(samples)}H", *samples)
    header = b"IHDR" + struct.pack(">2I5B", width, height, 16, 2, 0, 0, 0)
    parts = [header, *more, b"IDAT" + zlib.compress(rows), b"IEND"]
    chunks = (struct.pack(">I", len(p) - 4) + p + struct.pack(">I", zlib.crc32(p)) for p in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def parquet(path: Path, count: int, *, seed: int = 0) -> Path:
    """A file of images with labels by name, as the datasets library has them."""
    made = pictures(count, seed=seed)
    images = [{"bytes": encoded(pixels), "path": None} for pixels, _ in made]
    kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
    table = pyarrow.table(
        {
            "picture": pyarrow.array(images, kind),
            "colour": [COLOURS[label] for _, label in made],
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, path)
    return path


def folders(root: Path, split: str, count: int, *, seed: int = 0) -> None:
    """The same images in a folder for each class."""
    for index, (pixels, label) in enumerate(pictures(count, seed=seed)):
        place = root / split / COLOURS[label]
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{index:03}.png").write_bytes(encoded(pixels))


def colours(root: Path, train: int = 60, test: int = 24) -> str:
    """A user's task of images: its YAML, with the files of both splits."""
    parquet(root / "data" / "train.parquet", train, seed=1)
    parquet(root / "data" / "test.parquet", test, seed=2)
    path = root / "colours.yaml"
    path.write_text("image: picture\nlabel: colour\nfiles: data\n")
    return str(path)
