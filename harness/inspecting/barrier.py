"""Two models -> the loss and the score along the straight line between them."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.checkpoints.open import open_checkpoint
from harness.errors import BadOption, LabelMismatch
from harness.evaluation.evaluate import evaluate
from harness.evaluation.records import Record, safe
from harness.evaluation.run import Run
from harness.files import check_place, write_files
from harness.labels import same
from harness.merging.merge import merge
from harness.merging.recipes import Recipe
from harness.reporting.barrier import Line, as_csv, draw, lines_between, table
from harness.reporting.figures import save
from harness.types import Checkpoint, Choice, Progress

MOST_POINTS = 1001


def barrier(
    recipe: Recipe,
    run: Run,
    *,
    alignments: Sequence[Choice] = (),
    points: int = 11,
    progress: Progress | None = None,
) -> list[Line]:
    """Loss and score along the line between two models, as they are and after each alignment.

    The two experts of the `recipe`, heads and all, are merged by `average` with so many weights
    from 0 to 1, after each of the `alignments` by itself, too, and each merge is evaluated as `run`
    says under Current Eval. In the folder `run.output` are its records, in `records`, and the
    barriers, as barrier.csv, .md, .png and .svg; merges are removed when they have been read.
    Raises a HarnessError, before anything is merged, for other than two experts, and for those of
    unlike heads.
    """
    if len(recipe.experts) != 2:
        raise BadOption(
            f"a barrier is between two models, found {len(recipe.experts)}; name two of one task"
        )
    if not 3 <= points <= MOST_POINTS:
        raise BadOption(f"--points is {points}, expected 3 to {MOST_POINTS}: the ends and between")
    out = Path(run.output)
    check_place(out.absolute())
    ends = [open_checkpoint(one, allow_pickle=run.allow_pickle) for one in recipe.experts]
    check_one_head(ends)
    if not all(one.tasks for one in ends):
        recipe = recipe.model_copy(update={"tasks": run.tasks[:1]})
    named = [one.name for one in ends]
    asked = [_between(recipe, stages, x) for stages in _each(alignments) for x in _places(points)]
    for one in asked[::points]:
        merge(one, out=out / "nothing", dry_run=True, allow_pickle=run.allow_pickle)
    out.mkdir(parents=True, exist_ok=True)
    records: list[Record] = []
    for one in asked:
        records += _evaluated(one, run, "-".join(named), progress)
    lines = lines_between(records)
    save(draw(lines, *named), out / "barrier")
    text = f"{table(lines, 'pipe')}\n"
    write_files([(out / "barrier.md", text), (out / "barrier.csv", as_csv(lines))])
    return lines


def check_one_head(ends: Sequence[Checkpoint]) -> None:
    """Raise LabelMismatch for models whose heads cannot be read on one task."""
    labels = [one.labels or () for one in ends]
    if not same(*labels):
        found = " and ".join(", ".join(one) or "none (regression)" for one in labels)
        raise LabelMismatch(
            f"{ends[0].source} and {ends[1].source} have the labels {found}; expected experts of "
            "one task, whose heads are on the line as their encoders are"
        )


def _each(alignments: Sequence[Choice]) -> list[tuple[Choice, ...]]:
    return [(), *((one,) for one in {str(one): one for one in alignments}.values())]


def _places(points: int) -> Iterator[float]:
    """From 0 to 1, in as many digits as a name of a method has room for."""
    return (round(step / (points - 1), 6) for step in range(points))


def _between(recipe: Recipe, stages: tuple[Choice, ...], x: float) -> Recipe:
    merger = Choice("average", {"weights": [round(1 - x, 6), x]})
    update = {"merger": merger, "premerge": stages, "heads": "merge", "drift": False}
    return recipe.model_copy(update=update)


def _evaluated(recipe: Recipe, run: Run, name: str, progress: Progress | None) -> list[Record]:
    """The records of one merge, whose folder is gone when they are made."""
    with tempfile.TemporaryDirectory(dir=run.output, prefix=".merge-") as folder:
        place = Path(folder) / safe(f"{name}-{recipe.method}")
        merge(recipe, out=place, allow_pickle=run.allow_pickle, progress=progress)
        here = {
            "model": str(place),
            "protocols": (Choice("current"),),
            "output": str(Path(run.output) / "records"),
        }
        made = evaluate(run.model_copy(update=here), progress=progress)
    return [one for one in made if one.role == "merged"]
