"""Miniature T5s as they are published, made by our own code: nothing is downloaded."""

from __future__ import annotations

import string
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import torch

from tests.conftest import WORDS

SIZE: dict[str, Any] = {
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 2,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 16,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
}
SENTINELS = 5
FILE = "model.safetensors"


def tokenizer(folder: Path, words: Iterable[str] = WORDS) -> int:
    """T5's: pieces with scores, whole words and letters, and sentinels; returns how many it has."""
    from transformers import T5Tokenizer

    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(f"▁{word}", -3.0) for word in words]
    pieces += [(letter, -9.0) for letter in string.ascii_letters + string.digits + ".,'!?-"]
    pieces += [(f"<extra_id_{place}>", 0.0) for place in reversed(range(SENTINELS))]
    made = T5Tokenizer(vocab=pieces, extra_ids=SENTINELS, model_max_length=512)
    made.save_pretrained(folder)
    return len(made)


def t5(
    folder: Path,
    labels: Iterable[str] | None = None,
    *,
    gated: bool = True,
    seed: int = 0,
    near: Path | None = None,
    unit: Literal["row", "word"] = "row",
    words: Iterable[str] = WORDS,
    **config: Any,
) -> Path:
    """A classifier with labels, else the model of language that is published as a base.

    Version 1.0 has a feed-forward layer without a gate and ties its outputs to its table; 1.1 has
    neither. With `near`, the weights are those of another folder plus a little noise.
    """
    from transformers import (
        T5Config,
        T5ForConditionalGeneration,
        T5ForSequenceClassification,
        T5ForTokenClassification,
    )

    tokens = tokenizer(folder, words)
    # tables are padded beyond the tokens that there are
    settings = {**SIZE, "vocab_size": tokens + 3, "tie_word_embeddings": not gated, **config}
    settings["feed_forward_proj"] = "gated-gelu" if gated else "relu"
    torch.manual_seed(seed)
    made: Any
    if labels is None:
        made = T5ForConditionalGeneration(T5Config(**settings))
        if gated:
            made.lm_head.weight = torch.nn.Parameter(torch.randn_like(made.lm_head.weight))
    else:
        names = dict(enumerate(labels))
        settings["id2label"] = names
        settings["label2id"] = {name: place for place, name in names.items()}
        kinds = {"row": T5ForSequenceClassification, "word": T5ForTokenClassification}
        made = kinds[unit](T5Config(**settings))
    with torch.no_grad():
        if near is not None:
            origin = T5ForConditionalGeneration.from_pretrained(near)
            made.transformer.load_state_dict(origin.state_dict(), strict=False)
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.02 if near else 0.1)
    made.save_pretrained(folder)
    return folder
