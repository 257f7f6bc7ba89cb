"""What sentences of docs/what-we-found.md say in numbers, recomputed from the boards and records.

A number stands there between `<!-- CLAIM WORDS -->` and `<!-- / -->`, and is what the function
CLAIM of a folder of boards says of these words; `tables.py` writes it, and a test compares.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pandas

from harness import read_records
from harness.reporting.boards.board import Board, board_of
from harness.reporting.boards.credit import Credits
from harness.reporting.chosen import read_lines
from harness.reporting.difference import difference_of, in_percent, in_points
from harness.reporting.lines import Line, Setting
from harness.stats.tests import holm
from harness.text import points

ANCHOR = re.compile(r"<!-- ([a-z]+(?: [^<>]+?)?) -->([^<>]*)<!-- / -->")
COUNTS = ("none", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
SIGNIFICANT = 0.05
STSB, WNLI = "glue/stsb", "glue/wnli"


def said(text: str, place: Path) -> str:
    """A page with its numbers as they are now. Raises KeyError for a claim that is none."""

    def one(found: re.Match[str]) -> str:
        name, *words = shlex.split(found[1])
        return f"<!-- {found[1]} -->{CLAIMS[name](place, *words)}<!-- / -->"

    return ANCHOR.sub(one, text)


def counted(number: int) -> str:
    return COUNTS[number] if number < len(COUNTS) else str(number)


# Boards with resamples ---------------------------------------------------------------------


@cache
def known(place: Path, name: str) -> Board:
    """The board of committed records."""
    return board_of(read_lines([place / "records" / f"{name}.parquet"]))


def credited(place: Path, name: str) -> Credits:
    found = known(place, name).credits
    if found is None:
        raise SystemExit(f"the records of {name} in {place} have no credit")
    return found


def first(place: Path, name: str) -> str:
    """The merge that has the most credit, with how many are not significantly behind it."""
    if not credited(place, name).defined:
        return "no merge, as none has credit"
    best = credited(place, name).defined[0]
    behind = best.place[1] - 1 if best.place else 0
    others = {0: "all others are", 1: "one other is not"}.get(
        behind, f"{counted(behind)} others are not"
    )
    text = (
        f"`{best.name}`" if best.credit is None else f"`{best.name}` with {in_percent(best.credit)}"
    )
    return f"{text}; {others} significantly behind"


def pairs(place: Path, name: str) -> str:
    """How many pairs of merges differ significantly both by credit and under Current Eval."""
    return counted(credited(place, name).pairs)


def tau(place: Path, name: str) -> str:
    """Kendall's tau of the merges' scores under Current Eval and under a tuned head."""
    from scipy.stats import kendalltau

    each = [(one.current, one.tuned) for one in credited(place, name).merges]
    return f"{kendalltau(*zip(*each, strict=True)).statistic:.2f}"


def gap(place: Path, name: str, row: str, other: str, protocol: str) -> str:
    """How far a merge is above another under a protocol, with its interval, in points."""
    scores = known(place, name).scores
    at = scores.headlines[protocol]
    spot, than = (_lines(known(place, name), one, at) for one in (row, other))
    found = difference_of(spot, than)
    assert found is not None
    low, high = in_points(found)
    return f"{points(100 * found.point, '+')} (95 % CI {points(low)} to {points(high)})"


def part(place: Path, name: str, row: str) -> str:
    """How much of a merge's loss the head explains, with its interval."""
    board = known(place, name)
    shares = (one.share for one in board.shares if one.row == board.called.get(row, row))
    return next(shares, "") or "nothing that is significant"


def mean(place: Path, name: str, row: str, protocol: str) -> str:
    """The mean over tasks of a row of a board."""
    board = known(place, name)
    at = board.scores.headlines[protocol]
    cell = board.scores.row(board.called.get(row, row), at)[-1]
    assert cell is not None
    return points(cell.mean)


def _lines(board: Board, row: str, at: Setting) -> list[Line]:
    shown = board.called.get(row, row)
    return [line for task in board.tasks for line in board.scores.cells[shown, at, task].lines]


# Five topics -------------------------------------------------------------------------------


@cache
def merges(place: Path) -> pandas.DataFrame:
    """Means over the tasks of the board `protocols`, merges alone; columns as in its table."""
    from tables import BASE, EXPERTS, PROTOCOLS, board, means

    frame = board(place, "protocols")
    values = pandas.DataFrame({head: means(frame, of) for head, of in PROTOCOLS.items()})
    whole = values.drop([EXPERTS, *[row for row in values.index if "ceiling" in row]])
    return whole.rename(index={BASE: "base"})


def score(place: Path, row: str, column: str) -> str:
    """A mean over the five tasks."""
    return points(float(merges(place).loc[row, column]))


def ahead(place: Path, first: str, second: str) -> str:
    """For how many merges one protocol scores more than another."""
    of = merges(place).drop(index="base")
    return f"{int((of[first] > of[second]).sum())} of {len(of)}"


