"""Tables, boards and the verdict are functions of records; committed boards are what they say."""

from __future__ import annotations

import importlib
import io
import json
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any
from urllib.parse import unquote

import numpy as np
import pandas
import pytest

from harness import Record, compare, leaderboard
from harness.cli import main
from harness.cli.evaluate import print_evaluation
from harness.errors import BrokenRecord
from harness.evaluation.records import (
    Adaptation,
    DrawScore,
    Interval,
    RecordedRecipe,
    RecordedStage,
    Role,
    Source,
)
from harness.reporting import table as tables
from harness.reporting.boards.about import about_text, summary
from harness.reporting.boards.board import Board, board_of
from harness.reporting.boards.leaderboard import index, rendered
from harness.reporting.boards.over import board_credits
from harness.reporting.chosen import read_lines
from harness.reporting.comparison import Comparison
from harness.reporting.grid import best_single, grid, short_task
from harness.reporting.lines import Setting, lines_of
from harness.reporting.names import BEST_SINGLE, CONSTANT
from harness.reporting.table import legend
from harness.reporting.verdict import Verdict, verdicts
from harness.stats.intervals import Ratio
from tests.conftest import no_file_above
from tests.resampled import kept, lines, read_records, resampled

LEADERBOARDS = Path(__file__).parent.parent / "leaderboards"
RTE, MRPC = "glue/rte@validation", "glue/mrpc@validation"
HELDOUT = "glue/rte@heldout10"


def recipe(method: str) -> RecordedRecipe:
    """What a merge was made by that is called so: `a+b[c]+d` by the merger c."""
    said = re.fullmatch(
        r"(?:(?P<before>.+)\[)?(?P<merger>[^+\[\]]*)\]?(?P<after>\+.*)?", method, re.S
    )
    if said is None:
        return RecordedRecipe(merger=RecordedStage(name=method))
    before, after = (
        tuple(RecordedStage(name=name) for name in filter(None, (said[part] or "").split("+")))
        for part in ("before", "after")
    )
    return RecordedRecipe(
        premerge=before, merger=RecordedStage(name=said["merger"]), postmerge=after
    )


def record(
    role: Role,
    model: str,
    task: str,
    protocol: str,
    values: float | list[float] | dict[int, list[float]],
    **given: Any,
) -> Record:
    """A record with one score, with draws of no or of one number of shots, or of several."""
    if not isinstance(values, dict):
        values = {0: values if isinstance(values, list) else [values]}
    metrics = given.get("metrics", ("accuracy",))
    scores = tuple(
        DrawScore(value=value, parts=dict.fromkeys(metrics, value), shots=shots or None, seed=seed)
        for shots, drawn in values.items()
        for seed, value in enumerate(drawn)
    )
    usual: dict[str, Any] = {
        "method": "ties" if role == "merged" else role,
        "digest": f"{model}-{task if role == 'expert' else ''}".ljust(32, "0"),
        "options": {"learning_rate": 5e-4, "epochs": 5} if protocol == "ft-classifier" else {},
        "settings": {},
        "metrics": ("accuracy",),
        "rows": 100,
        "adaptation": None,
        "dataset": {},
        "head": "own",
        "labels": "by-name",
        "base": None,
        "experts": (),
        "teachers": (),
        "versions": {},
    }
    known = {**usual, **given}
    if role == "merged":
        known = {"recipe": recipe(known["method"]), **known}
    made = Record(model=model, role=role, task=task, protocol=protocol, scores=scores, **known)
    return made if made.resamples else resampled(made)


def one_task() -> list[Record]:
    """Two experts of one task, their ensemble, the base and one merge."""
    return [
        record("merged", "m", RTE, "current", 0.6),
        record("merged", "m", RTE, "ft-classifier", {1: [0.5, 0.7], 5: [0.62, 0.66]}),
        record("base", "b", RTE, "current", 0.5),
        record("expert", "e0", RTE, "current", 0.7),
        record("expert", "e1", RTE, "current", 0.8),
        record("expert", "e2", RTE, "current", 0.6),
        record("ensemble", "ensemble", RTE, "current", 0.75),
    ]


def two_tasks() -> list[Record]:
    """One expert for each of two tasks, and a merge of both under two protocols."""
    return [
        record("merged", "m", RTE, "current", 0.6),
        record("merged", "m", MRPC, "current", 0.8),
        record("merged", "m", RTE, "knn", {5: [0.50, 0.60, 0.70]}),
        record("merged", "m", MRPC, "knn", {5: [0.90, 0.80, 0.70]}),
        record("expert", "e0", RTE, "current", 0.7),
        record("expert", "e1", MRPC, "current", 0.9),
    ]


def evaluation_table(records: Sequence[Record], width: int | None = None) -> str:
    return tables.evaluation_table(grid(records, by_method=False), width)


def parts_table(records: Sequence[Record], width: int | None = None) -> str:
    return tables.parts_table(grid(records, by_method=False), width)


def texts_of(board: Board, out: Path = Path()) -> dict[str, str]:
    """The files of a board that are text, by name."""
    return {name: text for name, text in rendered(board, out) if isinstance(text, str)}


def board(records: list[Record]) -> tuple[str, str]:
    """The board of records as Markdown and as CSV."""
    made = texts_of(board_of([*lines_of((f"{i}.json", r) for i, r in enumerate(records))]))
    return made["board.md"], made["board.csv"]


# The grid -------------------------------------------------------------------------------------


def test_several_experts_of_a_task_are_summed_up() -> None:
    found = grid(one_task(), by_method=True)
    current = found.settings[0]
    summary = ("experts, min", "experts, mean", "experts, max")
    assert found.rows == (*summary, "logit ensemble", "base", "ties")
    values = [found.cells[row, current, RTE].mean for row in summary]
    assert values == pytest.approx([60, 70, 80])


def test_a_table_of_one_model_shows_every_expert() -> None:
    rows = grid(one_task(), by_method=False).rows
    assert rows[:3] == ("e0", "e1", "e2")
    assert rows[-2:] == ("base (b)", "m (ties)")


def test_one_expert_per_task_is_one_row() -> None:
    found = grid(two_tasks(), by_method=True)
    assert found.rows == ("expert of the task", "ties")
    assert found.columns == [RTE, MRPC, "mean"]


