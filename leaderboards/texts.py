"""What the studies of texts of several initialisations start from: small BERTs.

    python leaderboards/texts.py OUT

Makes in OUT/bases twelve networks without training, `bert-0` to `bert-11`, each initialised from
the seed in its name, with one vocabulary: the most frequent words of the training rows of
`CORPORA`. Then pre-trains the first six as masked language models, `pretrained-0` to
`pretrained-5`, on these rows and those of `MORE`: 17 minutes each on one core. A
pre-trained network that is there is kept.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import torch
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    BertTokenizer,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)
from transformers.utils import logging

from harness import TASKS
from harness.data.rows import load_rows
from harness.training.miniature import SPECIAL

CORPORA = ("textcls/ag_news", "textcls/dbpedia_14", "textcls/yahoo_answers_topics")
MORE = ("glue/qnli", "glue/mnli")
WORDS = 8192
LENGTH = 128
LAYERS, WIDTH, HEAD = 6, 192, 32
NETWORKS, PRETRAINED = 12, 6
BLOCK = 64
"""Tokens of a row of pre-training."""
EPOCHS = 3


def texts(names: Iterable[str]) -> Iterable[str]:
    """All texts of the training rows of these tasks."""
    for name in names:
        yield from chain.from_iterable(load_rows(TASKS[name], "train").texts)


def vocabulary() -> BertTokenizer:
    """The tokenizer of all networks: every letter, and the most frequent words, lower-cased.

    A WordPiece vocabulary that is learned differs from process to process.
    """
    count: Counter[str] = Counter()
    for text in texts(CORPORA):
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


class MaskedTrainer(Trainer):  # type: ignore[misc]  # transformers has no types
    """Reads the head of the language model at the masked tokens alone: half of the time."""

    def compute_loss(
        self, model: BertForMaskedLM, inputs: dict[str, Tensor], *_: object, **__: object
    ) -> Tensor:
        masked = inputs["labels"] != -100
        with torch.autocast("cpu", torch.bfloat16):
            states = model.bert(inputs["input_ids"]).last_hidden_state[masked]
            logits = model.cls(states)
        return nn.functional.cross_entropy(logits.float(), inputs["labels"][masked])


def blocks(tokenizer: BertTokenizer) -> list[dict[str, list[int]]]:
    """The texts one after the other, cut into rows of one length."""
    size = BLOCK - 2
    encoded = tokenizer([*texts((*CORPORA, *MORE))], add_special_tokens=False, verbose=False)
    ids = [*chain.from_iterable([*text, tokenizer.sep_token_id] for text in encoded["input_ids"])]
    return [
        {"input_ids": [tokenizer.cls_token_id, *ids[start : start + size], tokenizer.sep_token_id]}
        for start in range(0, len(ids) - size + 1, size)
    ]


def pretrain(to: Path, base: Path, seed: int) -> None:
    """A network trained to predict 15 % of the tokens, without dropout, in mixed bfloat16."""
    tokenizer = BertTokenizer.from_pretrained(base)
    network = BertModel.from_pretrained(base)  # keeps its pooler, which this task does not train
    config = {**network.config.to_dict(), "hidden_dropout_prob": 0.0}
    torch.manual_seed(seed)
    model = BertForMaskedLM(BertConfig(**config | {"attention_probs_dropout_prob": 0.0}))
    model.bert.load_state_dict(network.state_dict(), strict=False)
    arguments = TrainingArguments(
        output_dir=str(to),
        num_train_epochs=EPOCHS,
        per_device_train_batch_size=32,
        learning_rate=1e-3,
        warmup_steps=0.06,
        weight_decay=0.01,
        seed=seed,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=100,
    )
    masking = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    rows = blocks(tokenizer)
    MaskedTrainer(model, arguments, train_dataset=rows, data_collator=masking).train()
    network.load_state_dict(model.bert.state_dict(), strict=False)
    network.save_pretrained(to)
    tokenizer.save_pretrained(to)


def write(to: Path, layers: int = LAYERS, width: int = WIDTH) -> None:
    """All networks, with this number of layers and this width."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    tokenizer = vocabulary()
    for number in range(NETWORKS):
        network(to / "bases" / f"bert-{number}", number, len(tokenizer), layers, width)
        tokenizer.save_pretrained(to / "bases" / f"bert-{number}")
    for number in range(PRETRAINED):
        out = to / "bases" / f"pretrained-{number}"
        if not (out / "tokenizer.json").exists():  # the last file that is written
            pretrain(out, to / "bases" / f"bert-{number}", number)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
