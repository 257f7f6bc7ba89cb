"""The results of a comparison: of two models task by task, or of several by their ranks."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from harness.reporting.difference import CI
from harness.reporting.grid import short_task
from harness.reporting.sentences import rendered, signed, span
from harness.reporting.table import fits
from harness.stats.intervals import Ends
from harness.stats.tests import DifferenceOutcome, outcome
from harness.text import aligned, counted, plain, points
from harness.types import ALL, Shots


@dataclass(frozen=True)
class Terms:
    """The terms of a comparison: the protocol with its options, the shots, the tasks.

    `sets` is the number of sets of experts behind every score, `of_sets` the largest number that
    any model has, and `seeds` are the seeds of their experts. `over_sets`: tests are over these
    sets, too.
    """

    protocol: str
    shots: Shots | None
    tasks: tuple[str, ...]
    sets: int = 1
    of_sets: int = 1
    seeds: tuple[int, ...] = ()
    over_sets: bool = False

    @property
    def drawn(self) -> bool:
        """Whether the protocol adapts to drawn rows: not to none and not to all."""
        return self.shots not in (None, ALL)

    def __str__(self) -> str:
        shots = "" if self.shots is None else f", {counted(self.shots, 'shot')}"
        some = f" of {self.of_sets}" if self.sets < self.of_sets else ""
        seeds = f" (seeds: {', '.join(map(str, self.seeds))})" if some and self.seeds else ""
        sets = f", {self.sets}{some} sets of experts{seeds}" if self.of_sets > 1 else ""
        return f"{self.protocol}{shots}{sets}"


@dataclass(frozen=True)
class TaskDifference:
    """Two models on the same test units of a task: rows, sentences or documents.

    Scores and differences are between -1 and 1; `within` is the 95 % interval of the difference
    over units, and over the draws of shots where there are several. `p` is that of a paired t test,
    `adjusted` is corrected for the number of tasks (Holm); both are None with too few draws to
    test. `detectable` is the smallest difference that one such test finds with a power of 80 %,
    None if it is larger than any two scores can be apart.
    """

    task: str
    metrics: tuple[str, ...]
    rows: int
    unit: str
    units: int
    first: float
    second: float
    within: Ends
    p: float | None
    adjusted: float | None
    detectable: float | None

    @property
    def difference(self) -> float:
        """The first minus the second."""
        return self.first - self.second


@dataclass(frozen=True)
class OverTasks:
    """What differences on several tasks say about tasks at large: each task is one observation.

    `p` is that of the sign-flip test, `within` the matching interval of the mean, None below six
    tasks, which cannot be significant. `left_out` is the range of the mean without any one task;
    without one of the `deciding` tasks, its sign or the outcome of the test changes.
    """

    p: float
    within: Ends | None
    left_out: Ends
    deciding: tuple[str, ...]


@dataclass(frozen=True)
class Comparison:
    """Two models on the same test units of the same tasks.

    `within` is the interval of the mean difference on these very tasks, and `p` the p-value of its
    test, None with fewer than three `draws` of shots. `over_tasks` is the claim about other tasks;
    None for one task. `needed` is about how many test units, over all tasks, would find such a
    difference; None if no number would. With a `margin`, models are practically equal if the
    interval lies within it, on either side of zero.
    """

    first: str
    second: str
    terms: Terms
    draws: int
    tasks: tuple[TaskDifference, ...]
    within: Ends
    p: float | None
    over_tasks: OverTasks | None
    needed: int | None
    margin: float | None = None

    @property
    def difference(self) -> float:
        """The first minus the second, in the mean over the tasks."""
        return float(np.mean([task.difference for task in self.tasks]))

    @property
    def units(self) -> int:
        """The test units of all tasks."""
        return sum(task.units for task in self.tasks)

    @property
    def outcome_here(self) -> DifferenceOutcome:
        """The outcome for the first model, on these very tasks."""
        return outcome(self.difference, self.p, self.within, self.margin)

    @property
    def outcome(self) -> DifferenceOutcome:
        """The outcome for the first model: on tasks at large if there are several."""
        if self.over_tasks is None:
            return self.outcome_here
        over = self.over_tasks
        return outcome(self.difference, over.p, over.within, self.margin)

    @property
    def verdict(self) -> str:
        """One line: better, worse, equal or unknown, by how much, and what more a test needs."""
        return rendered("comparison", self)

    def as_json(self) -> dict[str, Any]:
        """All fields and conclusions, for machines."""
        more = ("difference", "outcome", "verdict", "outcome_here")
        return asdict(self) | {name: getattr(self, name) for name in more}

    def report(self, width: int | None = None) -> str:
        """A table of the tasks, its explanation and the verdict; prose no wider than `width`."""
        headers = ["", "metric", "test", "A", "B", f"A - B [{CI}]", "p", "detectable"]
        wide, narrow = (aligned(self._lines(*joints), headers) for joints in ("+ ", ("+\n", "\n")))
        table = wide if fits(wide, width) else narrow
        names = [f"A: {plain(self.first)}", f"B: {plain(self.second)}"]
        above = [*names, f"Under {plain(self.terms)}."]
        return _laid_out(above, table, rendered("below_comparison", self), self.verdict, width)

    def _lines(self, joint: str, space: str) -> list[list[str]]:
        names = [one.task for one in self.tasks]
        return [
            [
                plain(short_task(task.task, names)),
                joint.join(map(plain, task.metrics)),
                f"{task.units}{space}{task.unit}{'s' * (task.units > 1)}",
                points(100 * task.first),
                points(100 * task.second),
                f"{signed(task.difference)} [{', '.join(map(signed, task.within))}]",
                "" if task.adjusted is None else _p(task.adjusted),
                "" if task.detectable is None else points(100 * task.detectable),
            ]
            for task in self.tasks
        ]

    def __str__(self) -> str:
        return self.report()


@dataclass(frozen=True)
class Ranked:
    """A model among others: its mean score and rank over the tasks, 1 the best.

    `places` are the first and the last place that tests over tasks leave open, `wins` is the share
    of other models, over all tasks, that it is better than.
    """

    model: str
    score: float
    rank: float
    places: tuple[int, int]
    wins: float


@dataclass(frozen=True)
class Ranking:
    """Several models on the same test units of the same tasks, the highest mean score first.

    `groups` are runs of models of which no two differ significantly on tasks at large: Friedman's
    test, then sign-flip tests, Holm over all pairs. `here` are such runs on these very tasks, by
    paired t tests; empty with fewer than three draws. A model may be in several runs.
    """

    terms: Terms
    draws: int
    models: tuple[Ranked, ...]
    groups: tuple[tuple[str, ...], ...]
    here: tuple[tuple[str, ...], ...]

    @property
    def leaders(self) -> tuple[str, ...]:
        """The first model and all that do not differ significantly from it, on these tasks."""
        first = self.models[0].model
        return tuple(
            ranked.model
            for ranked in self.models
            if any(first in group and ranked.model in group for group in self.here)
        )

    @property
    def verdict(self) -> str:
        """One line: who leads."""
        return rendered("ranking", self)

    def as_json(self) -> dict[str, Any]:
        """All fields and conclusions, for machines."""
        return {**asdict(self), "leaders": self.leaders, "verdict": self.verdict}

    def report(self, width: int | None = None) -> str:
        """A table of the models, its explanation and the verdict; prose no wider than `width`."""
        several = len(self.terms.tasks) > 1
        lines = [
            [
                plain(row.model),
                points(100 * row.score),
                f"{row.rank:.2f}",
                f"{100 * row.wins:.0f} %",
                _letters(row.model, self.here),
                *([_letters(row.model, self.groups), span(row.places, "-")] if several else []),
            ]
            for row in self.models
        ]
        names = ", ".join(short_task(task, self.terms.tasks) for task in self.terms.tasks)
        under = f"Under {plain(self.terms)}, on {plain(names)}."
        heads = ["", "mean", "rank", "wins", "here", *(["other tasks", "places"] * several)]
        table, below = aligned(lines, heads), rendered("below_ranking", self)
        return _laid_out([under], table, below, self.verdict, width)

    def __str__(self) -> str:
        return self.report()


def _letters(model: str, groups: Sequence[Sequence[str]]) -> str:
    """The groups that a model is in, as letters; all as numbers if one is beyond z."""
    places = [place for place, group in enumerate(groups) if model in group]
    marks = [chr(ord("a") + place) if place < 26 else str(place + 1) for place in places]
    return "".join(marks) if max(places, default=0) < 26 else " ".join(marks)


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "<0.001"


def _laid_out(above: Sequence[str], table: str, below: str, verdict: str, width: int | None) -> str:
    """The text of a report: lines above the table, the table, and prose below it."""
    lines = [*below.split("\n"), f"Verdict: {plain(verdict)}."]
    prose = [plain(line.strip()) for line in lines if line.strip()]
    if width is not None:
        prose = [textwrap.fill(line, width) for line in prose]
    return "\n".join([*above, "", table, "", *prose])
