"""What a comparison of models says: two of them task by task, or several by their ranks."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from tabulate import tabulate

from harness.data.shots import counted
from harness.evaluation.estimates import FEWEST_TASKS, LEVEL, POWER, Ends
from harness.evaluation.inference import TestName
from harness.reporting.grid import short_task
from harness.reporting.table import fits
from harness.text import plain, points
from harness.types import Shots

Outcome: TypeAlias = Literal["better", "worse", "cannot tell"]


@dataclass(frozen=True)
class Terms:
    """Under what models are compared: the protocol with its options, the shots, the tasks."""

    protocol: str
    shots: Shots | None
    tasks: tuple[str, ...]

    def __str__(self) -> str:
        if self.shots is None:
            return self.protocol
        return f"{self.protocol}, {counted(self.shots)}"


@dataclass(frozen=True)
class TaskDifference:
    """Two models on the same rows of a task.

    Scores and differences are between -1 and 1; `within` is the 95 % interval of the difference
    over the rows, and over the draws of shots where there are several. `p` is of the test,
    `adjusted` for there being several tasks (Holm); `detectable` is the smallest difference that
    one test on so many rows shows with a power of 80 %, None where no row differs.
    """

    task: str
    metrics: tuple[str, ...]
    rows: int
    first: float
    second: float
    within: Ends
    test: TestName
    p: float
    adjusted: float
    detectable: float | None

    @property
    def difference(self) -> float:
        """The first minus the second."""
        return self.first - self.second


@dataclass(frozen=True)
class Comparison:
    """Two models on the same rows of the same tasks.

    `within_rows` is the interval of the mean difference over the rows and draws of these very
    tasks, `within` where tasks are drawn anew as well, which are one for a single task. `draws` are
    those of the shots. `needed` are about the rows, in all, that would show such a difference; None
    where no number would.
    """

    first: str
    second: str
    terms: Terms
    draws: int
    tasks: tuple[TaskDifference, ...]
    within_rows: Ends
    within: Ends
    needed: int | None

    @property
    def difference(self) -> float:
        """The first minus the second, in the mean over the tasks."""
        return float(np.mean([one.difference for one in self.tasks]))

    @property
    def rows(self) -> int:
        """The rows of all tasks."""
        return sum(one.rows for one in self.tasks)

    @property
    def outcome(self) -> Outcome:
        """What is shown of the first model: by its test for one task, by `within` for several."""
        low, high = self.within
        shown = self.tasks[0].p < 1 - LEVEL if len(self.tasks) == 1 else not low <= 0 <= high
        if not shown or self.difference == 0:
            return "cannot tell"
        return "better" if self.difference > 0 else "worse"

    @property
    def verdict(self) -> str:
        """One line: better, worse or cannot tell, by how much, and what it would take."""
        count, others = len(self.tasks), _others(self.terms, self.draws, tasks=True)
        over = "" if count == 1 else f" in the mean over {count} tasks"
        by = f"{_signed(self.difference)} points{over}, within {_within(self.within)} on {others}"
        if self.outcome != "cannot tell":
            return f"{self.first} is {self.outcome} than {self.second}: {by}"
        low, high = self.within_rows
        if count == 1 or low <= 0 <= high:
            return f"cannot tell {self.first} from {self.second}: {by}; {self._needs}"
        alone = _others(self.terms, self.draws)
        return (
            f"on these {count} tasks {self.first} is {'better' if low > 0 else 'worse'} than "
            f"{self.second}: {_signed(self.difference)} points in the mean, within "
            f"{_within(self.within_rows)} on {alone}; cannot tell of other tasks, within "
            f"{_within(self.within)} on {others}; {self._needs}"
        )

    @property
    def _needs(self) -> str:
        if self.needed is not None:
            rows = float(f"{self.needed:.2g}")
            return f"such a difference needs about {rows:.0f} rows, here are {self.rows}"
        if not self.difference:
            return "there is no difference that more rows would show"
        several = len(self.tasks) > 1
        others = " or ".join(
            [*(["more tasks"] if several else []), *(["more draws"] if self.draws > 1 else [])]
        )
        return f"more rows alone would not tell, {others} might"

    def as_json(self) -> dict[str, Any]:
        """Everything, for machines."""
        said = {"difference": self.difference, "outcome": self.outcome, "verdict": self.verdict}
        return {**asdict(self), **said}

    def report(self, width: int | None = None) -> str:
        """A table of the tasks, what it shows, and the verdict; prose no wider than `width`."""
        headers = ["", "metric", "rows", "A", "B", "A - B", "p", "shows"]
        wide, narrow = (_table(self._lines(joint), headers) for joint in ("+", "+\n"))
        table = wide if fits(wide, width) else narrow
        named = [f"A: {plain(self.first)}", f"B: {plain(self.second)}"]
        above = [*named, f"Under {plain(self.terms)}."]
        return _laid_out(above, table, self._says, width)

    def _lines(self, joint: str) -> list[list[str]]:
        names = [one.task for one in self.tasks]
        return [
            [
                plain(short_task(one.task, names)),
                joint.join(map(plain, one.metrics)),
                str(one.rows),
                points(100 * one.first),
                points(100 * one.second),
                f"{_signed(one.difference)} [{', '.join(map(_signed, one.within))}]",
                _p(one.adjusted),
                "" if one.detectable is None else points(100 * one.detectable),
            ]
            for one in self.tasks
        ]

    @property
    def _says(self) -> list[str]:
        tests = ", ".join(dict.fromkeys(_TESTS[one.test] for one in self.tasks))
        others = _others(self.terms, self.draws)
        legend = (
            f"Points (x100). [ ]: {100 * LEVEL:.0f} % interval on {others}, paired. "
            f"p: {tests}{', Holm over the tasks' if len(self.tasks) > 1 else ''}. shows: the "
            f"smallest difference that one test shows with a power of {100 * POWER:.0f} %."
        )
        mean = (
            f"Mean over {len(self.tasks)} tasks: {_signed(self.difference)}, within "
            f"{_within(self.within_rows)} on {others} of these tasks, {_within(self.within)} "
            "where tasks are drawn anew as well."
        )
        several = [mean] if len(self.tasks) > 1 else []
        return [
            legend,
            *_held(self.terms, self.draws),
            *several,
            f"Verdict: {plain(self.verdict)}.",
        ]

    def __str__(self) -> str:
        return self.report()


_TESTS: dict[TestName, str] = {
    "McNemar": "exact McNemar",
    "permutation": "permutation of rows",
    "bootstrap": "bootstrap of rows",
    "draws": "t of rows and draws",
}


@dataclass(frozen=True)
class Ranked:
    """A model among others: its mean score and rank over the tasks, 1 the best.

    `within` is the 95 % interval of the rank over rows, draws and tasks, `wins` the share of
    others, over all tasks, that it is better than.
    """

    model: str
    score: float
    rank: float
    within: Ends
    wins: float


@dataclass(frozen=True)
class Ranking:
    """Several models on the same rows of the same tasks, the highest mean score first.

    `groups` are runs of models in which no two can be told apart by their mean scores, over rows,
    draws and tasks, Holm over all pairs. A model may be of several. `leaders` are the first model
    and all that cannot be told from it.
    """

    terms: Terms
    draws: int
    models: tuple[Ranked, ...]
    groups: tuple[tuple[str, ...], ...]
    leaders: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """One line: who leads."""
        first, *others = self.leaders
        if not others:
            return f"{first} is better than all others"
        return f"cannot tell {first}, which is first, from {', '.join(others)}"

    def as_json(self) -> dict[str, Any]:
        """Everything, for machines."""
        return {**asdict(self), "verdict": self.verdict}

    def report(self, width: int | None = None) -> str:
        """A table of the models, what it shows, and the verdict; prose no wider than `width`."""
        lines = [
            [
                plain(one.model),
                points(100 * one.score),
                f"{one.rank:.2f} [{one.within[0]:.1f}, {one.within[1]:.1f}]",
                f"{100 * one.wins:.0f} %",
                self._letters(one.model),
            ]
            for one in self.models
        ]
        names = ", ".join(short_task(task, self.terms.tasks) for task in self.terms.tasks)
        under = f"Under {plain(self.terms)}, on {plain(names)}."
        table = _table(lines, ["", "mean", "rank", "wins", "ties"])
        return _laid_out([under], table, self._says, width)

    @property
    def _says(self) -> list[str]:
        others = _others(self.terms, self.draws, tasks=True)
        legend = (
            "mean: the score x100. rank: the mean over the tasks, 1 the best. [ ]: "
            f"{100 * LEVEL:.0f} % interval on {others}. wins: of all others on all tasks. "
            "ties: models that share a letter cannot be told apart by their mean (Holm over all "
            "pairs)."
        )
        held = _held(self.terms, self.draws, pairs=True)
        return [legend, *held, f"Verdict: {plain(self.verdict)}."]

    def __str__(self) -> str:
        return self.report()

    def _letters(self, model: str) -> str:
        """The groups that a model is of, as letters; beyond z as numbers."""
        places = [place for place, group in enumerate(self.groups) if model in group]
        marks = [chr(ord("a") + p) if p < 26 else str(p + 1) for p in places]
        return "".join(marks) if max(places) < 26 else " ".join(marks)


def _table(lines: Sequence[Sequence[str]], headers: Sequence[str]) -> str:
    align = ["left", *["right"] * (len(headers) - 1)]
    return tabulate(lines, headers, tablefmt="simple", disable_numparse=True, colalign=align)


def _laid_out(above: Sequence[str], table: str, below: Sequence[str], width: int | None) -> str:
    """A table between prose."""
    prose = [line if width is None else textwrap.fill(line, width) for line in below]
    return "\n".join([*above, "", table, "", *prose])


def _held(terms: Terms, draws: int, *, pairs: bool = False) -> list[str]:
    """What no interval is of."""
    alone = "One draw of shots: what others would say comes on top of all this."
    few = f"Fewer than {FEWEST_TASKS} tasks say little of other tasks."
    if pairs:
        few += " What these alone say of two models, a comparison of the two tells."
    single, count = bool(terms.shots) and draws < 2, len(terms.tasks)
    return [*([alone] if single else []), *([few] if 1 < count < FEWEST_TASKS else [])]


def _others(terms: Terms, draws: int, *, tasks: bool = False) -> str:
    """What is drawn anew: `other rows`, `other rows, draws and tasks`."""
    several = bool(terms.shots) and draws > 1, tasks and len(terms.tasks) > 1
    names = ["rows", *(name for name, is_ in zip(("draws", "tasks"), several, strict=True) if is_)]
    return f"other {' and '.join(filter(None, (', '.join(names[:-1]), names[-1])))}"


def _signed(difference: float) -> str:
    return points(100 * difference, "+")


def _within(ends: Ends) -> str:
    return f"{_signed(ends[0])} to {_signed(ends[1])}"


def _p(value: float) -> str:
    return f"{value:.3f}" if value >= 0.001 else "<0.001"