def test_deviations_are_those_of_a_sample() -> None:
    found = grid(one_task(), by_method=True)
    cell = found.cells["ties", found.settings[1], RTE]
    assert cell.values == pytest.approx([50, 70])
    assert cell.deviation == pytest.approx(stdev([50, 70]))
    assert str(cell) == "60.0 ±14.1"


def test_three_spreads_are_never_mixed() -> None:
    """Over the draws, over the rows, over the experts of a task."""
    ends = [{"low": 0.5, "high": 0.7, "shots": count, "method": "student"} for count in (1, 5)]
    ends[1]["high"] = 0.75
    records = [
        record("merged", "m", RTE, "ft-classifier", {1: [0.5, 0.7], 5: [0.6]}, intervals=ends),
        record("expert", "e0", RTE, "current", 0.7),
        record("expert", "e1", RTE, "current", 0.8),
    ]
    made = grid(records, by_method=True)
    current, one, five = made.settings
    cells = [made.cells["ties", setting, RTE] for setting in (one, five)]
    assert [cell.interval for cell in cells] == [(50, 70), (50, 75)]
    assert [cell.deviation for cell in cells] == [pytest.approx(stdev([50, 70])), None]
    mean_of = made.cells["experts, mean", current, RTE]
    assert mean_of.across_experts == pytest.approx(stdev([70, 80]))
    assert (mean_of.interval, mean_of.deviation) == (None, None)


def test_the_best_constant_prediction_stands_last_under_every_reading() -> None:
    constant = DrawScore(value=0.53, parts={"accuracy": 0.53})
    records = [one.model_copy(update={"majority": constant}) for one in one_task()]
    made = grid(records, by_method=True)
    assert made.rows[-1] == CONSTANT
    assert {made.cells[CONSTANT, setting, RTE].values for setting in made.settings} == {(53,)}
    assert CONSTANT not in grid(one_task(), by_method=True).rows


def test_nothing_drawn_has_no_deviation() -> None:
    found = grid(one_task(), by_method=True)
    cell = found.cells["ties", found.settings[0], RTE]
    assert cell.deviation is None
    assert str(cell) == "60.0"


def test_the_mean_column_goes_draw_by_draw() -> None:
    found = grid(two_tasks(), by_method=True)
    knn = found.settings[1]
    across = found.row("ties", knn)[-1]
    assert across is not None
    # 50 and 90, 60 and 80, 70 and 70: every draw has the same mean although each task varies
    assert across.values == pytest.approx([70, 70, 70])
    assert across.deviation == pytest.approx(0)


def test_a_mean_over_tasks_needs_all_of_them() -> None:
    found = grid(two_tasks()[:3], by_method=True)
    assert found.row("ties", found.settings[1])[-1] is None


def test_readings_come_in_the_papers_order() -> None:
    protocols = ["ft-classifier", "probe", "knn", "current"]
    shots = {"current": {0: [0.5]}, "probe": {0: [0.5]}}
    found = grid(
        [
            record("merged", "m", RTE, name, shots.get(name, {10: [0.5], 1: [0.5]}))
            for name in protocols
        ],
        by_method=True,
    ).settings
    assert list(map(str, found)) == [
        "current",
        "knn, 1 shot",
        "knn, 10 shots",
        "ft-classifier, 1 shot",
        "ft-classifier, 10 shots",
        "probe",
    ]


def test_other_options_of_a_protocol_are_another_reading() -> None:
    usual = record("merged", "m", RTE, "ft-classifier", {5: [0.5]})
    other = usual.model_copy(update={"options": {"learning_rate": 5e-4, "epochs": 2}})
    found = grid([usual, other], by_method=True)
    assert [setting.protocol for setting in found.settings] == [
        "ft-classifier",
        "ft-classifier:epochs=2",
    ]


def rows_of(records: list[Record], *, by_method: bool = True) -> tuple[str, ...]:
    return grid(records, by_method=by_method).rows


def test_two_models_of_one_method_are_told_apart_by_their_names() -> None:
    twice = [
        record("merged", "first", RTE, "current", 0.5),
        record("merged", "second", RTE, "current", 0.6),
    ]
    found = grid(twice, by_method=True)
    assert found.rows == ("ties (first)", "ties (second)")
    values = [found.cells[row, found.settings[0], RTE].mean for row in found.rows]
    assert values == pytest.approx([50, 60])
    assert rows_of(twice, by_method=False) == ("first (ties)", "second (ties)")


def test_a_merge_of_one_task_and_one_of_several_share_a_folder() -> None:
    """The base of both is one, under another head, and the task has other experts."""
    own = {"experts": tuple(Source(source=f"e/{i}", digest=str(i)) for i in (0, 1, 2, 3))}
    records = [
        record("merged", "rte-ties", RTE, "current", 0.6, **own),
        record("base", "b", RTE, "current", 0.5, digest="b-own", **own),
        record("merged", "glue-ties", RTE, "current", 0.4, head="kept"),
        record("base", "b", RTE, "current", 0.3, digest="b-kept", head="kept"),
        record("merged", "glue-ties", MRPC, "current", 0.7, head="kept"),
        record("base", "b", MRPC, "current", 0.2, digest="b-kept-too", head="kept"),
    ]
    found = grid(records, by_method=True)
    current = found.settings[0]
    values = {
        row: [cell and round(cell.mean) for cell in found.row(row, current)] for row in found.rows
    }
    assert values == {
        "base (own head)": [50, None, None],
        "base (kept head)": [30, 20, 25],
        "ties (own head)": [60, None, None],
        "ties (kept head)": [40, 70, 55],
    }


@pytest.mark.parametrize(
    ("differs", "rows"),
    [
        ({"teachers": ("t0", "t1")}, ("base", "base (2 teachers)")),
        ({"preset": "rotation"}, ("base", "base (preset rotation)")),
        ({"digest": "f" * 32}, ("base (ffffffff)",)),
    ],
)
def test_what_differs_is_in_the_name(differs: dict[str, Any], rows: tuple[str, ...]) -> None:
    usual = record("base", "b", RTE, "ft-classifier", {5: [0.5]}, digest="0" * 32)
    found = rows_of([usual, usual.model_copy(update=differs)])
    assert len(found) == 2
    assert {*rows} <= {*found}


