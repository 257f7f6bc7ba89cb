"""Pure: lines -> those of each model, and what every format says of one in its own way.

Scores of exports are between 0 and 1 (or -1 and 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.reporting.boards.legend import noted
from harness.reporting.lines import Line, grouped
from harness.reporting.mixed import check_columns
from harness.reporting.names import experts_of, told_apart
from harness.text import plain

SEVERAL = ("ensemble", "ceiling")
"""Roles of what is not one model, which no other program knows as one."""
LOCAL = ("local folder", "generated", "None", "")
"""Sources of rows that are no repository of the Hub."""
MADE_ON_TEST = "transductive: the model was made with the scored rows"
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


def under(line: Line) -> str:
    """The protocol with its options and shots, and whether the rows that are scored were seen."""
    return plain(f"{line.setting}, transductive" if line.saw_the_scored else line.setting)


def note(line: Line) -> str:
    """What was seen beside the rows that are scored, '' if nothing."""
    return plain("; ".join([*noted(line), *([MADE_ON_TEST] if line.made_on_test else [])]))


def repository(line: Line) -> str:
    """The repository of the Hub that the test rows are from, '' if it was another place."""
    source = plain(line.source)
    return "" if source in LOCAL else source


def limit(line: Line) -> int | None:
    """How many rows there might have been at most, where there may have been more."""
    return line.limit if isinstance(line.limit, int) and line.rows >= line.limit else None


def parts(line: Line) -> dict[str, float]:
    """Each metric, its mean over draws."""
    return {plain(name): value / 100 for name, value in line.parts}


def filled(values: Mapping[str, object]) -> dict[str, object]:
    """Values without empty ones."""
    return {name: value for name, value in values.items() if value not in (None, "", "None")}


def digests(lines: Iterable[Line]) -> str:
    """The hashes of what was evaluated of a model: one for each head."""
    return plain(", ".join(dict.fromkeys(line.digest for line in lines)))


# By model ----------------------------------------------------------------------------------


def by_model(lines: Iterable[Line]) -> list[tuple[str, list[Line]]]:
    """By model, its lines, each once: a model may stand in the records for itself and as another's
    reference. What is no single model is left out.

    Models of one name are told apart: where they share a column as on boards, and else by what they
    are of. No model is made of the records of two. Raises BrokenRecord for one that was evaluated
    on a task in two ways.
    """
    known = [line for line in lines if line.role not in SEVERAL]
    names = dict(zip(map(id, known), told_apart(known, [one.model for one in known]), strict=True))
    found = []
    for alike in grouped(known, lambda line: plain(names[id(line)])).values():
        for name, model in _named(plain(names[id(alike[0])]), _models(alike)):
            check_columns(model)
            once = grouped(model, lambda line: (line.task, line.setting))
            found.append((name, [first for first, *_ in once.values()]))
    return found


def _models(lines: Sequence[Line]) -> list[list[Line]]:
    """The lines of one name by model.

    A digest is that of an encoder with the head of a task: of a merge that kept the heads of its
    experts there are several. That these are of one encoder is known by what was merged, and how;
    where that is not said, each is a model.
    """
    sources = {line.digest: line.made_of for line in lines if line.made_of}
    models: list[list[Line]] = []
    for alike in grouped(lines, lambda line: sources.get(line.digest, line.digest)).values():
        of_task = {(line.task, line.digest) for line in alike}
        several = len(of_task) > len({task for task, _ in of_task})
        models += grouped(alike, lambda line: line.digest).values() if several else [alike]
    return models


def _named(name: str, models: Sequence[list[Line]]) -> list[tuple[str, list[Line]]]:
    """Models with what they are called; of several, by their experts or by their weights."""
    if len(models) == 1:
        return [(name, models[0])]
    traits = [experts_of(model[0]) for model in models]
    if not all(traits) or len({*traits}) < len(models):
        traits = [model[0].digest[:8] for model in models]
    return [(f"{name} ({plain(t)})", model) for t, model in zip(traits, models, strict=True)]
