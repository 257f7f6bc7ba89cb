"""Features of a model and of its experts laid out in 2-D, by class (FT-Classifier, Figure 1).

A picture, not a measure: t-SNE keeps neighbours together, but neither distances nor densities.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from harness.data.rows import take
from harness.errors import BadData, BadRecipe
from harness.evaluation.cells import Cell, cells_of
from harness.evaluation.evaluate import check_cells
from harness.evaluation.reader import Reader
from harness.evaluation.resolve import resolve_model
from harness.evaluation.run import Run
from harness.evaluation.task_split import configured
from harness.kinds import kind_of
from harness.passes.workload import Workload
from harness.reporting.figures import Axes, Figure, readable
from harness.reporting.grid import short_task
from harness.reporting.plots.marks import BLACK, GREY, PALETTE, figure_of, legend_label
from harness.rng import rng
from harness.text import plain
from harness.types import Array, Array64, Choice, Progress, Rows, Units

PERPLEXITY = 30
FEWEST = 8
"""The fewest points that can be laid out: two models on four rows."""
EXPERT, MODEL = "o", "^"
"""Matplotlib's markers of the points of an expert and of the model."""


@dataclass(frozen=True)
class Cloud:
    """The 2-D points of a task, [models, units, 2]: first of its expert, then of the model.

    `class_numbers` are the units' classes as indices into `classes`, which lists only classes with
    units.
    """

    task: str
    classes: tuple[str, ...]
    class_numbers: Units
    models: tuple[str, str]
    points: Array64


# Which rows --------------------------------------------------------------------------------