def test_other_files_beside_the_same_weights_are_another_model_by_another_score() -> None:
    """A tokenizer may be another, or say of a truncation what every pass sets by itself."""
    usual, lower = (record("base", "b", RTE, "current", value) for value in (0.5, 0.4))
    assert rows_of([usual, usual.model_copy(update={"content": "other"})]) == ("base",)
    assert len(rows_of([usual, lower.model_copy(update={"content": "other"})])) == 2


def test_no_name_is_longer_than_it_has_to_be() -> None:
    assert rows_of(two_tasks()) == ("expert of the task", "ties")


def test_two_traits_tell_apart_what_none_does_alone() -> None:
    four = [
        record(
            "base", "b", RTE, "current", 0.5, digest=f"{head}{preset}" * 8, head=head, preset=preset
        )
        for head in ("own", "kept")
        for preset in (None, "rotation")
    ]
    told = ("own head", "own head, preset rotation", "kept head", "kept head, preset rotation")
    assert rows_of(four) == tuple(f"base ({text})" for text in told)


def test_a_record_that_is_given_twice_counts_once() -> None:
    assert board(one_task() + one_task())[0] == board(one_task())[0]


def test_a_task_is_shown_by_its_last_part_where_that_is_clear() -> None:
    assert short_task(RTE, [RTE, MRPC]) == "rte"
    both = [RTE, "glue/rte@heldout10"]
    assert short_task(RTE, both) == RTE


# References -----------------------------------------------------------------------------------


def chosen_from(*heldout: float, order: str = "012", **given: Any) -> list[Record]:
    """Three experts of one task that score 70, 80 and 60, read on held-out rows as well."""
    digests = [f"e{i}".ljust(32, "0") for i in range(3)]
    listed = tuple(Source(source=f"e{i}", digest=digests[int(i)]) for i in order)
    return [
        record("merged", "m", RTE, "current", 0.65, experts=listed),
        *(
            record("expert", f"e{i}", RTE, "current", value, digest=digests[i])
            for i, value in enumerate((0.7, 0.8, 0.6))
        ),
        *(
            record("expert", f"e{i}", HELDOUT, "current", value, digest=digests[i], **given)
            for i, value in enumerate(heldout)
        ),
    ]


def best(records: list[Record]) -> dict[str, str]:
    return best_single([*lines_of(("", one) for one in records)])


@pytest.mark.parametrize("by_method", [True, False])
def test_the_best_single_is_the_best_on_held_out_rows(by_method: bool) -> None:
    found = grid(chosen_from(0.5, 0.4, 0.9), by_method=by_method)
    assert found.cells[BEST_SINGLE, found.settings[0], RTE].mean == pytest.approx(60)
    assert found.rows.index(BEST_SINGLE) == found.rows.index("experts, max") + 1
    assert found.tasks == (RTE,), "held-out rows choose and are not reported"


@pytest.mark.parametrize(("order", "first"), [("012", 70), ("210", 60), ("102", 70)])
def test_a_tie_goes_to_the_expert_that_was_merged_first(order: str, first: float) -> None:
    found = grid(chosen_from(0.9, 0.8, 0.9, order=order), by_method=True)
    assert found.cells[BEST_SINGLE, found.settings[0], RTE].mean == pytest.approx(first)


def test_the_best_single_has_the_draws_of_its_expert() -> None:
    records = chosen_from(0.5, 0.4, 0.9)
    tuned = record("expert", "e2", RTE, "knn", {5: [0.3, 0.5]}, digest=records[3].digest)
    found = grid([*records, tuned], by_method=True)
    assert found.cells[BEST_SINGLE, found.settings[1], RTE].values == pytest.approx([30, 50])


def test_there_is_no_best_single_unless_every_expert_was_read_on_the_same_rows() -> None:
    whole = chosen_from(0.5, 0.4, 0.9)
    assert best(whole)
    assert not best(whole[:-1])
    odd = whole[-1].model_copy(update={"dataset": {"digest": "other rows"}})
    assert not best([*whole[:-1], odd])
    assert not best(one_task())
    assert not best(two_tasks())


def abroad(*heldout: float) -> list[Record]:
    """Experts of RTE and MRPC on both tasks, and on the held-out rows of both."""
    digests = {name: name.ljust(32, "0") for name in ("r", "m")}
    scores = {("r", RTE): 0.9, ("m", RTE): 0.5, ("r", MRPC): 0.6, ("m", MRPC): 0.8}
    held = (HELDOUT, "glue/mrpc@heldout10")
    scores |= dict(zip([(n, task) for n in digests for task in held], heldout, strict=False))

    def role(name: str, task: str) -> Role:
        return "expert" if task.startswith("glue/rte") == (name == "r") else "single"

    experts = [
        record(role(name, task), name, task, "current", value, digest=digests[name])
        for (name, task), value in scores.items()
    ]
    merged = [record("merged", "x", task, "current", 0.7) for task in (RTE, MRPC)]
    return [*merged, *experts]


@pytest.mark.parametrize("by_method", [True, False])
def test_experts_on_one_anothers_tasks(by_method: bool) -> None:
    found = grid(abroad(0.9, 0.2, 0.5, 0.7), by_method=by_method)
    assert found.tasks == (RTE, MRPC)
    values = {
        name: [round(cell.mean) for cell in found.row(name, found.settings[0]) if cell]
        for name in found.rows
    }
    singles = {} if by_method else {"m": [50, 80, 65], "r": [90, 60, 75]}
    assert values == {
        "expert of the task": [90, 80, 85],
        **singles,
        "average single": [70, 70, 70],
        BEST_SINGLE: [50, 80, 65],  # r is better on RTE's held-out rows, m on the mean of both
        "ties" if by_method else "x (ties)": [70, 70, 70],
    }


def test_two_experts_of_one_name_are_two_rows() -> None:
    mixed = [r.model_copy(update={"model": "final"}) for r in abroad() if r.role != "merged"]
    rows = rows_of(mixed, by_method=False)
    assert {"final (r0000000)", "final (m0000000)"} <= {*rows}
    table = evaluation_table(mixed)
    assert "final (r0000000)" in table
    assert grid(mixed, by_method=True).rows == ("expert of the task", "average single")


def test_the_ensemble_of_all_is_not_that_of_the_task() -> None:
    both = [
        record("ensemble", "ensemble", RTE, "current", 0.7, digest="0" * 32),
        record("ensemble", "ensemble", RTE, "current", 0.8, method="ensemble of all"),
    ]
    assert grid(both, by_method=True).rows == ("logit ensemble", "logit ensemble of all")


