"""The boards of committed records, and the estimates and differences behind claims."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from statistics import fmean

from frames import BOARDS, OUT_OF_DOMAIN, records_of

from harness.reporting.bases import by_base
from harness.reporting.boards.board import Board, board_of
from harness.reporting.boards.credit import Credits
from harness.reporting.boards.tested import difference_of_cells
from harness.reporting.chosen import read_lines
from harness.reporting.difference import Difference, by_task, difference_of, significant_pairs
from harness.reporting.grid import GridCell
from harness.reporting.lines import Line, Setting
from harness.stats.estimate import Estimate, mean_of, minus
from harness.stats.tests import holm, p_value

PAIRS = Path(__file__).parent / "pairs" / "bases.parquet"
SIGNIFICANT = 0.05
METHODS = {
    "RegMean": "regmean:examples=256",
    "Fisher": "fisher:estimator=empirical,examples=256",
    "average": "average",
}
LED = (("RegMean", "average"), ("RegMean", "Fisher"), ("Fisher", "average"))


@cache
def known(place: Path, name: str) -> Board:
    """The board of the records of this name."""
    return board_of(read_lines([place / "records" / f"{name}.parquet"]))


@cache
def pairs_of_bases() -> Mapping[str, Board]:
    """The board of pairs of experts for each base, always from the committed `pairs`."""
    return {base: board_of(of) for base, of in by_base(read_lines([PAIRS])).items()}


def credited(place: Path, name: str) -> Credits:
    """The credits of the merges of a board. Exits if it has none."""
    found = known(place, name).credits
    if found is None:
        raise SystemExit(f"the records of {name} in {place} have no credit")
    return found


@cache
def gains_of_base(place: Path, names: tuple[str, ...]) -> list[Difference]:
    """How far a tuned head is above the experts' heads on each board's base, Holm over these."""
    sides = (
        (known(place, name), ("base@ft-classifier, 5 shots", "base@current")) for name in names
    )
    each = [difference_of(*(under(board, one) for one in both)) for board, both in sides]
    found = [one for one in each if one is not None]
    assert len(found) == len(names)
    return judged(found)


def judged(each: Sequence[Estimate]) -> list[Difference]:
    """The differences in points, with significance by Holm over all of them."""
    adjusted = holm([p_value(one) for one in each])
    return [
        Difference(100 * one.point, one, p < SIGNIFICANT)
        for one, p in zip(each, adjusted, strict=True)
    ]


def under(board: Board, said: str) -> list[Line]:
    """The lines of `ROW@SETTING`: of a method, the `base`, or the `experts` on their own tasks."""
    row, _, setting = said.partition("@")
    roles = {"base": "base", "experts": "expert"}
    (at,) = (one for one in board.scores.settings if str(one) == setting)
    if row not in roles:
        return lines_of_row(board, row, at)
    every = (line for lines in board.scores.lines_of_row.values() for line in lines)
    return [line for line in every if line.role == roles[row] and line.setting == at]


@cache
def led(place: Path) -> Mapping[tuple[str, str], Mapping[tuple[str, str], Difference]]:
    """The differences between RegMean, Fisher and the average, by board and protocol.

    Significance by Holm over all differences under a protocol.
    """
    each = {
        (name, at): [between_rows(place, name, METHODS[a], METHODS[b], at) for a, b in LED]
        for name in (*BOARDS, *OUT_OF_DOMAIN)
        for at in ("current", "ft-classifier")
        if at in known(place, name).scores.headlines
    }
    made = {
        at: iter(judged([one for (_, of), found in each.items() if of == at for one in found]))
        for at in ("current", "ft-classifier")
    }
    # each board takes its next three: zip stops at the end of LED, before it takes a fourth
    return {(name, at): dict(zip(LED, made[at], strict=False)) for name, at in each}


@cache
def staged(place: Path, name: str, protocol: str) -> Mapping[tuple[str, str], Difference | None]:
    """What a stage before a merger changes, by (merger, stage); None if no score changes.

    Significance by Holm over all mergers with this stage on the board.
    """
    board = known(place, name)
    at, column = board.scores.headlines[protocol], board.scores.columns[-1]
    return {
        (one.merger, "+".join(one.premerge)): board.gained.get(
            (board.joint_names.get(one.method, one.method), at, column)
        )
        for one in board.lines
        if one.role == "merged" and one.premerge
    }


def changes_of(
    place: Path, name: str, stage: str, protocol: str
) -> Mapping[str, Difference | None]:
    """What one stage changes on a board in the mean over tasks, by merger."""
    found = staged(place, name, protocol).items()
    return {merger: one for (merger, which), one in found if which == stage}


@cache
def by_stage(place: Path, name: str, protocol: str) -> Mapping[str, Mapping[str, Difference]]:
    """What the stage before a merger changes, by merge and task, without tasks where it is nothing.

    Significance by Holm over the changes on a task.
    """
    board = known(place, name)
    at = board.scores.headlines[protocol]
    found: dict[str, dict[str, Difference]] = {}
    for one in board.lines:
        row = board.joint_names.get(one.method, one.method)
        if one.role == "merged" and (row, at, one.task) in board.gained:
            found.setdefault(one.method, {})[one.task] = board.gained[row, at, one.task]
    return found


def changes_on_tasks(place: Path, name: str, stage: str, protocol: str) -> list[Difference]:
    """What one stage changes on each task of a board."""
    each = by_stage(place, name, protocol).items()
    return [one for method, of in each if method.startswith(f"{stage}[") for one in of.values()]


def changes(place: Path, stage: str, protocol: str, names: Iterable[str]) -> list[Difference]:
    """What one stage changes on several boards, in the mean over tasks."""
    return [one for *_, one in changes_by_merger(place, stage, protocol, names)]


def changes_by_merger(
    place: Path, stage: str, protocol: str, names: Iterable[str]
) -> Iterator[tuple[str, str, Difference]]:
    """What one stage changes, with the board and the merger of each change."""
    for name in names:
        for merger, one in changes_of(place, name, stage, protocol).items():
            if one:
                yield name, merger, one


@cache
def favoured(place: Path, name: str, protocol: str) -> Mapping[str, tuple[Estimate, Estimate]]:
    """What `procrustes` changes on the task of its reference (the first expert), and on the others.

    By merger; the latter is the mean over the other tasks.
    """
    board = known(place, name)
    merges = {(one.merger, one.premerge): one for one in board.lines if one.role == "merged"}
    task_of = {one.digest: one.task for one in board.lines if one.role == "expert"}
    found = {}
    for (merger, stages), one in merges.items():
        if stages == ("procrustes",):
            both = one.method, merges[merger, ()].method
            turned, plain = lines_under(place, name, protocol, *both)
            each = by_task(turned, plain)
            assert each is not None, f"{merger} on {name} cannot be paired"
            tasks = sorted({line.task for line in turned})
            changes = dict(zip(tasks, map(minus, *each), strict=True))
            on_it = changes.pop(task_of[one.experts[0][1]])
            found[merger] = on_it, mean_of([*changes.values()])
    return found


def merges_of(place: Path, name: str) -> list[str]:
    """The merges among the credits of a board, also those whose credit is not defined."""
    return [one.name for one in credited(place, name).merges]


@cache
def chosen(place: Path, name: str) -> dict[str, tuple[str, list[str]]]:
    """For each merger with a chosen option: the name of its row, and the chosen values.

    By the name without `(... tuned)`; values are in the order of the sets of experts.
    """
    frame = records_of(place, name)
    tuned = frame[frame.row.str.endswith(" tuned)")].drop_duplicates(["row", "set"])
    found = {}
    for called, of in tuned.sort_values("set").groupby("row", observed=True):
        values = [*chain.from_iterable(json.loads(one)["tuned"].values() for one in of.recipe)]
        found[str(called).partition(" (")[0]] = str(called), [f"{value:g}" for value in values]
    return found


def credits_of(board: Board) -> dict[str, float]:
    """The credit of each method's merge, where it is defined."""
    assert board.credits
    merges = {one.name: one.credit for one in board.credits.merges if one.credit}
    methods = dict.fromkeys(one.method for one in board.lines if one.role == "merged")
    found = {method: merges.get(board.joint_names.get(method, method)) for method in methods}
    return {method: one.point for method, one in found.items() if one is not None}


