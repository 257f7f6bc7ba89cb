"""Shell: a tiny BERT pretrained on the text of the embedded suite, for the demo and for tests.

It is an ordinary Hugging Face folder: what reads a published base reads it as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from harness.checkpoints import new_folder
from harness.data import load_rows
from harness.registry import TASKS
from harness.types import Rows

SUITE = "embedded/"
MINIATURE_FILE = "miniature.json"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MASK = SPECIAL.index("[MASK]")
LENGTH = 64
BATCH = 32
LEARNING_RATE = 2e-3
MASKED = 0.2


def make_base(
    out: str | Path, *, seed: int = 0, steps: int = 500, width: int = 64, layers: int = 2
) -> Path:
    """Pretrain a base by masked-language modelling and write it to `out`; returns that folder.

    An encoder with pooler, `layers` deep and `width` wide (a multiple of 32), whose vocabulary are
    the words of the embedded suite's train splits. One seed gives the same weights on one machine,
    whatever the number of threads. Raises OutputExists for a folder made by something else.
    """
    suite = [load_rows(task, "train") for name, task in TASKS.items() if name.startswith(SUITE)]
    with new_folder(Path(out), MINIATURE_FILE) as folder, one_thread(), torch.random.fork_rng([]):
        torch.manual_seed(seed)
        tokenizer = word_tokenizer(suite)
        model = untrained(len(tokenizer), width, layers)
        pretrain(model, *encoded(suite, tokenizer), steps)
        save(model.bert, tokenizer, folder)
        record = {"seed": seed, "steps": steps, "width": width, "layers": layers}
        (folder / MINIATURE_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return Path(out)


def word_tokenizer(suite: Sequence[Rows]) -> Any:
    """A BERT tokenizer whose pieces are the special tokens and the words of the rows, sorted."""
    from transformers import BertTokenizer

    words = {
        word for rows in suite for text in rows.texts for part in text for word in part.split()
    }
    vocabulary = {word: index for index, word in enumerate((*SPECIAL, *sorted(words)))}
    return BertTokenizer(vocab=vocabulary, model_max_length=LENGTH)


def untrained(vocabulary: int, width: int, layers: int) -> Any:
    """A BERT with pooler and language-modelling head, at its random initialisation."""
    from transformers import BertConfig, BertForPreTraining

    return BertForPreTraining(
        BertConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=width // 32,
            intermediate_size=4 * width,
            max_position_embeddings=LENGTH,
            # the usual 0.02 and dropout are for wider models and longer training
            initializer_range=0.05,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def encoded(suite: Sequence[Rows], tokenizer: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and segment ids of all rows, each [rows, LENGTH], padded with 0."""
    batches = [
        tokenizer(
            *(list(column) for column in zip(*rows.texts, strict=True)),
            padding="max_length",
            truncation=True,
            max_length=LENGTH,
            return_tensors="pt",
        )
        for rows in suite
    ]
    return (
        torch.cat([batch["input_ids"] for batch in batches]),
        torch.cat([batch["token_type_ids"] for batch in batches]),
    )


def pretrain(model: Any, ids: torch.Tensor, segments: torch.Tensor, steps: int) -> None:
    """Train the model in place to predict masked words, with a linear warm-up and decay."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    model.train()
    for step in range(steps):
        rate = min((step + 1) / (0.1 * steps), (steps - step) / (0.9 * steps))
        optimizer.param_groups[0]["lr"] = rate * LEARNING_RATE
        rows = torch.randint(len(ids), (BATCH,))
        attended = ids[rows] > 0
        longest = int(attended.sum(1).max())
        words, attended = ids[rows, :longest], attended[:, :longest]
        masked = (torch.rand(words.shape) < MASKED) & (words >= len(SPECIAL))
        hidden = model.bert(
            words.masked_fill(masked, MASK),
            token_type_ids=segments[rows, :longest],
            attention_mask=attended.long(),
        ).last_hidden_state
        scores = model.cls.predictions(hidden[masked])
        loss = torch.nn.functional.cross_entropy(scores, words[masked])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def save(encoder: Any, tokenizer: Any, folder: Path) -> None:
    """Write encoder and tokenizer as transformers does, without its progress bar."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    encoder.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    logging.enable_progress_bar()


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread: matrices this small gain nothing from a second, and sums keep their
    order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
