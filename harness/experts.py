"""Shell: a base and a task -> an expert, with transformers' Trainer."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from harness.checkpoints import EXPERT_FILE, check_output, new_folder, open_checkpoint, quiet
from harness.data import load_rows, parse_task
from harness.errors import BadOption, BadRecipe, OutputExists
from harness.labels import predicted
from harness.metrics import evaluation_module, score
from harness.types import Checkpoint, Hyperparameters, Rows, Score, Task

TRAINED_ON, SELECTED_ON = "train90", "heldout10"


def finetune(
    base: str | Path,
    task: str,
    *,
    out: str | Path,
    seed: int = 0,
    head_seed: int | None = None,
    data_dir: str | Path | None = None,
    limit: int | None = None,
    bf16: bool = False,
    progress: bool = True,
    **overrides: float | None,
) -> Checkpoint:
    """Fine-tune a base on `task@train90` and write the expert to `out`; returns it.

    `overrides` are fields of `Hyperparameters`; the defaults are the task's. `seed` orders the data
    and drops units, `head_seed` (default: `seed`) initialises the head. An interrupted run resumes
    when it is called again with the same arguments. The folder records task, split, seeds,
    hyperparameters and the scores on `task@heldout10` in expert.json.
    """
    found, split = parse_task(task)
    if "@" in task:
        raise BadRecipe(
            f"an expert is trained on {found}@{TRAINED_ON}, found '@{split}'; name the task alone"
        )
    settings = _settings(found.finetune, overrides)
    out = Path(out)
    check_output(out, EXPERT_FILE)
    source = open_checkpoint(base)
    train = load_rows(found, TRAINED_ON, folder=data_dir, limit=limit)
    heldout = load_rows(found, SELECTED_ON, folder=data_dir, limit=limit)
    request = {
        "base": str(base),
        "tasks": [found.name],
        "split": TRAINED_ON,
        "rows": len(train),
        "rows_digest": train.digest,
        "seed": seed,
        "head_seed": seed if head_seed is None else head_seed,
        "bf16": bf16,
        "hyperparameters": asdict(settings),
    }
    workdir = _workdir(out, request)
    with quiet():
        trained, scored = _train(source, train, heldout, settings, request, workdir, progress)
        with new_folder(out, EXPERT_FILE) as folder:
            trained.model.save_pretrained(folder)
            trained.processing_class.save_pretrained(folder)
            record = {**request, "scores": {f"{found}@{SELECTED_ON}": asdict(scored)}}
            text = json.dumps(record, indent=2) + "\n"
            (folder / EXPERT_FILE).write_text(text, encoding="utf-8")
    shutil.rmtree(workdir)
    return open_checkpoint(out)


def _train(
    source: Checkpoint,
    train: Rows,
    heldout: Rows,
    settings: Hyperparameters,
    request: Mapping[str, Any],
    workdir: Path,
    progress: bool,
) -> tuple[Any, Score]:
    """The Trainer after its last step, and the score on the held-out rows."""
    trainer = _trainer(source, train, heldout, settings, request, workdir, progress)
    checkpoints = sorted(workdir.glob("checkpoint-*"), key=lambda p: int(p.name.split("-")[1]))
    with redirect_stdout(sys.stderr):  # the Trainer prints its log; results alone go to stdout
        trainer.train(resume_from_checkpoint=str(checkpoints[-1]) if checkpoints else None)
    # grouping by length shuffles the held-out rows as well: labels as the Trainer hands them back
    outputs = trainer.predict(trainer.eval_dataset)
    predictions = predicted(heldout.task.kind, outputs.predictions)
    scored = score(heldout.task, predictions, outputs.label_ids)
    return trainer, scored


def _settings(default: Hyperparameters, overrides: Mapping[str, float | None]) -> Hyperparameters:
    given = {name: value for name, value in overrides.items() if value is not None}
    for name, value in given.items():
        if name not in asdict(default):
            raise BadOption(
                f"no hyperparameter is called '{name}'; known: {', '.join(asdict(default))}"
            )
        zero_is_fine = name in ("warmup", "weight_decay")
        if value < 0 or (value == 0 and not zero_is_fine):
            raise BadOption(f"{name} is {value}, expected a positive number")
    return replace(default, **given)  # type: ignore[arg-type]


def _workdir(out: Path, request: Mapping[str, Any]) -> Path:
    """The folder of the unfinished run; one left by a run with other arguments is an error."""
    workdir = out.with_name(f"{out.name}.unfinished")
    marker = workdir / "request.json"
    text = json.dumps(request, indent=2, sort_keys=True)
    if marker.is_file() and marker.read_text(encoding="utf-8") != text:
        raise OutputExists(
            f"{workdir} holds an interrupted run with other arguments (see {marker.name}); "
            "expected the same: repeat them to resume, or remove the folder to start anew"
        )
    workdir.mkdir(parents=True, exist_ok=True)
    marker.write_text(text, encoding="utf-8")
    return workdir


def _trainer(
    source: Checkpoint,
    train: Rows,
    heldout: Rows,
    settings: Hyperparameters,
    request: Mapping[str, Any],
    workdir: Path,
    progress: bool,
) -> Any:
    from transformers import AutoTokenizer, DataCollatorWithPadding, PrinterCallback, Trainer

    task = train.task
    tokenizer = AutoTokenizer.from_pretrained(source.path)
    steps = -(-len(train) // settings.batch_size) * settings.epochs
    metric = evaluation_module(task)
    trainer = Trainer(
        model=_with_new_head(source, task, request["head_seed"]),
        args=_arguments(settings, request, round(settings.warmup * steps), workdir, progress),
        train_dataset=_dataset(train, tokenizer, settings.max_length),
        eval_dataset=_dataset(heldout, tokenizer, settings.max_length),
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
        compute_metrics=lambda found: metric.compute(
            predictions=predicted(task.kind, found.predictions), references=found.label_ids
        ),
    )
    if not progress:
        trainer.remove_callback(PrinterCallback)
    return trainer


def _with_new_head(source: Checkpoint, task: Task, seed: int) -> Any:
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


def _arguments(
    settings: Hyperparameters,
    request: Mapping[str, Any],
    warmup_steps: int,
    workdir: Path,
    progress: bool,
) -> Any:
    from transformers import TrainingArguments

    return TrainingArguments(
        output_dir=str(workdir),
        seed=request["seed"],
        learning_rate=settings.learning_rate,
        num_train_epochs=settings.epochs,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=2 * settings.batch_size,
        warmup_steps=warmup_steps,
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


def _dataset(rows: Rows, tokenizer: Any, max_length: int) -> Any:
    from datasets import Dataset

    columns = [list(column) for column in zip(*rows.texts, strict=True)]
    encoded = dict(tokenizer(*columns, truncation=True, max_length=max_length))
    whole = rows.task.kind == "classification"
    encoded["labels"] = rows.labels.astype(np.int64 if whole else np.float32).tolist()
    encoded["length"] = [len(ids) for ids in encoded["input_ids"]]
    return Dataset.from_dict(encoded)
