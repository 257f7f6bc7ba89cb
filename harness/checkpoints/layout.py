"""The files in the folder of a model: their names, and which are refused."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from harness.checkpoints.provenance import EXPERT_FILE, MERGE_FILE
from harness.errors import BrokenCheckpoint
from harness.files import MAX_FILE_BYTES, read_json
from harness.folders import Layout

WEIGHTS_FILE, SHARD_INDEX = "model.safetensors", "model.safetensors.index.json"
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
    *("merges.txt", "bpe.codes", "tokenizer.model", "tekken.json", "tiktoken.model"),
    *("sentencepiece.model", "spm_char.model", "source.spm", "target.spm", "prophetnet.tokenizer"),
    *("target_vocab.json", "vocab-src.json", "vocab-tgt.json", "entity_vocab.json", "dict.txt"),
    *("byte_maps.json", "emoji.json", "normalizer.json"),
    *("word_shape.json", "word_pronunciation.json"),
)
"""All files that any tokenizer of transformers reads; others are neither hashed nor copied."""
OTHER_FILE_KEYS = ("fast_tokenizer_files", "vocab", "merges", "vocab_file", "merges_file")
"""Keys of a configuration that make a tokenizer's class read a file of another name."""
IMAGE_FILES = ("preprocessor_config.json", "processor_config.json")
PROCESSOR_FILES = (*TOKENIZER_FILES, *IMAGE_FILES)
HEADS_FOLDER = "heads"
MODULES, PROMPTS = "modules.json", "config_sentence_transformers.json"
SENTENCE_CONFIG = "sentence_*_config.json"
"""The file that says how an embedding model reads a row: * is `bert` or another family."""
READ_FILES = (
    *PROCESSOR_FILES,
    *(
        "config.json",
        SHARD_INDEX,
        ADAPTER_FILE,
        MERGE_FILE,
        EXPERT_FILE,
        MERGEKIT_FILE,
        HEADS_FOLDER,
    ),
)
"""Files and folders that are read beside weights."""
MODEL_FILES = (
    WEIGHTS_FILE,
    SHARD_INDEX,
    "model-*-of-*.safetensors",
    "config.json",
    "README.md",
    *PROCESSOR_FILES,
    *(MODULES, PROMPTS, SENTENCE_CONFIG, "[0-9]_*/config.json"),
    f"{HEADS_FOLDER}/*/{WEIGHTS_FILE}",
    f"{HEADS_FOLDER}/*/config.json",
)
"""Patterns of all files of a model that this program writes, but merge.json and expert.json."""
MERGE_LAYOUT = Layout("a merge", MERGE_FILE)
EXPERT_LAYOUT = Layout("an expert", EXPERT_FILE)


def files_in(folder: Path, names: Iterable[str]) -> list[str]:
    """Those of the names that are files in a folder."""
    return [name for name in names if (folder / name).is_file()]


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter of another model, and no whole model."""
    whole = files_in(folder, (WEIGHTS_FILE, SHARD_INDEX, *PICKLES))
    return (folder / ADAPTER_FILE).is_file() and not whole


def has_processor(folder: Path) -> bool:
    """Whether a folder has a tokenizer's vocabulary or an image processor."""
    return bool(files_in(folder, (*VOCABULARY_FILES, *IMAGE_FILES)))


def read_config(path: Path, what: str = "a configuration") -> dict[str, Any]:
    """The configuration in a file. Raises BrokenCheckpoint, also for one that names code of its own
    (`auto_map`)."""
    config = read_json(path, what)
    if config.get("auto_map"):
        raise BrokenCheckpoint(
            f"{path} names code of its own (auto_map), and no code of a checkpoint is ever run; "
            "expected a model and a tokenizer of transformers itself"
        )
    return config


def bad_value(where: object, what: str, value: object, expected: str) -> BrokenCheckpoint:
    """The error for a value that a file must not have."""
    return BrokenCheckpoint(f"{where} has the {what} {value!r:.80}, expected {expected}")


def check_files(folder: Path) -> None:
    """Raise BrokenCheckpoint for a tokenizer or an image processor that names code or files of
    other names, for a file of it that is no regular file or is too large, and for any file that is
    read, but weights, that is a link to outside of the checkpoint.

    The target of such a link would be copied into every merge.
    """
    for path in (folder / name for name in READ_FILES if (folder / name).is_symlink()):
        check_link(path, folder)
    for place, folders, files in os.walk(folder / HEADS_FOLDER):
        for path in (Path(place) / name for name in (*folders, *files)):
            if path.is_symlink() and path.suffix != ".safetensors":
                check_link(path, folder)
    for name in files_in(folder, ("tokenizer_config.json", *IMAGE_FILES)):
        config = read_config(folder / name, "a processor's configuration")
        if key := next(filter(config.get, OTHER_FILE_KEYS), None):
            raise bad_value(
                folder / name, key, config[key], "no other names of files: remove this key"
            )
    for path in (folder / name for name in PROCESSOR_FILES if os.path.lexists(folder / name)):
        if not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
            raise BrokenCheckpoint(
                f"{path} is no regular file, or too large; expected at most {MAX_FILE_BYTES} bytes"
            )


def check_link(path: Path, folder: Path) -> None:
    """Raise BrokenCheckpoint for a link to outside of a folder.

    Links in a snapshot of the Hub's cache into the store beside it are allowed:
    `models--NAME/snapshots/HASH/FILE` links to `../../blobs/HASH`.
    """
    target, root = Path(os.path.realpath(path)), folder.resolve()  # no error for a loop
    store = root.parent.parent
    cached = root.parent.name == "snapshots" and store.name.startswith("models--")
    if not target.is_relative_to(root) and not (cached and target.parent == store / "blobs"):
        raise BrokenCheckpoint(
            f"{path} is a link to {target}, outside of the folder; expected the file itself"
        )
