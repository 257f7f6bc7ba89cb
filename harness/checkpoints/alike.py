"""Shell: whether models make the same tokens of every text, or the same pixels of every image."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from harness.checkpoints.layout import VOCABULARY_FILES, files_in
from harness.checkpoints.processor import check_images_alike, processor_digest
from harness.checkpoints.tokenizer import shared_tokenizer, using_tokenizer
from harness.errors import BrokenCheckpoint, IncompatibleWeights
from harness.files import file_hash, parse_json
from harness.types import Checkpoint

OF_A_CALL = ("version", "truncation", "padding", "decoder")
"""Parts of tokenizer.json that do not decide which tokens a text has, or that a call sets."""
IDLE = ("trim_offsets",)
"""Keys that change the offsets of tokens in a text, but no token."""
PATH_SUFFIXES = ("_file", "_path", "_local", "_only", "_hash", "_length")
"""Endings of a Python tokenizer's arguments that name its files, or a length, which a call sets."""
EXPOSED_FILES = {"vocab.txt", "vocab.json", "merges.txt", "bpe.codes"}
EXPOSED_FILES |= {"tokenizer.json", "tokenizer_config.json"}
"""Files whose content a Python tokenizer has in its attributes; others are compared by hash."""
STEPS = ("normalizer", "pre_tokenizer", "post_processor")
SIDES = ("truncation_side", "padding_side", "model_input_names", "split_special_tokens")
SPECIAL = ("cls_token", "sep_token", "pad_token", "unk_token", "mask_token")


def check_tokens(models: Sequence[Checkpoint]) -> None:
    """Raise IncompatibleWeights, naming two models and a difference, unless all read rows alike.

    The files may differ, as versions of a library write them differently: what counts is the
    tokenizer that transformers makes of them. Of models of words, it is one that reads words.
    """
    if models[0].family.inputs == "image":
        return check_images_alike(models)
    having = [model for model in models if files_in(model.processor, VOCABULARY_FILES)]
    words = all(
        "ForTokenClassification" in str(model.config.get("architectures"))
        for model in having
        if model.labels is not None
    )
    by_files: dict[tuple[str, str], Checkpoint] = {}
    for model in having:  # what decides how a model reads text
        files = processor_digest(model.processor), str(model.config.get("tokenizer_class"))
        by_files.setdefault(files, model)
    for other in [*by_files.values()][1:]:
        _check_pair(other, having[0], words)


def _check_pair(other: Checkpoint, first: Checkpoint, words: bool) -> None:
    """Raise IncompatibleWeights for the first difference between the tokenizers of two models."""
    try:
        settings = [_tokenizer_settings(model, words) for model in (other, first)]
    except BrokenCheckpoint:
        for model in (other, first):
            if not files_in(model.processor, VOCABULARY_FILES[:3]):
                return  # the library for its other file may be missing
        raise
    (found, mine), (expected, theirs) = settings
    # steps of different types may do the same: they are not compared
    keys = [key for key in mine if key in theirs and _types(mine[key]) == _types(theirs[key])]
    steps = [{key: part[key] for key in keys} for part in (mine, theirs)]
    if difference := _difference(found, expected) or _difference(steps[0], steps[1]):
        where, here, there = difference
        raise IncompatibleWeights(
            f"the tokenizer of {other.source} has {where} {here!r:.80}, expected {there!r:.80} as "
            f"{first.source} has: only models with one tokenizer can be merged or compared"
        )


def _tokenizer_settings(model: Checkpoint, words: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """A tokenizer's settings in two dicts: those that it applies to a text; and its special tokens
    with the steps of its tokenizer.json, in place of which some classes build their own."""
    from tokenizers import Tokenizer

    opened = shared_tokenizer(model.processor, words=words)
    backend = getattr(opened, "backend_tokenizer", None)
    if backend is not None:
        settings = _steps(backend)
    else:  # written in Python
        settings = {
            key: value
            for key, value in opened.init_kwargs.items()
            if not key.endswith(PATH_SUFFIXES)
        }
        settings |= {"vocab": opened.get_vocab(), "merges": [*getattr(opened, "bpe_ranks", ())]}
        others = sorted({*opened.vocab_files_names.values()} - EXPOSED_FILES)
        settings |= {name: file_hash(model.processor / name) for name in others}
    settings |= {key: getattr(opened, key, None) for key in SIDES}
    special = {key: value for key in SPECIAL if (value := getattr(opened, key, None)) is not None}
    file = model.processor / "tokenizer.json"
    if file.is_file():
        with using_tokenizer(model.processor):
            steps = _steps(Tokenizer.from_file(str(file)))
        # reading words changes the other steps: they put a space before each word
        special |= {key: steps[key] for key in (STEPS[:1] if words else STEPS)}
    return settings, special


def _steps(tokenizer: Any) -> dict[str, Any]:
    """A Rust tokenizer as JSON in the current format, with the added tokens by their text."""
    content = parse_json(tokenizer.to_str(), "what a library wrote", "a tokenizer")
    added = {token.pop("content"): token for token in content["added_tokens"]}
    parts = {key: value for key, value in content.items() if key not in OF_A_CALL}
    return {**parts, "added_tokens": added}


def _types(step: object) -> list[str]:
    """The types of a step and of the steps within it."""
    return re.findall(r'"type": "(\w+)"', json.dumps(step))


def _difference(found: Any, expected: Any, path: str = "") -> tuple[str, Any, Any] | None:
    """The first place where two values differ, and both values there; "" equals None."""
    if found == expected or (found in ("", None) and expected in ("", None)):
        return None
    if isinstance(found, dict) and isinstance(expected, dict):
        keys = [key for key in found | expected if key not in IDLE]
        pairs = [(key, found.get(key), expected.get(key)) for key in keys]
    elif isinstance(found, list) and isinstance(expected, list):
        pairs = [(str(i), one, two) for i, (one, two) in enumerate(zip_longest(found, expected))]
    else:
        return path, found, expected
    differences = (_difference(one, two, f"{path}.{key}".lstrip(".")) for key, one, two in pairs)
    return next(filter(None, differences), None)
