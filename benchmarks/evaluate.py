"""The cost of protocols relative to the forward passes, and the speed of encoding.

python benchmarks/evaluate.py [--repeats 3] [--classes 5] [--rows 1000]

In one process, for a task of rows and a task of words: our encoding, Trainer.predict on the rows
(padded to 128), and every protocol with 5 draws of 1, 5 and 10 shots on the features. The model is
BERT-base with random weights; rows are random words with the lengths of a review corpus (12 to 110
words), or sentences of 5 to 30 words.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rerun import make_tokenizer

from harness import PROTOCOLS, Checkpoint, Choice, Draw, Encoded, Features, Rows, Task, Teacher
from harness.checkpoints.build import build_model
from harness.checkpoints.open import open_checkpoint
from harness.data.metrics import score
from harness.data.rows import take
from harness.data.shots import draw
from harness.evaluation.bootstrap import resampled_draws
from harness.evaluation.predictions import Predicted
from harness.kinds import kind_of
from harness.passes.features import final_head, forward
from harness.rng import rng

REVIEW, WORDS = (12, 110), (5, 30)
ENCODE, TRAINER = "encode the test rows", "Trainer.predict"
INTERVALS = "scores on resampled rows, of the knn cell"
CHOICES = (
    Choice("current"),
    Choice("knn"),
    Choice("ft-classifier"),
    Choice("knn", {"rule": "vote"}),
    Choice("knn", {"rule": "centroid"}),
    Choice("probe"),
    Choice("probe", {"transform": "affine"}),
    Choice("linear-probe"),
    Choice("surgery"),
)
LEFT_OUT = ("fresh-head", "cosine")
"""Protocols that are not timed: one fits a head to all training rows, one is of pairs of texts."""


def timed(job: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = job()
    return time.perf_counter() - start, result


def rows(task: Task, split: str, count: int) -> Rows:
    """Rows of random words with random labels: one for a row, or one for every word."""
    random = rng(0, "benchmark", split)
    words = kind_of(task).unit == "word"
    lengths = random.integers(*(WORDS if words else REVIEW), size=count)
    texts = [[f"w{n}" for n in random.integers(2000, size=length)] for length in lengths]
    units = int(lengths.sum()) if words else count
    labels = random.integers(len(task.labels), size=units).astype(float)
    whole = [tuple(text) if words else (" ".join(text),) for text in texts]
    return Rows(task, split, tuple(whole), labels, split)


def make(folder: Path, task: Task) -> None:
    """Write BERT-base with random weights, and a word-level tokenizer."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertForTokenClassification

    torch.manual_seed(0)
    words = kind_of(task).unit == "word"
    classifier = BertForTokenClassification if words else BertForSequenceClassification
    classifier(BertConfig(num_labels=len(task.labels))).save_pretrained(folder)
    make_tokenizer(folder, 2000)


def trainer_logits(folder: Path, test: Rows) -> np.ndarray[Any, Any]:
    """Logits of the rows by transformers' Trainer.predict, padded to 128."""
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


