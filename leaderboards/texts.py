"""What the studies of texts of several initialisations start from: networks without training.

    python leaderboards/texts.py OUT [LAYERS WIDTH]

Makes in OUT/bases six small BERTs, `bert-0` to `bert-5`, each initialised from the seed in its
name, with one vocabulary: the most frequent words of the training rows of `CORPORA`.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import torch
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from transformers import BertConfig, BertModel, BertTokenizer
from transformers.utils import logging

from harness import TASKS
from harness.data.rows import load_rows
from harness.training.miniature import SPECIAL

CORPORA = ("textcls/ag_news", "textcls/dbpedia_14", "textcls/yahoo_answers_topics")
WORDS = 8192
LENGTH = 128
LAYERS, WIDTH, HEAD = 6, 192, 32
NETWORKS = 6


def vocabulary() -> BertTokenizer:
    """The tokenizer of all networks: every letter, and the most frequent words, lower-cased.

    A WordPiece vocabulary that is learned differs from process to process.
    """
    count: Counter[str] = Counter()
    for name in CORPORA:
        for row in load_rows(TASKS[name], "train").texts:
            for text in row:
                normal = BertNormalizer(lowercase=True).normalize_str(text)
                count.update(word for word, _ in BertPreTokenizer().pre_tokenize_str(normal))
    letters = sorted({letter for word in count for letter in word})
    words = sorted(count, key=lambda word: (-count[word], word))
    pieces = dict.fromkeys((*SPECIAL, *letters, *(f"##{one}" for one in letters), *words))
    known = {piece: number for number, piece in enumerate([*pieces][:WORDS])}
    return BertTokenizer(vocab=known, model_max_length=LENGTH)


def network(out: Path, seed: int, size: int, layers: int = LAYERS, width: int = WIDTH) -> None:
    """A BERT as it is initialised, for a vocabulary of this size."""
    config = BertConfig(
        vocab_size=size,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // HEAD,
        intermediate_size=4 * width,
        max_position_embeddings=LENGTH,
    )
    torch.manual_seed(seed)
    BertModel(config).save_pretrained(out)


def write(to: Path, *size: int) -> None:
    """All networks, with this number of layers and this width."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = vocabulary()
    for number in range(NETWORKS):
        network(to / "bases" / f"bert-{number}", number, len(tokenizer), *size)
        tokenizer.save_pretrained(to / "bases" / f"bert-{number}")


if __name__ == "__main__":
    write(Path(sys.argv[1]), *map(int, sys.argv[2:]))
