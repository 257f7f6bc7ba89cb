"""Differences between protocols, or options of one: `python leaderboards/differences.py [FOLDER]`.

Writes FOLDER/differences.csv (FOLDER: `leaderboards`) from the records of the studies `shots` and
`protocols` in FOLDER/records, which must keep resamples. A line has the paired difference in
points, averaged over five tasks, with its 95 % confidence interval over test units and draws.
`harness compare` compares two models under one protocol; here also one model under two.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import sheets

from harness import HarnessError, Record
from harness.data.shots import counted
from harness.evaluation.records import LATER, read_records
from harness.evaluation.resamples import estimate_of
from harness.files import write_csv
from harness.reporting.difference import in_points
from harness.stats.estimate import Estimate, mean_of, minus
from harness.types import ALL, Shots

STUDIES = ("shots", "protocols")
MERGES = ("average", "ties", "tsv")
BASE, EXPERTS = "all-MiniLM-L6-v2", "experts"
COLUMNS = ("first", "second", "difference", "low", "high")


class Evaluated(NamedTuple):
    """A model (or the expert of each task) under a protocol with these of its options."""

    study: str
    model: str
    protocol: str
    shots: Shots | None = None
    options: Mapping[str, Any] = {}

    def __str__(self) -> str:
        options = ",".join(f"{name}={value}" for name, value in self.options.items())
        shots = "" if self.shots is None else f", {counted(self.shots)}"
        return f"{self.model} under {self.protocol}{options and f':{options}'}{shots}"

    def has(self, record: Record) -> bool:
        given = {**LATER.get(record.protocol, {}), **record.options}
        mine = record.role == "expert" if self.model == EXPERTS else record.model == self.model
        same = all(given.get(name) == value for name, value in self.options.items())
        return mine and record.protocol == self.protocol and same


def pairs() -> Iterator[tuple[Evaluated, Evaluated]]:
    """The differences that docs/what-we-found.md quotes."""
    test = {"rows": "test"}
    clean, paper = ({"variant": one, "rows": "shots"} for one in ("clean", "paper"))
    head, hidden = ({"features": one} for one in ("last_linear", "mean_masked"))
    experts = Evaluated("shots", EXPERTS, "current")
    for model in MERGES:
        tuned = Evaluated("shots", model, "ft-classifier", ALL, clean)
        yield experts, tuned
        yield Evaluated("shots", model, "linear-probe", ALL, head), tuned
        one = Evaluated("shots", model, "ft-classifier", 1, clean)
        yield one, Evaluated("shots", model, "linear-probe", 1, head)
        probed = Evaluated("shots", model, "linear-probe", ALL, hidden)
        yield probed, probed._replace(model=BASE)
    for model in (*MERGES, BASE):
        on_test = Evaluated("shots", model, "ft-classifier", None, test)
        yield on_test, Evaluated("protocols", model, "surgery", None, test)
        dropped = Evaluated("shots", model, "ft-classifier", 5, paper)
        yield dropped, dropped._replace(options=clean)
        for protocol in ("knn", "linear-probe"):
            for shots in (5, ALL):
                pooled = Evaluated("shots", model, protocol, shots, head)
                yield pooled._replace(options=hidden), pooled


def by_task(of: Evaluated, records: list[Record]) -> dict[str, Estimate]:
    """Its score on every task."""
    scores = {}
    for record in filter(of.has, records):
        one = estimate_of(record, of.shots)
        if one is None:
            raise HarnessError(
                f"the record of {of} on {record.task} keeps no resamples; evaluate it again"
            )
        scores[record.task] = one
    return scores


def rows(folder: Path) -> Iterator[dict[str, str]]:
    """A row for every pair."""
    places = {name: folder / name for name in STUDIES}
    known = {name: read_records([place]) for name, place in places.items()}
    for pair in pairs():
        read = [by_task(one, known[one.study]) for one in pair]
        if not read[0] or read[0].keys() != read[1].keys():
            said = " and ".join(
                f"{of} on {', '.join(on) or 'no task'}" for of, on in zip(pair, read, strict=True)
            )
            raise HarnessError(
                f"{folder} has records of {said}; expected the same tasks, one or more"
            )
        apart = mean_of([minus(read[0][task], read[1][task]) for task in read[0]])
        numbers = zip(COLUMNS[2:], (100 * apart.point, *in_points(apart)), strict=True)
        told = {name: f"{value:.2f}" for name, value in numbers}
        yield {"first": str(pair[0]), "second": str(pair[1]), **told}


if __name__ == "__main__":
    with sheets.folder_with(*(f"records/{study}" for study in STUDIES)) as place:
        write_csv(place / "differences.csv", COLUMNS, rows(place / "records"))