def tasks_of(classes: int) -> list[Task]:
    """A task of rows, and one of words with about as many tags."""
    types = [f"T{index}" for index in range(classes // 2)]
    tags = ("O", *(f"{prefix}-{name}" for name in types for prefix in "BI"))
    rows_task = Task(
        name="benchmark/rows", kind="classification", text=("text",), label="label",
        labels=tuple(f"class {index}" for index in range(classes)), metrics=("accuracy",),
        splits={"test": "test"}, reported="test",
    )  # fmt: skip
    words = replace(
        rows_task, name="benchmark/words", kind="tagging", labels=tags, metrics=("span_f1",)
    )
    return [rows_task, words]


def read(choice: Choice, encoded: Encoded, test: Rows) -> None:
    """Compute all predictions of a protocol, and score them."""
    units = kind_of(test.task).unit_counts(test)
    for prediction in PROTOCOLS[choice.name].function(encoded, **choice.options):
        score(test.task, prediction.values, test.labels, units)


def encoded_of(model: Checkpoint, test: Rows, pool: Rows, draws: Sequence[Draw]) -> Encoded:
    """The input of protocols, with the model as its own teacher whose features are slightly moved.

    It has no test rows: encoding these is what is measured.
    """
    kind = kind_of(test.task)
    x, logits, _ = forward(model, pool, max_length=128)
    head = final_head(model, range(len(test.task.labels)))
    assert head is not None
    moved = x + 0.1 * rng(0, "teacher").normal(size=x.shape).astype(np.float32)
    none = Features(x[:0], logits[:0], pool.labels[:0])
    return Encoded(
        task=test.task.name, kind=kind, classes=len(test.task.labels), test=none, head=head,
        pool=Features(x, logits, pool.labels), draws=tuple(draws),
        teacher=kind.target([logits.astype(np.float64)]), teachers=(Teacher(moved, head),),
    )  # fmt: skip


def drawn_of(encoded: Encoded, test: Rows, repeat: int) -> Predicted:
    """Predictions of KNN by draw; the digest has the repeat, so that each has its own resamples."""
    predictions = PROTOCOLS["knn"].function(encoded)
    drawn = {(one.draw.shots, one.draw.seed): one.values for one in predictions if one.draw}
    units = kind_of(test.task).unit_counts(test)
    return Predicted(test.task, f"{test.digest} {repeat}", units, test.labels, drawn)


def _resampled(made: Predicted) -> list[object]:
    return [resampled_draws(made, shots) for shots in made.shots]


def measured(task: Task, count: int, repeats: int) -> dict[str, float]:
    """Median seconds of encoding the test rows and of every protocol; prints sizes of the run."""
    test = rows(task, "test", count)
    train = rows(task, "train", 400 * len(task.labels))
    picked, draws = draw(train, (1, 5, 10), range(5))
    pool = take(train, picked)
    times: dict[str, list[float]] = {}
    apart = 0.0
    # imports scikit-learn before the clock starts
    score(task, test.labels, test.labels, kind_of(task).unit_counts(test))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, task)
        model = open_checkpoint(folder)
        taught = encoded_of(model, test, pool, draws)
        for _ in range(repeats):
            seconds, (x, logits, _) = timed(lambda: forward(model, test, max_length=128))
            times.setdefault(ENCODE, []).append(seconds)
            if kind_of(task).unit == "row":
                seconds, expected = timed(lambda: trainer_logits(folder, test))
                times.setdefault(TRAINER, []).append(seconds)
                apart = float(np.abs(logits - expected).max())
            encoded = replace(taught, test=Features(x, logits, test.labels))
            for choice in CHOICES:
                seconds, _ = timed(partial(read, choice, encoded, test))
                times.setdefault(str(choice), []).append(seconds)
            made = drawn_of(encoded, test, len(times[ENCODE]))
            seconds, _ = timed(partial(_resampled, made))
            times.setdefault(INTERVALS, []).append(seconds)
    print(
        f"\n{task.name}: {count} test rows of {len(test.labels)} units, {len(task.labels)} "
        f"classes, {len(pool)} rows in the pool of {len(pool.labels)} units,\n{len(draws)} draws, "
        f"median of {repeats}\n"
    )
    if TRAINER in times:
        print(f"largest logit difference to Trainer.predict {apart:.1e}\n")
    return {job: statistics.median(values) for job, values in times.items()}


def encoding(task: Task, count: int, repeats: int) -> None:
    """Print processor seconds of encoding and of Trainer.predict, interleaved, and their ratios."""
    test, ratios = rows(task, "test", count), []
    with tempfile.TemporaryDirectory() as name:
        make(Path(name), task)
        model = open_checkpoint(name)
        jobs = (
            partial(forward, model, test, max_length=128),
            partial(trainer_logits, Path(name), test),
        )
        for job in jobs:
            job()  # imports
        for _ in range(repeats):
            seconds = []
            for job in jobs:
                start = time.process_time()
                job()
                seconds.append(time.process_time() - start)
            ratios.append(seconds[1] / seconds[0])
            print(
                f"ours {seconds[0]:.2f} s, Trainer.predict {seconds[1]:.2f} s: {ratios[-1]:.2f} x"
            )
    print(f"median of {repeats}: {statistics.median(ratios):.2f} x Trainer.predict")


def table(medians: Mapping[str, float], rows_read: int) -> None:
    """Print every job relative to encoding 1,000 rows, and the sum over default protocols."""
    thousand = medians[ENCODE] * 1000 / rows_read
    print("| job | seconds | share of encoding 1,000 rows |\n|---|---:|---:|")
    for job, seconds in medians.items():
        print(f"| {job} | {seconds:.3f} | {seconds / thousand:.3f} |")
    usual = sum(medians[name] for name, one in PROTOCOLS.items() if one.by_default)
    usual += 2 * medians[INTERVALS]  # also for the tuned heads; for Current Eval they cost nothing
    print(f"| all that are read by default | {usual:.3f} | {usual / thousand:.3f} |")
    if TRAINER in medians:
        print(f"\nrows per second: {medians[TRAINER] / medians[ENCODE]:.2f} x Trainer.predict")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--classes", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--encoding", action="store_true", help="that alone, where others work too")
    given = parser.parse_args()
    if given.encoding:
        encoding(tasks_of(given.classes)[0], given.rows, given.repeats)
        return
    assert {*LEFT_OUT, *(one.name for one in CHOICES)} == {*PROTOCOLS}, "a protocol is not measured"
    for task in tasks_of(given.classes):
        table(measured(task, given.rows, given.repeats), given.rows)


if __name__ == "__main__":
    main()
