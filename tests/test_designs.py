"""The papers' designs: each plans what its table has, and its paper's numbers stand beside ours."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import shutil
import sys
from math import sqrt
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from harness import TASKS
from harness.cli import main
from harness.data.groups import expanded
from harness.data.rows import load_rows
from harness.errors import BadRecipe
from harness.evaluation.records import Record, Source, write_record
from harness.presets import PRESETS
from harness.reporting.sets import with_set_numbers
from harness.stats.intervals import student
from harness.studies.board import curves_of
from harness.studies.experts import leaf, slug
from harness.studies.outcomes import Outcome, write_outcome
from harness.studies.paper import (
    MEAN,
    ROLES,
    ComparedCell,
    Paper,
    PaperCell,
    PaperTable,
    as_csv,
    as_markdown,
    compared_cells,
    few_rows,
    paper_of,
    tables,
)
from harness.studies.plan import make_plan as planned_of
from harness.studies.plan import read_plan, write_plan
from harness.studies.read import DESIGNS, PAPERS, OnAsAWord, read_study
from harness.studies.step import Step
from harness.studies.steps import steps_of
from harness.studies.study import Figure
from harness.training.miniature import SUITE, make_base
from tests.mistakes import mistake, names
from tests.plans import read_back
from tests.resampled import lines, resampled
from tests.test_boards import MRPC, RTE, record

DESIGN = sorted(path.stem for path in DESIGNS.glob("*.yaml"))
SHARED = (
    # those that are merged of the same experts, after one that trains them all
    ("procrustes-2", "procrustes-1", "dare-rates", "ties-densities"),
    (
        *("regmean-2", "regmean-pairs", "regmean-rows", "regmean-alpha", "regmean-diagonal"),
        "regmean-incremental",
    ),
    ("regmean-3", "regmean-pairs-ner", "regmean-incremental-ner"),
    ("rotation-1", "rotation-1-layers", "rotation-figure-3"),
    ("rotation-1-ner", "rotation-1-ner-layers"),
    ("ft-classifier-2", "ft-classifier-3", "ft-classifier-figure-4"),
)
FOLDERS = ("glue", "textcls", "ner", "emotion")
EXPECTED = {
    # experts (and multi-task models), merges, cells: merge x task x protocol
    "procrustes-1": (9 * 5, 9 * (5 * 2 + 1), 9 * 11),
    "procrustes-2": (9 * 5, 9 * (5 * 4 + 2), 9 * 22),
    "procrustes-3": (3 * 5, 3 * (3 * 4 + 1), 3 * 13),
    "regmean-1": (8 * 5 * 2, 8 * 5 * 3, 8 * 5 * 3),
    "regmean-2": (5 * 5 + 5, 5 * 3, 5 * 3 * (5 + 5)),
    "regmean-2-heads": (5 * 5, 5 * 3, 5 * 3 * (5 + 5)),
    "regmean-3": (6 * 5 + 5, 5 * 3, 5 * 3 * (6 + 2)),
    "regmean-pairs": (5 * 5, 10 * 5 * 3, 10 * 5 * 3 * (2 + 5)),
    "regmean-pairs-glue": (8 * 5, 28 * 5 * 3, 28 * 5 * 3 * 2),
    "regmean-pairs-ner": (6 * 5, 15 * 5 * 3, 15 * 5 * 3 * (2 + 2)),
    "regmean-alpha": (5 * 5, 5 * 11, 5 * 11 * (5 + 5)),
    "regmean-diagonal": (5 * 5, 10 * 5 * 6, 10 * 5 * 6 * 2),
    "regmean-rows": (5 * 5, 5 * 5, 5 * 5 * (5 + 5)),
    "regmean-incremental": (5 * 5, 4 * 5 * 3, 4 * 5 * 3 * (5 + 5)),
    "regmean-incremental-ner": (6 * 5, 5 * 5 * 3, 5 * 5 * 3 * (6 + 2)),
    "dare-rates": (9 * 5, 9 * 3 * 7, 9 * 3 * 7),
    "ties-densities": (9 * 5, 9 * 7, 9 * 7),
    "rotation-1": (5 * 5, 10 * 5 * 6, 10 * 5 * 6 * 2),
    "rotation-1-ner": (6 * 5, 15 * 5 * 6, 15 * 5 * 6 * (2 + 1)),
    "rotation-1-layers": (5 * 5, 10 * 5 * 3, 10 * 5 * 3 * 2),
    "rotation-1-ner-layers": (6 * 5, 15 * 5 * 3, 15 * 5 * 3 * (2 + 1)),
    "rotation-2": (0, 3 * (3 + 2) + 2, 3 * (3 + 2) + 2),
    "rotation-2-start": (1, 0, 0),
    "rotation-2-other-start": (1, 0, 0),
    "rotation-3": (5, 10 * 6, 10 * 6 * 2),
    "rotation-figure-3": (5, 10 * 12, 10 * 12 * 2),
    "ft-classifier-2": (5 + 1, 4, 4 * 5 * 3),
    "ft-classifier-3": (5 + 1, 3, 3 * 5 * 4),
    "ft-classifier-figure-4": (5, 3, 3 * 5 * 8),
}


@pytest.fixture(scope="module")
def toy() -> ModuleType:
    """The writer of made-up rows; it sets the environment of a process of its own."""
    folder = Path(__file__).parents[1] / "leaderboards"
    if not folder.is_dir():
        pytest.skip("boards are no part of the source distribution")
    before = dict(os.environ)
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location("toy_rows", folder / "toy.py")
        assert spec is not None
        assert spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
    finally:
        sys.path.remove(str(folder))
        os.environ.clear()
        os.environ.update(before)
    return made


def write(toy: ModuleType, out: Path, *names: str) -> Path:
    texts = load_rows(TASKS[SUITE[0]], "train90").texts
    words = sorted({word for text in texts for part in text for word in part.split()})
    for task in map(TASKS.__getitem__, names):
        for split in ("train", task.splits[task.reported]):
            toy.write(task, split, out / task.name / f"{split}.parquet", words)
    return out


def test_a_design_is_found_again_beside_its_own_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder that a run writes is called as the design is."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rotation-3").mkdir()
    assert read_study("rotation-3").study == "rotation-3"


@pytest.fixture(scope="module")
def data(toy: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made-up rows of every task that a design is of."""
    names = [one for one in TASKS if one.partition("/")[0] in FOLDERS and "_plo" not in one]
    return write(toy, tmp_path_factory.mktemp("designs"), *names, "vision/cifar10")


