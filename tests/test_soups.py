"""What is selected and tuned on held-out rows, and never on those that are reported."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import harness
from harness import Recipe, Rows, StateDict, Task, merge
from harness.checkpoints.open import open_checkpoint
from harness.cli import main
from harness.data.rows import load_rows
from harness.errors import BadOption, BadRecipe, HarnessError
from harness.merging.providers import prepare
from harness.merging.tune import values_of
from harness.passes.features import forward
from harness.passes.placement import CPU
from tests.mistakes import mistake, refused
from tests.states import close
from tests.toys import THREE, TOY, known

Minis = Callable[[str], dict[str, Path]]
SOUP = harness.MERGERS["soup"].function
INCREMENTAL = harness.MERGERS["incremental"].function


def points(*values: float) -> list[StateDict]:
    return [{"w": torch.tensor([value])} for value in values]


def near_zero(state: StateDict) -> float:
    return -abs(float(state["w"]))


# Selection by hand -------------------------------------------------------------------------


def test_greedy_soup_by_hand() -> None:
    """Best first: 2, -3, 6. The mean of 2 and -3 is nearer to 0 and stays; with 6 it is not."""
    merged = SOUP(points(6.0, 2.0, -3.0), {}, score=near_zero)
    assert merged["w"].item() == -0.5
    assert merged.report == {
        "alone": [-6.0, -2.0, -3.0],
        "trials": [
            {"with": 2, "score": -0.5, "stays": True},
            {"with": 0, "score": pytest.approx(-5 / 3), "stays": False},
        ],
        "kept": [1, 2],
        "score": -0.5,
    }


def test_an_expert_that_changes_nothing_stays() -> None:
    merged = SOUP(points(1.0, 1.0, 5.0), {}, score=near_zero)
    assert merged["w"].item() == 1
    assert merged.report["kept"] == [0, 1]


def test_a_greedy_soup_is_never_worse_than_its_best_expert() -> None:
    numbers = np.random.default_rng(0)
    for _ in range(50):
        values = numbers.normal(size=5)
        merged = SOUP(points(*values), {}, score=near_zero)
        assert near_zero(merged) >= max(-abs(np.float32(values))) - 1e-6


def test_a_uniform_soup_is_the_average_and_scores_nothing() -> None:
    def refuse(_: StateDict) -> float:
        raise AssertionError("scored")

    experts = points(6.0, 2.0, -3.0)
    merged = SOUP(experts, {}, score=refuse, select="uniform")
    close(merged, harness.MERGERS["average"].function(experts, {}))


def test_incremental_by_hand() -> None:
    """Best first: 2, -3, 6; nobody is turned down."""
    experts = points(6.0, 2.0, -3.0)
    merged = INCREMENTAL(experts, {}, score=near_zero)
    assert merged["w"].item() == pytest.approx(5 / 3)
    assert merged.report["order"] == [1, 2, 0]
    assert merged.report["curve"] == [-2.0, -0.5, pytest.approx(-5 / 3)]
    assert INCREMENTAL(experts, {}, score=near_zero, count=1)["w"].item() == 2
    assert INCREMENTAL(experts, {}, score=near_zero, count=2)["w"].item() == -0.5


def test_count_is_of_the_experts() -> None:
    with mistake(BadOption, "count incremental 4 3"):
        INCREMENTAL(points(1.0, 2.0, 3.0), {}, score=near_zero, count=4)


def test_a_grid_by_hand() -> None:
    assert values_of("scale=0.1:0.5:0.1") == ("scale", [0.1, 0.2, 0.3, 0.4, 0.5])
    assert values_of("scale=1:1:0.5") == ("scale", [1.0])
    assert values_of("scale=0:1:0.4") == ("scale", [0.0, 0.4, 0.8])
    assert values_of("rotation.layers=[first:1, all]") == ("rotation.layers", ["first:1", "all"])


@pytest.mark.parametrize(
    "text", ["scale", "scale=1", "scale=1:2", "scale=2:1:1", "scale=0:1:0", "scale=0:1:-1",
             "scale=a:b:c",
             "scale=[]", "scale=[[1],2]", "scale=0:1:0.0001", "scale=0:inf:1", "scale=nan:1:1"],
)  # fmt: skip
def test_a_grid_that_is_none(text: str) -> None:
    with mistake(BadOption, "OPTION=FIRST:LAST:STEP"):
        values_of(text)


# Through the pipeline ----------------------------------------------------------------------


_toys = known(TOY, THREE)


@pytest.fixture
def made(minis: Minis, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """The record of a merge of two experts of one task, by keywords of a recipe."""

    def of(**asked: Any) -> dict[str, Any]:
        folders = minis("bert")
        both = {"experts": (str(folders["a"]), str(folders["b"])), "base": str(folders["base"])}
        recipe = Recipe(**{**both, "tasks": ("toy/pairs",), "device": "cpu", **asked})
        merge(recipe, out=tmp_path / "out")
        found: dict[str, Any] = json.loads((tmp_path / "out" / "merge.json").read_text())
        return found

    return of


def accuracy(folder: Path, task: Task, split: str) -> float:
    rows = load_rows(task, split)
    _, logits, _ = forward(open_checkpoint(folder), rows, max_length=128, placement=CPU)
    return float((logits.argmax(1) == rows.labels).mean())


def test_the_best_trial_is_what_is_written(
    made: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    record = made(merger="task_arithmetic", tune="scale=-40:40:20")
    tuned = record["tuned"]
    assert tuned["on"] == ["toy/pairs@heldout10"]
    assert [trial["value"] for trial in tuned["trials"]] == [-40, -20, 0, 20, 40]
    scores = [trial["score"] for trial in tuned["trials"]]
    first_best = tuned["trials"][scores.index(max(scores))]["value"]
    assert tuned["chosen"] == record["merger"]["options"]["scale"] == first_best
    assert accuracy(tmp_path / "out", TOY, "heldout10") == max(scores)
    assert record["method"] == f"task_arithmetic:scale={float(first_best)}"


@pytest.mark.parametrize("merger", ["average", "regmean:examples=8"])
def test_an_option_of_another_method_is_chosen_from_a_list(
    made: Callable[..., dict[str, Any]], tmp_path: Path, merger: str
) -> None:
    """Statistics are of the experts as that value leaves them."""
    asked: dict[str, Any] = {"merger": harness.parse_choice(merger)}
    record = made(**asked, premerge=("dare",), tune="dare.drop_rate=[0.999,0.1,0.5]")
    tuned, options = record["tuned"], record["premerge"][0]["options"]
    assert [trial["value"] for trial in tuned["trials"]] == [0.999, 0.1, 0.5]
    best = max(tuned["trials"], key=lambda trial: trial["score"])
    assert tuned["chosen"] == options["drop_rate"] == best["value"] != 0.5  # which is the default
    shutil.rmtree(tmp_path / "out")
    assert made(**asked, premerge=(harness.Choice("dare", options),))["digest"] == record["digest"]


@pytest.mark.parametrize("rates", ["0.1,0.2,0.3,0.99", "0.99,0.3,0.2,0.1"])
def test_a_candidate_that_is_beaten_goes_with_its_statistics(
    made: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, rates: str
) -> None:
    """One is in memory and the best so far, whichever is beaten."""
    known, alive = list[weakref.ref[Any]](), list[int]()

    def prepared(providers: Sequence[Any]) -> None:
        prepare(providers)
        known.extend(map(weakref.ref, providers))
        alive.append(sum(one() is not None for one in known))

    monkeypatch.setattr("harness.merging.tune.prepare", prepared)
    merger = harness.parse_choice("regmean:examples=8")
    made(merger=merger, premerge=("dare",), tune=f"dare.drop_rate=[{rates}]")
    each = len(known) // 4
    assert each > 0
    assert alive[0] == each
    assert max(alive) == 2 * each


@pytest.mark.parametrize(
    ("tune", "words"),
    [
        ("rotation.layers=[all]", ("rotation", "dare, average")),
        ("dare.drop_rat=[0.1]", ("'drop_rat'", "'drop_rate'")),
        ("dare.drop_rate=[0.1,2]", ("'drop_rate'", "2")),
        ("dare.strategy=0.1:1:0.1", ("'strategy'", "number", "drop_rate")),
    ],
)
def test_what_is_no_option_of_a_method_cannot_be_tuned(
    made: Callable[..., dict[str, Any]], tmp_path: Path, tune: str, words: tuple[str, ...]
) -> None:
    with mistake(BadOption, *words):
        made(premerge=("dare",), tune=tune)
    assert not (tmp_path / "out").exists()


def test_another_split_can_be_tuned_on(made: Callable[..., dict[str, Any]]) -> None:
    record = made(merger="ties", tune="density=0.5:1:0.5", tune_on=("toy/pairs@train90",))
    assert record["tuned"]["on"] == ["toy/pairs@train90"]


@pytest.mark.parametrize(
    "asked", [{"merger": "soup"}, {"merger": "task_arithmetic", "tune": "scale=0:1:0.5"}]
)
def test_candidates_are_scored_on_as_many_rows_as_asked(
    asked: dict[str, str],
    made: Callable[..., dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: set[int] = set()

    def counted(model: Any, rows: Rows, **how: Any) -> Any:
        seen.add(len(rows))
        return forward(model, rows, **how)

    monkeypatch.setattr("harness.merging.validation.forward", counted)
    assert "tune_limit" not in made(**asked)
    assert min(seen) > 3
    seen.clear()
    shutil.rmtree(tmp_path / "out")
    assert made(**asked, tune_limit=3)["tune_limit"] == 3
    assert seen == {3}


def test_kept_heads_are_tuned_over_all_tasks(minis: Minis, tmp_path: Path) -> None:
    folders = minis("bert")
    recipe = Recipe(
        experts=(str(folders["a"]), str(folders["c"])),
        base=str(folders["base"]),
        merger="task_arithmetic",
        tasks=("toy/pairs", "toy/three"),
        tune="scale=0:2:1",
        device="cpu",
    )
    merge(recipe, out=tmp_path / "out")
    tuned = json.loads((tmp_path / "out" / "merge.json").read_text())["tuned"]
    assert tuned["on"] == ["toy/pairs@heldout10", "toy/three@heldout10"]
    assert len(tuned["trials"]) == 3


def test_a_soup_scores_what_it_writes(made: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    record = made(merger="soup")
    assert accuracy(tmp_path / "out", TOY, "heldout10") == record["report"]["score"]


def test_what_was_tuned_on_is_not_reported(
    made: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    made(merger="task_arithmetic", tune="scale=0:1:0.5")
    out = str(tmp_path / "out")
    arguments = ["evaluate", "--model", out, "--output-path", str(tmp_path / "records")]
    refused([*arguments, "--tasks", "toy/pairs@heldout10"], BadRecipe, "toy/pairs@heldout10")
    assert main([*arguments, "--tasks", "toy/pairs", "--protocols", "current"]) == 0


BAD: list[tuple[list[str], list[str]]] = [
    (["--merger", "task_arithmetic", "--tune", "scale=0:1:0.5", "--tune-on", "toy/pairs@test"],
     ["toy/pairs@test", "reported", "toy/pairs@heldout10"]),
    (["--merger", "task_arithmetic", "--tune", "scale=0:1:0.5", "--tune-on", "toy/pairs"],
     ["toy/pairs@test", "reported"]),
    (["--merger", "soup", "--tune-on", "toy/pairs@test"], ["reported"]),
    (["--merger", "average", "--tune-on", "toy/pairs@heldout10"], ["tuned"]),
    (["--merger", "average", "--tune-limit", "9"], ["--tune-limit", "average tuned"]),
    (["--merger", "soup", "--tune-limit", "0"], ["tune_limit", "greater than 0"]),
    (["--merger", "soup", "--examples-limit", "9"], ["--examples-limit", "soup examples"]),
    (["--merger", "task_arithmetic", "--tune", "scale=1:0:1"], ["scale=0.1:1.0:0.1"]),
    (["--merger", "ties", "--tune", "combine=0:1:0.5"], ["combine ties tuned"]),
    (["--merger", "ties", "--tune", "densty=0:1:0.5"], ["densty", "density, scale"]),
    (["--merger", "average", "--tune", "scale=0:1:0.5"], ["it has none"]),
    (["--merger", "ties", "--tune", "density=0:1:0.5"], ["ties 0.0"]),
    (["--merger", "soup", "--tune-on", "toy/nothing@heldout10"], ["toy/nothing"]),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "said"), BAD)
def test_bad_input_is_one_line_and_writes_nothing(
    flags: list[str],
    said: list[str],
    minis: Minis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "harness.merging.validation.forward", lambda *_, **__: pytest.fail("work started")
    )
    folders = minis("bert")
    arguments = ["merge", str(folders["a"]), str(folders["b"]), "--base", str(folders["base"])]
    out = tmp_path / "out"
    refused([*arguments, "--tasks", "toy/pairs", "--out", str(out), *flags], HarnessError, *said)
    assert not list(tmp_path.iterdir())


def test_a_soup_without_a_task_says_what_to_name(minis: Minis, tmp_path: Path) -> None:
    folders = minis("bert")
    arguments = ["merge", str(folders["a"]), str(folders["b"]), "--merger", "soup"]
    refused([*arguments, "--out", str(tmp_path / "out")], BadRecipe, "--tune-on TASK@SPLIT")
    assert not list(tmp_path.iterdir())
