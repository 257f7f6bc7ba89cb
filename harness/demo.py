"""`harness demo`: all commands on the embedded tasks, in a minute or two, without a network.

There is a task of each kind. Tasks that label rows are merged with every head kept, the tagging
task with its heads merged. A model labels either rows or words, and reads either text or images, so
there are three settings.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from shlex import quote

from harness.checkpoints.processor import pillow
from harness.errors import BadRecipe
from harness.evaluation.evaluate import evaluate
from harness.evaluation.records import Record
from harness.evaluation.run import Run
from harness.folders import Layout, new_folder
from harness.merging.merge import merge
from harness.merging.recipes import Recipe
from harness.reporting.boards.leaderboard import leaderboard
from harness.reporting.grid import grid
from harness.reporting.lines import lines_of
from harness.reporting.table import PARTS, evaluation_table, legend, parts_table, protocols_saw
from harness.reporting.verdict import verdicts
from harness.text import wrapped
from harness.training.finetune import finetune
from harness.training.miniature import make_base, make_image_base
from harness.types import Choice

DEMO = Layout("a demo", "demo.json")
WIDTH = 100
"""The largest width of tables, in columns."""
MERGERS = ("average", "task_arithmetic", "ties")


@dataclass(frozen=True)
class DemoExperts:
    """Experts to merge. Each is the name of its folder: TASK, or TASK-SEED for a seed other than 0.

    `base` is the folder of their base.
    """

    name: str
    title: str
    experts: tuple[str, ...]
    base: str = "base"


SETTINGS = (
    DemoExperts(
        "different-tasks",
        "Different tasks: a class, a number, several classes for each row",
        ("comparison", "outcome", "mentions"),
    ),
    DemoExperts("same-task", "One task, two seeds: a tag for each word", ("names", "names-1")),
)
FIGURES = "Images: the shape and the colour of a figure"
IMAGES = DemoExperts("images", FIGURES, ("shapes", "colours"), "image-base")


def demo(out: Path, width: int | None = None) -> None:
    """Make bases and experts, merge them by each of MERGERS, evaluate, print the results."""
    marker = {"about": "Written by `harness demo`; running it again replaces it."}
    with new_folder(out, DEMO, force=True) as folder:  # an older version's records are not reused
        DEMO.write(folder, marker)
    _say("a minute or two on two cores: two bases, seven experts, nine merges, a board")
    try:
        _make(out, min(width or WIDTH, WIDTH))
    finally:
        DEMO.write(out, marker)  # also if it was stopped, so that the next demo may replace it


def _make(out: Path, width: int) -> None:
    _say("pretraining a small base")
    make_base(out / "base")
    settings = [*SETTINGS]
    try:
        pillow()
    except BadRecipe as error:
        _say(f"no images: {error}")
    else:
        _say("pretraining a small vision transformer")
        make_image_base(out / IMAGES.base)
        settings.append(IMAGES)
    results = [(setting, _train_and_evaluate(setting, out)) for setting in settings]
    for setting, records in results:
        print(f"{setting.title}\n\n{_shown(records, width)}\n")
    board, *_ = leaderboard([out / "records"], out=out / "board")
    print(f"Records are in {out / 'records'}/, the board of all shots is {board}.")
    model = quote(str(_merged(out, SETTINGS[0], MERGERS[-1])))
    print(f"Next: harness evaluate --model {model}")


def _train_and_evaluate(setting: DemoExperts, out: Path) -> dict[str, list[Record]]:
    """Train, merge and evaluate the experts of a setting: its records by merger."""
    base, experts = out / setting.base, []
    for name in setting.experts:
        task, _, seed = f"embedded/{name}".partition("-")
        _say(f"fine-tuning an expert of {task}{f', seed {seed}' if seed else ''}")
        expert = out / "experts" / name
        finetune(base, task, out=expert, seed=int(seed or 0), progress=False, force=True)
        experts.append(str(expert))
    records = {}
    for name in MERGERS:
        _say(f"merging {setting.name} by {name} and evaluating")
        merged = _merged(out, setting, name)
        recipe = Recipe(experts=tuple(experts), base=str(base), merger=Choice(name))
        merge(recipe, out=merged, force=True)
        records[name] = evaluate(Run(model=str(merged), output=str(out / "records")))
    return records


def _merged(out: Path, setting: DemoExperts, merger: str) -> Path:
    return out / "merged" / setting.name / merger


def _shown(records: dict[str, list[Record]], width: int) -> str:
    """The table of all mergers and the verdict on each, in `width` columns."""
    everything = [record for part in records.values() for record in part]
    scores = grid(everything, by_method=False)
    table = evaluation_table(scores, width)
    by_name = {name: [*lines_of(("", record) for record in part)] for name, part in records.items()}
    notes = [f"{name}: {line}" for name, part in by_name.items() for line in verdicts(part)]
    lines = (wrapped(line, width) for line in [legend(table), *protocols_saw(scores), "", *notes])
    parts = parts_table(scores, width)
    return "\n".join([table, "", *([PARTS, "", parts, ""] if parts else []), *lines])


def _say(text: str) -> None:
    print(f"demo: {text}", file=sys.stderr)