def seeds(name: str) -> str:
    """How few seeds a design makes sets of."""
    said = yaml.safe_load((DESIGNS / f"{name}.yaml").read_text())
    return "2" if said.get("sets") == {"by": "task"} else "1"


def steps(name: str, data: Path, out: Path) -> dict[str, Step]:
    for place in ("vit-0/cifar10-0", "vit-1/cifar10-1"):
        (out / "experts" / place).mkdir(parents=True, exist_ok=True)
        said = json.dumps({"tasks": ["vision/cifar10"]})
        (out / "experts" / place / "expert.json").write_text(said)
        (out / "bases" / place.partition("/")[0]).mkdir(parents=True, exist_ok=True)
    return {one.name: one for one in steps_of(read_study(name, out), out, str(data))}


@pytest.fixture(scope="module")
def planned(
    data: Path, deep: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Step]]:
    out = tmp_path_factory.mktemp("planned")
    for counted in ("FacebookAI/roberta-base", "bases/vit-0"):  # of these, layers
        shutil.copytree(deep, out / counted)
    return {name: steps(name, data, out) for name in DESIGN}


# Designs -----------------------------------------------------------------------------------


def test_every_design_is_expected() -> None:
    assert sorted(EXPECTED) == DESIGN
    assert {path.stem for path in PAPERS.glob("*.yaml")} <= {*DESIGN}


@pytest.mark.parametrize("name", DESIGN)
def test_a_design_plans_the_cells_of_its_table(
    name: str, planned: dict[str, dict[str, Step]]
) -> None:
    made = planned[name].values()
    counts = [sum(one.verb == verb for one in made) for verb in ("finetune", "merge")]
    assert (*counts, sum(one.cells for one in made)) == EXPECTED[name]
    text = (DESIGNS / f"{name}.yaml").read_text()
    said = yaml.safe_load(text)
    assert said["study"] == name
    for figure in said.get("figures", ()):
        assert "plot" in figure or curves_of(planned[name], Figure(**figure))
    assert text.startswith("# ")


