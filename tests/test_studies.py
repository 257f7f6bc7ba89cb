"""Studies: what a YAML asks for, that it is done once and as by hand, and what is refused."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from itertools import combinations
from pathlib import Path
from statistics import stdev
from typing import Any, TypeAlias

import pandas
import psutil
import pytest
import yaml
from safetensors.torch import load_file, save_file

import harness
from harness import TASKS, Recipe, merge, unfinished
from harness.checkpoints.provenance import EXPERT_FILE
from harness.cli import main
from harness.errors import (
    BadOption,
    BadRecipe,
    BrokenCheckpoint,
    CannotWrite,
    HarnessError,
    OutputExists,
    UnknownName,
)
from harness.files import cache_dir
from harness.reporting.chosen import read_both
from harness.reporting.plots.scores import View
from harness.reporting.plots.sweep import sweep
from harness.stats.tests import sets_needed
from harness.studies import inputs, outcomes, pool
from harness.studies.board import curves_of, figures, records_of
from harness.studies.inputs import rows_of, with_inputs
from harness.studies.outcomes import Outcome, outcome_of, outcomes_of, write_outcome
from harness.studies.plan import (
    Chunk,
    Plan,
    SecondsEstimate,
    estimate_seconds,
    make_plan,
    read_plan,
    record_time,
    write_plan,
)
from harness.studies.pool import run_plan, worker_command
from harness.studies.read import read_study
from harness.studies.status import failures, spreads, spreads_of
from harness.studies.step import Step
from harness.studies.steps import steps_of
from harness.studies.study import Figure, Study
from harness.studies.work import work
from harness.training.miniature import make_base
from harness.types import Task
from tests.conftest import registries_kept
from tests.mistakes import mistake, names, refused
from tests.toys import registered

TASK = "embedded/topic"
WHERE = {"data_dir": None, "device": "cpu", "merge_device": "cpu"}
TWO = {
    "study": "two",
    "base": "base",
    "experts": {"tasks": TASK, "seeds": [0, 1], "finetune": {"epochs": 1, "limit": 40}},
    "sets": {"by": "task"},
    "mergers": ["average", "ties"],
    "protocols": ["current", "knn"],
    "evaluate": {"limit": 24, "draws": 2, "shots": [1]},
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("study") / "base", steps=2)


@pytest.fixture
def room(base: Path, tmp_path: Path) -> Path:
    """A folder with a base in it, for studies."""
    shutil.copytree(base, tmp_path / "base")
    return tmp_path


@pytest.fixture
def own_tasks() -> Iterator[None]:
    """Tasks of files are known in a test alone."""
    with registered():
        yield


def write(room: Path, **changed: Any) -> Path:
    """A study of the room; what is changed to None is left out."""
    said = {name: one for name, one in {**TWO, **changed}.items() if one is not None}
    (room / "two.yaml").write_text(yaml.safe_dump(said, sort_keys=False))
    return room / "two.yaml"


def study(room: Path, **changed: Any) -> Study:
    return read_study(write(room, **changed))


def steps(room: Path, **changed: Any) -> dict[str, Step]:
    return {one.name: one for one in steps_of(study(room, **changed), room / "out")}


def merges(room: Path, **changed: Any) -> list[str]:
    """The merges of a study, by what is behind merged/."""
    return [name[7:] for name, one in steps(room, **changed).items() if one.verb == "merge"]


def plan(room: Path, **changed: Any) -> Plan:
    asked = study(room, **changed)
    return make_plan("two", steps_of(asked, room / "out"), keep_merges=asked.keep_merges)


def run(
    room: Path, *, jobs: int = 1, said: list[str] | None = None, **changed: Any
) -> dict[str, Outcome]:
    """Do a study in this process, or in workers; what is told on the way goes into `said`."""
    made, say = plan(room, **changed), ([] if said is None else said).append
    path = write_plan(made, room / "out")
    return run_plan(made, path, room / "out", jobs=jobs, where=WHERE, say=say)


def command(room: Path, **changed: Any) -> None:
    """Do a study as a user does, boards and all."""
    assert main(["study", "run", str(write(room, **changed)), "--out", str(room / "out")]) == 0


Kept: TypeAlias = Callable[..., None]


@pytest.fixture(scope="module")
def done_once(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """What a study leaves in a room, done once for all tests; they take copies of it."""
    made: dict[str, Path] = {}

    def of(do: Callable[..., object], changed: Mapping[str, Any]) -> Path:
        key = f"{do.__name__} {json.dumps(changed)}"
        if key not in made:
            made[key] = tmp_path_factory.mktemp("done")
            shutil.copytree(base, made[key] / "base")
            do(made[key], **changed)
        return made[key] / "out"

    return of


@pytest.fixture
def done(room: Path, done_once: Callable[..., Path]) -> Kept:
    """Puts into the room what it has when a study has been done there."""

    def put(do: Callable[..., object] = run, **changed: Any) -> None:
        shutil.copytree(done_once(do, changed), room / "out")

    return put


def latest(room: Path) -> Plan:
    """The plan that was written last."""
    return read_plan(room / "out/plans/latest/two.json")


def records(folder: Path) -> dict[str, Any]:
    """What every record in a folder says, by its path there."""
    found = sorted((folder / "records").rglob("*.json"))
    return {path.relative_to(folder).as_posix(): json.loads(path.read_text()) for path in found}


# Axes --------------------------------------------------------------------------------------


def test_lists_are_axes(room: Path) -> None:
    found = merges(
        room,
        mergers=["average", "ties:density=[0.1,0.2]"],
        premerge=["none", ["rotation", "dare:drop_rate=0.5"]],
        postmerge=["none", "lines"],
    )
    methods = ("average", "ties-density-0.1", "ties-density-0.2")
    both = [f"{before}{m}" for before in ("", "rotation-dare-drop_rate-0.5-") for m in methods]
    assert sorted(found) == sorted(f"base/topic/{m}{a}" for m in both for a in ("", "-lines"))


def test_a_list_in_a_mapping_is_the_value(room: Path) -> None:
    weighted = {"merger": {"name": "linear", "weights": [0.3, 0.7]}}
    (one,) = [s for s in steps(room, mergers=[weighted]).values() if s.verb == "merge"]
    assert one.request["merger"] == {"name": "linear", "weights": [0.3, 0.7]}


def test_options_of_stages_are_axes_too(room: Path) -> None:
    halves = {"merger": "average", "premerge": "rotation:layers=[first:1,last:1]"}
    assert merges(room, mergers=["ties"], include=[halves]) == [
        f"base/topic/{one}"
        for one in ("ties", "rotation-layers-first-1-average", "rotation-layers-last-1-average")
    ]


def test_each_is_every_number_of_layers_that_the_base_has(room: Path) -> None:
    """As an axis, and as values to choose from."""
    mergers = [
        {"merger": "average", "premerge": ["rotation:layers=each"]},
        {"merger": "ties", "premerge": "rotation", "tune": {"rotation.layers": "each"}},
        {"merger": "ties", "premerge": "permutation:layers=first:1"},
    ]
    made = {name[18:]: one for name, one in steps(room, mergers=mergers).items()}
    assert {f"rotation-layers-first-{n}-average" for n in (1, 2)} <= made.keys()
    tuned = made["rotation-ties-tuned-rotation.layers"]
    assert tuned.request["tune"] == "rotation.layers=[first:1,first:2]"
    assert sum(one.verb == "merge" for one in made.values()) == 4


def test_what_is_of_each_layer_is_scored_and_left_out_by_either_name(room: Path) -> None:
    """That of the study, and that of a folder."""
    asked = {"mergers": ["average"], "premerge": ["rotation:layers=each"]}
    both = [f"base/topic/rotation-layers-first-{n}-average" for n in (1, 2)]
    for name, expected in (
        ("rotation-layers-each-average", both), ("rotation-layers-first-2-average", both[1:]),
    ):  # fmt: skip
        made = steps(room, **asked, score_on={"here": {"mergers": name}}).values()
        of = {one.request["model"] for one in made if one.verb == "evaluate"}
        assert of == {f"merged/{one}" for one in expected}
    assert merges(room, **asked, exclude=[{"premerge": "rotation:layers=first:1"}]) == both[1:]
    gone = {"exclude": [{"premerge": "rotation:layers=each"}], "include": ["ties"]}
    assert merges(room, **asked, **gone) == ["base/topic/ties"]


def test_a_field_of_every_merge_is_said_to_those_that_have_a_use_for_it(room: Path) -> None:
    """Rows to score on to a merger that scores, a dtype to one that runs models."""
    asked = {"mergers": ["average", "soup", "regmean:examples=4"]}
    made = steps(room, **asked, merge={"tune_limit": 3, "dtype": "bfloat16", "drift": False})
    asked_of = [(name, one.request) for name, one in made.items() if one.verb == "merge"]
    of_each = {name.rpartition("/")[2].partition("-")[0]: {*said} for name, said in asked_of}
    fields = {"tune_limit", "dtype", "drift"}
    assert {name: one & fields for name, one in of_each.items()} == {
        "average": {"drift"},
        "soup": fields,
        "regmean": {"dtype", "drift"},
    }


def test_experts_with_a_name_are_apart_from_others_of_their_tasks(room: Path) -> None:
    experts: Any = TWO["experts"]
    found = steps(room, experts={**experts, "called": "mine"}, mergers=["average"])
    assert [*found][:3] == [
        *(f"experts/mine/base/topic-{seed}" for seed in (0, 1)),
        "merged/mine/base/topic/average",
    ]


def test_without_mergers_experts_are_all(room: Path) -> None:
    assert [one.verb for one in steps(room, mergers=None).values()] == ["finetune"] * 2


def test_include_adds_and_exclude_takes_away(room: Path) -> None:
    asked = {
        "premerge": ["none", "dare"],
        "include": [{"merger": "average", "premerge": "procrustes"}],
        "exclude": [{"merger": "ties", "premerge": "none"}],
    }
    found = merges(room, **asked)
    assert found == [
        f"base/topic/{one}"
        for one in ("average", "dare-average", "dare-ties", "procrustes-average")
    ]


@pytest.mark.parametrize(
    ("sets", "expected"),
    [
        ({"by": "seed"}, ["seed-0", "seed-1", "seed-2"]),
        ({"by": "task"}, ["topic", "comparison"]),
        ({"by": "pairs"}, [f"seed-{a}/topic+comparison" for a in "012"]),
        ({"by": "partition"}, [f"{a}/seed-{b}" for b in "012" for a in ("topic", "comparison")]),
        ({"by": "task", "choose": 2}, [f"topic/{a}+{b}" for a, b in combinations("012", 2)]
         + [f"comparison/{a}+{b}" for a, b in combinations("012", 2)]),
        ({"by": "task", "choose": 3, "disjoint": True},
         ["topic/0+1+2", "comparison/0+1+2"]),
        ({"by": "pairs", "disjoint": True}, [f"seed-{a}/topic+comparison" for a in "012"]),
        ({"by": "seed", "grow": True}, [f"seed-{a}/topic+comparison" for a in "012"]),
        ({"by": "task", "grow": True}, [f"{a}/{b}" for a in ("topic", "comparison")
                                        for b in ("0+1", "0+1+2")]),
    ],
    ids=str,
)  # fmt: skip
def test_sets_are_of_a_seed_or_of_a_task(room: Path, sets: Any, expected: list[str]) -> None:
    experts = {"tasks": [TASK, "embedded/comparison"], "seeds": [0, 1, 2]}
    experts |= {"partition": 2} if sets["by"] == "partition" else {}
    found = merges(room, experts=experts, sets=sets, mergers=["average"])
    assert [name.removeprefix("base/").removesuffix("/average") for name in found] == expected


def test_a_pair_is_called_alike_when_there_are_more(room: Path) -> None:
    """A study that gains a seed merges nothing again under another name."""
    sets = {"by": "task", "choose": 2}
    few, more = (
        merges(room, mergers=["average"], sets=sets, experts={**TWO["experts"], "seeds": seeds})
        for seeds in ([0, 1], [0, 1, 2])
    )
    assert few == ["base/topic/0+1/average"]
    assert {*few} < {*more}


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [4, 1, 0, 5, 3, 2]])
def test_sets_that_are_disjoint_share_no_expert(room: Path, order: list[int]) -> None:
    """In the order of the seeds, under the names that they have among all combinations."""
    asked: dict[str, Any] = {"mergers": ["average"], "experts": {**TWO["experts"], "seeds": order}}
    sets = {"by": "task", "choose": 2}
    found = merges(room, **asked, sets={**sets, "disjoint": True})
    pairs = zip(order[::2], order[1::2], strict=True)
    assert found == [f"base/topic/{a}+{b}/average" for a, b in pairs]
    assert {*found} <= {*merges(room, **asked, sets=sets)}


def test_experts_that_are_given_make_sets_by_their_names(room: Path) -> None:
    for name in "abc":
        shutil.copytree(room / "base", room / name)
    asked: dict[str, Any] = {"sets": None, "mergers": ["average"]}
    with mistake(BadRecipe, "two", "do not each say one task", "score_on"):
        merges(room, experts=["a", "b"], **asked)
    asked["score_on"] = {"a": {"tasks": TASK}}
    assert merges(room, experts=["a", "b"], **asked) == ["two/average"]
    two = {"folders": {"one": ["a", "b"], "other": ["b", "c"]}}
    assert merges(room, experts=two, **asked) == ["one/average", "other/average"]


@pytest.mark.parametrize(
    "merger",
    [
        "regmean",
        "soup",
        {"merger": "average", "premerge": "activation_matching"},
        {"merger": "task_arithmetic", "tune": {"scale": "0.5:1:0.5"}},
        {"merger": "task_arithmetic", "tune": {"scale": "0.5:1:0.5"}, "on": "heldout10"},
    ],
)
def test_folders_that_say_no_task_have_no_rows_to_show(room: Path, merger: Any) -> None:
    for name in "ab":
        shutil.copytree(room / "base", room / name)
    asked = {"sets": None, "experts": ["a", "b"], "score_on": {"a": {"tasks": TASK}}}
    with mistake(BadRecipe, "two", "no folder", "says its task", "merge: {tasks"):
        merges(room, mergers=["average", merger], **asked)
    assert len(merges(room, mergers=["average", merger], merge={"tasks": TASK}, **asked)) == 2


def test_a_study_says_the_tasks_of_folders_that_do_not(room: Path) -> None:
    for name in "ab":
        shutil.copytree(room / "base", room / name)
    (room / "own.yaml").write_text("text: t\nlabel: c\nlabels: [x, y]\nfiles: {train: own.csv}\n")
    (room / "own.csv").write_text("t,c\n" + "".join(f"a {i},{'xy'[i % 2]}\n" for i in range(40)))
    asked: dict[str, Any] = {"sets": None, "mergers": ["average"], "experts": ["a", "b"]}
    with registered():
        made = steps(room, merge={"tasks": [TASK, "own.yaml"]}, **asked)
    expected = [TASK, "../own.yaml"]
    assert [one.request["tasks"] for one in made.values() if one.verb == "merge"] == [expected]
    scored = [one.request["tasks"] for one in made.values() if one.verb == "evaluate"]
    assert {task for tasks in scored for task in tasks} == {*expected}
    with mistake(BadRecipe, "two", "3 tasks", "2 experts"):
        merges(room, merge={"tasks": [TASK] * 3}, **asked)
    with mistake(BadRecipe, "two", "leave tasks out"):
        merges(room, merge={"tasks": [TASK]})


def test_merges_of_folders_are_tuned_on_the_tasks_that_these_say(room: Path) -> None:
    for name in "ab":
        shutil.copytree(room / "base", room / name)
        (room / name / EXPERT_FILE).write_text(json.dumps({"tasks": [TASK]}))
    tuned = {"merger": "ties", "tune": {"scale": "0.5:1:0.5"}}
    asked: dict[str, Any] = {"sets": None, "experts": ["a", "b"]}
    assert len(merges(room, mergers=[tuned], **asked)) == 1
    with mistake(BadRecipe, "two", "on", "test", "leave"):
        merges(room, mergers=[{**tuned, "on": "test"}], **asked)


@pytest.mark.parametrize(("tasks", "cells"), [((TASK, TASK), 4), ((TASK, "glue/rte"), 8)])
def test_cells_of_folders_are_of_the_tasks_that_they_say(
    room: Path, tasks: tuple[str, ...], cells: int
) -> None:
    """Two merges under two protocols."""
    for name, task in zip("ab", tasks, strict=True):
        shutil.copytree(room / "base", room / name)
        (room / name / EXPERT_FILE).write_text(json.dumps({"tasks": [task]}))
    made = steps(room, experts=["a", "b"], sets=None)
    assert sum(one.cells for one in made.values()) == cells


SECOND_BASE = {"base": "b2", "base_weights": {"encoder": "2"}}


@pytest.mark.parametrize(
    ("folders", "changed", "things"),
    [
        ("x/a x/b y/a y/b", SECOND_BASE, ("y/b", "b2", "x/a", "base")),
        ("x/a x/b y/a y/d", {}, ("y/a", "x/a", "called a", "other names")),
    ],
    ids=["two bases", "one name and seed"],
)
def test_folders_whose_records_no_board_takes_are_refused_before_any_work(
    room: Path, folders: str, changed: dict[str, Any], things: tuple[str, ...]
) -> None:
    """Mergers that read no base would make one row of two bases."""
    places = folders.split()
    for number, place in enumerate(places):
        shutil.copytree(room / "base", room / place)
        made = {"tasks": [TASK], "seed": number % 2, "digest": f"{number:032}"}
        made |= {"base": "base", "base_weights": {"encoder": "1"}}
        (room / place / EXPERT_FILE).write_text(json.dumps(made | (changed if number == 3 else {})))
    sets = {"folders": {"x": places[:2], "y": places[2:]}}
    refused(
        ["study", "plan", write(room, experts=sets, sets=None), "--out", room / "out"],
        BadRecipe, *things,
    )  # fmt: skip


def test_parts_of_a_task_are_experts_of_their_own(room: Path) -> None:
    experts = {"tasks": TASK, "seeds": [0, 1], "partition": 2}
    made = steps(room, experts=experts, sets={"by": "partition"}, mergers=["average"])
    parts = [one.request["part"] for one in made.values() if one.verb == "finetune"]
    assert parts == ["1/2", "2/2"] * 2
    assert made["merged/base/topic/seed-1/average"].request["experts"] == [
        f"experts/base/topic-1-part-{number}" for number in (1, 2)
    ]


def test_on_is_a_word_in_a_file(room: Path) -> None:
    """YAML's old spelling of true: `on: heldout10` would have the key True."""
    said = {name: one for name, one in TWO.items() if name != "mergers"}
    axis = '[{merger: ties, tune: {scale: "0.5:1:0.5"}, on: heldout10}]'
    (room / "on.yaml").write_text(f"{yaml.safe_dump(said)}mergers: {axis}\n")
    (one,) = read_study(room / "on.yaml").mergers or ()
    assert (one.on, one.tune) == ("heldout10", {"scale": "0.5:1:0.5"})


