"""Sets of experts: the same tasks trained again by other seeds are replicates of one row."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest

import harness
from harness.errors import BrokenRecord
from harness.evaluation.records import Record, RecordedRecipe, RecordedStage, Source
from harness.reporting.boards.about import about
from harness.reporting.boards.board import Board, board_of
from harness.reporting.boards.tested import difference_of_cells
from harness.reporting.lines import lines_of
from harness.reporting.sets import with_set_numbers
from tests.mistakes import mistake
from tests.resampled import resampled
from tests.test_boards import MRPC, RTE, record, texts_of, written

TASKS = (RTE, MRPC)


def study(
    at: int, seed: int | None = None, shift: float = 0.0, better: float = 0.1
) -> list[Record]:
    """An expert of each task, the base under their heads, and two merges; `ties` is the better."""
    seed = at if seed is None else seed
    sources = tuple(
        Source(source=f"e-{task}", digest=f"{task}{at}", task=task, seed=seed) for task in TASKS
    )
    records = []
    for task, one in zip(TASKS, sources, strict=True):
        taught = {"teachers": tuple(source.digest for source in sources)}
        records += [
            record("expert", f"e-{task}", task, "current", 0.9 + shift / 10, digest=one.digest),
            record("base", "base", task, "ft-classifier", {5: [0.3, 0.31, 0.29]},
                   digest=f"base{at}", **taught),
        ]  # fmt: skip
        for method, value in (("average", 0.5), ("ties", 0.5 + better)):
            given: dict[str, Any] = {"method": method, "digest": f"{method}{at}"}
            given |= {"experts": sources}
            drawn = [value + shift + draw / 100 for draw in (10, 11, 12)]
            name = f"{method}-{at}"
            records += [
                record("merged", name, task, "current", value + shift, **given),
                record("merged", name, task, "ft-classifier", {5: drawn}, **given, **taught),
            ]
    return records


def made(records: list[Record]) -> Board:
    return board_of([*lines_of((f"{at}.json", one) for at, one in enumerate(records))])


def three(*betters: float) -> list[Record]:
    shifts = (0.0, 0.05, -0.02)
    studies = [study(at, shift=shifts[at], better=betters[at]) for at in range(3)]
    return [resampled(one) for records in studies for one in records]


def test_retrained_experts_join_the_row_of_their_method() -> None:
    board = made(three(0.1, 0.1, 0.1))
    assert board.scores.rows == ("expert of the task", "base", "average", "ties")
    current, tuned = board.scores.settings
    rte, _, mean = board.scores.row("ties", current)
    assert rte is not None
    assert mean is not None
    each = [60.0, 65.0, 58.0]
    assert rte.experts == pytest.approx(each)
    assert mean.experts == pytest.approx(each)
    assert (rte.mean, rte.across_experts) == pytest.approx((sum(each) / 3, stdev(each)))
    drawn = board.scores.cells["ties", tuned, RTE]
    assert drawn.values == pytest.approx([71, 72, 73])
    assert about(board)["sets of experts"] == "3"
    assert about(board)["experts"] == "one of each task"
    assert board.credits is not None
    assert [one.name for one in board.credits.merges] == ["ties", "average"]


def test_a_base_that_nobody_teaches_is_of_the_set_whose_heads_it_has() -> None:
    """As out of domain, where experts of other tasks are merged, and nothing is tuned."""

    def alone(*, owned: bool) -> list[Record]:
        records = []
        for at in range(3):
            of_set = [one for one in study(at) if (one.role, one.protocol) == ("merged", "current")]
            heads_of = tuple(one.digest for one in of_set[0].experts) if owned else ()
            given = {"digest": f"base{at}", "heads_of": heads_of}
            bases = [record("base", "base", t, "current", 0.3 + at / 10, **given) for t in TASKS]
            records += [*of_set, *bases]
        return records

    board = made(alone(owned=True))
    assert board.scores.rows == ("base", "average", "ties")
    mean = board.scores.row("base", board.scores.settings[0])[-1]
    assert mean is not None
    assert mean.experts == pytest.approx([30, 40, 50])
    assert about(board)["experts"] == "2, of other tasks"
    assert made(alone(owned=False)).scores.rows[0] == "base (base0)"


def test_experts_of_a_boards_tasks_without_records_are_not_said_to_be_of_others() -> None:
    def named(one: Source) -> Source:
        return one.model_copy(update={"task": str(one.task).partition("@")[0]})

    merges = [one for one in study(0) if one.role == "merged"]
    records = [one.model_copy(update={"experts": tuple(map(named, one.experts))}) for one in merges]
    assert about(made(records))["experts"] == "2, not scored"


def test_sets_that_grow_are_replicates_by_how_many_experts_they_have() -> None:
    """The first merges have not all experts of a set, and are of it."""
    records = []
    for at in range(2):
        sources = tuple(
            Source(source=f"e-{task}", digest=f"{task}{at}", task=task, seed=at)
            for task in (*TASKS, "glue/cola@validation")
        )
        for count in (2, 3):
            given: dict[str, Any] = {"method": "average", "digest": f"{count}-{at}"}
            given |= {"experts": sources[:count]}
            value = count / 10 + at / 100
            records += [record("merged", "average", t, "current", value, **given) for t in TASKS]
    board = made(records)
    assert board.scores.rows == ("average (experts: 2)", "average (experts: 3)")
    for row, each in (("2", [20, 21]), ("3", [30, 31])):
        mean = board.scores.row(f"average (experts: {row})", board.scores.settings[0])[-1]
        assert mean is not None
        assert mean.experts == pytest.approx(each)


def test_a_mean_over_tasks_is_of_one_set_whatever_the_order_of_files() -> None:
    """A tuned merge is named by what was chosen for its set, and so is its file."""
    records = three(0.1, 0.1, 0.1)
    board = made([one for one in records if one.task == RTE] + [
        one for one in reversed(records) if one.task == MRPC
    ])  # fmt: skip
    mean = board.scores.row("ties", board.scores.settings[0])[-1]
    assert mean is not None
    assert mean.experts == pytest.approx([60.0, 65.0, 58.0])


def test_of_three_sets_a_difference_has_to_hold_over_them() -> None:
    """With the same mean: in one of three sets `ties` is the worse, by much."""
    steady, apart = made(three(0.1, 0.11, 0.09)), made(three(0.25, 0.2, -0.2))
    current = steady.scores.settings[0]
    assert steady.best[current, "mean"] == {"ties"}
    assert apart.best[current, "mean"] == {"ties", "average"}


def test_two_sets_are_tested_over_units_and_draws_alone() -> None:
    two = [
        resampled(one) for at, better in ((0, 0.25), (1, -0.1)) for one in study(at, better=better)
    ]
    board = made(two)
    assert board.sets == 2
    assert board.best[board.scores.settings[0], "mean"] == {"ties"}


def test_a_method_of_one_set_is_compared_on_that() -> None:
    """`average` was made of the second set alone, whose experts are better by 20 points."""
    records = [*study(0, better=0.1), *study(1, shift=0.2, better=0.1)]
    records = [resampled(one) for one in records if one.model != "average-0"]
    board = made(records)
    assert board.best[board.scores.settings[0], "mean"] == {"ties"}


def trained(records: list[Record], *hows: str | None) -> list[Record]:
    """The records of merges of experts that were trained so, a hash for each task."""

    def said(one: Record) -> Record:
        pairs = zip(one.experts, hows, strict=True) if one.experts else ()
        experts = tuple(of.model_copy(update={"training": how}) for of, how in pairs)
        return one.model_copy(update={"experts": experts})

    return [*map(said, records)]


@pytest.mark.parametrize(
    "why", ["no seeds", "the same seeds", "an expert in both", "another training"]
)
def test_what_are_no_replicates_stay_apart(why: str) -> None:
    first, second = study(0), study(1, seed=0 if why == "the same seeds" else 1)
    if why == "another training":
        first, second = trained(first, "r", "m"), trained(second, "r", "of other rows")
    if why == "no seeds":
        blank = [[one.model_copy(update={"seed": None}) for one in r.experts] for r in second]
        second = [
            r.model_copy(update={"experts": tuple(of)}) for r, of in zip(second, blank, strict=True)
        ]
    if why == "an expert in both":
        shared = first[2].experts[0]
        second = [
            r.model_copy(update={"experts": (shared, *r.experts[1:]) if r.experts else ()})
            for r in second
        ]
    lines = [*lines_of(("", one) for one in [*first, *second])]
    assert {line.set for line in with_set_numbers(lines)} == {0}
    with mistake(BrokenRecord, "two sets"):
        board_of(lines)


@pytest.mark.parametrize("differs", ["density", "code", "nothing"])
def test_merges_of_sets_by_two_recipes_are_no_replicates(differs: str, tmp_path: Path) -> None:
    """A name leaves out what was the default when the merge was made. 1 and 1.0 are one value."""

    def by(one: Record, at: int) -> Record:
        if one.method != "ties":
            return one
        options: dict[str, Any] = {"scale": 1 if at else 1.0, "seed": at}
        if at or differs == "nothing":  # an older record does not say it
            options["density"] = 0.2 if differs == "density" and at == 2 else 0.1
        stage = RecordedStage(name="ties", options=options)
        code = "edited" if differs == "code" and at == 2 else "as it was" if at else ""
        return one.model_copy(update={"recipe": RecordedRecipe(merger=stage, code=code)})

    records = [resampled(by(one, at)) for at in range(3) for one in study(at)]
    written(tmp_path, records)
    compared = partial(harness.compare, ["ties", "average"], records=tmp_path)
    if differs == "nothing":
        assert {line.set for line in made(records).lines} == {0, 1, 2}
        assert compared().tasks
        return
    for taken in (partial(made, records), compared):
        with mistake(BrokenRecord, "ties", differs, "expected one recipe"):
            taken()


def test_sets_that_say_nothing_of_their_training_are_taken_for_trained_alike() -> None:
    """As records of before do not."""
    hows = [("r", "m"), (None, None), ("r", "m")]
    records = [one for at, how in enumerate(hows) for one in trained(study(at), *how)]
    assert {line.set for line in with_set_numbers([*lines_of(("", one) for one in records)])} == {
        0,
        1,
        2,
    }


def test_an_expert_that_says_nothing_is_held_to_no_other_task() -> None:
    """Of a task whose experts all say it, they have to agree."""
    for other, sets in (("m", {0, 1}), ("of other rows", {0})):
        records = [*trained(study(0), "r", None), *trained(study(1), "r", "m")]
        records += trained(study(2), "r", other)
        found = {line.set for line in with_set_numbers([*lines_of(("", one) for one in records)])}
        assert found == ({0, 1, 2} if other == "m" else sets)


def test_sets_have_their_files_and_their_spread_in_every_format() -> None:
    files = texts_of(made(three(0.1, 0.1, 0.1)))
    assert "61.0 (sd 3.6)" in files["board.md"]
    assert (
        "`(sd)`: standard deviation over sets of experts, or over the experts" in files["board.md"]
    )
    assert r"61.0 {\scriptsize(sd 3.6)}" in files["board.tex"].replace(r"\textbf{61.0}", "61.0")
    assert "sets of experts: 3" in files["index.html"]
    rows = [line for line in files["board.csv"].splitlines() if ",ties,merged," in line]
    assert len(rows) == 3 * 4


# Tuned -------------------------------------------------------------------------------------


def tuned(one: Record, method: str, option: str, value: float) -> Record:
    stage = RecordedStage(name=method.partition(":")[0], options={option: value})
    recipe = RecordedRecipe(merger=stage, tuned={option: value}, tuned_on=(f"{RTE}@heldout10",))
    return one.model_copy(update={"method": method, "recipe": recipe})


def test_what_every_set_tuned_for_itself_is_one_row() -> None:
    values = {"ties0": 0.4, "ties1": 0.6, "ties2": 0.6}
    records = [
        tuned(one, f"ties:scale={values[one.digest]}", "scale", values[one.digest])
        if one.digest in values
        else one
        for one in three(0.1, 0.1, 0.1)
    ]
    board = made(records)
    assert [row for row in board.scores.rows if row.startswith("ties")] == ["ties (scale tuned)"]
    assert board.sets == 3


@pytest.mark.parametrize(
    ("options", "around", "expected"),
    [
        ({"scale": 0.4}, False, "ties (scale tuned)"),
        ({"scale": 1e-05, "density": 0.1}, False, "ties:density=0.1 (scale tuned)"),
        ({"scale": 0.4, "density": 0.1}, True, "dare[ties:density=0.1]+lines (scale tuned)"),
        # only the merger's was tuned
        ({"scale": 0.4, "seed": 3}, True, "dare[ties]+lines (scale tuned)"),
    ],
)
def test_the_name_of_a_tuned_merge_has_the_option_and_no_value(
    options: dict[str, Any], around: bool, expected: str
) -> None:
    stages = {
        "premerge": (RecordedStage(name="dare"),),
        "postmerge": (RecordedStage(name="lines"),),
    }
    recipe = RecordedRecipe(
        merger=RecordedStage(name="ties", options=options),
        tuned={"scale": options["scale"]},
        tuned_on=(f"{RTE}@heldout10",),
        **(stages if around else {}),
    )
    (line,) = lines_of([("", record("merged", "m", RTE, "current", 0.5, recipe=recipe))])
    assert line.method == expected


def test_the_interval_of_a_difference_over_sets_is_around_it() -> None:
    """It is over all sets, as the difference is, and not over the first alone."""
    scores = made(three(0.1, 0.2, 0.05)).scores
    current = scores.settings[0]
    ties, average = (scores.row(row, current)[-1] for row in ("ties", "average"))
    assert ties is not None
    assert average is not None
    found = difference_of_cells(ties, average)
    assert found.points == pytest.approx(100 * (0.1 + 0.2 + 0.05) / 3)
    assert found.within is not None
    assert sum(found.within) / 2 == pytest.approx(found.points, abs=1e-4)


def test_a_difference_is_over_the_sets_that_both_have() -> None:
    """By hand: ties is 10 points above the average in the one set that it was merged of."""
    kept = [one for one in three(0.1, 0.2, 0.05) if (one.method, one.model) != ("ties", "ties-1")]
    kept = [one for one in kept if (one.method, one.model) != ("ties", "ties-2")]
    scores = made(kept).scores
    ties, average = (scores.row(row, scores.settings[0])[-1] for row in ("ties", "average"))
    assert ties is not None
    assert average is not None
    assert ties.mean - average.mean != pytest.approx(10)
    assert difference_of_cells(ties, average).points == pytest.approx(10)


def with_a_hole(keep: Callable[[Record], bool]) -> list[Record]:
    """Three sets in which ties is 10, 20 and 30 points above the average; the third, which scores
    5 points more, has only the records of ties that are kept."""
    studies = [study(at, shift=0.05 * (at == 2), better=0.1 * (at + 1)) for at in range(3)]
    records = [resampled(one) for records in studies for one in records]
    return [one for one in records if one.model != "ties-2" or keep(one)]


def test_the_mean_of_a_set_that_lacks_a_task_is_not_compared(tmp_path: Path) -> None:
    """By hand: the two whole sets differ by 10 and 20 points, in the mean by 15."""
    records = with_a_hole(lambda one: one.task == RTE)
    board = made(records)
    current, tuned = board.scores.settings
    for setting in (current, tuned):
        ties, average = (board.scores.row(row, setting)[-1] for row in ("ties", "average"))
        assert ties is not None
        assert average is not None
        assert difference_of_cells(ties, average).points == pytest.approx(15)
    compared = harness.compare(["ties", "average"], records=written(tmp_path / "r", records))
    assert (compared.terms.sets, compared.terms.of_sets) == (2, 3)
    assert isinstance(compared, harness.Comparison)
    assert compared.difference == pytest.approx(0.15)


def test_two_of_three_sets_are_no_test_over_sets() -> None:
    """Nor one over units alone, beside tests over three sets: ties counts as not tested."""
    board = made(with_a_hole(lambda _: False))
    current = board.scores.settings[0]
    assert board.best[current, "mean"] == {"ties", "average"}
    assert board.gaps["ties", "mean"].significant is False
    assert board.gaps["ties", "mean"].p is None
    assert board.gaps["average", "mean"].p is not None
    lost = {share.row: share.lost for share in board.shares}
    assert lost["ties"].significant is False
    assert lost["ties"].p is None
    assert lost["average"].p is not None
    assert board.credits is not None
    assert {one.name: one.hidden for one in board.credits.merges} == {
        "ties": False,
        "average": True,
    }


def test_two_sets_are_tested_by_what_merges_of_three_say_of_sets(tmp_path: Path) -> None:
    """Four merges are 20 points above the average or below it, by chance; ties is above it on both
    sets that it was merged of, which a test over units alone would call significant."""
    records = [one for one in with_a_hole(lambda _: False) if one.protocol == "current"]
    averages = [one for one in records if one.method == "average"]
    shifts = {"a": (1, -1, 0), "b": (-1, 0, 1), "c": (0, -1, 1), "d": (1, 1, -1)}
    for (method, of_sets), one in product(shifts.items(), averages):
        at = int(one.model[-1])
        value = one.scores[0].value + of_sets[at] / 5
        given = {"method": method, "digest": f"{method}{at}", "experts": one.experts}
        made_of = record("merged", f"{method}-{at}", one.task, "current", value, **given)
        records.append(resampled(made_of))
    compared = harness.compare(["ties", "average"], records=written(tmp_path, records))
    assert isinstance(compared, harness.Comparison)
    assert (compared.terms.sets, compared.terms.of_sets) == (2, 3)
    assert "over test units and sets of experts" in str(compared)
    assert compared.p is not None
    assert compared.p > 0.05
    board = made(records)
    current = board.scores.settings[0]
    ties, average = (board.scores.row(row, current)[-1] for row in ("ties", "average"))
    assert ties is not None
    assert average is not None
    assert difference_of_cells(ties, average, board.priors[current, "mean"]).p == compared.p


def test_points_and_interval_are_of_the_same_sets() -> None:
    """Nothing was merged of the third set on one task: by hand, the others differ by 15 points."""
    records = with_a_hole(lambda one: one.task == RTE)
    scores = made(
        [one for one in records if one.task == RTE or not one.model.endswith("-2")]
    ).scores
    ties, average = (scores.row(row, scores.settings[0])[-1] for row in ("ties", "average"))
    assert ties is not None
    assert average is not None
    found = difference_of_cells(ties, average)
    assert found.points == pytest.approx(15)
    assert found.within is not None
    assert sum(found.within) / 2 == pytest.approx(15, abs=1e-4)


def test_models_with_no_set_on_all_tasks_are_told_so(tmp_path: Path) -> None:
    kept = {("ties-0", RTE), ("ties-1", MRPC)}
    records = [
        one for one in three(0, 0, 0) if one.method != "ties" or (one.model, one.task) in kept
    ]
    with pytest.raises(BrokenRecord, match=r"share no set of experts on all of .*choose --tasks"):
        harness.compare(["ties", "average"], records=written(tmp_path, records))


def test_a_share_is_of_the_sets_that_have_both_heads() -> None:
    """By hand: of the two sets with a tuned head, ties scores 65 and recovers 11 points."""
    board = made(with_a_hole(lambda one: one.protocol == "current"))
    (share,) = (one for one in board.shares if one.row == "ties")
    assert share.verdict.current == pytest.approx(65)
    assert share.verdict.recovered == pytest.approx(11)
    assert share.recovered.points == pytest.approx(11)


def test_merges_of_other_sets_have_no_place_behind_one_another() -> None:
    """Both were merged of two sets, and only the average of the third."""
    credits = made(with_a_hole(lambda _: False)).credits
    assert credits is not None
    assert {one.place for one in credits.merges} == {(1, 2)}