def test_what_a_design_says_that_it_shares_is_known() -> None:
    for name in DESIGN:
        text = (DESIGNS / f"{name}.yaml").read_text().replace("\n# ", " ")
        found = re.findall(r"(?:experts|pairs|folder) of ([\w-]+)", text)
        said = {one for one in found if one in DESIGN}
        assert not said or any({name, *said} <= {*group} for group in SHARED), (name, said)


@pytest.mark.parametrize("group", SHARED, ids=lambda group: group[0])
def test_designs_that_share_experts_ask_the_same_of_them(
    group: tuple[str, ...], planned: dict[str, dict[str, Step]]
) -> None:
    """So that one folder holds them once, and nothing else under one name twice."""
    known: dict[str, Step] = {}
    for name in group:
        trained = {n for n, one in planned[name].items() if one.verb == "finetune"}
        assert not known or trained <= known.keys(), name
        for step in planned[name].values():
            assert known.setdefault(step.name, step).request == step.request


@pytest.mark.filterwarnings("ignore:8 examples at most are shown")
@pytest.mark.parametrize("group", SHARED, ids=lambda group: group[0])
def test_designs_that_share_experts_have_boards_in_one_folder(
    group: tuple[str, ...], base: Path, data: Path, tmp_path: Path
) -> None:
    """As `study run` leaves them there, one after the other."""
    more = ["--base", str(base), "--data-dir", str(data), "--out", str(tmp_path), "--write"]
    for name in (*group, group[0]):
        assert main(["study", "plan", name, *more, "--seeds", seeds(name), "--limit", "8"]) == 0
        for step in read_plan(tmp_path / f"plans/latest/{name}.json").steps.values():
            write_outcome(step, tmp_path, Outcome("done", step.request))


@pytest.mark.parametrize("name", DESIGN)
def test_the_plan_of_a_design_is_read_back(
    name: str, planned: dict[str, dict[str, Step]], tmp_path: Path
) -> None:
    read_back(name, [*planned[name].values()], tmp_path)


FROM_THE_ISSUE = """
study: topics
base: [gte-small, all-MiniLM-L6-v2]
experts: {tasks: textcls, seeds: [0, 1, 2], finetune: {limit: 6000}, head_seed: same}
sets: {by: seed}
mergers:
  [average, "ties:density=0.2", {merger: task_arithmetic, tune: {scale: 0.1:1:0.1}, on: heldout10}]
premerge: [none, rotation, dare]
protocols: [current, knn, "ft-classifier:shots=[1,5,10]"]
references: [base, ensemble, mtl, best-single]
score_on: {in_domain: experts, out_of_domain: [emotion/ssec, emotion/emoint]}
exclude: [{merger: fisher, premerge: dare}]
"""
"""A study of two bases, which leaves out what it does not have."""


@pytest.mark.filterwarnings("default:score_on", "default:no task has several")
def test_a_study_may_leave_out_what_it_does_not_have(
    base: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("gte-small", "all-MiniLM-L6-v2"):
        shutil.copytree(base, tmp_path / name)
    (tmp_path / "topics.yaml").write_text(FROM_THE_ISSUE)
    command = ["study", "plan", str(tmp_path / "topics.yaml"), "--data-dir", str(data)]
    assert main([*command, "--out", str(tmp_path / "out"), "--write"]) == 0
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "score_on" in one]
    names(line, "score_on.out_of_domain", "head", "emotion/ssec")
    made = read_plan(tmp_path / "out/plans/latest/topics.json").steps.values()
    sets, tasks, merges = 2 * 3, len(expanded(("textcls",), str(data))), 3 * 3
    assert [
        sum(one.verb == verb for one in made) for verb in ("finetune", "merge", "evaluate")
    ] == [
        sets * (tasks + 1),
        sets * merges,
        sets * merges * tasks * 2,  # once with 1, 5 and 10 shots
    ]