def test_held_out_rows_count_once_for_every_task() -> None:
    records = abroad(0.9, 0.2, 0.5, 0.7)
    others = [r for r in records if r.task == RTE]
    again = [r.model_copy(update={"task": "glue/rte@test"}) for r in others]
    chosen = best(records)
    assert best([*records, *again]) == {**chosen, "glue/rte@test": chosen[RTE]}


def test_the_best_single_of_several_tasks_is_read_on_the_held_out_rows_of_all() -> None:
    assert best(abroad(0.9, 0.2, 0.5, 0.7)).keys() == {RTE, MRPC}
    assert not best(abroad(0.9, 0.2, 0.5))
    whole, _ = board(abroad(0.9, 0.2, 0.5, 0.7))
    assert "`average single`: the mean over all experts" in whole
    assert "experts, max" not in whole


def test_held_out_rows_that_a_merge_was_read_on_are_reported() -> None:
    records = [*chosen_from(0.5, 0.4, 0.9), record("merged", "m", HELDOUT, "current", 0.5)]
    found = grid(records, by_method=True)
    assert found.tasks == (RTE, HELDOUT)
    assert (BEST_SINGLE, found.settings[0], RTE) in found.cells
    assert (BEST_SINGLE, found.settings[0], HELDOUT) not in found.cells


def test_the_choice_changes_neither_verdict_nor_share() -> None:
    tuned = record("merged", "m", RTE, "ft-classifier", {5: [0.62, 0.66]})
    usual, more = [*chosen_from(), tuned], [*chosen_from(0.5, 0.4, 0.9), tuned]
    assert verdict(more) == verdict(usual) is not None
    head = "## How much of the loss is the head's"
    assert board(more)[0].partition(head)[2] == board(usual)[0].partition(head)[2] != ""
    assert "`experts, max`: chosen on the scored rows, an oracle." in board(more)[0]


@pytest.mark.parametrize("by_method", [True, False])
def test_a_reference_is_called_by_its_folder_and_method(by_method: bool) -> None:
    known = {"digest": "r".ljust(32, "0")}
    records = [
        *one_task(),
        record("reference", "mtl", RTE, "current", 0.7, method="multi-task", **known),
        record("reference", "mtl", RTE, "knn", {5: [0.7]}, method="multi-task", **known),
        record("reference", "old", RTE, "current", 0.6, method="ties"),
    ]
    rows = grid(records, by_method=by_method).rows
    start = rows.index("logit ensemble")
    assert rows[start + 1 : start + 3] == ("mtl (multi-task)", "old (ties)")
    assert verdict(records) == verdict(one_task())


def test_references_alone_have_a_table_and_no_verdict() -> None:
    records = [record("reference", "mtl", RTE, "current", 0.7, method="multi-task")]
    assert "mtl (multi-task)" in evaluation_table(records)
    assert "mtl (multi-task)" in board(records)[0]
    assert verdict(records) is None


# Tables ---------------------------------------------------------------------------------------


def test_a_table_shows_the_shots_nearest_to_five() -> None:
    records = [record("merged", "m", RTE, "knn", {1: [0.1], 4: [0.4], 10: [0.9]})]
    table = evaluation_table(records)
    assert "4 shots" in table
    assert "40.0" in table
    assert "90.0" not in table


def test_a_narrow_table_has_the_protocols_below_one_another() -> None:
    wide, narrow = evaluation_table(two_tasks()), evaluation_table(two_tasks(), width=60)
    assert max(map(len, narrow.splitlines())) <= 60 < max(map(len, wide.splitlines()))
    words = [{*re.findall(r"[^-,\s]+", table)} for table in (wide, narrow)]
    assert words[0] == words[1]
    assert [block.splitlines()[0].split("  ")[0] for block in narrow.split("\n\n")] == [
        *("current", "knn, 5 shots")
    ]


def test_a_column_says_its_metrics_and_rows_and_parts_stand_below() -> None:
    of_parts = {"accuracy": 0.9, "f1": 0.5}
    drawn = tuple(
        DrawScore(value=value, parts={**of_parts, "f1": value}, shots=5, seed=seed)
        for seed, value in enumerate((0.2, 0.4))
    )
    two = record("merged", "m", MRPC, "knn", 0.5, rows=1408, metrics=("accuracy", "f1"))
    one = record("merged", "m", RTE, "knn", {5: [0.7]}, rows=277)
    records = [resampled(two.model_copy(update={"scores": drawn})), one]
    table = evaluation_table(records)
    for said in ("accuracy +", "1,408 rows", "277 rows"):
        assert table.count(said) == 1
    assert not parts_table([one])
    parts = parts_table(records).splitlines()
    heads = [[word.strip() for word in line.split("  ") if word] for line in parts]
    assert heads[2:4] == [["mrpc", "mrpc"], ["accuracy", "f1"]]
    assert heads[-1] == ["m (ties)", "90.0", "30.0"]
    narrow = parts_table([*records, record("merged", "m", MRPC, "current", 0.5)], width=40)
    assert max(map(len, narrow.splitlines())) <= 40
    assert [block.split("  ")[0] for block in narrow.split("\n\n")] == ["current", "knn, 5 shots"]


def test_the_merge_has_its_interval_where_there_is_room() -> None:
    ends = [{"low": 0.511, "high": 0.689, "method": "student"}]
    records = [one.model_copy(update={"majority": None}) for one in one_task()]
    records[0] = record("merged", "m", RTE, "current", 0.6, intervals=ends)
    records[2] = record("base", "b", RTE, "current", 0.5, intervals=ends)
    table = evaluation_table(records)
    row = next(line for line in table.splitlines() if line.startswith("m (ties)"))
    assert "60.0 [51.1, 68.9]" in row
    assert table.count("[") == 1, "only the merge, and only where nothing is drawn"
    assert "70.0 (sd 10.0)" in table, "three experts"
    says = legend(table)
    for mark in ("±: standard", "[ ]: 95 % confidence interval over test rows", "(sd): standard"):
        assert mark in says
    narrow = evaluation_table(records, width=30)
    assert "60.0" in narrow
    assert "[" not in narrow + legend(narrow)
    below = evaluation_table(records, width=36)
    assert "\n\n" in below
    assert "[51.1, 68.9]" in below