@cache
def plain(place: Path, name: str, of: str) -> dict[str, float]:
    """Credit, or the mean score under protocol `of`, of each merger without a stage before it."""
    board = known(place, name)
    alone = dict.fromkeys(
        one.method for one in board.lines if one.role == "merged" and not one.premerge
    )
    if of == "credit":
        credited(place, name)  # exits if there is none
        return {method: one for method, one in credits_of(board).items() if method in alone}
    cells = {method: cell_of(place, name, method, of) for method in alone}
    return {method: cell.mean for method, cell in cells.items() if cell is not None}


def better(
    place: Path, name: str, protocol: str, rows: Sequence[str]
) -> dict[tuple[str, str], str]:
    """The pairs of rows of a board that differ significantly, by Holm over these, with the better.

    A pair has the order of `rows`.
    """
    board = known(place, name)
    estimates = by_task(*lines_under(place, name, protocol, *rows))
    assert estimates is not None
    prior = board.priors[board.scores.headlines[protocol], board.scores.columns[-1]]
    found = significant_pairs(estimates, prior).items()
    return {(rows[a], rows[b]): rows[at] for (a, b), at in found}


@cache
def turned(place: Path, name: str) -> list[bool]:
    """For each pair of plain mergers that differs significantly both under Current Eval and under a
    tuned head: whether these put it in opposite orders."""
    rows = [*plain(place, name, "current")]
    own, tuned = (better(place, name, at, rows) for at in ("current", "ft-classifier"))
    return [own[pair] != tuned[pair] for pair in own.keys() & tuned.keys()]


