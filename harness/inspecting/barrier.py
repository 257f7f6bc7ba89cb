"""Two models -> the loss and the score along the straight line between them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness.checkpoints.label_order import ordered_as
from harness.checkpoints.open import open_checkpoint
from harness.checkpoints.recorded_tasks import register_tasks
from harness.data.groups import expanded
from harness.errors import BadOption, LabelMismatch, MissingHead
from harness.evaluation.evaluate import evaluate
from harness.evaluation.records import Record, safe_name
from harness.evaluation.run import Run
from harness.evaluation.task_split import task_split
from harness.files import check_ours, check_place, write_files
from harness.labels import same
from harness.merging.merge import merge
from harness.merging.recipes import Recipe
from harness.reporting.barrier import MARKS, BarrierLine, as_csv, draw, lines_between, table
from harness.reporting.figures import check_pictures, save
from harness.types import Choice, Progress


def barrier(
    recipe: Recipe,
    run: Run,
    *,
    alignments: Sequence[Choice] = (),
    points: int = 11,
    progress: Progress | None = None,
) -> list[BarrierLine]:
    """Loss and score along the line between two models, as they are and after each alignment.

    The two experts of the `recipe`, with their heads, are merged by `average` with weights at
    `points` places from 0 to 1, once as they are and once after each of the `alignments`. Each
    merge is evaluated by `run` under Current Eval, and removed afterwards. The folder `run.output`
    gets the records, in `records`, and the barriers, as barrier.csv, .md, .png and .svg. Raises a
    HarnessError, before anything is merged, unless there are two experts with heads for the same
    labels, and three points.
    """
    if len(recipe.experts) != 2:
        raise BadOption(f"a barrier lies between two models, found {len(recipe.experts)}; name two")
    if points < 3:
        raise BadOption(f"--points is {points}, expected 3 or more: both ends and one between")
    out = Path(run.output)
    check_place(out.absolute())
    check_pictures(out / "barrier")
    check_ours({out / f"barrier.{form}": mark for form, mark in MARKS.items()})
    ends = [open_checkpoint(source, allow_pickle=run.allow_pickle) for source in recipe.experts]
    for model in ends:
        if model.pooling is not None:
            raise MissingHead(
                f"{model.source} is an embedding model, and a barrier is in the loss of a head; "
                "expected classifiers: merge and evaluate it"
            )
    ordered = ordered_as(ends[1], ends[0].labels)  # a merge orders it so, too
    if not same(ends[0].labels or (), ordered.labels or ()):
        sources = " and ".join(model.source for model in ends)
        problem = "have different labels; expected experts of one task"
        raise LabelMismatch(f"the heads of {sources} {problem}")
    register_tasks(run.tasks, ends)
    if not (tasks := run.tasks or ends[0].tasks):
        raise BadOption(f"{ends[0].source} does not say its task; name it with --tasks")
    for name in expanded(tasks, run.data_dir):
        task_split(run, name, ())
    if not all(model.tasks for model in ends):
        recipe = recipe.but(tasks=run.tasks[:1])
    names = [model.name for model in ends]
    places = [round(step / (points - 1), 6) for step in range(points)]  # a name shows six digits
    premerges: list[tuple[Choice, ...]]
    premerges = [(), *{str(choice): (choice,) for choice in alignments}.values()]
    recipes = [_between(recipe, stages, x) for stages in premerges for x in places]
    for variant in recipes[::points]:
        merge(variant, out=out / "nothing", dry_run=True, allow_pickle=run.allow_pickle)
    out.mkdir(parents=True, exist_ok=True)
    records: list[Record] = []
    for variant in recipes:
        records += _evaluated(variant, run, "-".join(names), progress)
    lines = lines_between(records)
    save(draw(lines, *names), out / "barrier")
    text = f"{table(lines, 'pipe')}\n"
    write_files([(out / "barrier.md", text), (out / "barrier.csv", as_csv(lines))])
    return lines


def _between(recipe: Recipe, stages: tuple[Choice, ...], x: float) -> Recipe:
    """The recipe of the merge at `x`: 0 is the first model, 1 the second."""
    fields = {"merger": Choice("average", {"weights": [round(1 - x, 6), x]}), "premerge": stages}
    # given heads are those of the recipe's task, and the label words of a T5 are no head to merge
    return recipe.but(**fields, heads="auto" if recipe.heads_from else "merge", drift=False)


def _evaluated(recipe: Recipe, run: Run, name: str, progress: Progress | None) -> list[Record]:
    """The records of one merge, which is written to a temporary folder."""
    with tempfile.TemporaryDirectory(dir=run.output, prefix=".merge-") as folder:
        place = Path(folder) / safe_name(f"{name}-{recipe.method}")
        merge(recipe, out=place, allow_pickle=run.allow_pickle, progress=progress)
        paths = {"model": str(place), "output": str(Path(run.output) / "records")}
        current_run = run.but(**paths, protocols=(Choice("current"),))
        records = evaluate(current_run, progress=progress)
    return [record for record in records if record.role == "merged"]
