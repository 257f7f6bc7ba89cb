"""The average of an expert and a moved copy of it, with and without alignment before it.

python benchmarks/moved.py EXPERT TASK OUT [--limit 500] [--seed 0]
python benchmarks/moved.py experts/domains/*/conll2003-0 ner/conll2003 docs/moved

EXPERT is a model fine-tuned on TASK. In the copy, the units of every feed-forward layer, the heads
of every layer and the dimensions of the whole model are permuted at random, by the seed, and the
queries and keys of every head, and its values and outputs, are rotated at random. It computes the
same function. The two are averaged, and every model is scored on rows that a limit draws from the
split that the task reports. Writes the figure OUT.png and OUT.svg, prints the scores, and leaves
nothing else behind.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from matplotlib.figure import Figure
from safetensors.torch import save_file

import harness
from harness import weights
from harness.checkpoints.open import open_checkpoint
from harness.data.splits import parse_task
from harness.evaluation.records import Record
from harness.needs.symmetry import symmetry
from harness.reporting.figures import save
from harness.reporting.plots.marks import BLUE, GREY, drawn_rows
from harness.rng import rng
from harness.weights import Permuted, Symmetry, Turned

WIDTH = "permutation:residual=true"
HEADS = "permutation:ffn=false,heads=true,rotated=true"
MERGES = {
    "plain average": (),
    "permutation, then average": (WIDTH, HEADS),
    "rotation, then average": ("rotation",),
    "both, then average": (WIDTH, HEADS, "rotation"),
}
"""The pre-merging methods before each average of the expert and its copy."""


# The copy ----------------------------------------------------------------------------------


def moved_copy(expert: Path, out: Path, seed: int) -> Path:
    """Write a model that computes the same function, with all symmetries applied at random."""
    checkpoint = open_checkpoint(str(expert))
    known = symmetry([checkpoint])
    sizes = {
        group: weights.specs(checkpoint.weights)[member.name].shape[member.axis]
        for group in sorted(known.groups)
        for member in known.members(group, checkpoint.weights)[:1]
    }
    turns = {group: turned(known, group, size, seed) for group, size in sizes.items()}
    orders = {group: ordered(known, group, size, seed) for group, size in sizes.items()}
    moved = weights.moved(checkpoint.weights, known, turns.get)
    moved = weights.moved(moved, known, orders.get)
    shutil.copytree(expert, out, ignore=shutil.ignore_patterns("*.safetensors*", "expert.json"))
    state = weights.cast_like(moved, checkpoint.weights)
    save_file({name: state[name] for name in state}, out / "model.safetensors", {"format": "pt"})
    return out


def turned(known: Symmetry, group: str, size: int, seed: int) -> Turned | None:
    """A random rotation of each head of a group; None for groups of other units."""
    if group.partition(".")[0] not in ("qk", "vo"):
        return None
    numbers = rng(seed, "rotations", group)
    drawn = numbers.normal(size=(known.heads, size // known.heads, size // known.heads))
    return Turned(torch.linalg.qr(torch.from_numpy(drawn)).Q)


def ordered(known: Symmetry, group: str, size: int, seed: int) -> Permuted:
    """A random order of the units of a group, or of its heads."""
    kind, _, layer = group.partition(".")
    if kind not in ("qk", "vo"):
        return Permuted(drawn_order(size, seed, group))
    # one order for both: queries and keys of a head stay with its values
    return Permuted(drawn_order(known.heads, seed, "heads", layer))


def drawn_order(count: int, seed: int, *names: str) -> torch.Tensor:
    """A random order of `count` units, by the seed and their names."""
    return torch.from_numpy(rng(seed, "order", *names).permutation(count))


# Scores ------------------------------------------------------------------------------------


def scores(
    expert: Path, task: str, limit: int, seed: int, work: Path
) -> Iterator[tuple[str, Record]]:
    """The name and the record of every scored model."""

    def score(folder: Path) -> Record:
        run = harness.Run(
            model=str(folder),
            tasks=(task,),
            protocols=("current",),
            limit=limit,
            output=str(work / "records"),
        )
        digest = weights.digest(open_checkpoint(str(folder)).weights)
        return next(one for one in harness.evaluate(run) if one.digest == digest)

    copy = moved_copy(expert, work / "moved", seed)
    yield "the expert", score(expert)
    yield "its copy, moved about", score(copy)
    for number, (name, stages) in enumerate(MERGES.items()):
        recipe = harness.Recipe.model_validate(
            {
                "experts": [str(expert), str(copy)],
                "premerge": stages,
                "tasks": [task.partition("@")[0]],
                "drift": False,
            }
        )
        out = work / f"merged-{number}"
        harness.merge(recipe, out=out)
        yield name, score(out)


def bar_chart(title: str, known: dict[str, float], unit: str) -> Figure:
    """A bar with its number for each score, grey for models that are not merges."""
    with drawn_rows(title, [*known], [("", unit)], 4.6, [0.34] * len(known)) as made:
        figure, (axes,), places = made
        colours = [BLUE if name in MERGES else GREY for name in known]
        bars = axes.barh(places, [*known.values()], height=0.24, color=colours)
        axes.bar_label(bars, [f"{value:.1f}" for value in known.values()], padding=3)
        axes.set_xlim(0, 100)
    return figure


def main() -> None:
    """Print the scores and write the figure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("expert", type=Path)
    parser.add_argument("task")
    parser.add_argument("out", type=Path, help="the picture, without .png")
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    task, split = parse_task(given.task)
    known: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="harness-moved-") as place:
        rows = given.expert, given.task, given.limit, given.seed, Path(place)
        for name, record in scores(*rows):
            value = 100 * record.scores[0].value
            print(f"{name:<26} {value:6.2f}", flush=True)
            known[name] = value
    title = "An expert and a copy of the same function, averaged"
    unit = f"{task.metrics[0]} x 100 on {record.rows} rows of {task}@{split}"
    given.out.parent.mkdir(parents=True, exist_ok=True)
    for path in save(bar_chart(title, known, unit), given.out):
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
