"""The inputs of the studies of images: untrained networks, and tasks that the package lacks.

    python leaderboards/vision.py OUT [LAYERS WIDTH]

Makes in OUT/bases six small vision transformers, `vit-0` to `vit-5`, initialised with the seed in
their name, and in OUT/tasks three tasks: the classes of CIFAR-10 in two disjoint parts, `animals`
and `vehicles`, and the digits of scikit-learn, 8 x 8 pixels.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import yaml
from datasets import Dataset, disable_progress_bars, load_dataset
from datasets import Image as Stored
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from transformers import ViTConfig, ViTModel
from transformers.utils import logging

from harness import TASKS

SIDE = 32
PROCESSOR = {
    "image_processor_type": "ViTImageProcessor",
    "size": {"height": SIDE, "width": SIDE},
    "image_mean": (0.4914, 0.4822, 0.4465),
    "image_std": (0.247, 0.2435, 0.2616),
}
"""Mean and deviation of CIFAR-10's channels are those in the code of arXiv:2502.00264."""
VEHICLES = ("airplane", "automobile", "ship", "truck")
LAYERS, WIDTH, HEAD, PATCH = 6, 192, 32, 8
NETWORKS = 6


def network(out: Path, seed: int, layers: int = LAYERS, width: int = WIDTH) -> None:
    """Write an untrained vision transformer, with its image processor."""
    config = ViTConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // HEAD,
        intermediate_size=4 * width,
        image_size=SIDE,
        patch_size=PATCH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(seed)
    ViTModel(config, add_pooling_layer=False).save_pretrained(out)
    (out / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))


def own(out: Path, name: str, splits: dict[str, Iterable[dict[str, Any]]]) -> None:
    """Write the description of a task, with the rows of its splits beside it."""
    for split, rows in splits.items():
        (out / name).mkdir(parents=True, exist_ok=True)
        Dataset.from_list([*rows]).to_parquet(out / name / f"{split}.parquet")
    said = {"image": "img", "label": "label", "labels": "from data", "files": name}
    (out / f"{name}.yaml").write_text(yaml.safe_dump(said, sort_keys=False))


def halves(out: Path) -> None:
    """Write the tasks of CIFAR-10's vehicles and of its animals."""
    task = TASKS["vision/cifar10"]
    folder = Path(os.environ["HARNESS_DATA_DIR"]) / task.name
    files = {split: str(folder / f"{split}.parquet") for split in ("train", "test")}
    read = load_dataset("parquet", data_files=files).cast_column("img", Stored(decode=False))
    for name, mine in (("vehicles", True), ("animals", False)):
        splits: dict[str, Iterable[dict[str, Any]]] = {
            split: (
                {"img": row["img"], "label": task.labels[row["label"]]}
                for row in rows
                if (task.labels[row["label"]] in VEHICLES) == mine
            )
            for split, rows in read.items()
        }
        own(out, name, splits)


def digits(out: Path) -> None:
    """Write the task of scikit-learn's digits, a quarter of them as test rows."""
    known = load_digits()
    parts = train_test_split(known.images, known.target, test_size=0.25, random_state=0)
    of = {"train": parts[0::2], "test": parts[1::2]}
    own(
        out,
        "digits",
        {
            split: (
                {"img": {"bytes": png(pixels)}, "label": str(label)}
                for pixels, label in zip(*both, strict=True)
            )
            for split, both in of.items()
        },
    )


def png(pixels: Any) -> bytes:
    """A PNG file of grey levels up to 255."""
    file = io.BytesIO()
    Image.fromarray(pixels.astype("uint8")).save(file, "png")
    return file.getvalue()


def write(to: Path, *size: int) -> None:
    """Write all networks, of `size` (layers, width), and all tasks."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    disable_progress_bars()
    for number in range(NETWORKS):
        network(to / "bases" / f"vit-{number}", number, *size)
    halves(to / "tasks")
    digits(to / "tasks")


if __name__ == "__main__":
    write(Path(sys.argv[1]), *map(int, sys.argv[2:]))
