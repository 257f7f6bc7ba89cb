"""Which differences are significant: boards, comparisons and pictures say the same."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import harness
from harness.errors import BrokenRecord
from harness.reporting.boards import page
from harness.reporting.boards.board import Board, board_of
from harness.reporting.chosen import read_lines
from harness.reporting.difference import Difference
from harness.reporting.plots import drop, gains, protocols
from harness.reporting.plots.scores import View
from harness.stats.tests import holm
from harness.text import tex
from tests.test_boards import texts_of
from tests.test_compare import read_once, two
from tests.test_plots import faces, rows_of

TASKS = "toy/a", "toy/b"
MERGES = {"plain": ("ties", 0.3), "dropped": ("dare[ties]", 0.24)}
"""The methods of two merges, the second of which is above the first, and how often they fail."""


def replicates(folder: Path, sets: int, **more: tuple[str, float]) -> Path:
    """Records of merges of several sets of experts, which one name of a model has."""
    for at in range(sets):
        experts = [
            {"source": name, "digest": f"{name} {at}", "task": name, "seed": at} for name in TASKS
        ]
        for number, (model, (method, wrong)) in enumerate({**MERGES, **more}.items()):
            given: dict[str, Any] = {"method": method, "experts": experts, "rows": 400}
            given["digest"] = f"{model} {at}"
            for place, name in enumerate(TASKS):
                seed = 100 * at + 10 * place + number
                read_once(folder, model, name, wrong, seed=seed, **given)
    return folder


def board(folder: Path) -> Board:
    return board_of(read_lines([folder]))


@pytest.mark.parametrize("sets", [1, 2, 3])
def test_a_comparison_over_sets_of_experts_is_that_of_the_board(sets: int, tmp_path: Path) -> None:
    """Difference, interval and p of each task and of their mean; sets are replicates."""
    of = board(replicates(tmp_path, sets))
    made = two(tmp_path, "dropped", "plain")
    assert made.terms.sets == of.sets == sets
    assert (f"{sets} sets of experts" in str(made)) == (sets > 1)
    assert ("test units and sets of experts, paired" in str(made)) == (sets == 3)
    assert ("too few for a test over sets" in str(made)) == (sets == 2)
    gains = {column: gain for (_, _, column), gain in of.gained.items()}
    compared = {one.task: (one.difference, one.within, one.p) for one in made.tasks}
    compared["mean"] = (made.difference, made.within, made.p)
    assert compared.keys() == gains.keys()
    for column, (difference, within, p) in compared.items():
        gain = gains[column]
        assert gain.points == pytest.approx(100 * difference)
        assert gain.within == pytest.approx([100 * end for end in within])
        assert gain.p == pytest.approx(p)
        assert gain.significant == (p is not None and p < 0.05)


def test_a_rank_over_sets_of_experts_is_tested_over_them(tmp_path: Path) -> None:
    """As the best of a board are, by what all models say of how far sets differ."""
    replicates(tmp_path, 3, worse=("average", 0.5), same=("fisher", 0.31))
    made = harness.compare(["plain", "dropped", "worse", "same"], records=tmp_path)
    assert isinstance(made, harness.Ranking)
    assert made.terms.sets == 3
    assert [one.model for one in made.models] == ["dropped", "plain", "same", "worse"]
    of = board(tmp_path)
    (setting,) = of.scores.settings
    methods = {"dropped": "dare[ties]", "plain": "ties", "same": "fisher", "worse": "average"}
    assert {methods[name] for name in made.leaders} == of.best[setting, "mean"]


def test_a_comparison_is_on_the_sets_that_all_models_have(tmp_path: Path) -> None:
    replicates(tmp_path, 2)
    assert "Under current, 2 sets of experts." in str(two(tmp_path, "dropped", "plain"))
    for path in (tmp_path / "plain").rglob("*.json"):
        if '"plain 0' in path.read_text():
            path.unlink()
    made = two(tmp_path, "dropped", "plain")
    assert made.terms.sets == 1
    assert "Under current, 1 of 2 sets of experts (seeds: 1)." in str(made)
    (gain,) = (g for (_, _, column), g in board(tmp_path).gained.items() if column == "mean")
    assert gain.p == pytest.approx(made.p)
    assert gain.within == pytest.approx([100 * end for end in made.within])


def test_merges_that_share_no_task_say_nothing_of_a_mean(tmp_path: Path) -> None:
    """Two references on both tasks, beside a merge on each of them and the best constants."""
    constants = {"toy/a": {"accuracy": 0.5}, "toy/b": {"accuracy": 0.5, "f1": 0.5}}
    for seed, (name, parts) in enumerate(constants.items()):
        given: dict[str, Any] = {"seed": seed, "majority": {"value": 0.5, "parts": parts}}
        read_once(tmp_path, f"merge {seed}", name, 0.3, method=("ties", "average")[seed], **given)
        for model, wrong in (("one", 0.1), ("other", 0.3)):
            read_once(tmp_path, model, name, wrong, role="reference", **given)
    assert "one is better than other" in two(tmp_path, "one", "other").verdict


def test_two_models_of_one_name_are_no_sets(tmp_path: Path) -> None:
    """Trained by the same seeds; also among several models."""
    replicates(tmp_path, 1)
    experts = [{"source": n, "digest": f"{n} again", "task": n, "seed": 0} for n in TASKS]
    read_once(tmp_path, "plain", "toy/a", 0.3, rows=400, experts=experts, digest="other")
    for names in (["plain", "dropped"], ["plain", "dropped", "worse"]):
        read_once(tmp_path, "worse", "toy/a", 0.5, rows=400)
        with pytest.raises(BrokenRecord, match="'plain' names two models"):
            harness.compare(names, records=tmp_path)


# Every form of a board --------------------------------------------------------------------

CROWD = {
    "plain": ("ties", 0.30, 0.27),
    "one": ("one[ties]", 0.20, 0.18),
    "two": ("two[ties]", 0.22, 0.16),
    "three": ("three[ties]", 0.225, 0.17),
    "four": ("four[ties]", 0.30, 0.23),
    "same": ("same[ties]", 0.30, 0.27),
}
"""Methods of merges, and how often they fail under Current Eval and under a tuned head; the last
one is the first again, which boards show and test once."""


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four ways to prepare one merge, with experts, on two tasks under two protocols."""
    folder = tmp_path_factory.mktemp("crowd")
    experts = [{"source": n, "digest": f"{n} 0", "task": n, "seed": 0} for n in TASKS]
    tuned: dict[str, Any] = {"protocol": "ft-classifier", "keys": [(5, at) for at in range(3)]}
    for place, name in enumerate(TASKS):
        about: dict[str, Any] = {"role": "expert", "method": "expert", "digest": f"{name} 0"}
        read_once(folder, f"expert of {name[-1]}", name, 0.1, rows=400, seed=50 + place, **about)
        for number, (model, (method, own, other)) in enumerate(CROWD.items()):
            given = {"method": method, "experts": experts, "rows": 400}
            seed = 1000 * place + 100 * (number % 5)
            read_once(folder, model, name, own, seed=seed, **given)
            read_once(folder, model, name, other, seed=seed + 1, **given, **tuned)
    return folder


