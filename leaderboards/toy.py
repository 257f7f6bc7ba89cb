"""Runs every study of `studies` on generated rows, in minutes; the scores mean nothing.

    python leaderboards/toy.py OUT

Makes a tiny base, data for every task of a committed board, and the studies with less training and
fewer draws; runs them in two processes, then `pages.py`. At the end OUT is compared with what is
committed: every board, page and figure must exist, with the same lines. Exits with 1 if something
is missing.

Importing torch takes longer than training such a model: the processes are forks of one that has
imported everything.
"""

from __future__ import annotations

import gc
import importlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from multiprocessing import get_context
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

# before torch is imported: two processes on two cores, and forks do not inherit threads
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"

import compare
import numpy as np
import pages
import texts
import vision
import yaml

from harness import MERGERS, PROTOCOLS, TASKS, Row, Task
from harness.cli import main
from harness.data.rows import load_rows
from harness.rng import rng
from harness.studies.read import OnAsAWord
from harness.training.miniature import SUITE, make_base

if TYPE_CHECKING:
    from _typeshed import HasFileno

HERE = Path(__file__).parent
BASES = (
    "bases/all-MiniLM-L6-v2",
    "bases/paraphrase-MiniLM-L3-v2",
    "bases/granite-embedding-30m-english",
    "bases/gte-small",
    "bases/distilbert-base-cased",
    "bases/all-mpnet-base-v2",
)
NETWORK = (2, 64)
"""Layers and width of the networks that are trained from scratch."""
EACH = {"train": 7, "test": 3}
"""Rows of each class: enough for draws of 5 beside `heldout10`."""
LEAST = {"train": 40, "test": 24}
LENGTH = 12
DRAWS = 3
"""The fewest draws for which credit has an interval."""
STEPS = 20
"""Steps of Surgery, in place of a thousand."""
SIDE = 32
LANES = (
    (
        *("seeds", "domains", "reference", "vision-one-start", "vision-other-start"),
        *("vision-starts-2", "vision-starts-3", "vision-two-starts", "vision"),
        *("topics-granite", "topics-gte", "topics-distilbert", "topics-minilm-l6"),
        *("glue-granite", "domains-granite", "domains-distilbert", "emotions-granite"),
        *("emotions-distilbert", "domains-tuned", "glue-distilbert", "topics-mpnet"),
    ),
    (
        *("protocols", "shots", "emotions", "emotions-heads", "topics", "topics-tuned"),
        *("fresh-head", "glue", "emotions-tuned"),
        *("text-pretrained-1", "text-pretrained-2", "text-pretrained-3"),
        *("text-starts-1", "text-starts-2", "text-starts-3", "text-starts-4", "text-starts-5"),
        *("text-starts-6", "text-two-starts", "text-one-start", "text-two-pretrainings"),
        *("seeds-granite", "seeds-distilbert"),
    ),
)
"""Studies that share no expert with the other lane, and take about as long."""
WARM = (
    "evaluate",
    "faiss",
    "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg",
    "matplotlib.pyplot",
    "pandas",
    "pyarrow.parquet",
    "sklearn.linear_model",
    "torch.profiler",
    "transformers.generation.utils",
    "transformers.models.bert.modeling_bert",
    "transformers.models.bert.tokenization_bert",
    "transformers.trainer",
    "harness.evaluation.evaluate",
    "harness.merging.merge",
    "harness.merging.summary",
    "harness.reporting.boards.leaderboard",
    "harness.reporting.table",
    "harness.training.finetune",
)
"""Modules that most commands import."""


# Rows --------------------------------------------------------------------------------------


def rows(task: Task, split: str, words: Sequence[str]) -> list[Row]:
    """Rows of a split, with the classes in turn."""
    part = "train" if split == "train" else "test"
    classes = len(task.labels) if task.kind == "classification" else 0
    count = max(LEAST[part], EACH[part] * classes)
    return [row(task, number, words, rng(0, task.name, split, number)) for number in range(count)]


def row(task: Task, number: int, words: Sequence[str], random: np.random.Generator) -> Row:
    """A row in the columns of the published data. Certain words, or pixels, show its labels."""
    picked = [words[place] for place in random.integers(len(words), size=LENGTH)]
    if task.kind == "tagging":
        tags = [int(tag) for tag in random.integers(len(task.labels), size=LENGTH)]
        said = [words[tag] if tag else word for word, tag in zip(picked, tags, strict=True)]
        return {task.text[0]: said, task.label: tags}
    if task.kind == "multilabel":
        # the last class has no label, as in most of the corpora
        holds = [*map(int, random.random(len(task.labels) - 1) < 0.3), -100]
        marks = [words[place] for place, held in enumerate(holds) if held == 1]
        labels: dict[str, object] = (
            {task.label: holds} if task.label else {**dict(zip(task.labels, holds, strict=True))}
        )
    else:
        of = number % (len(task.labels) or 6)
        marks = [words[of]] * 3
        labels = {task.label: of if task.labels else float(of)}
        if task.image:  # the number of the brightest row of pixels is the class
            pixels = random.integers(128, size=(SIDE, SIDE), dtype=np.uint8)
            pixels[of] += 128
            return {task.image: {"bytes": vision.png(pixels), "path": None}, **labels}
    said = [*marks, *picked[len(marks) :]]
    columns = len(task.text)
    return {**{name: " ".join(said[n::columns]) for n, name in enumerate(task.text)}, **labels}