@pytest.mark.parametrize(("name", "starts"), [("regmean-2", 1), ("regmean-2-heads", 5)])
def test_heads_of_one_merge_start_alike_or_each_apart(
    planned: dict[str, dict[str, Step]], name: str, starts: int
) -> None:
    """Not from the seed of the training, which the experts of one merge share."""
    made = planned[name]
    merges = [step.request for step in made.values() if step.verb == "merge"]
    for merge in merges:
        experts = [made[one].request for one in merge["experts"]]
        assert len({one["seed"] for one in experts}) == 1 < len(experts)
        assert len({one["head_seed"] for one in experts}) == starts
    heads = {
        step.request["head_seed"]
        for step in made.values()
        if step.verb == "finetune" and "task" in step.request
    }
    assert len(heads) == (1 if starts == 1 else 25)


def test_both_parts_of_each_task_are_merged(planned: dict[str, dict[str, Step]]) -> None:
    made = planned["regmean-1"]
    merge = made["merged/roberta-base/rte/seed-3/regmean"].request
    assert [made[one].request["part"] for one in merge["experts"]] == ["1/2", "2/2"]
    assert {made[one].request["limit"] for one in merge["experts"]} == {1000}


# Papers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(path.stem for path in PAPERS.glob("*.yaml")))
def test_cells_of_a_paper_are_cells_of_its_design(
    name: str, planned: dict[str, dict[str, Step]]
) -> None:
    """Each is of a merge, a board, a task and a protocol that the study makes."""
    made, paper = planned[name].values(), paper_of(name)
    assert paper is not None
    merges = {one.name.rpartition("/")[2] for one in made if one.verb == "merge"}
    scored = {
        (Path(one.request["output"]).name, task)
        for one in made
        if one.verb == "evaluate"
        for task in one.request.get("tasks", ["vision/cifar10"])
    }
    known = {*merges, *ROLES, "experts, min", "experts, max", "finetune"}
    known |= {"multi-task"} if any(one.name.endswith("-mtl") for one in made) else set()
    for table in paper.tables:
        assert table.values.keys() <= table.rows.keys()
        for row in table.rows:
            assert table.values.get(row, {}).keys() <= table.columns.keys(), row
            for column in table.columns:
                place = table.place(row, column)
                if place.lacking:
                    continue
                assert place.row in known, (row, column)
                assert {*table.tasks} or place.task != "mean" or place.measure == "seconds"
                tasks = table.tasks if place.task == "mean" else (place.task,)
                assert {(place.board or name, task) for task in tasks} <= scored, (row, column)
    asked = {str(one) for path in (DESIGNS / f"{name}.yaml",) for one in [path.read_text()]}
    protocols = {table.place(r, c).protocol for table in paper.tables for r in table.rows
                 for c in table.columns}  # fmt: skip
    assert all(one == "current" or one in "".join(asked) for one in protocols)


def test_a_copy_of_a_design_has_the_papers_numbers(tmp_path: Path) -> None:
    """Under another name, which the file says whose they are."""
    copy = (DESIGNS / "ties-densities.yaml").read_text()
    assert paper_of("mine") is None
    step = Step("records/mine/merged/x/average/rte", "evaluate", {"output": "records/mine"})
    merged = Step("merged/x/average", "merge", {"experts": []}, base="x")
    path = tmp_path / "mine.yaml"
    path.write_text(re.sub("(?m)^study: .*$", "study: mine\npaper: procrustes-1", copy))
    study = read_study(path, base=("x",))
    assert (study.study, study.paper) == ("mine", "procrustes-1")
    made = planned_of("mine", [merged, step], paper=study.paper)
    known = {name: Outcome("missing", {}) for name in made.steps}
    assert read_plan(write_plan(made, tmp_path / "mine")) == made
    wrote = tables(made, known, tmp_path / "mine")
    assert {one.name for one in wrote} == {"mine-table-1.md", "mine-table-1.csv"}
    assert "Procrustes" in wrote[0].read_text()


