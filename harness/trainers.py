"""Shell: a base and rows -> transformers' Trainer, ready to train an expert of one task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.labels import predicted
from harness.metrics import evaluation_module
from harness.types import Checkpoint, Hyperparameters, Rows, Task


@dataclass(frozen=True)
class Training:
    """What one task brings: rows to learn from, rows held out, and how it is trained."""

    train: Rows
    heldout: Rows
    settings: Hyperparameters

    @property
    def task(self) -> Task:
        return self.train.task

    @property
    def batches(self) -> int:
        """The number of batches in an epoch."""
        return -(-len(self.train) // self.settings.batch_size)


@dataclass(frozen=True)
class Prepared:
    """A Trainer, and the held-out rows of each task as it predicts on them."""

    trainer: Any
    heldout: tuple[Any, ...]


def single_task(
    source: Checkpoint, part: Training, request: Mapping[str, Any], workdir: Path, progress: bool
) -> Prepared:
    """The Trainer of an expert: the base under a new head."""
    from transformers import AutoTokenizer, DataCollatorWithPadding, Trainer

    tokenizer = AutoTokenizer.from_pretrained(source.path)
    metric = evaluation_module(part.task)
    heldout = dataset(part.heldout, tokenizer, part.settings.max_length)
    trainer = Trainer(
        model=with_new_head(source, part.task, request["head_seed"]),
        args=arguments(part.settings, part.batches, request, workdir, progress),
        train_dataset=dataset(part.train, tokenizer, part.settings.max_length),
        eval_dataset=heldout,
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=lambda found: metric.compute(
            predictions=predicted(part.task.kind, found.predictions), references=found.label_ids
        ),
    )
    return Prepared(trainer, (heldout,))


def with_new_head(source: Checkpoint, task: Task, seed: int) -> Any:
    """The base under a head for the task that the seed initialises."""
    from transformers import AutoModelForSequenceClassification, set_seed
    from transformers.utils import logging

    labels = dict(enumerate(task.labels)) or {0: "value"}
    set_seed(seed)
    said = logging.get_verbosity()
    logging.set_verbosity_error()  # a new head is meant here, and nowhere else
    try:
        return AutoModelForSequenceClassification.from_pretrained(
            source.path,
            num_labels=len(labels),
            id2label=labels,
            label2id={name: index for index, name in labels.items()},
            problem_type="single_label_classification" if task.labels else "regression",
            dtype=torch.float32,
        )
    finally:
        logging.set_verbosity(said)


def arguments(
    settings: Hyperparameters,
    batches: int,
    request: Mapping[str, Any],
    workdir: Path,
    progress: bool,
) -> Any:
    """The Trainer's arguments; `batches` are those of an epoch."""
    from transformers import TrainingArguments

    return TrainingArguments(
        output_dir=str(workdir),
        seed=request["seed"],
        learning_rate=settings.learning_rate,
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=2 * settings.batch_size,
        warmup_steps=round(settings.warmup * batches * settings.epochs),
        weight_decay=settings.weight_decay,
        lr_scheduler_type="linear",
        train_sampling_strategy="group_by_length",
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        logging_strategy="epoch",
        report_to="none",
        disable_tqdm=not progress,
        bf16=request["bf16"],
        use_cpu=not (torch.cuda.is_available() or torch.backends.mps.is_available()),
        dataloader_pin_memory=False,
    )


def dataset(rows: Rows, tokenizer: Any, max_length: int) -> Any:
    """The rows as token ids and the like, with their labels and their lengths."""
    from datasets import Dataset

    columns = [list(column) for column in zip(*rows.texts, strict=True)]
    encoded = dict(tokenizer(*columns, truncation=True, max_length=max_length))
    whole = rows.task.kind == "classification"
    encoded["labels"] = rows.labels.astype(np.int64 if whole else np.float32).tolist()
    encoded["length"] = [len(ids) for ids in encoded["input_ids"]]
    return Dataset.from_dict(encoded)
