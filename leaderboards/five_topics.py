"""Claims about boards under every protocol, most of them about the five topics of `protocols`."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pandas
from frames import (
    BASE,
    EXPERTS,
    PROTOCOLS,
    board,
    counted,
    each_task,
    means,
    records_of,
    task_of,
)
from scipy.stats import ttest_ind

from harness.text import points


@cache
def merges(place: Path, name: str = "protocols") -> pandas.DataFrame:
    """Means over the tasks of a board: merges and base, by those columns of a table that it has."""
    frame = board(place, name)
    columns = {head: of for head, of in PROTOCOLS.items() if {*of} <= {*frame}}
    values = pandas.DataFrame({head: means(frame, of) for head, of in columns.items()})
    whole = values.drop([EXPERTS, *[row for row in values.index if "ceiling" in row]])
    return whole.rename(index={BASE: "base"})


def score(place: Path, row: str, column: str) -> str:
    """The score of a row in the mean over the five tasks."""
    return points(float(merges(place).loc[row, column]))


def ahead(place: Path, first: str, second: str, name: str = "protocols") -> str:
    """For how many merges of a board the first protocol gives a higher score than the second."""
    of = merges(place, name).drop(index="base")
    return f"{int((of[first] > of[second]).sum())} of {len(of)}"


def rises(place: Path, second: str = "FT-Classifier", first: str = "Current") -> str:
    """The least and the most that a merge scores more under `second` than under `first`."""
    of = merges(place).drop(index="base")
    by = of[second] - of[first]
    return f"{by.min():.0f} to {by.max():.0f}"


def merged(place: Path) -> str:
    """How many merges the board `protocols` has."""
    return str(len(merges(place)) - 1)


def lifts(place: Path, row: str, column: str) -> str:
    """How much more a row scores under a protocol than under Current Eval."""
    return points(float(merges(place).loc[row, column] - merges(place).loc[row, "Current"]), "+")


def exceptions(place: Path, first: str, second: str) -> str:
    """The merges that score more under the first protocol than under the second."""
    of = merges(place).drop(index="base")
    return " and ".join(f"`{name}`" for name in of.index[of[first] > of[second]]) or "none"


@cache
def mapped(place: Path, transform: str) -> pandas.Series[float]:
    """Means over the tasks of `protocols` under a probe fitted to the test rows."""
    column = {"protocol": "probe", "with rows": "test", "with transform": transform}
    found = means(board(place, "protocols"), column).drop(EXPERTS)
    return found[[name for name in found.index if "ceiling" not in name]].rename({BASE: "base"})


def transformed(place: Path, row: str, transform: str) -> str:
    """The score of a row under a map of its features, in the mean over tasks."""
    return points(float(mapped(place, transform)[row]))


def recovered(place: Path, transform: str) -> str:
    """The least and the largest share of a merge's loss that a map recovers, Iso's left out."""
    current = merges(place)["Current"].drop("base")
    part = (mapped(place, transform).drop("base") - current) / (_experts(place) - current)
    part = part[~part.index.str.startswith("iso")]
    return f"{100 * part.min():.0f} to {100 * part.max():.0f} %"


def farthest(place: Path, transform: str) -> str:
    """How far the lowest of the merges is from the experts under a map of its features."""
    return points(_experts(place) - float(mapped(place, transform).drop("base").min()))


def _experts(place: Path) -> float:
    """The mean over the five tasks of the experts."""
    return float(means(board(place, "protocols"), PROTOCOLS["Current"])[EXPERTS])


def below(place: Path) -> str:
    """How many merges a tuned head lifts by less than it lifts the base."""
    by = merges(place)["FT-Classifier"] - merges(place)["Current"]
    return counted(int((by.drop("base") < by["base"]).sum()))


def fewer(place: Path, second: str, first: str) -> str:
    """On which tasks some merges score less under the second protocol, and how many."""
    than, of = (
        each_task(board(place, "protocols"), {"role": "merged", **PROTOCOLS[one]})
        for one in (first, second)
    )
    counts = (of < than).sum()
    each = [f"{count} of {len(of)} on {task_of(name)}" for name, count in counts.items() if count]
    return " and ".join(each) or "none"


def firsts(place: Path, row: str, column: str) -> str:
    """On how many tasks a merge scores highest of all merges."""
    values = each_task(board(place, "protocols"), {"role": "merged", **PROTOCOLS[column]})
    return counted(int((values.idxmax() == row).sum()))


def stratified(place: Path, row: str, protocol: str) -> str:
    """The change of a score when rows are drawn unstratified, with Welch's p over draws."""
    drawn = []
    for name in ("unstratified", "shots"):
        frame = records_of(place, name)
        frame = frame[(frame.protocol == protocol) & (frame.row == row) & (frame.shots == 5)]
        plain = ~frame.options.astype(str).str.contains('"paper"|"test"|"mean_masked"', regex=True)
        drawn.append(frame[plain].groupby("draw", observed=True).value.mean())
    change = float(drawn[0].mean() - drawn[1].mean())
    return f"{points(change, '+')} (p = {ttest_ind(*drawn, equal_var=False).pvalue:.2g})"


SAID = (
    *(score, ahead, rises, merged, lifts, exceptions, below, fewer, firsts, stratified),
    *(transformed, recovered, farthest),
)