def test_a_learning_rate_may_have_an_exponent(room: Path) -> None:
    """As in the description of a task: to YAML 1.1 1e-3 is a word, 1.0e-3 a number."""
    said = {**TWO, "experts": {**TWO["experts"], "finetune": {"learning_rate": 0}}}
    text = yaml.safe_dump(said).replace("learning_rate: 0", "learning_rate: 1e-3")
    (room / "rate.yaml").write_text(text)
    made = {one.name: one for one in steps_of(read_study(room / "rate.yaml"), room / "out")}
    (rate, *_) = [one.request["learning_rate"] for one in made.values() if one.verb == "finetune"]
    assert rate == 1e-3


def test_numbers_of_shots_of_a_protocol_are_a_step_of_their_own(room: Path) -> None:
    made = steps(room, mergers=["average"], protocols=["current", "knn:shots=[1,5],rule=vote"])
    asked = [one.request for one in made.values() if one.verb == "evaluate"]
    assert [one["protocols"] for one in asked] == [
        [{"name": "current"}],
        [{"name": "knn", "rule": "vote"}],
    ]
    assert [list(one["shots"]) for one in asked] == [[1], [1, 5]]


def test_every_reading_is_scored_apart_and_of_the_mergers_it_names(room: Path) -> None:
    elsewhere = {
        "tasks": f"{TASK}@heldout10",
        "mergers": "ties",
        "protocols": ["current"],
        "evaluate": {"labels": "by-index"},
    }
    made = steps(room, score_on={"here": "experts", "there": elsewhere})
    scored = {name: one.request for name, one in made.items() if one.verb == "evaluate"}
    assert [*scored] == [
        "records/here/merged/base/topic/average/topic",
        "records/here/merged/base/topic/ties/topic",
        "records/there/merged/base/topic/ties/topic-heldout10",
    ]
    assert scored[[*scored][-1]]["labels"] == "by-index"
    assert scored[[*scored][-1]]["output"] == "records/there"


def test_a_board_may_have_other_references_than_the_study(room: Path) -> None:
    boards = {"here": "experts", "there": {"tasks": f"{TASK}@heldout10", "references": []}}
    made = steps(room, score_on=boards, references=["mtl"]).values()
    beside = {
        Path(one.request["output"]).name: one.request.get("references")
        for one in made
        if one.verb == "evaluate"
    }
    assert beside == {"here": ["experts/base/topic-mtl"], "there": None}


def test_what_mergers_need_is_computed_once_for_each_expert(room: Path) -> None:
    mergers = ["regmean:examples=8", "regmean:examples=8,off_diagonal=0.5", "regmean:examples=9"]
    made = steps(room, mergers=mergers)
    statistics = [name for name, one in made.items() if one.verb == "statistics"]
    assert len(statistics) == 4  # two experts, two numbers of examples
    merging = made["merged/base/topic/regmean-examples-8-off_diagonal-0.5"]
    assert {*statistics[:2]} < {*merging.needs}


def test_what_stands_beside_all_merges_is_scored_with_the_first(room: Path) -> None:
    scored = [one for one in steps(room, references=["mtl"]).values() if one.verb == "evaluate"]
    assert [one.after for one in scored] == [(), (scored[0].name,)]
    assert all("experts/base/topic-mtl" in one.needs for one in scored)


def domains(room: Path, count: int = 3) -> list[str]:
    """Tasks of one's own that share their labels, of the rows of one of the embedded in turn."""
    told = TASKS["embedded/names"]
    for number in range(count):
        (room / f"d{number}").mkdir()
        for split in ("train", "test"):
            rows = [*told.generate(split)][number::count][:40]
            (room / f"d{number}/{split}.jsonl").write_text("\n".join(map(json.dumps, rows)))
        said = {"kind": "tagging", "text": "words", "label": "tags", "files": f"d{number}"}
        said["labels"] = [*told.labels]
        (room / f"d{number}.yaml").write_text(yaml.safe_dump(said))
    return [f"d{number}.yaml" for number in range(count)]


# Identity ----------------------------------------------------------------------------------


def test_a_plan_is_what_it_asks_and_not_how_it_is_written(room: Path) -> None:
    one = plan(room)
    said = yaml.safe_dump({**TWO, "mergers": ["ties", "average"]}, sort_keys=True)
    (room / "two.yaml").write_text(f"# another order\n{said}")
    again = make_plan("two", steps_of(read_study(room / "two.yaml"), room / "out"))
    assert again.digest == one.digest
    assert plan(room, evaluate={**TWO["evaluate"], "draws": 3}).digest != one.digest


def test_more_of_a_study_leaves_what_there_is_as_it_is(room: Path) -> None:
    before, after = steps(room), steps(room, mergers=["wudi", *TWO["mergers"]])
    assert before.keys() < after.keys()
    assert all(after[name].request == one.request for name, one in before.items())


def test_a_plan_is_read_back_and_a_changed_one_is_refused(room: Path) -> None:
    made = plan(room, mergers=["fisher:examples=8"], protocols=["knn:rule=vote"])
    assert {one.request["need"] for one in made.steps.values() if one.verb == "statistics"} == {
        "fisher:examples=8"
    }
    path = write_plan(made, room / "out")
    assert read_plan(path) == made
    said = json.loads(path.read_text())
    said["steps"][0]["request"]["seed"] = 7
    path.write_text(json.dumps(said))
    with mistake(BadRecipe, path.name, "changed"):
        read_plan(path)
    said["steps"][0]["request"] = ["seed"]
    path.write_text(json.dumps(said))
    with mistake(BadRecipe, path.name, "no plan"):
        read_plan(path)