def test_below_the_table_stands_what_its_protocols_saw(capsys: pytest.CaptureFixture[str]) -> None:
    test_rows = Adaptation(split="x@test", rows=9, labels="were not read", transductive=True)
    drawn = Adaptation(split="x@train", rows=9, labels="chose the rows and were read")
    records = [
        record("merged", "m", RTE, "surgery", {1: [0.5], 5: [0.6]}, adaptation=test_rows),
        record("merged", "m", RTE, "ft-classifier", {5: [0.6]}, adaptation=drawn),
        record("merged", "m", RTE, "fresh-head", {"all": [0.6]}, adaptation=drawn),
        record("merged", "m", RTE, "current", 0.6),
    ]
    print_evaluation(records, Path("records"))
    below = capsys.readouterr().out.partition("Values x100.")[2].splitlines()
    assert [line for line in below if "shots: " in line] == [
        "ft-classifier, 5 shots: fitted to drawn rows and their labels.",
        "fresh-head, all shots: fitted to all rows and their labels.",
        "surgery, 5 shots: adapted to rows without their labels; transductive: these are the "
        "scored rows.",
    ]


def verdict(records: list[Record]) -> Verdict | None:
    return next(iter(verdicts(lines(records))), None)


# The verdict ----------------------------------------------------------------------------------

FIVE = Setting(2, "ft-classifier", 5)


@pytest.mark.parametrize(
    ("experts", "current", "tuned", "says"),
    [
        (90, 80, 90, "scores 80.0 under Current Eval, 10.0 points below its experts (90.0;"),
        (90, 80, 87, "with 5 shots scores 87.0: the head's share of the loss is not known."),
        (80, 90, 85, "10.0 points above its experts (80.0;"),
        (80, 90, 85, ": no loss."),
        (80, 80, 85, "the merge scores 80.0 under Current Eval, as much as its experts (80.0;"),
        (80, 79.4, 85, "0.6 points below its experts (80.0; 95 % CI -1.6 to +0.4)"),
        (80, 79.4, 85, ": no significant loss."),
    ],
)
def test_the_verdict_in_a_sentence(experts: float, current: float, tuned: float, says: str) -> None:
    within = (experts - current - 1, experts - current + 1)
    made = Verdict(experts, current, tuned, FIVE, tasks=1, within=within)
    assert says in str(made)
    assert made.share == "", "no share that is undefined"


def test_one_shot_is_one() -> None:
    for shots, says in ((1, "1 shot"), ("all", "all shots")):
        setting = Setting(2, "ft-classifier", shots)
        made = Verdict(90, 80, 90, setting, tasks=1, within=(9, 11))
        assert f" with {says} scores 90.0" in str(made)


def ratio(*ends: float) -> Ratio:
    return Ratio(float(np.mean(ends)), (ends[0], ends[1]))


@pytest.mark.parametrize(
    ("current", "loss", "share", "says"),
    [
        (80, (9.5, 10.5), "70 % (95 % CI 62 to 78 %)", "explains 70 % (95 % CI 62 to 78 %) of the"),
        (80, (9.5, 10.5), "70 % (95 % CI 62 to 78 %)", "experts (90.0; 95 % CI -10.5 to -9.5)."),
        (
            80,
            (-1, 21),
            "",
            "CI -21.0 to +1.0). FT-Classifier Eval with 5 shots scores 87.0: no",
        ),
        (
            95,
            (-7, -3),
            "",
            "CI +3.0 to +7.0). FT-Classifier Eval with 5 shots scores 87.0: no",
        ),
        (89.96, (0.03, 0.05), "", "as much as its experts (90.0"),
    ],
)
def test_the_share_of_a_loss_is_that_of_a_significant_one(
    current: float, loss: tuple[float, float], share: str, says: str
) -> None:
    made = Verdict(90, current, 87, FIVE, tasks=1, within=loss, ratio=ratio(0.62, 0.78))
    assert says in str(made)
    assert made.share == share
    none = replace(made, ratio=ratio(-0.9, -0.1))
    assert ("explains none of the loss" in str(none)) == bool(share)
    few = replace(made, ratio=None, draws=2)
    assert few.share == ""
    assert ("needs 3 draws or more" in str(few)) == bool(share)


def test_a_base_that_scores_as_much_takes_the_head_for_nothing() -> None:
    """What a tuned head does without a merge is no evidence about the merge."""
    better = Verdict(90, 80, 90, FIVE, 1, (9, 11), ratio(0.9, 1.1), control=89)
    made = replace(better, above_control=(0.5, 2.0))
    assert "scores 90.0 (base: 89.0): the head explains 100 %" in str(made)
    for control, unclear in ((89, (-0.5, 2.0)), (90, (0.5, 2.0))):
        as_much = replace(made, control=control, above_control=unclear)
        assert as_much.share == "as the base"
        assert "so it is no evidence about the merge" in str(as_much)


def test_the_verdict_says_the_four_parts_and_the_credit() -> None:
    """Topics: of 72.8 points 25.1, 40.5 and 7.2; of the middle 18.6 want a head."""
    loss = Verdict(72.8, 47.0, 65.6, FIVE, 1, (24.0, 27.6), ratio(0.68, 0.76), control=25.1)
    made = replace(loss, above_control=(38.0, 43.0), credit=ratio(0.8, 0.9))
    assert str(made).endswith(
        "Under a tuned head the base scores 25.1 of the experts' 72.8 points, the merge adds 40.5 "
        "and 7.2 are lost; 18.6 are scored only under a tuned head. Credit: 85 % (95 % CI 80 to "
        "90 %)."
    )
    gained = str(replace(made, adapted=74.8))
    assert "the merge adds 49.7 and gains 2.0 over its experts; 27.8 are scored" in gained
    assert "Credit" not in str(replace(made, credit=None))
    assert "of the experts'" not in str(replace(made, control=None))
    said = "the head's share of the loss is not significant (95 % CI -34 to 17 %)"
    assert said in str(replace(made, ratio=ratio(-0.34, 0.17)))
    assert "the tuned head scores 2.0 less than Current Eval" in str(replace(made, adapted=45.0))