def losses(place: Path, protocol: str, names: Iterable[str]) -> list[tuple[float, float]]:
    """For each task of the boards: the expert less the base under a tuned head, and the expert less
    the mean of the plain mergers under a protocol."""
    found = []
    for name in names:
        board = known(place, name)
        current, tuned = (board.scores.headlines[one] for one in ("current", "ft-classifier"))
        at = board.scores.headlines[protocol]
        rows = [board.joint_names.get(one, one) for one in plain(place, name, "current")]
        for task in board.tasks:
            experts = board.scores.cells[experts_of(place, name), current, task].mean
            above = experts - board.scores.cells["base", tuned, task].mean
            lost = experts - fmean(board.scores.cells[r, at, task].mean for r in rows)
            found.append((above, lost))
    return found


def between_rows(
    place: Path, name: str, row: str, other: str, protocol: str, task: str = ""
) -> Estimate:
    """How far a merge is above another under a protocol, in the mean or on one `task`."""
    board = known(place, name)
    at, column = board.scores.headlines[protocol], column_of(board, task)
    rows = (board.joint_names.get(one, one) for one in (row, other))
    first, second = (board.scores.cell(one, at, column) for one in rows)
    assert first is not None
    assert second is not None
    found = difference_of_cells(first, second, board.priors[at, column]).paired
    assert found is not None
    return found


def column_of(board: Board, task: str) -> str:
    """The column of a task, given the start of its name; without one, the column of the mean."""
    columns = board.scores.columns
    return next((one for one in columns if task and one.startswith(task)), columns[-1])


def over_sets(place: Path, name: str, row: str, protocol: str) -> list[float]:
    """The mean of a row over the tasks of a board, in each of its sets of experts."""
    cell = cell_of(place, name, row, protocol)
    assert cell is not None
    return [*cell.experts]


def base_of(place: Path, name: str) -> str:
    """The name of the base of a board's merges."""
    return next(Path(one.base).name for one in known(place, name).lines if one.base)


def experts_of(place: Path, name: str) -> str:
    """The name of the row of a board that has the experts, each on its own task."""
    rows = known(place, name).scores.rows
    return next(one for one in ("expert of the task", "experts, mean") if one in rows)


def mean_of_row(place: Path, name: str, row: str, protocol: str) -> float:
    """The score of a row of a board, in the mean over its tasks."""
    cell = cell_of(place, name, row, protocol)
    assert cell is not None
    return cell.mean


def cell_of(place: Path, name: str, row: str, protocol: str) -> GridCell | None:
    """The cell of a row of a board in the mean over tasks, if it has one."""
    board = known(place, name)
    return board.scores.row(board.joint_names.get(row, row), board.scores.headlines[protocol])[-1]


def lines_under(place: Path, name: str, protocol: str, *rows: str) -> list[list[Line]]:
    """The lines of each of some rows of a board under a protocol."""
    board = known(place, name)
    return [lines_of_row(board, row, board.scores.headlines[protocol]) for row in rows]


def lines_of_row(board: Board, row: str, at: Setting) -> list[Line]:
    """The lines of one row under one setting, in the order of the tasks."""
    shown = board.joint_names.get(row, row)
    return [line for task in board.tasks for line in board.scores.cells[shown, at, task].lines]