@pytest.mark.parametrize(("device", "seen"), [("cuda", {"4", "7"}), ("cuda:1", {"4,7"})])
def test_workers_take_gpus_in_turn_unless_one_is_named(
    device: str, seen: set[str], room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cuda:1` is the second of all: a worker that has but one of its own would not find it."""
    made = plan(room)
    path = write_plan(made, room / "out")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    says = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    monkeypatch.setattr(pool, "worker_command", lambda *_: [sys.executable, "-c", says])
    where = {**WHERE, "device": device}
    run_plan(made, path, room / "out", jobs=2, where=where, say=str)
    logs = sorted((room / "out/logs").iterdir(), key=lambda one: one.stat().st_mtime_ns)
    assert {one for log in logs for one in log.read_text().split()} == seen
    levels = [made.chunks[int(log.stem.split("-")[-1])].level for log in logs]
    assert levels == sorted(levels), "or one began before what it needs was done"


@pytest.mark.parametrize(("seconds", "most"), [(1.0, 60), (25.0, 3), (60.0, 1)])
def test_chunks_are_as_long_as_is_worth_a_start(
    room: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, most: int
) -> None:
    """Whatever sets and models their steps are of."""
    experts = {**TWO["experts"], "tasks": [TASK, "embedded/comparison"], "seeds": [0, 1, 2]}
    asked: dict[str, Any] = {"experts": experts, "mergers": ["regmean", "average"]}
    monkeypatch.setattr(
        "harness.studies.plan.estimate_seconds", lambda step: SecondsEstimate(seconds)
    )
    made = plan(room, **asked, sets={"by": "pairs"})
    assert {name for chunk in made.chunks for name in chunk.steps} == {*made.steps}
    for numbers in made.levels:
        *whole, rest = [len(made.chunks[number].steps) for number in numbers]
        assert {*whole} <= {most}
        assert 1 <= rest <= most


def test_steps_of_a_kind_that_was_not_timed_share_chunks_but_for_trainings(room: Path) -> None:
    made = plan(room, mergers=["average", "ties", "wudi"])
    verbs = [[made.steps[name].verb for name in one.steps] for one in made.chunks]
    assert verbs == [["finetune"], ["finetune"], ["merge"] * 3, ["evaluate"], ["evaluate"] * 2]


@pytest.mark.parametrize("name", ["records/../../x", "/etc/x", "merged//../../x", "x", "merged"])
def test_a_plan_names_places_in_its_study_alone(room: Path, name: str) -> None:
    path = write_plan(plan(room), room / "out")
    said = json.loads(path.read_text())
    said["steps"][0]["name"] = name
    path.write_text(json.dumps(said))
    with mistake(BadRecipe, repr(name), "place"):
        read_plan(path)


@pytest.mark.parametrize(
    ("verb", "changed", "named"),
    [
        ("merge", {"merger": {"name": "os:system"}}, "'os:system'"),
        ("merge", {"premerge": [{"name": "os:system"}]}, "'os:system'"),
        ("evaluate", {"protocols": [{"name": "os:system"}]}, "'os:system'"),
        ("evaluate", {"tasks": ["os:sep"]}, "'os:sep'"),
        ("evaluate", {"metrics": ["os:sep"]}, "'os:sep'"),
        ("merge", {"need": "os:sep:a=1"}, "'os:sep'"),
        ("evaluate", {"output": "records/../../away"}, "'records/../../away'"),
    ],
    ids=str,
)
def test_a_plan_of_somebody_else_imports_nothing_and_writes_nowhere_else(
    room: Path, verb: str, changed: dict[str, Any], named: str
) -> None:
    """Though its digest is right."""
    made = plan(room)
    odd = {
        name: replace(one, request={**one.request, **changed}) if one.verb == verb else one
        for name, one in made.steps.items()
    }
    path = write_plan(replace(made, steps=odd), room / "out")
    with pytest.raises((BadRecipe, UnknownName), match=named):
        read_plan(path)


# Runs --------------------------------------------------------------------------------------


def test_a_study_is_what_its_commands_do_one_by_one(room: Path, monkeypatch: Any) -> None:
    found = run(room)
    assert {one.state for one in found.values()} == {"done"}
    monkeypatch.chdir(room)
    for seed in (0, 1):
        harness.finetune("base", TASK, out=f"hand/topic-{seed}", seed=seed, epochs=1, limit=40)
    for merger in ("average", "ties"):
        recipe = harness.Recipe(
            experts=("hand/topic-0", "hand/topic-1"), base="base", merger=harness.Choice(merger)
        )
        harness.merge(recipe, out=f"hand/{merger}")
        protocols = tuple(map(harness.parse_choice, ("current", "knn")))
        harness.evaluate(
            harness.Run(model=f"hand/{merger}", output="hand/records/two", protocols=protocols,
                        limit=24, draws=2, shots=(1,))
        )  # fmt: skip
    ours, by_hand = records(room / "out"), records(room / "hand")
    assert ours.keys() == by_hand.keys()
    for path, one in ours.items():
        for key in ("scores", "intervals", "resamples", "digest", "content", "predictions"):
            assert one[key] == by_hand[path][key], (path, key)


def test_what_is_done_is_not_done_again_and_what_is_gone_is(room: Path, done: Kept) -> None:
    done()
    known = outcomes_of(plan(room), room / "out")
    times = {path: path.stat().st_mtime_ns for path in (room / "out/outcomes").rglob("*.json")}
    assert run(room) == known
    assert {path: path.stat().st_mtime_ns for path in times} == times
    of_ties = known["records/two/merged/base/topic/ties/topic"].records
    gone = room / "out" / next(path for path in of_ties if path.startswith("records/two/ties/"))
    gone.unlink()
    again = run(room)
    assert gone.is_file()
    changed = [path for path, before in times.items() if path.stat().st_mtime_ns != before]
    assert [path.parent.name for path in changed] == ["ties"]
    assert {one.state for one in again.values()} == {"done"}


def test_time_left_is_told_by_what_steps_cost(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by their number: a training is no evaluation. Nothing of what was done before."""
    costs = {"finetune": 70.0, "merge": 0.1, "evaluate": 4.0}
    monkeypatch.setattr(
        "harness.studies.plan.estimate_seconds", lambda step: SecondsEstimate(costs[step.verb])
    )
    made, told = plan(room), list[tuple[int, int]]()
    path = write_plan(made, room / "out")

    def tell(_: str, done: int, total: int) -> None:
        told.append((done, total))

    for _ in range(2):
        run_plan(made, path, room / "out", where=WHERE, progress=tell, say=str)
    assert told == [(70, 149), (70, 149), (1, 149), (4, 149), (4, 149)]


def test_a_setting_that_changed_under_a_name_is_refused_with_both(room: Path, done: Kept) -> None:
    done()
    experts: Any = TWO["experts"]
    other = {**experts, "finetune": {"epochs": 1, "limit": 30}}
    with mistake(BadRecipe, "limit", "40", "30", "--out"):
        outcomes_of(plan(room, experts=other), room / "out")


AMENDED: dict[str, dict[str, Any]] = {
    "protocols": {"protocols": ["linear-probe", "current", "knn"]},
    "draws": {"evaluate": {"limit": 24, "draws": 3, "shots": [1]}},
    "shots": {"evaluate": {"limit": 24, "draws": 2, "shots": [1, 2]}},
    "references": {"references": ["mtl"]},
    "tasks": {"score_on": {"two": {"tasks": ["experts", f"{TASK}@heldout10"]}}},
    "seeds": {"experts": {**TWO["experts"], "seeds": [*range(6)]}},
    "mergers": {"mergers": ["average", "regmean:examples=8", "ties"]},
}


@pytest.mark.parametrize("what", AMENDED)
def test_what_is_added_to_a_study_is_done_and_nothing_else(
    room: Path, done: Kept, what: str
) -> None:
    """By the same command: models and scores that are there stay as they are."""
    before: dict[str, Any] = {
        "experts": {**TWO["experts"], "seeds": [0, 1, 2, 3]},
        "sets": {"by": "task", "choose": 2, "disjoint": True},
    }
    done(command, **before)
    kept = [*(room / "out/records").rglob("*.json"), *(room / "out").rglob("*.safetensors")]
    times = {path: path.stat().st_mtime_ns for path in kept}
    command(room, **{**before, **AMENDED[what]})
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert len(records(room / "out")) > sum(path.suffix == ".json" for path in kept)
    assert {one.state for one in outcomes_of(latest(room), room / "out").values()} == {"done"}


def test_a_task_more_makes_other_sets_of_the_same_experts(room: Path) -> None:
    """Of another name, as merges of a name are of one set of experts."""
    asked: dict[str, Any] = {"protocols": "current", "mergers": "average"}
    tasks = [TASK, "embedded/comparison", "embedded/outcome"]
    few, more = ({**TWO["experts"], "tasks": tasks[:count]} for count in (2, 3))
    run(room, experts=few, sets={"by": "seed"}, **asked)
    times = {one: one.stat().st_mtime_ns for one in (room / "out").rglob("*.safetensors")}
    with mistake(BadRecipe, "merged/base/seed-1/average", "experts", "outcome-1", "sets.called"):
        outcomes_of(plan(room, experts=more, sets={"by": "seed"}, **asked), room / "out")
    run(room, experts=more, sets={"by": "seed", "called": "three"}, **asked)
    assert {one: one.stat().st_mtime_ns for one in times} == times
    assert (room / "out/merged/base/three/seed-0/average/merge.json").is_file()
    assert {one.name for one in (room / "out/experts/base").iterdir()} == {
        f"{task.partition('/')[2]}-{seed}" for task in tasks for seed in (0, 1)
    }


@pytest.mark.usefixtures("as_found")
def test_what_cannot_be_scored_is_left_out_with_a_warning(room: Path) -> None:
    """Another board's task that no expert has a head for, and the best of one expert."""
    boards = {"here": "experts", "there": "embedded/comparison"}
    asked: dict[str, Any] = {"score_on": boards, "references": ["best-single"]}
    with pytest.warns(UserWarning, match=r"score_on.there: no expert .* embedded/comparison"):
        made = steps(room, **asked)
    scored = [one.request for one in made.values() if one.verb == "evaluate"]
    assert {one["output"] for one in scored} == {"records/here"}
    assert all(one["best_single"] for one in scored)  # each task has two experts
    two = {**TWO["experts"], "tasks": [TASK, "embedded/comparison"]}
    with pytest.warns(UserWarning, match="best-single is left out"):
        made = steps(room, references=["best-single"], experts=two, sets={"by": "seed"})
    assert not any(one.request.get("best_single") for one in made.values())
    # experts of other tasks that have its labels are some to choose from
    three = domains(room)
    made = steps(
        room, references=["best-single", "singles"], experts={"tasks": three}, sets={"by": "seed"}
    )
    scored = [one.request for one in made.values() if one.verb == "evaluate"]
    assert all(one["best_single"] and one["singles"] for one in scored)
    # heads of a folder are for any task
    boards = {"here": "experts", "there": {"tasks": "embedded/comparison"}}
    asked = {"score_on": boards, "evaluate": {**TWO["evaluate"], "heads_from": str(room)}}
    assert any("records/there" in name for name in steps(room, **asked))


@pytest.mark.parametrize(
    ("asked", "things"),
    [
        ({"limit": 24, "draws": 3, "shots": [1], "max_length": 16}, ("max_length", "None", "16")),
        ({"limit": 20, "draws": 3, "shots": [1]}, ("limit", "24", "20")),
        ({"limit": 24, "draws": 1, "shots": [1]}, ("draws", "2", "1")),
        ({"limit": 24, "draws": 2, "shots": [5]}, ("shots", "[1]", "[5]")),
    ],
    ids=str,
)
def test_what_is_asked_otherwise_and_is_no_more_is_refused(
    room: Path, done: Kept, asked: dict[str, Any], things: tuple[str, ...]
) -> None:
    """Though something is added as well."""
    done(mergers=["average"], protocols=["knn"])
    changed = {"evaluate": asked, "mergers": ["average"], "protocols": ["knn", "current"]}
    again = ["study", "run", write(room, **changed), "--out", room / "out"]
    refused(again, BadRecipe, "records/two/merged/base/topic/average/topic", *things, "--out")


def test_a_board_that_another_study_in_the_folder_has_is_refused(room: Path) -> None:
    """Though it is planned alone: each would draw it over the other's."""
    asked = {"score_on": {"here": "experts"}}
    more = ["--out", room / "out", "--write"]
    assert main(["study", "plan", str(write(room, **asked)), *map(str, more)]) == 0
    write(room, **asked, study="other", mergers=["wudi"])
    things = ("other", "two", "'here'", "--out", "score_on")
    refused(["study", "plan", room / "two.yaml", *more], BadRecipe, *things)


def task_of_files(room: Path, **more: Any) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Writes mine.yaml, a task of the room's own files; what it says, and its rows."""
    named = enumerate(("good", "bad") * 30)
    rows = [{"text": f"number {at} is {word}", "label": word} for at, word in named]
    for split, of in (("train", rows[:40]), ("test", rows[40:])):
        (room / f"{split}.jsonl").write_text("\n".join(map(json.dumps, of)))
    task = {"text": "text", "label": "label", "labels": ["bad", "good"], "files": str(room), **more}
    (room / "mine.yaml").write_text(json.dumps(task))
    return task, rows


@pytest.mark.parametrize("what", ["base", "rows", "task", "expert"])
@pytest.mark.usefixtures("own_tasks")
def test_what_was_read_and_is_another_now_is_refused(room: Path, what: str) -> None:
    """A request only names it: the study would keep the scores of what it was."""
    task, rows = task_of_files(room)
    experts = {**TWO["experts"], "tasks": str(room / "mine.yaml")}
    again = ["study", "run", write(room, experts=experts), "--out", room / "out"]
    assert main([*map(str, again)]) == main([*map(str, again)]) == 0
    if what == "base":
        tensors = load_file(path := room / "base/model.safetensors")
        save_file({name: one + 1e-3 for name, one in tensors.items()}, path, {"format": "pt"})
    elif what == "rows":
        (room / "test.jsonl").write_text("\n".join(map(json.dumps, rows[42:])))
    elif what == "expert":
        made = room / "out/experts/base/mine-0" / EXPERT_FILE
        made.write_text(made.read_text().replace('"seed": 0', '"seed": 7'))
    else:
        (room / "mine.yaml").write_text(json.dumps({**task, "metric": "macro_f1"}))
    called = {"base": "base", "expert": EXPERT_FILE}.get(what, "mine.yaml")
    refused(again, BadRecipe, called, "has changed since", "out/", "--out")
    assert main(["study", "status", str(room / "out")]) == 0  # what it was is still there


@pytest.mark.parametrize("weights", ["adapter_model.safetensors", "pytorch_model.bin"])
def test_what_is_read_of_an_adapter_or_a_pickle_is_another_input(room: Path, weights: str) -> None:
    """Else a study would mix merges of an expert with those of the expert trained again."""
    for name in "ab":
        (room / name).mkdir()
        (room / name / weights).write_text(name)
    asked = study(room, experts=["a", "b"], sets=None, score_on={"a": {"tasks": TASK}})

    def known() -> list[Mapping[str, str]]:
        made = with_inputs(steps_of(asked, room / "out"), room / "out", None)
        return [step.inputs for step in made if step.verb == "merge"]

    before = known()
    (room / "a" / weights).write_text("another")
    assert all(now != then for now, then in zip(known(), before, strict=True))


def test_another_file_of_one_size_and_time_is_another_input(room: Path) -> None:
    """In one process as well, which reads every file once."""

    def known() -> list[Mapping[str, str]]:
        steps = with_inputs([*plan(room).steps.values()], room / "out", None)
        return [step.inputs for step in steps if step.verb == "finetune"]

    before, weights = known(), room / "base/model.safetensors"
    times, content = weights.stat(), bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert all(now != then for now, then in zip(known(), before, strict=True))


def test_a_field_that_a_version_adds_to_tasks_changes_no_input(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else every study that was begun before would be refused."""
    made = plan(room)
    known = [one.inputs for one in with_inputs([*made.steps.values()], room / "out", None)]
    shorter = [one for one in fields(Task) if one.name not in ("image", "corpus")]
    monkeypatch.setattr(inputs, "fields", lambda task: shorter)
    again = with_inputs([*made.steps.values()], room / "out", None)
    assert [one.inputs for one in again] == known
    assert any(task.startswith(TASK) for of in known for task in of)


def test_a_merge_of_other_code_is_told(room: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a plug-in that was edited meanwhile; ours change with a release."""
    made = plan(room)

    def told(then: str, now: str, state: Any = "done") -> list[str]:
        monkeypatch.setattr(outcomes, "code_of", lambda function: then)
        for step in made.steps.values():
            write_outcome(step, room / "out", Outcome(state, step.request, reason="full"))
        known = {name: outcome_of(step, room / "out") for name, step in made.steps.items()}
        monkeypatch.setattr(outcomes, "code_of", lambda function: now)
        return failures(made, known)

    assert told("", "") == told("a", "a") == told("a", "") == []
    (line,) = told("a", "b")
    names(line, "kept merged/ ties --remake-changed")
    assert "experts/" not in line
    lines = told("a", "b", "failed")  # of which nothing was kept
    assert lines
    *lines, last = lines
    assert all(one.startswith("failed: ") for one in lines)
    names(last, "again --retry-failed")


def test_merges_go_when_they_are_scored_and_stay_done(room: Path) -> None:
    found = run(room, keep_merges=False)
    assert {one.state for one in found.values()} == {"done"}
    assert not [*(room / "out/merged").rglob("merge.json")]
    assert run(room, keep_merges=False) == found
    # a protocol more needs the merge again
    more = run(room, keep_merges=False, protocols=["current", "knn", "linear-probe:shots=2"])
    assert {one.state for one in more.values()} == {"done"}
    assert any("linear-probe" in path for path in records(room / "out"))


def test_boards_that_are_gone_and_figures_that_are_new_are_drawn(room: Path) -> None:
    out = room / "out"
    command = ["study", "run", str(write(room, **SWEEP)), "--out", str(out)]
    assert main(command) == 0
    pictures = [*(out / "boards").rglob("*.svg")]
    assert pictures
    shutil.rmtree(out / "boards")
    assert main(command) == 0
    assert (out / "boards/two/index.html").is_file()
    assert [*(out / "boards").rglob("*.svg")] == pictures
    more = {**SWEEP, "figures": [*SWEEP["figures"], {"plot": "gains"}]}
    assert main(["study", "run", str(write(room, **more)), "--out", str(out)]) == 0
    assert len([*(out / "boards").rglob("*.svg")]) > len(pictures)


def test_a_merge_that_another_study_keeps_or_that_holds_more_stays(room: Path, done: Kept) -> None:
    """Two studies of one folder share their merges: one that keeps none takes none of the other."""
    done()
    kept = sorted((room / "out/merged").rglob("merge.json"))
    assert kept
    asked = study(room, study="three", keep_merges=False, protocols=["linear-probe:shots=2"])
    made = make_plan("three", steps_of(asked, room / "out"), keep_merges=False)
    path, said = write_plan(made, room / "out"), list[str]()
    found = run_plan(made, path, room / "out", where=WHERE, say=said.append)
    assert {one.state for one in found.values()} == {"done"}
    assert sorted((room / "out/merged").rglob("merge.json")) == kept


def test_a_merge_that_holds_somebodys_file_stays(room: Path) -> None:
    made = plan(room, keep_merges=False)
    notes: list[Path] = []

    def said(line: str) -> None:
        if line.startswith("done: merged/") and not notes:
            notes.append(room / "out" / line.removeprefix("done: ").split()[0] / "notes.txt")
            notes[0].write_text("mine")

    run_plan(made, write_plan(made, room / "out"), room / "out", where=WHERE, say=said)
    assert notes[0].read_text() == "mine"
    assert [one.parent for one in (room / "out/merged").rglob("merge.json")] == [notes[0].parent]


def test_merges_are_scored_before_more_are_made(room: Path) -> None:
    """Of many merges few lie on the disk at a time."""
    made, said = plan(room, mergers=["average", "ties", "wudi", "iso"]), list[str]()
    alone = make_plan("two", [*made.steps.values()])
    chunks = tuple(Chunk(one.level, (name,)) for one in alone.chunks for name in one.steps)
    apart = replace(alone, chunks=chunks)
    path = write_plan(apart, room / "out")
    run_plan(apart, path, room / "out", where=WHERE, say=said.append)
    verbs = [line.split()[1].split("/")[0] for line in said]
    assert verbs == ["experts"] * 2 + ["merged", "records"] * 4


def test_what_fails_is_said_with_its_reason_and_stays_until_it_is_retried(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An expert that is broken: what needs it waits, all else is done, and it is no success."""
    file = write(room, experts={"folders": {"good": ["a", "b"], "bad": ["a", "c"]}}, sets=None)
    for seed, name in enumerate("abc"):
        harness.finetune(room / "base", TASK, out=room / name, seed=seed, epochs=1, limit=40)
    weights = room / "c/model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-8])
    command = ["study", "run", str(file), "--out", str(room / "out"), "--device", "cpu"]
    assert main(command) == 3
    said = capsys.readouterr().out.splitlines()
    names(next(line for line in said if line.startswith("failed:")), "merged/bad/average", "c")
    status = outcomes_of(latest(room), room / "out")
    assert {name: one.state for name, one in status.items() if one.state != "done"} == {
        **{f"merged/bad/{one}": "failed" for one in ("average", "ties")},
        **{f"records/two/merged/bad/{one}/all": "missing" for one in ("average", "ties")},
    }
    assert main(command) == 3
    assert main([*command, "--retry-failed"]) == 3
    weights.write_bytes(whole)
    assert main(command) == 0  # what it failed on is another expert
    assert main(["study", "status", str(room / "out")]) == 0


def test_what_a_full_disk_ended_is_done_by_the_next_run(
    room: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise CannotWrite("there is no room")

    file = write(room)
    command = ["study", "run", str(file), "--out", str(room / "out"), "--device", "cpu"]
    with monkeypatch.context() as patch:
        patch.setattr("harness.studies.work.merge", full)
        assert main(command) == 3
    assert "no room" in capsys.readouterr().err
    assert {one.state for one in outcomes_of(latest(room), room / "out").values()} == {
        "done",
        "missing",
    }
    assert main(command) == 0


def test_what_a_full_disk_ended_may_be_asked_otherwise(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of it was made: with less to train on, say, there is room."""

    def full(*_: object, **__: object) -> None:
        raise CannotWrite("there is no room")

    with monkeypatch.context() as patch:
        patch.setattr("harness.studies.work.finetune", full)
        assert {one.state for one in run(room).values()} == {"missing"}
    experts: Any = TWO["experts"]
    asked = {"experts": {**experts, "finetune": {"epochs": 1, "limit": 30}}}
    assert {one.state for one in run(room, **asked).values()} == {"done"}


@pytest.mark.filterwarnings("default:the cache")
def test_a_cache_that_cannot_be_written_stops_no_step(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (room / "file").write_text("")
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(room / "file/cache"))
    assert {one.state for one in run(room, mergers="average").values()} == {"done"}


def test_logs_that_cannot_be_written_are_one_line(room: Path) -> None:
    (room / "out").mkdir()
    (room / "out/logs").write_text("mine")
    command = ["study", "run", write(room), "--out", room / "out", "--jobs", "2"]
    refused([*command, "--device", "cpu"], CannotWrite, "out/logs")


def test_a_study_of_which_all_fails_says_why_and_has_no_board(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (room / "base/model.safetensors").write_bytes(b"")
    assert main(["study", "run", str(write(room)), "--out", str(room / "out")]) == 3
    lines = [one for one in capsys.readouterr().out.splitlines() if one.startswith("failed: ")]
    said = [one for one in lines if "experts/base/topic-0, experts/base/topic-1: " in one]
    assert len(said) == 1  # two steps, one reason
    assert not (room / "out/boards").exists()


def test_disjoint_sets_are_replicates_on_a_board(room: Path) -> None:
    """Pairs that share experts are not."""
    experts = {**TWO["experts"], "seeds": [0, 1, 2, 3]}
    for disjoint, rows in ((True, ["average"]), (False, 6 * ["average ("])):
        sets = {"by": "task", "choose": 2, "disjoint": disjoint}
        asked = {"sets": sets, "mergers": ["average"], "protocols": ["current"]}
        path = write(room, experts=experts, **asked)
        out = ["--out", str(room / "out"), "--device", "cpu"]
        assert main(["study", "run", str(path), *out]) == 0
        told = (room / "out/boards/two/board.md").read_text()
        assert f"sets of experts: {2 if disjoint else 1};" in told
        found = [line[2:] for line in told.splitlines() if line.startswith("| average")]
        assert len(found) == len(rows)
        ensembles = [line for line in told.splitlines() if line.startswith("| logit ensemble")]
        assert (len(ensembles) == 1) == disjoint
        assert all(line.startswith(row) for line, row in zip(found, rows, strict=True))


def test_several_workers_make_what_one_makes(room: Path) -> None:
    """Every chunk is a process of its own, and so no more than records are made again."""
    alone, both = list[str](), list[str]()
    run(room, said=alone, protocols="current")
    one = records(room / "out")
    for place in ("records", "outcomes/records"):
        shutil.rmtree(room / "out" / place)
    found = run(room, jobs=2, said=both, protocols="current")
    assert sorted(alone) == sorted(f"done: {name}" for name in found)
    assert sorted(both) == [line for line in sorted(alone) if line.startswith("done: records/")]
    assert {known.state for known in found.values()} == {"done"}
    assert len(list((room / "out/logs").iterdir())) == len(both) == 2
    assert {path: said["scores"] for path, said in records(room / "out").items()} == {
        path: said["scores"] for path, said in one.items()
    }


@contextmanager
def at_work(room: Path, **changed: Any) -> Iterator[tuple[subprocess.Popen[str], list[Any]]]:
    """A run of a study, when there are workers; nothing of it is left afterwards."""
    command = [sys.executable, "-m", "harness", "study", "run", str(write(room, **changed))]
    command += ["--jobs", "2", "--out", str(room / "out"), "--device", "cpu"]
    with subprocess.Popen(command, cwd=room, stderr=subprocess.PIPE, text=True) as process:
        workers: list[psutil.Process] = []
        try:
            while not workers:
                assert process.poll() is None, process.communicate()[1]
                workers = psutil.Process(process.pid).children()
                time.sleep(0.02)
            yield process, workers
        finally:
            for one in (process, *workers):
                with suppress(psutil.NoSuchProcess):
                    one.kill()


@pytest.mark.parametrize("ignored", [False, True])
def test_who_ends_a_run_ends_its_workers(room: Path, ignored: bool) -> None:
    """They would train for long. Under `nohup` a terminal that is closed ends nothing."""
    experts = {**TWO["experts"], "finetune": {"epochs": 10**5, "limit": 40}}
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
    try:
        with at_work(room, experts=experts) as (process, workers):
            process.send_signal(signal.SIGHUP)
            if ignored:
                process.send_signal(signal.SIGTERM)
            _, error = process.communicate(timeout=60)
            assert process.returncode == 128 + (signal.SIGTERM if ignored else signal.SIGHUP)
            assert not [one for one in workers if one.is_running()]
            assert "Traceback" not in error
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_worker_does_its_chunk_and_leaves_out_what_is_not_ready(room: Path) -> None:
    made, said = plan(room), list[str]()
    write_plan(made, room / "out")
    last = len(made.chunks) - 1
    assert not work(made, last, room / "out", where=WHERE, say=said.append)
    assert all(line.startswith("left out: records/two/") for line in said)
    assert not (room / "out/outcomes").exists()
    for chunk in range(len(made.chunks)):
        assert work(made, chunk, room / "out", where=WHERE, say=said.append)


def test_a_worker_finds_what_the_environment_names_from_where_it_began(room: Path) -> None:
    """It works in the study's folder, where `HARNESS_PLUGINS=mine` names nothing."""
    write_plan(plan(room), room / "out")
    (room / "mine").mkdir()
    (room / "mine/one.py").write_text(PROTOCOL.format(label=0))
    (written,) = (room / "out/plans").glob("two-*.json")
    worker = [sys.executable, "-m", "harness", "work", str(written), "--chunk", "0"]
    env = {**os.environ, "HARNESS_PLUGINS": "mine", "HARNESS_CACHE_DIR": "cached"}
    done = subprocess.run(worker, cwd=room, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [*room.rglob("cached")] == [room / "cached"]


def test_what_changed_since_it_was_planned_is_not_read(room: Path) -> None:
    """Its scores would be told as those of what it was."""
    said = list[str]()
    made = make_plan("two", with_inputs([*steps(room).values()], room / "out", None))
    write_plan(made, room / "out")
    weights = room / "base/model.safetensors"
    whole = weights.read_bytes()
    save_file({n: one + 1e-3 for n, one in load_file(weights).items()}, weights, {"format": "pt"})
    assert not work(made, 0, room / "out", where=WHERE, say=said.append)
    names(said[0], "left out: experts/base/topic-0: ../base plan")
    assert not (room / "out/experts").exists()
    weights.write_bytes(whole)
    assert work(made, 0, room / "out", where=WHERE, say=said.append)


def test_a_model_that_is_not_fetched_yet_is_taken_to_be_the_same(room: Path) -> None:
    """A worker's machine may have another cache than the one that planned."""
    step = steps(room)["experts/base/topic-0"]
    other = replace(step, request={**step.request, "base": "org/far"}, inputs={"org/far": "known"})
    assert inputs.changed(other, room / "out", None) is None


def test_what_a_step_held_is_gone_when_the_next_begins(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where its parts know one another, as those of a merge do: they hold its tensors."""
    made, kept = plan(room), list[weakref.ref[Any]]()
    write_plan(made, room / "out")

    def merge(*_: Any, **__: Any) -> None:
        assert [one() for one in kept] == [None] * len(kept)
        one = type("Held", (), {})()
        one.known_by = one
        kept.append(weakref.ref(one))

    monkeypatch.setattr("harness.studies.work.merge", merge)
    gc.disable()
    try:
        for chunk in range(len(made.chunks)):
            work(made, chunk, room / "out", where=WHERE, say=str)
    finally:
        gc.enable()
    assert len(kept) > 1


@pytest.mark.parametrize("faster", [True, False], ids=["it ends", "it is killed"])
def test_of_two_that_begin_a_step_at_once_one_waits(
    room: Path, monkeypatch: pytest.MonkeyPatch, faster: bool
) -> None:
    """The other one begins when this one has looked already, and ends while this one waits."""
    made, looks = plan(room), list[bool]()
    write_plan(made, room / "out")
    step = next(one for one in made.steps.values() if one.verb == "finetune")
    place = room / "out" / step.name
    place.parent.mkdir(parents=True)
    theirs, lock = unfinished.new(place, unfinished.make_folder)

    def look(_: Path) -> bool:
        looks.append(len(looks) in (1, 2))
        if len(looks) == 3:
            os.close(lock)
            if faster:
                harness.finetune(room / "base", TASK, out=place, seed=0, epochs=1, limit=40)
                write_outcome(step, room / "out", Outcome("done", step.request))
        return looks[-1]

    monkeypatch.setattr("harness.studies.work.is_written", look)
    monkeypatch.setattr("harness.studies.work.PATIENCE", 0.01)
    chunk = next(n for n, one in enumerate(made.chunks) if step.name in one.steps)
    assert work(made, chunk, room / "out", where=WHERE, say=str)
    assert looks[:3] == [False, True, True]
    assert not theirs.exists()


def test_what_another_run_is_making_with_other_settings_is_refused(room: Path) -> None:
    """The worker of a run that was killed, say: its expert would be taken for what is asked now."""
    made = plan(room)
    step = made.steps["experts/base/topic-0"]
    place = room / "out" / step.name
    place.parent.mkdir(parents=True)
    write_outcome(step, room / "out", Outcome("begun", step.request))
    theirs, lock = unfinished.new(place, unfinished.make_folder)
    experts: Any = TWO["experts"]
    other = {"experts": {**experts, "finetune": {"epochs": 2, "limit": 40}}}
    with mistake(BadRecipe, step.name, "is being made", "not ended", "epochs", "1", "2", "--out"):
        outcomes_of(plan(room, **other), room / "out")
    os.close(lock)
    command(room, **other)
    made_with = json.loads((place / EXPERT_FILE).read_text())["hyperparameters"]
    assert made_with["epochs"] == 2
    assert not theirs.exists()


@pytest.mark.parametrize("told", [True, False])
def test_one_who_comes_late_leaves_what_the_other_one_made(
    room: Path, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    """The other one begins and ends while this one prepares to write, or is still to say so."""
    made = plan(room)
    write_plan(made, room / "out")
    step = next(one for one in made.steps.values() if one.verb == "finetune")

    def train(*_: Any, out: Path, **asked: Any) -> None:
        harness.finetune(out=out, **asked)
        if told:
            write_outcome(
                made.steps[str(out)], Path(), Outcome("done", made.steps[str(out)].request)
            )
        raise OutputExists(f"{out} exists")

    monkeypatch.setattr("harness.studies.work.finetune", train)
    chunk = next(n for n, one in enumerate(made.chunks) if step.name in one.steps)
    assert work(made, chunk, room / "out", where=WHERE, say=str)


def test_one_who_comes_late_takes_nothing_that_was_made_with_other_settings(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one had begun, and nothing showed yet that it was making a folder."""
    made, experts = plan(room), dict[str, Any](TWO["experts"])
    write_plan(made, room / "out")
    asked = steps(room, experts={**experts, "finetune": {"epochs": 2, "limit": 40}})

    def train(*_: Any, out: Path, **__: Any) -> None:
        step = asked[str(out)]
        harness.finetune(out=out, **step.request)
        write_outcome(step, Path(), Outcome("done", step.request))
        raise OutputExists(f"{out} exists")

    monkeypatch.setattr("harness.studies.work.finetune", train)
    with mistake(BadRecipe, "experts/base/topic-0", "epochs", "2", "1", "--out"):
        work(made, 0, room / "out", where=WHERE, say=str)
    assert outcome_of(asked["experts/base/topic-0"], room / "out").state == "done"


def test_one_who_looks_before_the_other_one_ends_does_not_begin_again(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its `begun` took the place of `done`, and what the other one had made was somebody else's."""
    made, looks = plan(room), list[str]()
    write_plan(made, room / "out")
    step = next(one for one in made.steps.values() if one.verb == "finetune")

    def look(of: Step, folder: Path) -> Outcome:
        known = outcome_of(of, folder)
        looks.append(of.name)
        if len(looks) == 1:
            harness.finetune(room / "base", TASK, out=of.name, seed=0, epochs=1, limit=40)
            write_outcome(of, folder, Outcome("done", of.request, seconds=7.0))
        return known

    monkeypatch.setattr("harness.studies.work.outcome_of", look)
    chunk = next(n for n, one in enumerate(made.chunks) if step.name in one.steps)
    assert work(made, chunk, room / "out", where=WHERE, say=str)
    assert outcome_of(step, room / "out").seconds == 7.0


def test_who_reads_a_merge_that_another_one_scored_and_took_away_has_not_failed(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one, of a run that was killed, say, scores it while this one begins to."""
    made, calls = plan(room, keep_merges=False), list[str]()
    write_plan(made, room / "out")
    *before, last = range(len(made.chunks))
    assert all(work(made, chunk, room / "out", where=WHERE, say=str) for chunk in before)

    def late(run: harness.Run) -> Any:
        calls.append(run.model)
        if len(calls) == 1:
            monkeypatch.setattr("harness.studies.work.evaluate", harness.evaluate)
            assert work(made, last, Path(), where=WHERE, say=str)
            assert not Path(run.model).exists()
        return harness.evaluate(run)

    monkeypatch.setattr("harness.studies.work.evaluate", late)
    said = list[str]()
    assert work(made, last, room / "out", where=WHERE, say=said.append)
    assert len(calls) == 1
    assert {one.state for one in outcomes_of(made, room / "out").values()} == {"done"}


def test_a_folder_that_the_study_did_not_make_is_not_taken_for_its_own(room: Path) -> None:
    """A whole expert in the place of one, of which no run of this study knows."""
    place = room / "out/experts/base/topic-0"
    harness.finetune(room / "base", TASK, out=place, seed=5, epochs=1, limit=40)
    before = (place / EXPERT_FILE).read_bytes()
    found = run(room)
    assert found["experts/base/topic-0"].state == "failed"
    assert (place / EXPERT_FILE).read_bytes() == before


# Commands ----------------------------------------------------------------------------------


def test_a_plan_says_what_a_study_takes_and_does_nothing(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["study", "plan", str(write(room)), "--out", str(room / "out")]
    assert main(command) == 0
    told = capsys.readouterr().out
    names(told.splitlines()[-1], "4", "cells")  # 2 merges x 1 task x 2 protocols
    assert "4 steps of a kind" not in told
    assert not (room / "out").exists()


@pytest.mark.filterwarnings("default:.* is taken for a model of the Hub")
@pytest.mark.filterwarnings("default:the rows of")
def test_a_plan_says_what_it_does_not_know(
    room: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A base of the Hub is as large as it is in the cache; data of the Hub are not counted."""

    def told(**changed: Any) -> str:
        command = ["study", "plan", str(write(room, **changed)), "--out", str(room / "out")]
        assert main(command) == 0
        return capsys.readouterr().out.splitlines()[-1]

    here = told()
    assert "unknown" not in here
    size = sum(one.stat().st_size for one in (room / "base").iterdir())
    names(here, f"{4 * size / 1e6:.1f}", "MB")  # two experts and two merges
    cache = room / "hub/models--some--base"
    shutil.copytree(room / "base", cache / "snapshots/1f0c")
    (cache / "refs").mkdir()
    (cache / "refs/main").write_text("1f0c")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(room / "hub"))
    assert told(base="some/base") == here
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    names(told(base="some/other"), "0.0 MB", "4 of unknown size")
    experts = {**TWO["experts"], "tasks": "glue/rte"}  # type: ignore[dict-item]
    capsys.readouterr()
    command = ["study", "plan", str(write(room, experts=experts)), "--out", str(room / "out")]
    assert main(command) == 0
    said = capsys.readouterr()
    names(said.out.splitlines()[-1], "0 rows", "unknown number of 2 evaluations")
    names(said.err.splitlines()[0], "glue/rte", "Hub", "--data-dir")


def test_a_price_of_rows_that_were_not_counted_is_of_the_same_alone(room: Path) -> None:
    made = replace(steps(room)["experts/base/topic-0"], size=None)
    record_time(made, 3.0)
    assert estimate_seconds(made) == SecondsEstimate(3.0)
    assert estimate_seconds(replace(made, request={**made.request, "limit": 9})) is None
    assert estimate_seconds(replace(made, size=9)) is None


def test_what_steps_took_is_their_price(room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(room)
    assert main(["study", "plan", str(write(room)), "--out", str(room / "elsewhere")]) == 0
    assert "without an estimate" not in capsys.readouterr().out
    # another protocol, or method, may take a hundred times as long
    for changed in ({"protocols": ["current", "surgery"]}, {"mergers": ["average", "fisher"]}):
        file = write(room, **changed)
        assert main(["study", "plan", str(file), "--out", str(room / "elsewhere")]) == 0
        assert "without an estimate" in capsys.readouterr().out


def test_a_study_of_another_base_by_a_flag(room: Path) -> None:
    experts = {**TWO["experts"], "by_task": {TASK: {"epochs": 5}}}  # type: ignore[dict-item]
    file = write(room, base=None, experts=experts)
    asked = read_study(file, base=(str(room / "base"),), limit=16, seeds=3, epochs=2)
    made = {one.name: one for one in steps_of(asked, room / "out")}
    assert [name for name in made if name.startswith("experts")] == [
        f"experts/base/topic-{seed}" for seed in range(3)
    ]
    of_its_own = write(room, base="./nowhere", experts={**experts, "seeds": [7, 1, 4]})
    for count, seeds in ((2, (7, 1)), (5, (7, 1, 4, 0, 2))):  # its own first
        known = read_study(of_its_own, base=(str(room / "base"),), seeds=count)
        assert (known.experts.seeds, known.base) == (seeds, (str(room / "base"),))
    expert = made["experts/base/topic-0"].request
    assert (expert["limit"], expert["epochs"]) == (16, 2)
    assert made["records/two/merged/base/topic/average/topic"].request["limit"] == 16
    merges = [one.request for one in made.values() if one.verb == "merge"]
    assert not any("tune_limit" in one for one in merges)  # none chooses by rows


@pytest.mark.parametrize("chooses", ["soup", {"merger": "ties", "tune": {"density": [0.1, 0.2]}}])
def test_rows_to_choose_by_are_limited_by_a_flag_too(room: Path, chooses: object) -> None:
    asked = read_study(write(room, mergers=["average", chooses]), limit=16)
    made = [one.request for one in steps_of(asked, room / "out") if one.verb == "merge"]
    assert [one.get("tune_limit") for one in made] == [None, 16]


@pytest.mark.parametrize(
    ("method", "needed"),
    [
        ({"mergers": ["average", "regmean:examples=4"]}, "gram:examples=4"),
        ({"mergers": ["average", "regmean"]}, "gram:examples=16"),
        ({"mergers": ["average"], "premerge": ["none", "cca"]}, None),
    ],
)
def test_rows_that_methods_are_shown_are_limited_by_a_flag_too(
    room: Path, method: dict[str, Any], needed: str | None
) -> None:
    made = [*steps_of(read_study(write(room, **method), limit=16), room / "out")]
    merges = [one.request for one in made if one.verb == "merge"]
    assert [one.get("examples_limit") for one in merges] == [None, 16]
    statistics = [one.request["need"] for one in made if one.verb == "statistics"]
    assert statistics == ([needed] * 2 if needed else [])


@pytest.mark.parametrize("said", ["flag", "file"])
@pytest.mark.parametrize(
    ("protocol", "taken"), [("knn:shots=all", 16), ("fresh-head", 16), ("knn:shots=5", None)]
)
def test_all_shots_are_as_many_rows_as_a_limit_says(
    room: Path, said: str, protocol: str, taken: int | None
) -> None:
    file = write(room, protocols=[protocol], **({"limit": 16} if said == "file" else {}))
    made = steps_of(read_study(file, limit=16 if said == "flag" else None), room / "out")
    asked = [one.request for one in made if one.verb == "evaluate"]
    assert {(one["limit"], one.get("train_limit")) for one in asked} == {(16, taken)}
    trained = [one.request["limit"] for one in made if one.verb == "finetune"]
    assert {*trained} == {16}


def test_a_limit_raises_nothing(room: Path) -> None:
    """What the file says is less, of any rows, stays."""
    experts = {**TWO["experts"], "finetune": {"limit": 4}}  # type: ignore[dict-item]
    chooses = {"merger": "task_arithmetic", "tune": {"scale": "0.5:1:0.5"}, "on": "heldout10"}
    file = write(
        room,
        experts=experts,
        mergers=[chooses, "regmean"],
        merge={"tune_limit": 5, "examples_limit": 6},
        evaluate={"limit": 7, "train_limit": 3},
        protocols=["fresh-head"],
        score_on={"x": {"tasks": "experts", "evaluate": {"limit": 2}}, "y": {"tasks": "experts"}},
    )
    made = [one.request for one in steps_of(read_study(file, limit=16), room / "out")]
    assert {one["limit"] for one in made if "task" in one and "limit" in one} == {4}
    assert {one["tune_limit"] for one in made if "tune_limit" in one} == {5}
    assert {one["examples_limit"] for one in made if "examples_limit" in one} == {6}
    assert {(one["limit"], one["train_limit"]) for one in made if "train_limit" in one} == {
        (2, 3),
        (7, 3),
    }
    wide = [one.request for one in steps_of(read_study(file, limit=1), room / "out")]
    assert {one["limit"] for one in wide if "train_limit" in one} == {1}, "of one reading, too"


def test_a_limit_may_leave_out_all_that_reads_rows(room: Path) -> None:
    """What a flag limits need not be there, unlike what the file says of every merge."""
    file = write(room, mergers=["average", "regmean"], exclude=[{"merger": "regmean"}])
    made = steps_of(read_study(file, limit=16), room / "out")
    assert not any("examples_limit" in one.request for one in made)


def test_a_number_of_rows_that_a_flag_undercuts_is_told(room: Path) -> None:
    """The rows of a sweep keep its values as their names."""
    stages = [{"merger": "average", "premerge": "cca:examples=40"}]
    file = write(room, mergers=["average", "regmean:examples=[4,32,64]"], include=stages)
    undercut = "16 examples .* regmean:examples=32, regmean:examples=64, cca:examples=40"
    with pytest.warns(UserWarning, match=undercut):
        made = steps_of(read_study(file, limit=16), room / "out")
    needs = dict.fromkeys(one.request["need"] for one in made if one.verb == "statistics")
    assert [*needs] == ["gram:examples=4", "gram:examples=16"]


def test_what_is_left_out_may_be_gone_by_a_flag(room: Path) -> None:
    shutil.copytree(room / "base", room / "other")
    asked = {"exclude": [{"base": "base", "merger": "ties"}, {"set": "seed-1", "merger": "ties"}]}
    experts = {"tasks": [TASK, "embedded/comparison"], "seeds": [0, 1]}
    file = write(room, **asked, experts=experts, sets=None)
    command = ["study", "plan", str(file), "--out", str(room / "out")]
    for more in ([], ["--base", str(room / "other")], ["--seeds", "1"]):
        assert main([*command, *more]) == 0


SWEEP = {
    "mergers": [
        "average",
        "ties:density=[0.2,0.8]",
        {"merger": "ties", "tune": {"density": [0.3, 0.5]}},
    ],
    "premerge": ["none", "procrustes"],
    "protocols": ["current"],
    "figures": [{"sweep": "ties.density"}],
}


def test_a_figure_is_drawn_of_merges_that_differ_in_one_option(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["study", "run", str(write(room, **SWEEP)), "--out", str(room / "out")]
    assert main([*command, "--device", "cpu"]) == 0
    wrote = [one for one in capsys.readouterr().out.splitlines() if one.endswith(".svg")]
    pictures = [
        room / f"out/boards/two-ties.density-{one}.svg" for one in ("ties", "procrustes-ties")
    ]
    assert [Path(one.removeprefix("wrote ")).name for one in wrote] == [p.name for p in pictures]
    assert all("ties.density" in one.read_text() for one in pictures)
    for one in pictures:
        one.unlink()
    assert main(["study", "board", str(room / "out")]) == 0  # the plan says it
    assert all(one.is_file() for one in pictures)


@pytest.mark.usefixtures("as_found")
def test_experts_are_merged_one_after_another_beside_one_model_of_all(room: Path) -> None:
    """Of one label space: every merge is read on every task, and so is a model under one head."""
    tasks = domains(room)
    asked: dict[str, Any] = {
        "experts": {"tasks": tasks, "head_seed": "same", "finetune": {"epochs": 1}},
        "sets": {"by": "seed", "grow": True},
        "mergers": ["average"],
        "protocols": ["current"],
        "references": ["mtl"],
        "score_on": {"two": {"tasks": tasks}},
        "figures": [{"sweep": "experts"}],
    }
    command = ["study", "run", str(write(room, **asked)), "--out", str(room / "out")]
    assert main([*command, "--device", "cpu"]) == 0
    found = [*records(room / "out").values()]
    assert sorted((r["task"], len(r["experts"])) for r in found if r["role"] == "merged") == [
        (f"d{number}@test", count) for number in range(3) for count in (2, 3)
    ]
    assert {(r["task"], r["model"]) for r in found if r["method"] == "multi-task"} == {
        (f"d{number}@test", f"{name}-mtl") for number in range(3) for name in ("d0+d1", "d0+d1+d2")
    }
    picture = (room / "out/boards/two-experts-average.svg").read_text()
    assert "number of experts" in picture
    shown = sweep(read_both([room / "out/records"], View()), View(option="experts"))
    assert {name: [p.x for p in points] for name, points in shown.curves.items()} == {
        name: [2, 3] for name in (*(f"d{number}@test" for number in range(3)), "mean of 3 tasks")
    }
    for count in (2, 3):
        name = "+".join(f"d{number}" for number in range(count))
        mtl = room / f"out/experts/base/seed-0/{name}-mtl"
        assert json.loads((mtl / EXPERT_FILE).read_text())["tasks"] == name.split("+")
        assert not (mtl / "heads").exists()


def test_a_figure_of_a_board_is_drawn_as_plot_draws_it(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = [{"plot": "gains"}, {"plot": "protocols", "protocols": ["current"]}]
    asked = {**SWEEP, "mergers": "average", "figures": figures}
    command = ["study", "run", str(write(room, **asked)), "--out", str(room / "out")]
    assert main([*command, "--device", "cpu"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [Path(one).name for one in said if one.endswith(".svg")] == ["two-gains.svg"]
    (lacking,) = (one for one in said if one.startswith("no figure"))
    names(lacking, "two-protocols", "current", "knn")
    assert "procrustes" in (room / "out/boards/two-gains.svg").read_text()


def test_a_figure_of_what_failed_is_said_to_be_missing(room: Path) -> None:
    made = replace(plan(room, **SWEEP), figures=(Figure(sweep="ties.density"),))
    failed = {name: Outcome("failed", {}, reason="no head") for name in made.steps}
    drawn, missing = figures(made, failed, room)
    assert not drawn
    assert missing
    for line in missing:
        names(line, "no figure two-ties.density", "failed")


def test_each_base_has_its_picture_of_a_board(room: Path) -> None:
    shutil.copytree(room / "base", room / "other")
    made = plan(room, base=["base", "other"])
    known = {n: Outcome("done", {}, records=(f"{n}.json",)) for n in made.steps}
    found = records_of(made, known, room, Figure(plot="gains"))
    assert {*found} == {"two-gains-base", "two-gains-other"}
    for base in ("base", "other"):
        assert all(f"/{base}/" in str(one.relative_to(room)) for one in found[f"two-gains-{base}"])


def test_what_a_figure_lacks_is_said_and_boards_are_drawn(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {**SWEEP, "protocols": ["knn"]}
    command = ["study", "run", str(write(room, **asked)), "--out", str(room / "out")]
    assert main([*command, "--device", "cpu"]) == 0
    said = [one for one in capsys.readouterr().out.splitlines() if one.startswith("no figure")]
    assert len(said) == 2
    names(said[0], "two-ties.density-ties", "ties.density")
    assert (room / "out/boards/two/index.html").is_file()


def test_sets_that_share_tasks_have_figures_of_their_own(room: Path) -> None:
    experts = {
        **TWO["experts"],
        "tasks": ["embedded/topic", "embedded/comparison", "embedded/outcome"],
    }
    made = plan(room, **{**SWEEP, "experts": experts, "sets": {"by": "pairs"}})
    found = curves_of(made.steps, Figure(sweep="ties.density"))
    pairs = [*combinations(["comparison", "outcome", "topic"], 2)]
    assert {*found} == {
        f"two-ties.density-{way}-{a}-{b}" for way in ("ties", "procrustes-ties") for a, b in pairs
    }
    assert {len(steps) for steps in found.values()} == {2 * 2 * 2}  # seeds, densities, tasks


def test_how_many_sets_a_difference_takes(room: Path, capsys: pytest.CaptureFixture[str]) -> None:
    experts: Any = TWO["experts"]
    two = {"experts": {**experts, "tasks": [TASK, "embedded/comparison"]}, "sets": {"by": "seed"}}
    # of few rows that are drawn the two merges have one score
    known = run(room, **two, evaluate={**TWO["evaluate"], "first": True})
    (of,) = spreads(latest(room), known, room / "out", 2.0).values()
    (knn,) = [one for one in of if one.protocol != "current"]
    scores: dict[tuple[str, str], list[float]] = {}
    for said in records(room / "out").values():
        if said["role"] == "merged" and said["protocol"] == "knn":
            experts = " ".join(one["digest"] for one in said["experts"])
            drawn = [100 * one["value"] for one in said["scores"]]
            scores.setdefault((experts, said["method"]), []).append(sum(drawn) / len(drawn))
    means = {key: sum(of_tasks) / 2 for key, of_tasks in scores.items()}
    sets = sorted({experts for experts, _ in means})
    apart = [means[one, "average"] - means[one, "ties"] for one in sets]
    assert (knn.protocol, knn.merges, knn.sets) == ("knn, 1 shot", 2, 2)
    assert knn.deviation == pytest.approx(stdev(apart) / 0.75)  # of one degree of freedom
    assert knn.needed == sets_needed(knn.deviation, 2.0)
    assert main(["study", "status", str(room / "out"), "--spread", "2"]) == 0
    assert "points would be significant with about" in capsys.readouterr().out
    refused(["study", "status", room / "out", "--spread", "0"], BadRecipe, "--spread", "0")


PROTOCOL = """
import numpy as np
from harness import Predictions, protocol

@protocol("mine", adapts="nothing")
def mine(encoded):
    return [Predictions(np.full(len(encoded.test.labels), {label}.0))]
"""


@pytest.mark.usefixtures("as_found")
def test_what_a_protocol_of_a_plug_in_scored_is_scored_again(room: Path) -> None:
    """As soon as its code is another: the study would show what the old one said."""
    (room / "mine").mkdir()
    out = ["study", "run", str(write(room, protocols=["current", "mine"])), "--out"]
    out += [str(room / "out"), "--plugins", str(room / "mine")]
    shown = []
    for label in (0, 1, 1):
        (room / "mine/one.py").write_text(PROTOCOL.format(label=label))
        with registries_kept():  # as a process of its own
            assert main(out) == 0
        boards = pandas.read_parquet(room / "out/boards/two/board.parquet")
        shown.append(boards[boards.protocol == "mine"].value.tolist())
    assert shown[0] != shown[1] == shown[2]
    written = [one.stat().st_mtime_ns for one in (room / "out/records").rglob("mine*.json")]
    with registries_kept():
        assert main(out) == 0
    assert written == [one.stat().st_mtime_ns for one in (room / "out/records").rglob("mine*.json")]


MERGER = """
import harness
from harness.weights import each

@harness.merger("own", task_vectors=False)
def own(experts, base, *, more: float = 0.0):
    return each(lambda *tensors: {scale} * sum(tensors) + more, *experts)
"""


@pytest.mark.usefixtures("as_found")
def test_merges_of_other_code_are_made_again_where_that_is_asked(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (room / "mine").mkdir()
    command = ["study", "run", str(write(room, mergers=["average", "own"], protocols="current"))]
    command += ["--out", str(room / "out"), "--plugins", str(room / "mine")]
    place = room / "out/merged/base/topic"
    shown, digests = [], []
    for scale, more in ((0.5, []), (0.4, []), (0.4, ["--remake-changed"])):
        (room / "mine/one.py").write_text(MERGER.format(scale=scale))
        with registries_kept():  # as a process of its own
            assert main([*command, *more]) == 0
        shown.append("--remake-changed" in capsys.readouterr().out)
        digests.append([json.loads((place / name / "merge.json").read_text())["digest"]
                        for name in ("average", "own")])  # fmt: skip
    assert shown == [False, True, False]
    assert digests[0] == digests[1]
    assert digests[1][0] == digests[2][0]
    assert digests[1][1] != digests[2][1]
    for again in (command, ["study", "board", *command[4:]]):
        with registries_kept():  # its defaults are known to who has it alone
            assert main(again) == 0
        boards = pandas.read_parquet(room / "out/boards/two/board.parquet")
        assert {*boards[boards.row == "own"].digest} == {digests[2][1]}
    (place / "own/notes.txt").write_text("mine")
    (room / "mine/one.py").write_text(MERGER.format(scale=0.3))
    with registries_kept():
        refused([*command, "--remake-changed"], OutputExists, "topic/own notes.txt")


@pytest.mark.usefixtures("as_found")
@pytest.mark.filterwarnings("default:.* was made before the code")
def test_a_merge_whose_run_was_killed_is_of_the_code_that_made_it(
    room: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Killed when the folder was whole, and before that was said; then the code is another."""
    (room / "mine").mkdir()
    command = ["study", "run", str(write(room, mergers="own", protocols="current"))]
    command += ["--out", str(room / "out"), "--plugins", str(room / "mine")]
    outcome = room / "out/outcomes/merged/base/topic/own.json"
    for scale in (0.5, 0.4):
        (room / "mine/one.py").write_text(MERGER.format(scale=scale))
        capsys.readouterr()
        with registries_kept():  # as a process of its own
            assert main(command) == 0
        if scale == 0.5:
            outcome.write_text(outcome.read_text().replace('"done"', '"begun"'))
            shutil.rmtree(room / "out/records")
    assert "--remake-changed" in capsys.readouterr().out


METRIC = """
import harness

@harness.metric("own_share", kinds=("classification",))
def own_share(predicted, labels):
    return {scale} * float((predicted == labels).mean())
"""


@pytest.mark.parametrize("how", ["a file of a task", "what experts say"])
@pytest.mark.usefixtures("as_found")
def test_what_a_metric_of_other_code_scored_is_scored_again(room: Path, how: str) -> None:
    """Whoever names it: no step of a study does."""
    (room / "mine").mkdir()
    task_of_files(room, metric=["accuracy", "own_share"])
    more = ["--out", str(room / "out"), "--plugins", str(room / "mine")]
    experts = {**TWO["experts"], "tasks": str(room / "mine.yaml")}
    if how == "what experts say":
        (room / "mine/one.py").write_text(METRIC.format(scale=1))
        nothing: dict[str, Any] = dict.fromkeys(("sets", "mergers", "protocols", "evaluate"))
        first = write(room, study="first", experts=experts, **nothing)
        with registries_kept():
            assert main(["study", "run", str(first), *more]) == 0
        made = [str(one.parent) for one in sorted((room / "out/experts").rglob("expert.json"))]
        experts = {"folders": {"two": made}}
    sets = None if "folders" in experts else TWO["sets"]
    asked = write(room, experts=experts, sets=sets, mergers="average", protocols="current")
    worst = []
    for scale in (1, 0.5):
        (room / "mine/one.py").write_text(METRIC.format(scale=scale))
        with registries_kept():
            assert main(["study", "run", str(asked), *more]) == 0
        board = pandas.read_parquet(room / "out/boards/two/board.parquet")
        parts = [json.loads(one) for one in board.parts]
        worst.append([one["own_share"] / one["accuracy"] for one in parts if one["accuracy"]])
    assert {*worst[0]} == {1.0}
    assert {*worst[1]} == {0.5}


@pytest.mark.usefixtures("as_found")
def test_what_another_study_scored_of_a_merge_that_is_made_again_is_scored_again(
    room: Path,
) -> None:
    """And a folder that was not made here stays as it is."""
    (room / "mine").mkdir()
    asked: dict[str, Any] = {"mergers": "own", "protocols": "current"}
    files = {name: room / f"{name}.yaml" for name in ("two", "other")}
    shutil.copy(write(room, **asked, study="other"), files["other"])
    write(room, **asked)
    more = ["--out", str(room / "out"), "--plugins", str(room / "mine")]
    place = room / "out/merged/base/topic/own"
    for scale, flags in ((0.5, []), (0.4, ["--remake-changed"])):
        (room / "mine/one.py").write_text(MERGER.format(scale=scale))
        for name in files:
            with registries_kept():
                assert main(["study", "run", str(files[name]), *more, *flags]) == 0
            flags = []
    digest = json.loads((place / "merge.json").read_text())["digest"]
    for name in files:
        board = pandas.read_parquet(room / f"out/boards/{name}/board.parquet")
        assert {*board[board.row == "own"].digest} == {digest}
    for path in place.iterdir():
        path.unlink()
    (place / "notes.txt").write_text("mine")
    (room / "mine/one.py").write_text(MERGER.format(scale=0.3))
    with registries_kept():
        assert main(["study", "run", str(files["two"]), *more, "--remake-changed"]) == 3
    assert (place / "notes.txt").read_text() == "mine"


def test_a_curve_over_something_else_has_merges_with_a_value_that_is_chosen(room: Path) -> None:
    """Only where that value is what the curve goes along has it none."""
    chooses = {"merger": "ties", "tune": {"scale": [0.5, 1.0]}}
    made = steps(
        room, mergers=[chooses], premerge=["dare:drop_rate=0.2", "dare:drop_rate=0.8"],
        protocols=["current"],
    )  # fmt: skip
    assert curves_of(made, Figure(sweep="dare.drop_rate"))
    assert not curves_of(made, Figure(sweep="ties.scale"))


def test_sets_of_two_bases_are_never_pooled() -> None:
    """By hand: from one base ties is 2 points above the average in each set, from the other 22."""
    rows = [
        {"role": "merged", "base": base, "protocol": "current", "options": "", "shots": 0,
         "experts_digest": f"{base}{seed}", "method": method, "task": TASK,
         "value": 50 + seed + (method == "ties") * (above + 0.1 * seed)}
        for base, above in (("a", 2), ("b", 22)) for seed in (0, 1, 2)
        for method in ("average", "ties")
    ]  # fmt: skip
    found = spreads_of(pandas.DataFrame(rows), 1.0)
    assert [(one.base, one.sets, one.merges) for one in found] == [("a", 3, 2), ("b", 3, 2)]
    assert all(one.deviation == pytest.approx(0.1 / (1 - 1 / 8)) for one in found)


def test_a_study_without_records_leaves_the_boards_of_others(
    room: Path, done: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    done()
    write(room, study="another", mergers=["wudi"])
    out = ["--out", str(room / "out")]
    assert main(["study", "plan", str(room / "two.yaml"), *out, "--write"]) == 0
    assert main(["study", "board", str(room / "out")]) == 0
    said = capsys.readouterr()
    assert "boards/two/index.html" in said.out
    names(said.err.strip(), "no record", "another")


def test_one_set_says_nothing_of_how_far_sets_differ(room: Path, done: Kept) -> None:
    done()
    known = outcomes_of(latest(room), room / "out")
    with mistake(BadRecipe, "two", "sets", "seeds"):
        spreads(latest(room), known, room / "out", 1.0)


MANY = ",".join(f"0.{number:04}" for number in range(1, 400))
MISTAKES: dict[str, tuple[dict[str, Any], type[HarnessError], tuple[str, ...]]] = {
    "no study": ({"study": None}, BadRecipe, ("two.yaml", "study")),
    "a path for a name": ({"study": "../x"}, BadRecipe, ("two.yaml", "study", "'../x'")),
    "unknown field": ({"merger": ["average"]}, BadRecipe, ("two.yaml", "merger", "mergers")),
    "no mergers": ({"mergers": []}, BadRecipe, ("two", "merge")),
    "unknown merger": ({"mergers": ["avrage"]}, UnknownName, ("'avrage'", "'average'")),
    "unknown option": ({"mergers": ["ties:densty=1"]}, BadOption, ("'densty'", "'density'")),
    "option out of range": ({"mergers": ["ties:density=2"]}, BadOption, ("'density'", "2")),
    "merger of a plug-in": ({"mergers": ["xyzzy"]}, UnknownName, ("'xyzzy'", "--plugins FOLDER")),
    "unknown protocol": ({"protocols": ["curent"]}, UnknownName, ("'curent'", "'current'")),
    "shots of a protocol that takes all rows": (
        {"protocols": ["current", "fresh-head:shots=[1,5]"]},
        BadRecipe,
        ("two", "fresh-head", "1:5", "all rows", "leave"),
    ),
    "disjoint sets that leave an expert over": (
        {
            "experts": {**TWO["experts"], "seeds": [0, 1, 2]},
            "sets": {"by": "task", "choose": 2, "disjoint": True},
        },
        BadRecipe,
        ("two", "2", "disjoint", "topic", "3", "multiple of 2"),
    ),
    "sets of more experts than there are": (
        {
            "experts": {**TWO["experts"], "seeds": [0]},
            "sets": {"by": "task", "choose": 2},
        },
        BadRecipe,
        ("two", "sets.choose", "2", "topic", "1 expert"),
    ),
    "disjoint sets of no size": (
        {"sets": {"by": "task", "disjoint": True}},
        BadRecipe,
        ("two", "disjoint", "choose", "pairs"),
    ),
    "sets that grow and are chosen": (
        {"sets": {"by": "task", "choose": 2, "grow": True}}, BadRecipe, ("two", "grow", "choose")
    ),
    "one expert to grow from": (
        {"experts": {"tasks": TASK}, "sets": {"grow": True}}, BadRecipe, ("base/seed-0", "1")
    ),
    "shots of no number": (
        {"protocols": ["knn:shots=[1,x]"]}, BadRecipe, ("two", "knn", "'x'", "all")
    ),
    "unknown task": (
        {"experts": {"tasks": "embedded/topik", "seeds": [0, 1]}}, UnknownName, ("topik", "topic")
    ),
    "a merger to import": ({"mergers": ["os:system"]}, UnknownName, ("two.yaml", "'os:system'")),
    "a merger to import in place of the axis": (
        {"merge": {"merger": "os:system"}}, BadRecipe, ("two.yaml", "merge", "'merger'")
    ),
    "device of the machine": (
        {"merge": {"merge_device": "cuda"}}, BadRecipe, ("two.yaml", "merge", "'merge_device'")
    ),
    "an axis among the fields of a run": (
        {"evaluate": {"protocols": ["knn"]}}, BadRecipe, ("two.yaml", "evaluate", "'protocols'")
    ),
    "a metric to import": (
        {"evaluate": {"metrics": ["os:system"]}}, UnknownName, ("two.yaml", "'os:system'")
    ),
    "exclude a merger that is none": (
        {"exclude": [{"merger": "fishr"}]}, UnknownName, ("'fishr'", "'fisher'")
    ),
    "exclude a stage that is none": (
        {"exclude": [{"premerge": "drae"}]}, UnknownName, ("'drae'", "'dare'")
    ),
    "score a merger that is none": (
        {"score_on": {"here": {"mergers": "fishr"}}}, BadRecipe, ("two", "here", "'fishr'")
    ),
    "a protocol to import": (
        {"protocols": ["os:system:shots=[1]"]}, UnknownName, ("two.yaml", "'os:system'")
    ),
    "a task to import": (
        {"experts": {"tasks": "os:sep", "seeds": [0, 1]}}, UnknownName, ("two.yaml", "'os:sep'")
    ),
    "unknown premerge": ({"premerge": ["rotatoin"]}, UnknownName, ("'rotatoin'", "'rotation'")),
    "field of no run": (
        {"evaluate": {"lmit": 1}}, BadRecipe, ("two", "evaluate", "'lmit'", "'limit'")
    ),
    "field of no reading": (
        {"score_on": {"here": {"tasks": TASK, "evaluate": {"lmit": 1}}}},
        BadRecipe, ("two", "score_on.here.evaluate", "'lmit'", "'limit'"),
    ),
    "field of no run, within": (
        {"figures": [{"plt": "gains"}]}, BadRecipe, ("two.yaml", "'figures.0.plt'", "'plot'")
    ),
    "a value of no run": (
        {"evaluate": {"limit": "x"}}, BadRecipe, ("evaluate", "limit", "'x'", "whole number")
    ),
    "a limit that is text": (
        {"merge": {"examples_limit": "9"}, "limit": 4},
        BadRecipe, ("merge", "examples_limit", "'9'", "whole number"),
    ),
    "field of no recipe": ({"merge": {"haeds": "keep"}}, BadRecipe, ("two", "haeds", "heads")),
    "unknown flag": (
        {"experts": {"tasks": TASK, "seeds": [0, 1], "finetune": {"epoch": 1}}},
        BadRecipe, ("two", "'epoch'", "epochs"),
    ),
    "odd flag": (
        {"experts": {"tasks": TASK, "seeds": [0, 1], "finetune": {"epochs": -1}}},
        BadRecipe, ("two", "epochs", "-1"),
    ),
    "one expert": ({"experts": {"tasks": TASK}}, BadRecipe, ("base/topic", "1", "seeds")),
    "a task twice": (
        {"experts": {"tasks": [TASK, TASK]}}, BadRecipe, ("two", "experts.tasks", TASK, "twice"),
    ),
    "a seed twice": (
        {"experts": {"tasks": TASK, "seeds": [0, 0]}},
        BadRecipe, ("two", "experts.seeds", "0", "twice", "once"),
    ),
    "no base": ({"base": None}, BadRecipe, ("two", "base", "--base")),
    "a base that is not there": ({"base": "./nowhere"}, BadRecipe, ("two.yaml", "nowhere")),
    "experts twice": (
        {"experts": {"tasks": TASK, "folders": {"a": ["base"]}}},
        BadRecipe, ("two", "tasks", "folders"),
    ),
    "seeds of folders": (
        {"experts": {"folders": {"a": ["base"]}, "seeds": [0, 1]}},
        BadRecipe, ("two", "seeds", "folders"),
    ),
    "sets of folders": (
        {"experts": {"folders": {"a": ["base", "base"]}}, "sets": {"by": "pairs"}},
        BadRecipe, ("two", "sets", "folders"),
    ),
    "an expert twice in a set": (
        {
            "experts": ["base", "base/../base"],
            "sets": None,
            "score_on": {"two": {"tasks": TASK}},
        },
        BadRecipe, ("merged/two/", "base", "twice", "once"),
    ),
    "on without tune": (
        {"mergers": [{"merger": "ties", "on": "heldout10"}]}, BadRecipe, ("mergers", "on", "tune")
    ),
    "shots of what adapts to none": (
        {"protocols": "current:shots=[1,3]"}, BadRecipe, ("two", "current", "1:3", "leave")
    ),
    "a metric that is none": (
        {"evaluate": {"metrics": ["acuracy"]}}, UnknownName, ("'acuracy'", "'accuracy'")
    ),
    "a reference misspelled": (
        {"references": ["ensmble"]}, BadRecipe, ("references", "'ensmble'", "'ensemble'")
    ),
    "a reference spelled as in Python": (
        {"references": ["best_single"]}, BadRecipe, ("references", "'best-single'")
    ),
    "a paper that is none": (
        {"paper": "procrustes-4"}, BadRecipe, ("two.yaml", "'procrustes-4'", "'procrustes-")
    ),
    "nothing that has a head": (
        {"score_on": {"there": {"tasks": "embedded/comparison"}}},
        BadRecipe, ("two", "score_on.there", "head", "embedded/comparison", "labels"),
    ),
    "seeds that are true": (
        {"experts": {"tasks": TASK, "seeds": True}}, BadRecipe, ("two", "experts.seeds", "True")
    ),
    "a limit that is true": ({"limit": True}, BadRecipe, ("two", "limit", "True")),
    "exclude nothing": (
        {"exclude": [{"merger": "ties"}, {"merger": "average"}]}, BadRecipe, ("two", "exclude")
    ),
    "exclude a base that is none": (
        {"exclude": [{"base": "bsae"}]}, BadRecipe, ("two", "exclude", "base", "'bsae'", "'base'")
    ),
    "exclude a set that is none": (
        {"exclude": [{"merger": "ties", "set": "tpoic"}]},
        BadRecipe, ("two", "exclude", "set", "'tpoic'", "'topic'"),
    ),
    "layers that the base has not": (
        {"premerge": ["rotation:layers=first:12"]},
        BadOption, ("rotation", "base", "'first:12'", "from 1 to 2"),
    ),
    "each layer of no base": (
        {"experts": ["base", "base"], "sets": None, "base": None,
         "premerge": ["rotation:layers=each"]},
        BadRecipe, ("two", "layers=each", "base"),
    ),
    "each layer, and tuned as well": (
        {"mergers": [{"merger": "average", "premerge": "rotation:layers=each",
                      "tune": {"rotation.layers": "each"}}]},
        BadRecipe, ("two", "rotation:layers=each", "tuned"),
    ),
    "each of what is not layers": (
        {"mergers": [{"merger": "average", "premerge": "rotation:layers=each",
                      "postmerge": "svc", "tune": {"svc.floor": "each"}}]},
        BadOption, ("tune", "svc.floor=each", "list"),
    ),
    "layers to try that the base has not": (
        {"mergers": [{"merger": "average", "premerge": "rotation",
                      "tune": {"rotation.layers": ["first:1", "9"]}, "on": "heldout10"}]},
        BadOption, ("rotation", "base", "'9'", "from 0 to 1"),
    ),
    "a method to tune that is not there": (
        {"mergers": [{"merger": "average", "tune": {"rotation.layers": ["all"]}}]},
        BadOption, ("rotation", "average"),
    ),
    "exclude by what is none": (
        {"exclude": [{"method": "ties"}]}, BadRecipe, ("exclude", "'method'", "merger")
    ),
    "a split to train on": (
        {"experts": {"tasks": f"{TASK}@test", "seeds": [0, 1]}}, BadRecipe, ("two", "'@test'")
    ),
    "a flag of no task": (
        {"experts": {"tasks": TASK, "seeds": [0, 1], "by_task": {"embedded/x": {}}}},
        BadRecipe, ("two", "by_task", "embedded/x"),
    ),
    "two of one name": (
        {"experts": {"tasks": TASK, "seeds": [0, 1]}, "mergers": ["ties:density=0.2",
         {"merger": {"name": "ties", "density": 0.2}}]},
        BadRecipe, ("two", "merged/base/topic/ties-density-0.2", "merger"),
    ),
    "parts of no such number": (
        {"experts": {"tasks": TASK, "partition": 3}}, BadRecipe, ("two.yaml", "partition", "2")
    ),
    "sets of parts of none": ({"sets": {"by": "partition"}}, BadRecipe, ("two", "partition: 2")),
    "a set of four of two": (
        {"sets": {"by": "task", "choose": 4}}, BadRecipe, ("two", "4", "topic", "2")
    ),
    "a grid without a step": (
        {"mergers": [{"merger": "task_arithmetic", "tune": {"scale": "0.1:1"}}]},
        BadOption, ("'scale=0.1:1'", "FIRST:LAST:STEP"),
    ),
    "tuned on reported rows": (
        {"mergers": [{"merger": "ties", "tune": {"scale": "0.5:1:0.5"}, "on": "test"}]},
        BadRecipe, (f"{TASK}@test", "reported", "heldout10"),
    ),
    "an empty base": ({"base": "empty"}, BrokenCheckpoint, ("empty/config.json",)),
    "an empty expert": (
        {"experts": ["base", "empty"], "sets": None, "score_on": {"a": {"tasks": TASK}}},
        BrokenCheckpoint, ("empty/config.json",)
    ),
    "an empty reference": ({"references": ["empty"]}, BrokenCheckpoint, ("empty/config.json",)),
    "a base of the Hub that cannot be had": (
        {"base": "nobody/nothing"}, BrokenCheckpoint, ("'nobody/nothing'", "Hub")
    ),
    "task vectors from no base": (
        {"experts": ["base", "base"], "sets": None, "base": None, "mergers": ["task_arithmetic"]},
        BadRecipe, ("task_arithmetic", "base", "--base"),
    ),
    "a base of text for images": (
        {"experts": {"tasks": "embedded/shapes", "seeds": [0, 1]}},
        BadRecipe, ("base", "text", "embedded/shapes", "images"),
    ),
    "a base of text read on images": (
        {"score_on": {"there": {"tasks": "embedded/shapes"}}},
        BadRecipe, ("two", "score_on.there", "head", "embedded/shapes"),
    ),
    "endless mergers": (
        {"mergers": [f"breadcrumbs:density=[{MANY}],gamma=[{MANY}]"]},
        BadRecipe, ("two.yaml", "mergers", "100,000"),
    ),
    "endless stages": (
        {"premerge": [f"dare:drop_rate=[{MANY}]"], "postmerge": [f"lines:beta=[{MANY}]"]},
        BadRecipe, ("two", "merges", "100,000"),
    ),
    "endless sets": (
        {
            "experts": {**TWO["experts"], "seeds": [*range(60)]},
            "sets": {"by": "task", "choose": 30},
        },
        BadRecipe, ("two", "sets", "30", "100,000"),
    ),
    "endless draws": (
        {"evaluate": {**TWO["evaluate"], "draws": 10**9}}, BadRecipe, ("1,000,000,000", "1,000")
    ),
    "a figure over nothing": (
        {"figures": [{"sweep": "ties.densty"}]}, BadRecipe, ("two", "figures", "ties.densty")
    ),
    "a figure over sets of one size": (
        {"figures": [{"sweep": "experts"}]}, BadRecipe, ("two", "figures", "experts", "grow")
    ),
    "a figure of two kinds": (
        {"figures": [{"sweep": "experts", "plot": "gains"}]},
        BadRecipe, ("two", "figures.0", "sweep", "plot"),
    ),
    "a figure of nothing": ({"figures": [{}]}, BadRecipe, ("two", "figures.0", "sweep", "plot")),
    "a picture of features": (
        {"figures": [{"plot": "tsne"}]}, BadRecipe, ("two", "figures.0.plot", "'gains'")
    ),
    "a figure of a protocol that is not asked": (
        {"figures": [{"plot": "gains", "protocols": "cosine"}]},
        BadRecipe, ("two", "figures", "'cosine'", "current"),
    ),
    "a method of other families": (
        {"premerge": ["rotation:residual=true"]},
        BadOption, ("rotation:residual=True", "vit", "norms", "bert"),
    ),
    "a field of merges that none has a use for": (
        {"merge": {"tune_limit": 3}}, BadRecipe, ("two", "merge", "tune_limit"),
    ),
    "a seed below zero": (
        {"experts": {"tasks": [TASK], "seeds": [-1, 0]}}, BadRecipe, ("experts.seeds", "0"),
    ),
    "a limit that is no number": (
        {"experts": {"tasks": [TASK], "seeds": [0, 1], "finetune": {"limit": "many"}}},
        BadRecipe, ("experts.finetune", "limit", "'many'"),
    ),
    "no row to train on": (
        {"experts": {"tasks": [TASK], "seeds": [0, 1], "by_task": {TASK: {"limit": 0}}}},
        BadRecipe, ("experts.by_task", "limit", "0"),
    ),
    "a folder of heads that is a number": (
        {"experts": {"tasks": [TASK], "seeds": [0, 1], "finetune": {"heads_from": 5}}},
        BadRecipe, ("experts.finetune", "heads_from", "5"),
    ),
    "a limit of examples that nobody is shown": (
        {"merge": {"examples_limit": 3}}, BadRecipe, ("two", "merge", "examples_limit"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_in_a_study_is_one_line_before_any_work(room: Path, case: str) -> None:
    changed, kind, things = MISTAKES[case]
    (room / "empty").mkdir()
    for verb in ("plan", "run"):
        refused(["study", verb, write(room, **changed), "--out", room / "out"], kind, *things)
    assert not (room / "out").exists()


@pytest.mark.parametrize(
    ("words", "things"),
    [
        (("run", "nothing.yaml"), ("nothing.yaml",)),
        (("run", "nothing"), ("'nothing'",)),
        (("run", "two.yaml", "--jobs", "0"), ("--jobs", "0")),
        (("run", "two.yaml", "--limit", "0"), ("--limit", "0")),
        (("run", "two.yaml", "--seeds", "0"), ("--seeds", "0")),
        (("plan", "two.yaml", "--epochs", "0"), ("--epochs", "0")),
        (("submit", "two.yaml", "--epochs", "0", "--header", "job.sh"), ("--epochs", "0")),
        (("run", "two.yaml", "--base", "./nowhere"), ("--base", "nowhere")),
        (("status", "base"), ("base", "plans")),
        (("board", "base"), ("base", "plans")),
    ],
    ids=" ".join,
)
def test_a_mistake_in_a_command_is_one_line(
    room: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], things: tuple[str, ...]
) -> None:
    write(room)
    (room / "job.sh").write_text("#!/bin/bash\n")
    monkeypatch.chdir(room)
    refused(["study", *words], BadRecipe, *things)


@pytest.mark.parametrize(
    ("other", "things"),
    [
        ({"mergers": ["avrage"]}, ("'avrage'", "'average'")),
        ({"score_on": {"two": "experts"}}, ("other", "two", "'two'", "--out")),
        (
            {"experts": {**TWO["experts"], "finetune": {"epochs": 2}}},
            ("two", "other", "experts/base/topic-0", "epochs", "1", "2", "called"),
        ),
    ],
    ids=["a merger", "a board", "an expert"],
)
def test_a_mistake_in_the_last_of_several_studies_is_told_before_any_work(
    room: Path, other: dict[str, Any], things: tuple[str, ...]
) -> None:
    write(room, **{"study": "other", **other}).rename(room / "other.yaml")
    files = [write(room), room / "other.yaml"]
    refused(["study", "run", *files, "--out", room / "out"], HarnessError, *things)
    assert not (room / "out").exists()


def test_a_study_of_what_one_before_it_makes_is_planned_in_its_turn(room: Path) -> None:
    made = {"folders": {"s": [f"$OUT/experts/base/topic-{seed}" for seed in (0, 1)]}}
    small = {"mergers": ["average"], "protocols": ["current"]}
    write(room, study="other", experts=made, sets=None, **small).rename(room / "other.yaml")
    files = [write(room, mergers=None), room / "other.yaml"]
    assert main(["study", "run", *map(str, files), "--out", str(room / "out")]) == 0
    assert (room / "out/merged/s/average").is_dir()


@pytest.mark.filterwarnings("default:.* is taken for a model of the Hub")
def test_a_base_that_is_no_folder_is_told_and_refused_beside_its_like(
    room: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`bases/other` may be a model of the Hub, but not where the folder `bases` is."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    command = ["study", "plan", str(write(room, base="bases/other")), "--out", str(room / "out")]
    assert main(command) == 0
    names(capsys.readouterr().err.strip(), "warning", "'bases/other'", "no folder", "Hub")
    (room / "bases").mkdir()
    refused(command, BadRecipe, "two.yaml", "bases/other", "folder", "Hub")


def test_workers_are_told_where_methods_compute(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is no part of a plan; merges alone are asked to."""
    words = worker_command(room / "plan.json", {"device": "cpu", "merge_device": "cuda:1"})
    assert words[-4:] == ["--device", "cpu", "--merge-device", "cuda:1"]
    made, asked = plan(room), list[str]()

    def noted(recipe: Recipe, *, out: Path) -> None:
        asked.append(recipe.merge_device)
        merge(recipe.but(merge_device="cpu"), out=out)

    monkeypatch.setattr("harness.studies.work.merge", noted)
    write_plan(made, room / "out")
    where = {**WHERE, "merge_device": "cuda:1"}
    for number in range(len(made.chunks)):
        assert work(made, number, room / "out", where=where, say=print)
    assert asked == ["cuda:1"] * len([one for one in made.steps.values() if one.verb == "merge"])


@pytest.mark.parametrize("flag", ["device", "merge_device"])
@pytest.mark.parametrize("verb", ["run", "work"])
def test_a_device_that_is_not_here_is_told_and_no_step_fails(
    room: Path, verb: str, flag: str
) -> None:
    """Of `run` before there is a plan, and of a worker, which may be on another machine."""
    file, out = write(room), room / "out"
    command = ["study", "run", file, "--out", out]
    if verb == "work":
        command = ["work", write_plan(plan(room), out), "--chunk", "0"]
    asked = [f"--{flag.replace('_', '-')}", "cuda:99"]
    refused([*command, *asked], BadOption, f"{flag} is 'cuda:99'", "auto")
    assert not (out / "outcomes").exists()
    assert out.exists() == (verb == "work")


def test_times_that_are_broken_are_passed_over(room: Path) -> None:
    made = steps(room)["experts/base/topic-0"]
    assert estimate_seconds(made) is None
    record_time(made, 3.0)
    record_time(made, 5.0)
    (file,) = (cache_dir("times")).iterdir()
    with file.open("ab") as times:
        times.write(b'{"kinds": 3, "rate": 1}\n{"a": \xff\n{"kinds": [["finetune"')
    assert estimate_seconds(made) == SecondsEstimate(4.0)
    like = replace(made, about="embedded/comparison", size=2 * made.size)
    assert estimate_seconds(like) == SecondsEstimate(8.0)  # of the same base


def test_a_price_by_steps_of_another_size_is_a_bound_or_on_a_line(room: Path) -> None:
    """A start of 5 s and 0.01 s for each unit: as in proportion, ten times the size took 50 s."""

    def of(size: int, task: str = TASK) -> Step:
        return replace(made, size=size, about=task)

    made = steps(room)["experts/base/topic-0"]
    record_time(of(100), 6.0)
    assert estimate_seconds(of(1000)) == SecondsEstimate(60.0, at_most=True)
    assert estimate_seconds(of(10)) == SecondsEstimate(6.0, at_most=True)
    record_time(of(400), 9.0)
    record_time(of(800), 13.0)
    for size, far in ((10, False), (8000, True)):
        known = estimate_seconds(of(size))
        assert known is not None
        assert (known.seconds, known.at_most) == (pytest.approx(5 + 0.01 * size), far)
    record_time(of(7000, "embedded/comparison"), 70.0)  # of another task, and of about this size
    assert estimate_seconds(of(8000)) == SecondsEstimate(80.0)


def test_statistics_and_merges_are_as_large_as_the_rows_that_they_read(room: Path) -> None:
    """Of a tuned one every candidate is scored; what a step before it computes is no part of it."""

    def of(rows: int) -> dict[str, Step]:
        tuned = {"merger": "ties", "tune": {"scale": [0.5, 1]}}
        shown = {"merger": "average", "premerge": f"cca:examples={rows}"}
        asked = ["average", f"regmean:examples={rows}", tuned, shown]
        made = steps(room, mergers=asked, merge={"tune_limit": rows})
        return {one.about: one for one in made.values() if one.verb in ("merge", "statistics")}

    few, many = of(8), of(80)
    assert {name: one.size for name, one in few.items()} == {
        "average of 2": 0,
        "regmean:examples=8 of 2": 0,
        "ties of 2 by scale": 2 * 8,
        "cca:examples=8[average] of 2": 2 * 8,
        f"gram:examples=8 {TASK}": 8,
    }
    for one in few.values():
        record_time(one, 3.0)
    prices = [estimate_seconds(one) for one in many.values()]
    assert prices == [
        SecondsEstimate(3.0 * (10 if one.size else 1), one.size != 0) for one in many.values()
    ]


def pairs(data: Path, count: int) -> None:
    """Made-up rows of RTE, so many in each split."""
    (data / "glue/rte").mkdir(parents=True)
    for split in ("train", "validation"):
        rows = "".join(f"{split} {n},b {n},{n % 2}\n" for n in range(count))
        (data / f"glue/rte/{split}.csv").write_text(f"sentence1,sentence2,label\n{rows}")


def test_rows_are_counted_in_the_folder_that_is_meant(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several in one process, by the environment and from where the command is."""
    for count in (20, 30, 40):
        pairs(room / str(count) / "data", count)
        monkeypatch.chdir(room / str(count))
        monkeypatch.setenv("HARNESS_DATA_DIR", "data" if count > 20 else str(room / "20/data"))
        assert rows_of("glue/rte@validation", None, None) == count
    monkeypatch.delenv("HARNESS_DATA_DIR")
    assert rows_of("glue/rte@validation", None, None) is None


def test_data_are_found_from_where_the_command_is(
    room: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers go to the study's folder."""
    pairs(room / "data", 60)
    experts = {**TWO["experts"], "tasks": "glue/rte"}  # type: ignore[dict-item]
    write(room, experts=experts, mergers=["average"], protocols=["current"])
    monkeypatch.chdir(room)
    monkeypatch.setenv("HARNESS_DATA_DIR", "data")
    assert main(["study", "run", "two.yaml", "--out", "out", "--device", "cpu"]) == 0