@pytest.mark.parametrize("board", ["mine", "procrustes-1"])
def test_ours_stand_beside_a_papers_numbers_whatever_the_board_is_called(
    board: str, tmp_path: Path
) -> None:
    """A copy of a design has the board of its own name, or those that the design names."""
    merged = Step("merged/x/average", "merge", {"experts": []}, base="x")
    place = f"records/{board}"
    step = Step(f"{place}/merged/x/average/rte", "evaluate", {"output": place}, base="x")
    record_of = resampled(record("merged", "average", RTE, "current", 0.6, method="average"))
    write_record(tmp_path / place / "average" / "one.json", record_of)
    known = {
        merged.name: Outcome("done", {}),
        step.name: Outcome("done", {}, records=(f"{place}/average/one.json",)),
    }
    made = planned_of("mine", [merged, step], paper="procrustes-1")
    (wrote, *_) = tables(made, known, tmp_path)
    assert "60.0" in wrote.read_text()


@pytest.mark.parametrize(
    "name", ["procrustes-1", "procrustes-2", "procrustes-3", "ft-classifier-2"]
)
def test_the_means_that_a_paper_prints_are_those_of_its_columns(name: str) -> None:
    paper = paper_of(name)
    assert paper is not None
    for table in paper.tables:
        mean = [*table.columns][-1]
        for row, values in table.values.items():
            others = [value for column, value in values.items() if column != mean]
            assert abs(values[mean] - sum(others) / len(others)) < 0.11, (table.table, row)


# Ours beside -------------------------------------------------------------------------------


def made(role: Any, model: str, task: str, value: float, *experts: str, **given: Any) -> Record:
    sources = tuple(
        Source(source=e, digest=e, task=f"glue/{e[:-1]}", seed=int(e[-1])) for e in experts
    )
    return resampled(record(role, model, task, "current", value, experts=sources, **given))


ROWS = {
    "simple": {"row": "average"},
    "own": {"row": "experts"},
    "worst": {"row": "experts, min"},
    "best": {"row": "best individual"},
    "drop": {"row": "average", "measure": "drop"},
    "shared": {"row": "multi-task"},
    "other": {"lacking": "not ours"},
}
COLUMNS = {"rte": {"task": "glue/rte"}, "mrpc": {"task": "glue/mrpc"}, "mean": {"task": "mean"}}


def table(**values: dict[str, float]) -> PaperTable:
    return PaperTable(
        table="Table 1", title="t", tasks=("glue/rte", "glue/mrpc"), rows=ROWS, columns=COLUMNS,
        values=values,
    )  # fmt: skip


PAPER = Paper(paper="A paper", base="theirs", tables=())
RECORDS = [
    made("merged", "average", RTE, 0.60, "rte1", "mrpc1", method="average"),
    made("merged", "average", MRPC, 0.40, "rte1", "mrpc1", method="average"),
    made("expert", "rte1", RTE, 0.80, digest="rte1"),
    made("expert", "rte2", RTE, 0.70, digest="rte2"),
    made("expert", "mrpc1", MRPC, 0.50, digest="mrpc1"),
    made("single", "rte1", MRPC, 0.10, digest="rte1"),
    made("single", "mrpc1", RTE, 0.30, digest="mrpc1"),
    made("reference", "mtl", RTE, 0.75, method="multi-task"),
]


def cells(
    asked: PaperTable, records: list[Record] = RECORDS, base: str = "mine"
) -> dict[tuple[str, str], ComparedCell]:
    found = compared_cells(PAPER, asked, base, {"": with_set_numbers(lines(records))}, {})
    return {(one.row, one.column): one for one in found}


