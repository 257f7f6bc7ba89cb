"""What the protocols cost beside the forward passes, and how fast rows are encoded.

python benchmarks/evaluate.py [--repeats 3] [--classes 5] [--rows 1000]

One process, one run: encoding (ours), encoding (Trainer.predict padded to 128), and every protocol
with 5 draws of 1, 5 and 10 shots on the features. The model is BERT-base with random weights; the
rows are random words with the lengths of a review corpus (12 to 110 words).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from harness import PROTOCOLS, TASKS, Encoded, Features, Rows, Task
from harness.checkpoints.build import build_model
from harness.checkpoints.open import open_checkpoint
from harness.data.metrics import score
from harness.data.rows import take
from harness.data.shots import draw
from harness.kinds import kind_of
from harness.passes.features import final_head, forward
from harness.rng import rng


def timed(job: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = job()
    return time.perf_counter() - start, result


def rows(task: Task, split: str, count: int) -> Rows:
    """Random words, some of which tell the class."""
    random = rng(0, "benchmark", split)
    labels = random.integers(len(task.labels), size=count).astype(float)
    texts = tuple(
        (" ".join(f"w{n}" for n in random.integers(2000, size=random.integers(12, 110))),)
        for _ in labels
    )
    return Rows(task, split, texts, labels, split)


def make(folder: Path, classes: int) -> None:
    """BERT-base with random weights and a word-level tokenizer."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        PreTrainedTokenizerFast,
    )

    torch.manual_seed(0)
    BertForSequenceClassification(BertConfig(num_labels=classes)).save_pretrained(folder)
    vocab = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3}
    vocab |= {f"w{n}": n + 4 for n in range(2000)}
    words = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]",
    ).save_pretrained(folder)  # fmt: skip


def trainer_logits(folder: Path, test: Rows) -> np.ndarray[Any, Any]:
    """The same rows through transformers' Trainer.predict, padded to 128."""
    from datasets import Dataset
    from transformers import AutoTokenizer, Trainer, TrainingArguments

    found = open_checkpoint(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = [text for (text,) in test.texts]
    encoded = tokenizer(texts, truncation=True, max_length=128, padding="max_length")
    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"), per_device_eval_batch_size=32, report_to="none",
        disable_tqdm=True, use_cpu=True, dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = Trainer(model=build_model(found.config, found.weights, "benchmark"), args=arguments)
    return np.asarray(trainer.predict(Dataset.from_dict(dict(encoded))).predictions)


def read(function: Callable[..., Any], encoded: Encoded, task: Task) -> None:
    """All predictions of a protocol, scored."""
    for prediction in function(encoded):
        score(task, prediction.values, encoded.test.labels)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1000)
    given = parser.parse_args()
    pattern = TASKS["textcls/ag_news"]
    labels = tuple(f"class {index}" for index in range(given.classes))
    task = Task(
        name="benchmark/task", kind="classification", text=("text",), label="label", labels=labels,
        metrics=("accuracy",), splits=pattern.splits, reported="test",
    )  # fmt: skip
    test, train = rows(task, "test", given.rows), rows(task, "train", 400 * given.classes)
    picked, draws = draw(train, (1, 5, 10), range(5))
    times: dict[str, list[float]] = {}
    score(task, test.labels, test.labels)  # imports scikit-learn, which is not what is measured
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, given.classes)
        model = open_checkpoint(folder)
        for _ in range(given.repeats):
            seconds, (x, logits, _) = timed(lambda: forward(model, test, max_length=128))
            times.setdefault("encode", []).append(seconds)
            seconds, expected = timed(lambda: trainer_logits(folder, test))
            times.setdefault("Trainer.predict", []).append(seconds)
            pool_x, pool_logits, _ = forward(model, take(train, picked), max_length=128)
            encoded = Encoded(
                task=task.name, kind=kind_of(task), classes=given.classes,
                test=Features(x, logits, test.labels), head=final_head(model, range(given.classes)),
                pool=Features(pool_x, pool_logits, train.labels[picked]), draws=tuple(draws),
                teacher=kind_of(task).taught([pool_logits.astype(np.float64)]),
            )  # fmt: skip
            for protocol in PROTOCOLS.values():
                seconds, _ = timed(partial(read, protocol.function, encoded, task))
                times.setdefault(protocol.name, []).append(seconds)
    apart = float(np.abs(logits - expected).max())
    medians = {job: statistics.median(values) for job, values in times.items()}
    beside = sum(medians[name] for name in PROTOCOLS)
    print(f"{given.rows} test rows, {given.classes} classes, {len(picked)} rows in the pool,")
    print(f"{len(draws)} draws, median of {given.repeats}\n")
    print("| job | seconds | share of encoding the test rows |\n|---|---:|---:|")
    for job, seconds in medians.items():
        print(f"| {job} | {seconds:.3f} | {seconds / medians['encode']:.3f} |")
    print(f"| all protocols | {beside:.3f} | {beside / medians['encode']:.3f} |\n")
    ratio = medians["Trainer.predict"] / medians["encode"]
    print(f"rows per second: {ratio:.2f} x Trainer.predict; largest logit difference {apart:.1e}")


if __name__ == "__main__":
    main()