def test_the_verdict_is_of_what_records_keep() -> None:
    """Of 300 rows the experts are right on 240, the merge on 180 and with a tuned head on 225, the
    base on 150: credit (225 - 150) / (240 - 150)."""

    def of_rows(role: Any, protocol: str, places: range) -> Record:
        shots = None if protocol == "current" else 5
        right = np.isin(np.arange(300), places)
        values = {shots or 0: [right.mean()] * (3 if shots else 1)}
        resamples = kept([right] * len(values[shots or 0]), shots)
        return record(role, role, RTE, protocol, values, rows=300, resamples=(resamples,))

    records = [
        of_rows("expert", "current", range(240)),
        of_rows("merged", "current", range(180)),
        of_rows("merged", "ft-classifier", range(225)),
        of_rows("base", "ft-classifier", range(150)),
    ]
    (made,) = verdicts(lines(records))
    assert made.ratio is not None
    assert made.credit is not None
    assert made.ratio.point == pytest.approx(0.75)
    assert made.credit.point == pytest.approx(75 / 90)
    for one in (made.ratio, made.credit):
        assert one.ends[0] < one.point < one.ends[1] < 1
    other = records[0].model_copy(update={"resamples": (kept([np.ones(300)], None, "1" * 16),)})
    assert verdicts(lines([other, *records[1:]])) == [], "of other resamples"


@pytest.mark.parametrize("tasks", [(RTE, RTE), (RTE, MRPC)], ids=["one task", "two tasks"])
def test_very_unequal_experts_are_called_out(tasks: tuple[str, str]) -> None:
    """A mean that hides them hides what a tuned head shows: that stands first."""
    records = [
        record("expert", name, task, "current", value)
        for name, task, value in zip("ab", tasks, (0.638, 0.142), strict=True)
    ]
    for task in {*tasks}:
        records.append(record("merged", "m", task, "current", 0.333))
        records.append(record("merged", "m", task, "ft-classifier", {5: [0.74]}))
    (made,) = verdicts(lines(records))
    first, second, third = str(made).split(". ")[:3]
    assert first.endswith("the merge scores 33.3 under Current Eval")
    assert second == "FT-Classifier Eval with 5 shots scores 74.0, 40.7 points more"
    assert third.startswith("Its experts are very unequal (14.2 to 63.8, 39.0 on average), so")
    fair = [one for one in records if one.role != "expert"]
    fair += [record("expert", task, task, "current", 0.6) for task in {*tasks}]
    assert "unequal" not in str(verdicts(lines(fair))[0])


@pytest.mark.parametrize("best", [0.1, 0.6])
def test_experts_below_the_best_constant_are_asked_for_their_labels(best: float) -> None:
    """All of a task: one alone may be what it is."""
    made = [record("expert", name, MRPC, "current", x) for name, x in (("a", 0.05), ("b", best))]
    made += [record("merged", "m", MRPC, "current", 0.1)]
    made += [record("merged", "m", MRPC, "ft-classifier", {5: [0.2]})]
    constant = DrawScore(value=0.5, parts={"f1": 0.5})
    made = [one.model_copy(update={"majority": constant}) for one in made]
    (one,) = verdicts(lines(made))
    assert one.astray == (() if best > 0.5 else ("mrpc",))
    assert ("order?" in str(one)) is (best < 0.5)
    wide = {"low": 0.05, "high": 0.55, "method": "student"}
    unsure = tuple(Interval(shots=shots, **wide) for shots in (None, 0, 5))
    chance = [one.model_copy(update={"intervals": unsure}) for one in made]
    assert verdicts(lines(chance))[0].astray == ()


def test_an_expert_far_below_its_merge_is_called_out() -> None:
    """Also where a tuned head scores less: the merge is far above its expert."""
    records = [
        record("expert", "a", MRPC, "current", 0.17),
        record("merged", "m", MRPC, "current", 0.8),
        record("merged", "m", MRPC, "ft-classifier", {5: [0.3]}),
        record("base", "base", MRPC, "ft-classifier", {5: [0.4]}),
    ]
    (made,) = verdicts(lines(records))
    _, second, third = str(made).split(". ")[:3]
    assert second.endswith("with 5 shots scores 30.0 (base: 40.0), 50.0 points less")
    assert third.startswith("Its experts are far below that (17.0 to 17.0")


def test_the_verdict_averages_over_experts_draws_and_tasks() -> None:
    records = [
        *one_task(),
        record("merged", "m", MRPC, "current", 0.5),
        record("merged", "m", MRPC, "ft-classifier", {1: [0.1, 0.1], 5: [0.5, 0.9]}),
        record("expert", "e3", MRPC, "current", 0.9),
    ]
    found = verdict(records)
    assert found is not None
    assert found.experts == pytest.approx(mean([70, 90]))
    assert found.current == pytest.approx(mean([60, 50]))
    assert found.adapted == pytest.approx(mean([64, 70]))
    assert (found.setting.shots, found.tasks) == (5, 2)
    assert str(found).startswith(
        "averaged over 2 tasks, the merge scores 55.0 under Current Eval, 25.0 points below"
    )


@pytest.mark.parametrize("role_protocol", ["expert current", "merged ft-classifier"])
def test_there_is_no_verdict_without_its_parts(role_protocol: str) -> None:
    left = [r for r in one_task() if f"{r.role} {r.protocol}" != role_protocol]
    assert verdict(left) is None


# Boards ---------------------------------------------------------------------------------------


def written(folder: Path, records: list[Record]) -> Path:
    for number, one in enumerate(records):
        path = folder / str(number) / f"{one.protocol}.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(one.model_dump(mode="json")))
    return folder


def test_a_board_takes_the_place_of_a_board_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records, out = written(tmp_path / "records", two_tasks()), tmp_path / "out"
    command = ["leaderboard", str(records), "--out", str(out)]
    assert main(command) == main(command) == 0
    for name in ("board.md", "board.csv", "board.tex", "index.html", "board.parquet"):
        before = (out / name).read_bytes()
        (out / name).write_text("precious")
        capsys.readouterr()
        assert main(command) == 2
        said = f"{out / name} exists and this program did not write it"
        assert said in capsys.readouterr().err
        assert (out / name).read_text() == "precious"
        (out / name).unlink()
        os.mkfifo(out / name)
        assert main(command) == 2
        assert said in capsys.readouterr().err
        (out / name).unlink()
        (out / name).write_bytes(before)


def test_the_command_writes_what_the_function_renders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = written(tmp_path / "records", one_task())
    out = tmp_path / "deep" / "board"
    assert main(["leaderboard", str(records), "--out", str(out)]) == 0
    texts = texts_of(board_of(read_lines([records])), out)
    names = [*texts, "board.parquet"]
    assert capsys.readouterr().out == "".join(f"wrote {out}/{name}\n" for name in names)
    assert {path.name for path in out.iterdir()} == {*names}
    assert {name: (out / name).read_text() for name in texts} == texts


