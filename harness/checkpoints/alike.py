"""Shell: whether models make the same tokens of every text, or the same pixels of every image."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

from harness.checkpoints.layout import VOCABULARY_FILES
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
    having = [m for m in models if any((m.processor / n).is_file() for n in VOCABULARY_FILES)]
    words = all(
        "ForTokenClassification" in str(one.config.get("architectures"))
        for one in having
        if one.labels is not None
    )
    first, known = having[:1], {_files(one) for one in having[:1]}
    for other in having[1:]:
        if _files(other) not in known:
            known.add(_files(other))
            _check_pair(other, first[0], words)


def _files(model: Checkpoint) -> tuple[str, str]:
    """What decides how a model reads text: a hash of its files, and its tokenizer_class."""
    return processor_digest(model.processor), str(model.config.get("tokenizer_class"))


def _check_pair(other: Checkpoint, first: Checkpoint, words: bool) -> None:
    """Raise IncompatibleWeights for the first difference between the tokenizers of two models."""
    try:
        made = [_tokenizer_settings(one, words) for one in (other, first)]
    except BrokenCheckpoint:
        for one in (other, first):
            if not any((one.processor / name).is_file() for name in VOCABULARY_FILES[:3]):
                return  # the library for its other file may be missing
        raise
    (found, said), (expected, meant) = made
    # steps of different types may do the same: they are not compared
    both = [key for key in said if key in meant and _types(said[key]) == _types(meant[key])]
    steps = [{key: one[key] for key in both} for one in (said, meant)]
    if apart := _difference(found, expected) or _difference(steps[0], steps[1]):
        where, here, there = apart
        raise IncompatibleWeights(
            f"the tokenizer of {other.source} has {where} {here!r:.80}, expected {there!r:.80} as "
            f"{first.source} has: only models with one tokenizer can be merged or compared"
        )


def _tokenizer_settings(model: Checkpoint, words: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """A tokenizer's settings in two dicts: those that it applies to a text; and its special tokens
    with the steps of its tokenizer.json, in place of which some classes build their own."""
    from tokenizers import Tokenizer

    made = shared_tokenizer(model.processor, words=words)
    backend = getattr(made, "backend_tokenizer", None)
    if backend is not None:
        does = _steps(backend)
    else:  # written in Python
        does = {
            key: one for key, one in made.init_kwargs.items() if not key.endswith(PATH_SUFFIXES)
        }
        does |= {"vocab": made.get_vocab(), "merges": [*getattr(made, "bpe_ranks", ())]}
        others = sorted({*made.vocab_files_names.values()} - EXPOSED_FILES)
        does |= {name: file_hash(model.processor / name) for name in others}
    does |= {key: getattr(made, key, None) for key in SIDES}
    said = {key: one for key in SPECIAL if (one := getattr(made, key, None)) is not None}
    file = model.processor / "tokenizer.json"
    if file.is_file():
        with using_tokenizer(model.processor):
            steps = _steps(Tokenizer.from_file(str(file)))
        # reading words changes the other steps: they put a space before each word
        said |= {key: steps[key] for key in (STEPS[:1] if words else STEPS)}
    return does, said


def _steps(tokenizer: Any) -> dict[str, Any]:
    """A Rust tokenizer as JSON in the current format, with the added tokens by their text."""
    said = parse_json(tokenizer.to_str(), "what a library wrote", "a tokenizer")
    added = {one.pop("content"): one for one in said["added_tokens"]}
    kept = {key: value for key, value in said.items() if key not in OF_A_CALL}
    return {**kept, "added_tokens": added}


def _types(step: object) -> list[str]:
    """The types of a step and of the steps within it."""
    return re.findall(r'"type": "(\w+)"', json.dumps(step))


def _difference(found: Any, expected: Any, where: str = "") -> tuple[str, Any, Any] | None:
    """The first place where two values differ, and both values there; "" equals None."""
    if found == expected or (found in ("", None) and expected in ("", None)):
        return None
    if isinstance(found, dict) and isinstance(expected, dict):
        keys = [key for key in found | expected if key not in IDLE]
        pairs = [(key, found.get(key), expected.get(key)) for key in keys]
    elif isinstance(found, list) and isinstance(expected, list):
        pairs = [(str(i), one, two) for i, (one, two) in enumerate(zip_longest(found, expected))]
    else:
        return where, found, expected
    apart = (_difference(one, two, f"{where}.{key}".lstrip(".")) for key, one, two in pairs)
    return next(filter(None, apart), None)
