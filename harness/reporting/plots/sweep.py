"""Score, or loss, against the value of one option of a merge (RegMean, Figure 5 and Table 6).

The option may also be the number of experts (RegMean, on incremental merging), or the layers that
are aligned (rotation, Figures 3 and 4).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from harness.errors import BadOption, MissingScores
from harness.evaluation.records import Record
from harness.evaluation.resamples import LOSS, estimate_of, loss_of, range_of
from harness.reporting import bases
from harness.reporting.chosen import read_both
from harness.reporting.difference import CI
from harness.reporting.figures import Figure
from harness.reporting.lines import CURRENT, Line
from harness.reporting.plots.marks import (
    BLACK,
    PALE,
    Mark,
    add_legend_entry,
    figure_of,
    legend_label,
    marks,
)
from harness.reporting.plots.scores import View, headline, lacking
from harness.reporting.sets import with_set_numbers
from harness.stats.estimate import Estimate, mean_of, over_sets
from harness.stats.intervals import Ends, interval
from harness.text import last_part

EXPERTS = "experts"
OF_A_SET = (EXPERTS, "base", "seed", "tuned")
"""Parts of a recipe that may differ between tasks, and between sets of experts."""
MADE_FROM = (EXPERTS, "base")
"""Those of `OF_A_SET` that merges of different bases differ in."""
FIRST = 3
"""How many items of a list a message names."""
STAGES = ("premerge", "merger", "postmerge")
OptionValue: TypeAlias = "float | str"
LineAndRecord: TypeAlias = tuple[Line, Record]
ByValue: TypeAlias = "dict[OptionValue, dict[int, LineAndRecord]]"
"""The merges of one task, by value of the option and by set of experts."""
MEAN, OVER = Mark(BLACK, "o", "-"), "mean of "
"""The look of the mean over tasks, and the beginning of its label."""
MOST_TICKS, WIDEST = 12, 50
"""The most values that are all named along x, and the most letters that fit there unslanted."""
EVENER = 0.5
"""The x axis is logarithmic if steps of logarithms have less than this share of the unevenness."""


@dataclass(frozen=True)
class Point:
    """A score x100, or a loss, at a value of the option, with its interval over units and draws."""

    x: OptionValue
    y: float
    within: Ends


@dataclass(frozen=True)
class Sweep:
    """A curve for each task and for the mean of several; `values` are those of the option."""

    title: str
    option: str
    measure: str
    values: tuple[OptionValue, ...]
    curves: Mapping[str, tuple[Point, ...]]


def picture(places: Iterable[str | Path], view: View) -> Figure:
    """The curves of the records in files and folders."""
    return draw(sweep(read_both(places, view), view))


def sweep(read: Iterable[LineAndRecord], view: View) -> Sweep:
    """The scores of merges that differ in the value of one option, and in nothing else.

    Raises BadOption where no option is named, or several methods have it; MissingScores where
    merges differ in more than the option, or all have one value of it, and unless there is exactly
    one protocol.
    """
    if not view.option:
        raise BadOption(
            "sweep needs an option that varies, found none; name one: --option merger.density, "
            f"--option dare.drop_rate, --option {EXPERTS}"
        )
    read = [*read]
    numbered = with_set_numbers([line for line, _ in read])
    merges = [
        (line, record)
        for line, (_, record) in zip(numbered, read, strict=True)
        if line.role == "merged" and option_key(record, view.option) is not None
        if view.protocols or line.protocol == CURRENT
    ]
    settings = headline([line.setting for line, _ in merges], view.shots)
    if len(settings) != 1:
        found = [*map(str, settings)] or ["no merge whose record has it"]
        do = "name one with --protocols, and an option as merge.json has it"
        raise lacking("sweep", f"one protocol over values of {view.option}", found, do)
    merges = [(line, record) for line, record in merges if line.setting == settings[0]]
    check_differ_only_in(merges, view.option)
    tasks = _by_task(merges, view.option)
    values = in_order({value for by_value in tasks.values() for value in by_value})
    if len(values) < 2:
        do = "merge with another, and evaluate that"
        raise lacking("sweep", f"two or more values of {view.option}", values, do)
    sets = set.intersection(*({*by_set} for task in tasks.values() for by_set in task.values()))
    if not sets:
        needed = f"sets of experts with all values of {view.option}"
        raise lacking("sweep", needed, (), "choose with --models")
    groups = {task: [_of_sets(by_value, sets)] for task, by_value in tasks.items()}
    # losses of different kinds (nats, squared errors) have no mean
    if len(tasks) > 1 and not (view.loss and len({line.kind for line, _ in merges}) > 1):
        groups[f"{OVER}{len(tasks)} tasks"] = [by_value for (by_value,) in groups.values()]
    curves = {name: _curve(group, values, loss=view.loss) for name, group in groups.items()}
    # of tasks that share no value there is no mean
    curves = {name: points for name, points in curves.items() if points}
    measure = LOSS if view.loss else f"score × 100 ({settings[0]})"
    x_label = f"number of {EXPERTS}" if view.option == EXPERTS else view.option
    method = re.sub(r":[^]+[]*", "", merges[0][0].method)  # without options
    title = f"{'Loss' if view.loss else 'Score'} against {x_label}, {method}"
    title += f", {len(sets)} sets of experts" if len(sets) > 1 else ""
    return Sweep(title, x_label, measure, values, curves)


def _by_task(merges: Iterable[LineAndRecord], option: str) -> dict[str, ByValue]:
    """The merges of each task. Raises MissingScores for two merges in one place."""
    tasks: dict[str, ByValue] = {}
    for line, record in merges:
        value = value_of(record, option)
        by_set = tasks.setdefault(line.task, {}).setdefault(value, {})
        other, _ = by_set.setdefault(line.set, (line, record))
        if other.digest != line.digest:
            raise MissingScores(
                f"{other.path} and {line.path} both have {option} {value}, and are not of "
                "several sets of experts; expected one for each value: choose with --models"
            )
    return tasks


# What merges differ in ---------------------------------------------------------------------


def flat_recipe(record: Record) -> dict[str, Any]:
    """The recipe of a merge as flat values: `merger`, `ties.density`, `base`, `experts`, ..."""
    if record.recipe is None:
        return {}
    recipe = record.recipe.model_dump(mode="json")
    flat: dict[str, Any] = {"base": record.base and record.base.digest}
    flat[EXPERTS] = sorted(expert.digest for expert in record.experts)
    for stage in STAGES:
        methods = [recipe.pop(stage)] if stage == "merger" else recipe.pop(stage)
        flat[stage] = "+".join(method["name"] for method in methods)
        for method in methods:
            flat |= {f"{method['name']}.{name}": value for name, value in method["options"].items()}
    return {**flat, **recipe}


def option_key(record: Record, option: str) -> str | None:
    """The key in `flat_recipe` of an option given as `STAGE.NAME` or `METHOD.NAME`; None if absent.

    Raises BadOption where several methods of a stage have it.
    """
    flat, (owner, _, name) = flat_recipe(record), option.rpartition(".")
    methods = flat.get(owner, "").split("+") if owner in STAGES else [owner]
    keys = [key for method in methods if (key := f"{method}.{name}".lstrip(".")) in flat]
    if len(keys) > 1:
        raise BadOption(f"{option} is {' and '.join(keys)}; expected one of these")
    return keys[0] if keys else None


def value_of(record: Record, option: str) -> OptionValue:
    """The value of an option of a merge: a number, or text as on the command line."""
    value = flat_recipe(record)[str(option_key(record, option))]
    if option == EXPERTS:
        return float(len(value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return ":".join(map(str, value)) if isinstance(value, list) else str(value).lower()
    return float(value)


def check_differ_only_in(read: Sequence[LineAndRecord], option: str) -> None:
    """Raise MissingScores for merges that differ in more than an option.

    Each task, and each set of experts, may have its own experts and base. In a sweep over experts,
    a merge of more experts has to contain all experts of a merge of fewer.
    """
    values_of: dict[tuple[str, int], dict[str, Any]] = {}
    sets: dict[tuple[str, int], set[frozenset[str]]] = {}
    names = {
        model.digest: f"{last_part(model.source)} ({model.digest[:8]})"
        for _, record in read
        for model in (*record.experts, *filter(None, [record.base]))
    }
    for line, record in read:
        flat = flat_recipe(record)
        sets.setdefault((line.task, line.set), set()).add(frozenset(flat[EXPERTS]))
        own = {f"{n} on {line.task}": flat.pop(n) for n in OF_A_SET if n != option}
        flat |= {f"{name} on {line.task}": value for name, value in line.conditions}
        flat[str(option_key(record, option))] = ""
        for fields, number in ((flat, 0), (own, line.set)):
            for name, value in fields.items():
                values_of.setdefault((name, number), {})[str(value)] = value
    # an option that only some merges have is not found here, but then their methods differ
    if places := [place for place, values in values_of.items() if len(values) > 1]:
        field, distinct = places[0][0], [value for _, value in sorted(values_of[places[0]].items())]
        values = [_readable(value, names, distinct) for value in distinct]
        task_of = {f"{name} on {line.task}": line.task for line, _ in read for name in MADE_FROM}
        of_task = (line for line, _ in read if line.task == task_of.get(field))
        options = bases.base_options(of_task) or "--models"
        raise MissingScores(
            f"sweep shows merges that differ in {option} alone, found {field} "
            f"{' and '.join(values[:FIRST])}; choose with {options}"
        )
    pairs = [pair for group in sets.values() for pair in pairwise(sorted(group, key=len))]
    if any(not small < large for small, large in pairs):
        raise MissingScores(
            "sweep over experts adds them one by one, found merges of which the larger lacks an "
            "expert of the smaller; choose with --models"
        )


def _readable(value: Any, names: Mapping[str, str], values: Sequence[Any]) -> str:
    """A value of `flat_recipe` for a message: models by their names, those first that not all
    share.

    A long list is cut to its first items and the number of the others. `values` are all of them.
    """
    if value in (None, "", [], {}):
        return "none"
    if not isinstance(value, list):
        return names.get(str(value), str(value))
    shared = [digest for digest in names if all(digest in str(other) for other in values)]
    ordered = sorted(value, key=lambda item: item in shared)
    texts = [names.get(str(item), str(item)) for item in ordered]
    more = [f"{len(texts) - FIRST} more"] if len(texts) > FIRST else []
    return f"[{', '.join([*texts[:FIRST], *more])}]"


def in_order(values: Iterable[OptionValue]) -> tuple[OptionValue, ...]:
    """The values in order: numbers ascending, then texts, with numbers in them compared as such."""

    def place(value: OptionValue) -> Any:
        if isinstance(value, float):
            return 0, value
        return 1, [int(p) if p.isdecimal() else p for p in re.split(r"(\d+)", value)]

    return tuple(sorted(values, key=place))


# Curves ------------------------------------------------------------------------------------


def _of_sets(by_value: ByValue, sets: Collection[int]) -> ByValue:
    return {value: {n: by_set[n] for n in sorted(sets)} for value, by_set in by_value.items()}


def _curve(
    tasks: Sequence[ByValue], values: Iterable[OptionValue], *, loss: bool
) -> tuple[Point, ...]:
    """The mean over some tasks and all of their sets of experts, at the values that all have."""
    shared = [value for value in values if all(value in by_value for by_value in tasks)]
    return tuple(_point(v, [by_value[v] for by_value in tasks], loss=loss) for v in shared)


def _point(
    value: OptionValue, tasks: Sequence[Mapping[int, LineAndRecord]], *, loss: bool
) -> Point:
    estimates = [
        over_sets({number: _estimate(*one, loss=loss) for number, one in by_set.items()})
        for by_set in tasks
    ]
    ends = [range_of(record.metrics) for by_set in tasks for _, record in by_set.values()]
    bounds = min(low for low, _ in ends), max(high for _, high in ends)
    mean, scale = mean_of(estimates), 1.0 if loss else 100.0
    low, high = interval(mean, None if loss or max(map(abs, bounds)) > 1 else bounds)
    return Point(value, scale * mean.point, (scale * low, scale * high))


def _estimate(line: Line, record: Record, *, loss: bool) -> Estimate:
    if not loss:
        return estimate_of(record, line.shots or None)
    if (found := loss_of(record)) is None:
        raise MissingScores(
            f"the record of {record.model} on {record.task} under {record.protocol} keeps no {LOSS}"
            "; expected one of this version, under current: evaluate into another folder"
        )
    return found


def is_geometric(values: Sequence[OptionValue]) -> bool:
    """Whether ascending values are evenly spread on a logarithmic scale, as powers of ten are."""
    numbers = [value for value in values if isinstance(value, float)]
    if len(numbers) < max(3, len(values)) or numbers[0] <= 0:
        return False
    steps = [np.diff(scale) for scale in (np.log(numbers), numbers)]
    uneven = [float(gaps.std() / gaps.mean()) for gaps in steps]
    return uneven[0] < EVENER * uneven[1]


def draw(shown: Sweep) -> Figure:
    """Thin curves of tasks and a thick one of their mean, with vertical lines for intervals."""
    numeric = all(isinstance(value, float) for value in shown.values)
    places = {value: value if numeric else index for index, value in enumerate(shown.values)}
    looks = marks(name for name in shown.curves if not name.startswith(OVER))
    with figure_of(shown.title, [""], (4.6, 3.0)) as (figure, (axes,)):
        axes.grid(axis="y", color=PALE, linewidth=0.5)
        for name, points in shown.curves.items():
            look, xs = looks.get(name, MEAN), [places[point.x] for point in points]
            ys = [point.y for point in points]
            width = 2.2 if look is MEAN else 1.2
            axes.plot(
                xs, ys, label=legend_label(name), linestyle=look.line, linewidth=width, **look.dots
            )
            lows, highs = zip(*(point.within for point in points), strict=True)
            axes.vlines(xs, lows, highs, color=look.colour, linewidth=1, alpha=0.6)
        add_legend_entry(axes, CI, marker="|", linewidth=0)
        if is_geometric(shown.values):
            axes.set_xscale("log")
        labels = [f"{value:g}" if numeric else str(value) for value in places]
        if len(labels) <= MOST_TICKS or not numeric:
            long = sum(map(len, labels)) > WIDEST
            axes.set_xticks([*places.values()], labels, rotation=30 if long else 0)
            axes.minorticks_off()
        axes.set(xlabel=shown.option, ylabel=shown.measure)
    return figure
