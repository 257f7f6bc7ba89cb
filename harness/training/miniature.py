"""Shell: a tiny BERT and a tiny ViT pretrained on the embedded suite, for the demo and for tests.

They are ordinary Hugging Face folders, read like any published base.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from harness.checkpoints.build import without_progress_bars
from harness.checkpoints.layout import IMAGE_FILES
from harness.checkpoints.processor import open_image_processor, pixels
from harness.data.images import decoded
from harness.data.rows import load_rows
from harness.files import write_json
from harness.folders import Layout, new_folder
from harness.kinds import kind_of
from harness.registry import TASKS
from harness.training.single import supervised
from harness.types import TRAINED_ON, Rows
from harness.weights.generators import seeded
from harness.weights.threads import one_thread

SUITE = ("embedded/comparison", "embedded/outcome", "embedded/topic")
"""Tasks that the BERT is trained on: a fixed list, as other tasks would make another base."""
PICTURES = ("embedded/shapes", "embedded/colours")
"""Tasks that the ViT is trained on."""
PROCESSING = {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}}
MINIATURE = Layout("a base", "miniature.json")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MASK = SPECIAL.index("[MASK]")
LENGTH = 64
BATCH = 32
LEARNING_RATE, RATE_OF_IMAGES = 2e-3, 5e-4
MASKED = 0.15
"""Share of the words that are masked."""


def make_base(
    out: str | Path, *, seed: int = 0, steps: int = 600, width: int = 64, layers: int = 2
) -> Path:
    """Pretrain a base on the `train90` splits of `SUITE`, write it; returns its folder.

    An encoder with pooler, `layers` deep and `width` wide (a multiple of 32), whose vocabulary is
    the words of those splits. One seed gives the same weights on one machine, whatever the number
    of threads. Raises OutputExists for a folder made by something else.
    """
    suite = [load_rows(TASKS[name], TRAINED_ON) for name in SUITE]
    with _made(out, seed=seed, steps=steps, width=width, layers=layers) as folder:
        tokenizer = word_tokenizer(suite)
        model = untrained(len(tokenizer), width, layers)
        pretrain(model, suite, tokenizer, steps)
        model.bert.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return Path(out)


@contextmanager
def _made(out: str | Path, *, seed: int, **settings: int) -> Iterator[Path]:
    """A new folder for a base, which the block makes with this seed and on one thread."""
    with (
        new_folder(Path(out), MINIATURE, force=True) as folder,
        without_progress_bars(),
        one_thread(),
        seeded(seed),
    ):
        yield folder
        MINIATURE.write(folder, {"seed": seed, **settings})


def _shape(width: int, layers: int) -> dict[str, float]:
    """Fields of both configurations. The usual dropout is for wider models and longer training."""
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // 32,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


def word_tokenizer(suite: Sequence[Rows]) -> Any:
    """A BERT tokenizer whose pieces are the special tokens and the words of the rows, sorted."""
    from transformers import BertTokenizer

    texts = (part for rows in suite for text in rows.texts for part in text)
    words = {word for part in texts for word in part.split()}
    vocabulary = {word: index for index, word in enumerate((*SPECIAL, *sorted(words)))}
    return BertTokenizer(vocab=vocabulary, model_max_length=LENGTH)


def untrained(vocabulary: int, width: int, layers: int) -> Any:
    """A BERT with pooler and language-modelling head, at its random initialisation."""
    from transformers import BertConfig, BertForPreTraining

    return BertForPreTraining(
        BertConfig(
            vocab_size=vocabulary,
            intermediate_size=4 * width,
            max_position_embeddings=LENGTH,
            initializer_range=0.05,  # the usual 0.02 is for wider models
            **_shape(width, layers),
        )
    )


def encoded(rows: Rows, tokenizer: Any) -> dict[str, torch.Tensor]:
    """Token ids, segment ids and attention mask, each [rows, longest], and `labels` [rows]."""
    columns = (list(column) for column in zip(*rows.texts, strict=True))
    integers = kind_of(rows.task).integer_labels
    labels = torch.tensor(rows.labels, dtype=torch.long if integers else torch.float32)
    return {**tokenizer(*columns, padding=True, return_tensors="pt"), "labels": labels}


def pretrain(model: Any, suite: Sequence[Rows], tokenizer: Any, steps: int) -> None:
    """Train the model in place on the tasks in turn, with a linear warm-up and decay.

    It predicts masked words, and the label through a head that is thrown away. A published base
    owes its useful pooled output to far more text. Without the labels this base would have none,
    and experts would end too far from it and from each other for any merge to beat chance.
    """
    tensors = [encoded(rows, tokenizer) for rows in suite]
    heads = heads_of(suite, model.config.hidden_size)

    def loss(turn: int, picked: torch.Tensor) -> torch.Tensor:
        batch = {name: tensor[picked] for name, tensor in tensors[turn].items()}
        words, labels = batch["input_ids"], batch["labels"]
        masked = (torch.rand(words.shape) < MASKED) & (words >= len(SPECIAL))
        output = model.bert(
            words.masked_fill(masked, MASK),
            token_type_ids=batch["token_type_ids"],
            attention_mask=batch["attention_mask"],
        )
        filled = model.cls.predictions(output.last_hidden_state[masked])
        logits = heads[turn](output.pooler_output)
        return cross_entropy(filled, words[masked]) + supervised(logits, labels)

    descend(model, heads, loss, suite, steps, LEARNING_RATE)


def heads_of(suite: Sequence[Rows], width: int) -> torch.nn.ModuleList:
    """A new head for each task."""
    return torch.nn.ModuleList(torch.nn.Linear(width, len(rows.task.labels) or 1) for rows in suite)


def descend(
    model: Any,
    heads: torch.nn.ModuleList,
    loss: Callable[[int, torch.Tensor], torch.Tensor],
    suite: Sequence[Rows],
    steps: int,
    learning_rate: float,
) -> None:
    """Train a model and its heads in place, on a batch of each task in turn.

    `loss` is a function of the task's number and the numbers of the rows.
    """
    weights = [*model.parameters(), *heads.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=learning_rate, weight_decay=0.01)
    model.train()
    for step in range(steps):
        rate = min((step + 1) / (0.1 * steps), (steps - step) / (0.9 * steps))
        optimizer.param_groups[0]["lr"] = rate * learning_rate
        turn = step % len(suite)
        picked = torch.randint(len(suite[turn]), (BATCH,))
        value = loss(turn, picked)
        optimizer.zero_grad()
        torch.autograd.backward(value)
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()


def make_image_base(
    out: str | Path, *, seed: int = 0, steps: int = 600, width: int = 64, layers: int = 2
) -> Path:
    """Train a ViT on the `train90` splits of `PICTURES`, as `make_base` does a BERT.

    Raises BadRecipe where Pillow is not installed.
    """
    from transformers import ViTConfig, ViTModel

    suite = [load_rows(TASKS[name], TRAINED_ON) for name in PICTURES]
    with _made(out, seed=seed, steps=steps, width=width, layers=layers) as folder:
        write_json(folder / IMAGE_FILES[0], PROCESSING)
        processor = open_image_processor(folder)
        tensors = [_pixels(rows, processor) for rows in suite]
        size = tensors[0].shape[-1]
        config = ViTConfig(image_size=size, patch_size=4, **_shape(width, layers))
        model, heads = ViTModel(config, add_pooling_layer=False), heads_of(suite, width)

        def loss(turn: int, picked: torch.Tensor) -> torch.Tensor:
            hidden = model(tensors[turn][picked]).last_hidden_state[:, 0]
            return supervised(heads[turn](hidden), torch.from_numpy(suite[turn].labels)[picked])

        descend(model, heads, loss, suite, steps, RATE_OF_IMAGES)
        model.save_pretrained(folder)
    return Path(out)


def _pixels(rows: Rows, processor: Any) -> torch.Tensor:
    """The images of all rows, [rows, channels, height, width]."""
    assert rows.images is not None
    images = [decoded(rows.images(index)) for index in range(len(rows))]
    return pixels(processor, images, rows.task)
