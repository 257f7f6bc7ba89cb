"""Pure: records -> results by model, which every format writes in its own way."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from math import fsum, sqrt
from pathlib import Path

from harness.evaluation.records import Record
from harness.reporting.boards.legend import noted
from harness.reporting.lines import Line, lines_of, made_of
from harness.reporting.names import experts_of, told_apart
from harness.text import plain
from harness.types import Task

SEVERAL = ("ensemble", "ceiling")
"""Roles of what is not one model, which no other program can be told of as one."""
LOCAL = ("local folder", "generated", "None", "")
"""Sources of rows that are no repository of the Hub."""
MADE_ON_TEST = "transductive: the model was made with the rows that are scored"
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
        return plain(self.line.setting)

    @property
    def marked_reading(self) -> str:
        """The reading, and whether the rows that are scored were seen."""
        return f"{self.reading}, transductive" if self.line.saw_the_scored else self.reading

    @property
    def note(self) -> str:
        """What was seen beside the rows that are scored, '' if nothing."""
        made = [MADE_ON_TEST] if self.line.made_on_test else []
        return plain("; ".join([*noted(self.line), *made]))

    @property
    def task(self) -> str:
        return plain(self.line.name)

    @property
    def repository(self) -> str:
        """The repository of the Hub that the rows were read from, '' if it was another place."""
        source = plain(self.record.dataset.get("source"))
        return "" if source in LOCAL else source

    @property
    def limit(self) -> int | None:
        """How many rows there might have been at most, where there may have been more."""
        limit = self.record.settings.get("limit")
        return int(limit) if limit is not None and self.line.rows >= limit else None

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


def results_of(records: Iterable[tuple[Path, Record]]) -> list[tuple[str, list[Result]]]:
    """By model, what was read of it; what is no single model is left out.

    Models of one name are told apart: where they share a column as on boards, and else by what they
    are of. No model is made of the records of two.
    """
    made = [
        Result(record, line)
        for path, record in records
        if record.role not in SEVERAL
        for line in lines_of([(str(path), record)])
    ]
    lines = [result.line for result in made]
    by_name: dict[str, list[Result]] = {}
    for result, name in zip(made, told_apart(lines, [line.model for line in lines]), strict=True):
        by_name.setdefault(plain(name), []).append(result)
    return [
        (called, _once(results))
        for name, alike in by_name.items()
        for called, results in _named(name, _models(alike))
    ]


def _models(results: Sequence[Result]) -> list[list[Result]]:
    """The results of one name by model.

    A digest is that of an encoder with the head of a task: of a merge that kept the heads of its
    experts there are several. That these are of one encoder is known by what was merged, and how;
    where that is not said, each is a model.
    """
    sources = {one.line.digest: known for one in results if (known := made_of(one.record))}
    models: list[list[Result]] = []
    for alike in _grouped(results, lambda one: sources.get(one.line.digest, one.line.digest)):
        of_task = {(one.line.task, one.line.digest) for one in alike}
        several = len(of_task) > len({task for task, _ in of_task})
        models += _grouped(alike, lambda one: one.line.digest) if several else [alike]
    return models


def _named(name: str, models: Sequence[list[Result]]) -> list[tuple[str, list[Result]]]:
    """Models with what they are called; of several, by their experts or by their weights."""
    if len(models) == 1:
        return [(name, models[0])]
    first = [model[0].line for model in models]
    experts = [experts_of(line) for line in first]
    known = all(experts) and len({*experts}) == len(models)
    traits = experts if known else [line.digest[:8] for line in first]
    return [(f"{name} ({plain(t)})", model) for t, model in zip(traits, models, strict=True)]


def _grouped(
    results: Iterable[Result], key: Callable[[Result], Hashable]
) -> Iterable[list[Result]]:
    groups: dict[Hashable, list[Result]] = {}
    for result in results:
        groups.setdefault(key(result), []).append(result)
    return groups.values()


def digests(results: Iterable[Result]) -> str:
    """The hashes of what was read of a model: one for each head."""
    return plain(", ".join(dict.fromkeys(one.line.digest for one in results)))


def _once(results: Sequence[Result]) -> list[Result]:
    """Each result once: a model may stand in the records for itself and as a reference."""
    first: dict[Hashable, Result] = {}
    for one in results:
        first.setdefault((one.line.task, one.line.setting), one)
    return [*first.values()]


def task_of(result: Result) -> Task | None:
    """The registered task of a result; a name in a record imports nothing."""
    from harness.registry import TASKS

    if result.line.name not in TASKS:
        return None
    return TASKS[result.line.name]
