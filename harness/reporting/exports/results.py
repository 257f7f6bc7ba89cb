"""Pure: records -> results by model, which every format writes in its own way."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from pathlib import Path

from harness.evaluation.records import Record
from harness.reporting.grid import reading_of
from harness.reporting.lines import Line, lines_of
from harness.reporting.names import told_apart
from harness.text import plain
from harness.types import Shots, Task

CORRELATIONS = ("matthews", "pearson", "spearman")
"""Metrics whose least value is -1; that of all others is 0."""
SEVERAL = ("ensemble", "ceiling")
"""Roles of what is not one model, which no other program can be told of as one."""
NAMES = {
    "accuracy": "Accuracy",
    "f1": "F1",
    "macro_f1": "Macro F1",
    "micro_f1": "Micro F1",
    "matthews": "Matthews correlation",
    "pearson": "Pearson correlation",
    "spearman": "Spearman correlation",
    "span_f1": "F1 of spans",
}


@dataclass(frozen=True)
class Result:
    """A record under one number of shots; scores between 0 and 1 (or -1 and 1)."""

    record: Record
    line: Line

    @property
    def reading(self) -> str:
        """The protocol with its options and shots."""
        return plain(reading_of(self.line))

    @property
    def task(self) -> str:
        return plain(self.line.name)

    @property
    def parts(self) -> dict[str, float]:
        """Each metric, its mean over draws."""
        return {plain(name): value / 100 for name, value in self.line.parts}

    @property
    def value(self) -> float:
        """The mean over metrics and draws."""
        return fsum(self.line.values) / len(self.line.values) / 100

    @property
    def deviation(self) -> float | None:
        """The standard deviation of `value` over draws (n - 1)."""
        values = [value / 100 for value in self.line.values]
        if len(values) < 2:
            return None
        mean = fsum(values) / len(values)
        return sqrt(fsum((value - mean) ** 2 for value in values) / (len(values) - 1))

    @property
    def interval(self) -> tuple[float, float] | None:
        """Where `value` would lie on other test rows."""
        ends = self.line.interval
        return None if ends is None else (ends[0] / 100, ends[1] / 100)


def results_of(records: Iterable[tuple[Path, Record]]) -> dict[str, list[Result]]:
    """By model, what was read of it; what is no single model is left out.

    Models of one name are told apart.
    """
    made = [
        Result(record, line)
        for path, record in records
        if record.role not in SEVERAL
        for line in lines_of([(str(path), record)])
    ]
    lines = [result.line for result in made]
    by_model: dict[str, list[Result]] = {}
    for result, name in zip(made, told_apart(lines, [line.model for line in lines]), strict=True):
        by_model.setdefault(plain(name), []).append(result)
    return {name: _once(results) for name, results in by_model.items()}


def _once(results: Sequence[Result]) -> list[Result]:
    """Each result once: a model may stand in the records for itself and as a reference."""
    first: dict[tuple[str, str, Shots], Result] = {}
    for one in results:
        first.setdefault((one.line.task, one.line.setting, one.line.shots), one)
    return [*first.values()]


def task_of(result: Result) -> Task | None:
    """The registered task of a result; a name in a record imports nothing."""
    from harness.registry import TASKS

    if result.line.name not in TASKS:
        return None
    return TASKS[result.line.name]
