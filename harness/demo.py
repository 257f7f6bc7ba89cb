"""`harness demo`: the whole job on the embedded suite, in about a minute, with no network."""

from __future__ import annotations

import sys
from pathlib import Path

from harness.evaluation.evaluate import evaluate
from harness.evaluation.run import Run
from harness.files import Layout, check_output, write_text
from harness.merging.merge import merge
from harness.merging.recipes import Recipe
from harness.reporting.boards import leaderboard
from harness.reporting.table import evaluation_table
from harness.reporting.verdict import verdicts
from harness.training.finetune import finetune
from harness.training.miniature import make_base
from harness.types import Choice

MARKER = "demo.txt"
DEMO = Layout("a demo", MARKER, ("*",))
TASKS = ("embedded/topic", "embedded/comparison", "embedded/outcome")
MERGERS = ("average", "task_arithmetic", "ties")


def demo(out: Path, width: int | None = None) -> None:
    """Make a base and an expert per task, merge them three ways, evaluate, print what came out."""
    check_output(out, DEMO, force=True)
    write_text(out / MARKER, "Written by `harness demo`; running it again replaces it.\n")
    _say("pretraining a small base")
    base = make_base(out / "base")
    experts = []
    for task in TASKS:
        _say(f"fine-tuning an expert of {task}")
        expert = out / "experts" / task.rpartition("/")[2]
        finetune(base, task, out=expert, progress=False, force=True)
        experts.append(str(expert))
    records = []
    for name in MERGERS:
        _say(f"merging by {name} and evaluating")
        merged = out / "merged" / name
        recipe = Recipe(experts=tuple(experts), base=str(base), merger=Choice(name))
        merge(recipe, out=merged, force=True)
        records.append(evaluate(Run(model=str(merged), output=str(out / "records"))))
    print(evaluation_table([record for part in records for record in part], width))
    print("\nValues x100, ± standard deviation over draws.")
    for name, part in zip(MERGERS, records, strict=True):
        for one in verdicts(part):
            print(f"{name}: {one}")
    board, _ = leaderboard([out / "records"], out=out / "board")
    print(f"\nRecords are in {out / 'records'}/, the board of all shots is {board}.")
    print(f"Next: harness evaluate --model {out / 'merged' / MERGERS[-1]}")


def _say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr)
