"""One task's experts, merged with and without methods that bring them together first.

    python leaderboards/premerge.py TASK BASE EXPERT... --out FOLDER

Every merger of the Procrustes papers, with and without DARE, with and without `procrustes`; and the
average after `rotation` and `permutation`, of all layers and of halves. A merge is read under
Current Eval, on at most 1,000 rows, into FOLDER/records/premerge, and is not kept. What has a
record and predictions there is not merged again.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from harness import Recipe, Run, evaluate, merge, parse_choice
from harness.text import points

ROWS = 1000
# the exact Fisher information takes a pass for every word and tag: too long for tags
MERGERS = (
    "average",
    "task_arithmetic",
    "ties",
    "fisher:estimator=empirical,examples=64",
    "regmean:examples=256",
)
HALVES = ("", "layers=first:3", "layers=last:3")
SYMMETRIES = ("rotation", "permutation", "permutation:heads=true,residual=true")


def recipes() -> list[tuple[tuple[str, ...], str]]:
    """Pre-merging methods and merger of every merge."""
    before = [(), ("dare",), ("procrustes",), ("procrustes", "dare")]
    aligned = [f"{one}{',' if ':' in one else ':'}{half}" for one in SYMMETRIES for half in HALVES]
    return [
        *((stages, merger) for merger in MERGERS for stages in before),
        *(((stage.rstrip(":,"),), "average") for stage in aligned),
    ]


def called(task: str, stages: tuple[str, ...], merger: str) -> str:
    """A folder's name: the task and the method, with nothing that a path cannot have."""
    method = "-".join([*stages, merger.partition(":")[0]])
    return f"{task.rpartition('/')[2]}-{method.translate(str.maketrans(':,=', '---'))}"


def study(task: str, base: str, experts: Sequence[str], folder: Path) -> None:
    """Merge and read what has no record yet."""
    place = folder / "records" / "premerge"
    for stages, merger in recipes():
        name = called(task, stages, merger)
        made = [*(place / name).rglob("*.json")]
        if made and all(record.with_suffix(".parquet").is_file() for record in made):
            continue
        out = folder / "merged" / "premerge" / name
        chosen = tuple(map(parse_choice, stages))
        recipe = Recipe(
            experts=tuple(experts), base=base, merger=parse_choice(merger), premerge=chosen
        )
        plan = merge(recipe, out=out, force=True)
        run = Run(model=str(out), output=str(place), protocols=(parse_choice("current"),))
        records = evaluate(run.model_copy(update={"limit": ROWS}))
        merged = next(record for record in records if record.role == "merged")
        print(f"{task} {plan.recipe.method} {points(100 * merged.scores[0].value)}", flush=True)
        shutil.rmtree(out)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("task")
    parser.add_argument("base")
    parser.add_argument("experts", nargs="+")
    parser.add_argument("--out", type=Path, required=True, help="experts, merges and records")
    given = parser.parse_args()
    study(given.task, given.base, given.experts, given.out)
