"""The effect of half precision on an expert: flipped predictions, and changes of outputs.

python benchmarks/precision.py EXPERT TASK [--rows 1000] [--device auto] [--data-dir DIR]

Rows drawn from the reported split are predicted by the expert's own head, in float32 and in each
half precision. A flip is another predicted label (for regression, another value of two digits).
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from tabulate import tabulate

from harness.checkpoints.open import open_checkpoint
from harness.data.metrics import finished, score
from harness.data.rows import load_rows
from harness.data.splits import parse_task
from harness.kinds import kind_of
from harness.passes.features import forward
from harness.passes.placement import DType, Placement

TYPES: tuple[DType, ...] = ("float32", "bfloat16", "float16")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("expert")
    parser.add_argument("task")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--data-dir")
    given = parser.parse_args()
    task, split = parse_task(given.task)
    rows = load_rows(task, split, folder=given.data_dir, limit=given.rows)
    checkpoint, kind, table = open_checkpoint(given.expert), kind_of(task), []
    columns = kind.output_columns(task, checkpoint.labels or (), checkpoint.source)
    for dtype in TYPES:
        start = time.perf_counter()
        _, logits, seen = forward(
            checkpoint, rows, max_length=task.finetune.max_length,
            placement=Placement(device=given.device, dtype=dtype),
        )  # fmt: skip
        seconds, outputs = time.perf_counter() - start, logits[:, list(columns)]
        said = finished(task, kind.predicted(outputs), seen)
        value = score(task, said, rows.labels, kind.unit_counts(rows)).value
        if dtype == "float32":
            expected, first = outputs, said
        flipped = int((np.round(said, 2) != np.round(first, 2)).reshape(len(said), -1).any(1).sum())
        far = float(np.abs(outputs - expected).max())
        table.append([dtype, 100 * value, flipped, len(said), far, seconds])
    heads = ["type", "score x100", "flips", "of", "outputs move by", "seconds"]
    print(
        tabulate(table, heads, tablefmt="github", floatfmt=(".0f", ".2f", "d", "d", ".1e", ".1f"))
    )


if __name__ == "__main__":
    main()