def test_cells_by_hand() -> None:
    found = cells(table(simple={"rte": 61.0, "mrpc": 90.0, "mean": 50.5}, shared={"mean": 70.0}))
    ours = {place: one.ours for place, one in found.items() if one.ours is not None}
    assert ours == {
        ("simple", "rte"): pytest.approx(60), ("simple", "mrpc"): pytest.approx(40),
        ("simple", "mean"): pytest.approx(50),
        ("own", "rte"): pytest.approx(75), ("own", "mrpc"): pytest.approx(50),
        ("own", "mean"): pytest.approx(62.5),
        ("worst", "rte"): pytest.approx(70), ("worst", "mrpc"): pytest.approx(50),
        ("worst", "mean"): pytest.approx(60),
        # of rte1 the mean is 45, of mrpc1 40, of rte2 70: it is on one task alone
        ("best", "rte"): pytest.approx(70), ("best", "mean"): pytest.approx(70),
        ("drop", "rte"): pytest.approx(25), ("drop", "mrpc"): pytest.approx(20),
        ("drop", "mean"): pytest.approx(22.5),
        ("shared", "rte"): pytest.approx(75), ("shared", "mean"): pytest.approx(75),
    }  # fmt: skip
    said = {place: one.reason for place, one in found.items() if one.reason}
    assert said.pop(("shared", "mean")) == "without glue/mrpc"
    assert said.pop(("shared", "mrpc")) == "no record"
    assert {place: text for place, text in said.items() if text == "not ours"} == {
        ("other", column): "not ours" for column in COLUMNS
    }
    # a mean over other tasks than the paper's is not compared
    assert found["shared", "mean"].difference is None
    assert found["simple", "rte"].difference == pytest.approx(-1.0)
    assert found["other", "rte"].ours is None


def test_a_mean_that_lacks_a_task_stands_beside_the_papers_of_the_others() -> None:
    """By hand: without mrpc ours is that of rte, 75, and so is the paper's, 71."""
    asked = table(shared={"rte": 71.0, "mrpc": 60.0, "mean": 65.5}, best={"rte": 1.0, "mean": 1.0})
    found = cells(asked, [one for one in RECORDS if "rte" in str(one.task)])
    one = found["shared", "mean"]
    assert (one.ours, one.theirs) == (pytest.approx(75), 71.0)
    assert one.difference == pytest.approx(4.0)
    assert one.significant is True
    assert "- both without glue/mrpc: shared of mean" in as_markdown(PAPER, asked, "mine", [one])
    # the best one is chosen by all tasks
    assert found["best", "mean"].difference is None


def test_a_number_outside_our_interval_differs_significantly() -> None:
    """100 units, a standard error of 0.01: half of the interval is about two points."""
    for away, expected in ((1.0, False), (1.9, False), (2.3, True), (-2.3, True)):
        one = cells(table(simple={"rte": 60.0 + away}))["simple", "rte"]
        assert one.significant is expected, away
    low, high = one.within or (0, 0)
    half = 100 * 0.01 * sqrt(100 / 99) * student(0.025, 99)
    assert (high - low) / 2 == pytest.approx(half, rel=0.05)
    # of two tasks the squares of both halves add
    mean = cells(table(simple={"mean": 50.0}))["simple", "mean"]
    low, high = mean.within or (0, 0)
    assert (high - low) / 2 == pytest.approx(half / sqrt(2), rel=0.05)


def test_what_is_chosen_by_its_scores_is_not_tested() -> None:
    found = cells(table(worst={"rte": 1.0}, best={"rte": 1.0}))
    assert [found[row, "rte"].significant for row in ("worst", "best")] == [None, None]


def test_numbers_of_another_base_stand_alone() -> None:
    asked = table(simple={"rte": 60.0, "mrpc": 40.0})
    columns = {"rte": {"task": "glue/rte", "base": "mine"}, "mrpc": {"task": "glue/mrpc"}}
    asked = asked.model_copy(update={"columns": columns})
    found = cells(asked)
    assert found["simple", "rte"].difference is not None
    assert (found["simple", "mrpc"].ours, found["simple", "mrpc"].reason) == (
        None,
        "of another base",
    )
    # of a base that the paper has not, ours stand where its own are
    found = cells(asked, base="third")
    assert (found["simple", "rte"].ours, found["simple", "mrpc"].ours) == (None, pytest.approx(40))


def test_pairs_and_the_experts_alone_by_their_tasks() -> None:
    matrix = PaperTable(
        table="Table 7", title="t", cells={"row": "average", "task": "glue/rte"},
        rows={"rte": {"of": ["glue/rte"]}, "mrpc": {"of": ["glue/mrpc"]}},
        columns={"rte": {"of": ["glue/rte"]}, "mrpc": {"of": ["glue/mrpc"]}},
        values={},
    )  # fmt: skip
    other = made("merged", "average", RTE, 0.9, "rte1", "cola1", method="average", digest="other")
    found = cells(matrix, [*RECORDS, other])
    assert {place: round(one.ours or 0) for place, one in found.items()} == {
        ("rte", "rte"): 80, ("rte", "mrpc"): 60, ("mrpc", "rte"): 60, ("mrpc", "mrpc"): 30,
    }  # fmt: skip