def corrected(family: Mapping[Any, Difference]) -> bool:
    """Whether any is significant alone, and not among all: nothing else tells a test of one."""
    return any(
        one.p is not None and one.p < 0.05 and not one.significant for one in family.values()
    )


def test_all_forms_of_a_board_say_which_gains_are_significant(crowd: Path) -> None:
    of = board(crowd)
    current = of.scores.settings[0]
    said = {(row, at): one for (row, setting, at), one in of.gained.items() if setting == current}
    assert corrected(said)
    assert any(one.significant for one in said.values())
    known = {place: bool(one.significant) for place, one in said.items()}
    model_of = {method: model for model, (method, *_) in CROWD.items()}
    # compare, once for each row: Holm over the rows of a column
    made = {row: two(crowd, model_of[row], "plain") for row, _ in known}
    for at, column in enumerate(of.scores.columns):
        each = [[*(task.p for task in one.tasks), one.p][at] for one in made.values()]
        adjusted = dict(zip(made, holm([p for p in each if p is not None]), strict=True))
        assert {row: p < 0.05 for row, p in adjusted.items()} == {
            row: known[row, column] for row in made
        }
    files = texts_of(of)
    lines = [one for one in csv.DictReader(io.StringIO(files["board.csv"])) if one["gain"]]
    of_file = {(one["model"], f"{one['task']}@{one['split']}"): one for one in lines
               if one["protocol"] == "current"}  # fmt: skip
    table = [line.split(" & ") for line in files["board.tex"].splitlines() if " & " in line]
    cells = page.data(of, [line.path for line in of.lines])["cells"]
    opened = {
        (of.scores.rows[row], of.scores.columns[task]): bool(is_open)
        for row, task, setting, is_open in zip(
            *(cells[name] for name in ("row", "task", "setting")),
            page.data(of, [line.path for line in of.lines])["open"],
            strict=True,
        )
        if setting == 0
    }
    figure = gains.picture(read_lines([crowd]), View())
    labels = figure.axes[0].get_yticklabels()
    mergers = {
        y: name
        for (y, name), label in zip(rows_of(figure.axes[0]).items(), labels, strict=True)
        if label.get_fontweight() == "bold"
    }
    drawn = {
        (f"{rows_of(axes)[y]}[{mergers[max(one for one in mergers if one < y)]}]", column): filled
        for axes, column in zip(figure.axes, of.scores.columns, strict=True)
        for _, y, filled in faces(axes)
    }
    assert drawn == known
    for (row, column), significant in known.items():
        assert opened[row, column] != significant
        at = of.scores.columns.index(column)
        (first, *_) = (line for line in table if line[0] == tex(row))
        assert ("?" in first[at + 1]) != significant
        if column != "mean":
            assert of_file[model_of[row], column]["significant"] == str(int(significant))


