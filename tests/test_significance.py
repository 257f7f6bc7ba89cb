"""Which differences are significant: boards, comparisons and pictures say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import harness
from harness.errors import BrokenRecord
from harness.reporting.boards.board import Board, board_of
from harness.reporting.chosen import read_lines
from tests.test_compare import read_once, two

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
    for path in (tmp_path / "plain").rglob("*.json"):
        if '"plain 0' in path.read_text():
            path.unlink()
    made = two(tmp_path, "dropped", "plain")
    assert made.terms.sets == 1
    (gain,) = (g for (_, _, column), g in board(tmp_path).gained.items() if column == "mean")
    assert gain.p == pytest.approx(made.p)
    assert gain.within == pytest.approx([100 * end for end in made.within])


def test_two_models_of_one_name_are_no_sets(tmp_path: Path) -> None:
    """Trained by the same seeds; also among several models."""
    replicates(tmp_path, 1)
    experts = [{"source": n, "digest": f"{n} again", "task": n, "seed": 0} for n in TASKS]
    read_once(tmp_path, "plain", "toy/a", 0.3, rows=400, experts=experts, digest="other")
    for names in (["plain", "dropped"], ["plain", "dropped", "worse"]):
        read_once(tmp_path, "worse", "toy/a", 0.5, rows=400)
        with pytest.raises(BrokenRecord, match="'plain' is of two models"):
            harness.compare(names, records=tmp_path)