def test_a_table_is_written_with_what_is_missing() -> None:
    asked = table(simple={"rte": 70.0, "mrpc": 40.5}, other={"rte": 9.0})
    found = [*cells(asked).values()]
    text = as_markdown(PAPER, asked, "mine", found)
    assert " Ours is " not in text
    steps = [
        Step("a", "finetune", {"limit": 60}),
        Step("b", "evaluate", {"limit": 8}),
        Step("c", "merge", {}),
    ]
    few = few_rows(steps)
    assert few == " Ours is trained on 60 rows at most and scored on 8 rows at most."
    assert few in as_markdown(PAPER, asked, "mine", found, few)
    assert not few_rows([*steps[2:], Step("d", "evaluate", {})])
    assert text.startswith("# A paper, Table 1: t\n")
    row = next(line for line in text.splitlines() if line.startswith("| simple"))
    assert [part.strip() for part in row.split("|")[1:4]] == [
        "simple", "60.0 (70.0, -10.0*)", "40.0 (40.5, -0.5)"
    ]  # fmt: skip
    assert "- (9.0)" in text
    assert "- not ours: other" in text.splitlines()
    rows = [*csv.DictReader(as_csv(found).splitlines())]
    assert rows[0] | {"low": "", "high": ""} == {
        "row": "simple", "column": "rte", "ours": "60", "low": "", "high": "", "paper": "70",
        "difference": "-10", "significant": "true", "said": "",
    }  # fmt: skip
    assert len(rows) == len(ROWS) * len(COLUMNS)


def test_an_odd_table_is_one_line() -> None:
    asked = table().model_copy(update={"rows": {"x": {"rwo": "average"}}})
    with mistake(BadRecipe, "Table 1", "x", "rwo", "row"):
        asked.place("x", "rte")


# Runs --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base") / "base", steps=2, width=32)


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base of as many layers as the papers'."""
    return make_base(tmp_path_factory.mktemp("base") / "deep", steps=2, width=32, layers=12)


def read(path: Path) -> list[dict[str, str]]:
    return [*csv.DictReader(path.read_text().splitlines())]


FEW_ROWS = pytest.mark.filterwarnings("default")
"""Statistics and draws warn of fewer rows than they are asked for."""


def run(words: list[str], data: Path, out: Path) -> Path:
    """Do designs on a few rows, with the data sets that are there; the folder of their boards."""
    few = ["--limit", "8", "--epochs", "1", "--device", "cpu"]
    where = ["--data-dir", str(data), "--out", str(out)]
    assert main(["study", "run", *words, *few, *where]) == 0
    return out / "boards"


@FEW_ROWS
def test_a_design_runs_on_the_data_sets_that_are_there(
    toy: ModuleType, base: Path, tmp_path: Path
) -> None:
    """Table 3 of one data set of three: the others are said to be missing."""
    data = write(toy, tmp_path / "data", "ner/ncbi_disease")
    found = run(["procrustes-3", "--base", str(base), "--seeds", "2"], data, tmp_path / "out")
    shutil.rmtree(found)
    for verb in ("status", "board"):  # the folder says what its base was
        assert main(["study", verb, str(tmp_path / "out")]) == 0
    assert (found / "procrustes-3/index.html").is_file()
    rows = read(found / "procrustes-3-table-3.csv")
    by_place = {(one["row"], one["column"]): one for one in rows}
    for row in ("min", "mean", "ties", "dare[ties], projected", "task_arithmetic, tuned"):
        assert by_place[row, "ncbi"]["ours"], row
        assert by_place[row, "tweetner7"]["said"] == "no record"
        mean, alone = by_place[row, "mean"], by_place[row, "ncbi"]
        assert mean["said"].startswith("without" if "tuned" in row else "both without"), row
        assert (mean["ours"], mean["paper"]) == (alone["ours"], alone["paper"])
    board = (found / "procrustes-3/board.md").read_text()
    assert "task_arithmetic (scale tuned)" in board
    presets = {one["preset"] for one in read(found / "procrustes-3/board.csv")}
    assert presets <= {*PRESETS, ""}