def test_all_forms_of_a_board_say_which_gaps_are_significant(crowd: Path) -> None:
    of = board(crowd)
    assert corrected(of.gaps)
    known = {place: bool(one.significant) for place, one in of.gaps.items()}
    figure = protocols.picture(read_lines([crowd]), View())
    rows = [*rows_of(figure.axes[0]).values()]
    on_page = page.data(of, [line.path for line in of.lines])["gaps"]
    for at, (axes, column) in enumerate(zip(figure.axes, of.scores.columns, strict=True)):
        drawn = dict(zip(rows, [filled for *_, filled in faces(axes)], strict=True))
        assert drawn == {row: known[of.joint_names.get(row, row), column] for row in rows}
        for row, cells in zip(of.scores.rows, on_page, strict=True):
            assert bool(cells[at]) == (known.get((row, column)) is False)
    text = texts_of(of)["board.md"].partition("How much of the loss")[2]
    table = [line.strip("| ").split("|") for line in text.splitlines() if line.startswith("|")]
    told = {cells[0].strip(): not cells[-2].strip().endswith("?") for cells in table[2:]}
    assert told == {
        row: known[row, "mean"] for row in {of.joint_names.get(row, row) for row in rows}
    }


def test_drops_are_significant_among_all_that_are_drawn(crowd: Path) -> None:
    shown = drop.drops(read_lines([crowd]), View())
    every = [one for of in shown.methods.values() for one in of]
    p = [one.p for one in every if one.p is not None]
    assert len(p) == len(every) == len(CROWD) * len(TASKS)
    assert [one.significant for one in every] == [adjusted < 0.05 for adjusted in holm(p)]