def write(task: Task, split: str, path: Path, words: Sequence[str]) -> None:
    """Write a split as on the Hub: a Parquet file with the class names in its metadata."""
    from datasets import ClassLabel, Dataset, Features, Image, List, Value

    names = ClassLabel(names=[*task.labels]) if task.labels else Value("float32")
    label = {"tagging": List(names), "multilabel": List(Value("int8"))}.get(task.kind, names)
    text = List(Value("string")) if task.kind == "tagging" else Value("string")
    held = {task.label: label} if task.label else dict.fromkeys(task.labels, Value("int8"))
    inputs = {task.image: Image()} if task.image else dict.fromkeys(task.text, text)
    features = Features({**inputs, **held})
    path.parent.mkdir(parents=True, exist_ok=True)
    Dataset.from_list(rows(task, split, words), features=features).to_parquet(path)


def make(out: Path) -> int:
    """Make the bases, and rows for the tasks of the committed boards."""
    make_base(out / BASES[0], steps=60, width=64, layers=2)
    for other in BASES[1:]:
        shutil.copytree(out / BASES[0], out / other)
    known = load_rows(TASKS[SUITE[0]], "train90").texts
    words = sorted({word for text in known for part in text for word in part.split()})
    boards = [compare.lines(path) for path in sorted(HERE.glob("*/board.parquet"))]
    tasks = {one["task"] for one in chain(*boards)}
    for task in (TASKS[name] for name in sorted(tasks & {*TASKS})):  # not a study's own
        for split in ("train", task.splits[task.reported]):
            write(task, split, out / "data" / task.name / f"{split}.parquet", words)
    vision.write(out, *NETWORK)
    texts.write(out, *NETWORK)
    return 0


def smaller(name: str, out: Path) -> Path:
    """The file of a study reduced to one epoch in float32, few draws and the tiny base."""
    text = (HERE / "studies" / f"{name}.yaml").read_text(encoding="utf-8")
    said = yaml.load(text, OnAsAWord)  # a safe loader
    experts = said["experts"]
    if "tasks" in experts:
        experts["finetune"] |= {"epochs": 1, "bf16": False}
        experts.pop("by_task", None)
    for reading in (said, *said.get("score_on", {}).values()):
        if isinstance(reading, dict):
            reading["evaluate"] = {**reading.get("evaluate", {}), "draws": DRAWS}
    if "$OUT/" not in str(said["base"]):
        said["base"] = f"$OUT/bases/{Path(said['base']).name}"
    path = out / "studies" / f"{name}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(said, sort_keys=False), encoding="utf-8")
    return path


# Processes ---------------------------------------------------------------------------------


def hurry() -> None:
    """Skip slow work that changes nothing that is checked here."""
    gc.collect()
    gc.freeze()  # else each garbage collection would scan all that is imported
    os.fsync = unsynced
    surgery: Any = importlib.import_module(PROTOCOLS["surgery"].function.__module__)
    surgery._fitted = partial(briefly, surgery._fitted)


def unsynced(fd: int | HasFileno) -> None:
    """No fsync: files need not survive a power cut."""


def briefly(fit: Callable[..., Any], lessons: Any, rank: int, _: int, rate: float) -> Any:
    """Surgery fitted in `STEPS` steps, whatever number is asked for."""
    return fit(lessons, rank, STEPS, rate)


def start(work: Callable[..., int], *given: Any) -> ForkProcess:
    """Start work in a forked process; the result of `work` is its exit status."""
    process = get_context("fork").Process(target=ended, args=(work, *given))
    process.start()
    return process


def ended(work: Callable[..., int], *given: Any) -> None:
    """Do work, exit with its result, and print the processor time that it took."""
    try:
        sys.exit(work(*given))
    finally:
        print(f"= {time.process_time():.1f} s")


def wait(process: ForkProcess) -> int:
    process.join()
    return int(process.exitcode or 0)


def logged(work: Callable[..., int], name: str, out: Path, *given: Any) -> int:
    """Do work, with all output going to OUT/NAME.log."""
    log = os.open(out / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    return work(*given)


def lane(studies: Sequence[str], out: Path) -> int:
    """Run studies, one after another."""
    files = [str(smaller(name, out)) for name in studies]
    return main(["study", "run", *files, "--out", str(out), "--device", "cpu"])


def toy(out: Path) -> int:
    """Make everything in a new folder; the exit status."""
    if out.exists():
        sys.exit(f"{out} is there already; expected a new folder")
    os.environ["HARNESS_DATA_DIR"] = str(out / "data")
    os.environ["HARNESS_CACHE_DIR"] = str(out / "cache")
    started = time.monotonic()
    if wait(start(make, out)):
        return 1
    running = {one[0]: start(logged, lane, one[0], out, one, out) for one in LANES}
    failed = [name for name, process in running.items() if wait(process)]
    if wait(start(logged, pages.write, "pages", out, out)):
        failed.append("pages")
    for name in failed:
        print((out / f"{name}.log").read_text(encoding="utf-8")[-4000:])
    spent = os.times()
    worked = spent.children_user + spent.children_system
    print(f"{time.monotonic() - started:.0f} s, {worked:.0f} s of work")
    return max(compare.report(out), bool(failed))


if __name__ == "__main__":
    for name in WARM:
        importlib.import_module(name)
    len(TASKS), len(PROTOCOLS), len(MERGERS)  # loads the plug-ins, which are found at first use
    hurry()
    sys.exit(toy(Path(sys.argv[1]).absolute()))