@FEW_ROWS
def test_a_design_of_pairs_has_its_matrix_and_its_drops(
    toy: ModuleType, base: Path, tmp_path: Path
) -> None:
    data = write(toy, tmp_path / "data", "emotion/tec", "emotion/isear", "emotion/emoint")
    found = run(["regmean-pairs", "--base", str(base), "--seeds", "1"], data, tmp_path / "out")
    rows = read(found / "regmean-pairs-table-7.csv")
    ours = {(one["row"], one["column"]) for one in rows if one["ours"]}
    assert ours == {(a, b) for a in ("tec", "isear") for b in ("tec", "isear")}
    assert all("emotion/ssec" in one["said"] for one in rows if one["ours"])
    assert (found / "regmean-pairs-figure-4.md").is_file()


FEW = (
    *("glue/mrpc", "glue/stsb", "textcls/ag_news", "textcls/yelp_review_full", "vision/cifar10"),
    *("emotion/tec", "emotion/isear", "emotion/crowdflower", "emotion/emoint"),
    *("ner/ncbi_disease", "ner/conll2003"),
    *(f"ner/ontonotes5_{genre}" for genre in ("bc", "bn", "nw")),
)
"""Data sets of every kind of label, of which each design has as few as it makes sets of."""


@pytest.fixture(scope="module")
def few(toy: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(toy, tmp_path_factory.mktemp("few"), *FEW)


def fewer(name: str, data: Path, out: Path) -> Path:
    """A design of the first of its tasks that are there; its file."""
    said = yaml.load((DESIGNS / f"{name}.yaml").read_text(), OnAsAWord)  # one that is safe
    if asked := said["experts"].get("tasks"):
        some = (asked,) if isinstance(asked, str) else tuple(one for one in asked if one in FEW)
        count = 3 if said.get("sets", {}).get("grow") else 2
        said["experts"]["tasks"] = [*expanded(some, str(data))[:count]]
    if "shots" in said.get("evaluate", {}):
        said["evaluate"]["draws"] = 3
    path = out / f"{name}.yaml"
    path.write_text(yaml.safe_dump(said, sort_keys=False))
    return path


OF_IMAGES = ("rotation-2-start", "rotation-2-other-start", "rotation-2")
"""Designs of one command, of two bases that are made before."""
ALONE = [(one,) for one in DESIGN if not any(one in group for group in (*SHARED, OF_IMAGES))]


@FEW_ROWS
@pytest.mark.designs
@pytest.mark.parametrize("group", [*SHARED, OF_IMAGES, *ALONE], ids=lambda group: group[0])
def test_designs_run_on_made_up_rows(
    group: tuple[str, ...], toy: ModuleType, base: Path, few: Path, tmp_path: Path
) -> None:
    """In one folder where they share experts."""
    out, more = tmp_path / "out", ["--base", str(base), "--seeds", seeds(group[0])]
    if group == OF_IMAGES:
        more = []
        for number in range(2):
            toy.vision.network(out / f"bases/vit-{number}", number, 2, 32)
    files = [str(fewer(name, few, tmp_path)) for name in group]
    found = run([*files, *more], few, out)
    for name in group:
        paper = paper_of(name)
        assert (found / name / "index.html").is_file() == (not name.endswith("-start"))
        asked = [one.request for one in read_plan(out / f"plans/latest/{name}.json").steps.values()]
        tasks = {task for one in asked for task in (*one.get("tasks", ()), one.get("task"))}
        tasks |= {MEAN, "vision/cifar10"}
        for table in paper.tables if paper else ():
            rows = read(found / f"{slug(f'{name} {table.table}'.lower())}.csv")
            places = [(row, table.place(row["row"], row["column"])) for row in rows]
            mine = [row for row, place in places if {place.task, *place.of} <= tasks]
            assert mine, table.table
            assert not [row for row in mine if row["said"] in ("no record", "not timed")]


def test_a_place_is_a_merge_by_its_folder() -> None:
    assert PaperCell(row="average").task == "mean"
    assert leaf("google-bert/bert-base-uncased") == "bert-base-uncased"