def rises(place: Path, second: str = "FT-Classifier", first: str = "Current") -> str:
    """The least and the most that a merge scores more under the second."""
    of = merges(place).drop(index="base")
    by = of[second] - of[first]
    return f"{by.min():.0f} to {by.max():.0f}"


def below(place: Path) -> str:
    """How many merges a tuned head lifts by less than it lifts the base."""
    by = merges(place)["FT-Classifier"] - merges(place)["Current"]
    return counted(int((by.drop("base") < by["base"]).sum()))


def firsts(place: Path, row: str, column: str) -> str:
    """On how many tasks a merge is first among all merges."""
    from tables import PROTOCOLS, board

    frame = board(place, "protocols")
    for key, value in PROTOCOLS[column].items():
        frame = frame[frame[key] == value]
    values = frame[frame.role == "merged"].pivot_table(index="name", columns="task", values="value")
    return counted(int((values.idxmax() == row).sum()))


def stratified(place: Path, row: str, protocol: str) -> str:
    """What drawing rows without stratification changes, with Welch's p over draws."""
    from scipy.stats import ttest_ind

    drawn = []
    for board in ("unstratified", "shots"):
        frame = read_records(place / "records" / f"{board}.parquet")
        frame = frame[(frame.protocol == protocol) & (frame.row == row) & (frame.shots == 5)]
        plain = ~frame.options.astype(str).str.contains('"paper"|"test"|"mean_masked"', regex=True)
        drawn.append(frame[plain].groupby("draw", observed=True).value.mean())
    change, p = (
        float(drawn[0].mean() - drawn[1].mean()),
        float(ttest_ind(*drawn, equal_var=False).pvalue),
    )
    return f"{points(change, '+')} (p = {p:.2g})"


# Stages before a merger --------------------------------------------------------------------


@cache
def gained(place: Path, stage: str) -> pandas.DataFrame:
    """The gains of a stage, by task and merger (without its options), with p adjusted by Holm."""
    frame = pandas.read_csv(place / "gains.csv")
    frame = frame[frame.premerge == stage].copy()
    frame["merger"] = frame.merger.str.partition(":")[0]
    frame["holm"] = holm([*frame.p.fillna(1)])
    return frame


def gains(place: Path, stage: str) -> str:
    """How many gains there are of a stage."""
    return str(len(gained(place, stage)))


def significant(place: Path, stage: str) -> str:
    """How many differences that a stage makes have a p below 0.05, each by itself."""
    return str(int((gained(place, stage).p < SIGNIFICANT).sum()))


def left(place: Path, stage: str, task: str = "") -> str:
    """How many of them Holm leaves, of all or of one task."""
    frame = gained(place, stage)
    kept = (frame.holm < SIGNIFICANT) & frame.task.str.startswith(task)
    return counted(int(kept.sum()))


def gain(place: Path, stage: str, merger: str, *without: str) -> str:
    """The mean gain over the tasks of GLUE, but for some."""
    frame = gained(place, stage)
    frame = frame[(frame.merger == merger) & frame.task.str.startswith("glue/")]
    return points(
        float(frame[~frame.task.isin([f"glue/{one}" for one in without])].gain.mean()), "+"
    )


def alone(place: Path, merger: str, *without: str) -> str:
    """The mean score of a merger over the tasks of GLUE, but for some."""
    from tables import board

    frame = board(place, "premerge")
    frame = frame[
        (frame.role == "merged") & (frame.premerge == "") & frame.task.str.startswith("glue/")
    ]
    frame = frame[frame.merger.str.partition(":")[0] == merger]
    return points(float(frame[~frame.task.isin([f"glue/{one}" for one in without])].value.mean()))


# Emotions ----------------------------------------------------------------------------------


@cache
def singles(place: Path, board: str) -> pandas.DataFrame:
    """Scores of single experts on the test sets of a board under Current Eval, and of the rest."""
    frame = pandas.read_csv(place / board / "board.csv", keep_default_na=False)
    return frame[(frame.protocol == "current") & (frame.split == "test")]


def others(place: Path) -> str:
    """The mean of the experts of other corpora, on each of four."""
    frame = singles(place, "emotion")
    return points(float(frame[frame.role == "single"].value.mean()))


def outside(place: Path) -> str:
    """How many of the single experts are ahead of every merge out of their domains."""
    means = singles(place, "emotion-ood").groupby(["role", "model"]).value.mean()
    best = means["merged"].max()
    return f"{counted(int((means['single'] > best).sum()))} of {counted(len(means['single']))}"


CLAIMS: dict[str, Callable[..., str]] = {
    one.__name__: one
    for one in (
        *(first, pairs, tau, gap, part, mean),
        *(score, ahead, rises, below, firsts, stratified),
        *(gains, significant, left, gain, alone, others, outside),
    )
}
