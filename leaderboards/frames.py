"""The boards that pages are about: their lines as data frames, and text for Markdown tables."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

import pandas

from harness import read_records
from harness.text import points

SETTINGS = {
    "topics": "five topics",
    "glue": "five tasks of GLUE",
    "emotions": "four corpora of emotions",
    "domains": "entities of three domains",
    "seeds": "seeds of one task",
}
"""Settings by the name of their board with the most merges."""
OTHER_BASES = {
    "topics": ("minilm-l6", "granite", "gte", "distilbert", "mpnet"),
    "glue": ("granite", "distilbert"),
    "emotions": ("granite", "distilbert"),
    "domains": ("granite", "distilbert"),
    "seeds": ("granite", "distilbert"),
}
"""Bases on which settings were repeated, with three sets of experts each: the board of topics on
granite is `topics-granite`."""
TUNED = ("topics", "emotions", "domains")
"""Settings with a board of mergers with an option chosen on held-out rows, `topics-tuned`."""
GROUPS = {one: (one, *(f"{one}-{base}" for base in bases)) for one, bases in OTHER_BASES.items()}
BOARDS = {name: SETTINGS[one] for one, names in GROUPS.items() if one != "seeds" for name in names}
"""Boards whose tasks have one scale, so that their means have credit."""
GROUPS["all"] = (*BOARDS,)
"""Groups of boards: a claim names all of one as `@topics`; `!topics` behind it leaves one out."""
OUT_OF_DOMAIN = dict.fromkeys(
    (f"{name}-out" for name in GROUPS["emotions"]), "emotions out of domain"
)
EXPERTS = "experts, each on its own task"
BASE = "base under the experts' heads"
PROTOCOLS: Mapping[str, Mapping[str, str]] = {
    "Current": {"protocol": "current"},
    "KNN": {"protocol": "knn", "with rule": "mean", "with features": "last_linear"},
    "FT-Classifier": {"protocol": "ft-classifier"},
    "linear probe": {"protocol": "linear-probe", "with features": "last_linear"},
    "orthogonal probe, test rows": {
        "protocol": "probe",
        "with transform": "orthogonal",
        "with rows": "test",
    },
    "Surgery": {"protocol": "surgery", "with rows": "shots"},
    "Surgery, test rows": {"protocol": "surgery", "with rows": "test"},
}


def board(place: Path, name: str) -> pandas.DataFrame:
    """The lines of a board, with the options of protocols as columns of their own, `with NAME`.

    `name` is the name of a row in tables: that of its role, or of its method.
    """
    frame = pandas.read_parquet(place / name / "board.parquet")
    frame = frame.astype(dict.fromkeys(frame.select_dtypes("category"), object))
    options = pandas.DataFrame([json.loads(said) for said in frame.pop("options")])
    frame = frame.join(options.add_prefix("with "))
    roles = {"base": BASE, "expert": EXPERTS}
    frame["name"] = [roles.get(role, row) for role, row in zip(frame.role, frame.row, strict=True)]
    return frame


@cache
def records_of(place: Path, name: str) -> pandas.DataFrame:
    """The committed records of a board, with their draws and recipes."""
    return read_records(place / "records" / f"{name}.parquet")


def means(frame: pandas.DataFrame, column: Mapping[str, str]) -> pandas.Series[float]:
    """The mean over tasks for each name, of the lines that have the values in `column`.

    Several experts of one task are averaged first; a name without a score on every task gets NaN.
    """
    return each_task(frame, column).mean(axis=1, skipna=False)


def each_task(frame: pandas.DataFrame, column: Mapping[str, str]) -> pandas.DataFrame:
    """The score of each name on each task, of the lines that have the values in `column`."""
    for key, value in column.items():
        frame = frame[frame[key] == value]
    return frame.pivot_table(index="name", columns="task", values="value")


def outside(place: Path) -> tuple[pandas.Series[float], pandas.Series[float]]:
    """Mean scores on corpora that no expert was trained on: of experts by their corpus, ascending,
    and of merges without other stages by their merger."""
    frame = board(place, "emotions-out")
    means = frame[frame.role == "single"].groupby("name").value.mean()
    alone = frame[(frame.role == "merged") & (frame.premerge == "")]
    return (
        means.groupby(lambda name: name.rpartition("-")[0]).mean().sort_values(),
        alone.groupby(alone.merger.str.partition(":")[0]).value.mean(),
    )


# Shown -----------------------------------------------------------------------------------


COUNTS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table with the first column aligned left and all others right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float, sign: str = "") -> str:
    return "" if pandas.isna(value) else points(value, sign)


def counted(number: int) -> str:
    return COUNTS[number] if number < len(COUNTS) else str(number)


def task_of(name: object) -> str:
    """A task without its group and split."""
    return str(name).partition("@")[0].rpartition("/")[2]