def test_a_merge_that_scores_as_the_best_constant_is_not_the_best() -> None:
    """By hand: 0.05 and 0.55 have the mean 0.3, as two constants of 0.3, but for rounding."""
    values = {"ties": (0.05, 0.55), "average": (0.05, 0.5)}
    records = [
        record("merged", method, task, "current", value, method=method)
        for method, row in values.items()
        for task, value in zip((RTE, MRPC), row, strict=True)
    ]
    constant = DrawScore(value=0.3, parts={"accuracy": 0.3})
    board = board_of(lines([one.model_copy(update={"majority": constant}) for one in records]))
    (setting,) = board.scores.settings
    mean, best = (board.scores.cell(row, setting, "mean") for row in ("ties", CONSTANT))
    assert mean is not None
    assert best is not None
    assert mean.mean > best.mean
    assert mean.mean == pytest.approx(best.mean)
    assert board.best[setting, "mean"] == frozenset()


def test_boards_of_several_places_have_a_page_over_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    constant = DrawScore(value=0.9, parts={"accuracy": 0.9})
    tied = [record("merged", one, RTE, "current", 0.6, method=one) for one in ("a", "b")]
    beaten = [one.model_copy(update={"majority": constant}) for one in tied]
    base = {"base": Source(source="hub/bert-base/", digest="b")}
    other = [record("merged", one, RTE, "current", value, method=one, rows=rows, **base)
             for one, value, rows in (("<b>", 0.7, 100), ("dare", 0.6, 100))]  # fmt: skip
    other += [record("expert", f"e{n}", RTE, "current", 0.9) for n in range(3)]
    places = [written(tmp_path / name, of) for name, of in (("a #1?", other), ("two", beaten))]
    out = tmp_path / "boards"
    command = ["leaderboard", *map(str, places), "--each", "--out", str(out)]
    assert main(command) == main(command) == 0
    assert capsys.readouterr().out.count(f"wrote {out / 'two'}/") == 2 * 5
    page = (out / "index.html").read_text()
    links = re.findall(r'href="([^"]*)"', page)
    assert [(out / unquote(link)).is_file() for link in links] == [True, True]
    first, second = page.split("<article")[1:]
    for said in ("<p>Under current &lt;b&gt; scores highest with 70.0.</p>", "<dd>bert-base</dd>",
                 "<dd>3 of each task</dd>", "<dd>2</dd>"):  # fmt: skip
        assert said in first
    assert "no merge scores more than the best constant prediction" in second
    assert "<script" not in page
    assert "3 of each task; sets of experts: 1; test rows: 100" in (
        out / "a #1?" / "board.md"
    ).read_text().replace("\n  ", " ")
    (out / "index.html").write_text("precious")
    assert main(command) == 2
    assert "index.html exists and this program did not write it" in capsys.readouterr().err
    twins = ["leaderboard", str(places[1]), str(written(tmp_path / "x" / "two", tied)), "--each"]
    assert main([*twins, "--out", str(tmp_path / "new")]) == 2
    assert "would be one board; expected folders of other names" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_a_board_is_written_whole_or_not_at_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever of its files there is no room for, and what was there stays."""
    out = tmp_path / "board"
    records = written(tmp_path / "records", one_task())
    assert main(["leaderboard", str(records), "--out", str(out)]) == 0
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    more = [*one_task(), record("merged", "n", RTE, "current", 0.1, method="dare")]
    written(tmp_path / "more", more)
    sizes = sorted({len(content) for content in before.values()})
    for room in (size - 1 for size in sizes):
        for place, left in ((out, before), (tmp_path / "new", None)):
            with no_file_above(room):
                assert main(["leaderboard", str(tmp_path / "more"), "--out", str(place)]) == 2
            assert "cannot be written" in capsys.readouterr().err
            if left is None:
                assert not place.exists()
            else:
                assert {path.name: path.read_bytes() for path in place.iterdir()} == left


def test_the_board_has_the_share_of_the_head() -> None:
    markdown, _ = board(one_task())
    part = markdown.partition("## How much of the loss is the head's")[2]
    row = next(line for line in part.splitlines() if line.startswith("| ties"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells == ["ties", "1", "70.0", "60.0", "64.0", "10.0", "4.0?", ""]


def test_the_order_of_the_places_is_kept_and_files_are_sorted(tmp_path: Path) -> None:
    first = written(tmp_path / "a", one_task())
    second = written(tmp_path / "b", [record("merged", "n", RTE, "current", 0.9, method="dare")])
    leaderboard([second, first], out=tmp_path / "one")
    leaderboard([second, *sorted(first.rglob("*.json"))], out=tmp_path / "two")
    board_of = {x: (tmp_path / x / "board.md").read_text() for x in ("one", "two")}
    assert board_of["one"] == board_of["two"]
    assert board_of["one"].index("| dare") < board_of["one"].index("| ties")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "cannot be read as a record"),
        ("[]", "holds a list, expected a record"),
        (
            "{}",
            "is not a record of `harness evaluate`, nor a folder of records: "
            "field 'model': Field required",
        ),
        (None, "does not exist"),
    ],
)
def test_a_broken_record_is_named(
    text: str | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "records", one_task())
    path = tmp_path / "records" / "broken-0123456789ab.json"
    if text is not None:
        path.write_text(text)
    command = ["leaderboard", str(path.parent if text is not None else path)]
    assert main([*command, "--out", str(tmp_path / "board")]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"harness: {path}")
    assert says in error
    assert error.count("\n") == 1
    assert not (tmp_path / "board").exists()


def test_an_unknown_field_is_named(tmp_path: Path) -> None:
    found = {**one_task()[0].model_dump(mode="json"), "mood": "good"}
    (tmp_path / "odd.json").write_text(json.dumps(found))
    with pytest.raises(BrokenRecord, match=r"odd\.json: field 'mood'"):
        read_records([tmp_path])


def test_a_model_called_as_a_computed_row_has_a_row_of_its_own() -> None:
    """An expert of the name of the best constant, say."""
    called = [
        one.model_copy(update={"model": "best constant"}) if one.model == "e1" else one
        for one in one_task()
    ]
    majority = DrawScore(value=0.5, parts={"accuracy": 0.5})
    records = [one.model_copy(update={"majority": majority}) for one in called]
    rows = grid(records, by_method=False).rows
    assert "model best constant" in rows
    assert rows.count(CONSTANT) == 1


def test_places_that_overlap_are_read_once(tmp_path: Path) -> None:
    records = written(tmp_path / "records", one_task())
    files = sorted(records.rglob("*.json"))
    assert read_records([records, *files, records / "." / "0"]) == read_records([records])


def test_options_of_an_unknown_protocol_are_columns_of_their_own() -> None:
    """Its plug-in is not loaded: which options are its defaults is not known."""
    records = [
        record("merged", "m", RTE, "mine", {5: [0.5, 0.6]}, options={"metric": "l1", "k": 1}),
        record("base", "b", RTE, "mine", {5: [0.7, 0.8]}, options={"metric": "l2", "k": 1}),
    ]
    settings = grid(records, by_method=False).settings
    assert [str(one) for one in settings] == [
        "mine:k=1,metric=l1, 5 shots",
        "mine:k=1,metric=l2, 5 shots",
    ]


def test_a_folder_without_records_is_named(tmp_path: Path) -> None:
    with pytest.raises(BrokenRecord, match="holds no records"):
        read_records([tmp_path])
    pandas.DataFrame({"text": ["a"]}).to_parquet(tmp_path / "train.parquet")
    with pytest.raises(BrokenRecord, match="holds no records"):
        read_records([tmp_path])
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": {"adaptation": 7}}}')
    with pytest.raises(BrokenRecord, match=r"tokenizer\.json holds no records"):
        read_records([tmp_path])


def test_a_board_says_whose_experts_are_below_the_best_constant() -> None:
    """RTE's experts have 0.7 in the mean, that of MRPC 0.9."""
    records = [*one_task(), *two_tasks()[1::2], record("expert", "e3", MRPC, "current", 0.9)]

    def said(rte: float, mrpc: float) -> str:
        constants = {
            task: DrawScore(value=value, parts={"accuracy": value})
            for task, value in ((RTE, rte), (MRPC, mrpc))
        }
        known = [one.model_copy(update={"majority": constants[one.task]}) for one in records]
        return about_text(board_of([*lines(known)]))

    assert "constant" not in said(0.69, 0.89)
    assert said(0.712, 0.89).endswith(
        " Experts score less than the best constant prediction on rte (70.0 against 71.2)."
    )
    assert "rte (70.0 against 71.2), mrpc (90.0 against 91.0)." in said(0.712, 0.91)


