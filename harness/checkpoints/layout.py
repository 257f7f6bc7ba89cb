"""What lies in a folder of a model: the names of its files, and what may not lie there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from harness.checkpoints.provenance import EXPERT_FILE, MERGE_FILE
from harness.errors import BrokenCheckpoint
from harness.files import LARGEST, read_json
from harness.folders import Layout

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json")
MERGEKIT_FILE = "mergekit_config.yml"
ADAPTER_FILE = "adapter_config.json"
VOCABULARY_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "spm.model",
    "sentencepiece.bpe.model",
    "spiece.model",
)
TOKENIZER_FILES = (
    *VOCABULARY_FILES,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "merges.txt",
)
MODEL_FILES = (
    SINGLE,
    INDEX,
    "model-*-of-*.safetensors",
    "config.json",
    "README.md",
    *TOKENIZER_FILES,
    f"heads/*/{SINGLE}",
    "heads/*/config.json",
)
"""Patterns of all that a folder of a model holds that this program writes."""
MERGE = Layout("a merge", MERGE_FILE)
EXPERT = Layout("an expert", EXPERT_FILE)


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter of another model, and no model of its own."""
    whole = any((folder / name).is_file() for name in (SINGLE, INDEX, *PICKLES))
    return (folder / ADAPTER_FILE).is_file() and not whole


def refuse_code(config: Mapping[str, Any], where: Path) -> None:
    """Raise BrokenCheckpoint for a configuration that names code of its own (`auto_map`)."""
    if config.get("auto_map"):
        raise BrokenCheckpoint(
            f"{where} names code of its own (auto_map), and no code of a checkpoint is ever run; "
            "expected a model and a tokenizer that transformers has itself"
        )


def check_files(folder: Path) -> None:
    """Raise BrokenCheckpoint for a tokenizer with code, and for a file of it that is none, is too
    large, or is a link to outside of the checkpoint.

    What a link points to would be copied into every merge. The files of a Hub snapshot are links
    into the store beside it.
    """
    settings = folder / "tokenizer_config.json"
    if settings.is_file():
        refuse_code(read_json(settings, "a tokenizer's configuration"), settings)
    root = folder.resolve()
    root = root.parents[1] if root.parent.name == "snapshots" else root
    for path in (folder / name for name in TOKENIZER_FILES if os.path.lexists(folder / name)):
        place = Path(os.path.realpath(path))  # of a link to itself, too
        if path.is_symlink() and not place.is_relative_to(root):
            raise BrokenCheckpoint(
                f"{path} is a link to {place}, outside of the checkpoint; expected the file itself"
            )
        if not place.is_file() or place.stat().st_size > LARGEST:
            raise BrokenCheckpoint(f"{path} is no file of at most {LARGEST} bytes, expected one")