def balanced(rows: Rows, most: int, seed: int) -> dict[int, str]:
    """About `most` units of rows with their classes, drawn in equal numbers from each class.

    A unit of several classes counts for the first class that draws it.
    """
    classes = _classes(rows)
    units: dict[int, str] = {}
    for name, members in classes.items():
        order = rng(seed, "tsne", rows.task.name, name).permutation(members)
        fresh = [unit for unit in order.tolist() if unit not in units]
        units |= dict.fromkeys(fresh[: max(1, most // len(classes))], name)
    return dict(sorted(units.items()))


def _classes(rows: Rows) -> Mapping[str, Units]:
    """The units of each class (or bin of a regression, or tag) that has any."""
    if rows.labels.ndim > 1:  # multilabel: `groups` would also have the absence of each class
        labels = enumerate(rows.task.labels)
        groups = {name: np.flatnonzero(rows.labels[:, index] == 1) for index, name in labels}
    else:
        groups = {
            name.removeprefix("label ").strip("'"): members
            for name, members in kind_of(rows.task).groups(rows).items()
        }
    return {name: members for name, members in groups.items() if len(members)}


# Features ----------------------------------------------------------------------------------


def clouds(run: Run, most: int, progress: Progress | None = None) -> list[Cloud]:
    """The points of a model and of an expert of each task, the first expert of several.

    All cells are checked before the first forward pass; features are cached as in evaluate. Raises
    BadRecipe for a task without an expert, BadData where there are too few rows.
    """
    model = resolve_model(run)
    cells = cells_of(run, model, [configured(Choice("current"))])
    pairs = []
    for part, group in groupby(cells, key=lambda cell: cell.data):
        task_cells = list(group)
        experts = [cell for cell in task_cells[1:] if cell.evaluated.role == "expert"]
        if not experts:
            raise BadRecipe(
                f"tsne shows a model beside an expert of its task, found none of {part.name}; name "
                "one with --experts"
            )
        pairs.append((experts[0], task_cells[0]))
    check_cells([cell for pair in pairs for cell in pair])
    return [_cloud(expert, merge, most, progress) for expert, merge in pairs]


def _cloud(expert: Cell, merge: Cell, most: int, progress: Progress | None) -> Cloud:
    rows, seed = merge.data.test, merge.run.seed
    drawn_units = balanced(rows, most, seed)
    row_of = np.repeat(np.arange(len(rows)), kind_of(rows.task).unit_counts(rows))
    picked = sorted({int(row_of[unit]) for unit in drawn_units})
    sample = take(rows, picked)
    place = {int(unit): index for index, unit in enumerate(np.flatnonzero(np.isin(row_of, picked)))}
    reader, what = Reader(Workload(progress)), f"{merge.data.name}, {len(sample)} rows"
    features = [
        reader.member_features(cell.evaluated, cell, sample, what)[0] for cell in (expert, merge)
    ]
    drawn = [
        (place[unit], name)
        for unit, name in drawn_units.items()
        if all(model.seen is None or model.seen[place[unit]] for model in features)
    ]
    names = [name for name in _classes(rows) if name in {name for _, name in drawn}]
    units = [index for index, _ in drawn]
    return Cloud(
        merge.data.name,
        tuple(names),
        np.array([names.index(name) for _, name in drawn], dtype=np.int64),
        (expert.evaluated.name, merge.evaluated.name),
        in_the_plane([model.x[units] for model in features], seed, merge.data.name),
    )


def in_the_plane(features: Sequence[Array], seed: int, task: str) -> Array64:
    """Features of some models on the same units, laid out together: [models, units, 2].

    scikit-learn's t-SNE from the first two principal components, with a perplexity of 30, or a
    third of the points (less one) where there are few.
    """
    from sklearn.manifold import TSNE

    if len({x.shape for x in features}) > 1:
        widths = " and ".join(str(x.shape[1]) for x in features)
        raise BadRecipe(
            f"the features of the models on {task} are {widths} wide, expected one width"
        )
    stacked = np.concatenate(features).astype(np.float64)
    if len(stacked) < FEWEST:
        raise BadData(
            f"tsne has {len(stacked)} points of {task}, expected {FEWEST} or more; "
            "ask for more with --rows"
        )
    perplexity = min(PERPLEXITY, (len(stacked) - 1) / 3)
    tsne = TSNE(2, perplexity=perplexity, init="pca", learning_rate="auto", random_state=seed)
    plane = np.asarray(tsne.fit_transform(stacked), dtype=np.float64)
    return plane.reshape(len(features), -1, 2)


# The picture -------------------------------------------------------------------------------


def draw(clouds: Sequence[Cloud]) -> Figure:
    """A panel for each task: classes by colours and numbers, models by signs."""
    tasks = [cloud.task for cloud in clouds]
    title = "Features of a merge and of its experts, by class (t-SNE: neighbourhoods, no scale)"
    names = [short_task(task, tasks) for task in tasks]
    experts, merges = ({cloud.models[index] for cloud in clouds} for index in (0, 1))
    labels = (
        experts.pop() if len(experts) == 1 else "the expert of the task",
        merges.pop() if len(merges) == 1 else "the merge",
    )
    options: Any = {"linestyle": "none", "color": BLACK, "markersize": 4.5}
    with figure_of(title, names, (3.3, 3.5), left=0.2, sharex=False, sharey=False) as (
        figure,
        panels,
    ):
        for axes, cloud in zip(panels, clouds, strict=True):
            axes.set_xticks([])
            axes.set_yticks([])
            _scatter(axes, cloud)
            axes.set_xlabel(_key(cloud.classes), fontsize=7, color=GREY)
            for sign, face, name in zip((EXPERT, MODEL), ("none", BLACK), labels, strict=True):
                axes.plot([], [], sign, markerfacecolor=face, label=legend_label(name), **options)
    return figure


def _scatter(axes: Axes, cloud: Cloud) -> None:
    colours = [PALETTE[number % len(PALETTE)] for number in cloud.class_numbers]
    expert, merge = cloud.points
    hollow: Any = {"facecolors": "none", "edgecolors": colours, "linewidths": 0.8}
    axes.scatter(expert[:, 0], expert[:, 1], s=13, marker=EXPERT, **hollow)
    axes.scatter(merge[:, 0], merge[:, 1], s=13, marker=MODEL, c=colours, linewidths=0)
    for number in range(len(cloud.classes)):
        for points, shape, filled in ((expert, "circle", False), (merge, "square", True)):
            _badge(axes, number, points[cloud.class_numbers == number], shape, filled=filled)


def _badge(axes: Axes, number: int, points: Array64, shape: str, *, filled: bool) -> None:
    """Draw the number of a class at the median of its points, in a frame that tells the model."""
    from matplotlib.colors import to_rgb

    colour = PALETTE[number % len(PALETTE)]
    x, y = np.median(points, axis=0)
    axes.text(
        x,
        y,
        str(number + 1),
        ha="center",
        va="center",
        fontsize=7,
        color=readable(to_rgb(colour)) if filled else BLACK,
        bbox={
            "boxstyle": f"{shape},pad=0.2",
            "facecolor": colour if filled else "white",
            "edgecolor": BLACK if filled else colour,
            "linewidth": 0.8,
        },
    )


def _key(classes: Sequence[str]) -> str:
    # no line break between a number and its name
    keyed = " · ".join(
        f"{number}:\u00a0{plain(name)}" for number, name in enumerate(classes, start=1)
    )
    return textwrap.fill(keyed, 56, break_on_hyphens=False)
