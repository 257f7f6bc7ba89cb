"""Pure: lines -> the lines of each model, and the values of a line that all formats share.

Scores in exports are fractions, from 0 (correlations: -1) to 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter

from harness.reporting.boards.legend import line_notes
from harness.reporting.lines import Line, grouped
from harness.reporting.mixed import check_columns
from harness.reporting.names import distinct_names, experts_of
from harness.text import plain

SEVERAL = ("ensemble", "ceiling")
"""Roles that are not a single model, and are left out of exports."""
LOCAL = ("local folder", "generated", "None", "")
"""Sources of rows that are not a repository on the Hub."""
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


def setting_text(line: Line) -> str:
    """The protocol with its options and shots; `transductive` if the scored rows were used."""
    return plain(f"{line.setting}, transductive" if line.saw_the_scored else line.setting)


def note(line: Line) -> str:
    """The notes on the rows that the protocol or the model adapted to; '' if there are none."""
    return plain("; ".join([*line_notes(line), *([MADE_ON_TEST] if line.made_on_test else [])]))


def repository(line: Line) -> str:
    """The repository on the Hub that the test rows are from; '' for any other source."""
    source = plain(line.source)
    return "" if source in LOCAL else source


def limit(line: Line) -> int | None:
    """The limit on the number of test rows; None if there was none or it was not reached."""
    return line.limit if isinstance(line.limit, int) and line.rows >= line.limit else None


def parts(line: Line) -> dict[str, float]:
    """The mean over draws of each metric."""
    return {plain(name): value / 100 for name, value in line.parts}


def filled(values: Mapping[str, object]) -> dict[str, object]:
    """The values that are not empty."""
    return {name: value for name, value in values.items() if value not in (None, "", "None")}


def digests(lines: Iterable[Line]) -> str:
    """The digests of a model, joined: one for each head that it was evaluated with."""
    return plain(", ".join(dict.fromkeys(line.digest for line in lines)))


# By model ----------------------------------------------------------------------------------


def by_model(lines: Iterable[Line]) -> list[tuple[str, list[Line]]]:
    """The name and the lines of each single model; a line that is also a reference counts once.

    Models of one name get different names: as on boards where they share a column, otherwise by
    their experts or weights. Lines of different models are never joined. Raises BrokenRecord for a
    model that was evaluated on a task in two ways.
    """
    single = [line for line in lines if line.role not in SEVERAL]
    names = map(plain, distinct_names(single, [line.model for line in single]))
    models = []
    for shared, pairs in grouped(zip(names, single, strict=True), itemgetter(0)).items():
        for name, model in _named(shared, _models([line for _, line in pairs])):
            check_columns(model)
            once = grouped(model, lambda line: (line.task, line.setting))
            models.append((name, [first for first, *_ in once.values()]))
    return models


def _models(lines: Sequence[Line]) -> list[list[Line]]:
    """The lines of one name, grouped by model.

    A digest is of an encoder with the head of a task, so a merge with kept heads has several. Its
    digests are joined by its base, experts and method (`made_of`); where these are unknown, each
    digest is a model.
    """
    sources = {line.digest: line.made_of for line in lines if line.made_of}
    models: list[list[Line]] = []
    for alike in grouped(lines, lambda line: sources.get(line.digest, line.digest)).values():
        of_task = {(line.task, line.digest) for line in alike}
        several = len(of_task) > len({task for task, _ in of_task})
        models += grouped(alike, lambda line: line.digest).values() if several else [alike]
    return models


def _named(name: str, models: Sequence[list[Line]]) -> list[tuple[str, list[Line]]]:
    """Models with their names; several are distinguished by their experts or their weights."""
    if len(models) == 1:
        return [(name, models[0])]
    traits = [experts_of(model[0]) for model in models]
    if not all(traits) or len({*traits}) < len(models):
        traits = [model[0].digest[:8] for model in models]
    return [(f"{name} ({plain(t)})", model) for t, model in zip(traits, models, strict=True)]