def test_of_equal_merges_the_finding_names_the_first() -> None:
    """Whatever order a set of names has in this process."""
    names = [f"merge-{number}" for number in range(25)]
    records = [record("merged", name, RTE, "current", 0.7, method=name) for name in names]
    finding = summary(board_of([*lines(records)]))["finding"]
    assert finding.startswith("Under current merge-0 scores highest with 70.0")


BOARDS = sorted(path.parent.name for path in LEADERBOARDS.glob("*/board.md"))


def committed(name: str) -> Board:
    """The board of committed records, of which the claims of pages (test_docs.py) are as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(LEADERBOARDS))
        known = importlib.import_module("differences").known
    board: Board = known(LEADERBOARDS, name)
    return board


@pytest.mark.parametrize("name", BOARDS)
def test_committed_boards_are_what_their_records_render_to(name: str) -> None:
    for file, content in rendered(committed(name), LEADERBOARDS / name):
        found = LEADERBOARDS / name / file
        if isinstance(content, bytes):
            frames = [pandas.read_parquet(one) for one in (io.BytesIO(content), found)]
            if not frames[0].equals(frames[1]):  # which takes a moment
                pandas.testing.assert_frame_equal(*frames)
        elif file not in ("board.csv", "board.tex"):  # which are made, and not kept
            assert found.read_text(encoding="utf-8") == content, file


@pytest.mark.parametrize("protocol", ["current", "ft-classifier"])
def test_a_board_and_a_comparison_of_two_say_the_same(protocol: str) -> None:
    """Of three sets of experts: one difference has one interval and one p-value, on every task and
    in the mean."""
    board, records = committed("emotions"), LEADERBOARDS / "records" / "emotions.parquet"
    at = board.scores.headlines[protocol]
    for row, other in (("dare[ties]", "ties"), ("procrustes[average]", "average")):
        made = compare([row, other], protocol=protocol, records=records)
        assert isinstance(made, Comparison)
        of_tasks = {one.task: (one.within, one.p) for one in made.tasks}
        for column, (within, p) in {**of_tasks, "mean": (made.within, made.p)}.items():
            gain = board.gained[board.joint_names.get(row, row), at, column]
            assert gain.within == pytest.approx([100 * end for end in within])
            assert gain.p == pytest.approx(p, rel=1e-6)


@pytest.mark.parametrize("name", ["topics", "glue", "emotions", "protocols"])
def test_what_is_bold_and_places_say_the_same(name: str) -> None:
    """As many are bold as are not significantly behind the first, but for those that a constant
    prediction reaches, and of these whoever may be first."""
    board = committed(name)
    assert board.credits
    at, column = board.credits.setting, board.scores.columns[-1]
    constant = board.scores.cell(CONSTANT, at, column)
    assert constant is not None
    merges = {one.name: one for one in board.credits.defined if one.tuned > constant.mean}
    best = board.best[at, column] & merges.keys()  # what is made on test rows has no place
    assert {row for row, one in merges.items() if one.place and one.place[0] == 1} <= best
    first = board.credits.defined[0].place
    assert first is not None
    assert len(best) == first[1] or constant.mean > min(o.tuned for o in board.credits.defined)


def test_the_committed_page_over_all_boards_is_what_their_records_render_to() -> None:
    boards = {name: committed(name) for name in BOARDS}
    said = {name: summary(one) for name, one in boards.items()}
    credits = {name: board_credits(one) for name, one in boards.items()}
    assert (LEADERBOARDS / "index.html").read_text(encoding="utf-8") == index(said, credits)


def test_the_published_schema_is_that_of_a_record() -> None:
    path = Path(__file__).parent.parent / "leaderboards" / "record.schema.json"
    assert json.loads(path.read_text(encoding="utf-8")) == Record.model_json_schema()
